"""Walk a trace through an allocator and note what it holds after each event."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from memgauge.allocators.blocks import Block
from memgauge.errors import MemgaugeError, TraceError
from memgauge.records import MemoryEvent, Timeline
from memgauge.units import format_bytes

NO_STREAMS: Mapping[int, int] = MappingProxyType({})


class Allocator(Protocol):
    """What a trace can be walked through."""

    @property
    def allocated_bytes(self) -> int:
        """Return the bytes of all blocks that are handed out."""

    @property
    def reserved_bytes(self) -> int | None:
        """Return the bytes held from the driver, or None for an allocator that keeps nothing back."""

    def allocate(self, requested_bytes: int, stream: int = 0, /) -> Block | None:
        """Return a block for a request of at least 1 byte on a stream, or None when out of memory."""

    def free(self, block: Block) -> None:
        """Take back a block that `allocate` returned."""

    def release_cached(self) -> None:
        """Give everything that is held but not handed out back to the driver, where there is one."""


class OutOfMemory(MemgaugeError):
    """A request did not fit, even after everything cached was given back.

    Attributes:
        event_index: Place of the request in the trace.
        requested_bytes: What this one request asked for.
        allocated_bytes: Blocks handed out at that moment.
        reserved_bytes: Held from the driver at that moment, after giving back.
        timeline: Occupancy after each event before this one.
    """

    def __init__(
        self,
        event_index: int,
        requested_bytes: int,
        allocated_bytes: int,
        reserved_bytes: int | None,
        timeline: Timeline,
    ) -> None:
        """Keep every figure; positional, so that the error survives pickling."""
        super().__init__(event_index, requested_bytes, allocated_bytes, reserved_bytes, timeline)
        self.event_index = event_index
        self.requested_bytes = requested_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.timeline = timeline

    def __str__(self) -> str:
        """Return the one line that the user sees."""
        held = (
            f"{format_bytes(self.allocated_bytes)} allocated and {format_bytes(self.reserved_bytes)} reserved"
        )
        wanted = format_bytes(self.requested_bytes)
        return f"out of memory at event {self.event_index}: {wanted} on top of {held}"


def walk(
    events: Iterable[MemoryEvent],
    allocator: Allocator,
    releases: Iterable[int] = (),
    streams: Mapping[int, int] = NO_STREAMS,
) -> Timeline:
    """Hand every event to `allocator`, in order, and return occupancy after each.

    Args:
        events: Requests and releases in program order. A request of 0 bytes gets no block.
        allocator: A fresh allocator; the walk is the only one to use it.
        releases: Indices of events, ascending, before which the cache is given back.
        streams: On which stream a storage is requested; not listed: on the default one, 0.

    Raises:
        TraceError: A storage is requested twice, or released without being held or by another amount.
        OutOfMemory: A request does not fit.
    """
    allocate, free = allocator.allocate, allocator.free
    stream_of = streams.get
    keeps = allocator.reserved_bytes is not None
    requested: list[int] = []
    allocated: list[int] = []
    reserved: list[int | None] = []
    live: dict[int, Block] = {}
    block_bytes: dict[int, int] = {}
    requested_bytes = 0
    upcoming = iter(releases)
    release_at = next(upcoming, -1)
    for index, event in enumerate(events):
        while release_at == index:
            allocator.release_cached()
            release_at = next(upcoming, -1)
        storage, change_bytes = event.storage, event.requested_bytes
        if change_bytes > 0:
            if storage in block_bytes:
                raise TraceError(f"storage {storage} is requested again at event {index}")
            block = allocate(change_bytes, stream_of(storage, 0))
            if block is None:
                held = allocator.allocated_bytes, allocator.reserved_bytes
                until_then = _timeline(requested, allocated, reserved if keeps else None, block_bytes)
                raise OutOfMemory(index, change_bytes, *held, until_then)
            live[storage] = block
            block_bytes[storage] = block.size_bytes
        elif change_bytes < 0:
            block = live.pop(storage, None)
            if block is None or block.requested_bytes != -change_bytes:
                raise TraceError(
                    f"storage {storage} does not hold the {-change_bytes} bytes of event {index}"
                )
            free(block)
        requested_bytes += change_bytes
        requested.append(requested_bytes)
        allocated.append(allocator.allocated_bytes)
        reserved.append(allocator.reserved_bytes)
    return _timeline(requested, allocated, reserved if keeps else None, block_bytes)


def first_refused(
    changes: Iterable[tuple[int, int]],
    allocator: Allocator,
    releases: Iterable[int] = (),
    streams: Mapping[int, int] = NO_STREAMS,
) -> int | None:
    """Hand every change to `allocator`, in order, until a request does not fit; return its bytes, None if all do.

    As `walk`, without a timeline and without its checks: for what was walked before.

    Args:
        changes: Storage and requested bytes of each event.
        allocator, releases, streams: As in `walk`.
    """
    allocate, free = allocator.allocate, allocator.free
    stream_of = streams.get
    live: dict[int, Block] = {}
    upcoming = iter(releases)
    release_at = next(upcoming, -1)
    for index, (storage, change_bytes) in enumerate(changes):
        while release_at == index:
            allocator.release_cached()
            release_at = next(upcoming, -1)
        if change_bytes > 0:
            block = allocate(change_bytes, stream_of(storage, 0))
            if block is None:
                return change_bytes
            live[storage] = block
        elif change_bytes < 0:
            free(live.pop(storage))
    return None


def _timeline(
    requested: list[int], allocated: list[int], reserved: list[int | None] | None, block_bytes: dict[int, int]
) -> Timeline:
    return Timeline(
        _pack(requested), _pack(allocated), None if reserved is None else _pack(reserved), block_bytes
    )


def _pack(values: Sequence[int | None]) -> array[int]:
    """Return the values as 64-bit integers; appending to an array one by one takes three times as long."""
    return array("q", struct.pack(f"{len(values)}q", *values))
