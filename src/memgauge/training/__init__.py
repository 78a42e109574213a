"""What a trial of a study trains: one description, the same for every framework.

    check(training)       raise before anything runs if it cannot be done
    obtain(training)      download or generate its data, and hold the files against their checksums
    workload(training)    the same step for the estimator, where there is one
    train(training)       really train, in this process, with marks for a recording
    baseline(training)    import and load, build nothing: what a trial takes before its network

A training is plain data. The frameworks are imported when one of these is called,
each by the module that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from memgauge.errors import missing_extra

if TYPE_CHECKING:
    from memgauge.workload import Workload

FRAMEWORKS = ("torch", "keras", "sklearn")


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """One trial's training.

    Args:
        framework: `torch`, `keras` (on TensorFlow) or `sklearn`.
        model: A network of the zoo, or an estimator of scikit-learn.
        data: `digits`, `mnist`, `fashion-mnist`, `cifar10`, `dt1`, `dt2`, or `synthetic:ROWSxHxWxC[:CLASSES]`.
        data_dir: Where the data set's files are; if None, memgauge's own folder: downloaded there, or
            generated where there is no network.
        data_access: `memory` loads the data set, `mapped` maps its files.
        batch_size: Samples per step.
        epochs: Times through the data set.
        steps: Stop after so many steps in all, if set.
        learning_rate: Of the optimizer.
        optimizer: torch's name in lower case, with arguments after commas: `sgd,momentum=0.9`.
        precision: As in `TargetOptions`.
        activation: Between the hidden layers of `mlp` and `torres-cnn`.
        widths: Hidden layers of the MLP; (128, 64) if None.
        mode: `train` or `infer`.
        image_size: Height and width that pictures are enlarged or reduced to; the network's own if None.
        seed: Of the weights and of the order of the batches.
        options: The network's own arguments (`width`, `layers`, …) or those of an estimator; and of any
            framework `threads`, `device` (`cpu` if not given, or `cuda`), `feed` (`batches`, or `arrays`: the
            data set handed to the framework as a whole); of Keras `tf_bfc` and `jit_compile`.
    """

    framework: str = "torch"
    model: str = "mlp"
    data: str = "digits"
    data_dir: str | None = None
    data_access: str = "memory"
    batch_size: int = 32
    epochs: int = 1
    steps: int | None = None
    learning_rate: float = 0.01
    optimizer: str = "sgd"
    precision: str = "float32"
    activation: str = "relu"
    widths: tuple[int, ...] | None = None
    mode: str = "train"
    image_size: int | None = None
    seed: int = 0
    options: dict[str, int | float | str | bool] = {}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a training came to.

    Attributes:
        steps: Steps done.
        epochs: Epochs begun.
        seconds: Time of the steps and the making of their batches; importing, loading, building and
            evaluating are not in it.
        seconds_per_epoch: The same by epoch.
        final_loss: Loss of the last step; None where there is none.
        accuracy: Share of held-out pictures classified rightly; None for generated data and for
            networks that do not classify.
        synthetic_data: The data were generated: memory is that of the real ones, accuracy means nothing.
        parameters: Trainable numbers of the network.
        memory: What the framework itself reports, in bytes: `cuda_peak_allocated_bytes`, `tf_cpu_peak_bytes`, …
        versions: Of Python and the libraries that took part.
        notes: What a reader of these figures should know.
        data_source: Where the data came from.
    """

    steps: int
    epochs: int
    seconds: float
    seconds_per_epoch: tuple[float, ...]
    final_loss: float | None
    accuracy: float | None
    synthetic_data: bool
    parameters: int | None
    memory: dict[str, int]
    versions: dict[str, str]
    notes: tuple[str, ...] = ()
    data_source: str = ""


# What a study file may vary: each name with its type.
FIELDS: Mapping[str, object] = {field.name: field.type for field in msgspec.structs.fields(Training)}


def check(training: Training) -> None:
    """Find what is wrong with a training before anything runs; imports no framework.

    Raises:
        UsageError: A name or number is unknown or out of range, or the parts do not go together.
        FileFormatError: The data set's files in `data_dir` are not what they should be.
        MissingError: The framework is not installed.
    """
    try:
        from memgauge.training.checks import check_training
    except ModuleNotFoundError as error:
        if error.name == "numpy":
            raise missing_extra("numpy", "data") from error
        raise
    check_training(training)


def obtain(training: Training, say: Callable[[str], None] | None = None) -> str | None:
    """Have the files of a training's data set here: downloaded or generated if need be, read once for their checksums.

    Args:
        training: What is to be trained.
        say: Is told what takes long.

    Returns:
        Where the data are if they are generated in the place of real ones, else None.

    Raises:
        UsageError: The files are missing, or the disk is too small.
        FileFormatError: A file is damaged, or has a wrong checksum.
    """
    from memgauge.data.catalogue import describe
    from memgauge.data.files import locate

    what = describe(training.data)
    if not what.files:
        return None
    found = locate(what, training.data_dir, say)
    return found.source if found.synthetic else None


def workload(training: Training) -> Workload | None:
    """Return what the estimator gets, with the very step that `train` runs; None where `no_estimate_reason` says why.

    Raises:
        As `check`.
    """
    check(training)
    if no_estimate_reason(training) is not None:
        return None
    from memgauge.training.torch_loop import torch_workload

    return torch_workload(training)


def no_estimate_reason(training: Training) -> str | None:
    """Return why there is no estimate for a training, or None if there is one."""
    if training.framework == "torch":
        return None
    name = {"keras": "TensorFlow's", "sklearn": "scikit-learn's"}.get(training.framework, "this framework's")
    return f"{name} memory is measured, not predicted: memgauge predicts PyTorch"


def train(training: Training) -> Outcome:
    """Train in this process: import, load the data, build, train, evaluate, each marked as a phase.

    Raises:
        As `check`; and whatever the framework raises, out-of-memory errors included.
    """
    check(training)
    from memgauge.training.preparing import run

    return run(training)


def baseline(training: Training, imported: Callable[[], None] = lambda: None) -> None:
    """Import the framework and load the data as `train` does, and build nothing; `imported` is called between the two.

    The data stay loaded until the process ends, so that its resident size can be read afterwards.
    """
    from memgauge.training.preparing import prepare

    check(training)
    _kept.append(prepare(training, imported))


_kept: list[object] = []


__all__ = [
    "FIELDS",
    "FRAMEWORKS",
    "Outcome",
    "Training",
    "baseline",
    "check",
    "no_estimate_reason",
    "obtain",
    "train",
    "workload",
]
