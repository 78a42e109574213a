"""What a calibration found, and how far the catalogue was off."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from memgauge.calibration import Calibration
from memgauge.report.tables import format_range, grid, plain
from memgauge.report.text import section
from memgauge.units import format_bytes, format_difference


def calibration_view(result: Calibration) -> RenderableType:
    """Return the ladder and the comparison with the catalogue."""
    found = result.readings
    head = Text(plain(found.title).plain, style="bold")
    head.append(f": context {format_bytes(result.device.context.bytes if result.device.context else None)}")
    ladder = grid("after", "outside torch's allocator")
    for step, amount in found.ladder.items():
        ladder.add_row(plain(step), format_bytes(amount))
    table = grid("figure", "catalogue", "measured", "difference", "in range?")
    for row in result.deviations:
        inside = {None: "", True: "yes", False: "no"}[row.is_inside]
        expected = None if row.catalogue is None else row.catalogue.expected
        difference = None if expected is None else row.measured_bytes - expected
        table.add_row(
            row.figure,
            "—" if row.catalogue is None else format_range(row.catalogue),
            format_bytes(row.measured_bytes),
            format_difference(difference, expected),
            inside,
        )
    entry = "No card of the catalogue is like it"
    if result.nearest is not None:
        entry = f"Beside the catalogue's {result.nearest}"
    idle = (
        []
        if found.used_before is not None
        else [Text("no NVML: the device was taken to be idle", style="yellow")]
    )
    return Group(head, *idle, *section("Ladder", ladder), *section(entry, table))
