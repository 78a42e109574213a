"""From what was measured on the card that is here to a device file, and to what the catalogue had wrong."""

from __future__ import annotations

import time

import msgspec

from memgauge import devices
from memgauge.devices import Device, Figure, Ladder
from memgauge.devices.context import context
from memgauge.devices.libraries import cublas_bytes_of
from memgauge.devices.stack import Stack, parse_version
from memgauge.errors import UsageError
from memgauge.records import Range
from memgauge.units import MIB

# What the model of the allocator reserves for one request of each kind (allocators/cuda_caching.py).
CONSTANTS = {"small": 2 * MIB, "shared": 20 * MIB, "own": 32 * MIB}


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """What was read on a card, bytes."""

    title: str
    total_bytes: int
    compute_capability: tuple[int, int] | None
    multiprocessors: int | None
    threads_per_multiprocessor: int | None
    ladder: dict[str, int]
    cublas_workspace: int
    backward_workspace: int
    constants: dict[str, int]
    torch: str
    cuda: str
    driver: str = ""
    architecture: str = ""  # AMD's, as the compiler names it: gfx90a
    used_before: int | None = None  # by NVML; None: the device was taken to be idle


class Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """One figure: what the catalogue says, and what was measured here."""

    figure: str
    catalogue: Range | None  # None: the catalogue does not know it
    measured_bytes: int

    @property
    def is_inside(self) -> bool | None:
        """Return whether the catalogue's range holds what was measured."""
        if self.catalogue is None:
            return None
        return self.catalogue.low <= self.measured_bytes <= self.catalogue.high


class Calibration(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.calibration/1"
):
    """What was measured here, the device that it describes, and how far the catalogue was off."""

    readings: Readings
    device: Device
    nearest: str | None  # the catalogue's name of this card
    deviations: tuple[Deviation, ...]
    file: str = ""


def calibrated(found: Readings) -> Calibration:
    """Return the device that readings describe, beside the catalogue's entry of the same card.

    Raises:
        UsageError: A reading cannot be right, for example because another process changed the device's use.
    """
    ladder = Ladder(**found.ladder)
    if not 0 < ladder.last < found.total_bytes // 2:
        raise UsageError(
            f"the context reads {ladder.last} bytes of {found.total_bytes}: another process was using the "
            "device meanwhile; run memgauge calibrate on an idle one"
        )
    source = f"memgauge calibrate, {time.strftime('%Y-%m-%d')}, torch {found.torch}, "
    source += f"{'ROCm' if found.architecture else 'CUDA'} {found.cuda}"
    source += f", driver {found.driver}" if found.driver else ""
    known = nearest(found.title, found.compute_capability, found.total_bytes)
    device = Device(
        name="cuda",
        title=found.title,
        kind="cuda",
        capacity_bytes=found.total_bytes,
        compute_capability=found.compute_capability,
        source=source,
        architecture=found.architecture,
        multiprocessors=found.multiprocessors,
        threads_per_multiprocessor=found.threads_per_multiprocessor,
        usable=Figure(bytes=found.total_bytes, grade="measured", source=source),
        context=Figure(bytes=ladder.last, grade="measured", source=source),
        cublas_workspace=Figure(bytes=found.cublas_workspace, grade="measured", source=source),
        rates=None if known is None else known.rates,
    )
    return Calibration(
        readings=found,
        device=device,
        nearest=None if known is None else known.name,
        deviations=deviations(found, device, known, ladder),
    )


def nearest(title: str, capability: tuple[int, int] | None, total_bytes: int) -> Device | None:
    """Return the catalogue's card of the same compute capability whose memory is nearest, within a tenth."""
    same = [d for d in devices.gpus() if d.compute_capability == capability]
    close = [d for d in same if abs((d.capacity_bytes or 0) - total_bytes) < 0.1 * (d.capacity_bytes or 0)]
    words = set(title.lower().replace("-", " ").split())

    def rank(device: Device) -> tuple[int, int, int]:
        its = set(device.title.lower().replace("-", " ").split())
        return -len(words & its), len(its - words), abs((device.capacity_bytes or 0) - total_bytes)

    return min(close, key=rank, default=None)


def deviations(
    found: Readings, device: Device, known: Device | None, ladder: Ladder
) -> tuple[Deviation, ...]:
    """Return the catalogue's figures beside the measured ones."""
    stack = Stack(
        torch=parse_version(found.torch, "torch"),
        cuda=parse_version(found.cuda, "CUDA") if device.is_nvidia else None,  # else it is ROCm's version
    )
    workspace = cublas_bytes_of(msgspec.structs.replace(device, cublas_workspace=None), stack)
    rows: list[Deviation] = []
    if known is not None:
        usable = known.usable_figure
        rows += [
            Deviation(figure="context", catalogue=context(known, stack)[0], measured_bytes=ladder.last),
            Deviation(
                figure="usable memory",
                catalogue=None if usable is None else _exactly(usable.bytes),
                measured_bytes=found.total_bytes,
            ),
        ]
    else:
        rows.append(Deviation(figure="context", catalogue=None, measured_bytes=ladder.last))
    for figure, measured in (
        ("cuBLAS workspace, first product", found.cublas_workspace),
        ("cuBLAS workspace, first product of backward", found.backward_workspace),
    ):
        rows.append(Deviation(figure=figure, catalogue=_exactly(workspace), measured_bytes=measured))
    for name, modelled in CONSTANTS.items():
        if name in found.constants:
            title = f"segment for a {name} request"
            rows.append(
                Deviation(figure=title, catalogue=_exactly(modelled), measured_bytes=found.constants[name])
            )
    return tuple(rows)


def _exactly(count: int) -> Range:
    return Range(low=count, expected=count, high=count)


def device_toml(device: Device) -> str:
    """Return a device in the format of the catalogue."""
    lines = ["# Written by memgauge calibrate; --device cuda uses it, --device FILE too.", "", "[[device]]"]
    for name, value in msgspec.to_builtins(device).items():
        if value is None or value == "":
            continue
        lines.append(f"{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return str(value)
