"""`memgauge devices`: the catalogue of devices that a run can be predicted for."""

from __future__ import annotations

from memgauge.cli import options
from memgauge.cli.output import show, show_json

EPILOG = "Example: memgauge devices --json"


def command(as_json: options.AsJson = False) -> None:
    """List the devices that --device knows, with their memory."""
    from memgauge import devices

    found = tuple(devices.catalogue().values())
    if as_json:
        from memgauge.cli.documents import Devices

        show_json(Devices(devices=found))
        return
    from memgauge.report.tables import grid, plain
    from memgauge.units import format_bytes

    table = grid("device", "memory", "title", flexible="title")
    for device in found:
        size = "read here" if device.capacity_bytes is None else format_bytes(device.capacity_bytes)
        table.add_row(plain(device.name), size, plain(device.title))
    show(table)
