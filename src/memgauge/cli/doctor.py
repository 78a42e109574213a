"""`memgauge doctor`: what is installed, what works here, what does not and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from memgauge.cli import options
from memgauge.cli.output import show, show_json
from memgauge.cli.running import running

if TYPE_CHECKING:
    from rich.console import RenderableType

    from memgauge.cli.documents import Doctor

EPILOG = (
    "Example: memgauge doctor --json\n\n"
    "Exit code: 0 predicting and measuring work here, 3 one of them does not."
)
_STYLES = {"ok": "green", "limited": "yellow", "no": "red"}


def command(as_json: options.AsJson = False) -> None:
    """Say what is installed, what works here, what does not and what to do about it.

    A tiny network is predicted and really run, which takes some seconds.
    """
    from memgauge.cli import checks
    from memgauge.cli.documents import Doctor

    with running("looking around") as tell:
        found = []
        for check in checks.ALL:
            tell(f"trying {check.__name__.replace('_', ' ')}")
            found.append(check())
        works = all(c.state == "ok" for c in found if c.is_needed)
        result = Doctor(works=works, versions=checks.versions(), checks=tuple(found))
    if as_json:
        show_json(result)
    else:
        show(doctor_view(result))
    if not works:
        raise typer.Exit(3)


def doctor_view(doctor: Doctor) -> RenderableType:
    """Return the findings as text, each with its remedy below it."""
    from rich.console import Group
    from rich.text import Text

    from memgauge.cli.checks import PACKAGES
    from memgauge.report.tables import grid, plain

    head = "memgauge can predict and measure here" if doctor.works else "memgauge cannot do its job here yet"
    table = grid("tried", "", "found", flexible="found")
    for check in doctor.checks:
        said = plain(check.detail)
        if check.remedy:
            said.append("\n→ ", "dim").append_text(plain(check.remedy))
        table.add_row(check.name, Text(check.state, style=_STYLES.get(check.state, "")), said)
    installed = grid("installed", "version", flexible="version")
    for name, version in doctor.versions.items():
        missing = f"not installed; {PACKAGES.get(name, 'pip install ' + name)}"
        installed.add_row(name, plain(version) if version else Text(missing, style="dim"))
    return Group(Text(head, style="bold"), "", table, "", installed)
