"""The phases of a run: each begin with its end, and all of one name with their peak."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from memgauge.explain.recorded import PhaseOf, SpanOf
from memgauge.explain.samples import ProcessSamples, Sums
from memgauge.storage import SPAN, Mark, Process, RunFile

# Of each CPU: 32 pages of anonymous memory and 32 of files' (percpu_counter_batch, kernel, lib/percpu_counter.c).
_BATCH_BYTES = 64 * 4096


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """One phase as it was: from, to, nested how deep."""

    mark: int  # id of the mark that began it
    end_mark: int | None  # of the one that ended it
    name: str
    value: str | None
    pid: int
    begin_us: int
    end_us: int
    depth: int
    begin_facts: dict[str, Any]
    end_facts: dict[str, Any]

    @property
    def is_finished(self) -> bool:
        return self.end_mark is not None

    def within(self, begin_us: int | None, end_us: int | None) -> Band | None:
        """Return as much of it as lies in a span, of which either side may be open; None if nothing does."""
        begin = self.begin_us if begin_us is None else max(self.begin_us, begin_us)
        end = self.end_us if end_us is None else min(self.end_us, end_us)
        return msgspec.structs.replace(self, begin_us=begin, end_us=end) if begin <= end else None


def titled(said: Mark | Band) -> str:
    """Return what a phase or a mark is called, with its value if it has one."""
    return said.name if said.value is None else f"{said.name} {said.value}"


def bands(marks: Iterable[Mark], end_us: int, processes: Iterable[Process] = ()) -> list[Band]:
    """Return the phases of a run, each begin with its end; what never ended lasts as long as its process.

    Args:
        marks: Of the run.
        end_us: The end of the run, and of what was open in a process that was not seen to end.
        processes: Of the run.
    """
    ends = [(p.pid, p.gone_us) for p in processes if p.gone_us is not None]
    open_by_pid: dict[int, list[Mark]] = {}
    found: list[Band] = []

    def close(begun: Mark, end: Mark | None, depth: int, until_us: int) -> None:
        found.append(
            Band(
                mark=begun.id,
                end_mark=None if end is None else end.id,
                name=begun.name,
                value=begun.value,
                pid=begun.pid,
                begin_us=begun.time_us,
                end_us=max(until_us, begun.time_us),
                depth=depth,
                begin_facts=begun.facts,
                end_facts={} if end is None else end.facts,
            )
        )

    for mark in sorted(marks, key=lambda m: (m.time_us, m.id)):
        stack = open_by_pid.setdefault(mark.pid, [])
        if mark.kind == "begin":
            stack.append(mark)
        elif mark.kind == "end":
            for place in range(len(stack) - 1, -1, -1):
                if _belongs(mark, stack[place]):
                    close(stack.pop(place), mark, place, mark.time_us)
                    break
    for pid, stack in open_by_pid.items():
        for depth, begun in enumerate(stack):
            later = [gone_us for of, gone_us in ends if of == pid and gone_us >= begun.time_us]
            close(begun, None, depth, min([end_us, *later]))
    return sorted(found, key=lambda b: (b.begin_us, b.depth))


def _belongs(end: Mark, begun: Mark) -> bool:
    """Return whether it ends that phase; files of before phases were numbered have names only."""
    return end.name == begun.name and end.facts.get(SPAN) == begun.facts.get(SPAN)


def phases_of(run: RunFile, found: list[Band], rss: Sums, pss: Sums) -> tuple[PhaseOf, ...]:
    """Return the phases by name, each with its peak: exact where a counter has it.

    Counters of a recent kernel are kept for each CPU apart, and VmHWM is taken without what waits there: where
    one process is the tree, a sample may be higher by that, and is then the better figure.
    """
    alone_bytes = _BATCH_BYTES * int(run.header.get("cores") or 1) if len(run.processes) == 1 else 0
    sums = (rss, pss, Sums(run, "gpu_used_bytes"))
    exact = {row.phase: row.bytes for row in run.peaks if row.phase is not None and row.metric == "rss_bytes"}
    group_peaks = {p.phase: p for p in run.peaks if p.phase is not None and p.metric == "cgroup_bytes"}
    sampled = ProcessSamples(run) if any(b.mark not in exact for b in found) else None
    by_name: dict[str, list[Band]] = {}
    for band in found:
        by_name.setdefault(band.name, []).append(band)
    result = []
    for name, group in by_name.items():
        each = tuple(_span(band, exact.get(band.mark), sampled, sums, alone_bytes) for band in group)
        highest = _highest(s.peak_bytes for s in each)
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
                total_us=sum(s.end_us - s.begin_us for s in each),
                peak_bytes=highest,
                peak_kind="unknown" if highest is None else _kind_of(each),
                tree_peak_bytes=_highest(s.tree_peak_bytes for s in each),
                tree_pss_peak_bytes=_highest(s.tree_pss_peak_bytes for s in each),
                gpu_peak_bytes=_highest(s.gpu_peak_bytes for s in each),
                group_peak_bytes=None if together is None else together.bytes,
                group_peak_kind="" if together is None else together.kind,
                device_peak_bytes=device,
                device_peak_kind=device_kind,
                unfinished=sum(not b.is_finished for b in group),
                each=each,
            )
        )
    return tuple(result)


def _highest(found: Iterable[int | None]) -> int | None:
    return max((count for count in found if count is not None), default=None)


def _span(
    band: Band, exact: int | None, sampled: ProcessSamples | None, sums: tuple[Sums, ...], alone_bytes: int
) -> SpanOf:
    peak, kind = exact, "exact"
    if peak is None and sampled is not None:
        peak, kind = sampled.highest(band.pid, band.begin_us, band.end_us), "lower bound"
    rss, pss, gpu = (each.highest(band.begin_us, band.end_us) for each in sums)
    if peak is not None and rss is not None and peak < rss <= peak + alone_bytes:
        peak = rss
    rss = _highest((rss, peak))  # the tree held what one process of it did
    device, device_kind = _device_peak([band])
    return SpanOf(
        value=band.value,
        pid=band.pid,
        begin_us=band.begin_us,
        end_us=band.end_us,
        peak_bytes=peak,
        peak_kind="unknown" if peak is None else kind,
        tree_peak_bytes=rss,
        tree_pss_peak_bytes=pss,
        gpu_peak_bytes=gpu,
        device_peak_bytes=device,
        device_peak_kind=device_kind,
        is_finished=band.is_finished,
    )


def _kind_of(each: Iterable[SpanOf]) -> str:
    """Return what the highest of their peaks is worth: one that was not counted may have been higher."""
    return "exact" if all(span.peak_kind == "exact" for span in each) else "lower bound"


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
