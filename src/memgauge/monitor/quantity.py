"""One quantity of one device: what it is called, how it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Note = Callable[[str, str, str], None]  # topic, text, remedy


class Quantity(NamedTuple):
    """What a lane reads of a device."""

    metric: str
    lane: str  # fast or medium
    instrument: str
    refresh_us: int | None
    read: Callable[[], int | None]
