"""Torch's CPU allocator as its profiler sees it: what is requested is what is allocated.

Torch aligns the address of a CPU allocation, reports the bytes asked for and
keeps nothing back; what the C library makes of it is not seen here but in the
process's resident memory.

Source: `DefaultCPUAllocator` and `ProfiledCPUMemoryReporter` in
c10/core/CPUAllocator.cpp, torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable

from memgauge.allocators.blocks import Block, Pool
from memgauge.allocators.replay import walk
from memgauge.records import MemoryEvent, Timeline


class CpuAllocator:
    """Hands out exactly what is asked for."""

    reserved_bytes = None

    def __init__(self) -> None:
        """Start with nothing allocated."""
        self.allocated_bytes = 0
        self._nowhere = Pool(splits_above_bytes=0)

    def allocate(self, requested_bytes: int) -> Block:
        """Return a block of the requested size; addresses mean nothing here."""
        block = Block(0, requested_bytes, self._nowhere)
        block.requested_bytes = requested_bytes
        self.allocated_bytes += requested_bytes
        return block

    def free(self, block: Block) -> None:
        """Take a block back; nothing is kept for later."""
        self.allocated_bytes -= block.size_bytes


def replay(events: Iterable[MemoryEvent]) -> Timeline:
    """Return occupancy after each event; allocated equals requested and reserved is None.

    Raises:
        TraceError: A storage is requested twice, or released without being held or by another amount.
    """
    return walk(events, CpuAllocator())
