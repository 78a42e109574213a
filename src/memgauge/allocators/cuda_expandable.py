"""Expandable segments: one long range of addresses per pool, with memory mapped behind it on demand.

A segment grows by whole pages instead of being obtained whole, so requests
tile it and leave fewer holes. Out of memory, whole pages inside free blocks are
unmapped, and later mapped again at the lowest address where a request fits.

Source: `ExpandableSegment`, `find_expandable_block`, `try_allocate_expandable_block`,
`map_block`, `unmap_block` in c10/cuda/CUDACachingAllocator.cpp (2024 and main of 2026 agree).
"""

from __future__ import annotations

from memgauge.allocators.blocks import Block, Driver, Pool, round_up


def take_expandable_fit(pool: Pool, size_bytes: int, below_bytes: int) -> Block | None:
    """Do as `Pool.take_fit`, where a block that can still grow counts as large as it can become.

    So holes are filled before the growing end of the segment is. Source: `get_free_block`.
    """
    pool.searches += 1
    blocks, index = pool.blocks, pool.best_fit(size_bytes)
    while index + 1 < len(blocks) and _reach_bytes(blocks[index + 1]) < _reach_bytes(blocks[index]):
        index += 1
    if index == len(blocks) or blocks[index].size_bytes >= below_bytes:
        return None
    block = blocks[index]
    pool.remove(block)
    return block


def _reach_bytes(block: Block) -> int:
    following = block.following
    if following is None or following.is_mapped:
        return block.size_bytes
    return block.size_bytes + following.size_bytes


class ExpandableSegments:
    """The growing segments of one pool: one, until its addresses run out."""

    def __init__(self, pool: Pool, driver: Driver, page_bytes: int, span_bytes: int) -> None:
        """Start without any segment.

        Args:
            pool: Where mapped free blocks go.
            driver: Where pages come from.
            page_bytes: Unit of mapping.
            span_bytes: Addresses that one segment sets aside; more cannot be mapped in it.
        """
        self._pool = pool
        self._driver = driver
        self._page_bytes = page_bytes
        self._span_bytes = round_up(span_bytes, page_bytes)
        self._unmapped: list[Block] = []

    def grow(self, size_bytes: int) -> Block | None:
        """Map pages until a block of at least `size_bytes` exists; return it, out of the pool.

        Returns None when the driver has no pages left; pages mapped until then stay mapped.
        """
        if size_bytes > self._span_bytes:
            return None
        block: Block | None = self._lowest_room(size_bytes)
        if block is not None and not block.is_mapped:
            block = self._map(block, size_bytes)
        while block is not None and block.size_bytes < size_bytes:
            assert block.following is not None
            block = self._map(block.following, size_bytes - block.size_bytes)
        if block is not None:
            self._pool.remove(block)
        return block

    def unmap_free_pages(self) -> None:
        """Give every page that lies wholly inside a free block back to the driver."""
        for block in list(self._pool.blocks):
            start = round_up(block.address, self._page_bytes)
            end = (block.address + block.size_bytes) // self._page_bytes * self._page_bytes
            if start < end:
                self._pool.remove(block)
                self._unmap(block, start, end)

    def _lowest_room(self, size_bytes: int) -> Block:
        """Return where `size_bytes` fit lowest: a free block before unmapped space, or that space."""
        for unmapped in sorted(self._unmapped, key=lambda block: block.address):
            before = unmapped.previous
            first = before if before is not None and before.free_key else unmapped
            room_bytes, block = 0, first
            while room_bytes < size_bytes and (block.free_key or not block.is_mapped):
                room_bytes += block.size_bytes
                if block.following is None:
                    break
                block = block.following
            if room_bytes >= size_bytes:
                return first
        address = self._driver.address(self._span_bytes, self._page_bytes)
        segment = Block.segment(address, self._span_bytes, self._pool, is_mapped=False)
        self._unmapped.append(segment)
        return segment

    def _map(self, unmapped: Block, wanted_bytes: int) -> Block | None:
        """Put pages behind the start of an unmapped block; return the free block they became part of."""
        mapped_bytes = round_up(min(wanted_bytes, unmapped.size_bytes), self._page_bytes)
        if not self._driver.take(mapped_bytes):
            return None
        self._unmapped.remove(unmapped)
        if mapped_bytes < unmapped.size_bytes:
            self._unmapped.append(unmapped.split(mapped_bytes))
        unmapped.is_mapped = True
        return self._pool.put_merged(unmapped)

    def _unmap(self, block: Block, start: int, end: int) -> None:
        """Give back the pages between two addresses of a block, which is in no pool."""
        if block.address < start:
            inner = block.split(start - block.address)
            self._pool.put(block)
            block = inner
        if block.address + block.size_bytes > end:
            self._pool.put(block.split(end - block.address))
        block.is_mapped = False
        self._driver.give_back(block.size_bytes)
        following, previous = block.following, block.previous
        if following is not None and not following.is_mapped:
            self._unmapped.remove(following)
            block.absorb(following)
        if previous is not None and not previous.is_mapped:
            previous.absorb(block)
        else:
            self._unmapped.append(block)
