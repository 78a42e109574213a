"""What a caching allocator is made of: the driver's memory, blocks, and pools of free blocks.

A segment is a chain of blocks, linked in address order. Every block is in one
of three states: handed out, free (it lies in its pool), or address space only
(`is_mapped` is False: no memory behind it, expandable segments only).
"""

from __future__ import annotations

from bisect import bisect_left

UNLIMITED_BYTES = 1 << 62
_ADDRESS_BITS = 64


def round_up(count_bytes: int, multiple_bytes: int) -> int:
    """Return the smallest multiple that is not below `count_bytes`."""
    return -(-count_bytes // multiple_bytes) * multiple_bytes


class Driver:
    """The device's memory as the driver gives it out: an amount, and addresses that only grow.

    Growing addresses order blocks as torch does: by when their segment was
    obtained, then by their place in it (Source: `BlockComparatorSizeCounterAddress`
    in c10/cuda/CUDACachingAllocator.cpp, main of 2026).
    """

    __slots__ = ("_next_address", "capacity_bytes", "reserved_bytes")

    def __init__(self, capacity_bytes: int | None) -> None:
        """Start with nothing reserved; without a capacity the memory never ends."""
        self.capacity_bytes = UNLIMITED_BYTES if capacity_bytes is None else capacity_bytes
        self.reserved_bytes = 0
        self._next_address = 0

    def take(self, count_bytes: int) -> bool:
        """Reserve memory; return False and change nothing if that much is not left."""
        if self.reserved_bytes + count_bytes > self.capacity_bytes:
            return False
        self.reserved_bytes += count_bytes
        return True

    def give_back(self, count_bytes: int) -> None:
        """Return reserved memory."""
        self.reserved_bytes -= count_bytes

    def address(self, count_bytes: int, alignment_bytes: int = 1) -> int:
        """Return the first of `count_bytes` addresses that were never given out before."""
        start = round_up(self._next_address, alignment_bytes)
        self._next_address = start + count_bytes
        return start


class Block:
    """A contiguous piece of one segment. Made by `segment` and by `split`, never directly."""

    __slots__ = (
        "address",
        "cached_since",
        "following",
        "free_key",
        "is_mapped",
        "pool",
        "previous",
        "requested_bytes",
        "size_bytes",
    )

    address: int
    size_bytes: int
    pool: Pool
    previous: Block | None
    following: Block | None
    is_mapped: bool
    free_key: int  # its place in the order of its pool; 0 while it is not free
    cached_since: int  # Pool.searches when it became free
    requested_bytes: int  # what the operator asked for; meaningful while handed out

    @classmethod
    def segment(cls, address: int, size_bytes: int, pool: Pool, *, is_mapped: bool = True) -> Block:
        """Make the one block of a new segment, not free yet."""
        block = cls()
        block.address = address
        block.size_bytes = size_bytes
        block.pool = pool
        block.previous = block.following = None
        block.is_mapped = is_mapped
        block.free_key = 0
        return block

    def split(self, size_bytes: int) -> Block:
        """Keep the first `size_bytes` and return the rest as a block of its own, behind this one."""
        rest = Block()
        rest.address = self.address + size_bytes
        rest.size_bytes = self.size_bytes - size_bytes
        rest.pool = self.pool
        rest.previous = self
        rest.following = following = self.following
        rest.is_mapped = self.is_mapped
        rest.free_key = 0
        if following is not None:
            following.previous = rest
        self.following = rest
        self.size_bytes = size_bytes
        return rest

    @property
    def is_whole_segment(self) -> bool:
        """Return whether nothing was split off, or everything was merged again."""
        return self.previous is None and self.following is None

    def absorb(self, following: Block) -> None:
        """Grow over the next block of the segment, which ends to exist."""
        self.size_bytes += following.size_bytes
        self.following = beyond = following.following
        if beyond is not None:
            beyond.previous = self


class Pool:
    """Free blocks that may serve one kind of request: smallest first, then lowest address.

    A request for another stream, or of a CUDA graph's own pool, would use
    another `Pool`; segments of different pools never mix.
    """

    __slots__ = ("_keys", "blocks", "searches", "splits_above_bytes", "splits_below_bytes")

    def __init__(self, *, splits_above_bytes: int, splits_below_bytes: int = UNLIMITED_BYTES) -> None:
        """Make an empty pool.

        Args:
            splits_above_bytes: A block is split only if more than this is left over.
            splits_below_bytes: A block is split only for requests below this.
        """
        # Order of `blocks`: size << 64 | address. One integer compares faster than a pair.
        self._keys: list[int] = []
        self.blocks: list[Block] = []
        self.searches = 0
        self.splits_above_bytes = splits_above_bytes
        self.splits_below_bytes = splits_below_bytes

    def best_fit(self, size_bytes: int) -> int:
        """Return the place in `blocks` of the smallest that is large enough; their number if none is."""
        return bisect_left(self._keys, size_bytes << _ADDRESS_BITS)

    def take_fit(self, size_bytes: int, below_bytes: int) -> Block | None:
        """Remove and return the smallest free block that is large enough, if it is below `below_bytes`."""
        self.searches += 1
        keys, blocks = self._keys, self.blocks
        index = bisect_left(keys, size_bytes << _ADDRESS_BITS)
        if index == len(keys):
            return None
        block = blocks[index]
        if block.size_bytes >= below_bytes:
            return None
        del keys[index], blocks[index]
        block.free_key = 0
        return block

    def put(self, block: Block) -> None:
        """Add a block that became free, as it is."""
        block.free_key = key = block.size_bytes << _ADDRESS_BITS | block.address
        block.cached_since = self.searches
        index = bisect_left(self._keys, key)
        self._keys.insert(index, key)
        self.blocks.insert(index, block)

    def remove(self, block: Block) -> None:
        """Remove a free block."""
        index = bisect_left(self._keys, block.free_key)
        del self._keys[index], self.blocks[index]
        block.free_key = 0

    def put_merged(self, block: Block) -> Block:
        """Add a block that became free, merged with the free blocks on either side; return the whole."""
        keys, blocks = self._keys, self.blocks
        following, previous = block.following, block.previous
        if following is not None and following.free_key:
            index = bisect_left(keys, following.free_key)
            del keys[index], blocks[index]
            block.absorb(following)
        if previous is not None and previous.free_key:
            index = bisect_left(keys, previous.free_key)
            del keys[index], blocks[index]
            previous.absorb(block)
            block = previous
        block.free_key = key = block.size_bytes << _ADDRESS_BITS | block.address
        block.cached_since = self.searches
        index = bisect_left(keys, key)
        keys.insert(index, key)
        blocks.insert(index, block)
        return block
