"""PyTorch's CachingHostAllocator: host memory that is pinned for copies to and from a GPU.

Source: ATen/core/CachingHostAllocator.h as torch 2.13.0 ships it (`allocate`, `get_free_block`, `free`), by its
default settings: sizes are rounded up to powers of two without a limit, blocks are never divided, and what was
pinned stays pinned until the cache is given back (`empty_cache`).
"""

from __future__ import annotations

from collections import Counter


class CudaHostAllocator:
    """Pinned blocks. A block that was given back counts as free at once: no copy from it is under way."""

    def __init__(self) -> None:
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self._free: Counter[int] = Counter()  # sizes of blocks

    def allocate(self, requested_bytes: int) -> int:
        """Return the size of the block that a request of at least 1 byte gets."""
        block_bytes: int = 1 << (requested_bytes - 1).bit_length()
        if self._free[block_bytes]:
            self._free[block_bytes] -= 1
        else:
            self.reserved_bytes += block_bytes
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return block_bytes

    def free(self, block_bytes: int) -> None:
        """Keep a block for the next request of its size."""
        self._free[block_bytes] += 1

    def release_cached(self) -> None:
        """Unpin every free block."""
        self.reserved_bytes -= sum(size * count for size, count in self._free.items())
        self._free.clear()
