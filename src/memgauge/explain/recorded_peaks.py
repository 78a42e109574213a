"""The peaks that a run file tells of, each with its kind: counters first, then the highest samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from memgauge.explain.recorded import GROUP, LARGEST, ON_GPU, TREE_PSS, PeakOf
from memgauge.explain.samples import Sums, chunks_of, median
from memgauge.storage import PeakRow, RunFile
from memgauge.units import format_bytes, format_duration

_ABOUT = 0.9  # of the highest RSS: where PSS was read at about the peak
_AT_THE_TOP = 0.98  # likewise, for a reading to be taken for that of the peak
_OF_ONE, _AT_LEAST = ("largest_process_bytes", "rss_bytes"), ("exact", "lower bound")  # of the rows of peaks
# What a kind is worth without a last reading: of what may include more the truth lies above or below then.
_UNCONFIRMED = {"exact": "lower bound", "upper bound": "sampled"}
_LOST = "last read before the sampler was lost"
_NOT_CHARGED = (
    "a process alone held more: pages of files that were in the cache before are not charged to the group"
)
_UNEVEN = 3  # a gap between samples that is so many times as long as the median is worth saying


def known_peaks(run: RunFile, state: str, lasts: dict[int, tuple[int, int, int]]) -> list[PeakRow]:
    """Return the peaks in the file; of what lived when the sampler was lost nobody read the last.

    Args:
        run: The file.
        state: Whether it has ended, grows or was lost.
        lasts: First, last and highest value of each series.
    """
    rows = run.peaks
    if state == "lost":
        ended = {p.id for p in run.processes if p.gone_us is not None}
        rows = [
            p._replace(
                kind=_UNCONFIRMED.get(p.kind, p.kind), reason="; ".join(filter(None, (p.reason, _LOST)))
            )
            if p.phase is None and p.process not in ended and p.metric != "largest_process_bytes"
            else p
            for p in rows
        ]
    # The sampler tells of the largest process at the end only.
    if any(p.metric == "largest_process_bytes" for p in rows):
        return rows
    return [*rows, *_largest_so_far(run, rows, state, lasts)]


def _largest_so_far(
    run: RunFile, rows: list[PeakRow], state: str, lasts: dict[int, tuple[int, int, int]]
) -> Iterator[PeakRow]:
    """Yield the largest process by what is in the file of each, if there is one."""
    pids = {p.id: p.pid for p in run.processes}
    of_each = {p.process: p for p in rows if p.metric == "rss_bytes" and p.phase is None}
    for s in run.series:
        if s.metric == "rss_bytes" and s.id in lasts and s.process not in of_each:
            of_each[s.process] = PeakRow(
                s.metric, lasts[s.id][2], "lower bound", s.instrument, "highest sample", s.process, None, None
            )
    largest = max(of_each.values(), key=lambda p: p.bytes, default=None)
    if largest is None:
        return
    kind, reason = largest.kind, largest.reason
    if kind == "exact":
        if run.header.get("unseen_processes"):
            kind, reason = "lower bound", "another process was never read"
        elif state == "lost":
            kind, reason = "lower bound", f"another process was {_LOST}"
        elif any(p.kind not in ("exact", "upper bound") for p in of_each.values()):
            kind, reason = "lower bound", "another process may have grown after its last reading"
    who = f"{largest.instrument} of process {pids.get(largest.process or 0, '?')}"
    yield PeakRow("largest_process_bytes", largest.bytes, kind, who, reason, None, None, None)


def alone_bytes(rows: Iterable[PeakRow]) -> int:
    """Return what a process alone held at least, 0 if nothing is known."""
    return max((p.bytes for p in rows if p.metric in _OF_ONE and p.kind in _AT_LEAST), default=0)


def peaks_of(
    run: RunFile,
    rows: list[PeakRow],
    lasts: dict[int, tuple[int, int, int]],
    rss: Sums,
    pss: Sums,
    used: Sums,
) -> Iterator[PeakOf]:
    """Yield the peaks of the run as a whole.

    Args:
        run: The file.
        rows: Its peaks, from `known_peaks`.
        lasts: First, last and highest value of each series.
        rss, pss, used: What the tree held, with shared pages in each process and once; what the system used.
    """
    alone = alone_bytes(rows)
    is_missed = alone > max(rss.total, default=0) / _ABOUT
    sampled = max(
        (lasts[s.id][2] for s in run.series if s.metric == "rss_bytes" and s.id in lasts), default=0
    )
    for row in rows:
        if row.metric == "largest_process_bytes":
            yield PeakOf(
                name=LARGEST,
                bytes=max(row.bytes, sampled),  # the kernel's counter may lag by some pages of each CPU
                kind=row.kind,
                instrument=row.instrument,
                reason=row.reason,
            )
    for row in rows:
        if row.metric == "cgroup_bytes" and row.phase is None:
            is_short = alone > row.bytes
            yield PeakOf(
                name=GROUP,
                bytes=row.bytes,
                kind="lower bound" if is_short else row.kind,
                instrument=f"{row.instrument}: page cache and kernel memory too",
                reason="; ".join(filter(None, (row.reason, _NOT_CHARGED if is_short else ""))),
            )
    for peak in _sampled(
        TREE_PSS,
        pss,
        "smaps_rollup, one process after the other: shared pages counted once",
        end_us=rss.times_us[-1] if rss.times_us else 0,
        kind="sampled",  # pages that move between two processes meanwhile are in both readings or in none
        is_missed=is_missed,
    ):
        yield msgspec.structs.replace(peak, reason=peak.reason + _how_far_from_the_top(peak, pss, rss))
    instruments = {s.metric: s.instrument.removeprefix("/proc/").removeprefix("PID/") for s in run.series}
    each = f"{instruments.get('rss_bytes')}; shared pages counted in each process"
    yield from _sampled("tree, sum of RSS", rss, each, is_missed=is_missed)
    yield from _sampled("system used", used, instruments.get("system_used_bytes", ""))
    for device in run.devices:
        series = {s.id for s in run.series if s.device == device.id and s.metric == "gpu_used_bytes"}
        best = max(
            (
                max(c.values, default=0)
                for k in chunks_of(run, "fast")
                for c in k.columns
                if c.series in series
            ),
            default=None,
        )
        if best is not None and best >= 0:
            yield PeakOf(
                name=f"{device.name}, used",
                bytes=best,
                kind="lower bound",
                instrument="NVML, highest sample",
                reason="NVML keeps no peak of a device",
            )
    processes = {p.id: p for p in run.processes}
    for row in rows:
        if row.metric == "gpu_process_bytes" and row.process in processes:
            process = processes[row.process]
            yield PeakOf(
                name=f"process {process.pid} {ON_GPU}",
                bytes=row.bytes,
                kind=row.kind,
                instrument=row.instrument,
            )


def _how_far_from_the_top(peak: PeakOf, pss: Sums, rss: Sums) -> str:
    """Return what to say of PSS if it was never read while the tree was about its largest, else ""."""
    highest = max(rss.total, default=0)
    if (
        peak.at_us is None
        or not rss.total
        or any(rss.nearest(t) >= _AT_THE_TOP * highest for t in pss.times_us)
    ):
        return ""
    return (
        f"; it is of {format_duration(peak.at_us)}, when the tree's RSS was {format_bytes(rss.nearest(peak.at_us))}: "
        f"not read again while that was at its highest, {format_bytes(highest)}"
    )


def _sampled(
    name: str,
    sums: Sums,
    instrument: str,
    kind: str = "lower bound",
    end_us: int = 0,
    is_missed: bool = False,
) -> Iterator[PeakOf]:
    """Yield the highest sample, if there is one.

    Args:
        name: Of what.
        sums: The samples.
        instrument: What they were read from.
        kind: What the highest of them is worth.
        end_us: When the last one could have been taken.
        is_missed: Whether a process alone held more than any sum that was sampled.
    """
    if sums.total:
        place = max(range(len(sums.total)), key=sums.total.__getitem__)
        steps = [b - a for a, b in zip(sums.times_us, sums.times_us[1:], strict=False)]
        step, longest = median(steps), max([*steps, end_us - sums.times_us[-1]])
        every = "" if step is None else f", sampled every {format_duration(step)}"
        if step is not None and longest > _UNEVEN * step:
            every += f", at times only after {format_duration(longest)}"
        if is_missed:
            every += "; one process alone held more between two samples"
        yield PeakOf(
            name=name,
            bytes=sums.total[place],
            kind=kind,
            instrument=instrument,
            reason=f"highest sample{every}",
            at_us=sums.times_us[place],
        )
