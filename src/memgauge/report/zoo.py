"""The zoo as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from rich.console import Group, RenderableType
from rich.text import Text

from memgauge.arguments import TargetOptions
from memgauge.formula.records import ZooNetwork
from memgauge.report.tables import grid, plain
from memgauge.units import format_bytes

_SIZES = ("batch_size", "image_size", "sequence_length")


def zoo_view(networks: Sequence[ZooNetwork], device: str) -> RenderableType:
    """Return the networks with parameters, predicted peak and what they are."""
    table = grid("target", "parameters", "peak", "by hand", "what it is", flexible="what it is")
    for network in networks:
        what = plain(network.description)
        said = [f"{n.replace('_', ' ')} {network.arguments[n]}" for n in _SIZES if n in network.arguments]
        table.add_row(
            plain(network.target),
            f"{network.parameters:,}",
            format_bytes(network.peak_allocated_bytes),
            format_bytes(network.training_by_hand_bytes),
            what.append(f" ({', '.join(said)}{_own(network)})", style="dim"),
        )
    note = (
        f"peak: predicted allocated peak of three training steps on {device} with the defaults; by hand: what "
        "formulas say of the same (memgauge estimate TARGET --method both names the difference); "
        "--set: the network's own arguments, as in --set width=32; their defaults are in --json"
    )
    return Group(table, Text(), Text(note, style="dim"))


def _own(network: ZooNetwork) -> str:
    """Return the names of the arguments that no option of the command line sets."""
    options = {field.name for field in fields(TargetOptions)}
    own = [name for name in network.arguments if name not in options]
    return f"; --set {', '.join(own)}" if own else ""
