"""`memgauge show`: what a run file says, as text or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memgauge.cli import options
from memgauge.cli.output import show, show_json

EPILOG = "Example: memgauge show run.mg --json | jq .peaks"

RunPath = Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="A run file.")]


def command(
    file: RunPath,
    as_json: options.AsJson = False,
    brief: Annotated[bool, typer.Option("--brief", help="The most important lines only.")] = False,
) -> None:
    """Say what a recording holds: peaks with their kind, phases, processes, energy, what was missed."""
    from memgauge.explain.recording import summarise
    from memgauge.storage import RunFile

    with RunFile(file) as run:
        found = summarise(run)
    if as_json:
        show_json(found)
        return
    from memgauge.report.recording import recording_view

    show(recording_view(found, brief=brief))
