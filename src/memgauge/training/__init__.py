"""One trial's training, as plain data: the border between studies and what is trained."""

from __future__ import annotations

import msgspec

from memgauge.errors import UsageError
from memgauge.workload import Workload


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """What one trial trains; all plain data."""

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
    """What a training says of itself when it is done."""

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


FIELDS: dict[str, type] = {
    f.name: f.type if isinstance(f.type, type) else str for f in msgspec.structs.fields(Training)
}
_NOT_YET = "trainings by name are not part of this build; name a target in the study file"


def check(training: Training) -> None:
    """Raise `UsageError` if it cannot be trained."""
    raise UsageError(_NOT_YET)


def no_estimate_reason(training: Training) -> str | None:
    """Return why there is no estimate for it, None if there is one."""
    return _NOT_YET


def workload(training: Training) -> Workload | None:
    """Return what the estimator gets, None where there is none."""
    return None


def train(training: Training) -> Outcome:
    """Train in this process."""
    raise UsageError(_NOT_YET)


def baseline(training: Training) -> None:
    """Import the framework and load the data, build nothing."""
    raise UsageError(_NOT_YET)
