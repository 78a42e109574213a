"""Samples as compact columns: whole numbers, differences, byte planes, deflate.

A chunk holds the ticks of one lane over some seconds: one column of times, and one
column per series that was read meanwhile. A series may begin after the first tick and
end before the last. Differences of what is sampled are small, and splitting them into
byte planes puts all the zeros side by side, so that deflate removes them. Nothing here
needs more than the standard library, since the sampler has to stay small.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

MISSING = -1  # a value that could not be read at this tick; every real value is zero or more
# Runs of equal bytes are all there is to find in byte planes of differences; a small window keeps deflate's
# tables, which are set up for each chunk, in the processor's cache.
_DEFLATE = (
    1,
    zlib.DEFLATED,
    12,
    5,
    zlib.Z_RLE,
)  # level, method, window of 2^12 bytes, memory level, strategy
_FIRST, _HIGHEST_BIT = bytes(8), bytes(7) + b"\x80"
_HEAD = Struct("<III")  # number of series, of ticks, of values
_ENTRY = Struct("<III")  # series, index of its first tick, number of its values


class Column(NamedTuple):
    """The values of one series within a chunk: value `i` belongs to tick `first + i`."""

    series: int
    first: int
    values: array[int]


class Chunk(NamedTuple):
    """The ticks of one lane over a span: times in microseconds of the run, and what was read at them."""

    times_us: array[int]
    columns: tuple[Column, ...]


def pack(times_us: Sequence[int], columns: Iterable[Column]) -> bytes:
    """Return one chunk as bytes; a checksum is part of it."""
    kept = [column for column in columns if column.values]
    count = sum(len(column.values) for column in kept)
    head = [_HEAD.pack(len(kept), len(times_us), count)]
    head += [_ENTRY.pack(column.series, column.first, len(column.values)) for column in kept]
    raw = _differences([array("q", times_us), *(column.values for column in kept)])
    deflate = zlib.compressobj(*_DEFLATE)
    return deflate.compress(b"".join([*head, *(raw[plane::8] for plane in range(8))])) + deflate.flush()


def _differences(columns: list[array[int]]) -> bytes:
    """Return all columns behind each other, each value less the one before it, as 64-bit little-endian numbers.

    All are subtracted at once, as the lanes of two long integers: the highest bit of each lane is set in what
    is subtracted from and cleared in what is subtracted, so that nothing is borrowed from the lane beside it,
    and put right afterwards (Knuth, The Art of Computer Programming 4A, 7.1.3, on broadword arithmetic).
    """
    pieces = [_little_endian(values) for values in columns]
    before = [part for piece in pieces if piece for part in (_FIRST, piece[:-8])]
    lanes = sum(map(len, columns))
    values = int.from_bytes(b"".join(pieces), "little")
    previous = int.from_bytes(b"".join(before), "little")
    highest = int.from_bytes(_HIGHEST_BIT * lanes, "little")
    apart = (values | highest) - (previous & ~highest)
    return (apart ^ ((values ^ previous ^ highest) & highest)).to_bytes(8 * lanes, "little")


def _little_endian(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values = array("q", values)
        values.byteswap()
    return values.tobytes()


def unpack(blob: bytes) -> Chunk:
    """Return the chunk that `pack` made.

    Raises:
        ValueError: The bytes are damaged.
    """
    try:
        data = zlib.decompress(blob)
        series_count, ticks, count = _HEAD.unpack_from(data)
        body = _HEAD.size + series_count * _ENTRY.size
        planes, total = data[body:], ticks + count
        if len(planes) != 8 * total:
            raise ValueError("a chunk of samples has another length than it says")
        raw = bytearray(8 * total)
        for plane in range(8):
            raw[plane::8] = planes[plane * total : (plane + 1) * total]
        differences = array("q", bytes(raw))
        if sys.byteorder == "big":
            differences.byteswap()
        columns, at = [], ticks
        for entry in _ENTRY.iter_unpack(data[_HEAD.size : body]):
            series, first, length = entry
            columns.append(Column(series, first, array("q", accumulate(differences[at : at + length]))))
            at += length
        return Chunk(array("q", accumulate(differences[:ticks])), tuple(columns))
    except (zlib.error, OverflowError) as error:
        raise ValueError(f"a chunk of samples is damaged: {error}") from error
    except Exception as error:  # struct.error, and whatever odd lengths lead to
        raise ValueError(f"a chunk of samples is damaged: {error}") from error
