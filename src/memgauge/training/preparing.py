"""The beginning of every training, and all of a baseline: import the framework, load the data."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from types import ModuleType

from memgauge.data import DataSet, load
from memgauge.monitor.marks import phase
from memgauge.training import Outcome, Training

_LOOPS = {
    "torch": "memgauge.training.torch_loop",
    "keras": "memgauge.training.keras_loop",
    "sklearn": "memgauge.training.sklearn_loop",
}
_DISTRIBUTIONS = {
    "torch": ("torch", "numpy"),
    "keras": ("tensorflow", "keras", "numpy"),
    "sklearn": ("scikit-learn", "numpy"),
}


def prepare(training: Training, imported: Callable[[], None] = lambda: None) -> tuple[ModuleType, DataSet]:
    """Return the module of the framework's loop and the loaded data, each made in a phase of its own.

    Args:
        training: What is to be trained.
        imported: Called between the two.
    """
    with phase("import"):
        if training.framework == "keras":
            set_tensorflow_up(training)
        loop = importlib.import_module(_LOOPS[training.framework])
        if training.framework == "sklearn":
            loop.kind_of(training.model)  # each estimator has its own imports
    imported()
    with phase("load data"):
        data = load(training.data, training.data_dir, training.data_access)
    return loop, data


def run(training: Training) -> Outcome:
    """Prepare, then train."""
    loop, data = prepare(training)
    trained: Callable[[Training, DataSet], Outcome] = loop.run
    return trained(training, data)


def set_tensorflow_up(training: Training) -> None:
    """Set what TensorFlow reads when it is imported; what the user has set stays.

    `TF_CPU_ALLOCATOR_USE_BFC=1` makes its statistics on the CPU complete: without it, it counts large
    blocks only (option `tf_bfc`).
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if "tensorflow" not in sys.modules and "TF_CPU_ALLOCATOR_USE_BFC" not in os.environ:
        os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1" if training.options.get("tf_bfc", True) else "0"


def versions_of(framework: str) -> dict[str, str]:
    """Return the versions of Python and the libraries that take part."""
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS[framework]:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # the same library under another name, such as tensorflow-cpu
    return found
