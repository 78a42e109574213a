"""A recording in other formats: CSV, JSON lines, Parquet, a trace for Perfetto, Prometheus text.

CSV, JSON lines and Parquet hold one row per value: time, lane, metric, process, device, value. Times
are nanoseconds of the run; `time_unix_ns` is the same on the wall clock at the beginning, so that steps
of the system's clock do not show. JSON lines end with the marks, each on a line of its own with both times.

Of a span of the run there are its values and marks, and each phase that overlaps it: in JSON lines with
both its marks, also where one lies outside, in Perfetto's trace as much of it as lies within.

Names of the recorded job are data. JSON and Parquet hold them as they are. In CSV and Prometheus text control
characters are visible escapes, so that a value stays on its line; in CSV a name that a spreadsheet would take
for a formula begins with an apostrophe.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from memgauge.columns import MISSING
from memgauge.errors import UsageError, missing_extra
from memgauge.explain.bands import Band, bands
from memgauge.explain.recording import summarise
from memgauge.explain.samples import STANDS
from memgauge.report.tables import plain
from memgauge.report.written import written
from memgauge.storage import Process, RunFile, Series

FORMATS = ("csv", "jsonl", "parquet", "perfetto", "prometheus")
LANES = ("fast", "cpu", "medium", "slow")
_COLUMNS = ("time_ns", "time_unix_ns", "lane", "metric", "pid", "process", "device", "value")
_OF_PROCESS = ("rss_bytes", "pss_bytes", "uss_bytes")  # 0 only once it has let go of its memory, in its end
_SHARES = ("pss_bytes", "uss_bytes")
_ROWS_AT_ONCE = 200_000
_MOST_PID = 2**22  # of Linux (PID_MAX_LIMIT, proc(5)); other systems give out smaller ones


def export(run: RunFile, kind: str, out: IO[str] | Path, begin_us: int | None, end_us: int | None) -> int:
    """Write a recording in another format; returns how many values or events were written.

    Args:
        run: The recording.
        kind: One of `FORMATS`.
        out: Where to; Parquet needs a path.
        begin_us: Leave out what was before.
        end_us: Leave out what was after.

    Raises:
        UsageError: Parquet was asked for on standard output, or the file is a recording or cannot be written.
        MissingError: Parquet needs pyarrow.
    """
    if isinstance(out, Path):
        with written(out) as place:
            if kind == "parquet":
                return _parquet(run, place, begin_us, end_us)
            with place.open("w", encoding="utf-8", newline="") as file:
                return export(run, kind, file, begin_us, end_us)
    if kind == "parquet":
        raise UsageError("--format parquet needs a file: add -o run.parquet")
    writers = {"csv": _csv, "jsonl": _jsonl, "perfetto": _perfetto, "prometheus": _prometheus}
    return writers[kind](run, out, begin_us, end_us)


def rows(
    run: RunFile,
    begin_us: int | None = None,
    end_us: int | None = None,
    shown: Callable[[str], str] = str,
) -> Iterator[tuple[Any, ...]]:
    """Yield (time_ns, time_unix_ns, lane, metric, pid, process, device, value); what is missing is left out.

    Args:
        run: The recording.
        begin_us: Leave out what was before.
        end_us: Leave out what was after.
        shown: Turns names of processes and devices into what the format can hold.
    """
    unix = _began_unix_ns(run)
    series = {s.id: s for s in run.series}
    processes = {p.id: (p.pid, shown(p.name)) for p in run.processes}
    devices = {d.id: shown(d.identity or d.name) for d in run.devices}
    for lane in LANES:
        for _, chunk in run.chunks(lane, begin_us, end_us):
            for number, first, values in chunk.columns:
                about = series.get(number)
                if about is None:
                    continue
                who = processes.get(about.process or 0, (None, None))
                device = devices.get(about.device or 0)
                times = chunk.times_us[first : first + len(values)]
                for time_us, value in zip(times, values, strict=True):
                    if value == MISSING or not _within(time_us, begin_us, end_us):
                        continue
                    time_ns = time_us * 1000
                    yield (time_ns, unix + time_ns, lane, about.metric, *who, device, value)


def _began_unix_ns(run: RunFile) -> int:
    return int(run.header.get("started_unix_ns") or 0)


def _within(time_us: int, begin_us: int | None, end_us: int | None) -> bool:
    return (begin_us is None or time_us >= begin_us) and (end_us is None or time_us <= end_us)


def _csv(run: RunFile, out: IO[str], begin_us: int | None, end_us: int | None) -> int:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    count = 0
    for row in rows(run, begin_us, end_us, _cell):
        writer.writerow(row)
        count += 1
    return count


def _visible(name: str) -> str:
    return plain(name).plain


def _cell(name: str) -> str:
    shown = _visible(name)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


def _jsonl(run: RunFile, out: IO[str], begin_us: int | None, end_us: int | None) -> int:
    count = 0
    for row in rows(run, begin_us, end_us):
        out.write(json.dumps({k: v for k, v in zip(_COLUMNS, row, strict=True) if v is not None}) + "\n")
        count += 1
    # A phase that lies in the span in part has both its ends: one without the other could not be read.
    shown = {
        number
        for band in bands(run.marks, run.last_us(), run.processes)
        if band.within(begin_us, end_us) is not None
        for number in (band.mark, band.end_mark)
    }
    for mark in run.marks:
        if mark.id in shown or _within(mark.time_us, begin_us, end_us):
            time_ns = mark.time_us * 1000
            when = {"time_ns": time_ns, "time_unix_ns": _began_unix_ns(run) + time_ns}
            said = {"mark": mark.kind, "pid": mark.pid, "name": mark.name, "value": mark.value}
            out.write(json.dumps({**when, **said, "facts": mark.facts}) + "\n")
            count += 1
    return count


def _parquet(run: RunFile, out: Path, begin_us: int | None, end_us: int | None) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise missing_extra("pyarrow", "report") from error
    text = pa.dictionary(pa.int32(), pa.string())
    kinds = (pa.int64(), pa.int64(), text, text, pa.int32(), text, text, pa.int64())
    schema = pa.schema(list(zip(_COLUMNS, kinds, strict=True)))
    count = 0
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        for batch in _batches(rows(run, begin_us, end_us)):
            columns = [list(column) for column in zip(*batch, strict=True)]
            arrays = [pa.array(c, type=kind) for c, kind in zip(columns, kinds, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            count += len(batch)
    return count


def _batches(found: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    batch: list[tuple[Any, ...]] = []
    for row in found:
        batch.append(row)
        if len(batch) == _ROWS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _tracks(found: Iterable[Band]) -> Iterator[tuple[int, Band]]:
    """Yield each phase with a track of its process on which it lies within others or beside them, never across."""
    open_on: dict[tuple[int, int], list[int]] = {}  # process and track -> ends of the phases that are open
    for band in found:
        for track in itertools.count():
            ends = open_on.setdefault((band.pid, track), [])
            while ends and ends[-1] <= band.begin_us:
                ends.pop()
            if not ends or band.end_us <= ends[-1]:
                ends.append(band.end_us)
                yield track, band
                break


def _perfetto(run: RunFile, out: IO[str], begin_us: int | None, end_us: int | None) -> int:
    """Write the JSON trace format that Perfetto and chrome://tracing open: counters, slices, instants."""
    encode = json.JSONEncoder().encode
    out.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    count = 0

    def put(event: dict[str, Any]) -> None:
        nonlocal count
        out.write((",\n" if count else "") + encode(event))
        count += 1

    for process in run.processes:
        name = {"name": f"{process.name} {process.pid}"}
        put({"ph": "M", "name": "process_name", "pid": process.pid, "args": name})
    put(
        {
            "ph": "M",
            "name": "process_name",
            "pid": 0,
            "args": {"name": f"machine {run.header.get('host', '')}"},
        }
    )
    for time_ns, _, _, metric, pid, _, device, value in rows(run, begin_us, end_us):
        title = metric if device is None else f"{metric} {device}"
        put({"ph": "C", "name": title, "pid": pid or 0, "ts": time_ns / 1000, "args": {metric: value}})
    # The first track of a process is its own row; the others have numbers that no process has.
    numbers = itertools.count(
        1 + max([_MOST_PID, *(m.pid for m in run.marks), *(p.pid for p in run.processes)])
    )
    rows_beside: dict[tuple[int, int], int] = {}
    peaks = {phase.name: iter(phase.each) for phase in summarise(run).phases}  # in the order of the bands
    for track, band in _tracks(bands(run.marks, run.last_us(), run.processes)):
        part, held = band.within(begin_us, end_us), next(peaks[band.name])
        if part is not None:
            span = {"ts": part.begin_us, "dur": part.end_us - part.begin_us}
            args: dict[str, Any] = {"value": band.value}
            if held.peak_bytes is not None:
                args |= {"peak_bytes": held.peak_bytes, "peak_kind": held.peak_kind}
            if part != band:
                args |= {"whole_us": band.end_us - band.begin_us}
            row = rows_beside.get((band.pid, track), band.pid)
            if track and row == band.pid:
                row = rows_beside[band.pid, track] = next(numbers)
                name = {"name": f"overlapping phases {track}"}
                put({"ph": "M", "name": "thread_name", "pid": band.pid, "tid": row, "args": name})
            put({"ph": "X", "name": band.name, "pid": band.pid, "tid": row, **span, "args": args})
    for mark in run.marks:
        if mark.kind == "mark" and _within(mark.time_us, begin_us, end_us):
            what = {"name": mark.name, "args": {"value": mark.value}}
            put({"ph": "i", "s": "p", "pid": mark.pid, "tid": mark.pid, "ts": mark.time_us, **what})
    out.write("\n]}\n")
    return count


def _prometheus(run: RunFile, out: IO[str], begin_us: int | None, end_us: int | None) -> int:
    """Write the last value of each series and the peaks, for a node exporter's textfile collector."""
    last = _last_values(run, begin_us, end_us)
    for number in _outdated(run, last, end_us):
        del last[number]
    processes = {p.id: p for p in run.processes}
    over = _ended_before(run.processes, run.last_us() if end_us is None else end_us)
    by_metric: dict[str, list[Series]] = {}
    for about in run.series:
        if about.id in last and about.process not in over:
            by_metric.setdefault(about.metric, []).append(about)
    devices = {d.id: d for d in run.devices}
    count = 0
    for metric, group in sorted(by_metric.items()):
        is_counter = metric != "wall_clock_ns" and (
            metric.endswith(("_ns", "_uj", "_mj", "_us", "_faults"))
            or metric.startswith(("disk_", "network_", "pcie_"))
        )
        name = f"memgauge_{metric}" + ("_total" if is_counter else "")
        _describe(out, name, "counter" if is_counter else "gauge", _meaning(metric, group))
        named: dict[str, int] = {}  # a number that was given out twice names one series: its last value
        for about in group:
            labels = {}
            if about.process in processes:
                process = processes[about.process]
                labels = {"pid": str(process.pid), "process": process.name}
            if about.device in devices:
                labels["device"] = devices[about.device].identity or devices[about.device].name
            _, named[_labels(labels)] = last[about.id]
        for text, value in named.items():
            out.write(f"{name}{text} {value}\n")
        count += len(named)
    summary = summarise(run)
    _describe(out, "memgauge_peak_bytes", "gauge", "highest of the run, with its kind: exact or a bound")
    for peak in summary.peaks:
        out.write(f"memgauge_peak_bytes{_labels({'of': peak.name, 'kind': peak.kind})} {peak.bytes}\n")
        count += 1
    return count


def _last_values(run: RunFile, begin_us: int | None, end_us: int | None) -> dict[int, tuple[int, int]]:
    """Return time and value of the last of each series; of a process's memory of what it held before it let go of all."""
    own = {s.id for s in run.series if s.metric in _OF_PROCESS}
    last: dict[int, tuple[int, int]] = {}
    for lane in LANES:
        for _, chunk in run.chunks(lane, begin_us, end_us):
            for number, first, values in chunk.columns:
                times = chunk.times_us[first : first + len(values)]
                for time_us, value in zip(reversed(times), reversed(values), strict=True):
                    is_known = value != MISSING and _within(time_us, begin_us, end_us)
                    if is_known and (value or number not in own):
                        last[number] = (time_us, value)
                        break
    return last


def _outdated(run: RunFile, last: dict[int, tuple[int, int]], end_us: int | None) -> set[int]:
    """Return the series of shares that were read before the RSS which stands beside them was reached.

    Only of processes that were about to end: the shares of others are as old as their lane is slow.

    Args:
        run: The recording.
        last: Time and value of the last of each series.
        end_us: The end of the span.
    """
    ever = last if end_us is None else _last_values(run, None, None)
    gone = {p.id for p in run.processes if p.gone_us is not None}
    ending = {
        s.id: s.process
        for s in run.series
        if s.metric == "rss_bytes" and s.process in gone and s.id in last and last[s.id] == ever[s.id]
    }
    since: dict[int | None, int] = {}  # when the RSS of each came to where it is
    for _, chunk in run.chunks("fast", None, end_us) if ending else ():
        for number, first, values in chunk.columns:
            if number in ending:
                _, final = last[number]
                for time_us, value in zip(chunk.times_us[first : first + len(values)], values, strict=True):
                    if value > 0 and abs(value - final) * STANDS > final:
                        since.pop(ending[number], None)
                    elif value > 0:
                        since.setdefault(ending[number], time_us)
    shares = [s for s in run.series if s.metric in _SHARES and s.id in last]
    return {s.id for s in shares if s.process in since and last[s.id][0] < since[s.process]}


def _ended_before(processes: Iterable[Process], end_us: int) -> set[int]:
    """Return the processes that had ended when the span did, or when the last of the job's ended if that was before."""
    gone = {p.id: p.gone_us for p in processes}
    ends = [end_us if us is None else min(us, end_us) for us in gone.values()]
    end_us = max(ends, default=end_us)
    return {number for number, us in gone.items() if us is not None and us < end_us}


def _meaning(metric: str, group: Sequence[Series]) -> str:
    of = " of each process that lived at the end" if group[0].process is not None else ""
    return f"{metric}{of}, last value; read from: {group[0].instrument or 'unknown'}"


def _describe(out: IO[str], name: str, kind: str, meaning: str) -> None:
    text = _visible(meaning).replace("\\", r"\\")
    out.write(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    buffer = io.StringIO()
    for key, value in labels.items():
        quoted = _visible(value).replace("\\", r"\\").replace('"', r"\"")
        buffer.write(f',{key}="{quoted}"')
    return "{" + buffer.getvalue()[1:] + "}"
