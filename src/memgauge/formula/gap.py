"""Why formula and trace differ: every byte of the difference under a name.

The trace is looked at in its first instant of peak allocated. Category by category:

    what the formula counts       every output of every layer, in the step of the peak
    what the trace holds then     every live storage
    the difference                each counted output is there, or was counted twice (in place,
                                  view), or has not been made yet, or is gone; each storage that is
                                  there and was not counted has an operator that made it

Outputs and storages are matched by the storage's number, so the items add up to the
difference exactly; what has no better name is called the remainder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from memgauge.formula.reasons import REMAINDER, REQUESTS, WHY, extra_name
from memgauge.formula.records import CategoryRow, GapItem, LayerCall, OutputTensor
from memgauge.records import Category, MemoryEvent, Timeline, Trace

_FORWARD, _BACKWARD = "forward", "backward"
_UNKEPT = "outputs that nothing keeps for backward"


@dataclass(frozen=True, slots=True)
class Counted:
    """What the formula says by category, and the layer outputs that it counts as activations."""

    categories: Mapping[Category, int]
    calls: Sequence[LayerCall]  # counted, of one step
    all_calls: Sequence[LayerCall]  # every call of that step
    trained_bytes: Mapping[str, int] = field(default_factory=dict)  # parameters to train, by module path


@dataclass(frozen=True, slots=True)
class _Storage:
    """One storage of the trace: who made it, and when it came and went."""

    made: MemoryEvent
    begin: int
    end: int | None
    release_phase: str


@dataclass(slots=True)
class _Items:
    """Collects bytes under (category, name), by part."""

    parts: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)

    def add(self, category: str, name: str, count_bytes: int, part: str) -> None:
        if count_bytes:
            found = self.parts.setdefault((category, name), defaultdict(int))
            found[part] += count_bytes

    def total(self, category: str) -> int:
        return sum(sum(p.values()) for (c, _), p in self.parts.items() if c == category)


def peak_step(trace: Trace, instant: int) -> int:
    """Return the step in which event `instant` lies, 1 if it lies before every step."""
    phase = trace.events[instant].phase if instant >= 0 else ""
    words = phase.split(" ")
    return int(words[1]) if len(words) > 2 and words[0] == "step" else 1


def categories(counted: Counted, at_peak: Mapping[str, int]) -> tuple[CategoryRow, ...]:
    """Return formula and trace by category; gradients of activations are the trace's `temporary`."""
    rows = []
    for category in Category:
        formula, traced = counted.categories.get(category, 0), at_peak.get(category.value, 0)
        if formula or traced:
            rows.append(
                CategoryRow(
                    name=category.value,
                    formula_bytes=formula,
                    trace_bytes=traced,
                    difference_bytes=traced - formula,
                )
            )
    return tuple(rows)


def itemise(
    counted: Counted, rows: Sequence[CategoryRow], trace: Trace, timeline: Timeline, instant: int
) -> tuple[GapItem, ...]:
    """Return the difference of each category in named items that add up to it.

    Args:
        counted: The formula's side.
        rows: Both sides by category.
        trace, timeline: What was traced, and where the allocator put it.
        instant: The event after which allocated is highest for the first time.
    """
    storages = _storages(trace)
    live = {n for n, s in storages.items() if s.begin <= instant and (s.end is None or s.end > instant)}
    items = _Items()
    _round_up(items, live, storages, trace, timeline)
    _activations(items, counted, live, storages, trace, instant)
    difference = {row.name: row.difference_bytes for row in rows}
    _unreached(items, counted, trace)
    _lasting(items, counted, difference)
    _activation_gradients(items, counted, live, storages, trace)
    _uncounted(items, live, storages, trace)
    for name, gap in difference.items():
        items.add(name, REMAINDER, gap - items.total(name), "")
    return _sorted(items)


def _storages(trace: Trace) -> dict[int, _Storage]:
    found: dict[int, _Storage] = {}
    for index, event in enumerate(trace.events):
        if event.requested_bytes > 0:
            found[event.storage] = _Storage(event, index, None, "")
        else:
            made = found[event.storage]
            found[event.storage] = _Storage(made.made, made.begin, index, event.phase)
    return found


def _round_up(
    items: _Items, live: Iterable[int], storages: Mapping[int, _Storage], trace: Trace, timeline: Timeline
) -> None:
    for number in live:
        extra = timeline.block_bytes.get(number, 0) - storages[number].made.requested_bytes
        category = trace.categories[number].value
        items.add(category, "rounding by the allocator", extra, category)


def _activations(
    items: _Items,
    counted: Counted,
    live: set[int],
    storages: Mapping[int, _Storage],
    trace: Trace,
    instant: int,
) -> None:
    """Match the outputs that the formula counts with the activations that are alive."""
    activation = Category.ACTIVATION.value
    types = {m.path: m.type for m in trace.modules}
    matched: set[int] = set()
    again = _computed_again(trace)
    place = _place_in_operator(trace)
    for call in counted.calls:
        kind = types.get(call.path, "")
        for tensor in call.outputs:
            name = _why_not_there(tensor, matched, live, storages, trace, instant)
            if name == _UNKEPT and call.path in again:
                name = "outputs that checkpointing computes again"
            if name:
                items.add(activation, name, -tensor.count_bytes, kind or call.path)
            elif tensor.storage is not None:
                stored = storages[tensor.storage].made.requested_bytes
                items.add(
                    activation, "storages larger than the output in them", stored - tensor.count_bytes, kind
                )
            if tensor.storage is not None:
                matched.add(tensor.storage)
    outputs = {t.storage for call in counted.all_calls for t in call.outputs}
    leaves = {call.path for call in counted.all_calls}
    for number in sorted(live - matched):
        if trace.categories[number] is Category.ACTIVATION:
            made = storages[number].made
            if number in outputs:
                items.add(
                    activation, "outputs of layers beyond the two largest", made.requested_bytes, made.layer
                )
            else:
                kind, is_layer = types.get(made.layer, ""), made.layer in leaves
                name = extra_name(made, kind, is_layer=is_layer, output=place.get(number, 0))
                items.add(activation, name, made.requested_bytes, made.operator or "outside operators")


def _why_not_there(
    tensor: OutputTensor,
    matched: set[int],
    live: set[int],
    storages: Mapping[int, _Storage],
    trace: Trace,
    instant: int,
) -> str:
    """Return why an output that was counted takes no memory of its own at the peak; empty if it does."""
    number = tensor.storage
    if number is None or number not in storages:
        return "views counted as memory"
    if number in matched:
        return "in-place results counted twice" if tensor.how == "in place" else "views counted as memory"
    if trace.categories[number] is Category.TEMPORARY and storages[number].made.phase.endswith("optimizer"):
        return "outputs made while the optimizer steps"
    if trace.categories[number] is not Category.ACTIVATION:
        return "outputs that are parameters, input or kept elsewhere"
    if number in live:
        return ""
    storage = storages[number]
    if storage.begin > instant:
        return "outputs not made yet at the peak"
    if storage.release_phase.endswith(_FORWARD):
        return _UNKEPT
    return "outputs that backward had already freed"


def _computed_again(trace: Trace) -> set[str]:
    """Return the paths of modules that backward runs a second time, as checkpointing does."""
    return {
        e.layer
        for e in trace.events
        if e.requested_bytes > 0
        and e.phase.endswith(_BACKWARD)
        and trace.categories[e.storage] is Category.ACTIVATION
    }


def _place_in_operator(trace: Trace) -> dict[int, int]:
    """Return for each storage which request of its operator it is, of those that request several at once."""
    places: dict[int, int] = {}
    before, run = "", 0
    for event in trace.events:
        operator = event.operator.removeprefix("aten.")
        run = run + 1 if event.requested_bytes > 0 and operator == before else 0
        before = operator if event.requested_bytes > 0 else ""
        if run and operator in REQUESTS:
            places[event.storage] = run
    return places


def _unreached(items: _Items, counted: Counted, trace: Trace) -> None:
    """Take out gradients, and what the optimizer keeps, of parameters that never have a gradient."""
    reached = {
        layer
        for category, layer in zip(trace.categories, trace.layers, strict=True)
        if category is Category.GRADIENT
    }
    all_bytes = sum(counted.trained_bytes.values())
    unreached = {path: size for path, size in counted.trained_bytes.items() if path not in reached}
    if not reached or not unreached:
        return
    for category in (Category.GRADIENT, Category.OPTIMIZER_STATE):
        whole = counted.categories.get(category, 0)
        for path, size in unreached.items():
            items.add(
                category.value,
                "gradients of parameters that the loss does not reach"
                if category is Category.GRADIENT
                else "optimizer state of parameters that the loss does not reach",
                -(whole * size // all_bytes),
                path or "the model itself",
            )


def _lasting(items: _Items, counted: Counted, difference: Mapping[str, int]) -> None:
    """Name what differs in parameters, gradients, optimizer state and input."""
    for category, fewer, more in (
        (Category.PARAMETER, "parameters that are not there at the peak", "more parameters than counted"),
        (
            Category.GRADIENT,
            "gradients that are not there at the peak",
            "gradients larger than their parameters",
        ),
        (
            Category.OPTIMIZER_STATE,
            "optimizer state that is not there at the peak",
            "more optimizer state than the formula says",
        ),
        (Category.INPUT, "input that is not there at the peak", "more input than one batch"),
    ):
        rest = difference.get(category.value, 0) - items.total(category.value)
        if counted.categories.get(category, 0) or rest:
            items.add(category.value, fewer if rest < 0 else more, rest, category.value)


def _activation_gradients(
    items: _Items, counted: Counted, live: set[int], storages: Mapping[int, _Storage], trace: Trace
) -> None:
    """Set what the formula counts as gradients of activations against the short-lived that are alive."""
    temporary = Category.TEMPORARY.value
    types = {m.path: m.type for m in trace.modules}
    seen: set[int] = set()
    parts: dict[str, int] = defaultdict(int)
    for call in counted.calls if counted.categories.get(Category.TEMPORARY) else ():
        for tensor in call.outputs:
            if tensor.storage is None or tensor.storage in seen:
                name = "gradients of in-place results and views counted twice"
                items.add(temporary, name, -tensor.count_bytes, types.get(call.path, call.path))
            else:
                parts[f"counted for {types.get(call.path) or call.path}"] -= tensor.count_bytes
            if tensor.storage is not None:
                seen.add(tensor.storage)
    for number in live:
        if trace.categories[number] is Category.TEMPORARY:
            made = storages[number].made
            parts[f"alive from {made.operator or 'outside operators'}"] += made.requested_bytes
    name = "gradients of activations live only until they are used"
    if sum(parts.values()) > 0:
        name = "short-lived results beyond gradients of activations"
    for part, count in parts.items():
        items.add(temporary, name, count, part)


def _uncounted(items: _Items, live: set[int], storages: Mapping[int, _Storage], trace: Trace) -> None:
    """Name the categories that the formula does not know at all."""
    names = {
        Category.BUFFER: "buffers, such as running statistics",
        Category.WORKSPACE: "workspaces of kernels",
        Category.OTHER: "tensors that the program keeps elsewhere",
        Category.UNATTRIBUTED: "memory without a known use",
    }
    for number in live:
        category, made = trace.categories[number], storages[number].made
        if category in names:
            part = made.operator or made.layer or "kept by a library"
            items.add(category.value, names[category], made.requested_bytes, part)


def _sorted(items: _Items) -> tuple[GapItem, ...]:
    made = []
    for (category, name), parts in items.parts.items():
        listed = sorted(parts.items(), key=lambda p: -abs(p[1]))
        total = sum(parts.values())
        if total:
            made.append(
                GapItem(
                    category=category,
                    name=name,
                    gap_bytes=total,
                    parts_bytes={part: count for part, count in listed if part and count},
                    why=WHY[name],
                )
            )
    return tuple(sorted(made, key=lambda item: -abs(item.gap_bytes)))
