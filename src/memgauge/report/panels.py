"""What is drawn of a recording: rows of curves over one time axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from memgauge.explain.bands import bands
from memgauge.explain.recorded import WITHOUT_LOOPBACK, Recording
from memgauge.explain.recording import summarise
from memgauge.explain.samples import Sums
from memgauge.report.curves import Curve, Lane, numpy, rate, read_lane, standing, with_gaps
from memgauge.report.style import label
from memgauge.storage import Process, RunFile
from memgauge.units import format_bytes

_MOST_LEVELS = 500


_STEPS = {"line": {"shape": "hv"}}  # of what stands until it is read again


class Panel(NamedTuple):
    """One row of a time line: a title, a unit, its curves as (name, curve, style), lines across as (name, height)."""

    title: str
    unit: str
    curves: list[tuple[str, Curve, dict[str, Any]]]
    lines: list[tuple[str, float]] = []  # noqa: RUF012 - never changed


class RunCurves:
    """What is drawn of one recording, read once.

    Args:
        run: The recording.
        begin_us: Where to begin; its beginning if None.
        end_us: Where to end; its end if None.
    """

    def __init__(self, run: RunFile, begin_us: int | None = None, end_us: int | None = None) -> None:
        self.run = run
        self.title = run.path.name  # what it is called beside others
        self.summary: Recording = summarise(run)
        self.lanes: dict[str, Lane] = {
            name: read_lane(run, name, begin_us, end_us) for name in ("fast", "cpu", "medium", "slow")
        }
        self._about = {s.id: s for s in run.series}
        self.end_us = max(self.summary.duration_us, 1)
        shown = (begin_us or 0, self.end_us if end_us is None else end_us)
        self.bands = [
            part
            for band in bands(run.marks, self.end_us, run.processes)
            if (part := band.within(*shown)) is not None
        ]
        self.marks = [m for m in run.marks if m.kind == "mark" and shown[0] <= m.time_us <= shown[1]]
        self.span = shown

    def of(self, lane: str, metric: str, device: int | None = None) -> dict[int, Any]:
        """Return the values of one metric by process id (0 for the machine's or a device's own)."""
        found: dict[int, Any] = {}
        for number, values in self.lanes[lane].series.items():
            about = self._about.get(number)
            if about and about.metric == metric and (device is None or about.device == device):
                found[about.process or 0] = values
        return found

    def rss(self) -> Curve | None:
        """Return the tree's sum of RSS, None if none was read."""
        np = numpy()
        rows = list(self.of("fast", "rss_bytes").values())
        if not rows:
            return None
        table = np.vstack(rows)
        known = ~np.isnan(table)
        total = np.where(known.any(axis=0), np.nansum(table, axis=0), np.nan)
        return with_gaps(self.lanes["fast"].times_us, total)

    def pss(self) -> tuple[Curve, Any]:
        """Return the tree's PSS, and when it was read: not at every look, and it may be refused of some processes.

        Once it is more than the RSS of that moment it is out of date.
        """
        np = numpy()
        (times, values), (rss_times, rss) = (
            (np.array(sums.times_us, np.float64), np.array(sums.total, np.float64))
            for sums in (Sums(self.run, "pss_bytes", "slow"), Sums(self.run))
        )
        most = Curve(rss_times / 1e6, rss)
        return standing(times, values, self._interval_us("slow"), self.span, most), times / 1e6

    def is_held(self, metric: str) -> bool:
        """Return whether a metric's source is read or changes less often than its lane is."""
        return any(s.metric == metric and s.refresh_us for s in self.run.series)

    def _interval_us(self, name: str) -> int:
        """Return the time between two looks of a lane, also one at which nothing of a metric was read."""
        found = next(lane for lane in self.summary.lanes if lane.name == name)
        return max(found.asked_us, found.median_us or 0)  # phases make it look more often than was asked


def memory_panel(data: RunCurves) -> Panel:
    """Return host memory: the tree's resident sum and PSS, the largest process, the system, exact peaks."""
    np = numpy()
    curves: list[tuple[str, Curve, dict[str, Any]]] = []
    tree = data.rss()
    if tree is not None:
        curves.append(("tree, sum of RSS", tree, {}))
    pss, read_at = data.pss()
    if len(pss.times):
        # A reading between two gaps is a point without a line.
        has_points = len(pss.times) < 200 or np.isnan(pss.values).any()
        style = {**_STEPS, "mode": "lines+markers", "points": read_at} if has_points else _STEPS
        curves.append(("tree, sum of PSS", pss, style))
    steps = _STEPS if data.is_held("system_used_bytes") else {}
    for values in data.of("fast", "system_used_bytes").values():
        used = with_gaps(data.lanes["fast"].times_us, values)
        curves.append(("system used", used, {"visible": "legendonly", **steps}))
    curves += _at_marks(data, on_cpu=True)
    lines = [
        (f"{p.name}\n{format_bytes(p.bytes)} ({p.kind})", float(p.bytes))
        for p in data.summary.peaks
        if p.name.startswith("largest process") or (p.name == "control group" and p.kind == "exact")
    ]
    own = _phase_peaks(data)
    if own is not None:
        line = {"width": 3, "color": "#d65f5f"}
        curves.append(("exact peak of a phase's process", own, {"mode": "lines", "line": line}))
    lines += [(f"predicted\n{format_bytes(b)}", float(b)) for b in [predicted_bytes(data.run)] if b]
    return Panel(
        "host memory",
        "B",
        [(n, c, s) for n, c, s in curves if len(c.times) and not np.isnan(c.values).all()],
        lines,
    )


def _phase_peaks(data: RunCurves) -> Curve | None:
    """Return the exact peaks of phases, each as a level over its phase; None if there are none."""
    np = numpy()
    exact = {p.phase: p.bytes for p in data.run.peaks if p.phase is not None and p.metric == "rss_bytes"}
    found = [b for b in data.bands if b.mark in exact][:_MOST_LEVELS]
    if not found:
        return None
    times = [(b.begin_us / 1e6, b.end_us / 1e6, b.end_us / 1e6) for b in found]
    values = [(exact[b.mark], exact[b.mark], np.nan) for b in found]
    return Curve(np.array(times, np.float64).ravel(), np.array(values, np.float64).ravel())


def predicted_bytes(run: RunFile) -> int | None:
    """Return the resident memory that the estimate in a file expects; None if there is none."""
    account = estimate_of(run)
    host = None if account is None else account.peak.host_bytes
    return None if host is None else host.expected


def title_of(process: Process) -> str:
    """Return what a process is called: its number, and its script rather than the interpreter."""
    name = process.name
    if name.startswith(("python", "pt_main_thread")):
        words = process.command.split()
        scripts = [w for w in words[1:] if w.endswith(".py")]
        name = scripts[0].rpartition("/")[2] if scripts else name
    return f"{process.pid} {name}"


def estimate_of(run: RunFile) -> Any:
    """Return the estimate that a recording holds, None if it holds none or a damaged one."""
    from memgauge.errors import FileFormatError
    from memgauge.report.json import decode_account

    text = run.document("estimate")
    try:
        return None if text is None else decode_account(text.encode(), "the estimate in the run file")
    except FileFormatError:
        return None


def panels(data: RunCurves) -> list[Panel]:
    """Return the rows of the time line; what was not recorded has none."""
    found = [memory_panel(data)]
    memory, busy, traffic = device_panels(data)
    found += [p for p in (memory,) if p.curves]
    found.append(_processor_panel(data, busy))
    found += [
        p
        for p in (
            traffic,
            _rates(data, "disk", "disk, whole machine", ("read", "write")),
            _rates(data, "network", f"network, whole machine, {WITHOUT_LOOPBACK}", ("received", "sent")),
        )
        if p.curves
    ]
    return [p for p in found if p.curves]


def device_panels(data: RunCurves) -> tuple[Panel, list[tuple[str, Curve, dict[str, Any]]], Panel]:
    """Return GPU memory, the curves of how busy GPUs are, and PCIe."""
    memory: list[tuple[str, Curve, dict[str, Any]]] = []
    busy: list[tuple[str, Curve, dict[str, Any]]] = []
    traffic: list[tuple[str, Curve, dict[str, Any]]] = []
    processes = {p.id: p for p in data.run.processes}
    fast, medium = data.lanes["fast"].times_us, data.lanes["medium"].times_us
    busy_style = _STEPS if data.is_held("gpu_utilisation_percent") else {}
    for device in data.run.devices:
        name = label(device.name, 24)
        for values in data.of("fast", "gpu_used_bytes", device.id).values():
            memory.append((f"{name}, device", with_gaps(fast, values), {}))
        for number, values in data.of("fast", "gpu_process_bytes", device.id).items():
            if numpy().isnan(values).all():  # it lies outside of what is drawn
                continue
            pid = processes[number].pid if number in processes else "?"
            memory.append((f"{name}, process {pid}", with_gaps(fast, values), {}))
        for values in data.of("medium", "gpu_utilisation_percent", device.id).values():
            busy.append((f"{name}, busy", with_gaps(medium, values), busy_style))
        for way, title in (("received", "in"), ("sent", "out")):
            for values in data.of("fast", f"pcie_{way}_bytes", device.id).values():
                traffic.append((f"{name}, {title}", rate(fast, values, 20_000), {}))
    memory += _at_marks(data, on_cpu=False)
    return Panel("GPU memory", "B", memory), busy, Panel("PCIe", "B/s", traffic)


def _at_marks(data: RunCurves, *, on_cpu: bool) -> list[tuple[str, Curve, dict[str, Any]]]:
    """Return what the frameworks' own allocators said at the marks, those of the CPU or those of GPUs."""
    np = numpy()
    found: list[tuple[str, Curve, dict[str, Any]]] = []
    for key in ("allocated_bytes", "reserved_bytes"):
        points: dict[str, list[tuple[float, int]]] = {}
        for m in data.run.marks:
            if isinstance(m.facts.get(key), int) and str(m.facts.get("device")).startswith("CPU") == on_cpu:
                framework = str(m.facts.get("framework", "torch"))
                points.setdefault(framework, []).append((m.time_us / 1e6, m.facts[key]))
        for framework, pairs in points.items():
            times, values = (np.array(column, np.float64) for column in zip(*pairs, strict=True))
            name = f"{framework}, {key.removesuffix('_bytes')}, at marks"
            found.append((name, Curve(times, values), {**_STEPS, "mode": "lines+markers"}))
    return found


def _processor_panel(data: RunCurves, busy: list[tuple[str, Curve, dict[str, Any]]]) -> Panel:
    np = numpy()
    times = data.lanes["cpu"].times_us
    rows = list(data.of("cpu", "cpu_ns").values())
    curves: list[tuple[str, Curve, dict[str, Any]]] = []
    if rows and len(times) > 1:
        # Each process by itself: one that ends must not look as if time had run backwards.
        grown = [np.nan_to_num(np.diff(row)) for row in rows]
        step = np.diff(times)
        good = step > 0
        share = 100 * np.sum(grown, axis=0)[good] / (step[good] * 1000)
        curves.append(("CPU, 100 % is one core", Curve(times[1:][good] / 1e6, share), {}))
    return Panel("CPU and GPU" if busy else "CPU", "%", curves + busy)


def _rates(data: RunCurves, kind: str, title: str, ways: Sequence[str]) -> Panel:
    times = data.lanes["medium"].times_us
    curves: list[tuple[str, Curve, dict[str, Any]]] = [
        (f"{kind}, {way}", rate(times, values, 100_000), {})
        for way in ways
        for values in data.of("medium", f"{kind}_{way}_bytes").values()
        if len(values) and numpy().nanmax(values) > numpy().nanmin(values)
    ]
    return Panel(title, "B/s", curves)
