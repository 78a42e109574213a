"""From a traced run to what `nvidia-smi` would show on a card, as a range, and whether the run fits.

    trace --replay, three sizes of what libraries take--> reserved: low, expected, high
    reserved + context                                --> device
    replays on ever smaller cards                     --> least capacity at which it runs

Each range covers 95 % and says where its width comes from (`Uncertainty`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from memgauge.allocators.settings import CudaSettings
from memgauge.allocators.sized import differs, replay_sized, reserved_sized
from memgauge.capacity import LEAST_SPREAD, giving_way, least_reserved, runs_within, verdict
from memgauge.devices import Device, Figure, libraries
from memgauge.devices.context import context
from memgauge.devices.stack import Stack
from memgauge.records import Fits, Range, Timeline, Trace, Uncertainty
from memgauge.run_settings import of_the_environment, settings_of
from memgauge.units import MIB, format_bytes

# Half-width of reserved memory, as a share of it, that comes from what the replay places otherwise
# than the card did: scratch that no model knows, order of frees, kernels' choices. Set so that 95 % of
# the residuals of the build halves lie inside: of timm's set, and of xMem's where they are larger
# (docs/accuracy.md, "Ranges").
PLACEMENT_SPREAD = 0.06
# and at least one shared segment, the step in which reserved memory grows.
PLACEMENT_BYTES = 20 * MIB


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What a run takes on one card."""

    timeline: Timeline  # on this card, or without end where it does not fit
    reserved: Range
    device: Range
    least: Range  # capacity, context included, below which it does not run
    fits: Fits
    uncertainty: tuple[Uncertainty, ...]
    assumptions: tuple[str, ...]
    unmodelled: tuple[str, ...]


def device_memory(
    trace: Trace,
    place: Device,
    stack: Stack,
    settings: CudaSettings | None = None,
    *,
    outside: Range | None = None,
) -> DeviceMemory:
    """Return what a traced run takes on a card.

    Args:
        trace: What was asked for.
        place: The card.
        stack: Versions and switches.
        settings: What PYTORCH_CUDA_ALLOC_CONF sets; what the environment says if None.
        outside: What the process takes outside torch's allocator; None asks the catalogue.
    """
    said = of_the_environment(trace, settings)
    settings = settings_of(trace, settings)
    catalogued, figure = context(place, stack)
    beside = outside or catalogued
    replayed = _replayed(trace, settings, beside.expected, place.usable_figure)
    parts = (
        Uncertainty(
            source="context",
            low_bytes=beside.expected - beside.low,
            high_bytes=beside.high - beside.expected,
            basis=_basis(figure) if outside is None else "given",
        ),
        *_parts_of_reserved(trace, settings, replayed),
    )
    allocated = max(replayed.timeline.allocated_bytes, default=0)
    floor = replayed.unlimited - parts[1].low_bytes  # with what libraries take at its least
    on_card = widened(replayed.reserved, parts[1:], at_least=allocated if floor >= allocated else floor)
    device = widened(beside.expected + replayed.reserved, parts, at_least=0)
    if place.usable_figure is not None:
        device = within_card(device, place.usable_figure.bytes)
    lacking = int(LEAST_SPREAD * replayed.least)
    need = widened(
        beside.expected + replayed.least,
        (parts[0], msgspec.structs.replace(parts[2], low_bytes=lacking, high_bytes=lacking)),
        at_least=0,
    )
    fits = verdict(need, device, place)
    if settings.per_process_memory_fraction < 1:
        fits = _of_its_share(fits, settings, replayed.unlimited)
    return DeviceMemory(
        timeline=replayed.timeline,
        reserved=on_card,
        device=device,
        least=need,
        fits=fits,
        uncertainty=parts,
        assumptions=(*_assumptions(place, figure, outside, stack), *said),
        unmodelled=_unmodelled(trace),
    )


class _Replayed(NamedTuple):
    """A trace as the allocator places it, in bytes of reserved memory."""

    timeline: Timeline  # on the card, or without end where it does not fit
    reserved: int  # at the highest of that
    unlimited: int  # at the highest without end
    least: int  # within which it runs


def _replayed(trace: Trace, settings: CudaSettings, beside: int, usable: Figure | None) -> _Replayed:
    """Replay a trace without end, on ever smaller cards, and on this one if it could be too small.

    Args:
        trace, settings: What was asked for, and of which allocator.
        beside: Bytes of the card that lie outside the allocator.
        usable: The card's memory, if it is known.
    """
    timeline = replay_sized(trace, settings, "expected")
    reserved = unlimited = max(timeline.reserved_bytes or (), default=0)
    shortened = giving_way(trace)
    is_limited = settings.per_process_memory_fraction < 1
    least = least_reserved(shortened, settings, beside)
    if not is_limited:
        least = min(least, unlimited)  # within that it runs with all workspaces
    if usable is not None and (is_limited or beside + unlimited > usable.bytes):
        room = usable.bytes - beside
        limited = runs_within(trace, settings, room, usable.bytes)
        if limited is None and least <= room:
            limited = runs_within(shortened, settings, room, usable.bytes)
        if limited is not None:
            timeline, reserved = limited, max(limited.reserved_bytes or (), default=0)
    return _Replayed(timeline, reserved, unlimited, least)


def _parts_of_reserved(
    trace: Trace, settings: CudaSettings, replayed: _Replayed
) -> tuple[Uncertainty, Uncertainty]:
    """Return how far what libraries take, and where blocks are placed, may change reserved memory."""
    low, high = (
        reserved_sized(trace, settings, side) if differs(trace, side) else replayed.unlimited
        for side in ("low", "high")
    )
    spread = placement_bytes(replayed.reserved)
    return (
        Uncertainty(
            source="workspaces",
            low_bytes=max(replayed.unlimited - low, 0),
            high_bytes=max(high - replayed.unlimited, 0),
            basis="limits of each library's scratch (memgauge.devices.libraries)",
        ),
        Uncertainty(
            source="placement",
            low_bytes=spread,
            high_bytes=spread,
            basis="residuals of measured runs, build halves of the accuracy benchmark",
        ),
    )


def _of_its_share(fits: Fits, settings: CudaSettings, reserved: int) -> Fits:
    """Return the verdict with what is left of the share of the card that torch may take."""
    if fits.capacity_bytes is None:
        return fits
    share = settings.per_process_memory_fraction
    allowed = int(share * fits.capacity_bytes)
    reason = f"{fits.reason}; torch may take {100 * share:g} % of the card, {format_bytes(allowed)}"
    return msgspec.structs.replace(fits, free_bytes=allowed - reserved, reason=reason)


def placement_bytes(reserved: int) -> int:
    """Return the half-width of reserved memory (95 %) that comes from where blocks are placed."""
    return max(PLACEMENT_BYTES, int(PLACEMENT_SPREAD * reserved))


def widened(expected: int, parts: tuple[Uncertainty, ...], *, at_least: int) -> Range:
    """Return the range whose half-widths are the independent parts' root of squares."""
    down = math.sqrt(sum(part.low_bytes**2 for part in parts))
    up = math.sqrt(sum(part.high_bytes**2 for part in parts))
    return Range(
        low=min(expected, max(int(expected - down), at_least)), expected=expected, high=int(expected + up)
    )


def within_card(figure: Range, capacity: int) -> Range:
    """Cut the high end at the card's memory where the expected value is below it."""
    if figure.expected > capacity:
        return figure
    return Range(low=figure.low, expected=figure.expected, high=min(figure.high, capacity))


def _unmodelled(trace: Trace) -> tuple[str, ...]:
    """Name what the process may take beyond what is modelled."""
    lines = [
        "scratch of reductions and normalisation, copies of inputs in an unusual layout by kernels other than "
        "convolutions, products, softmax and norms",
        "NCCL, instantiated CUDA graphs, libraries that ask the driver themselves",
        "data loaders' own processes, and what their pinning thread pins",
    ]
    if any(s.mechanism == libraries.CONVOLUTION for s in trace.scratch.values()):
        lines.insert(
            0,
            "which plan cuDNN chooses for a convolution: copies in the layout of tensor cores are expected "
            "where these are faster, else no workspace",
        )
    return tuple(lines)


def _basis(figure: Figure) -> str:
    return f"{figure.grade}: {figure.source}"


def _assumptions(place: Device, figure: Figure, outside: Range | None, stack: Stack) -> tuple[str, ...]:
    version = ".".join(map(str, stack.cuda_version)) if place.is_nvidia else ""
    lines = [
        f"torch {stack.torch[0]}.{stack.torch[1]} with "
        + (f"CUDA {version}" if version else "ROCm, any version")
    ]
    lines += stack.beyond_known()
    if outside is None:
        name = "CUDA context" if version else "context (HIP)"
        lines.append(f"{name} {figure.bytes // MIB} MiB, {figure.grade}: {figure.source}")
    usable = place.usable_figure
    if usable is not None:
        lines.append(f"usable memory {usable.bytes // MIB} MiB, {usable.grade}: {usable.source}")
    return tuple(lines)
