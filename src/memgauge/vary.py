"""One workload over many cards, or over many values of a whole-number argument; the largest that fits."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from memgauge import devices
from memgauge.allocators.settings import CudaSettings
from memgauge.allocators.sized import resized
from memgauge.arguments import TargetOptions
from memgauge.device_memory import device_memory
from memgauge.devices import Device, libraries
from memgauge.devices.convolutions import Convolution, Convolver
from memgauge.devices.libraries import cublas_bytes_of
from memgauge.devices.stack import Stack
from memgauge.errors import MemgaugeError, TraceError, UsageError
from memgauge.explain.peak import first_peak
from memgauge.records import ASKED_CARD, Trace
from memgauge.run_settings import of_the_environment
from memgauge.targets import resolve
from memgauge.varied import Curve, Row, Varied, row_of, tracer

_LOWEST_POWERS = 11  # the search begins at 1, or at a power of two up to 1024
_FEW, _FARTHEST = 16, 16  # times the first value are looked at by doubling; how far a guess may go at once
_LARGEST = 2**40  # more is no size of anything; memory does not depend on the value


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.catalogue/1"):
    """One workload on every card of the catalogue."""

    workload: dict[str, object]
    rows: tuple[Row, ...]
    left_out: tuple[str, ...] = ()  # cards that the software has no kernels for: why
    assumptions: tuple[str, ...] = ()  # of all traces
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
        UsageError: It is not of that form, a value is no whole number of at least 1, or written twice.
    """
    name, equals, values = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise UsageError(f"--vary {text}: write --vary NAME=A,B,C, such as batch_size=8,16,32")
    found = []
    for value in values.split(","):
        if not value.strip().isdecimal() or int(value) < 1:
            raise UsageError(f"--vary {text}: {value.strip()!r} is no whole number of at least 1")
        if int(value) in found:
            raise UsageError(f"--vary {text}: {value.strip()} is written twice")
        found.append(int(value))
    return name.strip(), tuple(found)


def over_catalogue(
    target: str,
    *,
    options: TargetOptions,
    sets: Mapping[str, str],
    steps: int = 3,
    allocator: CudaSettings | None = None,
    stack: Stack | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Catalogue:
    """Return what a workload takes on every card of the catalogue, smallest card first.

    Cards that run the same kernels share a trace, in which the workspaces of convolutions are each card's own,
    unless something else in it depends on the very card.
    Those that the software has no kernels for are left out, and said. `tell` hears which card is next.
    """
    begin = time.perf_counter_ns()
    traced, software = tracer(steps, stack)
    workload = resolve(target, options, sets)
    traces: dict[object, Trace] = {}
    rows, left_out = [], []
    cards = sorted(devices.gpus(), key=lambda d: (d.capacity_bytes or 0, d.name))
    for number, place in enumerate(cards, start=1):
        tell(f"predicting {target} on {place.name}, {number} of {len(cards)} cards")
        try:
            on_card = software(place)
        except UsageError as error:
            left_out.append(f"{place.name}: {error}")
            continue
        key = place.compute_capability, cublas_bytes_of(place, on_card)
        if key not in traces or _depends_on_card(traces[key]):
            traces[key] = traced(workload, place)
        trace = convolved_on(place, traces[key])
        rows.append(row_of(place, None, device_memory(trace, place, on_card, allocator)))
    return Catalogue(
        workload=dict(workload.description),
        rows=tuple(rows),
        left_out=tuple(left_out),
        assumptions=tuple(
            dict.fromkeys(
                text
                for trace in traces.values()
                for text in (*trace.assumptions, *of_the_environment(trace, allocator))
            )
        ),
        elapsed_ns=time.perf_counter_ns() - begin,
    )


def _depends_on_card(trace: Trace) -> bool:
    """Return whether the program asked about the card, or cuDNN searches: which plans it tries, the card decides."""
    return any(line.startswith(ASKED_CARD) for line in trace.assumptions) or any(
        scratch.mechanism == libraries.SEARCH for scratch in trace.scratch.values()
    )


def convolved_on(place: Device, trace: Trace) -> Trace:
    """Return the trace with the workspaces of its convolutions as a card has them that runs the same kernels."""
    convolver = Convolver.of(place)
    sizes: dict[int, int] = {}
    scratch = dict(trace.scratch)
    for storage, taken in trace.scratch.items():
        if isinstance(taken.call, Convolution):
            size = convolver.workspace(taken.call)
            sizes[storage] = max(size.expected, 1)
            scratch[storage] = taken._replace(low_bytes=size.low, high_bytes=size.high)
    if not sizes:
        return trace
    return dataclasses.replace(trace, events=list(resized(trace.events, sizes)), scratch=scratch)


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
    tell: Callable[[str], None] = lambda _: None,
) -> Curve:
    """Return what a workload takes on a card at each of the values.

    Raises:
        UsageError: The argument is unknown, or the device is no card.
    """
    begin = time.perf_counter_ns()
    varied = Varied(target, _card(device), name, options, sets, steps, stack, tell)
    if not varied.confirm(max(values)):
        varied.drop_lines()
    rows = tuple(varied.row(value, allocator) for value in values)
    return varied.curve(rows, begin, allocator)


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
    tell: Callable[[str], None] = lambda _: None,
) -> Largest:
    """Return the largest value of an argument with which the workload fits a card, and the curve to it.

    Raises:
        UsageError: The argument is unknown, the device is no card, or memory does not grow with it.
    """
    begin = time.perf_counter_ns()
    varied = Varied(target, _card(device), name, options, sets, steps, stack, tell)
    search = _Search(varied, allocator)
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
        memory = device_memory(trace, varied.place, varied.stack, allocator)
        event = trace.events[first_peak(memory.timeline)]
        binding = {"phase": event.phase, "operator": event.operator, "layer": event.layer}
        assumptions = (*trace.assumptions, *memory.assumptions)
    return Largest(
        surely=surely,
        probably=probably,
        binds=binding,
        limit=search.limit(probably or start),
        curve=varied.curve(tuple(rows[value] for value in ends), begin, allocator),
        assumptions=assumptions,
    )


class _Search:
    """The search for the largest value: what was found at each, and which values the target does not take."""

    def __init__(self, varied: Varied, settings: CudaSettings | None) -> None:
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

        def most(row: Row) -> int:
            return row.device_bytes.high

        def expected(row: Row) -> int:
            least = row.fits.least_capacity_bytes
            return row.device_bytes.expected if least is None else least.expected

        name = self._varied.name
        first = _last(surely, name, start, self._guess(most))
        return first, _last(probably, name, first or start, self._guess(expected))

    def _guess(self, need: Callable[[Row], int]) -> Callable[[int, int], int | None]:
        """Return what guesses where the need meets what the card has: on the line through two values."""

        def through(first: int, second: int) -> int | None:
            low, high = self.row(first), self.row(second)
            if low is None or high is None or need(high) <= need(low) or low.fits.capacity_bytes is None:
                return None
            share = (low.fits.capacity_bytes - need(low)) / (need(high) - need(low))
            return first + int(share * (second - first))

        return through

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


def _last(
    holds: Callable[[int], bool],
    name: str,
    at_least: int = 1,
    guess: Callable[[int, int], int | None] = lambda *_: None,
) -> int | None:
    """Return the largest value for which `holds`, which is taken to hold below any value it holds for.

    Args:
        holds: Is asked seldom: the value may have to be traced.
        name: Of the argument.
        at_least: Where to begin.
        guess: Where it ends to hold by what is known of two values; there it is looked first, and then near to it.
    """
    if not holds(at_least):
        return None
    below, above = at_least, at_least * 2
    while holds(above):
        guessed = guess(below, above) if above >= _FEW * at_least else None
        farthest = above * (2 if guessed is None else _FARTHEST)
        below, above = above, farthest if guessed is None else min(max(guessed, above) + 1, farthest)
        if above > _LARGEST:
            raise UsageError(
                f"memory does not grow with {name}: {below} still fits, so no largest value exists"
            )
    guessed = guess(below, above) if above - below > 1 else None
    if guessed is not None:
        below, above = _near(min(max(guessed, below + 1), above - 1), below, above, holds)
    while above - below > 1:
        middle = (below + above) // 2
        if holds(middle):
            below = middle
        else:
            above = middle
    return below


def _near(guessed: int, below: int, above: int, holds: Callable[[int], bool]) -> tuple[int, int]:
    """Return a narrower pair of values, of which it holds for the first and not for the second."""
    step = 1
    if holds(guessed):
        below = guessed
        while below + step < above and holds(below + step):
            below, step = below + step, step * 2
        return below, min(above, below + step)
    above = guessed
    while above - step > below and not holds(above - step):
        above, step = above - step, step * 2
    return max(below, above - step), above


def _card(name: str) -> Device:
    place = devices.find(name)
    if place.kind != "cuda" or place.capacity_bytes is None:
        here = "run memgauge calibrate first, or " if name == "cuda" else ""
        raise UsageError(f"--device {name}: {here}choose a card of known size; `memgauge devices` lists them")
    return place
