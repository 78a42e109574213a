"""The JSON documents of commands that list things; `schema` comes first in each."""

from __future__ import annotations

import msgspec

from memgauge.devices import Device
from memgauge.formula.records import ZooNetwork
from memgauge.records import Range


class Devices(msgspec.Struct, frozen=True, tag_field="schema", tag="memgauge.devices/1"):
    """The catalogue of devices."""

    devices: tuple[Device, ...]


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a device: its 95 % range, how it is known and from where."""

    what: str
    bytes: Range
    grade: str
    source: str


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.device/1"):
    """What is known of one device under one stack of software; `cuda` and `loads_modules` of NVIDIA's cards only."""

    device: Device
    torch: str
    cuda: str | None
    loads_modules: str | None
    facts: tuple[Fact, ...]
    mechanisms: dict[str, str]


class Zoo(msgspec.Struct, frozen=True, tag_field="schema", tag="memgauge.zoo/1"):
    """The networks that come with memgauge."""

    targets: tuple[str, ...]
    device: str
    networks: tuple[ZooNetwork, ...]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was tried here."""

    name: str
    state: str  # "ok", "limited" or "no"
    detail: str  # what was found
    remedy: str = ""  # what to do about it
    is_needed: bool = False  # whether memgauge's main job fails without it


class Doctor(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.doctor/1"):
    """What is installed here and what works."""

    works: bool
    versions: dict[str, str | None]  # None: not installed
    checks: tuple[Check, ...]
