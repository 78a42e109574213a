"""`memgauge report`: recordings as one HTML page that works without a network."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from memgauge.cli.export import Range, check_range, parse_range
from memgauge.cli.output import note, write_text

EPILOG = (
    "Example: memgauge report run.mg -o run.html\n\n"
    "Example: memgauge report before.mg after.mg -o both.html\n\n"
    "Curves are thinned to the lowest and highest value per bucket; --range draws a span in full detail."
)


def command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", show_default=False, help="Run files.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path("report.html"),
    span: Range = None,
) -> None:
    """Draw recordings: memory over time with phases, by process, peaks, energy; several over each other."""
    from memgauge.cli.running import running
    from memgauge.report.recording_page import recordings_page
    from memgauge.storage import RunFile

    begin_us, end_us = parse_range(span)
    with contextlib.ExitStack() as stack, running(f"drawing {len(files)} recording{'s'[: len(files) > 1]}"):
        runs = [stack.enter_context(RunFile(file)) for file in files]
        check_range(span, begin_us, max(run.last_us() for run in runs))
        content = recordings_page(runs, begin_us, end_us)
    save_page(out, content)


def save_page(out: Path, content: str) -> None:
    """Write a page, and say so on stderr.

    Raises:
        UsageError: It would replace a recording, or cannot be written.
    """
    write_text(out, content)
    note(f"saved to {out} ({len(content) / 2**20:.1f} MiB)")
