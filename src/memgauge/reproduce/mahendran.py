"""Mahendran 2021: twenty-one networks, and a column of measured memory that is not theirs.

    mahendran_trials    the paper's tables, and each network's own memory
    mahendran           the networks beside the measured column
    mahendran_answers   the paper's statements one by one, and a process as a whole

The widths of the hidden layers and the batch sizes are the paper's; input and output
follow from the data sets. What the paper measured is its formula 1, total memory less
free memory, buffers and cache: the whole machine's, averaged over samples five seconds
apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from memgauge.reproduce.gaps import gap_section
from memgauge.reproduce.mahendran_answers import answers
from memgauge.reproduce.mahendran_trials import CLASSES, EXPERIMENTS, Experiment, Predicted, predict
from memgauge.reproduce.records import Cell, Reproduction, Section, Table
from memgauge.units import MIB


def reproduction() -> Reproduction:
    """Return the paper's networks with their own memory beside the measured column."""
    predicted = [[predict(experiment, trial) for trial in experiment.trials] for experiment in EXPERIMENTS]
    tables = [_table(e, rows) for e, rows in zip(EXPERIMENTS, predicted, strict=True)]
    return Reproduction(
        name="mahendran",
        title="Analysis of memory consumption by neural networks based on hyperparameters",
        author="Mahendran N",
        year=2021,
        source="arXiv preprint, Indian Institute of Technology, Tirupati",
        sections=(_measured(), *tables, _gap(predicted), *answers(predicted)),
    )


def _measured() -> Section:
    return Section(
        title="What the measured column is",
        notes=(
            "The decisive reason for every difference below: the paper computes used memory as total − (free + buffers "
            "+ cached), which is that of the whole machine with every program on it, and takes the mean of samples 5 s "
            "apart. It is neither the memory of a process nor a peak; the paper says so itself among its limitations.",
            "Traced peak: three steps on the CPU, the tensors of training and nothing else: interpreter, framework, data "
            "set, kernels' workspaces and the holes of the heap are left out. What they add is set out at the end.",
        ),
    )


def _table(experiment: Experiment, rows: Sequence[Predicted]) -> Section:
    cells: list[tuple[Cell, ...]] = [
        (
            number,
            ", ".join(map(str, row.trial.widths)),
            row.trial.batch_size,
            row.trial.rate,
            row.parameters,
            row.found.formula.inference.parameter_bytes,
            row.found.formula_bytes,
            row.peak_bytes,
            row.trial.measured,
            round(100 * row.peak_bytes / MIB / row.measured, 2),
        )
        for number, row in enumerate(rows, 1)
    ]
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
        ),
    )


def _gap(predicted: Sequence[Sequence[Predicted]]) -> Section:
    everything = [row for rows in predicted for row in rows]
    largest = max(everything, key=lambda row: row.peak_bytes)
    above = [row for row in everything if row.found.difference_bytes > 0]
    ruled = [row for row in everything if (_balance(row) > 0) == (row.found.difference_bytes > 0)]
    furthest = max(abs(row.found.difference_bytes - _balance(row)) for row in everything)
    phases = sorted({row.found.trace.at_peak.phase.split(" ")[-1] for row in everything})
    return gap_section(
        f"the largest network, {'-'.join(map(str, largest.trial.widths))}",
        largest.found,
        f"All {len(everything)} peaks lie in the {' or '.join(phases)} phase. There Adam holds two results of the size of "
        "one weight at a time, twice the largest weight at most, which the formula does not have; the activations and "
        "their gradients, which the formula adds, are gone.",
        f"So the trace is above the formula where twice the largest weight is more than activations and their gradients "
        f"({len(above)} networks, with small batches or wide first layers) and below it otherwise "
        f"({len(everything) - len(above)}). The two say the same for {len(ruled)} of {len(everything)}, and differ by {furthest:,} bytes at most.",
    )


def _balance(row: Predicted) -> int:
    """Return Adam's two short-lived results less what the formula counts for activations and their gradients."""
    training = row.found.formula.training
    assert training is not None
    return 2 * row.largest_weight_bytes - training.activation_bytes - training.activation_gradient_bytes
