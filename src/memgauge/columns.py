"""Samples as compact columns: whole numbers, differences, byte planes, deflate.

A chunk holds the ticks of one lane over some seconds: one column of times, and one
column per series that was read meanwhile. A series may begin after the first tick and
end before the last. Differences of what is sampled are small, and splitting them into
byte planes puts all the zeros side by side, so that deflate removes them. A chunk that
grows is written again and again: it is plain, which takes a third of the time. Nothing
here needs more than the standard library, since the sampler has to stay small.
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
# Level, method, window of 2^12 bytes, memory level, strategy:
_DEFLATE = (1, zlib.DEFLATED, 12, 5, zlib.Z_RLE)
_FIRST, _HIGHEST_BIT = bytes(8), bytes(7) + b"\x80"
_PLAIN = b"\0"  # begins a chunk that is not deflated, before its checksum (zlib.crc32); no zlib stream does
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


def pack(
    times_us: Sequence[int], columns: Iterable[tuple[int, int, array[int]]], *, deflated: bool = True
) -> bytes:
    """Return one chunk as bytes; a checksum is part of it.

    Args:
        times_us: Of its ticks.
        columns: What was read at them, as of `Column`; those without values are left out.
        deflated: Whether it is to be small, rather than quickly made.
    """
    kept = [column for column in columns if column[2]]
    entries: list[int] = []  # of each series: its number, index of its first tick, number of its values
    for series, first, values in kept:
        entries += (series, first, len(values))
    counts = (len(kept), len(times_us), sum(entries[2::3]))
    head = _little_endian(array("I", (*counts, *entries)))
    numbers = [_little_endian(values) for values in (array("q", times_us), *(c[2] for c in kept))]
    if not deflated:
        data = b"".join([head, *numbers])
        return _PLAIN + zlib.crc32(data).to_bytes(4, "little") + data
    raw = _differences([values.tobytes() for values in numbers])
    deflate = zlib.compressobj(*_DEFLATE)
    return deflate.compress(b"".join([head, *(raw[plane::8] for plane in range(8))])) + deflate.flush()


def _differences(pieces: list[bytes]) -> bytes:
    """Return columns of 64-bit little-endian numbers behind each other, each number less the one before it.

    All are subtracted at once, as the lanes of two long integers: the highest bit of each lane is set in what
    is subtracted from and cleared in what is subtracted, so that nothing is borrowed from the lane beside it,
    and put right afterwards (Knuth, The Art of Computer Programming 4A, 7.1.3, on broadword arithmetic).
    """
    before = [part for piece in pieces if piece for part in (_FIRST, piece[:-8])]
    joined = b"".join(pieces)
    lanes = len(joined) // 8
    values = int.from_bytes(joined, "little")
    previous = int.from_bytes(b"".join(before), "little")
    highest = int.from_bytes(_HIGHEST_BIT * lanes, "little")
    apart = (values | highest) - (previous & ~highest)
    return (apart ^ ((values ^ previous ^ highest) & highest)).to_bytes(8 * lanes, "little")


def _little_endian(values: array[int]) -> array[int]:
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    return values


def unpack(blob: bytes) -> Chunk:
    """Return the chunk that `pack` made.

    Raises:
        ValueError: The bytes are damaged.
    """
    try:
        is_plain = blob[:1] == _PLAIN
        data = blob[5:] if is_plain else zlib.decompress(blob)
        if is_plain and zlib.crc32(data).to_bytes(4, "little") != blob[1:5]:
            raise ValueError("a chunk of samples is damaged: its checksum is another")
        series_count, ticks, count = _HEAD.unpack_from(data)
        body = _HEAD.size + series_count * _ENTRY.size
        numbers = _numbers(data[body:], ticks + count, is_plain=is_plain)
        columns, at = [], ticks
        for series, first, length in _ENTRY.iter_unpack(data[_HEAD.size : body]):
            columns.append(Column(series, first, _values(numbers[at : at + length], is_plain=is_plain)))
            at += length
        return Chunk(_values(numbers[:ticks], is_plain=is_plain), tuple(columns))
    except (zlib.error, OverflowError) as error:
        raise ValueError(f"a chunk of samples is damaged: {error}") from error
    except Exception as error:  # struct.error, and whatever odd lengths lead to
        raise ValueError(f"a chunk of samples is damaged: {error}") from error


def _numbers(data: bytes, total: int, *, is_plain: bool) -> array[int]:
    """Return so many 64-bit numbers, from byte planes unless they are plain."""
    if len(data) != 8 * total:
        raise ValueError("a chunk of samples has another length than it says")
    raw = bytearray(data)
    if not is_plain:
        for plane in range(8):
            raw[plane::8] = data[plane * total : (plane + 1) * total]
    numbers = array("q", bytes(raw))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _values(numbers: array[int], *, is_plain: bool) -> array[int]:
    return numbers if is_plain else array("q", accumulate(numbers))
