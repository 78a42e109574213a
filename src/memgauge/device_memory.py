"""From a traced run to what `nvidia-smi` would show on a card, as a range, and whether the run fits.

    trace --replay, three sizes of what libraries take--> reserved: low, expected, high
    reserved + context                                --> device
    replays on ever smaller cards                     --> least capacity at which it runs

Each range covers 95 % and says where its width comes from (`Uncertainty`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

import msgspec

from memgauge.allocators import cuda_caching
from memgauge.allocators.blocks import UNLIMITED_BYTES
from memgauge.allocators.cuda_caching import CudaCachingAllocator
from memgauge.allocators.replay import OutOfMemory, first_refused
from memgauge.allocators.settings import CudaSettings
from memgauge.devices import USABLE_SPREAD, Device, Figure, libraries
from memgauge.devices.context import context
from memgauge.devices.stack import Stack
from memgauge.records import Fits, MemoryEvent, Range, Timeline, Trace, Uncertainty
from memgauge.units import MIB

# Half-width of reserved memory, as a share of it, that comes from what the replay places otherwise
# than the card did: scratch that no model knows, order of frees, kernels' choices. Set so that 95 % of
# the residuals of the build halves lie inside: of timm's set, and of xMem's where they are larger
# (docs/accuracy.md, "Ranges").
PLACEMENT_SPREAD = 0.06
# and at least one shared segment, the step in which reserved memory grows.
PLACEMENT_BYTES = 20 * MIB
# Half-width of the least capacity, as a share of it: workspaces and cached blocks give way, so that
# what remains is close to what is allocated. With it 96 % of the verdicts of the build halves (timm's
# largest batches, xMem's capped runs) are right and 8 % uncertain (docs/accuracy.md); 3 % makes one
# more in a hundred right and four more uncertain.
LEAST_SPREAD = 0.02
# The search for the least capacity ends at this share of it, or after so many tries.
_CAPACITY_STEP, _CAPACITY_TRIES = 1 / 128, 6


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
    settings: CudaSettings,
    *,
    outside: Range | None = None,
) -> DeviceMemory:
    """Return what a traced run takes on a card.

    Args:
        trace: What was asked for.
        place: The card.
        stack: Versions and switches.
        settings: What PYTORCH_CUDA_ALLOC_CONF sets.
        outside: What the process takes outside torch's allocator; None asks the catalogue.
    """
    beside, figure = context(place, stack)
    beside = outside or beside
    free = replay_sized(trace, settings, "expected")
    unlimited = max(free.reserved_bytes or (), default=0)
    usable = place.usable_figure
    timeline, reserved = free, unlimited
    shortened = giving_way(trace)
    is_limited = settings.per_process_memory_fraction < 1
    least = least_reserved(shortened, settings, beside.expected)
    if not is_limited:
        least = min(least, unlimited)  # within that it runs with all workspaces
    if usable is not None and (is_limited or beside.expected + unlimited > usable.bytes):
        room = usable.bytes - beside.expected
        limited = runs_within(trace, settings, room, usable.bytes)
        if limited is None and least <= room:
            limited = runs_within(shortened, settings, room, usable.bytes)
        if limited is not None:
            timeline, reserved = limited, max(limited.reserved_bytes or (), default=0)
    low, high = (
        reserved_sized(trace, settings, side) if _differs(trace, side) else unlimited
        for side in ("low", "high")
    )
    spread = placement_bytes(reserved)
    parts = (
        Uncertainty(
            source="context",
            low_bytes=beside.expected - beside.low,
            high_bytes=beside.high - beside.expected,
            basis=_basis(figure) if outside is None else "given",
        ),
        Uncertainty(
            source="workspaces",
            low_bytes=max(unlimited - low, 0),
            high_bytes=max(high - unlimited, 0),
            basis="limits of each library's scratch (memgauge.devices.libraries)",
        ),
        Uncertainty(
            source="placement",
            low_bytes=spread,
            high_bytes=spread,
            basis="residuals of measured runs, build halves of the accuracy benchmark",
        ),
    )
    allocated = max(timeline.allocated_bytes, default=0)
    lacking = int(LEAST_SPREAD * least)
    on_card = widened(reserved, parts[1:], at_least=allocated if low >= allocated else low)
    device = widened(beside.expected + reserved, parts, at_least=0)
    if usable is not None:
        device = within_card(device, usable.bytes)
    need = widened(
        beside.expected + least,
        (parts[0], msgspec.structs.replace(parts[2], low_bytes=lacking, high_bytes=lacking)),
        at_least=0,
    )
    return DeviceMemory(
        timeline=timeline,
        reserved=on_card,
        device=device,
        least=need,
        fits=verdict(need, device, place),
        uncertainty=parts,
        assumptions=_assumptions(place, figure, outside, stack),
        unmodelled=_unmodelled(trace),
    )


def placement_bytes(reserved: int) -> int:
    """Return the half-width of reserved memory (95 %) that comes from where blocks are placed."""
    return max(PLACEMENT_BYTES, int(PLACEMENT_SPREAD * reserved))


def replay_sized(trace: Trace, settings: CudaSettings, side: str) -> Timeline:
    """Return the replay without end, with scratch at its `low`, `expected` or `high` size."""
    events = trace.events if side == "expected" else resized(trace.events, _sizes(trace, side))
    return cuda_caching.replay(events, settings, releases=trace.cache_releases, streams=trace.streams)


def reserved_sized(trace: Trace, settings: CudaSettings, side: str) -> int:
    """Return the highest reserved memory of `replay_sized`, in less time."""
    allocator = CudaCachingAllocator(settings)
    changes = _changes(trace, {} if side == "expected" else _sizes(trace, side))
    first_refused(changes, allocator, trace.cache_releases, trace.streams)
    return allocator.peak_reserved_bytes


def _sizes(trace: Trace, side: str) -> dict[int, int]:
    return {s: max(x.low_bytes if side == "low" else x.high_bytes, 1) for s, x in trace.scratch.items()}


def _changes(trace: Trace, sizes: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return storage and requested bytes of each event, with other sizes for some storages."""
    return [
        (storage, change if storage not in sizes else sizes[storage] if change > 0 else -sizes[storage])
        for storage, change, _, _, _ in trace.events
    ]


def _differs(trace: Trace, side: str) -> bool:
    """Return whether any scratch has another size on this side than it is expected to have."""
    scratch = trace.scratch
    for event in trace.events:
        if event.requested_bytes > 0 and event.storage in scratch:
            limits = scratch[event.storage]
            size = limits.low_bytes if side == "low" else limits.high_bytes
            if max(size, 1) != event.requested_bytes:
                return True
    return False


def resized(events: Iterable[MemoryEvent], sizes: Mapping[int, int]) -> Iterator[MemoryEvent]:
    """Yield the events with other sizes for some storages."""
    for event in events:
        storage, before, phase, layer, operator = event
        size = sizes.get(storage)
        if size is None:
            yield event
        else:
            yield MemoryEvent(storage, size if before > 0 else -size, phase, layer, operator)


def giving_way(trace: Trace) -> Trace:
    """Return the trace as it runs where memory is short: no convolution has a workspace to speak of.

    A plan whose workspace cannot be had is passed over for the next (`try_plans` catches
    OutOfMemoryError; the search leaves out what is larger than the memory that is left:
    aten/src/ATen/native/cudnn/Conv_v8.cpp), and among them are plans that need none.
    """
    kinds = (libraries.CONVOLUTION, libraries.SEARCH)
    sizes = {s: max(x.low_bytes, 1) for s, x in trace.scratch.items() if x.mechanism in kinds}
    if not sizes:
        return trace
    return dataclasses.replace(trace, events=list(resized(trace.events, sizes)))


def without(trace: Trace, mechanisms: frozenset[str]) -> Trace:
    """Return the trace as it would be if some mechanisms did not exist (for ablations)."""
    left_out = {s for s, scratch in trace.scratch.items() if scratch.mechanism in mechanisms}
    events: list[MemoryEvent] = []
    places: list[int] = []
    for event in trace.events:
        places.append(len(events))
        if event.storage not in left_out:
            events.append(event)
    places.append(len(events))
    releases = () if "cache releases" in mechanisms else tuple(places[r] for r in trace.cache_releases)
    scratch = {s: x for s, x in trace.scratch.items() if s not in left_out}
    return Trace(
        events=events,
        categories=trace.categories,
        layers=trace.layers,
        modules=trace.modules,
        assumptions=trace.assumptions,
        unmodelled=trace.unmodelled,
        scratch=scratch,
        cache_releases=releases,
        streams={} if "streams" in mechanisms else trace.streams,
        uses=trace.uses,
    )


def runs_within(
    trace: Trace, settings: CudaSettings, capacity_bytes: int, total_bytes: int | None = None
) -> Timeline | None:
    """Return the replay within a capacity of reserved memory, None if it runs out.

    `total_bytes` is the card's memory, of which a fraction may be allowed; without it, the capacity.
    """
    if capacity_bytes <= 0:
        return None
    try:
        return cuda_caching.replay(
            trace.events,
            settings,
            capacity_bytes,
            total_bytes=total_bytes,
            releases=trace.cache_releases,
            streams=trace.streams,
        )
    except OutOfMemory:
        return None


def least_reserved(trace: Trace, settings: CudaSettings, beside_bytes: int = 0) -> int:
    """Return the least reserved memory within which a run succeeds, cached blocks being given back.

    To 1/128, or as near as six tries come once one of them runs. Where only a fraction of a card is
    allowed, it is what a card must have for that, less `beside_bytes`, which lie outside the allocator.

    What is requested at once is not enough, so the search begins there, in steps that double until a try
    runs; it would run in what it reserved. Between the last that failed and this one the search halves. A
    try that fails wants what it held when it was refused, and one segment more; less is taken to fail, too:
    success is not quite monotonic in the capacity, and a capacity below that would do by luck.
    """
    share = settings.per_process_memory_fraction
    if share == 0:
        return UNLIMITED_BYTES  # nothing is allowed on any card

    def room(reserved: int) -> int:
        return reserved if share == 1 else max(reserved, math.ceil(reserved / share) - beside_bytes)

    changes = _changes(trace, {})
    below = room(max(accumulate(change for _, change in changes), default=0)) - 1
    enough: int | None = None
    tries, step = 0, max(settings.large_segment_bytes, int(below * _CAPACITY_STEP))
    while enough is None or (
        tries < _CAPACITY_TRIES and enough - below > max(2 * MIB, enough * _CAPACITY_STEP)
    ):
        tries += 1
        capacity = below + step if enough is None else (below + enough) // 2
        allocator = CudaCachingAllocator(settings, capacity, total_bytes=capacity + beside_bytes)
        refused = first_refused(changes, allocator, trace.cache_releases, trace.streams)
        if refused is None:
            enough = allocator.peak_reserved_bytes if share == 1 else capacity
        else:
            wanted = room(allocator.reserved_bytes + allocator.segment_bytes(refused))
            below = max(capacity, min(wanted, enough or wanted) - 1)
            step *= 2
    return enough


def widened(expected: int, parts: tuple[Uncertainty, ...], *, at_least: int) -> Range:
    """Return the range whose half-widths are the independent parts' root of squares."""
    down = math.sqrt(sum(part.low_bytes**2 for part in parts))
    up = math.sqrt(sum(part.high_bytes**2 for part in parts))
    return Range(
        low=min(expected, max(int(expected - down), at_least)), expected=expected, high=int(expected + up)
    )


def verdict(need: Range, device: Range, place: Device) -> Fits:
    """Say whether a run fits: `need` is the capacity that it must have, the context included."""
    usable = place.usable_figure
    if usable is None:
        reason = "the card's memory is not known: run `memgauge calibrate` where it is, or give --device NAME"
        return Fits(
            verdict="uncertain",
            capacity_bytes=None,
            free_bytes=None,
            reason=reason,
            least_capacity_bytes=need,
        )
    spread = int(usable.bytes * USABLE_SPREAD) if usable.grade == "guessed" else 0
    if need.high <= usable.bytes - spread:
        said, reason = "yes", "even at the high end of the range"
        if device.expected > usable.bytes - spread:
            reason = "by giving cached blocks back and trying again"
    elif need.low > usable.bytes + spread:
        said, reason = "no", "even at the low end of the range"
    else:
        said, reason = "uncertain", "the card's usable memory lies within the range of what the run needs"
    return Fits(
        verdict=said,
        capacity_bytes=usable.bytes,
        free_bytes=usable.bytes - device.expected,
        reason=reason,
        least_capacity_bytes=need,
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
        "pools of CUDA graphs, NCCL, libraries that ask the driver themselves",
        "pinned host memory; data loaders",
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
    if outside is None:
        name = "CUDA context" if version else "context (HIP)"
        lines.append(f"{name} {figure.bytes // MIB} MiB, {figure.grade}: {figure.source}")
    usable = place.usable_figure
    if usable is not None:
        lines.append(f"usable memory {usable.bytes // MIB} MiB, {usable.grade}: {usable.source}")
    return tuple(lines)
