"""Torch's CPU allocator as its profiler sees it: what is requested is what is allocated.

Torch aligns the address of a CPU allocation, reports the bytes asked for and
keeps nothing back; what the C library makes of it is not seen here but in the
process's resident memory.

Source: `DefaultCPUAllocator` and `ProfiledCPUMemoryReporter` in
c10/core/CPUAllocator.cpp, torch 2.13.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from memgauge.errors import TraceError
from memgauge.records import MemoryEvent, Timeline


def replay(events: Iterable[MemoryEvent]) -> Timeline:
    """Return occupancy after each event; allocated equals requested and reserved is None.

    Raises:
        TraceError: A storage is requested twice, or released without being held or by another amount.
    """
    total = 0
    held: dict[int, int] = {}
    blocks: dict[int, int] = {}
    series = array("q")
    for storage, requested, _, _, _ in events:
        if requested > 0:
            if storage in held:
                raise TraceError(f"storage {storage} is requested twice")
            held[storage] = blocks[storage] = requested
        elif held.pop(storage, None) != -requested:
            raise TraceError(f"storage {storage} gives back {-requested} bytes that it does not hold")
        total += requested
        series.append(total)
    return Timeline(requested_bytes=series, allocated_bytes=series, reserved_bytes=None, block_bytes=blocks)
