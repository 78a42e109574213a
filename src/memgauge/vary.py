"""One workload over many cards, or over many values of a whole-number argument; the largest that fits.

Sizes of events are affine in the batch size: two traces give every other by replay alone, and a
third trace verifies it. Where it does not hold, each value is traced.
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
from memgauge.errors import UsageError, WorkloadError, missing_extra
from memgauge.explain.peak import first_peak
from memgauge.records import ASKED_CARD, Fits, Range, Trace
from memgauge.targets import resolve

OPTION_NAMES = ("batch_size", "image_size", "sequence_length")
# Values of the two traces and of the one that verifies them.
_FIRST, _SECOND, _VERIFIED = 8, 16, 40
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
    rows: dict[int, Row] = {}

    def row(value: int) -> Row:
        if value not in rows:
            rows[value] = varied.row(value, allocator)
        return rows[value]

    surely = _last(lambda value: row(value).fits.verdict == "yes", name)
    probably = _last(lambda value: _expected_fits(row(value)), name, at_least=surely or 1)
    ends = sorted({1, *(_around(surely)), *(_around(probably))} & set(rows) | set(_spread(rows)))
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
        curve=varied.curve(tuple(rows[value] for value in ends), begin),
        assumptions=assumptions,
    )


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
        self._affine: Affine | None = None
        self._is_affine: bool | None = None

    def trace(self, value: int) -> Trace:
        """Return the trace at a value: interpolated where that is verified, else traced."""
        if value in self.traced:
            return self.traced[value]
        if self._is_affine is None:
            self._is_affine = self._verify()
        if value not in self.traced and self._affine is not None and value >= _FIRST:
            return self._affine.at(value)
        return self.really(value)

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

    def _verify(self) -> bool:
        """Trace three values; sizes must lie on the line through the first two."""
        try:
            first, second, third = (self.really(value) for value in (_FIRST, _SECOND, _VERIFIED))
        except WorkloadError:
            return False  # the code does not run at these values; each value asked for is traced
        affine = Affine.through(_FIRST, first, _SECOND, second)
        if affine is not None and affine.gives(_VERIFIED, third):
            self._affine = affine
        return self._affine is not None

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
            is_affine=bool(self._is_affine),
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
        raise UsageError(f"--device {name}: choose a card of known size; `memgauge devices` lists them")
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
