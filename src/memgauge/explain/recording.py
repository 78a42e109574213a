"""From a run file to what it says: peaks with their kind, means, phases, energy, what was missed.

Everything here is computed from the file; nothing is averaged away: a peak is either a counter's
(exact) or the highest sample (a lower bound).
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import add, sub
from pathlib import Path
from typing import Any

import msgspec

from memgauge.columns import MISSING, Chunk
from memgauge.storage import Mark, Process, RunFile
from memgauge.units import format_duration

_LIVE_WITHIN_US = 5_000_000


class PeakOf(msgspec.Struct, frozen=True, kw_only=True):
    """One highest value: of what, how much, and how much that can be trusted."""

    name: str
    bytes: int
    kind: str  # exact, lower bound, upper bound
    instrument: str
    reason: str = ""
    at_us: int | None = None


class PhaseOf(msgspec.Struct, frozen=True, kw_only=True):
    """All phases of one name."""

    name: str
    count: int
    total_us: int
    peak_bytes: int | None  # highest resident size of the process that declared it
    peak_kind: str
    tree_peak_bytes: int | None  # highest sum over the tree, sampled
    device_peak_bytes: int | None = None  # torch's own peak of allocated bytes, if it says
    device_peak_kind: str = ""
    unfinished: int = 0


class ProcessOf(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the tree."""

    pid: int
    name: str
    command: str
    began_us: int
    gone_us: int | None
    ended: str | None
    cpu_ns: int | None
    peak_bytes: int | None
    peak_kind: str
    peak_reason: str = ""
    pss_peak_bytes: int | None = None
    device_peak_bytes: int | None = None


class LaneOf(msgspec.Struct, frozen=True, kw_only=True):
    """How one lane really ran."""

    name: str
    asked_us: int
    ticks: int
    median_us: int | None
    longest_us: int | None


class RecordingNote(msgspec.Struct, frozen=True, kw_only=True):
    """Something that could not be read or was missed."""

    time_us: int
    topic: str
    text: str
    remedy: str


class DeviceOf(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU over the run."""

    name: str
    identity: str
    total_bytes: int | None
    peak_used_bytes: int | None
    energy_mj: int | None
    pcie_received_bytes: int | None
    pcie_sent_bytes: int | None
    mean_utilisation_percent: float | None


class Recording(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.recording/1"):
    """What one run file says."""

    file: str
    command: list[str] | None
    title: str | None
    host: str
    started_unix_ns: int | None
    duration_us: int
    state: str  # ended, recording, lost
    ended: str
    exit_code: int | None
    signal: str | None
    out_of_memory: bool
    peaks: tuple[PeakOf, ...]
    average_used_bytes: int | None  # of the system, as Mahendran (2021) gives it
    cpu_ns: int | None
    mean_cores: float | None
    phases: tuple[PhaseOf, ...]
    processes: tuple[ProcessOf, ...]
    devices: tuple[DeviceOf, ...]
    cpu_energy_uj: int | None
    disk_read_bytes: int | None
    disk_written_bytes: int | None
    network_received_bytes: int | None
    network_sent_bytes: int | None
    lanes: tuple[LaneOf, ...]
    unseen_processes: int
    unseen_is_exact: bool
    marks: int
    marks_lost: int
    sampler_share_of_core: float | None
    sampler_peak_bytes: int | None
    notes: tuple[RecordingNote, ...]
    damage: tuple[str, ...]
    unknown: dict[str, str] = {}


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
                if stack[place].name == mark.name:
                    close(stack.pop(place), mark.time_us, place, mark.facts)
                    break
    for stack in open_by_pid.values():
        for depth, begun in enumerate(stack):
            close(begun, end_us, depth, None)
    return sorted(found, key=lambda b: (b.begin_us, b.depth))


class Sums:
    """Values of the fast lane over the run, added up over the tree: `times_us` and as many values each."""

    def __init__(self, run: RunFile, metric: str = "rss_bytes", lane: str = "fast") -> None:
        wanted = {s.id for s in run.series if s.metric == metric}
        self.times_us: array[int] = array("q")
        self.total: array[int] = array("q")
        for chunk in chunks_of(run, lane):
            for time_us, total in zip(chunk.times_us, _added(chunk, wanted), strict=True):
                if total is not None:
                    self.times_us.append(time_us)
                    self.total.append(total)

    def highest(self, begin_us: int, end_us: int) -> int | None:
        """Return the highest sum within a span, None if it holds no sample."""
        values = self.total[bisect_left(self.times_us, begin_us) : bisect_right(self.times_us, end_us)]
        return max(values) if values else None


def chunks_of(run: RunFile, lane: str) -> Iterator[Chunk]:
    """Yield the chunks of a lane."""
    for _, chunk in run.chunks(lane):
        yield chunk


def _added(chunk: Chunk, wanted: set[int]) -> list[int | None]:
    """Return the sum of the wanted series at each tick, None where none of them was read."""
    size = len(chunk.times_us)
    total, known = [0] * size, [False] * size
    for series, first, values in chunk.columns:
        if series not in wanted:
            continue
        last = first + len(values)
        if MISSING in values:
            for place, value in enumerate(values, first):
                if value != MISSING:
                    total[place] += value
                    known[place] = True
            continue
        total[first:last] = map(add, total[first:last], values)
        known[first:last] = [True] * len(values)
    return [t if k else None for t, k in zip(total, known, strict=True)]


def summarise(run: RunFile) -> Recording:
    """Return what a run file says."""
    header = run.header
    end_us = max(int(header.get("duration_us") or 0), run.last_us(), int(header.get("alive_us") or 0))
    state, ended, ending = how_it_ended(run)
    rss, pss = Sums(run), Sums(run, "pss_bytes", "slow")
    used = Sums(run, "system_used_bytes")
    lasts = _last_values(run)
    cpu_ns = header.get("command_cpu_ns") or _total(lasts, run, "cpu_ns")
    found = bands(run.marks, end_us)
    unknown: dict[str, str] = {}
    energy = _grown(lasts, run, "cpu_energy_uj", None)
    if energy is None:
        unknown["cpu_energy_uj"] = next(
            (n.text for n in run.notes if n.topic == "energy"), "this machine has no counter of CPU energy"
        )
    if not run.devices:
        unknown["devices"] = "no GPU was found"
    return Recording(
        file=str(run.path),
        command=header.get("command"),
        title=header.get("title"),
        host=str(header.get("host") or ""),
        started_unix_ns=header.get("started_unix_ns"),
        duration_us=end_us,
        state=state,
        ended=ended,
        exit_code=ending.get("code"),
        signal=ending.get("signal"),
        out_of_memory=bool(ending.get("out_of_memory")),
        peaks=tuple(_peaks(run, rss, pss, used)),
        average_used_bytes=sum(used.total) // len(used.total) if used.total else None,
        cpu_ns=cpu_ns,
        mean_cores=cpu_ns / (end_us * 1000) if cpu_ns is not None and end_us else None,
        phases=_phases(run, found, rss),
        processes=_processes(run, lasts),
        devices=_devices(run, lasts),
        cpu_energy_uj=energy,
        disk_read_bytes=_grown(lasts, run, "disk_read_bytes", None),
        disk_written_bytes=_grown(lasts, run, "disk_write_bytes", None),
        network_received_bytes=_grown(lasts, run, "network_received_bytes", None),
        network_sent_bytes=_grown(lasts, run, "network_sent_bytes", None),
        lanes=tuple(_lanes(run)),
        unseen_processes=int(header.get("unseen_processes") or 0),
        unseen_is_exact=bool(header.get("unseen_is_exact")),
        marks=len(run.marks),
        marks_lost=int(header.get("marks_lost") or 0),
        sampler_share_of_core=_sampler_share(run, lasts),
        sampler_peak_bytes=header.get("sampler_peak_bytes"),
        notes=tuple(
            RecordingNote(time_us=n.time_us, topic=n.topic, text=n.text, remedy=n.remedy) for n in run.notes
        ),
        damage=tuple(run.damage),
        unknown=unknown,
    )


def how_it_ended(run: RunFile) -> tuple[str, str, dict[str, Any]]:
    """Return the state (ended, recording or lost), its text, and the ending as recorded."""
    ending = run.header.get("ended")
    if isinstance(ending, dict):
        return "ended", str(ending.get("text") or ending.get("how")), ending
    pid, ticks = run.header.get("sampler_pid"), run.header.get("sampler_started_ticks")
    if _is_alive(pid, ticks, run.header.get("boot")):
        return "recording", "still recording", {}
    last = max(run.last_us(), int(run.header.get("alive_us") or 0)) / 1e6
    return "lost", f"the sampler was lost after {last:.1f} s (killed, or the machine went down)", {}


def _is_alive(pid: object, started_ticks: object, boot: object) -> bool:
    try:
        if Path("/proc/sys/kernel/random/boot_id").read_text().strip() != boot:
            return False
        data = Path(f"/proc/{pid}/stat").read_bytes()
        fields = data[data.rindex(b")") + 2 :].split()
        return int(fields[19]) == started_ticks and fields[0] not in (b"Z", b"X")
    except (OSError, ValueError, IndexError):
        return False


def _peaks(run: RunFile, rss: Sums, pss: Sums, used: Sums) -> Iterator[PeakOf]:
    for row in run.peaks:
        if row.metric == "largest_process_bytes":
            yield PeakOf(
                name="largest process, resident",
                bytes=row.bytes,
                kind=row.kind,
                instrument=row.instrument,
                reason=row.reason,
            )
    yield from _sampled("tree, sum of PSS", pss, "smaps_rollup: shared pages counted once")
    yield from _sampled("tree, sum of RSS", rss, "statm: shared pages counted in each process")
    yield from _sampled("system used", used, "meminfo: total − free − buffers − cached")
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
    for row in run.peaks:
        if row.metric == "gpu_process_bytes" and row.process in processes:
            process = processes[row.process]
            yield PeakOf(
                name=f"process {process.pid} on the GPU",
                bytes=row.bytes,
                kind=row.kind,
                instrument=row.instrument,
            )


def _sampled(name: str, sums: Sums, instrument: str) -> Iterator[PeakOf]:
    if sums.total:
        place = max(range(len(sums.total)), key=sums.total.__getitem__)
        step = _median([b - a for a, b in zip(sums.times_us, sums.times_us[1:], strict=False)])
        every = "" if step is None else f", sampled every {format_duration(step)}"
        yield PeakOf(
            name=name,
            bytes=sums.total[place],
            kind="lower bound",
            instrument=instrument,
            reason=f"highest sample{every}",
            at_us=sums.times_us[place],
        )


def _phases(run: RunFile, found: list[Band], rss: Sums) -> tuple[PhaseOf, ...]:
    exact = {row.phase: row.bytes for row in run.peaks if row.phase is not None and row.metric == "rss_bytes"}
    by_name: dict[str, list[Band]] = {}
    for band in found:
        by_name.setdefault(band.name, []).append(band)
    sampled = _ProcessSamples(run) if any(b.mark not in exact for b in found) else None
    result = []
    for name, group in by_name.items():
        peaks = [exact.get(b.mark) for b in group]
        if sampled is not None and None in peaks:
            bounds = [sampled.highest(b) for b in group]
            values = [e if e is not None else s for e, s in zip(peaks, bounds, strict=True)]
            highest = max((v for v in values if v is not None), default=None)
            kind = (
                "exact" if highest is not None and highest in peaks and None not in peaks else "lower bound"
            )
        else:
            highest, kind = max((p for p in peaks if p is not None), default=None), "exact"
        tree = [t for b in group if (t := rss.highest(b.begin_us, b.end_us)) is not None]
        device, device_kind = _device_peak(group)
        result.append(
            PhaseOf(
                name=name,
                count=len(group),
                total_us=sum(b.end_us - b.begin_us for b in group),
                peak_bytes=highest,
                peak_kind=kind if highest is not None else "unknown",
                tree_peak_bytes=max(tree, default=None),
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


class _ProcessSamples:
    """The sampled resident size of each process, for phases whose peak no counter has."""

    def __init__(self, run: RunFile) -> None:
        owner = {p.id: p.pid for p in run.processes}
        pid_of = {s.id: owner.get(s.process or 0) for s in run.series if s.metric == "rss_bytes"}
        self._times: dict[int, array[int]] = {}
        self._values: dict[int, array[int]] = {}
        for chunk in chunks_of(run, "fast"):
            for series, first, values in chunk.columns:
                pid = pid_of.get(series)
                if pid is not None:
                    self._values.setdefault(pid, array("q")).extend(values)
                    times = chunk.times_us[first : first + len(values)]
                    self._times.setdefault(pid, array("q")).extend(times)

    def highest(self, band: Band) -> int | None:
        times = self._times.get(band.pid)
        if times is None:
            return None
        begin, end = bisect_left(times, band.begin_us), bisect_right(times, band.end_us)
        return max(self._values[band.pid][begin:end], default=None)


def _processes(run: RunFile, lasts: dict[int, tuple[int, int, int]]) -> tuple[ProcessOf, ...]:
    peaks = {row.process: row for row in run.peaks if row.metric == "rss_bytes" and row.phase is None}
    by_metric: dict[tuple[str, int | None], int] = {}
    for s in run.series:
        if s.id in lasts:
            key = (s.metric, s.process)
            by_metric[key] = max(by_metric.get(key, 0), lasts[s.id][2])
    return tuple(
        ProcessOf(
            pid=p.pid,
            name=p.name,
            command=p.command,
            began_us=_began(p),
            gone_us=p.gone_us,
            ended=p.ended,
            cpu_ns=by_metric.get(("cpu_ns", p.id)),
            peak_bytes=peaks[p.id].bytes if p.id in peaks else by_metric.get(("rss_bytes", p.id)),
            peak_kind=peaks[p.id].kind if p.id in peaks else "lower bound",
            peak_reason=peaks[p.id].reason if p.id in peaks else "highest sample",
            pss_peak_bytes=by_metric.get(("pss_bytes", p.id)),
            device_peak_bytes=by_metric.get(("gpu_process_bytes", p.id)),
        )
        for p in run.processes
    )


def _began(process: Process) -> int:
    return process.seen_us if process.started_us is None else min(process.started_us, process.seen_us)


def _last_values(run: RunFile) -> dict[int, tuple[int, int, int]]:
    """Return first, last and highest value of each series, those that could not be read left out."""
    found: dict[int, tuple[int, int, int]] = {}
    for lane in ("fast", "cpu", "medium", "slow"):
        for chunk in chunks_of(run, lane):
            for series, _, values in chunk.columns:
                known = values if MISSING not in values else array("q", (v for v in values if v != MISSING))
                if known:
                    first, _, highest = found.get(series, (known[0], 0, 0))
                    found[series] = (first, known[-1], max(highest, max(known)))
    return found


def _grown(
    lasts: dict[int, tuple[int, int, int]], run: RunFile, metric: str, device: int | None
) -> int | None:
    for s in run.series:
        if s.metric == metric and s.device == device and s.id in lasts:
            return lasts[s.id][1] - lasts[s.id][0]
    return None


def _total(lasts: dict[int, tuple[int, int, int]], run: RunFile, metric: str) -> int | None:
    values = [lasts[s.id][1] - lasts[s.id][0] for s in run.series if s.metric == metric and s.id in lasts]
    return sum(values) if values else None


def _devices(run: RunFile, lasts: dict[int, tuple[int, int, int]]) -> tuple[DeviceOf, ...]:
    result = []
    for device in run.devices:
        ids = {s.metric: s.id for s in run.series if s.device == device.id and s.process is None}
        used = lasts.get(ids.get("gpu_used_bytes", -1))
        busy = [
            v
            for chunk in chunks_of(run, "medium")
            for c in chunk.columns
            if c.series == ids.get("gpu_utilisation_percent")
            for v in c.values
            if v != MISSING
        ]
        result.append(
            DeviceOf(
                name=device.name,
                identity=device.identity,
                total_bytes=device.total_bytes,
                peak_used_bytes=used[2] if used else None,
                energy_mj=_grown(lasts, run, "gpu_energy_mj", device.id),
                pcie_received_bytes=_grown(lasts, run, "pcie_received_bytes", device.id),
                pcie_sent_bytes=_grown(lasts, run, "pcie_sent_bytes", device.id),
                mean_utilisation_percent=sum(busy) / len(busy) if busy else None,
            )
        )
    return tuple(result)


def _lanes(run: RunFile) -> Iterator[LaneOf]:
    asked = run.header.get("lanes") or {}
    for name in ("fast", "cpu", "medium", "slow"):
        steps: array[int] = array("q")
        ticks, last = 0, None
        for chunk in chunks_of(run, name):
            times = chunk.times_us
            ticks += len(times)
            if last is not None:
                steps.append(times[0] - last)
            steps.extend(map(sub, times[1:], times))
            last = times[-1]
        facts = asked.get(name) or {}
        yield LaneOf(
            name=name,
            asked_us=int(facts.get("asked_ns") or run.header.get("interval_ns") or 0) // 1000,
            ticks=ticks,
            median_us=_median(steps),
            longest_us=max(steps, default=None),
        )


def _median(values: Iterable[int]) -> int | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None


def _sampler_share(run: RunFile, lasts: dict[int, tuple[int, int, int]]) -> float | None:
    """Return the CPU time of the sampler once it ran, as a share of one core."""
    times: list[int] = []
    for chunk in chunks_of(run, "slow"):
        times += [chunk.times_us[0], chunk.times_us[-1]]
    grown = _grown(lasts, run, "sampler_cpu_ns", None)
    if grown is None or len(times) < 2 or times[-1] <= times[0]:
        return None
    return grown / ((times[-1] - times[0]) * 1000)


def is_growing(run: RunFile) -> bool:
    """Return whether a sampler still writes the file."""
    return how_it_ended(run)[0] == "recording"


def relative(path: str) -> str:
    """Return a path as seen from here, if that is shorter."""
    try:
        near = os.path.relpath(path)
    except ValueError:
        return path
    return min((path, near), key=len)
