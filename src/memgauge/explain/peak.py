"""From a trace and a timeline to the account: peaks, phases, categories, layers.

The same functions serve a prediction and a measurement.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable

from memgauge.records import AtPeak, Category, Layer, Peak, Phase, Timeline, Trace

STEADY = "steady step"


def account(trace: Trace, timeline: Timeline) -> tuple[Peak, AtPeak, tuple[Phase, ...], tuple[Layer, ...]]:
    """Return peaks, the holders at the first instant of peak allocated, phases and layers."""
    tensors = tensor_bytes(trace, timeline)
    peak = Peak(
        requested_bytes=_highest(timeline.requested_bytes),
        allocated_bytes=_highest(timeline.allocated_bytes),
        reserved_bytes=None if timeline.reserved_bytes is None else _highest(timeline.reserved_bytes),
        tensor_bytes=_highest(tensors),
    )
    instant = first_peak(timeline)
    live = live_storages(trace, instant)
    return peak, at_peak(trace, timeline, instant, live), phases(trace, timeline, tensors), layers(
        trace, timeline, live
    )


def _highest(values: Iterable[int]) -> int:
    return max(values, default=0)


def first_peak(timeline: Timeline) -> int:
    """Return the index of the event after which allocated is highest for the first time, -1 if none."""
    allocated = timeline.allocated_bytes
    return allocated.index(max(allocated)) if allocated else -1


def live_storages(trace: Trace, instant: int) -> list[int]:
    """Return the storages that are held right after event `instant`."""
    live: dict[int, None] = {}
    for event in trace.events[: instant + 1]:
        if event.requested_bytes > 0:
            live[event.storage] = None
        else:
            live.pop(event.storage, None)
    return list(live)


def tensor_bytes(trace: Trace, timeline: Timeline) -> array[int]:
    """Return the allocated bytes after each event with workspace left out."""
    total = 0
    series = array("q")
    for event in trace.events[: len(timeline.allocated_bytes)]:
        if trace.categories[event.storage] is not Category.WORKSPACE:
            block = timeline.block_bytes.get(event.storage, abs(event.requested_bytes))
            total += block if event.requested_bytes > 0 else -block
        series.append(total)
    return series


def at_peak(trace: Trace, timeline: Timeline, instant: int, live: list[int]) -> AtPeak:
    """Return what held the memory at `instant`; every allocated byte has one category."""
    categories: dict[str, int] = defaultdict(int)
    for storage in live:
        categories[trace.categories[storage].value] += timeline.block_bytes[storage]
    if instant < 0:
        return AtPeak(phase="", operator="", layer="", categories={})
    event = trace.events[instant]
    ordered = {c.value: categories[c.value] for c in Category if categories.get(c.value)}
    return AtPeak(phase=event.phase, operator=event.operator, layer=event.layer, categories=ordered)


def phases(trace: Trace, timeline: Timeline, tensors: array[int]) -> tuple[Phase, ...]:
    """Return the highest occupancy of each phase in order, and of the steady (last) step apart."""
    spans: dict[str, list[int]] = {}
    for index, event in enumerate(trace.events[: len(tensors)]):
        spans.setdefault(event.phase, []).append(index)
    found = [_phase(name, indices, timeline, tensors) for name, indices in spans.items()]
    steps = [name for name in spans if name.startswith("step ")]
    if steps:
        last = steps[-1].rsplit(" ", 1)[0] + " "
        steady = sorted(i for name, indices in spans.items() if name.startswith(last) for i in indices)
        found.append(_phase(STEADY, steady, timeline, tensors))
    return tuple(found)


def _phase(name: str, indices: list[int], timeline: Timeline, tensors: array[int]) -> Phase:
    """What was held when a phase began counts: the event before its first one."""
    around = sorted({i for i in indices} | {i - 1 for i in indices if i > 0})
    reserved = timeline.reserved_bytes
    return Phase(
        name=name,
        requested_bytes=_highest(timeline.requested_bytes[i] for i in around),
        allocated_bytes=_highest(timeline.allocated_bytes[i] for i in around),
        reserved_bytes=None if reserved is None else _highest(reserved[i] for i in around),
        tensor_bytes=_highest(tensors[i] for i in around),
    )


def layers(trace: Trace, timeline: Timeline, live: list[int]) -> tuple[Layer, ...]:
    """Return one entry for each module that holds or held anything, in the model's order."""
    held: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for storage in live:
        held[trace.layers[storage]][trace.categories[storage].value] += timeline.block_bytes[storage]
    now: dict[str, int] = defaultdict(int)
    highest: dict[str, int] = defaultdict(int)
    for event in trace.events[: len(timeline.allocated_bytes)]:
        layer = trace.layers[event.storage]
        block = timeline.block_bytes[event.storage]
        now[layer] += block if event.requested_bytes > 0 else -block
        if now[layer] > highest[layer]:
            highest[layer] = now[layer]
    known = {m.path: m for m in trace.modules}
    paths = [m.path for m in trace.modules] + [path for path in highest if path not in known]
    return tuple(
        Layer(
            path=path,
            type=known[path].type if path in known else "",
            output_shape=known[path].output_shape if path in known else None,
            parameters=known[path].parameter_count if path in known else 0,
            at_peak_bytes=dict(held[path]),
            peak_bytes=highest[path],
        )
        for path in paths
        if highest.get(path) or path in known
    )
