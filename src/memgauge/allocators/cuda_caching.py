"""PyTorch's CUDACachingAllocator, rule by rule, as the path of one allocation.

    round the request      round_request
    choose a pool          at most 1 MiB, or more
    best fit in the cache  Pool.take_fit
    or obtain a segment    _obtain, _reserve; giving cached memory back and trying again where that fails
    split off the rest     Block.split
    free and merge         free, Pool.put_merged

Source: c10/core/AllocatorConfig.h of torch 2.13.0 for every constant (equal in
2.14.1); c10/cuda/CUDACachingAllocator.cpp for every rule, read at commit
001074d2 (2024) and in main of 2026. The function named beside a rule is the one
that it was read in. What is not modelled: docs/allocators/cuda.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from memgauge.allocators.blocks import UNLIMITED_BYTES, Block, Driver, Pool, round_up
from memgauge.allocators.cuda_expandable import ExpandableSegments, take_expandable_fit
from memgauge.allocators.replay import NO_STREAMS, walk
from memgauge.allocators.settings import FIRST_DIVIDED_POWER, CudaSettings
from memgauge.records import MemoryEvent, Timeline
from memgauge.units import MIB, TIB

MIN_BLOCK_BYTES = 512  # kMinBlockSize: every block is a multiple of it
SMALL_REQUEST_BYTES = (
    1 * MIB
)  # kSmallSize: largest request of the small pool, and largest rest left undivided
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer: segments and pages of the small pool
SHARED_REQUEST_BYTES = 10 * MIB  # kMinLargeAlloc: below it, requests share a segment of large_segment_bytes
SEGMENT_ROUNDING_BYTES = 2 * MIB  # kRoundLarge: from there on, a segment is the request rounded up to it
DEFAULT_STREAM = 0
# Streams within the pool of a CUDA graph have numbers beyond any handle of a stream: pool × GRAPH_POOL + stream.
GRAPH_POOL = 1 << 64
_UNKNOWN_SPAN_BYTES = 1024 * TIB  # addresses of an expandable segment where the card's memory is not known


def replay(
    events: Iterable[MemoryEvent],
    settings: CudaSettings = CudaSettings(),  # noqa: B008 (frozen)
    capacity_bytes: int | None = None,
    *,
    total_bytes: int | None = None,
    releases: Iterable[int] = (),
    streams: Mapping[int, int] = NO_STREAMS,
) -> Timeline:
    """Place every event as PyTorch would on one GPU; return occupancy after each.

    Args:
        events: Requests and releases in program order.
        settings: What PYTORCH_CUDA_ALLOC_CONF sets.
        capacity_bytes: What the driver can give to this allocator: the card's memory
            without contexts and other processes. None: it never ends, so nothing is given back.
        total_bytes: The card's whole memory, of which `per_process_memory_fraction` is a
            fraction; `capacity_bytes` where it is not known.
        releases: Indices of events before which `torch.cuda.empty_cache()` is called.
        streams: On which stream a storage is requested; not listed: on the default one, 0.

    Raises:
        OutOfMemory: A request does not fit; carries the timeline until then.
        TraceError: The events are not a trace (see `walk`).
    """
    allocator = CudaCachingAllocator(settings, capacity_bytes, total_bytes=total_bytes)
    return walk(events, allocator, releases, streams)


def round_request(requested_bytes: int, power2_divisions: tuple[int, ...] = ()) -> int:
    """Return the size of block that a request asks for (`round_size`, `roundup_power2_next_division`).

    Args:
        requested_bytes: At least 1.
        power2_divisions: Steps between a power of two and the next, one entry for each power
            from 1 MiB on; smaller requests use the first entry and larger ones the last.
    """
    if power2_divisions and requested_bytes >= MIN_BLOCK_BYTES:
        power = requested_bytes.bit_length() - 1
        divisions = power2_divisions[min(max(power - FIRST_DIVIDED_POWER, 0), len(power2_divisions) - 1)]
        if divisions > 1 and requested_bytes > MIN_BLOCK_BYTES * divisions:
            return round_up(requested_bytes, (1 << power) // divisions)
    return requested_bytes + -requested_bytes % MIN_BLOCK_BYTES


class CudaCachingAllocator:
    """The allocator of one GPU, with two pools for each stream (`BlockComparatorSize`: stream first).

    Every block carries its address, so that a caller can see where it was put.
    """

    def __init__(
        self,
        settings: CudaSettings = CudaSettings(),  # noqa: B008 (frozen)
        capacity_bytes: int | None = None,
        *,
        total_bytes: int | None = None,
        driver: Driver | None = None,
    ) -> None:
        """Start with nothing reserved. For the arguments see `replay`; a driver of one's own has its own capacity."""
        total_bytes = capacity_bytes if total_bytes is None else total_bytes
        self.allocated_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self._driver = driver or Driver(total_bytes if capacity_bytes is None else capacity_bytes)
        self._power2_divisions = settings.roundup_power2_divisions
        self._large_segment_bytes = settings.large_segment_bytes
        self._max_split_bytes = settings.max_split_bytes or UNLIMITED_BYTES
        self._max_rounding_bytes = settings.max_non_split_rounding_bytes or settings.large_segment_bytes

        # setMemoryFraction: a fraction of 1 sets no limit, and without a limit nothing is collected.
        self._allowed_bytes, self._collects_above_bytes = UNLIMITED_BYTES, UNLIMITED_BYTES
        if total_bytes is not None and settings.per_process_memory_fraction < 1:
            self._allowed_bytes = int(settings.per_process_memory_fraction * total_bytes + 0.5)
            if settings.garbage_collection_threshold:
                self._collects_above_bytes = int(settings.garbage_collection_threshold * self._allowed_bytes)

        self._grows = settings.expandable_segments
        self._span_bytes = _UNKNOWN_SPAN_BYTES if total_bytes is None else total_bytes + total_bytes // 8
        self._take_fit: Callable[[Pool, int, int], Block | None] = (
            take_expandable_fit if self._grows else Pool.take_fit
        )
        self._expandable: dict[Pool, ExpandableSegments] = {}
        self._pools: dict[int, tuple[Pool, Pool]] = {}  # by stream: small, large
        self._open(DEFAULT_STREAM)

    def _open(self, stream: int) -> tuple[Pool, Pool]:
        """Make the pools of a stream.

        `should_split`: any rest is split off in small and expandable segments; in other large ones
        only a rest above 1 MiB, and only for requests below max_split_size_mb.
        """
        small = Pool(splits_above_bytes=0)
        if self._grows:
            large = Pool(splits_above_bytes=0)
            for pool, page_bytes in ((small, SMALL_SEGMENT_BYTES), (large, self._large_segment_bytes)):
                self._expandable[pool] = ExpandableSegments(pool, self._driver, page_bytes, self._span_bytes)
        else:
            large = Pool(splits_above_bytes=SMALL_REQUEST_BYTES, splits_below_bytes=self._max_split_bytes)
        self._pools[stream] = small, large
        return small, large

    def free_blocks(self) -> Iterator[Block]:
        """Yield the cached blocks, for checks: with those handed out they make up what is reserved."""
        for pools in self._pools.values():
            for pool in pools:
                yield from pool.blocks.copy()

    def allocate(self, requested_bytes: int, stream: int = DEFAULT_STREAM, /) -> Block | None:
        """Return a block for a request of at least 1 byte, or None when out of memory (`malloc`).

        Of the cache only the best fit is considered (`get_free_block`): blocks of max_split_size_mb
        and more serve no request below that, and none that would leave max_non_split_rounding_mb unused.
        """
        size_bytes = round_request(requested_bytes, self._power2_divisions)
        pools = self._pools.get(stream) or self._open(stream)
        pool = pools[size_bytes > SMALL_REQUEST_BYTES]
        below_bytes = self._max_split_bytes
        if size_bytes >= below_bytes:
            below_bytes = size_bytes + self._max_rounding_bytes
        block = self._take_fit(pool, size_bytes, below_bytes) or self._obtain(pool, size_bytes, stream)
        if block is None:
            return None
        if block.size_bytes - size_bytes > pool.splits_above_bytes and size_bytes < pool.splits_below_bytes:
            pool.put(block.split(size_bytes))
        block.requested_bytes = requested_bytes
        self.allocated_bytes += block.size_bytes
        return block

    def free(self, block: Block) -> None:
        """Cache a block that `allocate` returned, merged with its free neighbours (`free_block`)."""
        self.allocated_bytes -= block.size_bytes
        block.pool.put_merged(block)

    def _obtain(self, pool: Pool, size_bytes: int, stream: int) -> Block | None:
        """Return a block of new memory; where there is none, give cached memory back and try again."""
        self._collect_garbage()
        block = self._reserve(pool, size_bytes)
        if block is None and self._release_oversize(pool, size_bytes):
            block = self._reserve(pool, size_bytes)
        # While a graph is captured nothing is given back (`malloc`).
        if block is None and stream < GRAPH_POOL:
            self.release_cached()
            block = self._reserve(pool, size_bytes)
        self.reserved_bytes = reserved_bytes = self._driver.reserved_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, reserved_bytes)
        return block

    def _reserve(self, pool: Pool, size_bytes: int) -> Block | None:
        """Return a new segment, or one grown far enough (`alloc_block`)."""
        segment_bytes = self.segment_bytes(size_bytes)
        if self._driver.reserved_bytes + segment_bytes > self._allowed_bytes:
            return None
        if self._expandable:
            return self._expandable[pool].grow(size_bytes)
        if not self._driver.take(segment_bytes):
            return None
        return Block.segment(self._driver.address(segment_bytes), segment_bytes, pool)

    def segment_bytes(self, size_bytes: int) -> int:
        """Return what a request that the cache cannot serve takes of the driver (`get_allocation_size`)."""
        if size_bytes <= SMALL_REQUEST_BYTES:
            return SMALL_SEGMENT_BYTES
        if size_bytes < SHARED_REQUEST_BYTES:
            return self._large_segment_bytes
        return round_up(size_bytes, SEGMENT_ROUNDING_BYTES)

    def _release_oversize(self, pool: Pool, size_bytes: int) -> bool:
        """Give back one cached block that is large enough, or several (`release_available_cached_blocks`).

        Only blocks of max_split_size_mb and more count. Returns whether enough was given back.
        """
        if self._expandable:
            return False
        wanted_bytes, released_bytes = max(size_bytes, self._max_split_bytes), 0
        enough = pool.best_fit(wanted_bytes)
        oversize = pool.blocks[pool.best_fit(self._max_split_bytes) :]
        for block in pool.blocks[enough : enough + 1] or reversed(oversize):
            if released_bytes < wanted_bytes:
                released_bytes += block.size_bytes
                self._release(block)
        return released_bytes >= wanted_bytes

    def release_cached(self) -> None:
        """Give every segment or page that is wholly free back to the driver (`release_cached_blocks`)."""
        for pool in (pool for pools in self._giving_back() for pool in pools):
            if self._expandable:
                self._expandable[pool].unmap_free_pages()
                continue
            for block in pool.blocks.copy():
                if block.is_whole_segment:
                    self._release(block)
        self.reserved_bytes = self._driver.reserved_bytes

    def _collect_garbage(self) -> None:
        """Above the threshold, give back segments long unused (`garbage_collect_cached_blocks`).

        Only the large pool is collected. Age is the number of searches in the pool since a block became
        free. Each round gives back every segment of at least the average age, until it is enough.
        """
        excess_bytes = self._driver.reserved_bytes - self._collects_above_bytes
        if excess_bytes <= 0:
            return
        idle = [block for _, large in self._giving_back() for block in large.blocks if block.is_whole_segment]
        while excess_bytes > 0 and idle:
            ages = [block.pool.searches - block.cached_since for block in idle]
            average = sum(ages) / len(ages)
            oldest = [block for block, age in zip(idle, ages, strict=True) if age >= average]
            for block in oldest:
                excess_bytes -= block.size_bytes
                self._release(block)
            idle = [block for block in idle if block not in oldest]

    def _giving_back(self) -> list[tuple[Pool, Pool]]:
        """Return the pools whose cached memory may go back: a graph's stays while the graph lives (`PrivatePool`)."""
        return [pools for stream, pools in self._pools.items() if stream < GRAPH_POOL]

    def _release(self, block: Block) -> None:
        """Give a cached segment back to the driver (`release_block`)."""
        block.pool.remove(block)
        self._driver.give_back(block.size_bytes)
