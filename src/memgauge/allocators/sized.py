"""Replays of one trace with other sizes of what libraries take in it, or without some of that."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from memgauge.allocators import cuda_caching
from memgauge.allocators.cuda_caching import CudaCachingAllocator
from memgauge.allocators.replay import first_refused
from memgauge.allocators.settings import CudaSettings
from memgauge.records import MemoryEvent, Timeline, Trace


def replay_sized(trace: Trace, settings: CudaSettings, side: str) -> Timeline:
    """Return the replay without end, with scratch at its `low`, `expected` or `high` size."""
    events = trace.events if side == "expected" else resized(trace.events, _sizes(trace, side))
    return cuda_caching.replay(events, settings, releases=trace.cache_releases, streams=trace.streams)


def reserved_sized(trace: Trace, settings: CudaSettings, side: str) -> int:
    """Return the highest reserved memory of `replay_sized`, in less time."""
    allocator = CudaCachingAllocator(settings)
    changes = changes_of(trace, {} if side == "expected" else _sizes(trace, side))
    first_refused(changes, allocator, trace.cache_releases, trace.streams)
    return allocator.peak_reserved_bytes


def _sizes(trace: Trace, side: str) -> dict[int, int]:
    return {s: max(x.low_bytes if side == "low" else x.high_bytes, 1) for s, x in trace.scratch.items()}


def changes_of(trace: Trace, sizes: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return storage and requested bytes of each event, with other sizes for some storages."""
    return [
        (storage, change if storage not in sizes else sizes[storage] if change > 0 else -sizes[storage])
        for storage, change, _, _, _ in trace.events
    ]


def differs(trace: Trace, side: str) -> bool:
    """Return whether any scratch has another size on this side than it is expected to have."""
    scratch = trace.scratch
    for event in trace.events:
        if event.requested_bytes > 0 and event.storage in scratch:
            limits = scratch[event.storage]
            size = limits.low_bytes if side == "low" else limits.high_bytes
            if max(size, 1) != event.requested_bytes:
                return True
    return False


def resized(events: Iterable[MemoryEvent], sizes: Mapping[int, int]) -> Iterator[MemoryEvent]:
    """Yield the events with other sizes for some storages."""
    for event in events:
        storage, before, phase, layer, operator = event
        size = sizes.get(storage)
        if size is None:
            yield event
        else:
            yield MemoryEvent(storage, size if before > 0 else -size, phase, layer, operator)


def without(trace: Trace, mechanisms: frozenset[str]) -> Trace:
    """Return the trace as it would be if some mechanisms did not exist (for ablations)."""
    left_out = {s for s, scratch in trace.scratch.items() if scratch.mechanism in mechanisms}
    events: list[MemoryEvent] = []
    places: list[int] = []
    for event in trace.events:
        places.append(len(events))
        if event.storage not in left_out:
            events.append(event)
    places.append(len(events))
    releases = () if "cache releases" in mechanisms else tuple(places[r] for r in trace.cache_releases)
    scratch = {s: x for s, x in trace.scratch.items() if s not in left_out}
    return dataclasses.replace(
        trace,
        events=events,
        scratch=scratch,
        cache_releases=releases,
        streams={} if "streams" in mechanisms else trace.streams,
    )
