"""Ranges, verdicts and least capacities, on traces whose sums a reader can do in the head."""

from __future__ import annotations

import random

import pytest
from msgspec import structs

from memgauge.allocators.settings import CudaSettings, parse_cuda_settings
from memgauge.allocators.sized import replay_sized, reserved_sized, without
from memgauge.capacity import giving_way, least_reserved, runs_within
from memgauge.device_memory import device_memory, widened
from memgauge.devices import Device, Figure, libraries
from memgauge.devices.stack import Stack
from memgauge.records import Category, MemoryEvent, Range, Scratch, Trace, Uncertainty
from memgauge.units import GIB, MIB

SETTINGS = CudaSettings()


def trace(
    *changes: tuple[str, int], scratch: dict[str, Scratch] | None = None, releases: tuple[int, ...] = ()
) -> Trace:
    numbers: dict[str, int] = {}
    events = [MemoryEvent(numbers.setdefault(n, len(numbers)), size, "", "", "") for n, size in changes]
    return Trace(
        events=events,
        categories=[Category.ACTIVATION] * len(numbers),
        layers=[""] * len(numbers),
        scratch={numbers[name]: s for name, s in (scratch or {}).items()},
        cache_releases=releases,
    )


def card(capacity: int) -> Device:
    return Device(
        name="card",
        title="a card",
        kind="cuda",
        capacity_bytes=capacity,
        usable=Figure(bytes=capacity, grade="measured", source="test"),
        context=Figure(bytes=100 * MIB, grade="measured", source="test"),
    )


def reserved(of: Trace, side: str = "expected") -> int:
    return max(replay_sized(of, SETTINGS, side).reserved_bytes or ())


# Two tensors one after the other that cannot share a segment: 60 then 100 MiB.
ONE_AFTER_OTHER = trace(("a", 60 * MIB), ("a", -60 * MIB), ("b", 100 * MIB), ("b", -100 * MIB))


def test_cached_blocks_are_given_back_where_the_card_is_small() -> None:
    assert reserved(ONE_AFTER_OTHER) == 160 * MIB
    assert least_reserved(ONE_AFTER_OTHER, SETTINGS) <= 102 * MIB
    assert runs_within(ONE_AFTER_OTHER, SETTINGS, 100 * MIB) is not None
    assert runs_within(ONE_AFTER_OTHER, SETTINGS, 99 * MIB) is None


def test_a_release_of_the_cache_frees_what_is_not_in_use() -> None:
    released = trace(
        *[(n, s) for n, s in (("a", 60 * MIB), ("a", -60 * MIB), ("b", 100 * MIB))], releases=(2,)
    )
    assert reserved(released) == 100 * MIB


def test_scratch_is_replayed_at_each_of_its_sizes() -> None:
    scratch = {"w": Scratch("cublas", 12 * MIB, 40 * MIB)}
    taken = trace(("t", 30 * MIB), ("w", 20 * MIB), ("w", -20 * MIB), scratch=scratch)
    assert [reserved(taken, side) for side in ("low", "expected", "high")] == [42 * MIB, 50 * MIB, 70 * MIB]
    assert reserved(without(taken, frozenset({"cublas"}))) == 30 * MIB
    assert reserved(without(taken, frozenset({"other"}))) == 50 * MIB


def test_leaving_a_mechanism_out_keeps_the_releases_at_their_places() -> None:
    scratch = {"w": Scratch("cublas", MIB, MIB)}
    changes = (("a", 60 * MIB), ("w", MIB), ("w", -MIB), ("a", -60 * MIB), ("b", 100 * MIB))
    with_release = trace(*changes, scratch=scratch, releases=(4,))
    assert reserved(without(with_release, frozenset({"cublas"}))) == 100 * MIB
    assert reserved(without(with_release, frozenset({"cublas", "cache releases"}))) == 160 * MIB


@pytest.mark.parametrize(("architecture", "said"), [("ampere", "CUDA 13.0"), ("cdna3", "ROCm")])
def test_software_is_named_as_the_card_has_it(architecture: str, said: str) -> None:
    place = structs.replace(card(GIB), architecture=architecture)
    found = device_memory(ONE_AFTER_OTHER, place, Stack(torch=(2, 13)), SETTINGS)
    assert said in found.assumptions[0]


def test_device_memory_is_reserved_plus_context_and_says_where_its_width_is_from() -> None:
    memory = device_memory(ONE_AFTER_OTHER, card(GIB), Stack(), SETTINGS)
    assert memory.device.expected == 260 * MIB
    assert memory.device.low < 260 * MIB < memory.device.high
    assert {part.source for part in memory.uncertainty} == {"context", "workspaces", "placement"}
    assert memory.fits.verdict == "yes"


def test_the_verdict_asks_whether_it_runs_not_what_it_would_take_for_the_asking() -> None:
    # 160 MiB if nothing limits it, 100 MiB at least; the context takes 100 MiB.
    assert device_memory(ONE_AFTER_OTHER, card(256 * MIB), Stack(), SETTINGS).fits.verdict == "yes"
    assert device_memory(ONE_AFTER_OTHER, card(150 * MIB), Stack(), SETTINGS).fits.verdict == "no"
    assert device_memory(ONE_AFTER_OTHER, card(202 * MIB), Stack(), SETTINGS).fits.verdict == "uncertain"


def test_what_a_small_card_would_show_is_less_than_what_a_large_one_shows() -> None:
    small = device_memory(ONE_AFTER_OTHER, card(220 * MIB), Stack(), SETTINGS)
    assert small.device.expected <= 220 * MIB
    assert small.fits.least_capacity_bytes is not None
    assert small.fits.least_capacity_bytes.expected <= 202 * MIB


def test_independent_parts_join_by_the_root_of_squares() -> None:
    parts = tuple(
        Uncertainty(source=s, low_bytes=x, high_bytes=x, basis="") for s, x in (("a", 30), ("b", 40))
    )
    assert widened(1000, parts, at_least=0) == Range(low=950, expected=1000, high=1050)


def test_a_guessed_card_leaves_room_around_the_verdict() -> None:
    # 100 MiB and a context of 100 MiB need at most 204 MiB (95 %). On 206 MiB that somebody read they
    # surely fit; where 206 MiB are guessed, 5 MiB of them may not be there.
    known = card(206 * MIB)
    assert device_memory(ONE_AFTER_OTHER, known, Stack(), SETTINGS).fits.verdict == "yes"
    guessed = structs.replace(known, usable=Figure(bytes=206 * MIB, grade="guessed", source="test"))
    assert device_memory(ONE_AFTER_OTHER, guessed, Stack(), SETTINGS).fits.verdict == "uncertain"


def random_trace(seed: int) -> Trace:
    draw = random.Random(seed)
    changes: list[tuple[str, int]] = []
    held: dict[str, int] = {}
    for number in range(400):
        if held and draw.random() < 0.47:
            name = draw.choice(list(held))
            changes.append((name, -held.pop(name)))
        else:
            held[str(number)] = size = int(2 ** draw.uniform(10, 27))
            changes.append((str(number), size))
    scratch = {
        n: Scratch("cublas", size // 2, 2 * size) for n, size in changes if size > 0 and int(n) % 9 == 0
    }
    return trace(*changes, scratch=scratch)


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:32"])
@pytest.mark.parametrize("seed", range(6))
def test_it_runs_within_the_least_capacity_and_not_within_less_than_it_asks_for(seed: int, conf: str) -> None:
    settings, taken = parse_cuda_settings(conf), random_trace(seed)
    free = replay_sized(taken, settings, "expected")
    least = least_reserved(taken, settings)
    assert max(free.requested_bytes) <= least
    assert runs_within(taken, settings, least) is not None
    # Halving is to 1/256; below that lies a capacity that does not do, and nothing needs more than all.
    assert least <= 1.01 * max(free.reserved_bytes or ())


@pytest.mark.parametrize("side", ["low", "expected", "high"])
def test_the_short_way_to_reserved_memory_ends_where_the_replay_does(side: str) -> None:
    taken = random_trace(11)
    assert reserved_sized(taken, SETTINGS, side) == reserved(taken, side)


def test_a_share_of_the_card_is_allowed_and_none_of_it_is_enough_for_nothing() -> None:
    half = parse_cuda_settings("per_process_memory_fraction:0.5")
    assert 198 * MIB <= least_reserved(ONE_AFTER_OTHER, half) <= 206 * MIB
    none = parse_cuda_settings("per_process_memory_fraction:0.0")
    assert device_memory(ONE_AFTER_OTHER, card(GIB), Stack(), none).fits.verdict == "no"


def test_the_share_is_one_of_the_whole_card_and_limits_what_is_reserved() -> None:
    # 100 MiB of 250 are the context's. A share of 0.45 allows 112 MiB: one tensor, the other given back.
    less = parse_cuda_settings("per_process_memory_fraction:0.45")
    on_card = device_memory(ONE_AFTER_OTHER, card(250 * MIB), Stack(), less)
    assert on_card.device.expected == 200 * MIB  # 160 are reserved where all is allowed
    assert on_card.least.expected == pytest.approx(100 / 0.45 * MIB, rel=0.01)
    assert on_card.fits.verdict == "yes"
    # A share that all but the context exceeds changes nothing.
    most = parse_cuda_settings("per_process_memory_fraction:0.9")
    assert device_memory(ONE_AFTER_OTHER, card(GIB), Stack(), most).least.expected == pytest.approx(
        200 * MIB, rel=0.01
    )


def test_garbage_is_collected_where_a_share_of_the_card_is_set() -> None:
    conf = "per_process_memory_fraction:0.9,garbage_collection_threshold:0.05"
    on_card = device_memory(ONE_AFTER_OTHER, card(GIB), Stack(), parse_cuda_settings(conf))
    assert on_card.device.expected == 200 * MIB


def test_no_more_is_needed_than_what_is_taken_with_all_workspaces() -> None:
    # Six tensors of 7 MiB fit the workspace's segment of 42; without it they lie in three of 20 MiB.
    tensors = [(f"t{n}", 7 * MIB) for n in range(6)]
    scratch = {"w": Scratch(libraries.CONVOLUTION, 0, 42 * MIB)}
    taken = trace(("w", 42 * MIB), ("w", -42 * MIB), *tensors, scratch=scratch)
    assert least_reserved(giving_way(taken), SETTINGS) == 60 * MIB
    on_card = device_memory(taken, card(GIB), Stack(), SETTINGS)
    assert on_card.least.expected == on_card.device.expected == 142 * MIB


@pytest.mark.parametrize("side", ["low", "expected", "high"])
def test_sides_are_in_order(side: str) -> None:
    scratch = {"w": Scratch("cudnn convolution", 0, 64 * MIB)}
    taken = trace(("t", 30 * MIB), ("w", MIB), ("w", -MIB), scratch=scratch)
    values = [reserved(taken, s) for s in ("low", "expected", "high")]
    assert values == sorted(values)
    assert reserved(taken, side) in values


def test_a_convolutions_workspace_gives_way_where_memory_is_short() -> None:
    changes = [("a", 100 * MIB), ("w", 80 * MIB), ("w", -80 * MIB), ("a", -100 * MIB)]
    chosen = trace(*changes, scratch={"w": Scratch(libraries.CONVOLUTION, 0, 80 * MIB)})
    kept = trace(*changes, scratch={"w": Scratch(libraries.ATTENTION, 80 * MIB, 80 * MIB)})
    assert least_reserved(giving_way(chosen), SETTINGS) <= 104 * MIB
    assert least_reserved(giving_way(kept), SETTINGS) == 180 * MIB
