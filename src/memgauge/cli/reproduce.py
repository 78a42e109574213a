"""`memgauge reproduce`: the numbers of four texts, made again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memgauge.cli import options
from memgauge.cli.output import note, show, show_json, write_text
from memgauge.cli.running import running
from memgauge.errors import UsageError

EPILOG = "Example: memgauge reproduce denneman\n\nExample: memgauge reproduce --write docs/reproductions.md"


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            show_default=False,
            help="question-and-answers, denneman, mahendran or torres; all if left out.",
        ),
    ] = None,
    as_json: options.AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As a page of Markdown.")] = False,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", show_default=False, help="Write the page of Markdown here."),
    ] = None,
) -> None:
    """Print the numbers of four texts on training memory beside ours, and why they differ."""
    if as_json and markdown:
        raise UsageError("--json and --markdown: choose one")
    write = options.writable(write, "--write")
    from memgauge.reproduce import NAMES, reproduce
    from memgauge.reproduce.records import Reproductions

    with running("computing the texts' numbers") as tell:
        found = Reproductions(tuple(reproduce(text, tell) for text in ([name] if name else NAMES)))
    if as_json:
        show_json(found)
    if write is None and not markdown:
        if not as_json:
            _show(found)
        return
    from memgauge.report.reproductions import markdown_page

    page = markdown_page(found)
    if markdown:
        show_page(page)
    if write is not None:
        write_text(write, page, "--write")
        note(f"wrote {write}")


def _show(found: object) -> None:
    from memgauge.report.reproductions import reproductions_view

    show(reproductions_view(found))  # type: ignore[arg-type]


def show_page(page: str) -> None:
    """Write Markdown on stdout as it is; a terminal's width does not break its lines."""
    import sys

    sys.stdout.write(page)
