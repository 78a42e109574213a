"""Set two recordings of jobs side by side: peaks with their kinds, phases by name, duration and CPU time.

A difference is always A minus B, and a percentage is of B; what one side does not know leaves both unknown.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

import msgspec

from memgauge.explain.recorded import PhaseOf, Recording
from memgauge.explain.rows import Row, difference
from memgauge.units import format_difference


class RecordingSide(msgspec.Struct, frozen=True, kw_only=True):
    """Which recording one side is."""

    file: str
    command: str
    title: str | None
    host: str
    state: str
    ended: str


class PeakRow(Row, frozen=True, kw_only=True):
    """One peak of the run, with what each side's is worth; "" where it has none."""

    a_kind: str
    b_kind: str


class TimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One duration on both sides."""

    name: str
    a_us: int | None
    b_us: int | None
    difference_us: int | None
    percent_of_b: float | None


class PhaseRow(PeakRow, frozen=True, kw_only=True):
    """All phases of one name; the bytes are the peak of the process that declared them."""

    a_count: int
    b_count: int
    time: TimeRow
    framework: PeakRow | None  # the framework's own peak, if a side knows it


class RecordingsComparison(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.compare-recordings/1"
):
    """Two recordings side by side."""

    gap: str
    a: RecordingSide
    b: RecordingSide
    peaks: tuple[PeakRow, ...]
    phases: tuple[PhaseRow, ...]
    times: tuple[TimeRow, ...]


def compare_recordings(a: Recording, b: Recording) -> RecordingsComparison:
    """Return two recordings side by side.

    Args:
        a: What a recording says.
        b: What it is compared with: differences are `a - b`, percentages are of `b`.
    """
    peaks = _peaks(a, b)
    a_phases, b_phases = ({p.name: p for p in side.phases} for side in (a, b))
    phases = tuple(_phase(n, a_phases.get(n), b_phases.get(n)) for n in {**a_phases, **b_phases})
    return RecordingsComparison(
        gap=_gap(peaks, phases),
        a=_side(a),
        b=_side(b),
        peaks=peaks,
        phases=phases,
        times=(
            _time("duration", a.duration_us, b.duration_us),
            _time("CPU time", *(None if s.cpu_ns is None else s.cpu_ns // 1000 for s in (a, b))),
        ),
    )


def _side(recording: Recording) -> RecordingSide:
    command = shlex.join(recording.command) if recording.command else ""
    return RecordingSide(
        file=recording.file,
        command=command or (recording.processes[0].command if recording.processes else ""),
        title=recording.title,
        host=recording.host,
        state=recording.state,
        ended=recording.ended,
    )


def _peaks(a: Recording, b: Recording) -> tuple[PeakRow, ...]:
    """Return the peaks that a summary of each side shows."""
    of_a, of_b = ({p.name: (p.bytes, p.kind) for p in side.shown_peaks()} for side in (a, b))
    return tuple(_peak(name, of_a.get(name), of_b.get(name)) for name in {**of_a, **of_b})


def _peak(name: str, a: tuple[int | None, str] | None, b: tuple[int | None, str] | None) -> PeakRow:
    (a_bytes, a_kind), (b_bytes, b_kind) = a or (None, ""), b or (None, "")
    found, percent = difference(a_bytes, b_bytes)
    return PeakRow(
        name=name,
        a_bytes=a_bytes,
        b_bytes=b_bytes,
        difference_bytes=found,
        percent_of_b=percent,
        a_kind=a_kind if a_bytes is not None else "",
        b_kind=b_kind if b_bytes is not None else "",
    )


def _phase(name: str, a: PhaseOf | None, b: PhaseOf | None) -> PhaseRow:
    peak = _peak(name, *(None if p is None else (p.peak_bytes, p.peak_kind) for p in (a, b)))
    framework = _peak(
        name, *(None if p is None else (p.device_peak_bytes, p.device_peak_kind) for p in (a, b))
    )
    is_known = framework.a_bytes is not None or framework.b_bytes is not None
    return PhaseRow(
        **msgspec.structs.asdict(peak),
        a_count=0 if a is None else a.count,
        b_count=0 if b is None else b.count,
        time=_time("total", *(None if p is None else p.total_us for p in (a, b))),
        framework=framework if is_known else None,
    )


def _time(name: str, a_us: int | None, b_us: int | None) -> TimeRow:
    found, percent = difference(a_us, b_us)
    return TimeRow(name=name, a_us=a_us, b_us=b_us, difference_us=found, percent_of_b=percent)


def _gap(peaks: Iterable[PeakRow], phases: Iterable[PhaseRow]) -> str:
    """Say how the first peak that both know differs, and the phase that differs most in that direction."""
    first = next((p for p in peaks if p.difference_bytes is not None), None)
    if first is None:
        return "No peak is known in both recordings."
    said = f"Peak of {first.name}"
    if not first.difference_bytes:
        return f"{said}: equal to the byte in A and B."
    sign = 1 if first.difference_bytes > 0 else -1
    most = max(phases, key=lambda p: sign * (p.difference_bytes or 0), default=None)
    said += f": A is {format_difference(first.difference_bytes, first.b_bytes)} against B"
    if most is not None and sign * (most.difference_bytes or 0) > 0:
        amount = format_difference(most.difference_bytes, most.b_bytes)
        said += f"; the phase that differs most is {most.name}, {amount}"
    return f"{said}."
