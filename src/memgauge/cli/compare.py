"""`memgauge compare`: two saved estimates, measurements or recordings, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from memgauge.cli import options
from memgauge.cli.output import show, show_json
from memgauge.errors import UsageError

if TYPE_CHECKING:
    from memgauge.explain.recorded import Recording

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
    from memgauge.report.json import STDIN, read_account, read_recording

    if a == b == STDIN:
        raise UsageError("only one of A and B can be standard input")
    recordings = read_recording(a), read_recording(b)
    if recordings[0] is not None and recordings[1] is not None:
        _show_recordings(recordings[0], recordings[1], as_json)
        return
    comparison = compare(read_account(a), read_account(b))
    if as_json:
        show_json(comparison)
        return
    from memgauge.report.text import comparison_view

    show(comparison_view(comparison, layers=count))


def _show_recordings(a: Recording, b: Recording, as_json: bool) -> None:
    from memgauge.explain.compare_recordings import compare_recordings

    compared = compare_recordings(a, b)
    if as_json:
        show_json(compared)
        return
    from memgauge.report.recordings_compared import recordings_view

    show(recordings_view(compared))
