"""From a run file to what it says: peaks with their kind, means, phases, energy, what was missed.

Everything here is computed from the file; nothing is averaged away: a peak is either a counter's
(exact) or the highest sample (a lower bound).
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from operator import sub
from typing import Any

from memgauge.columns import MISSING
from memgauge.explain.bands import bands, phases_of
from memgauge.explain.recorded import NO_PSS, DeviceOf, LaneOf, ProcessOf, Recording, RecordingNote
from memgauge.explain.recorded_peaks import known_peaks, peaks_of
from memgauge.explain.samples import Sums, chunks_of, grown, last_values, median
from memgauge.storage import PeakRow, Process, RunFile, is_alive


def summarise(run: RunFile) -> Recording:
    """Return what a run file says."""
    header = run.header
    end_us = max(int(header.get("duration_us") or 0), run.last_us(), int(header.get("alive_us") or 0))
    state, ended, ending = how_it_ended(run)
    rss, pss = Sums(run), Sums(run, "pss_bytes", "slow")
    used = Sums(run, "system_used_bytes")
    lasts = last_values(run)
    rows = known_peaks(run, state, lasts)
    cpu_ns = _cpu_ns(run, lasts)
    found = bands(run.marks, end_us, run.processes)
    unknown: dict[str, str] = {}
    energy = grown(lasts, run, "cpu_energy_uj", None)
    if energy is None:
        unknown["cpu_energy_uj"] = next(
            (n.text for n in run.notes if n.topic == "energy"), "this machine has no counter of CPU energy"
        )
    if not run.devices:
        unknown["devices"] = "no GPU was found"
    if not pss.total:
        why = (n.text for n in run.notes if "PSS" in n.text)
        unknown[NO_PSS] = next(why, "it was at no time read of all processes")
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
        peaks=tuple(peaks_of(run, rows, lasts, rss, pss, used)),
        group_is_own=bool((header.get("cgroup") or {}).get("is_own")),
        average_used_bytes=sum(used.total) // len(used.total) if used.total else None,
        cpu_ns=cpu_ns,
        mean_cores=_mean_cores(run, cpu_ns, end_us),
        phases=phases_of(run, found, rss, pss),
        processes=_processes(run, rows, lasts),
        devices=_devices(run, lasts),
        cpu_energy_uj=energy,
        disk_read_bytes=grown(lasts, run, "disk_read_bytes", None),
        disk_written_bytes=grown(lasts, run, "disk_write_bytes", None),
        network_received_bytes=grown(lasts, run, "network_received_bytes", None),
        network_sent_bytes=grown(lasts, run, "network_sent_bytes", None),
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
    if is_alive(run.header):
        return "recording", "still recording", {}
    last = max(run.last_us(), int(run.header.get("alive_us") or 0)) / 1e6
    if any(text.startswith("table header") for text in run.damage):
        return (
            "lost",
            f"how it ended cannot be read, since the file is damaged; its last sample is at {last:.1f} s",
            {},
        )
    why = "killed, or the machine went down, or there was no room for the rest of the file"
    return "lost", f"the sampler was lost after {last:.1f} s ({why})", {}


def _processes(
    run: RunFile, rows: list[PeakRow], lasts: dict[int, tuple[int, int, int]]
) -> tuple[ProcessOf, ...]:
    peaks = {row.process: row for row in rows if row.metric == "rss_bytes" and row.phase is None}
    cpu_ns = _sampled_cpu_ns(run, lasts)
    by_metric: dict[tuple[str, int | None], int] = {}
    for s in run.series:
        if s.id in lasts:
            key = (s.metric, s.process)
            by_metric[key] = max(by_metric.get(key, 0), lasts[s.id][2])
    return tuple(
        ProcessOf(
            pid=p.pid,
            name=p.name,
            command=p.command or p.name,
            began_us=_began(p),
            gone_us=p.gone_us,
            ended=p.ended,
            cpu_ns=cpu_ns.get(p.id),
            peak_bytes=_higher(
                peaks[p.id].bytes if p.id in peaks else None, by_metric.get(("rss_bytes", p.id))
            ),
            peak_kind=peaks[p.id].kind if p.id in peaks else "lower bound",
            peak_reason=peaks[p.id].reason if p.id in peaks else "highest sample",
            pss_peak_bytes=by_metric.get(("pss_bytes", p.id)),
            device_peak_bytes=by_metric.get(("gpu_process_bytes", p.id)),
        )
        for p in run.processes
    )


def _cpu_ns(run: RunFile, lasts: dict[int, tuple[int, int, int]]) -> int | None:
    """Return the CPU time of the job within the recording.

    What a parent waits for has all of a process, also between samples; samples have those that nobody waited for.
    """
    sampled = _sampled_cpu_ns(run, lasts)
    return max(
        [*filter(None, [run.header.get("command_cpu_ns")]), *([sum(sampled.values())] if sampled else [])],
        default=None,
    )


def _sampled_cpu_ns(run: RunFile, lasts: dict[int, tuple[int, int, int]]) -> dict[int, int]:
    """Return the CPU time of each process as far as it was read, without what came before the recording."""
    born_here = {p.id for p in run.processes if p.started_us is not None and p.started_us >= 0}
    read = {s.process: lasts[s.id] for s in run.series if s.metric == "cpu_ns" and s.id in lasts}
    return {
        p: last - (0 if p in born_here else first) for p, (first, last, _) in read.items() if p is not None
    }


def _mean_cores(run: RunFile, cpu_ns: int | None, end_us: int) -> float | None:
    """Return the cores that the job kept busy, from its beginning or the recording's, whichever came later."""
    begin_us = max(0, min(map(_began, run.processes), default=0))
    return None if cpu_ns is None or end_us <= begin_us else cpu_ns / (1000 * (end_us - begin_us))


def _higher(counted: int | None, sampled: int | None) -> int | None:
    """Return a process's peak: the kernel counts pages by CPU, so its own peak may lag behind a sample by some."""
    known = [b for b in (counted, sampled) if b is not None]
    return max(known, default=None)


def _began(process: Process) -> int:
    return process.seen_us if process.started_us is None else min(process.started_us, process.seen_us)


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
                energy_mj=grown(lasts, run, "gpu_energy_mj", device.id),
                pcie_received_bytes=grown(lasts, run, "pcie_received_bytes", device.id),
                pcie_sent_bytes=grown(lasts, run, "pcie_sent_bytes", device.id),
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
            median_us=median(steps),
            longest_us=max(steps, default=None),
        )


def _sampler_share(run: RunFile, lasts: dict[int, tuple[int, int, int]]) -> float | None:
    """Return the CPU time of the sampler once it ran, as a share of one core."""
    times: list[int] = []
    for chunk in chunks_of(run, "slow"):
        times += [chunk.times_us[0], chunk.times_us[-1]]
    used = grown(lasts, run, "sampler_cpu_ns", None)
    if used is None or len(times) < 2 or times[-1] <= times[0]:
        return None
    return used / ((times[-1] - times[0]) * 1000)


def relative(path: str) -> str:
    """Return a path as seen from here, if that is shorter."""
    try:
        near = os.path.relpath(path)
    except ValueError:
        return path
    return min((path, near), key=len)
