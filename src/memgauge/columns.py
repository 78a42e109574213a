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
from itertools import accumulate, chain
from operator import sub
from struct import Struct
from typing import NamedTuple

MISSING = -1  # a value that could not be read at this tick; every real value is zero or more
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
    joined, starts = array("q", times_us), []
    for column in kept:
        starts.append(len(joined))
        joined.extend(column.values)
    differences = array("q", map(sub, joined, chain((0,), joined)))  # in one pass: there may be many columns
    for start in starts:
        differences[start] = joined[start]
    if sys.byteorder == "big":
        differences.byteswap()
    raw = differences.tobytes()
    return zlib.compress(b"".join([*head, *(raw[plane::8] for plane in range(8))]), 1)


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
