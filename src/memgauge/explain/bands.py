"""The phases of a run: each begin with its end, and all of one name with their peak."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from memgauge.explain.recorded import PhaseOf
from memgauge.explain.samples import ProcessSamples, Sums
from memgauge.storage import SPAN, Mark, RunFile


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """One phase as it was: from, to, nested how deep."""

    mark: int  # id of the mark that began it
    name: str
    value: str | None
    pid: int
    begin_us: int
    end_us: int
    depth: int
    is_finished: bool
    begin_facts: dict[str, Any]
    end_facts: dict[str, Any]


def bands(marks: Iterable[Mark], end_us: int) -> list[Band]:
    """Return the phases of a run, each begin with its end; what never ended lasts until the run's end."""
    open_by_pid: dict[int, list[Mark]] = {}
    found: list[Band] = []

    def close(begun: Mark, end: int, depth: int, facts: dict[str, Any] | None) -> None:
        found.append(
            Band(
                mark=begun.id,
                name=begun.name,
                value=begun.value,
                pid=begun.pid,
                begin_us=begun.time_us,
                end_us=max(end, begun.time_us),
                depth=depth,
                is_finished=facts is not None,
                begin_facts=begun.facts,
                end_facts=facts or {},
            )
        )

    for mark in sorted(marks, key=lambda m: (m.time_us, m.id)):
        stack = open_by_pid.setdefault(mark.pid, [])
        if mark.kind == "begin":
            stack.append(mark)
        elif mark.kind == "end":
            for place in range(len(stack) - 1, -1, -1):
                if _belongs(mark, stack[place]):
                    close(stack.pop(place), mark.time_us, place, mark.facts)
                    break
    for stack in open_by_pid.values():
        for depth, begun in enumerate(stack):
            close(begun, end_us, depth, None)
    return sorted(found, key=lambda b: (b.begin_us, b.depth))


def _belongs(end: Mark, begun: Mark) -> bool:
    """Return whether it ends that phase; files of before phases were numbered have names only."""
    return end.name == begun.name and end.facts.get(SPAN) == begun.facts.get(SPAN)


def phases_of(run: RunFile, found: list[Band], rss: Sums) -> tuple[PhaseOf, ...]:
    """Return the phases by name, each with its peak: exact where a counter has it."""
    exact = {row.phase: row.bytes for row in run.peaks if row.phase is not None and row.metric == "rss_bytes"}
    group_peaks = {p.phase: p for p in run.peaks if p.phase is not None and p.metric == "cgroup_bytes"}
    by_name: dict[str, list[Band]] = {}
    for band in found:
        by_name.setdefault(band.name, []).append(band)
    sampled = ProcessSamples(run) if any(b.mark not in exact for b in found) else None
    result = []
    for name, group in by_name.items():
        peaks = [exact.get(b.mark) for b in group]
        if sampled is not None and None in peaks:
            bounds = [sampled.highest(b.pid, b.begin_us, b.end_us) for b in group]
            values = [e if e is not None else s for e, s in zip(peaks, bounds, strict=True)]
            highest = max((v for v in values if v is not None), default=None)
            kind = (
                "exact" if highest is not None and highest in peaks and None not in peaks else "lower bound"
            )
        else:
            highest, kind = max((p for p in peaks if p is not None), default=None), "exact"
        tree = [t for b in group if (t := rss.highest(b.begin_us, b.end_us)) is not None]
        device, device_kind = _device_peak(group)
        together = max(
            (group_peaks[b.mark] for b in group if b.mark in group_peaks),
            key=lambda p: p.bytes,
            default=None,
        )
        result.append(
            PhaseOf(
                name=name,
                count=len(group),
                total_us=sum(b.end_us - b.begin_us for b in group),
                peak_bytes=highest,
                peak_kind=kind if highest is not None else "unknown",
                tree_peak_bytes=max(tree, default=None),
                group_peak_bytes=None if together is None else together.bytes,
                group_peak_kind="" if together is None else together.kind,
                device_peak_bytes=device,
                device_peak_kind=device_kind,
                unfinished=sum(not b.is_finished for b in group),
            )
        )
    return tuple(result)


def _device_peak(group: list[Band]) -> tuple[int | None, str]:
    """Return torch's peak over phases of one name; it is theirs if it grew within, else an upper bound."""
    best: tuple[int | None, str] = (None, "")
    for band in group:
        after = band.end_facts.get("allocated_peak_bytes")
        before = band.begin_facts.get("allocated_peak_bytes")
        if after is None:
            continue
        now = band.begin_facts.get("allocated_bytes")
        is_own = before is None or after > before or before == now
        kind = "exact" if is_own else "upper bound"
        if best[0] is None or after > best[0]:
            best = (int(after), kind)
    return best
