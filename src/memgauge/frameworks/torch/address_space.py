"""Address space for phantom tensors to point at: reserved, never touched, never resident."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache

# Of no consequence: phantoms may overlap, since nothing is read from them or written to them.
_SIZE = 2**40


class AddressSpace:
    """Reserved memory for phantoms to point at: readable as zeros, resident only if written."""

    def __init__(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        size = _SIZE
        while True:
            try:
                self._map = mmap.mmap(-1, size, flags=flags)
                break
            except (OSError, ValueError, OverflowError):
                size //= 4  # a limited address space (ulimit -v); phantoms overlap sooner
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._size = size
        self._next = 0

    def place(self, size: int) -> int:
        """Return an address for `size` bytes, 64-byte aligned like torch's CPU allocator."""
        if self._next + size > self._size:
            self._next = 0
        address = self._base + self._next
        self._next += (size + 63) & ~63
        return address


def storage_bytes(shape: tuple[int, ...], stride: tuple[int, ...], itemsize: int) -> int:
    """Return the bytes that `empty_strided(shape, stride)` asks for."""
    extent = 1
    for size, step in zip(shape, stride, strict=True):
        if size == 0:
            return 0
        extent += (size - 1) * step
    return extent * itemsize


@cache
def address_space() -> AddressSpace:
    """Return the one of this process; it stays, since a program may keep a phantom beyond its trace."""
    return AddressSpace()
