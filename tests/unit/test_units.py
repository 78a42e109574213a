"""Bytes to text and back."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memgauge import units
from memgauge.errors import UsageError
from memgauge.units import GIB, KIB, MIB, TIB, format_bytes, format_difference, parse_bytes


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(units).failed == 0


@pytest.mark.parametrize(
    ("count_bytes", "text"),
    [
        (None, "—"),
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (KIB, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (100 * KIB, "100.0 KiB"),
        (999 * KIB, "999.0 KiB"),
        (1000 * KIB, "1000 KiB"),
        (MIB - 1, "1.00 MiB"),
        (MIB, "1.00 MiB"),
        (GIB - 1, "1.00 GiB"),
        (24 * GIB, "24.00 GiB"),
        (3 * TIB, "3.00 TiB"),
        (-1536, "-1.50 KiB"),
    ],
)
def test_people_see_binary_units_with_four_digits_at_most(count_bytes: int | None, text: str) -> None:
    assert format_bytes(count_bytes) == text


@pytest.mark.parametrize(
    ("difference", "reference", "text"),
    [
        (None, 1, "—"),
        (1, None, "—"),
        (0, 5, "exact"),
        (0, 0, "exact"),
        (KIB, 0, "+1.00 KiB"),
        (MIB, 2 * MIB, "+1.00 MiB (+50.0 %)"),
        (-MIB, 2 * MIB, "-1.00 MiB (-50.0 %)"),
        (KIB, 10 * MIB, "+1.00 KiB (+0.010 %)"),
    ],
)
def test_a_difference_has_a_sign_and_a_percentage(
    difference: int | None, reference: int | None, text: str
) -> None:
    assert format_difference(difference, reference) == text


@pytest.mark.parametrize(
    ("text", "count_bytes"),
    [
        ("512", 512),
        ("512B", 512),
        ("1.5GiB", 3 * GIB // 2),
        ("1.5 GB", 1_500_000_000),
        ("80g", 80 * GIB),
        (" 2 kib ", 2 * KIB),
        ("1TB", 10**12),
    ],
)
def test_gb_means_a_power_of_ten_and_gib_a_power_of_two(text: str, count_bytes: int) -> None:
    assert parse_bytes(text) == count_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "1.5.2", "3 apples", "nan", "0x10"])
def test_what_is_no_amount_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="write for example 24GiB"):
        parse_bytes(text)


@given(st.integers(min_value=0, max_value=900 * TIB))
def test_what_is_shown_is_read_back_within_its_digits(count_bytes: int) -> None:
    read = parse_bytes(format_bytes(count_bytes))
    assert abs(read - count_bytes) <= count_bytes * 0.005


@given(st.integers(min_value=0, max_value=900 * TIB))
def test_no_amount_needs_more_than_nine_characters(count_bytes: int) -> None:
    assert len(format_bytes(count_bytes)) <= 9
