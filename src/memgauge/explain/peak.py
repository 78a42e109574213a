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
    return (
        peak,
        at_peak(trace, timeline, instant, live),
        phases(trace, timeline, tensors),
        layers(trace, timeline, live),
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
    series = array("q", bytes(8 * len(timeline.allocated_bytes)))
    blocks, workspace, categories = timeline.block_bytes, Category.WORKSPACE, trace.categories
    for index, (storage, requested, _, _, _) in enumerate(trace.events[: len(series)]):
        if categories[storage] is not workspace:
            total += blocks[storage] if requested > 0 else -blocks[storage]
        series[index] = total
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
    """Return the highest occupancy of each phase in order, and of the steady (last) step apart.

    What is held when a phase begins counts as part of it. What a step gives back at its end is labelled as its
    forward pass, where its Python code is again: a piece of a phase that only gives back is none of it, unless
    there is no other.
    """
    kinds = [timeline.requested_bytes, timeline.allocated_bytes, tensors]
    if timeline.reserved_bytes is not None:
        kinds.append(timeline.reserved_bytes)
    spans: dict[str, list[tuple[int, int]]] = {}
    begin, name = 0, trace.events[0].phase if len(tensors) else ""
    for index, event in enumerate(trace.events[: len(tensors)]):
        if event.phase != name:
            spans.setdefault(name, []).append((begin, index))
            begin, name = index, event.phase
    if len(tensors):
        spans.setdefault(name, []).append((begin, len(tensors)))

    def requests(piece: tuple[int, int]) -> bool:
        return any(event.requested_bytes > 0 for event in trace.events[slice(*piece)])

    pieces_of = {name: list(filter(requests, pieces)) or pieces for name, pieces in spans.items()}
    highest = {
        name: [max(max(kind[max(begin - 1, 0) : end]) for begin, end in pieces) for kind in kinds]
        for name, pieces in pieces_of.items()
    }
    found = [_phase(name, values) for name, values in highest.items()]
    steps = [name for name in highest if name.startswith("step ")]
    if steps:
        last = steps[-1].rsplit(" ", 1)[0] + " "
        ends = [values for name, values in highest.items() if name.startswith(last)]
        found.append(_phase(STEADY, [max(values) for values in zip(*ends, strict=True)]))
    return tuple(found)


def _phase(name: str, values: list[int]) -> Phase:
    requested, allocated, tensors, *reserved = values
    return Phase(
        name=name,
        requested_bytes=requested,
        allocated_bytes=allocated,
        reserved_bytes=reserved[0] if reserved else None,
        tensor_bytes=tensors,
    )


def layers(trace: Trace, timeline: Timeline, live: list[int]) -> tuple[Layer, ...]:
    """Return one entry for each module that holds or held anything, in the model's order."""
    held: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for storage in live:
        held[trace.layers[storage]][trace.categories[storage].value] += timeline.block_bytes[storage]
    now: dict[str, int] = defaultdict(int)
    highest: dict[str, int] = defaultdict(int)
    blocks, owners = timeline.block_bytes, trace.layers
    for storage, requested, _, _, _ in trace.events[: len(timeline.allocated_bytes)]:
        layer = owners[storage]
        if requested < 0:
            now[layer] -= blocks[storage]
            continue
        now[layer] += blocks[storage]
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
