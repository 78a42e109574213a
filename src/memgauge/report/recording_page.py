"""The page of one or several recordings."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from memgauge.explain.recorded import PhaseOf, Recording, SpanOf
from memgauge.report.figures import aligned, overlay, process_stack, timeline
from memgauge.report.page import escaped, figure, fold, page, shortened, table
from memgauge.report.panels import RunCurves, estimate_of
from memgauge.report.phase_columns import Column, phase_columns
from memgauge.storage import RunFile
from memgauge.units import format_bytes, format_difference, format_duration

_MOST_ROWS = 200
_MOST_UNFOLDED = 12  # phases of one name that are rows of the table


def recordings_page(runs: Sequence[RunFile], begin_us: int | None = None, end_us: int | None = None) -> str:
    """Return one HTML page for recordings; several are drawn over each other first.

    Args:
        runs: The recordings.
        begin_us: Draw from here on, in full detail.
        end_us: Draw up to here.
    """
    drawn = [RunCurves(run, begin_us, end_us) for run in runs]
    title = _title(drawn[0].summary) if len(drawn) == 1 else f"{len(drawn)} recordings"
    return page(f"{title} – memgauge", _sections(drawn))


def _sections(drawn: list[RunCurves]) -> Iterator[str]:
    number = 0
    if len(drawn) > 1:
        yield f"<h1>{len(drawn)} recordings</h1>"
        yield figure(overlay(drawn), number)
        yield _comparison([data.summary for data in drawn])
    for data in drawn:
        yield _head(data)
        number += 1
        whole, stack = timeline(data), process_stack(data)
        if stack is not None:
            aligned([whole, stack])
        yield figure(whole, number)
        if stack is not None:
            number += 1
            note = "resident memory; shared pages are counted in each process that has them"
            yield f'<h2>By process</h2><p class="faint">{note}</p>' + figure(stack, number)
        yield from _tables(data)


def _title(summary: Recording) -> str:
    command = shlex.join(summary.command) if summary.command else None
    first = summary.processes[0].command if summary.processes else ""
    return shortened(summary.title or command or first or "a recording", 160)


def _head(data: RunCurves) -> str:
    s = data.summary
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime((s.started_unix_ns or 0) / 1e9))
    ended = escaped(shortened(s.ended))
    if s.state != "ended" or s.exit_code not in (0, None) or s.signal:
        ended = f'<span class="warn">{ended}</span>'
    shown = ""
    if data.span != (0, data.end_us):
        shown = f"; drawn: {format_duration(data.span[0])} to {format_duration(data.span[1])}"
        shown += "; peaks and tables are of the whole run"
    return (
        f"<h1>{escaped(_title(s))}</h1><p>{ended}, {format_duration(s.duration_us)}{shown}</p>"
        f'<p class="faint">{escaped(s.file)}, on {escaped(s.host)}, began {began}</p>'
    )


def _tables(data: RunCurves) -> Iterator[str]:
    s = data.summary
    rows: list[tuple[object, ...]] = [
        (p.name, format_bytes(p.bytes), p.kind, f"{p.instrument}{'; ' if p.reason else ''}{p.reason}")
        for p in s.shown_peaks()
    ]
    average = (
        "system used, average",
        format_bytes(s.average_used_bytes),
        "",
        "over the run's samples (Mahendran's figure)",
    )
    yield "<h2>Highest values</h2>" + table(
        ("of", "bytes ", "kind", "read from"), [*rows, average], long="read from"
    )
    yield _prediction(data)
    if s.phases:
        yield "<h2>Phases</h2>" + _phases(s)
    processes = sorted(s.processes, key=lambda p: -(p.peak_bytes or 0))[:_MOST_ROWS]
    yield "<h2>Processes</h2>" + table(
        ("pid ", "peak ", "kind", "PSS seen ", "CPU seen ", "ended", "command"),
        [
            (
                p.pid,
                format_bytes(p.peak_bytes),
                p.peak_kind if p.peak_bytes else "",
                format_bytes(p.pss_peak_bytes),
                format_duration(None if p.cpu_ns is None else p.cpu_ns / 1000),
                p.ended or "",
                p.command,
            )
            for p in processes
        ],
        long="command",
    )
    energy = [
        (d.name, "—" if d.energy_mj is None else f"{d.energy_mj / 1000:.1f} J", "counter of the device")
        for d in s.devices
    ]
    cpu = "—" if s.cpu_energy_uj is None else f"{s.cpu_energy_uj / 1e6:.1f} J"
    energy.append(("CPU, whole machine", cpu, s.unknown.get("cpu_energy_uj", "RAPL counter")))
    yield "<h2>Energy</h2>" + table(("of", "energy ", "how"), energy)
    yield "<h2>How it was recorded</h2>" + table(
        ("lane", "asked ", "real, median ", "longest gap ", "readings "),
        [
            (
                y.name,
                format_duration(y.asked_us),
                format_duration(y.median_us),
                format_duration(y.longest_us),
                f"{y.ticks:,}",
            )
            for y in s.lanes
        ],
    )
    if s.sampler_share_of_core is not None:
        yield f'<p class="faint">memgauge took {100 * s.sampler_share_of_core:.2g} % of a core and {format_bytes(s.sampler_peak_bytes)}.</p>'
    notes = [(n.topic, n.text, n.remedy) for n in s.notes] + [("damage", text, "") for text in s.damage]
    if s.unseen_processes:
        how = "" if s.unseen_is_exact else "at least "
        notes.insert(
            0,
            (
                "processes",
                f"{how}{s.unseen_processes:,} came and went between two looks; their memory is in no sum",
                "",
            ),
        )
    if notes:
        yield "<h2>Noted</h2>" + table(("about", "what", "remedy"), notes, long="what")


def _phases(s: Recording) -> str:
    tree, elsewhere = phase_columns(s)
    first = _phase_table(s, ["times ", "total ", "peak of its process ", "kind"], _of_process, tree)
    return first + (_phase_table(s, [], lambda _: [], elsewhere) if elsewhere else "")


def _of_process(found: PhaseOf | SpanOf) -> list[str]:
    if isinstance(found, PhaseOf):
        times, took_us = f"{found.count:,}", found.total_us
    else:
        times, took_us = "", found.end_us - found.begin_us
    return [times, format_duration(took_us), format_bytes(found.peak_bytes), found.peak_kind]


def _phase_table(
    s: Recording, titles: list[str], first: Callable[[PhaseOf | SpanOf], list[str]], others: list[Column]
) -> str:
    """Return a table of phases, each of few values below its name; those of many are folded."""
    # A title that ends in a space is of numbers, which stand to the right.
    columns = ["phase", *titles, *(title if title == "kind" else f"{title} " for title, _ in others)]

    def cells(name: str, found: PhaseOf | SpanOf) -> list[str]:
        return [name, *first(found), *(cell(found) for _, cell in others)]

    rows, folded = [], []
    for p in s.phases[:_MOST_ROWS]:
        rows.append(cells(f"{p.name} ({p.still_open()})" if p.unfinished else p.name, p))
        spans = p.told_apart(_MOST_ROWS)
        own = [cells(named + ("" if x.is_finished else " (not ended)"), x) for named, x in spans]
        if len(spans) > _MOST_UNFOLDED:
            folded.append(fold(f"{p.name}: each of {p.count:,}", table(columns, own, long="phase")))
        else:
            rows += [[f"· {row[0]}", *row[1:]] for row in own]
    return table(columns, rows, long="phase") + "".join(folded)


def _prediction(data: RunCurves) -> str:
    estimate: Any = estimate_of(data.run)
    if estimate is None:
        return ""
    measured = next((p for p in data.summary.peaks if p.name.startswith("largest process")), None)
    host = estimate.peak.host_bytes
    if host is None or measured is None:
        reason = estimate.unknown.get("peak.host_bytes", "there is no measured peak to hold it against")
        return f"<h2>Prediction</h2><p>{escaped(reason)}</p>"
    inside = "yes" if host.low <= measured.bytes <= host.high else "no"
    row = (
        "resident memory",
        format_bytes(host.expected),
        f"{format_bytes(host.low)} – {format_bytes(host.high)}",
        f"{format_bytes(measured.bytes)} ({measured.kind})",
        format_difference(host.expected - measured.bytes, measured.bytes),
        inside,
    )
    return "<h2>Prediction against measurement</h2>" + table(
        ("memory", "predicted ", "range ", "measured ", "difference ", "in range?"), [row]
    )


def _comparison(summaries: list[Recording]) -> str:
    def highest(summary: Recording, name: str) -> str:
        return next((format_bytes(p.bytes) for p in summary.peaks if p.name.startswith(name)), "—")

    return table(
        ("run", "largest process ", "tree RSS ", "tree PSS ", "duration ", "CPU ", "ended"),
        [
            (
                s.file.rpartition("/")[2],
                highest(s, "largest"),
                highest(s, "tree, sum of RSS"),
                highest(s, "tree, sum of PSS"),
                format_duration(s.duration_us),
                format_duration(None if s.cpu_ns is None else s.cpu_ns / 1000),
                s.ended,
            )
            for s in summaries
        ],
    )
