"""What holds for PyTorch's CUDA allocator on every trace, under every setting."""

from __future__ import annotations

from itertools import pairwise

import hypothesis
from hypothesis import given
from hypothesis import strategies as st

from memgauge.allocators.blocks import Block, round_up
from memgauge.allocators.cuda_caching import (
    MIN_BLOCK_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    CudaCachingAllocator,
    replay,
    round_request,
)
from memgauge.allocators.replay import OutOfMemory
from memgauge.allocators.settings import CudaSettings, format_cuda_settings, parse_cuda_settings
from memgauge.records import MemoryEvent
from memgauge.units import KIB, MIB

sizes = st.one_of(
    st.integers(1, 8 * KIB),
    st.integers(1, SMALL_REQUEST_BYTES),
    st.integers(1 * MIB, 11 * MIB),
    st.integers(10 * MIB, 90 * MIB),
    st.sampled_from([512, 1 * MIB, 1 * MIB + 1, 10 * MIB - 1, 10 * MIB, 20 * MIB]),
)
# A positive number requests; anything else releases the storage at that place among the live ones.
steps = st.lists(st.one_of(sizes, st.integers(-100, 0)), max_size=60)
capacities = st.none() | st.integers(30 * MIB, 400 * MIB)

without_deadline = hypothesis.settings(deadline=None)  # a busy machine is no failure


@st.composite
def all_settings(draw: st.DrawFn) -> CudaSettings:
    """Return settings within torch's limits."""
    large_segment_mb = draw(st.sampled_from([20, 20, 11, 64]))
    limits = st.none() | st.integers(large_segment_mb, 128).map(lambda size_mb: size_mb * MIB)
    divisions = st.lists(st.sampled_from([0, 1, 2, 4, 8]), min_size=16, max_size=16).filter(any)
    return CudaSettings(
        max_split_bytes=draw(limits),
        large_segment_bytes=large_segment_mb * MIB,
        max_non_split_rounding_bytes=draw(limits),
        roundup_power2_divisions=draw(st.just(()) | divisions.map(tuple)),
        garbage_collection_threshold=draw(st.none() | st.floats(0.1, 0.9)),
        expandable_segments=draw(st.booleans()),
        per_process_memory_fraction=draw(st.just(1.0) | st.floats(0.1, 1.0)),
    )


def events_of(script: list[int]) -> list[MemoryEvent]:
    """Return the events that a list of steps means."""
    events: list[MemoryEvent] = []
    live: list[tuple[int, int]] = []
    requests = 0
    for step in script:
        if step > 0:
            live.append((requests, step))
            events.append(MemoryEvent(requests, step, "", "", ""))
            requests += 1
        elif live:
            storage, size_bytes = live.pop(-step % len(live))
            events.append(MemoryEvent(storage, -size_bytes, "", "", ""))
    return events


def run(allocator: CudaCachingAllocator, script: list[int]) -> list[Block]:
    """Carry out the steps as far as memory reaches and return the blocks that are still handed out."""
    live: list[Block] = []
    for step in script:
        if step > 0:
            block = allocator.allocate(step)
            if block is not None:
                live.append(block)
        elif live:
            allocator.free(live.pop(-step % len(live)))
    return live


@without_deadline
@given(steps, all_settings(), capacities)
def test_requested_allocated_reserved_and_capacity_are_in_order_at_each_event(
    script: list[int], settings: CudaSettings, capacity_bytes: int | None
) -> None:
    try:
        timeline = replay(events_of(script), settings, capacity_bytes)
    except OutOfMemory as error:
        timeline = error.timeline
    assert timeline.reserved_bytes is not None
    for requested_bytes, allocated_bytes, reserved_bytes in zip(
        timeline.requested_bytes, timeline.allocated_bytes, timeline.reserved_bytes, strict=True
    ):
        assert 0 <= requested_bytes <= allocated_bytes <= reserved_bytes
        assert capacity_bytes is None or reserved_bytes <= capacity_bytes


@without_deadline
@given(steps, all_settings(), capacities)
def test_blocks_tile_what_is_reserved_without_overlap(
    script: list[int], settings: CudaSettings, capacity_bytes: int | None
) -> None:
    allocator = CudaCachingAllocator(settings, capacity_bytes)
    live = run(allocator, script)
    blocks = sorted([*live, *allocator.free_blocks()], key=lambda block: block.address)
    for block, behind in pairwise(blocks):
        assert block.address + block.size_bytes <= behind.address
    assert sum(block.size_bytes for block in blocks) == allocator.reserved_bytes
    assert sum(block.size_bytes for block in live) == allocator.allocated_bytes
    assert all(block.address % MIN_BLOCK_BYTES == 0 for block in blocks)


@without_deadline
@given(steps, all_settings(), capacities)
def test_everything_released_merges_to_whole_segments_and_can_be_given_back(
    script: list[int], settings: CudaSettings, capacity_bytes: int | None
) -> None:
    allocator = CudaCachingAllocator(settings, capacity_bytes)
    for block in run(allocator, script):
        allocator.free(block)
    assert allocator.allocated_bytes == 0
    if not settings.expandable_segments:
        assert all(block.is_whole_segment for block in allocator.free_blocks())
    allocator.release_cached()
    assert allocator.reserved_bytes == 0
    assert list(allocator.free_blocks()) == []


@without_deadline
@given(steps, all_settings(), capacities)
def test_free_neighbours_are_always_merged(
    script: list[int], settings: CudaSettings, capacity_bytes: int | None
) -> None:
    allocator = CudaCachingAllocator(settings, capacity_bytes)
    run(allocator, script)
    free = {id(block) for block in allocator.free_blocks()}
    assert not any(id(block.following) in free for block in allocator.free_blocks())


@without_deadline
@given(steps, sizes)
def test_the_smallest_then_lowest_sufficient_block_of_the_pool_is_taken(
    script: list[int], requested_bytes: int
) -> None:
    allocator = CudaCachingAllocator()
    run(allocator, script)
    in_small_pool = allocator.allocate(1)
    assert in_small_pool is not None
    size_bytes = round_request(requested_bytes)
    is_small = size_bytes <= SMALL_REQUEST_BYTES
    fits = [
        (block.size_bytes, block.address)
        for block in allocator.free_blocks()
        if block.size_bytes >= size_bytes and (block.pool is in_small_pool.pool) == is_small
    ]
    reserved_bytes = allocator.reserved_bytes
    taken = allocator.allocate(requested_bytes)
    assert taken is not None
    if fits:
        assert taken.address == min(fits)[1]
        assert allocator.reserved_bytes == reserved_bytes
    else:
        assert allocator.reserved_bytes > reserved_bytes


@without_deadline
@given(steps, all_settings(), st.integers(30 * MIB, 400 * MIB))
def test_out_of_memory_means_that_no_segment_was_left_to_give_back(
    script: list[int], settings: CudaSettings, capacity_bytes: int
) -> None:
    allocator = CudaCachingAllocator(settings, capacity_bytes)
    for step in script:
        if step > 0 and allocator.allocate(step) is None:
            assert not any(block.is_whole_segment for block in allocator.free_blocks())


@without_deadline
@given(st.lists(sizes, max_size=40))
def test_requests_alone_tile_expandable_segments_up_to_the_last_page(script: list[int]) -> None:
    expandable = CudaCachingAllocator(CudaSettings(expandable_segments=True))
    fixed = CudaCachingAllocator()
    run(expandable, script)
    run(fixed, script)
    rounded = [round_request(size_bytes) for size_bytes in script]
    small_bytes = sum(size_bytes for size_bytes in rounded if size_bytes <= SMALL_REQUEST_BYTES)
    assert expandable.allocated_bytes == sum(rounded)
    assert expandable.reserved_bytes == round_up(small_bytes, SMALL_SEGMENT_BYTES) + round_up(
        sum(rounded) - small_bytes, 20 * MIB
    )
    assert expandable.reserved_bytes < fixed.reserved_bytes + SMALL_SEGMENT_BYTES + 20 * MIB


@without_deadline
@given(steps, all_settings(), st.integers(0, 60))
def test_what_comes_later_does_not_change_what_was_before(
    script: list[int], settings: CudaSettings, length: int
) -> None:
    events = events_of(script)
    whole, start = replay(events, settings), replay(events[:length], settings)
    assert whole.allocated_bytes[:length] == start.allocated_bytes
    assert whole.reserved_bytes is not None
    assert whole.reserved_bytes[:length] == start.reserved_bytes


@without_deadline
@given(steps, all_settings(), st.integers(30 * MIB, 400 * MIB))
def test_a_capacity_above_the_unlimited_peak_changes_nothing(
    script: list[int], settings: CudaSettings, headroom_bytes: int
) -> None:
    events = events_of(script)
    unlimited = replay(events, settings)
    assert unlimited.reserved_bytes is not None
    ample_bytes = max(unlimited.reserved_bytes, default=0) + headroom_bytes
    if settings.per_process_memory_fraction == 1:
        assert replay(events, settings, ample_bytes) == unlimited


@without_deadline
@given(st.integers(1, 2**40), st.sampled_from([(), *((2**power,) * 16 for power in range(5))]))
def test_rounding_never_shrinks_keeps_order_and_is_stable(
    size_bytes: int, divisions: tuple[int, ...]
) -> None:
    rounded_bytes = round_request(size_bytes, divisions)
    assert rounded_bytes >= size_bytes
    assert rounded_bytes % MIN_BLOCK_BYTES == 0
    assert round_request(rounded_bytes, divisions) == rounded_bytes
    assert round_request(size_bytes + 1, divisions) >= rounded_bytes


@without_deadline
@given(all_settings())
def test_settings_survive_being_written_and_read(settings: CudaSettings) -> None:
    assert parse_cuda_settings(format_cuda_settings(settings)) == settings
