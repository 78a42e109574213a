"""The rules of PyTorch's CUDA allocator on traces whose sums a reader can do in the head."""

from __future__ import annotations

import pickle

import pytest

from memgauge.allocators import cpu
from memgauge.allocators.blocks import Block
from memgauge.allocators.cuda_caching import CudaCachingAllocator, replay, round_request
from memgauge.allocators.replay import OutOfMemory
from memgauge.allocators.settings import CudaSettings, parse_cuda_settings
from memgauge.errors import TraceError
from memgauge.records import MemoryEvent, Timeline
from memgauge.units import KIB, MIB

EXPANDABLE = CudaSettings(expandable_segments=True)


def trace(*changes: tuple[str, int]) -> list[MemoryEvent]:
    """Return events from (name, bytes) pairs; a negative number releases."""
    storages: dict[str, int] = {}
    return [
        MemoryEvent(storages.setdefault(name, len(storages)), change_bytes, "", "", "")
        for name, change_bytes in changes
    ]


def reserved(timeline: Timeline) -> list[int]:
    """Return the reserved bytes after each event."""
    assert timeline.reserved_bytes is not None
    return list(timeline.reserved_bytes)


def allocate(allocator: CudaCachingAllocator, *sizes_bytes: int) -> list[Block]:
    """Return one block for each size; none may be refused."""
    blocks = [allocator.allocate(size_bytes) for size_bytes in sizes_bytes]
    assert None not in blocks
    return [block for block in blocks if block is not None]


# --- rounding


@pytest.mark.parametrize(
    ("requested_bytes", "block_bytes"), [(1, 512), (511, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512)]
)
def test_requests_are_rounded_up_to_512_bytes(requested_bytes: int, block_bytes: int) -> None:
    assert round_request(requested_bytes) == block_bytes


@pytest.mark.parametrize(
    ("requested_bytes", "block_bytes"),
    [
        (1024 * MIB, 1024 * MIB),  # a power of two stays
        (1024 * MIB + 1, 1280 * MIB),  # else the next quarter of the way to the next one
        (1200 * MIB, 1280 * MIB),
        (1793 * MIB, 2048 * MIB),
        (2048, 2048),  # 512 x 4: up to here plain rounding
        (2049, 2560),
        (1537, 2048),
    ],
)
def test_four_divisions_round_to_quarters_of_a_power_of_two(requested_bytes: int, block_bytes: int) -> None:
    assert round_request(requested_bytes, (4,) * 16) == block_bytes


def test_each_power_of_two_has_its_own_divisions() -> None:
    divisions = parse_cuda_settings("roundup_power2_divisions:[256:1,512:2,>:4]").roundup_power2_divisions
    assert round_request(300 * MIB + 1, divisions) == 300 * MIB + 512  # 1: no rounding
    assert round_request(600 * MIB, divisions) == 768 * MIB  # 2: halves
    assert round_request(1100 * MIB, divisions) == 1280 * MIB  # 4: quarters


# --- segments


@pytest.mark.parametrize(
    ("requested_bytes", "segment_bytes"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (25 * MIB, 26 * MIB),
    ],
)
def test_a_first_request_obtains_one_segment(requested_bytes: int, segment_bytes: int) -> None:
    timeline = replay(trace(("a", requested_bytes)))
    assert reserved(timeline) == [segment_bytes]
    assert list(timeline.requested_bytes) == [requested_bytes]


def test_one_byte_takes_a_block_of_512() -> None:
    assert list(replay(trace(("a", 1))).allocated_bytes) == [512]


def test_large_segment_size_replaces_20_mib() -> None:
    settings = parse_cuda_settings("large_segment_size_mb:32")
    assert reserved(replay(trace(("a", 3 * MIB), ("b", 30 * MIB)), settings)) == [32 * MIB, 62 * MIB]


def test_small_and_large_requests_never_share_a_segment() -> None:
    timeline = replay(trace(("large", 2 * MIB), ("small", 512)))
    assert reserved(timeline) == [20 * MIB, 22 * MIB]


def test_released_memory_stays_reserved_and_serves_the_next_request() -> None:
    timeline = replay(trace(("a", 30 * MIB), ("a", -30 * MIB), ("b", 30 * MIB)))
    assert list(timeline.allocated_bytes) == [30 * MIB, 0, 30 * MIB]
    assert reserved(timeline) == [30 * MIB] * 3


def test_requests_fill_a_shared_segment_one_behind_the_other() -> None:
    first, second, third = allocate(CudaCachingAllocator(), 2 * MIB, 3 * MIB, 4 * MIB)
    assert (second.address - first.address, third.address - first.address) == (2 * MIB, 5 * MIB)


# --- choosing a block


def test_the_smallest_sufficient_free_block_is_taken() -> None:
    allocator = CudaCachingAllocator()
    large, middle, _, small = allocate(allocator, 40 * MIB, 16 * MIB, 12 * MIB, 10 * MIB)
    for block in (large, middle, small):
        allocator.free(block)
    assert allocator.allocate(13 * MIB) is middle


def test_among_equals_the_segment_obtained_first_is_taken() -> None:
    allocator = CudaCachingAllocator()
    first, second = allocate(allocator, 12 * MIB, 12 * MIB)
    allocator.free(second)
    allocator.free(first)
    assert allocator.allocate(12 * MIB) is first


def test_a_rest_of_at_most_1_mib_is_not_split_off_and_counts_as_allocated() -> None:
    timeline = replay(trace(("a", 12 * MIB), ("a", -12 * MIB), ("b", 11 * MIB + 100 * KIB)))
    assert list(timeline.allocated_bytes) == [12 * MIB, 0, 12 * MIB]
    assert timeline.block_bytes == {0: 12 * MIB, 1: 12 * MIB}
    assert timeline.requested_bytes[-1] == 11 * MIB + 100 * KIB


def test_a_rest_of_more_than_1_mib_is_split_off_and_used() -> None:
    timeline = replay(trace(("a", 12 * MIB), ("a", -12 * MIB), ("b", 10 * MIB), ("c", 2 * MIB)))
    assert timeline.block_bytes == {0: 12 * MIB, 1: 10 * MIB, 2: 2 * MIB}
    assert reserved(timeline)[-1] == 12 * MIB


def test_a_small_block_is_split_down_to_512_bytes() -> None:
    timeline = replay(trace(("a", MIB), ("b", MIB - 512), ("c", 512)))
    assert timeline.block_bytes == {0: MIB, 1: MIB - 512, 2: 512}
    assert reserved(timeline)[-1] == 2 * MIB


def test_released_neighbours_merge_in_any_order() -> None:
    allocator = CudaCachingAllocator()
    first, second, third = allocate(allocator, 4 * MIB, 4 * MIB, 4 * MIB)
    for block in (first, third, second):
        allocator.free(block)
    assert [(block.size_bytes, block.is_whole_segment) for block in allocator.free_blocks()] == [
        (20 * MIB, True)
    ]


def test_a_block_in_use_keeps_its_neighbours_apart() -> None:
    timeline = replay(
        trace(
            ("a", 8 * MIB), ("b", 4 * MIB), ("c", 8 * MIB), ("a", -8 * MIB), ("c", -8 * MIB), ("d", 16 * MIB)
        )
    )
    assert reserved(timeline) == [20 * MIB] * 5 + [36 * MIB]


# --- max_split_size_mb


def test_blocks_of_max_split_size_are_kept_for_large_requests() -> None:
    settings = parse_cuda_settings("max_split_size_mb:40")
    changes = trace(("a", 60 * MIB), ("a", -60 * MIB), ("b", 30 * MIB), ("c", 45 * MIB))
    timeline = replay(changes, settings)
    assert timeline.block_bytes == {
        0: 60 * MIB,
        1: 30 * MIB,
        2: 60 * MIB,
    }  # b: a segment of its own; c: unsplit
    assert reserved(timeline) == [60 * MIB, 60 * MIB, 90 * MIB, 90 * MIB]
    assert reserved(replay(changes)) == [60 * MIB, 60 * MIB, 60 * MIB, 60 * MIB + 46 * MIB]


def test_an_oversize_block_is_not_used_where_20_mib_would_be_wasted() -> None:
    settings = parse_cuda_settings("max_split_size_mb:40")
    changes = [("a", 60 * MIB), ("a", -60 * MIB), ("b", 40 * MIB)]
    assert reserved(replay(trace(*changes), settings))[-1] == 100 * MIB
    assert reserved(replay(trace(*changes[:2], ("b", 40 * MIB + 512)), settings))[-1] == 60 * MIB
    wider = parse_cuda_settings("max_split_size_mb:40,max_non_split_rounding_mb:21")
    assert reserved(replay(trace(*changes), wider))[-1] == 60 * MIB


# --- out of memory


def test_cached_segments_are_given_back_where_the_device_is_full() -> None:
    changes = trace(("a", 30 * MIB), ("b", 30 * MIB), ("a", -30 * MIB), ("c", 40 * MIB))
    assert reserved(replay(changes)) == [30 * MIB, 60 * MIB, 60 * MIB, 100 * MIB]
    assert reserved(replay(changes, capacity_bytes=80 * MIB)) == [30 * MIB, 60 * MIB, 60 * MIB, 70 * MIB]


def test_a_segment_with_a_block_in_use_cannot_be_given_back() -> None:
    changes = trace(("a", 8 * MIB), ("b", 2 * MIB), ("a", -8 * MIB), ("c", 30 * MIB))
    with pytest.raises(OutOfMemory) as caught:
        replay(changes, capacity_bytes=49 * MIB)
    error = caught.value
    assert (error.event_index, error.requested_bytes) == (3, 30 * MIB)
    assert (error.allocated_bytes, error.reserved_bytes) == (2 * MIB, 20 * MIB)
    assert reserved(error.timeline) == [20 * MIB] * 3
    assert str(error) == (
        "out of memory at event 3: 30.00 MiB on top of 2.00 MiB allocated and 20.00 MiB reserved"
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_everything_fits_exactly_into_the_capacity() -> None:
    assert reserved(replay(trace(("a", 30 * MIB), ("b", 10 * MIB)), capacity_bytes=40 * MIB)) == [
        30 * MIB,
        40 * MIB,
    ]
    with pytest.raises(OutOfMemory):
        replay(trace(("a", 1)), capacity_bytes=0)


def test_with_max_split_size_one_sufficient_block_is_given_back_before_all() -> None:
    settings = parse_cuda_settings("max_split_size_mb:40")
    changes = trace(
        ("small", 30 * MIB), ("small", -30 * MIB), ("large", 90 * MIB), ("large", -90 * MIB), ("c", 60 * MIB)
    )
    assert (
        reserved(replay(changes, settings, capacity_bytes=120 * MIB))[-1] == 90 * MIB
    )  # small is still cached
    assert reserved(replay(changes, capacity_bytes=120 * MIB))[-1] == 120 * MIB  # 90 MiB block split


def test_with_max_split_size_several_blocks_are_given_back_largest_first() -> None:
    settings = parse_cuda_settings("max_split_size_mb:40")
    sizes = {"a": 40 * MIB, "b": 50 * MIB, "c": 60 * MIB}
    changes = trace(*sizes.items(), *((name, -size) for name, size in sizes.items()), ("d", 100 * MIB))
    timeline = replay(changes, settings, capacity_bytes=150 * MIB)
    assert reserved(timeline)[-1] == 140 * MIB  # c and b are gone, a stays


def test_a_memory_fraction_is_a_limit_of_its_own() -> None:
    settings = parse_cuda_settings("per_process_memory_fraction:0.5")
    changes = trace(("a", 30 * MIB), ("a", -30 * MIB), ("b", 40 * MIB))
    assert reserved(replay(changes, settings, 90 * MIB, total_bytes=100 * MIB)) == [
        30 * MIB,
        30 * MIB,
        40 * MIB,
    ]
    with pytest.raises(OutOfMemory):
        replay(trace(("a", 50 * MIB + 1)), settings, 90 * MIB, total_bytes=100 * MIB)


# --- garbage collection


GC_CHANGES = trace(
    ("a", 10 * MIB),
    ("b", 20 * MIB),
    ("a", -10 * MIB),
    ("x", 12 * MIB),  # three more searches: a grows old, b stays young
    ("y", 14 * MIB),
    ("z", 16 * MIB),
    ("b", -20 * MIB),
    ("c", 30 * MIB),
)


def test_garbage_collection_gives_back_the_segment_unused_for_longest() -> None:
    settings = parse_cuda_settings("garbage_collection_threshold:0.5,per_process_memory_fraction:0.99")
    # allowed 138.6 MiB, collected above 69.3: of 72 MiB reserved 2.7 are too many, and a's 10 MiB are enough.
    timeline = replay(GC_CHANGES, settings, capacity_bytes=140 * MIB)
    assert reserved(timeline)[-2:] == [72 * MIB, 92 * MIB]


def test_garbage_collection_does_nothing_without_a_memory_fraction() -> None:
    settings = parse_cuda_settings("garbage_collection_threshold:0.5")
    assert reserved(replay(GC_CHANGES, settings, capacity_bytes=140 * MIB))[-2:] == [72 * MIB, 102 * MIB]


# --- expandable segments


def test_an_expandable_segment_grows_by_pages() -> None:
    timeline = replay(trace(("a", 1), ("b", 15 * MIB), ("c", 15 * MIB), ("d", 15 * MIB)), EXPANDABLE)
    assert reserved(timeline) == [2 * MIB, 22 * MIB, 42 * MIB, 62 * MIB]
    assert reserved(replay(trace(("a", 1), ("b", 15 * MIB), ("c", 15 * MIB), ("d", 15 * MIB)))) == [
        2 * MIB,
        18 * MIB,
        34 * MIB,
        50 * MIB,
    ]


def test_an_expandable_segment_lets_a_larger_request_grow_out_of_free_blocks() -> None:
    changes = trace(("a", 40 * MIB), ("a", -40 * MIB), ("b", 44 * MIB), ("b", -44 * MIB), ("c", 48 * MIB))
    assert reserved(replay(changes, EXPANDABLE))[-1] == 60 * MIB
    assert reserved(replay(changes))[-1] == (40 + 44 + 48) * MIB


def test_any_rest_of_an_expandable_block_is_split_off() -> None:
    timeline = replay(trace(("a", 20 * MIB), ("a", -20 * MIB), ("b", 20 * MIB - 512)), EXPANDABLE)
    assert timeline.block_bytes[1] == 20 * MIB - 512


def test_a_hole_is_filled_before_the_growing_end_even_if_that_is_smaller() -> None:
    allocator = CudaCachingAllocator(EXPANDABLE)
    hole, _, _ = allocate(allocator, 16 * MIB, 14 * MIB, 2 * MIB)  # 8 MiB are left at the end of 40
    allocator.free(hole)
    (block,) = allocate(allocator, 5 * MIB)
    assert block.address == hole.address


def test_free_pages_are_unmapped_where_the_device_is_full() -> None:
    changes = trace(("a", 100 * MIB), ("b", 20 * MIB), ("a", -100 * MIB), ("c", 110 * MIB))
    # 100 MiB of free pages before b are not enough; unmapped, they come back at the end of the segment.
    assert reserved(replay(changes, EXPANDABLE, capacity_bytes=140 * MIB)) == [
        100 * MIB,
        120 * MIB,
        120 * MIB,
        140 * MIB,
    ]
    with pytest.raises(OutOfMemory):
        replay(changes, EXPANDABLE, capacity_bytes=139 * MIB)


def test_a_page_in_use_cannot_be_unmapped() -> None:
    changes = trace(("a", 30 * MIB), ("b", 2 * MIB), ("a", -30 * MIB), ("c", 1))
    # a's second page also holds b: of 40 MiB only the first 20 are given back, for a page of 2 MiB.
    assert reserved(replay(changes, EXPANDABLE, capacity_bytes=40 * MIB))[-1] == 22 * MIB


# --- traces that are none


@pytest.mark.parametrize(
    "changes",
    [
        [("a", -1)],
        [("a", 1), ("a", 1)],
        [("a", 1), ("a", -1), ("a", -1)],
        [("a", 2), ("a", -1)],
    ],
)
def test_a_storage_is_requested_once_and_released_as_requested(changes: list[tuple[str, int]]) -> None:
    for replay_any in (replay, cpu.replay):
        with pytest.raises(TraceError, match="storage 0"):
            replay_any(trace(*changes))


def test_a_request_of_nothing_gets_no_block() -> None:
    timeline = replay(trace(("a", 0), ("b", 1)))
    assert list(timeline.allocated_bytes) == [0, 512]
    assert timeline.block_bytes == {1: 512}


# --- the CPU


def test_on_the_cpu_allocated_is_requested_and_nothing_is_reserved() -> None:
    timeline = cpu.replay(trace(("a", 5), ("b", 7), ("a", -5)))
    assert list(timeline.requested_bytes) == list(timeline.allocated_bytes) == [5, 12, 7]
    assert timeline.reserved_bytes is None
    assert timeline.block_bytes == {0: 5, 1: 7}


def test_each_stream_has_pools_of_its_own() -> None:
    events = trace(("a", 30 * MIB), ("a", -30 * MIB), ("b", 30 * MIB), ("b", -30 * MIB), ("c", 30 * MIB))
    assert reserved(replay(events)) == [30 * MIB] * 5
    # b is requested on another stream and cannot have what a left; c can.
    assert reserved(replay(events, streams={1: 7})) == [30 * MIB] * 2 + [60 * MIB] * 3
    assert reserved(replay(events, EXPANDABLE, streams={1: 7}))[-1] == 80 * MIB  # two times two pages of 20
    # Near the capacity the cache of every stream is given back.
    assert reserved(replay(events, capacity_bytes=40 * MIB, streams={1: 7})) == [30 * MIB] * 5
