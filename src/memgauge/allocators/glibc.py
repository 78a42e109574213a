"""Resident memory of a process on the CPU: the C library's malloc under torch's requests.

torch takes CPU memory with `posix_memalign` and gives it back with `free`. What
stays resident is decided by glibc: large requests get a mapping of their own,
which goes back to the system at once; smaller ones come from a heap, where what
is freed stays resident unless it is at the very top. The border between the two
moves up as mappings are freed, so that activations of a few MiB end up in the
heap and leave holes there.

Sources, glibc 2.36 malloc/malloc.c unless said otherwise:
    sysmalloc (mmap above mmap_threshold; top grows by request + top_pad),
    __libc_free (munmap; the dynamic mmap_threshold and trim_threshold),
    _int_memalign (asks for size + alignment + MINSIZE, gives the ends back),
    _int_malloc (exact or best fit from the bins, remainder split off),
    _int_free and systrim (merging with neighbours, top given back above trim_threshold).
torch 2.13 c10/core/impl/alloc_cpu.cpp: alignment of 64 bytes (gAlignment).
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

from memgauge.records import MemoryEvent

_PAGE = 4096
_HEADER = 8  # size field in front of a chunk in use
_MIN_CHUNK = 32
_ALIGNMENT = 64
_TOP_PAD = 128 * 1024  # DEFAULT_TOP_PAD
_MMAP_THRESHOLD = 128 * 1024  # DEFAULT_MMAP_THRESHOLD_MIN
_MMAP_THRESHOLD_MAX = 32 * 2**20  # DEFAULT_MMAP_THRESHOLD_MAX on 64 bits
_CONSOLIDATION = 64 * 1024  # FASTBIN_CONSOLIDATION_THRESHOLD: smaller frees never trim


@dataclass(slots=True)
class _Chunk:
    """A piece of the heap; `before` and `after` are its neighbours by address."""

    address: int
    size: int
    used: bool
    before: _Chunk | None = None
    after: _Chunk | None = None


class Heap:
    """One malloc arena: a heap that grows at its top, and mappings beside it.

    Args:
        trims: Whether free memory at the top is given back to the system. In a real
            process something small may sit on top and prevent it.
        pinned_share: Of blocks that have a small object of the program behind them that
            stays, so that the block does not merge with what follows when freed.
        seed: Which blocks these are.
    """

    def __init__(
        self,
        trims: bool = True,
        pinned_share: float = 0.0,
        seed: int = 0,
        mmap_threshold: int = _MMAP_THRESHOLD,
    ) -> None:
        self.mapped_bytes = 0
        self.heap_bytes = 0  # up to the end of top
        self._trims = trims
        self._pinned_share = pinned_share
        self._draw = random.Random(seed).random
        self._mmap_threshold = mmap_threshold
        self._trim_threshold = max(2 * mmap_threshold, _MMAP_THRESHOLD)
        self._top = _Chunk(0, 0, used=False)
        self._free: list[tuple[int, int]] = []  # (size, address), the bins in order of best fit
        self._chunk_at: dict[int, _Chunk] = {}

    @property
    def resident_bytes(self) -> int:
        """What the process holds: mappings and the whole heap, its holes included."""
        return self.mapped_bytes + self.heap_bytes

    def allocate(self, size: int) -> _Chunk | int:
        """Take `size` bytes aligned to 64; returns what `free` wants back."""
        wanted = max((size + _HEADER + 15) & ~15, _MIN_CHUNK)
        padded = (wanted + _ALIGNMENT + _MIN_CHUNK + _HEADER + 15) & ~15
        chunk = self._from_bins(padded)
        if chunk is None:
            if padded >= self._mmap_threshold and padded + _MIN_CHUNK > self._top.size:
                mapping = (padded + 2 * _HEADER + _PAGE - 1) & ~(_PAGE - 1)
                self.mapped_bytes += mapping
                return mapping
            chunk = self._from_top(padded)
        self._align(chunk, wanted)
        return chunk

    def free(self, taken: _Chunk | int) -> None:
        """Give back what `allocate` returned."""
        if isinstance(taken, int):
            self.mapped_bytes -= taken
            if self._mmap_threshold < taken <= _MMAP_THRESHOLD_MAX:
                self._mmap_threshold = taken
                self._trim_threshold = 2 * taken
            return
        merged = self._release(taken)
        if self._trims and merged >= _CONSOLIDATION and self._top.size >= self._trim_threshold:
            extra = (self._top.size - _TOP_PAD - _MIN_CHUNK) & ~(_PAGE - 1)
            if extra > 0:
                self._top.size -= extra
                self.heap_bytes -= extra

    def _from_bins(self, padded: int) -> _Chunk | None:
        index = bisect_left(self._free, (padded, -1))
        if index == len(self._free):
            return None
        _, address = self._free.pop(index)
        chunk = self._chunk_at[address]
        chunk.used = True
        self._split(chunk, padded)
        return chunk

    def _from_top(self, padded: int) -> _Chunk:
        top = self._top
        if top.size < padded + _MIN_CHUNK:
            grow = (padded + _TOP_PAD + _MIN_CHUNK - top.size + _PAGE - 1) & ~(_PAGE - 1)
            top.size += grow
            self.heap_bytes += grow
        chunk = _Chunk(top.address, padded, used=True, before=top.before, after=top)
        if top.before is not None:
            top.before.after = chunk
        top.before = chunk
        top.address += padded
        top.size -= padded
        self._chunk_at[chunk.address] = chunk
        return chunk

    def _align(self, chunk: _Chunk, wanted: int) -> None:
        """Give back the leader in front of the aligned address and the trailer behind it."""
        lead = -(chunk.address + 2 * _HEADER) % _ALIGNMENT
        if lead and lead < _MIN_CHUNK:
            lead += _ALIGNMENT
        if lead:
            leader = _Chunk(chunk.address, lead, used=True, before=chunk.before, after=chunk)
            if chunk.before is not None:
                chunk.before.after = leader
            chunk.before = leader
            del self._chunk_at[chunk.address]
            chunk.address += lead
            chunk.size -= lead
            self._chunk_at[chunk.address] = chunk
            self._chunk_at[leader.address] = leader
            self._release(leader)
        self._split(chunk, wanted, pinned=self._pinned_share > 0 and self._draw() < self._pinned_share)

    def _split(self, chunk: _Chunk, wanted: int, pinned: bool = False) -> None:
        rest = chunk.size - wanted
        if rest < _MIN_CHUNK:
            return
        chunk.size = wanted
        remainder = _Chunk(chunk.address + wanted, rest, used=True, before=chunk, after=chunk.after)
        if chunk.after is not None:
            chunk.after.before = remainder
        chunk.after = remainder
        self._chunk_at[remainder.address] = remainder
        if not pinned:
            self._release(remainder)

    def _release(self, chunk: _Chunk) -> int:
        """Free a chunk, merged with its free neighbours; returns the size of the result."""
        chunk.used = False
        before = chunk.before
        if before is not None and not before.used:
            self._unlist(before)
            before.size += chunk.size
            before.after = chunk.after
            if chunk.after is not None:
                chunk.after.before = before
            del self._chunk_at[chunk.address]
            chunk = before
        after = chunk.after
        if after is self._top:
            self._top.address = chunk.address
            self._top.size += chunk.size
            self._top.before = chunk.before
            if chunk.before is not None:
                chunk.before.after = self._top
            self._chunk_at.pop(chunk.address, None)
            return self._top.size
        if after is not None and not after.used:
            self._unlist(after)
            del self._chunk_at[after.address]
            chunk.size += after.size
            chunk.after = after.after
            if after.after is not None:
                after.after.before = chunk
        insort(self._free, (chunk.size, chunk.address))
        return chunk.size

    def _unlist(self, chunk: _Chunk) -> None:
        index = bisect_left(self._free, (chunk.size, chunk.address))
        del self._free[index]


def replay(
    events: Iterable[MemoryEvent], trims: bool = True, pinned_share: float = 0.0, seed: int = 0
) -> array[int]:
    """Return the resident bytes of the C library's memory after each event.

    Args:
        events: Allocations and releases of requested bytes in program order.
        trims: See `Heap`.
        pinned_share: See `Heap`.
        seed: See `Heap`.
    """
    heap = Heap(trims, pinned_share, seed)
    held: dict[int, _Chunk | int] = {}
    resident = array("q")
    for event in events:
        if event.requested_bytes > 0:
            held[event.storage] = heap.allocate(event.requested_bytes)
        else:
            heap.free(held.pop(event.storage))
        resident.append(heap.resident_bytes)
    return resident
