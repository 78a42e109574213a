"""`memgauge compare`: two saved estimates, measurements or recordings, side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from memgauge.cli import options
from memgauge.cli.output import show, show_json
from memgauge.errors import UsageError

EPILOG = (
    "Example: memgauge estimate zoo:gpt2 --out predicted.json; memgauge measure zoo:gpt2 --json | "
    "memgauge compare predicted.json -\n\n"
    "Differences are A minus B, percentages are of B."
)


def command(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            show_default=False,
            help="JSON of an estimate or measurement, or a run file; - for stdin.",
        ),
    ],
    b: Annotated[
        str, typer.Argument(metavar="B", show_default=False, help="What A is compared with; - for stdin.")
    ],
    layers: options.Layers = "10",
    as_json: options.AsJson = False,
) -> None:
    """Set two estimates, measurements or recordings side by side, and say what explains the difference."""
    count = options.layer_count(layers)
    from memgauge.explain.compare import compare
    from memgauge.report.json import STDIN, read_account

    if a == b == STDIN:
        raise UsageError("only one of A and B can be standard input")
    comparison = compare(read_account(a), read_account(b))
    if as_json:
        show_json(comparison)
        return
    from memgauge.report.text import comparison_view

    show(comparison_view(comparison, layers=count))
