"""Set two recordings of jobs side by side: peaks with their kinds, phases by name and value, duration and CPU time.

A difference is always A minus B, and a percentage is of B; what one side does not know leaves both unknown.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from memgauge.explain.recorded import LARGEST, NO_PSS, ON_GPU, TREE_PSS, PhaseOf, Recording, SpanOf
from memgauge.explain.rows import Row, difference
from memgauge.units import format_difference

_Peak: TypeAlias = tuple[int | None, str]  # bytes and kind


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
    a_unknown: str = ""  # why it is not known, where that is known
    b_unknown: str = ""


class TimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One duration on both sides."""

    name: str
    a_us: int | None
    b_us: int | None
    difference_us: int | None
    percent_of_b: float | None


class SpanRow(PeakRow, frozen=True, kw_only=True):
    """One phase of each side; the bytes are the peak of the process that declared it."""

    time: TimeRow
    a_unfinished: int = 0  # how many of A's were open when their process or the recording ended
    b_unfinished: int = 0
    # What else was held meanwhile, if a side knows it; the framework's is what it counted itself.
    tree_rss: PeakRow | None = None
    tree_pss: PeakRow | None = None
    gpu: PeakRow | None = None
    framework: PeakRow | None = None


class PhaseRow(SpanRow, frozen=True, kw_only=True):
    """All phases of one name."""

    a_count: int
    b_count: int
    values: tuple[SpanRow, ...] = ()  # each by its value, where values tell those of both sides apart


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
    """Return the peaks that a summary of each side shows; of PSS why a side has none."""
    of_a, of_b = _by_name(a), _by_name(b)
    names = list({**of_a, **of_b})
    if LARGEST in names and TREE_PSS not in names:
        names.insert(names.index(LARGEST) + 1, TREE_PSS)
    rows = (_peak(name, of_a.get(name), of_b.get(name)) for name in names)
    return tuple(_explained(row, a, b) if row.name == TREE_PSS else row for row in rows)


def _by_name(side: Recording) -> dict[str, _Peak]:
    """Return the peaks of a side, the highest of those that have one name on both."""
    found: dict[str, _Peak] = {}
    for peak in side.shown_peaks():
        name = f"process {ON_GPU}, largest" if peak.name.endswith(f" {ON_GPU}") else peak.name
        if name not in found or peak.bytes > (found[name][0] or 0):
            found[name] = (peak.bytes, peak.kind)
    return found


def _explained(row: PeakRow, a: Recording, b: Recording) -> PeakRow:
    return msgspec.structs.replace(
        row,
        a_unknown="" if row.a_kind else a.unknown.get(NO_PSS, ""),
        b_unknown="" if row.b_kind else b.unknown.get(NO_PSS, ""),
    )


def _peak(name: str, a: _Peak | None, b: _Peak | None) -> PeakRow:
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
    a_spans, b_spans = ({} if p is None else p.by_value() for p in (a, b))
    values = {**a_spans, **b_spans} if a_spans and b_spans else {}
    return PhaseRow(
        **_common(name, a, b),
        time=_time("total", *(None if p is None else p.total_us for p in (a, b))),
        a_count=0 if a is None else a.count,
        b_count=0 if b is None else b.count,
        a_unfinished=0 if a is None else a.unfinished,
        b_unfinished=0 if b is None else b.unfinished,
        values=tuple(_value(v, a_spans.get(v), b_spans.get(v)) for v in values) if len(values) > 1 else (),
    )


def _value(value: str, a: SpanOf | None, b: SpanOf | None) -> SpanRow:
    return SpanRow(
        **_common(value, a, b),
        time=_time("time", *(None if s is None else s.end_us - s.begin_us for s in (a, b))),
        a_unfinished=int(a is not None and not a.is_finished),
        b_unfinished=int(b is not None and not b.is_finished),
    )


def _common(name: str, a: PhaseOf | SpanOf | None, b: PhaseOf | SpanOf | None) -> dict[str, Any]:
    """Return what all phases of a name and a single one have: the peak of the process, and what else was held."""

    def row(key: str, kind: str = "") -> PeakRow:
        sides = (
            None if p is None else (getattr(p, f"{key}_bytes"), kind or getattr(p, f"{key}_kind"))
            for p in (a, b)
        )
        return _peak(name, *sides)

    others = {
        "tree_rss": row("tree_peak", "lower bound"),
        "tree_pss": row("tree_pss_peak", "sampled"),
        "gpu": row("gpu_peak", "lower bound"),
        "framework": row("device_peak"),
    }
    known = {key: found for key, found in others.items() if found.a_kind or found.b_kind}
    return {**msgspec.structs.asdict(row("peak")), **known}


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
