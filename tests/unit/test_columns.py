"""Columns of samples: what goes in comes out, whatever it is, and damage is noticed."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memgauge.columns import MISSING, Column, pack, unpack

VALUES = st.lists(st.integers(min_value=MISSING, max_value=2**62), min_size=1, max_size=40)


@given(
    st.lists(st.integers(min_value=0, max_value=2**60), max_size=40).map(sorted),
    st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 100), VALUES), max_size=6),
    st.booleans(),
)
def test_what_goes_in_comes_out(
    times: list[int], columns: list[tuple[int, int, list[int]]], deflated: bool
) -> None:
    kept = tuple(Column(s, first, array("q", values)) for s, first, values in columns)
    assert unpack(pack(times, kept, deflated=deflated)) == (array("q", times), kept)


def test_an_empty_column_is_left_out() -> None:
    assert unpack(pack([1, 2], [Column(7, 0, array("q"))])).columns == ()


@given(st.data(), st.booleans())
def test_damage_is_noticed(data: st.DataObject, deflated: bool) -> None:
    blob = pack(range(0, 100_000, 1000), [Column(1, 0, array("q", range(100)))], deflated=deflated)
    cut = data.draw(st.integers(0, len(blob) - 1))
    with pytest.raises(ValueError, match="damaged"):
        unpack(blob[:cut])
    flipped = bytearray(blob)
    flipped[data.draw(st.integers(2, len(blob) - 1))] ^= 0xFF
    with pytest.raises(ValueError, match="damaged"):
        unpack(bytes(flipped))


def test_what_hardly_changes_takes_hardly_any_room() -> None:
    # 24 hours at 10 Hz with nine processes must stay under 400 MB: less than 46 bytes per value.
    steady = array("q", [100 * 2**20 + 4096 * (i // 50) for i in range(1000)])
    blob = pack(range(0, 10**8, 10**5), [Column(s, 0, steady) for s in range(9)])
    assert len(blob) < 2 * 9 * 1000
