"""Two accounts side by side: what differs, by how much, and what explains most of it."""

from __future__ import annotations

import msgspec
from accounts import HELD, estimate, layer, measurement, phase
from hypothesis import given
from hypothesis import strategies as st

from memgauge.explain.compare import compare, side_names
from memgauge.records import AtPeak, Peak
from memgauge.units import MIB


def test_a_difference_is_a_minus_b_and_a_percentage_is_of_b() -> None:
    result = compare(estimate(allocated_bytes=20 * MIB), measurement())
    row = next(row for row in result.kinds if row.name == "allocated")
    assert (row.a_bytes, row.b_bytes) == (20 * MIB, 16 * MIB)
    assert row.difference_bytes == 4 * MIB
    assert row.percent_of_b == 25.0


def test_kinds_keep_their_order_and_ranges_are_kept_whole() -> None:
    result = compare(estimate(), measurement())
    assert [row.name for row in result.kinds] == [
        "requested",
        "allocated",
        "reserved",
        "tensor",
        "device",
        "host",
    ]
    host = result.kinds[-1]
    assert host.a_range is not None
    assert (host.a_range.low, host.a_bytes, host.b_bytes) == (310 * MIB, 353 * MIB, 350 * MIB)


def test_what_one_side_does_not_know_stays_unknown_and_says_why() -> None:
    reserved = compare(estimate(), measurement()).kinds[2]
    assert (reserved.a_bytes, reserved.difference_bytes, reserved.percent_of_b) == (None, None, None)
    assert reserved.a_unknown == "torch keeps no reserve on the CPU"


def test_nothing_to_compare_with_has_no_percentage() -> None:
    result = compare(estimate(), measurement(allocated_bytes=0, held={}))
    assert {row.percent_of_b for row in result.categories} == {None}


def test_categories_are_sorted_by_the_largest_difference() -> None:
    held = {**HELD, "gradient": 3 * MIB, "temporary": 5 * MIB}
    result = compare(estimate(held=held, allocated_bytes=20 * MIB), measurement())
    assert [(row.name, row.difference_bytes) for row in result.categories] == [
        ("temporary", 5 * MIB),
        ("gradient", -MIB),
        ("parameter", 0),
        ("activation", 0),
    ]


def test_a_category_that_is_not_listed_holds_nothing() -> None:
    held = {**HELD, "temporary": MIB}
    result = compare(estimate(held=held, allocated_bytes=17 * MIB), measurement())
    assert (result.categories[0].name, result.categories[0].b_bytes) == ("temporary", 0)


def test_of_an_unknown_peak_no_category_and_no_layer_is_known() -> None:
    result = compare(estimate(), measurement(allocated_bytes=None, held={}))
    assert {row.b_bytes for row in (*result.categories, *result.layers)} == {None}
    assert {row.difference_bytes for row in (*result.categories, *result.layers)} == {None}


def test_phases_keep_their_order_and_the_steady_step_is_last() -> None:
    longer = (*measurement().phases[:-1], phase("step 4 forward", 13), phase("steady step", 16))
    result = compare(estimate(), measurement(phases=longer))
    assert [row.name for row in result.phases] == [p.name for p in longer]
    assert result.phases[-2].a_bytes is None


def test_layers_are_compared_at_the_peak_and_at_their_own_highest() -> None:
    other = (layer("encoder", parameter=2, gradient=2, activation=1, peak_mib=10),)
    result = compare(estimate(), measurement(layers=other, held={**HELD, "activation": MIB}))
    decoder, encoder = result.layers
    assert (decoder.name, decoder.b_bytes, decoder.difference_bytes) == ("decoder", 0, 6 * MIB)
    assert (encoder.name, encoder.difference_bytes) == ("encoder", 5 * MIB)
    assert (encoder.a_peak_bytes, encoder.b_peak_bytes) == (12 * MIB, 10 * MIB)
    assert encoder.peak_difference_bytes == 2 * MIB


def test_the_gap_names_the_category_and_the_layer_that_explain_most() -> None:
    more = (layer("encoder", parameter=2, gradient=2, activation=10), estimate().layers[1])
    a = estimate(held={**HELD, "activation": 12 * MIB}, allocated_bytes=20 * MIB, layers=more)
    assert compare(a, measurement()).gap == (
        "Peak allocated of the estimate is +4.00 MiB (+25.0 %) against the measurement: "
        "activation explains most of it (+4.00 MiB), by layer encoder (+4.00 MiB)."
    )


def test_the_gap_is_explained_in_its_own_direction() -> None:
    held = {"parameter": 9 * MIB, "gradient": 0, "activation": MIB}  # +5, -4, -7
    gap = compare(estimate(held=held, allocated_bytes=10 * MIB), measurement()).gap
    assert "-6.00 MiB" in gap
    assert "activation explains most of it (-7.00 MiB)" in gap


def test_the_gap_says_when_the_two_peak_at_different_moments() -> None:
    moved = AtPeak(phase="step 2 forward", operator="", layer="", categories=HELD)
    gap = compare(estimate(allocated_bytes=17 * MIB), measurement(at_peak=moved)).gap
    assert gap.endswith("; the estimate peaks in step 1 backward, the measurement in step 2 forward.")


def test_equal_peaks_are_called_equal() -> None:
    gap = compare(estimate(), estimate()).gap
    assert gap == "Peak allocated is equal to the byte, 16.00 MiB, and so is every category."


def test_equal_peaks_of_other_categories_are_not_passed_over() -> None:
    held = {**HELD, "activation": 7 * MIB, "temporary": MIB}
    gap = compare(estimate(held=held), estimate()).gap
    assert "but not its categories" in gap
    assert "activation -1.00 MiB (-12.5 %)" in gap


def test_an_unknown_peak_is_named_with_its_reason() -> None:
    b = measurement(
        peak=Peak(requested_bytes=None, allocated_bytes=None),
        unknown={"peak.allocated_bytes": "the observed run died"},
    )
    assert compare(estimate(), b).gap == (
        "The peaks cannot be compared: the measurement has none (the observed run died)."
    )


def test_what_is_not_equal_in_the_set_ups_is_named() -> None:
    b = measurement(
        threads=4,
        steps=5,
        workload={"target": "train.py:my_training", "arguments": {"batch_size": 64}, "image_size": (32, 32)},
        versions={"torch": "2.12.0"},
    )
    assert compare(estimate(), b).differs == (
        "steps: 3 against 5",
        "threads: 2 against 4",
        "batch_size: 32 against 64",
        "torch: 2.13.0 against 2.12.0",
    )


def test_equal_set_ups_differ_in_nothing_even_after_a_way_through_json() -> None:
    encoded = msgspec.json.encode(estimate())
    again = msgspec.json.decode(encoded, type=type(estimate()))
    assert compare(estimate(), again).differs == ()


def test_a_run_that_died_is_named_with_its_last_line() -> None:
    b = measurement(ended="Traceback:\n  line 3\nRuntimeError: boom")
    assert compare(estimate(), b).differs == ("measurement did not complete: RuntimeError: boom",)


def test_sides_of_one_kind_are_called_a_and_b() -> None:
    assert side_names(estimate(), measurement()) == ("estimate", "measurement")
    assert side_names(measurement(), measurement()) == ("A", "B")


amounts = st.dictionaries(
    st.sampled_from(["parameter", "gradient", "activation", "workspace", "unattributed"]),
    st.integers(min_value=0, max_value=2**40),
)


@given(amounts, amounts)
def test_differences_of_categories_add_up_to_that_of_the_peaks(
    of_a: dict[str, int], of_b: dict[str, int]
) -> None:
    a_bytes, b_bytes = sum(of_a.values()), sum(of_b.values())
    a = estimate(held=of_a, allocated_bytes=a_bytes)
    b = measurement(held=of_b, allocated_bytes=b_bytes)
    result = compare(a, b)
    known = [row.difference_bytes for row in result.categories if row.difference_bytes is not None]
    if (of_a or not a_bytes) and (of_b or not b_bytes):
        assert sum(known) == a_bytes - b_bytes
    sizes = [abs(d) for d in known]
    assert sizes == sorted(sizes, reverse=True)
    assert result.gap.endswith(".")
