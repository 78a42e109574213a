"""`memgauge measure`: really run some steps in fresh processes, and say what they took."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memgauge.arguments import TargetOptions, parse_sets
from memgauge.cli import options
from memgauge.cli.output import save_json, show, show_json, warn
from memgauge.cli.running import running

if TYPE_CHECKING:
    from memgauge.explain.compare import Comparison
    from memgauge.records import Estimate, Measurement

EPILOG = (
    "Example: memgauge measure zoo:torres-cnn --device cpu --steps 5 --compare\n\n"
    "Exit code: 0 done, 1 the run was killed or ran out of memory, 2 wrong usage or code that raised, 3 something is missing here."
)


def command(
    target: options.Target,
    device: options.DeviceHere = "cpu",
    batch_size: options.BatchSize = None,
    image_size: options.ImageSize = None,
    sequence_length: options.SequenceLength = None,
    optimizer: options.Optimizer = None,
    precision: options.Precision = "float32",
    mode: options.Mode = "train",
    checkpointing: options.Checkpointing = False,
    sets: options.Sets = None,
    steps: options.Steps = 3,
    threads: options.Threads = None,
    compare: options.Compare = False,
    layers: options.Layers = "10",
    as_json: options.AsJson = False,
    out: options.Out = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record", metavar="FILE", help="Keep the recording of the bare run, for show and report."
        ),
    ] = None,
) -> None:
    """Really run some steps on this machine, in fresh processes, and say what they took.

    With --compare, --json prints the comparison; --out saves the measurement either way.
    """
    options.check_counts(steps=steps, threads=threads)
    count, out, arguments = options.layer_count(layers), options.writable(out), parse_sets(sets or [])
    record = options.writable(record, "--record")
    asked = options.what_is_run(
        target, batch_size, image_size, sequence_length, optimizer, precision, mode, checkpointing
    )
    with running(f"measuring {target} on {device}") as tell:
        from memgauge.measure import measure

        run = partial(
            measure,
            device=device,
            steps=steps,
            threads=threads,
            options=asked,
            sets=arguments,
            record=record,
        )
        result = run(target, progress=lambda stage: tell(f"measuring {target} on {device}: {stage}"))
    save_json(result, out)
    if not (compare and as_json):
        _show(result, count, as_json=as_json)
    if compare:
        predicted = _predicted(target, result, asked, arguments)
        if record is not None and record.exists():
            _keep_prediction(record, predicted)
        from memgauge.explain.compare import compare as set_side_by_side

        _show_comparison(set_side_by_side(predicted, result), count, as_json=as_json)
    if result.ended != "completed":
        from memgauge.measure import failure_of

        raise failure_of(result.ended)


def _show(result: Measurement, count: int | None, *, as_json: bool) -> None:
    warn(result.assumptions)
    if as_json:
        show_json(result)
        return
    from memgauge.report.text import measurement_view

    show(measurement_view(result, layers=count))


def _predicted(
    target: str, measured: Measurement, asked: TargetOptions, arguments: dict[str, str]
) -> Estimate:
    """Return the prediction of the same run, with the threads that it really had."""
    device = str(measured.device["name"])
    with running(f"predicting {target} on {device}"):
        from memgauge.estimate import estimate

        return estimate(
            target,
            device=device,
            steps=measured.steps,
            threads=measured.threads,
            options=asked,
            sets=arguments,
        )


def _keep_prediction(record: Path, predicted: Estimate) -> None:
    """Put the prediction into the recording, so that its report draws both."""
    from memgauge.report.json import to_json
    from memgauge.storage import RunFile

    with RunFile(record) as run:
        run.set_documents(estimate=to_json(predicted))


def _show_comparison(comparison: Comparison, count: int | None, *, as_json: bool) -> None:
    if as_json:
        show_json(comparison)
        return
    from rich.console import Group
    from rich.rule import Rule

    from memgauge.report.text import comparison_view

    show(Group("", Rule("against the prediction", align="left"), comparison_view(comparison, layers=count)))
