"""A recording as text: peaks with their kind, phases, processes, what was missed."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from memgauge.explain.recorded import WITHOUT_LOOPBACK, ProcessOf, Recording, RecordingNote
from memgauge.explain.recording import relative
from memgauge.report.phase_columns import phase_columns
from memgauge.report.tables import grid, plain, short, short_command
from memgauge.units import format_bytes, format_duration

_MOST_PROCESSES, _MOST_PHASES, _MOST_NOTES = 10, 20, 10
MOST_EACH = 12  # phases of one name that are listed one by one
_LONGEST_COMMAND, LONGEST_NAME = 100, 70  # of a row: of a process or a phase


def recording_view(recording: Recording, *, brief: bool = False) -> RenderableType:
    """Return the summary of a recording; `brief` is what follows a recorded command in the terminal."""
    parts: list[RenderableType] = [_head(recording), "", _peaks(recording)]
    if recording.phases:
        parts += ["", _phases(recording)]
    if not brief or len(recording.processes) > 1:
        parts += ["", _processes(recording.processes)]
    if not brief or recording.devices:
        parts += ["", _figures(recording)]
    notes = [*_missed(recording)]
    if notes:
        table = grid("noted", "", flexible="")
        for topic, text, remedy in notes:
            said = plain(text)
            if remedy:
                said.append("\n→ ", "dim").append_text(plain(remedy))
            table.add_row(plain(topic), said)
        parts += ["", table]
    if brief:
        name = shlex.quote(relative(recording.file))
        parts.append(Text(f"\nmemgauge report {plain(name).plain} -o report.html  draws it", style="dim"))
    return Group(*parts)


def _head(recording: Recording) -> RenderableType:
    command = shlex.join(recording.command) if recording.command else None
    title = recording.title or command or (recording.processes[0].command if recording.processes else "")
    shown = short(title or "a recording", _LONGEST_COMMAND)
    shown.stylize("bold")
    ended = Text(recording.ended)
    if recording.state != "ended" or recording.exit_code not in (0, None) or recording.signal:
        ended.stylize("yellow")
    began = ""
    if recording.started_unix_ns:
        began = time.strftime(", began %Y-%m-%d %H:%M:%S", time.localtime(recording.started_unix_ns / 1e9))
    line = Text(f"{format_duration(recording.duration_us)}{began} on ").append_text(plain(recording.host))
    return Group(shown, Text.assemble(ended, ", ", line))


def _peaks(recording: Recording) -> RenderableType:
    table = grid("highest", "", "kind", "read from", flexible="read from")
    for peak in recording.shown_peaks():
        how = Text(peak.instrument, style="dim")
        if peak.reason:
            how.append_text(Text(f"; {peak.reason}", style="dim"))
        table.add_row(plain(peak.name), format_bytes(peak.bytes), Text(peak.kind), how)
    table.add_row(
        "system used, average",
        format_bytes(recording.average_used_bytes),
        "",
        Text("over the run's samples (Mahendran's figure)", style="dim"),
    )
    return table


def _phases(recording: Recording) -> RenderableType:
    rows, (tree, elsewhere) = recording.phases, phase_columns(recording)
    table = grid("phase", "times", "total", "peak", "kind", *(title for title, _ in tree), flexible="phase")
    # In one table with these, 80 columns would be too few.
    beside = grid("phase", *(title for title, _ in elsewhere), flexible="phase")
    for phase in rows[:_MOST_PHASES]:
        table.add_row(
            _named(phase.name, phase.still_open()),
            f"{phase.count:,}",
            format_duration(phase.total_us),
            format_bytes(phase.peak_bytes),
            Text(phase.peak_kind),
            *(cell(phase) for _, cell in tree),
        )
        beside.add_row(_named(phase.name, ""), *(Text(cell(phase)) for _, cell in elsewhere))
        for named, span in phase.told_apart(MOST_EACH):
            table.add_row(
                _named(f"  {named}", "" if span.is_finished else "not ended"),
                "",
                format_duration(span.end_us - span.begin_us),
                format_bytes(span.peak_bytes),
                Text(span.peak_kind),
                *(cell(span) for _, cell in tree),
                style="dim",
            )
            beside.add_row(
                _named(f"  {named}", ""), *(Text(cell(span)) for _, cell in elsewhere), style="dim"
            )
    tables = Group(table, Text(""), beside) if elsewhere else table
    return _with_rest(tables, len(rows) - _MOST_PHASES)


def _named(name: str, still_open: str) -> Text:
    """Return a phase's name, and that it has no end of its own."""
    shown = short(name, LONGEST_NAME)
    return shown.append(f"  ({still_open})", "yellow") if still_open else shown


def _processes(processes: Iterable[ProcessOf]) -> RenderableType:
    rows = sorted(processes, key=lambda p: -(p.peak_bytes or 0))
    with_device = any(p.device_peak_bytes for p in rows)
    with_pss = any(p.pss_peak_bytes is not None for p in rows)
    columns = ["pid", "peak", "kind", *(["PSS seen"] if with_pss else []), "CPU seen", "lived"]
    columns += [*(["GPU"] if with_device else []), "command"]
    table = grid(*columns, flexible="command")
    for p in rows[:_MOST_PROCESSES]:
        command = short_command(p.command, LONGEST_NAME)
        if p.ended not in (None, "exit code 0"):
            command.append_text(Text(f"  ({p.ended})", style="yellow"))
        lived = None if p.gone_us is None else p.gone_us - p.began_us
        cells: list[str | Text] = [
            str(p.pid),
            format_bytes(p.peak_bytes),
            Text(p.peak_kind if p.peak_bytes else ""),
            *([format_bytes(p.pss_peak_bytes)] if with_pss else []),
            format_duration(None if p.cpu_ns is None else p.cpu_ns / 1000),
            "to the end" if lived is None else format_duration(lived),
        ]
        if with_device:
            cells.append(format_bytes(p.device_peak_bytes))
        table.add_row(*cells, command)
    return _with_rest(table, len(rows) - _MOST_PROCESSES)


def _with_rest(table: RenderableType, left_out: int) -> RenderableType:
    """Return a table and below it how many rows it leaves out: within it they would widen its first column."""
    return Group(table, Text(f"and {left_out:,} more, in --json")) if left_out > 0 else table


def _figures(recording: Recording) -> RenderableType:
    table = grid("over the run", "", "", flexible="")
    r = recording
    if r.cpu_ns is not None:
        cores = "" if r.mean_cores is None else f"{r.mean_cores:.2f} cores on average"
        table.add_row("CPU time", format_duration(r.cpu_ns / 1000), cores)
    for name, read, written, left_out in (
        ("disk, read and written", r.disk_read_bytes, r.disk_written_bytes, ""),
        (
            "network, received and sent",
            r.network_received_bytes,
            r.network_sent_bytes,
            f", {WITHOUT_LOOPBACK}",
        ),
    ):
        if read is not None and written is not None:
            amounts = f"{format_bytes(read)}, {format_bytes(written)}"
            table.add_row(name, amounts, f"of the whole machine{left_out}")
    if r.cpu_energy_uj is not None:
        table.add_row("CPU energy", f"{r.cpu_energy_uj / 1e6:.1f} J", "of the whole machine, RAPL counter")
    for device in r.devices:
        facts = []
        if device.energy_mj is not None:
            facts.append(f"{device.energy_mj / 1000:.1f} J")
        if device.pcie_received_bytes is not None:
            facts.append(
                f"PCIe in {format_bytes(device.pcie_received_bytes)}, out {format_bytes(device.pcie_sent_bytes)}"
            )
        if device.mean_utilisation_percent is not None:
            facts.append(f"busy {device.mean_utilisation_percent:.0f} % of the time")
        table.add_row(plain(device.name), format_bytes(device.peak_used_bytes), ", ".join(facts))
    for lane in r.lanes:
        if lane.name == "fast" and lane.median_us is not None:
            text = f"every {format_duration(lane.median_us)}, longest gap {format_duration(lane.longest_us)}"
            table.add_row("samples", f"{lane.ticks:,}", text)
    if r.sampler_share_of_core is not None:
        table.add_row(
            "memgauge itself",
            format_bytes(r.sampler_peak_bytes),
            f"{100 * r.sampler_share_of_core:.2g} % of a core",
        )
    return table


def _missed(recording: Recording) -> Iterable[tuple[str, str, str]]:
    if recording.unseen_processes:
        how = "" if recording.unseen_is_exact else "at least "
        yield (
            "processes",
            f"{how}{recording.unseen_processes:,} came and went between two looks; their memory is not in any sum",
            "",
        )
    if recording.marks_lost:
        yield (
            "marks",
            f"{recording.marks_lost:,} were dropped: they came faster than they could be written, or from a signal's handler amid another",
            "",
        )
    shown: list[RecordingNote] = list(recording.notes)[:_MOST_NOTES]
    for note in shown:
        yield note.topic, note.text, note.remedy
    if len(recording.notes) > _MOST_NOTES:
        yield "", f"and {len(recording.notes) - _MOST_NOTES} more, in --json", ""
    for text in recording.damage:
        yield "damage", text, ""
