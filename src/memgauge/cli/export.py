"""`memgauge export`: a run file in another format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from memgauge.arguments import check_choice
from memgauge.cli.output import note
from memgauge.cli.show import RunPath

EPILOG = (
    "Example: memgauge export run.mg --format parquet -o run.parquet\n\n"
    "Example: memgauge export run.mg --format perfetto -o run.json   # open it at ui.perfetto.dev\n\n"
    "Formats: csv, jsonl, parquet, perfetto (a trace with counters and phases), prometheus (last values and peaks)."
)

Range = Annotated[
    str | None,
    typer.Option(
        "--range", metavar="FROM..TO", show_default=False, help="A span of the run: 10s..12.5s, 5min.."
    ),
]


def command(
    file: RunPath,
    kind: Annotated[
        str, typer.Option("-f", "--format", help="csv, jsonl, parquet, perfetto or prometheus.")
    ] = "csv",
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", show_default=False, help="A file; standard output if left out."),
    ] = None,
    span: Range = None,
) -> None:
    """Write the samples of a recording in another format."""
    from memgauge.report.export import FORMATS, export
    from memgauge.storage import RunFile

    check_choice("--format", kind, FORMATS)
    begin_us, end_us = parse_range(span)
    with RunFile(file) as run:
        check_range(span, begin_us, run.last_us())
        count = export(run, kind, out or sys.stdout, begin_us, end_us)
        for text in run.damage:
            note(f"damage: {text}")
    if out is not None:
        note(f"saved to {out}: {count:,} {'events' if kind == 'perfetto' else 'values'}")


def check_range(text: str | None, begin_us: int | None, last_us: int) -> None:
    """Refuse a span that begins after the last sample.

    Raises:
        UsageError: It does.
    """
    from memgauge.errors import UsageError
    from memgauge.units import format_duration

    if begin_us is not None and begin_us > last_us:
        raise UsageError(f"--range {text!r} lies behind the last sample, at {format_duration(last_us)}")


def parse_range(text: str | None) -> tuple[int | None, int | None]:
    """Return begin and end in µs of `10s..12.5s`; either side may be left out.

    Raises:
        UsageError: It is no span.
    """
    from memgauge.errors import UsageError
    from memgauge.units import parse_duration_ns

    if text is None:
        return None, None
    begin, dots, end = text.partition("..")
    if not dots or not (begin.strip() or end.strip()):
        raise UsageError(f"--range {text!r} is no span; write for example 10s..12.5s, or 5min..")
    found = tuple(parse_duration_ns(part) // 1000 if part.strip() else None for part in (begin, end))
    if found[0] is not None and found[1] is not None and found[0] >= found[1]:
        raise UsageError(f"--range {text!r} ends before it begins")
    return found[0], found[1]
