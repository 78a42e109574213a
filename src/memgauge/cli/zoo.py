"""`memgauge zoo`: the networks that come with memgauge."""

from __future__ import annotations

from memgauge.cli import options
from memgauge.cli.output import show, show_json

EPILOG = "Example: memgauge estimate zoo:gpt2 --device nvidia-t4 --batch-size 4"


def command(as_json: options.AsJson = False) -> None:
    """List the networks that come with memgauge; each is a TARGET."""
    from memgauge.zoo import NAMES

    if as_json:
        from memgauge.cli.documents import Zoo

        show_json(Zoo(targets=tuple(f"zoo:{name}" for name in NAMES)))
        return
    show("\n".join(f"zoo:{name}" for name in NAMES))
