"""A workload of which one argument varies, on one card: one row of a table for each value.

Sizes of events are affine in the batch size: two traces give every other by replay alone, a third
verifies it, and the value that is found is traced as well. Where it does not hold, a line is drawn
through larger values; where none holds, each value is traced.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from memgauge.affine import Affine
from memgauge.allocators.settings import CudaSettings
from memgauge.arguments import TargetOptions
from memgauge.device_memory import DeviceMemory, device_memory
from memgauge.devices import Device
from memgauge.devices.stack import Stack
from memgauge.errors import UsageError, WorkloadError, missing_extra
from memgauge.records import Fits, Range, Trace
from memgauge.run_settings import of_the_environment
from memgauge.targets import resolve

OPTION_NAMES = ("batch_size", "image_size", "sequence_length")
_NO_NUMBERS = tuple(f.name for f in dataclasses.fields(TargetOptions) if f.name not in OPTION_NAMES)
# Values of the two traces and of the one that verifies them.
_FIRST, _SECOND, _VERIFIED = 8, 16, 40
_LINES = 4  # so many lines are tried, each at larger values, before every value is traced


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a run takes at one place of a table."""

    device: str
    value: int | None
    allocated_bytes: int
    reserved_bytes: Range
    device_bytes: Range
    fits: Fits


class Curve(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.curve/1"):
    """One workload on one card over values of an argument."""

    workload: dict[str, object]
    device: str
    argument: str
    rows: tuple[Row, ...]
    is_affine: bool  # whether values were replayed from two traces that a third verified
    affine_from: int | None  # the least value from which on they were
    traced: tuple[int, ...]  # values that were traced
    assumptions: tuple[str, ...] = ()  # of the trace of the largest
    elapsed_ns: int


class Varied:
    """A workload of which one argument varies, on one card; traces as little as it can, and tells what it traces."""

    def __init__(
        self,
        target: str,
        place: Device,
        name: str,
        options: TargetOptions,
        sets: Mapping[str, str],
        steps: int,
        stack: Stack | None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        if name in _NO_NUMBERS:
            raise UsageError(
                f"--vary {name}: that is no whole number; vary {', '.join(OPTION_NAMES)} or a whole-number "
                f"argument of {target}, and give --{name} for each run"
            )
        if name in OPTION_NAMES and getattr(options, name) is not None:
            raise UsageError(f"{name} is both given and varied; leave out --{name.replace('_', '-')}")
        if name in sets:
            raise UsageError(f"{name} is both given and varied; leave out --set {name}={sets[name]}")
        self.place, self.name = place, name
        self.traced: dict[int, Trace] = {}
        self.description: dict[str, object] = {}
        self._target, self._options, self._sets = target, options, dict(sets)
        self._trace, software = tracer(steps, stack)
        self._tell = tell
        self.stack = software(place)
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
            self._tell(f"tracing {self._target} with {self.name}={value} on {self.place.name}")
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
        if len({len(trace.events) for trace in traces}) == len(traces):
            self.drop_lines()  # it is a number of layers, or the like: other events, not other sizes
            return
        line = Affine.through(first, traces[0], second, traces[1])
        if line is not None and line.gives(verified, traces[2]):
            self._line = line

    def row(self, value: int, allocator: CudaSettings | None) -> Row:
        """Return what the run takes at a value."""
        memory = device_memory(self.trace(value), self.place, self.stack, allocator)
        return row_of(self.place, value, memory)

    def curve(self, rows: tuple[Row, ...], begin_ns: int, allocator: CudaSettings | None = None) -> Curve:
        """Return the table of these rows."""
        largest = self.traced[max(self.traced)]
        return Curve(
            workload=self.description,
            device=self.place.name,
            argument=self.name,
            rows=rows,
            is_affine=self._line is not None,
            affine_from=None if self._line is None else self._line.origin,
            traced=tuple(sorted(self.traced)),
            assumptions=(*largest.assumptions, *of_the_environment(largest, allocator)),
            elapsed_ns=time.perf_counter_ns() - begin_ns,
        )


def row_of(place: Device, value: int | None, memory: DeviceMemory) -> Row:
    """Return what a run takes on a card, as a row of a table."""
    return Row(
        device=place.name,
        value=value,
        allocated_bytes=max(memory.timeline.allocated_bytes, default=0),
        reserved_bytes=memory.reserved,
        device_bytes=memory.device,
        fits=memory.fits,
    )


Tracer = tuple[Callable[[Any, Device], Trace], Callable[[Device], Stack]]


def tracer(steps: int, stack: Stack | None) -> Tracer:
    """Return a function that traces a workload on a card, and one that says which software is on it.

    Raises:
        UsageError: `steps` is below 1.
        MissingError: torch is not installed.
    """
    if steps < 1:
        raise UsageError(f"steps={steps}: a run has at least one step")
    try:
        from memgauge.frameworks.torch import predict
    except ModuleNotFoundError as error:
        raise missing_extra("torch", "torch") from error
    from memgauge.estimate import traced

    def software(place: Device) -> Stack:
        return predict.stack_on(place, stack)

    def trace(workload: Any, place: Device) -> Trace:
        return traced(workload, place, steps=steps, threads=1, stack=software(place))

    return trace, software
