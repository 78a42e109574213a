"""One workload over many cards, or over many values of a whole-number argument; the largest that fits.

Sizes of events are affine in the batch size: two traces give every other by replay alone, a third
verifies it, and the value that is found is traced as well. Where it does not hold, a line is drawn
through larger values; where none holds, each value is traced.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from memgauge import devices
from memgauge.affine import Affine
from memgauge.allocators.settings import CudaSettings
from memgauge.arguments import TargetOptions
from memgauge.device_memory import DeviceMemory, device_memory
from memgauge.devices import Device, libraries
from memgauge.devices.libraries import cublas_bytes_of
from memgauge.devices.stack import Stack
from memgauge.errors import MemgaugeError, TraceError, UsageError, WorkloadError, missing_extra
from memgauge.explain.peak import first_peak
from memgauge.records import ASKED_CARD, Fits, Range, Trace
from memgauge.targets import resolve

OPTION_NAMES = ("batch_size", "image_size", "sequence_length")
# Values of the two traces and of the one that verifies them.
_FIRST, _SECOND, _VERIFIED = 8, 16, 40
_LINES = 4  # so many lines are tried, each at larger values, before every value is traced
_LOWEST_POWERS = 11  # the search begins at 1, or at a power of two up to 1024
_LARGEST = 2**40  # more is no size of anything; memory does not depend on the value


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a run takes at one place of a table."""

    device: str
    value: int | None
    allocated_bytes: int
    reserved_bytes: Range
    device_bytes: Range
    fits: Fits


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.catalogue/1"):
    """One workload on every card of the catalogue."""

    workload: dict[str, object]
    rows: tuple[Row, ...]
    elapsed_ns: int


class Curve(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.curve/1"):
    """One workload on one card over values of an argument."""

    workload: dict[str, object]
    device: str
    argument: str
    rows: tuple[Row, ...]
    is_affine: bool  # whether values were replayed from two traces that a third verified
    traced: tuple[int, ...]  # values that were traced
    elapsed_ns: int


class Largest(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.fit/1"):
    """The largest value that fits: surely (`yes`), and probably (by the expected value)."""

    surely: int | None  # None: not even 1
    probably: int | None
    binds: dict[str, str]  # the moment of the peak at `probably`: phase, operator, layer
    limit: str = ""  # why the target itself takes no more, where that ends the search
    curve: Curve
    assumptions: tuple[str, ...]


def parse_values(text: str) -> tuple[str, tuple[int, ...]]:
    """Return name and values of `batch_size=8,16,32`.

    Raises:
        UsageError: It is not of that form, or a value is no whole number of at least 1.
    """
    name, equals, values = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise UsageError(f"--vary {text}: write --vary NAME=A,B,C, such as batch_size=8,16,32")
    found = []
    for value in values.split(","):
        if not value.strip().isdecimal() or int(value) < 1:
            raise UsageError(f"--vary {text}: {value.strip()!r} is no whole number of at least 1")
        found.append(int(value))
    return name.strip(), tuple(dict.fromkeys(found))


def over_catalogue(
    target: str,
    *,
    options: TargetOptions,
    sets: Mapping[str, str],
    steps: int = 3,
    allocator: CudaSettings | None = None,
    stack: Stack | None = None,
) -> Catalogue:
    """Return what a workload takes on every card of the catalogue, smallest card first.

    Cards that run the same kernels share a trace, unless something in it depends on the very card.
    """
    begin = time.perf_counter_ns()
    traced, stack = _tracer(steps, stack)
    workload = resolve(target, options, sets)
    traces: dict[object, Trace] = {}
    rows = []
    for place in sorted(devices.gpus(), key=lambda d: (d.capacity_bytes or 0, d.name)):
        key = place.compute_capability, cublas_bytes_of(place, stack)
        if key not in traces or _depends_on_card(traces[key]):
            traces[key] = traced(workload, place)
        rows.append(_row(place, None, device_memory(traces[key], place, stack, allocator or CudaSettings())))
    return Catalogue(
        workload=dict(workload.description), rows=tuple(rows), elapsed_ns=time.perf_counter_ns() - begin
    )


def _depends_on_card(trace: Trace) -> bool:
    """Return whether the program asked about the card, or a library divides its work among multiprocessors."""
    return any(line.startswith(ASKED_CARD) for line in trace.assumptions) or any(
        scratch.mechanism in (libraries.CONVOLUTION, libraries.SEARCH) for scratch in trace.scratch.values()
    )


def curve(
    target: str,
    *,
    device: str,
    name: str,
    values: Sequence[int],
    options: TargetOptions,
    sets: Mapping[str, str],
    steps: int = 3,
    allocator: CudaSettings | None = None,
    stack: Stack | None = None,
) -> Curve:
    """Return what a workload takes on a card at each of the values.

    Raises:
        UsageError: The argument is unknown, or the device is no card.
    """
    begin = time.perf_counter_ns()
    varied = Varied(target, _card(device), name, options, sets, steps, stack)
    if not varied.confirm(max(values)):
        varied.drop_lines()
    rows = tuple(varied.row(value, allocator) for value in values)
    return varied.curve(rows, begin)


def largest(
    target: str,
    *,
    device: str,
    name: str,
    options: TargetOptions,
    sets: Mapping[str, str],
    steps: int = 3,
    allocator: CudaSettings | None = None,
    stack: Stack | None = None,
) -> Largest:
    """Return the largest value of an argument with which the workload fits a card, and the curve to it.

    Raises:
        UsageError: The argument is unknown, the device is no card, or memory does not grow with it.
    """
    begin = time.perf_counter_ns()
    varied = Varied(target, _card(device), name, options, sets, steps, stack)
    search = _Search(varied, allocator or CudaSettings())
    start = search.first_taken()
    surely, probably = search.ends(start)
    while probably is not None and not search.confirm(probably):
        surely, probably = search.ends(start)
    rows = search.rows
    ends = sorted({start, *(_around(surely)), *(_around(probably))} & set(rows) | set(_spread(rows)))
    binding: dict[str, str] = {}
    assumptions: tuple[str, ...] = ()
    if probably is not None:
        trace = varied.trace(probably)
        memory = device_memory(trace, varied.place, varied.stack, allocator or CudaSettings())
        event = trace.events[first_peak(memory.timeline)]
        binding = {"phase": event.phase, "operator": event.operator, "layer": event.layer}
        assumptions = (*trace.assumptions, *memory.assumptions)
    return Largest(
        surely=surely,
        probably=probably,
        binds=binding,
        limit=search.limit(probably or start),
        curve=varied.curve(tuple(rows[value] for value in ends), begin),
        assumptions=assumptions,
    )


class _Search:
    """The search for the largest value: what was found at each, and which values the target does not take."""

    def __init__(self, varied: Varied, settings: CudaSettings) -> None:
        self.rows: dict[int, Row] = {}
        self._varied, self._settings = varied, settings
        self._refused: dict[int, MemgaugeError] = {}

    def row(self, value: int) -> Row | None:
        """Return what the run takes at a value, None if the target does not take it."""
        if value not in self.rows and value not in self._refused:
            try:
                self.rows[value] = self._varied.row(value, self._settings)
            except (UsageError, TraceError) as error:
                self._refused[value] = error
        return self.rows.get(value)

    def first_taken(self) -> int:
        """Return 1, or the lowest power of two that the target takes: pictures of one pixel are too small.

        Raises:
            UsageError, TraceError: What 1 raises, where the target takes none.
        """
        for power in range(_LOWEST_POWERS):
            if self.row(2**power) is not None:
                return int(2**power)
        raise self._refused[1]

    def ends(self, start: int) -> tuple[int | None, int | None]:
        """Return the largest that fits surely, and probably."""

        def surely(value: int) -> bool:
            row = self.row(value)
            return row is not None and row.fits.verdict == "yes"

        def probably(value: int) -> bool:
            row = self.row(value)
            return row is not None and _expected_fits(row)

        name = self._varied.name
        first = _last(surely, name, start)
        return first, _last(probably, name, first or start)

    def confirm(self, value: int) -> bool:
        """Trace the value found by replay; False if that changes anything, and the search is to be repeated."""
        try:
            if self._varied.confirm(value):
                return True
        except (UsageError, TraceError) as error:  # sizes go on in a line, the target does not
            self._refused[value] = error
            self._varied.drop_lines()
        self.rows = {v: row for v, row in self.rows.items() if v in self._varied.traced}
        return False

    def limit(self, found: int) -> str:
        """Return why the next value is refused by the target itself, if that is what ends the search."""
        said = self._refused.get(found + 1)
        return "" if said is None else str(said).strip().splitlines()[-1]


def _expected_fits(row: Row) -> bool:
    least, capacity = row.fits.least_capacity_bytes, row.fits.capacity_bytes
    return least is not None and capacity is not None and least.expected <= capacity


def _around(value: int | None) -> tuple[int, ...]:
    return () if value is None else (value, value + 1)


def _spread(rows: Mapping[int, Row], count: int = 10) -> list[int]:
    """Return at most `count` of the values, evenly spread."""
    known = sorted(rows)
    step = max(1, -(-len(known) // count))
    return known[::step]


def _last(holds: Callable[[int], bool], name: str, at_least: int = 1) -> int | None:
    """Return the largest value for which `holds`, which is taken to hold below any value it holds for."""
    if not holds(at_least):
        return None
    below, above = at_least, at_least * 2
    while holds(above):
        below, above = above, above * 2
        if above > _LARGEST:
            raise UsageError(
                f"memory does not grow with {name}: {below} still fits, so no largest value exists"
            )
    while above - below > 1:
        middle = (below + above) // 2
        if holds(middle):
            below = middle
        else:
            above = middle
    return below


class Varied:
    """A workload of which one argument varies, on one card; traces as little as it can."""

    def __init__(
        self,
        target: str,
        place: Device,
        name: str,
        options: TargetOptions,
        sets: Mapping[str, str],
        steps: int,
        stack: Stack | None,
    ) -> None:
        if name in OPTION_NAMES and getattr(options, name) is not None:
            raise UsageError(f"{name} is both given and varied; leave out --{name.replace('_', '-')}")
        if name in sets:
            raise UsageError(f"{name} is both given and varied; leave out --set {name}={sets[name]}")
        self.place, self.name = place, name
        self.traced: dict[int, Trace] = {}
        self.description: dict[str, object] = {}
        self._target, self._options, self._sets = target, options, dict(sets)
        self._trace, self.stack = _tracer(steps, stack)
        self._line: Affine | None = None
        self._draws, self._next_draw = 0, _FIRST  # lines tried, and the least value for which the next one is

    def trace(self, value: int) -> Trace:
        """Return the trace at a value: interpolated where that is verified, else traced."""
        if value in self.traced:
            return self.traced[value]
        if self._line is None and self._draws < _LINES and value >= self._next_draw:
            if self._draws == 0:
                self._draw(_FIRST, _SECOND, _VERIFIED)
            else:  # beyond some size a library may take another way
                self._draw(value // 2, value, value // 2 + value // 4)
        if value not in self.traced and self._line is not None and value >= self._line.origin:
            return self._line.at(value)
        return self.really(value)

    def confirm(self, value: int) -> bool:
        """Trace a value for which a line stood in; False if it lies off that, and the next line is drawn there.

        Raises:
            UsageError, TraceError: The target does not take the value.
        """
        self.trace(value)
        if value in self.traced or self._line is None or self._line.gives(value, self.really(value)):
            return True
        self._line, self._next_draw = None, value
        return False

    def drop_lines(self) -> None:
        """Trace every value from here on."""
        self._line, self._draws = None, _LINES

    def really(self, value: int) -> Trace:
        """Return the trace at a value, traced."""
        if value not in self.traced:
            options, sets = self._options, dict(self._sets)
            if self.name in OPTION_NAMES:
                sized: dict[str, Any] = {self.name: value}
                options = dataclasses.replace(options, **sized)
            else:
                sets[self.name] = str(value)
            workload = resolve(self._target, options, sets)
            self.description = {k: v for k, v in workload.description.items() if k != self.name}
            self.traced[value] = self._trace(workload, self.place)
        return self.traced[value]

    def _draw(self, first: int, second: int, verified: int) -> None:
        """Trace three values; sizes must lie on the line through the first two."""
        self._draws, self._next_draw = self._draws + 1, first + 1
        try:
            traces = [self.really(value) for value in (first, second, verified)]
        except WorkloadError:
            return  # the code does not run at these values; each value asked for is traced
        line = Affine.through(first, traces[0], second, traces[1])
        if line is not None and line.gives(verified, traces[2]):
            self._line = line

    def row(self, value: int, allocator: CudaSettings | None) -> Row:
        """Return what the run takes at a value."""
        memory = device_memory(self.trace(value), self.place, self.stack, allocator or CudaSettings())
        return _row(self.place, value, memory)

    def curve(self, rows: tuple[Row, ...], begin_ns: int) -> Curve:
        """Return the table of these rows."""
        return Curve(
            workload=self.description,
            device=self.place.name,
            argument=self.name,
            rows=rows,
            is_affine=self._line is not None,
            traced=tuple(sorted(self.traced)),
            elapsed_ns=time.perf_counter_ns() - begin_ns,
        )


def _row(place: Device, value: int | None, memory: DeviceMemory) -> Row:
    return Row(
        device=place.name,
        value=value,
        allocated_bytes=max(memory.timeline.allocated_bytes, default=0),
        reserved_bytes=memory.reserved,
        device_bytes=memory.device,
        fits=memory.fits,
    )


def _card(name: str) -> Device:
    place = devices.find(name)
    if place.kind != "cuda" or place.capacity_bytes is None:
        here = "run memgauge calibrate first, or " if name == "cuda" else ""
        raise UsageError(f"--device {name}: {here}choose a card of known size; `memgauge devices` lists them")
    return place


def _tracer(steps: int, stack: Stack | None) -> tuple[Callable[[Any, Device], Trace], Stack]:
    if steps < 1:
        raise UsageError(f"steps={steps}: a run has at least one step")
    try:
        from memgauge.frameworks.torch import predict
    except ModuleNotFoundError as error:
        raise missing_extra("torch", "torch") from error
    from memgauge.estimate import traced

    software = stack or predict.installed_stack()

    def trace(workload: Any, place: Device) -> Trace:
        return traced(workload, place, steps=steps, threads=1, stack=software)

    return trace, software
