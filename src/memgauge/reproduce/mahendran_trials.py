"""The trials of Mahendran 2021 as its tables have them, and the memory of their networks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from memgauge.arguments import TargetOptions
from memgauge.by_hand import both
from memgauge.formula.records import Both

CLASSES, FLOAT_BYTES = 10, 4


@dataclass(frozen=True, slots=True)
class Trial:
    """One row: widths of the hidden layers, batch size, learning rate, the measured MB."""

    widths: tuple[int, ...]
    batch_size: int
    rate: str
    measured: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """The trials on one data set."""

    title: str
    inputs: int
    pictures: int
    trials: tuple[Trial, ...]


EXPERIMENTS = (
    Experiment(
        "Table 1: MNIST",
        28 * 28,
        60_000,
        (
            Trial((285, 389, 423, 173, 61), 8, "0.7886", "2516.309735"),
            Trial((48, 236, 233, 318, 245, 139), 40, "0.0583", "2519.748392"),
            Trial((141, 191, 150, 84, 125, 148, 39), 97, "0.0005", "2506.735677"),
            Trial((149, 310, 180, 265, 163), 98, "0.0009", "2585.272978"),
            Trial((80, 60, 168, 175, 54, 115, 166, 321, 231), 66, "0.0042", "2533.35625"),
            Trial((80, 60, 168, 175, 54, 115, 166, 321, 231), 66, "0.00042", "3134.870028"),
            Trial((252, 196, 244, 215, 163, 339), 90, "0.00087", "2854.54834"),
            Trial((178, 12, 444, 8, 200, 318, 58), 50, "0.0006", "2931.835938"),
            Trial((248, 27, 203, 398, 281), 47, "0.00012", "2992.872013"),
            Trial((150, 5, 157, 216, 398), 88, "0.00065", "3011.547743"),
            Trial((138, 37, 207, 326, 232), 27, "0.0012", "3064.187174"),
        ),
    ),
    Experiment(
        "Tables 2 and 3: Fashion MNIST",
        28 * 28,
        60_000,
        (
            Trial((439, 176, 388, 307, 326, 160), 17, "0.3617", "2655.838252"),
            Trial((349, 177, 465, 506, 52, 107), 11, "0.1482", "2701.582899"),
            Trial((181, 107, 137, 259, 334, 243), 6, "0.0004", "2660.471612"),
            Trial((362, 316, 347, 380, 245, 124), 18, "0.0002", "2693.458608"),
            Trial((218, 45, 108, 400, 121), 11, "0.0016", "2611.620271"),
        ),
    ),
    Experiment(
        "Tables 4 and 5: CIFAR-10",
        3 * 32 * 32,
        50_000,
        (
            Trial((233, 425, 299, 363, 102), 14, "0.0014", "4318.107143"),
            Trial((124, 150, 273, 191, 301, 293), 7, "0.0019", "3963.642543"),
            Trial((318, 312, 412, 254, 387, 60), 13, "0.0069", "3950.009931"),
            Trial((256, 128, 256, 128, 128), 26, "0.0005", "3830.008464"),
            Trial((484, 195, 394, 163, 322, 126), 8, "0.0062", "3982.532723"),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Predicted:
    """A trial with its network's own memory by formula and by trace; `largest_weight_bytes` is of one layer."""

    trial: Trial
    parameters: int
    largest_weight_bytes: int
    found: Both

    @property
    def measured(self) -> float:
        """What the paper measured, in its MB."""
        return float(self.trial.measured)

    @property
    def peak_bytes(self) -> int:
        """The traced peak of tensors on the CPU, kernels' workspaces left out."""
        return self.found.trace.peak.tensor_bytes or 0


def predict(experiment: Experiment, trial: Trial, *, optimizer: str = "adam") -> Predicted:
    """Return the memory of a trial's network, or of one that is like it."""
    widths = (experiment.inputs, *trial.widths, CLASSES)
    found = both(
        "zoo:mlp",
        options=TargetOptions(batch_size=trial.batch_size, optimizer=optimizer),
        sets={"widths": ",".join(map(str, widths))},
        threads=1,
    )
    largest = max(i * o for i, o in itertools.pairwise(widths)) * FLOAT_BYTES
    return Predicted(trial, found.formula.parameters, largest, found)
