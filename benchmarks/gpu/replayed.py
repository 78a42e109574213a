"""The allocator model fed with a recorded history must give that history's reserved bytes exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memgauge.allocators import cuda_caching
from memgauge.allocators.settings import parse_cuda_settings
from memgauge.records import MemoryEvent


def replayed(history: Sequence[Sequence[Any]], alloc_conf: str = "") -> tuple[int, int]:
    """Return (the model's, the recorded) peak reserved bytes of a history.

    Args:
        history: Rows of [action, address, size] or [action, address, size, stream] as `measured.compact`
            writes them; it begins with an allocator that holds nothing.
        alloc_conf: Settings that the run had.

    The recorded sizes of allocations are requests rounded to 512 bytes; segments are obtained (`s`,
    `m`) and given back (`g`, `u`). A run of segments given back between two requests is a release of
    the whole cache (`torch.cuda.empty_cache()`, or cuDNN's search), since nothing else frees them.
    """
    events: list[MemoryEvent] = []
    releases: list[int] = []
    live: dict[int, tuple[int, int]] = {}
    streams: dict[int, int] = {}
    reserved = highest = 0
    storages = 0
    for action, address, size, *stream in history:
        if action == "a":
            events.append(MemoryEvent(storages, size, "", "", ""))
            live[address] = storages, size
            if stream:
                streams[storages] = stream[0]
            storages += 1
        elif action == "f" and address in live:
            storage, held = live.pop(address)
            events.append(MemoryEvent(storage, -held, "", "", ""))
        elif action in ("s", "m"):
            reserved += size
            highest = max(highest, reserved)
        elif action in ("g", "u"):
            reserved -= size
            if not releases or releases[-1] != len(events):
                releases.append(len(events))
    settings = parse_cuda_settings(alloc_conf)
    timeline = cuda_caching.replay(events, settings, releases=releases, streams=streams)
    return max(timeline.reserved_bytes or (0,)), highest
