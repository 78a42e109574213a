"""The figures of a recording, in Plotly: one definition each, for the page, a notebook, a dashboard."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, NamedTuple

from memgauge.errors import missing_extra
from memgauge.explain.bands import Band, bands
from memgauge.explain.recorded import Recording
from memgauge.explain.recording import summarise
from memgauge.report.curves import Curve, Lane, numpy, rate, read_lane, with_gaps
from memgauge.report.thinning import thin
from memgauge.storage import RunFile
from memgauge.units import format_bytes

# Points of all curves of one figure together: what a page of 8 MB has room for beside Plotly itself.
MOST_POINTS = 40_000
_MOST_BANDS, _MOST_LINES, _MOST_STACKED = 150, 150, 12
COLOURS = (
    "#4878d0",
    "#ee854a",
    "#6acc64",
    "#d65f5f",
    "#956cb4",
    "#8c613c",
    "#dc7ec0",
    "#797979",
    "#d5bb67",
    "#82c6e2",
)
_BANDS = (
    "rgba(72,120,208,.13)",
    "rgba(238,133,74,.13)",
    "rgba(106,204,100,.13)",
    "rgba(149,108,180,.13)",
    "rgba(214,95,95,.13)",
)
_GREY, _GRID = "#8a8f98", "rgba(128,128,128,.22)"
_LINES = (("#d65f5f", "right"), ("#956cb4", "left"))
_ROW_HEIGHT = 230
_LETTER = 0.0065  # width of one letter over a band, as a share of the figure's


class Panel(NamedTuple):
    """One row of a time line: a title, a unit, and its curves as (name, curve, style)."""

    title: str
    unit: str
    curves: list[tuple[str, Curve, dict[str, Any]]]
    lines: list[tuple[str, float]] = []  # noqa: RUF012 - never changed


def plotly() -> Any:
    """Return plotly's graph objects.

    Raises:
        MissingError: Plotly is not installed.
    """
    try:
        import plotly.graph_objects as go
    except ModuleNotFoundError as error:
        raise missing_extra("plotly", "report") from error
    return go


def label(text: object, longest: int = 60) -> str:
    """Return a name as Plotly shows it: as data, since Plotly reads a part of HTML in names."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
    return html.escape(shown if len(shown) <= longest else shown[: longest - 1] + "…", quote=False)


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
            b for b in bands(run.marks, self.end_us) if b.end_us >= shown[0] and b.begin_us <= shown[1]
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

    def sum_of(self, lane: str, metric: str) -> Curve | None:
        """Return the sum over the tree."""
        np = numpy()
        rows = list(self.of(lane, metric).values())
        if not rows:
            return None
        table = np.vstack(rows)
        known = ~np.isnan(table)
        total = np.where(known.any(axis=0), np.nansum(table, axis=0), np.nan)
        if metric == "pss_bytes":  # it is not read at every tick
            keep = ~np.isnan(total)
            return Curve(self.lanes[lane].times_us[keep] / 1e6, total[keep])
        return with_gaps(self.lanes[lane].times_us, total)


def memory_panel(data: RunCurves) -> Panel:
    """Return host memory: the tree's resident sum and PSS, the largest process, the system, exact peaks."""
    np = numpy()
    curves: list[tuple[str, Curve, dict[str, Any]]] = []
    tree = data.sum_of("fast", "rss_bytes")
    if tree is not None:
        curves.append(("tree, sum of RSS", tree, {}))
    pss = data.sum_of("slow", "pss_bytes")
    if pss is not None and len(pss.times):
        curves.append(
            ("tree, sum of PSS", pss, {"mode": "lines+markers" if len(pss.times) < 200 else "lines"})
        )
    for values in data.of("fast", "system_used_bytes").values():
        curves.append(
            ("system used", with_gaps(data.lanes["fast"].times_us, values), {"visible": "legendonly"})
        )
    lines = [
        (f"{p.name}: {format_bytes(p.bytes)} ({p.kind})", float(p.bytes))
        for p in data.summary.peaks
        if p.name.startswith("largest process")
    ]
    lines += [(f"predicted: {format_bytes(b)}", float(b)) for b in [predicted_bytes(data.run)] if b]
    return Panel(
        "host memory",
        "B",
        [(n, c, s) for n, c, s in curves if len(c.times) and not np.isnan(c.values).all()],
        lines,
    )


def predicted_bytes(run: RunFile) -> int | None:
    """Return the resident memory that the estimate in a file expects; None if there is none."""
    account = estimate_of(run)
    host = None if account is None else account.peak.host_bytes
    return None if host is None else host.expected


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
    memory, busy, traffic = _device_panels(data)
    found += [p for p in (memory,) if p.curves]
    found.append(_processor_panel(data, busy))
    found += [
        p
        for p in (
            traffic,
            _rates(data, "disk", "disk, whole machine", ("read", "write")),
            _rates(data, "network", "network, whole machine", ("received", "sent")),
        )
        if p.curves
    ]
    return [p for p in found if p.curves]


def _device_panels(data: RunCurves) -> tuple[Panel, list[tuple[str, Curve, dict[str, Any]]], Panel]:
    memory: list[tuple[str, Curve, dict[str, Any]]] = []
    busy: list[tuple[str, Curve, dict[str, Any]]] = []
    traffic: list[tuple[str, Curve, dict[str, Any]]] = []
    processes = {p.id: p for p in data.run.processes}
    fast, medium = data.lanes["fast"].times_us, data.lanes["medium"].times_us
    for device in data.run.devices:
        name = label(device.name, 24)
        for values in data.of("fast", "gpu_used_bytes", device.id).values():
            memory.append((f"{name}, device", with_gaps(fast, values), {}))
        for number, values in data.of("fast", "gpu_process_bytes", device.id).items():
            pid = processes[number].pid if number in processes else "?"
            memory.append((f"{name}, process {pid}", with_gaps(fast, values), {}))
        for values in data.of("medium", "gpu_utilisation_percent", device.id).values():
            busy.append((f"{name}, busy", with_gaps(medium, values), {}))
        for way, title in (("received", "in"), ("sent", "out")):
            for values in data.of("fast", f"pcie_{way}_bytes", device.id).values():
                traffic.append((f"{name}, {title}", rate(fast, values, 20_000), {}))
    for key in ("allocated_bytes", "reserved_bytes"):
        points = [
            (m.time_us / 1e6, m.facts[key]) for m in data.run.marks if isinstance(m.facts.get(key), int)
        ]
        if points:
            np = numpy()
            times, values = (np.array(column, np.float64) for column in zip(*points, strict=True))
            memory.append(
                (
                    f"torch, {key.removesuffix('_bytes')}, at marks",
                    Curve(times, values),
                    {"mode": "lines+markers"},
                )
            )
    return Panel("GPU memory", "B", memory), busy, Panel("PCIe", "B/s", traffic)


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


def timeline(data: RunCurves) -> Any:
    """Return the time line of one recording: rows on one time axis, phases as bands, epochs as lines."""
    return _rows(panels(data), data.bands, data.marks)


def _rows(rows: list[Panel], spans: list[Band], marks: Sequence[Any]) -> Any:
    go = plotly()
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=max(len(rows), 1), cols=1, shared_xaxes=True, vertical_spacing=0.045)
    count = sum(len(panel.curves) for panel in rows)
    colour = 0
    for place, panel in enumerate(rows, 1):
        for name, curve, style in panel.curves:
            times, values = thin(curve.times, curve.values, MOST_POINTS // (2 * max(count, 1)))
            scatter = {
                "mode": "lines",
                "line": {"width": 1.4, "color": COLOURS[colour % len(COLOURS)]},
                **style,
            }
            figure.add_trace(
                go.Scatter(
                    x=times,
                    y=_narrow(values),
                    name=name,
                    legendgroup=panel.title,
                    legendgrouptitle_text=panel.title,
                    hovertemplate=_hover(panel.unit),
                    **scatter,
                ),
                row=place,
                col=1,
            )
            colour += 1
        for number, (text, height) in enumerate(panel.lines):
            ink, side = _LINES[number % len(_LINES)]  # at either end: two that are close must not overlap
            figure.add_hline(
                y=height,
                line={"dash": "dash", "width": 1.2, "color": ink},
                row=place,
                col=1,
                annotation={"text": label(text, 100), "font": {"size": 11, "color": ink}},
                annotation_position=f"top {side}",
            )
        figure.update_yaxes(_axis(panel), row=place, col=1)
    _draw_phases(figure, spans, marks)
    figure.update_xaxes(title_text="seconds of the run", row=max(len(rows), 1), col=1)
    return styled(figure, _ROW_HEIGHT * max(len(rows), 1) + 90)


def _narrow(values: Any) -> Any:
    """Return values in 32 bits: seven digits are more than a picture shows, in half the bytes."""
    return numpy().asarray(values, numpy().float32)


def _axis(panel: Panel) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": panel.title, "font": {"size": 12}}, "rangemode": "tozero"}
    if panel.unit.startswith("B"):
        np = numpy()
        shown = [c for _, c, style in panel.curves if len(c.values) and style.get("visible") is not False]
        drawn = [c for _, c, style in panel.curves if len(c.values) and "visible" not in style]
        highest = max((float(np.nanmax(c.values)) for c in drawn or shown), default=0.0)
        highest = max([highest, *(height for _, height in panel.lines)])
        axis |= byte_ticks(highest, "/s" if panel.unit.endswith("/s") else "")
    else:
        axis["ticksuffix"] = f" {panel.unit}"
    return axis


def byte_ticks(highest: float, suffix: str = "") -> dict[str, Any]:
    """Return ticks at round binary amounts, since Plotly's own are decimal."""
    size = max(highest, 1.0) / 4
    step = 1
    while step < size:
        step *= 2
    if step > size * 1.5 and step >= 4:  # between two powers of two the half step reads better
        step = step * 3 // 4
    values = [step * i for i in range(int(highest / step) + 2)]
    return {"tickvals": values, "ticktext": [format_bytes(v) + suffix for v in values]}


def _hover(unit: str) -> str:
    if unit.startswith("B"):
        return "%{y:,.0f} " + unit + " at %{x:.3f} s<extra>%{fullData.name}</extra>"
    return "%{y:.1f} " + unit + " at %{x:.3f} s<extra>%{fullData.name}</extra>"


def _draw_phases(figure: Any, spans: list[Band], marks: Sequence[Any]) -> None:
    """Draw the longest phases as bands and the first marks as lines; more would hide the curves."""
    names = list(dict.fromkeys(b.name for b in spans))
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    shown = sorted(spans, key=lambda b: b.begin_us - b.end_us)[:_MOST_BANDS]
    few = len(shown) <= 40
    span_s = (max((b.end_us for b in spans), default=0) - min((b.begin_us for b in spans), default=0)) / 1e6
    for band in shown:
        x0, x1 = band.begin_us / 1e6, band.end_us / 1e6
        fill = _BANDS[names.index(band.name) % len(_BANDS)]
        shapes.append(
            {
                "type": "rect",
                "xref": "x",
                "yref": "paper",
                "x0": x0,
                "x1": x1,
                "y0": 0,
                "y1": 1,
                "fillcolor": fill,
                "line": {"width": 0},
                "layer": "below",
            }
        )
        title = band.name if band.value is None else f"{band.name} {band.value}"
        if (few or len(notes) < 40) and x1 - x0 >= _LETTER * min(len(title), 20) * span_s:
            notes.append(_note(x0, 1.0 + 0.02 * (band.depth % 2), title))
    for mark in marks[:_MOST_LINES]:
        x = mark.time_us / 1e6
        shapes.append(
            {
                "type": "line",
                "xref": "x",
                "yref": "paper",
                "x0": x,
                "x1": x,
                "y0": 0,
                "y1": 1,
                "line": {"width": 1, "dash": "dot", "color": _GREY},
            }
        )
        if len(marks) <= 30:
            title = mark.name if mark.value is None else f"{mark.name} {mark.value}"
            notes.append({**_note(x, 0.0, title), "yanchor": "bottom", "textangle": -90})
    figure.update_layout(
        shapes=[*figure.layout.shapes, *shapes], annotations=[*figure.layout.annotations, *notes]
    )


def _note(x: float, y: float, title: str) -> dict[str, Any]:
    place = {"x": x, "y": y, "xref": "x", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    return {**place, "showarrow": False, "text": label(title, 20), "font": {"size": 10, "color": _GREY}}


def process_stack(data: RunCurves) -> Any:
    """Return resident memory stacked by process; the thinned instants are the tree's own lows and highs."""
    np, go = numpy(), plotly()
    from memgauge.report.thinning import lowest_and_highest

    rows = data.of("fast", "rss_bytes")
    times = data.lanes["fast"].times_us
    if len(rows) < 2 or not len(times):
        return None
    processes = {p.id: p for p in data.run.processes}
    table = {n: np.nan_to_num(v) for n, v in rows.items()}
    total = np.sum(list(table.values()), axis=0)
    ordered = sorted(table, key=lambda n: -float(table[n].max()))
    buckets = max(200, MOST_POINTS // (4 * min(len(ordered), _MOST_STACKED + 1)))
    keep = np.arange(len(times))
    if len(times) > 2 * buckets:
        keep = np.unique(np.r_[0, lowest_and_highest(times, total, buckets), len(times) - 1])
    figure = go.Figure()
    shown = [(n, table[n]) for n in ordered[:_MOST_STACKED]]
    rest = ordered[_MOST_STACKED:]
    stacked = [
        (f"{processes[n].pid} {label(processes[n].name, 24)}" if n in processes else "?", v) for n, v in shown
    ]
    if rest:
        stacked.append((f"{len(rest)} more", np.sum([table[n] for n in rest], axis=0)))
    for place, (name, values) in enumerate(stacked):
        colour = COLOURS[place % len(COLOURS)]
        figure.add_trace(
            go.Scatter(
                x=times[keep] / 1e6,
                y=_narrow(values[keep]),
                name=name,
                stackgroup="tree",
                mode="lines",
                line={"width": 0.5, "color": colour},
                hovertemplate=_hover("B"),
            )
        )
    figure.update_yaxes(
        title_text="resident, by process", rangemode="tozero", **byte_ticks(float(total.max()))
    )
    figure.update_xaxes(title_text="seconds of the run")
    return styled(figure, 330)


def overlay(runs: Sequence[RunCurves]) -> Any:
    """Return the tree's resident memory of several runs over the time since each began."""
    curves: list[tuple[str, Curve, dict[str, Any]]] = []
    for data in runs:
        tree = data.sum_of("fast", "rss_bytes")
        if tree is not None:
            curves.append((label(data.title, 40), tree, {}))
    memory = Panel("tree, sum of RSS", "B", curves)
    used = []
    for data in runs:
        memory_of_device = _device_panels(data)[0]
        used += [(f"{label(data.title, 24)}: {n}", c, s) for n, c, s in memory_of_device.curves[:1]]
    return _rows([p for p in (memory, Panel("GPU memory", "B", used)) if p.curves], [], [])


def styled(figure: Any, height: int) -> Any:
    """Return the figure in a style that reads on light and on dark paper."""
    figure.update_layout(
        template="none",
        height=height,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": _GREY, "family": "system-ui, sans-serif", "size": 12},
        hovermode="x unified",
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": _GREY, "activecolor": COLOURS[0]},
        hoverlabel={"bgcolor": "#2b2f36", "font": {"color": "#f0f0f0"}},
        legend={"groupclick": "toggleitem", "font": {"size": 11}},
        margin={"l": 95, "r": 20, "t": 50, "b": 45},
    )
    figure.update_xaxes(gridcolor=_GRID, zerolinecolor=_GRID, linecolor=_GRID)
    figure.update_yaxes(gridcolor=_GRID, zerolinecolor=_GRID, linecolor=_GRID)
    return figure
