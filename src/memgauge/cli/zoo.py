"""`memgauge zoo`: the networks that come with memgauge, with parameters and predicted peak."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from memgauge.cli import options
from memgauge.cli.output import show, show_json
from memgauge.cli.running import running

if TYPE_CHECKING:
    from memgauge.formula.records import ZooNetwork

EPILOG = (
    "Example: memgauge zoo --device nvidia-a100-80gb\n\n"
    "Example: memgauge estimate zoo:gpt2 --device nvidia-t4 --batch-size 4"
)


def command(device: options.Device = "cpu", as_json: options.AsJson = False) -> None:
    """List the networks that come with memgauge, with parameters and predicted peak; each is a TARGET."""
    from memgauge import devices
    from memgauge.zoo import NAMES

    devices.find(device)
    with running("predicting the networks of the zoo") as tell:
        found = tuple(_network(name, device, tell) for name in NAMES)
    if as_json:
        from memgauge.cli.documents import Zoo

        show_json(Zoo(targets=tuple(n.target for n in found), device=device, networks=found))
        return
    from memgauge.report.zoo import zoo_view

    show(zoo_view(found, device))


def _network(name: str, device: str, tell: Callable[[str], None]) -> ZooNetwork:
    """Trace one network with its defaults."""
    from memgauge import zoo
    from memgauge.by_hand import both
    from memgauge.formula.records import ZooNetwork

    tell(f"predicting zoo:{name}")
    found = both(f"zoo:{name}", device=device)
    return ZooNetwork(
        target=f"zoo:{name}",
        description=zoo.describe(name),
        arguments=zoo.defaults(name),
        parameters=found.formula.parameters,
        peak_allocated_bytes=found.trace.peak.allocated_bytes,
        training_by_hand_bytes=found.formula_bytes,
    )
