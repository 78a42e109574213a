"""Mahendran 2021: twenty-one networks, and a column of measured memory that is not theirs.

The widths of the hidden layers and the batch sizes are the paper's; input and output
follow from the data sets. What the paper measured is `psutil.virtual_memory().used`,
the memory of the whole machine, averaged over samples five seconds apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memgauge.arguments import TargetOptions
from memgauge.by_hand import by_hand
from memgauge.estimate import estimate
from memgauge.reproduce.records import (
    MB_BINARY,
    NUMBER,
    Claim,
    Reproduction,
    Section,
    Table,
    claim,
    ours_only,
)
from memgauge.units import MIB

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
class _Predicted:
    trial: Trial
    parameters: int
    parameter_bytes: int
    formula_bytes: int
    peak_bytes: int


def reproduction() -> Reproduction:
    """Return the paper's networks with their own memory beside the measured column."""
    predicted = [[_predict(experiment, trial) for trial in experiment.trials] for experiment in EXPERIMENTS]
    tables = [_table(e, rows) for e, rows in zip(EXPERIMENTS, predicted, strict=True)]
    return Reproduction(
        name="mahendran",
        title="Analysis of memory consumption by neural networks based on hyperparameters",
        author="Mahendran N",
        year=2021,
        source="arXiv preprint, Indian Institute of Technology, Tirupati",
        sections=(*tables, _conclusions(predicted)),
    )


def _predict(experiment: Experiment, trial: Trial) -> _Predicted:
    widths = ",".join(map(str, (experiment.inputs, *trial.widths, CLASSES)))
    options, sets = TargetOptions(batch_size=trial.batch_size), {"widths": widths}
    formula = by_hand("zoo:mlp", options=options, sets=sets)
    traced = estimate("zoo:mlp", options=options, sets=sets, threads=1, host=False)
    return _Predicted(
        trial=trial,
        parameters=formula.parameters,
        parameter_bytes=formula.inference.parameter_bytes,
        formula_bytes=formula.total_bytes,
        peak_bytes=traced.peak.tensor_bytes or 0,
    )


def _table(experiment: Experiment, rows: Sequence[_Predicted]) -> Section:
    cells = []
    for number, found in enumerate(rows, 1):
        measured = float(found.trial.measured)
        cells.append(
            (
                number,
                ", ".join(map(str, found.trial.widths)),
                found.trial.batch_size,
                found.trial.rate,
                found.parameters,
                found.parameter_bytes,
                found.formula_bytes,
                found.peak_bytes,
                found.trial.measured,
                round(100 * found.peak_bytes / MIB / measured, 2),
            )
        )
    data = experiment.pictures * experiment.inputs
    return Section(
        title=experiment.title,
        table=Table(
            columns=(
                "trial",
                "hidden layers",
                "batch",
                "learning rate",
                "parameters",
                "parameter_bytes",
                "formula_bytes",
                "traced_peak_bytes",
                "theirs, MB",
                "ours of theirs, %",
            ),
            rows=tuple(cells),
        ),
        notes=(
            f"Assumed: {experiment.inputs:,} inputs, {CLASSES} classes, ReLU, Adam, float32; the paper names neither "
            "activation nor optimizer nor framework. Another optimizer takes at most two parameter sizes less.",
            f"The training set alone: {data / MIB:,.1f} MiB as bytes, {data * FLOAT_BYTES / MIB:,.1f} MiB as float32.",
        ),
    )


def _conclusions(predicted: Sequence[Sequence[_Predicted]]) -> Section:
    mnist, fashion, cifar = predicted
    everything = [found for rows in predicted for found in rows]
    largest = max(everything, key=lambda found: found.peak_bytes)
    twins = mnist[4], mnist[5]
    return Section(
        title="What the tables say of memory",
        claims=(
            _least("least memory on MNIST", "2506", mnist),
            _least("least memory on Fashion MNIST", "2611", fashion),
            claim(
                "difference between trials 5 and 6 of table 1: equal widths, equal batch, another learning rate",
                f"{float(twins[1].trial.measured) - float(twins[0].trial.measured):.2f}",
                twins[1].peak_bytes - twins[0].peak_bytes,
                MB_BINARY,
                "one network twice: none of these hundreds of MB is the network's. A learning rate is one number",
            ),
            ours_only(
                f"the largest network of all three tables ({'-'.join(map(str, largest.trial.widths))}), traced",
                largest.peak_bytes,
                MB_BINARY,
                "every network here is smaller than the spread of the measurements of one and the same network",
            ),
            claim(
                "from the mean of MNIST to that of CIFAR-10",
                f"{_mean(cifar) - _mean(mnist):.0f}",
                round(MIB * (_mean_peak(cifar) - _mean_peak(mnist))),
                MB_BINARY,
                "the networks differ by this little; the data set, copies of it and other programs make the rest, "
                "as the paper itself says of the background",
            ),
            *(
                ours_only(
                    f"rank correlation of predicted and measured, {name}",
                    rank_correlation(
                        [found.peak_bytes for found in rows], [float(found.trial.measured) for found in rows]
                    ),
                    NUMBER,
                    "1 would mean that larger networks were measured larger",
                )
                for name, rows in (("MNIST", mnist), ("Fashion MNIST", fashion), ("CIFAR-10", cifar))
            ),
        ),
    )


def _least(what: str, theirs: str, rows: Sequence[_Predicted]) -> Claim:
    least = min(rows, key=lambda found: float(found.trial.measured))
    order = sorted(rows, key=lambda found: found.peak_bytes).index(least) + 1
    return claim(
        f"{what}, {'-'.join(map(str, least.trial.widths))}",
        theirs,
        least.peak_bytes,
        MB_BINARY,
        f"of the {len(rows)} networks its own memory is number {order} from below; the rest of the column is the machine",
    )


def _mean(rows: Sequence[_Predicted]) -> float:
    return sum(float(found.trial.measured) for found in rows) / len(rows)


def _mean_peak(rows: Sequence[_Predicted]) -> float:
    return sum(found.peak_bytes for found in rows) / len(rows) / MIB


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's rank correlation, equal values sharing the mean of their ranks."""
    ranks = [_ranks(values) for values in (a, b)]
    mean = (len(a) + 1) / 2
    products = [sum((x - mean) * (y - mean) for x, y in zip(p, q, strict=True)) for p, q in _pairs(*ranks)]
    across, of_a, of_b = products
    return round(float(across / (of_a * of_b) ** 0.5), 2)


def _pairs(a: list[float], b: list[float]) -> tuple[tuple[list[float], list[float]], ...]:
    return (a, b), (a, a), (b, b)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(v) + 1 + (ordered.count(v) - 1) / 2 for v in values]
