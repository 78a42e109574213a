"""Facts about the devices that people train on, each with its source."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

import msgspec

from memgauge.errors import UsageError, nearest


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device of the catalogue. `capacity_bytes` is None where it is read from the machine."""

    name: str
    title: str
    kind: str  # "cpu" or "cuda" (AMD's cards run torch's CUDA interface too)
    capacity_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None  # None on what is not NVIDIA's
    source: str = ""


@cache
def catalogue() -> dict[str, Device]:
    """Return every known device by name."""
    text = resources.files(__package__).joinpath("catalogue.toml").read_text()
    devices = msgspec.convert(tomllib.loads(text)["device"], list[Device])
    return {d.name: d for d in devices}


def find(name: str) -> Device:
    """Return the device of that name.

    Raises:
        UsageError: There is none; the nearest names are given.
    """
    found = catalogue().get(name)
    if found is None:
        raise UsageError(f"unknown device {name!r}{nearest(name, catalogue())}; `memgauge devices` lists all")
    return found
