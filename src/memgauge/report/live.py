"""A recording in progress as a few lines: memory per process, the phase, small curves."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from memgauge.columns import MISSING
from memgauge.explain.bands import bands, titled
from memgauge.explain.recorded_peaks import alone_bytes
from memgauge.explain.recording import how_it_ended
from memgauge.report.tables import grid, plain, short_command
from memgauge.storage import RunFile
from memgauge.units import format_bytes, format_duration

_BLOCKS = "▁▂▃▄▅▆▇█"
_CURVE_CELLS = 40
_ROWS = 8


class Live:
    """Reads the newest chunks of a growing run file, and keeps what the curves need.

    Args:
        run: The recording.
    """

    def __init__(self, run: RunFile) -> None:
        self.run = run
        self.state, self.ended = "recording", ""
        self.duration_us = 0
        self.tree_bytes: int | None = None
        self.system_bytes: int | None = None
        self.highest_bytes = 0
        self.processes: list[tuple[int, str, int, int | None]] = []
        self.devices: list[tuple[str, int | None, int | None, float | None, float | None]] = []
        self.phase = ""
        self.curve: list[int] = []

    def refresh(self) -> None:
        """Read what is new."""
        run = self.run
        run.refresh()
        self.state, self.ended, _ = how_it_ended(run)
        self._read_memory()
        self._read_devices()
        self.phase = self._current_phase()

    def _read_memory(self) -> None:
        run = self.run
        chunks = run.latest_chunks("fast", 2)
        if not chunks:
            return
        owner = {s.id: s for s in run.series}
        rss = {s.id for s in run.series if s.metric == "rss_bytes"}
        points: list[int] = []
        for chunk in chunks:
            total = [0] * len(chunk.times_us)
            for number, first, values in chunk.columns:
                if number in rss:
                    for place, value in enumerate(values, first):
                        total[place] += value
            points += total
        if not points:
            return
        newest = chunks[-1]
        self.duration_us = newest.times_us[-1]
        self.tree_bytes = points[-1]
        self.highest_bytes = max(self.highest_bytes, *points, alone_bytes(run.peaks))
        width = max(1, len(points) // _CURVE_CELLS)
        self.curve = [max(points[i : i + width]) for i in range(0, len(points), width)][-_CURVE_CELLS:]
        last = len(newest.times_us) - 1
        processes = {p.id: p for p in run.processes}
        now = []
        for number, first, values in newest.columns:
            about = owner.get(number)
            if about is None or first + len(values) - 1 != last:
                continue
            if about.metric == "system_used_bytes":
                self.system_bytes = values[-1]
            elif number in rss and about.process in processes:
                process = processes[about.process]
                on_device = self._latest(newest, about.process, "gpu_process_bytes")
                now.append((process.pid, process.command or process.name, values[-1], on_device))
        self.processes = sorted(now, key=lambda p: -p[2])

    def _latest(self, chunk: object, process: int | None, metric: str) -> int | None:
        ids = {s.id for s in self.run.series if s.metric == metric and s.process == process}
        found = [c.values[-1] for c in chunk.columns if c.series in ids and c.values]  # type: ignore[attr-defined]
        known = [v for v in found if v != MISSING]
        return sum(known) if known else None

    def _read_devices(self) -> None:
        self.devices = []
        if not self.run.devices:
            return
        latest: dict[int, tuple[list[int], list[int]]] = {}
        for lane in ("fast", "medium"):
            for chunk in self.run.latest_chunks(lane, 1):
                for number, first, values in chunk.columns:
                    latest[number] = (list(chunk.times_us[first:]), list(values))
        for device in self.run.devices:
            ids = {s.metric: s.id for s in self.run.series if s.device == device.id and s.process is None}
            used = latest.get(ids.get("gpu_used_bytes", -1))
            busy = latest.get(ids.get("gpu_utilisation_percent", -1))
            rates = [_rate(latest.get(ids.get(f"pcie_{way}_bytes", -1))) for way in ("received", "sent")]
            shown = None if used is None or used[1][-1] == MISSING else used[1][-1]
            percent = None if busy is None or busy[1][-1] == MISSING else busy[1][-1]
            self.devices.append((device.name, shown, percent, rates[0], rates[1]))

    def _current_phase(self) -> str:
        stacks: dict[int, list[str]] = {}
        now_us = self.run.last_us()
        for band in bands(self.run.marks, now_us, self.run.processes):
            if not band.is_finished and band.end_us >= now_us:  # else its process is gone
                stacks.setdefault(band.pid, []).append(titled(band))
        latest = next((titled(mark) for mark in reversed(self.run.marks) if mark.kind == "mark"), "")
        return ", ".join(" › ".join(stack) for stack in list(stacks.values())[:3]) or latest

    def _count(self) -> str:
        count = len(self.processes)
        return f"{count} process{'' if count == 1 else 'es'}"

    def line(self) -> str:
        """Return the moment as one line of plain text."""
        parts = [format_duration(self.duration_us)]
        if self.state == "recording":
            now = f"resident {format_bytes(self.tree_bytes)} (highest {format_bytes(self.highest_bytes)})"
            parts += [self._count(), now]
        else:
            parts.append(f"highest {format_bytes(self.highest_bytes)} resident")
        parts += [f"{name} {format_bytes(used)}" for name, used, *_ in self.devices]
        if self.phase:
            parts.append(self.phase)
        return plain(", ".join(parts)).plain

    def view(self) -> RenderableType:
        """Return the moment as a table with a curve."""
        head = Text.assemble(
            (format_bytes(self.tree_bytes), "bold"),
            f" resident in {self._count()}, highest {format_bytes(self.highest_bytes)}, "
            f"system {format_bytes(self.system_bytes)}, {format_duration(self.duration_us)}",
        )
        parts: list[RenderableType] = [head, Text(sparkline(self.curve), style="cyan")]
        if self.phase:
            parts.append(Text("phase ", style="dim").append_text(plain(self.phase)))
        for name, used, percent, received, sent in self.devices:
            busy = "" if percent is None else f", {percent} % busy"
            rates = (
                ""
                if received is None
                else f", PCIe in {format_bytes(int(received))}/s out {format_bytes(int(sent or 0))}/s"
            )
            parts.append(plain(f"{name}: {format_bytes(used)}{busy}{rates}"))
        gpu = ["GPU"] if self.devices else []
        table = grid("pid", "resident", *gpu, "command", flexible="command")
        for pid, command, resident, on_device in self.processes[:_ROWS]:
            on_gpu = [format_bytes(on_device)] if gpu else []
            table.add_row(str(pid), format_bytes(resident), *on_gpu, short_command(command, 60))
        if len(self.processes) > _ROWS:
            table.add_row("", "", *[""] * len(gpu), f"and {len(self.processes) - _ROWS} more")
        return Group(*parts, table)


def sparkline(values: list[int]) -> str:
    """Return a small curve from zero to the highest value."""
    highest = max(values, default=0)
    if highest <= 0:
        return ""
    return "".join(_BLOCKS[min(7, 8 * value // (highest + 1))] for value in values)


def _rate(points: tuple[list[int], list[int]] | None) -> float | None:
    if points is None or len(points[1]) < 2:
        return None
    times, values = points[0][-10:], points[1][-10:]
    span = times[len(values) - 1] - times[0]
    return (values[-1] - values[0]) * 1e6 / span if span > 0 and MISSING not in values else None
