"""The few networks that come with memgauge, each a function that returns a `Workload`.

Their arguments are the options of the command line (`batch_size`, `optimizer`,
`precision`, …) and a few of their own, set by `--set name=value`. The functions
are imported when asked for; this module imports no framework.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable

from memgauge.errors import UsageError, nearest
from memgauge.workload import Workload

_PLACES = {
    "alexnet": "alexnet:alexnet",
    "dcgan": "dcgan:dcgan",
    "googlenet": "googlenet:googlenet",
    "gpt2": "gpt2:gpt2",
    "llama-70b": "llama:llama_70b",
    "llama-8b": "llama:llama_8b",
    "lstm": "lstm:lstm",
    "mlp": "mlp:mlp",
    "resnet50": "resnet50:resnet50",
    "torres-cnn": "torres_cnn:torres_cnn",
    "vgg16": "vgg16:vgg16",
    "vit-b16": "vit:vit_b16",
}
NAMES = tuple(_PLACES)


def find(name: str) -> Callable[..., Workload]:
    """Return the function behind `zoo:NAME`; it refuses numbers that are out of range.

    Raises:
        UsageError: The zoo has no such network.
    """
    if name not in _PLACES:
        raise UsageError(f"the zoo has no {name!r}{nearest(name, NAMES)}; it has {', '.join(NAMES)}")
    module, _, function = _PLACES[name].partition(":")
    from memgauge.zoo.ranges import in_range

    return in_range(getattr(importlib.import_module(f"memgauge.zoo.{module}"), function))


def describe(name: str) -> str:
    """Return the first line of a network's description; needs the framework installed."""
    return (find(name).__doc__ or "").strip().splitlines()[0]


def defaults(name: str) -> dict[str, object]:
    """Return the arguments of a network with their defaults; needs the framework installed."""
    return {key: p.default for key, p in inspect.signature(find(name)).parameters.items()}
