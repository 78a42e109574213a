"""The statements of Mahendran 2021, one by one, and what a process of that kind takes in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memgauge.host import FIRST_USE_BYTES
from memgauge.reproduce.mahendran_trials import EXPERIMENTS, FLOAT_BYTES, Experiment, Predicted, predict
from memgauge.reproduce.records import MB_BINARY, NUMBER, Cell, Claim, Section, Table, claim, ours_only
from memgauge.units import MIB

# Resident memory of a process after its imports: `peak.host_baseline_bytes` of `memgauge estimate zoo:mlp
# --json` with Python 3.11.7 and torch 2.13.0+cpu on x86-64 Linux, 2026-11-21, the middle of three (222.2 to
# 222.3 MiB). A constant, so that this text reads alike on every machine.
IMPORTS_BYTES = 222 * MIB

_NAMES = ("MNIST", "Fashion MNIST", "CIFAR-10")


def answers(predicted: Sequence[Sequence[Predicted]]) -> tuple[Section, ...]:
    """Return the paper's statements answered, and the memory of a process; `predicted` by experiment."""
    mnist, fashion, cifar = predicted
    return (
        _least_memory(mnist, fashion),
        _learning_rate(predicted),
        _batch_and_depth(mnist),
        _nodes(predicted, fashion, cifar),
        _between_data_sets(mnist, cifar),
        _process(predicted),
    )


def _least_memory(mnist: Sequence[Predicted], fashion: Sequence[Predicted]) -> Section:
    by_measured = sorted(mnist, key=lambda row: row.measured)
    by_size = sorted(mnist, key=lambda row: row.peak_bytes)
    second = by_measured[1]
    return Section(
        title="Statement: least memory where no layer has more than 200 nodes",
        claims=(
            _least("least memory on MNIST", "2506", mnist),
            claim(
                f"second least on MNIST, {_widths(second)}",
                second.trial.measured,
                second.peak_bytes,
                MB_BINARY,
                f"this is network number {by_size.index(second) + 1} of {len(mnist)} by its own memory, and only "
                f"{second.measured - by_measured[0].measured:.1f} MB above the least: the order in the column is not that "
                "of the networks",
            ),
            _least("least memory on Fashion MNIST", "2611", fashion),
        ),
        notes=(
            "The network with at most 200 nodes is indeed the smallest of table 1. All networks of that table lie "
            f"within {(by_size[-1].peak_bytes - by_size[0].peak_bytes) / MIB:.1f} MiB of each other, the measured column "
            f"within {by_measured[-1].measured - by_measured[0].measured:.0f} MB.",
        ),
    )


def _least(what: str, theirs: str, rows: Sequence[Predicted]) -> Claim:
    least = min(rows, key=lambda row: row.measured)
    order = sorted(rows, key=lambda row: row.peak_bytes).index(least) + 1
    return claim(
        f"{what}, {_widths(least)}",
        theirs,
        least.peak_bytes,
        MB_BINARY,
        f"of the {len(rows)} networks its own memory is number {order} from below; the rest of the column is the machine",
    )


def _learning_rate(predicted: Sequence[Sequence[Predicted]]) -> Section:
    mnist, *_ = predicted
    first, second = (
        predict(EXPERIMENTS[0], row.trial, optimizer=f"adam,lr={row.trial.rate}") for row in mnist[4:6]
    )
    return Section(
        title="Statement: a smaller learning rate takes more memory",
        claims=(
            claim(
                "from trial 5 to trial 6 of table 1: equal widths, equal batch, a tenth of the learning rate",
                f"{second.measured - first.measured:.2f}",
                second.peak_bytes - first.peak_bytes,
                MB_BINARY,
                "one network twice, traced with either rate: none of these hundreds of MB is the network's. A learning "
                "rate is one number",
            ),
            *(
                ours_only(
                    f"rank correlation of learning rate and measured, {name}",
                    rank_correlation([float(row.trial.rate) for row in rows], [row.measured for row in rows]),
                    NUMBER,
                    "of the paper's own columns; −1 would mean that a smaller rate was always measured larger",
                )
                for name, rows in zip(_NAMES, predicted, strict=True)
            ),
        ),
        notes=(
            "For Fashion MNIST the paper itself says that the rate has little influence, and in its results that rate and "
            "nodes are the major factors; both cannot hold.",
        ),
    )


def _batch_and_depth(mnist: Sequence[Predicted]) -> Section:
    narrow, deep = mnist[2].trial, mnist[4].trial
    variants = (
        (narrow, "as in trial 3"),
        (replace(narrow, batch_size=1), "batch 1"),
        (replace(narrow, batch_size=1000), "batch 1,000"),
        (deep, "as in trial 5"),
        (replace(deep, widths=deep.widths[:5]), "the first five of its layers"),
    )
    rows: list[tuple[Cell, ...]] = []
    for trial, about in variants:
        found = predict(EXPERIMENTS[0], trial)
        rows.append((about, trial.batch_size, len(trial.widths), found.found.formula_bytes, found.peak_bytes))
    return Section(
        title="Statement: depth, epochs and batch size do not contribute",
        table=Table(
            columns=("network", "batch", "hidden layers", "formula_bytes", "traced_peak_bytes"),
            rows=tuple(rows),
        ),
        notes=(
            "Batch size and depth do contribute: the batch by its activations, a layer by its parameters and "
            "activations. For networks this small both are a few MiB and drown in the machine's memory. Epochs repeat the "
            "same steps and add nothing.",
        ),
    )


def _nodes(
    predicted: Sequence[Sequence[Predicted]], fashion: Sequence[Predicted], cifar: Sequence[Predicted]
) -> Section:
    second, fourth, most = fashion[1], fashion[3], max(fashion, key=_node_count)
    order = sorted(fashion, key=lambda row: row.measured).index(most) + 1
    first, last = cifar[0], cifar[4]
    largest = max((row for rows in predicted for row in rows), key=lambda row: row.peak_bytes)
    return Section(
        title="Statement: more nodes in each layer take more memory",
        claims=(
            claim(
                "Fashion MNIST, from row 2 to row 4, which the paper names as evidence",
                f"{fourth.measured - second.measured:.2f}",
                fourth.peak_bytes - second.peak_bytes,
                MB_BINARY,
                f"row 4 has more nodes ({_node_count(fourth):,} against {_node_count(second):,}) and was measured lower. "
                f"Most nodes has row {fashion.index(most) + 1} ({_node_count(most):,}), measured as number {order} from below",
            ),
            claim(
                "CIFAR-10, from the first trial to the last, which the paper names as evidence",
                f"{last.measured - first.measured:.2f}",
                last.peak_bytes - first.peak_bytes,
                MB_BINARY,
                f"the last is the larger network ({last.parameters:,} parameters against {first.parameters:,}) and was "
                "measured lower",
            ),
            *(
                ours_only(
                    f"rank correlation of predicted and measured, {name}",
                    rank_correlation([row.peak_bytes for row in rows], [row.measured for row in rows]),
                    NUMBER,
                    "1 would mean that larger networks were measured larger",
                )
                for name, rows in zip(_NAMES, predicted, strict=True)
            ),
            ours_only(
                f"the largest network of all tables ({_widths(largest)}), traced",
                largest.peak_bytes,
                MB_BINARY,
                "every network here is smaller than the spread of the measurements of one and the same network",
            ),
        ),
        notes=(
            "The statement is true of the networks, and cannot be seen in these measurements: wider layers have more "
            "parameters, but by MiB.",
        ),
    )


def _between_data_sets(mnist: Sequence[Predicted], cifar: Sequence[Predicted]) -> Section:
    own = _mean_peak(cifar) - _mean_peak(mnist)
    data = (_data_bytes(EXPERIMENTS[2]) - _data_bytes(EXPERIMENTS[0])) / MIB
    return Section(
        title="Statement: CIFAR-10 takes more than MNIST",
        claims=(
            claim(
                "from the mean of MNIST to that of CIFAR-10",
                f"{_mean(cifar) - _mean(mnist):.0f}",
                round(MIB * (own + data)),
                MB_BINARY,
                f"{own:.0f} MiB by the networks, {data:.0f} MiB by one copy of the training set as float32; more copies and "
                "other programs make the rest, as the paper itself says of the background",
            ),
        ),
    )


def _process(predicted: Sequence[Sequence[Predicted]]) -> Section:
    first_use = FIRST_USE_BYTES["optimizer"] + FIRST_USE_BYTES["matmul"]
    networks = [round(MIB * _mean_peak(found)) for found in predicted]
    data = [_data_bytes(experiment) for experiment in EXPERIMENTS]
    processes = [IMPORTS_BYTES + first_use + d + n for d, n in zip(data, networks, strict=True)]
    measured = [round(MIB * _mean(found)) for found in predicted]
    rests = [m - p for m, p in zip(measured, processes, strict=True)]
    rows: tuple[tuple[Cell, ...], ...] = (
        (
            "imports",
            *[IMPORTS_BYTES] * 3,
            "Python 3.11 with torch 2.13 on x86-64 Linux: a constant, measured",
        ),
        ("first use", *[first_use] * 3, "what the optimizer and matrix products load: a constant, measured"),
        ("data", *data, "the training set once, as float32"),
        ("network", *networks, "mean of the traced peaks"),
        ("process", *processes, "the sum of these"),
        ("theirs", *measured, "mean of the measured column, its MB taken as MiB"),
        (
            "rest",
            *rests,
            "the operating system, every other program, the paper's own monitor, further copies of the data: not to be "
            "computed from the paper",
        ),
    )
    return Section(
        title="Host memory of such a process, as far as it can be computed",
        table=Table(columns=("part", *(f"{name}_bytes" for name in _NAMES), "why"), rows=rows),
        notes=(
            "Both constants are our measurements of November 2026 and stand for a framework of today: the paper names "
            "none. `memgauge estimate TARGET` measures the first on the machine it runs on.",
        ),
    )


def _data_bytes(experiment: Experiment) -> int:
    return experiment.pictures * experiment.inputs * FLOAT_BYTES


def _widths(row: Predicted) -> str:
    return "-".join(map(str, row.trial.widths))


def _node_count(row: Predicted) -> int:
    return sum(row.trial.widths)


def _mean(rows: Sequence[Predicted]) -> float:
    return sum(row.measured for row in rows) / len(rows)


def _mean_peak(rows: Sequence[Predicted]) -> float:
    return sum(row.peak_bytes for row in rows) / len(rows) / MIB


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
