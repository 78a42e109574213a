"""The figures of a recording, in Plotly: one definition each, for the page, a notebook, a dashboard."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from memgauge.explain.bands import Band
from memgauge.explain.recorded import LARGEST
from memgauge.report.curves import Curve, numpy
from memgauge.report.panels import Panel, RunCurves, device_panels, panels, title_of
from memgauge.report.phases_and_marks import STRIP_HEIGHT, draw_marks, draw_phases
from memgauge.report.style import COLOURS, byte_ticks, hover, label, plotly, styled
from memgauge.report.thinning import lowest_and_highest, thin

# Points of all curves of one figure together: more than a screen has columns, few enough to be drawn at once.
MOST_POINTS = 24_000
_FEW_POINTS = 60  # so few are drawn as points too: a run of one sample would be invisible
_MOST_STACKED = 12
_STACKED = (*COLOURS, "#2f9e9e", "#a3c644", "#5b5bd6")  # of processes and of the rest, each its own
_LINES = ("#d65f5f", "#956cb4", "#8c613c")
_ROW_HEIGHT = 230
_LEGEND_ROW, _LEGEND_TITLE, _TALLEST_LEGEND = 19, 34, 900  # pixels
_LEGEND_LETTER, _LEGEND_SIDE, _WIDEST_LEGEND = 6.4, 75, 360  # pixels, beside the curves


def timeline(data: RunCurves) -> Any:
    """Return the time line of one recording: rows on one time axis, phases as bands, epochs as lines."""
    owners = {p.pid: title_of(p) for p in data.run.processes}
    figure = _rows(panels(data), data.bands, data.marks, data.span, owners)
    figure.update_xaxes(range=[t / 1e6 for t in data.span])
    return figure


def _rows(
    rows: list[Panel],
    spans: list[Band],
    marks: Sequence[Any],
    shown: tuple[int, int],
    owners: Mapping[int, str],
) -> Any:
    go, np = plotly(), numpy()
    from plotly.subplots import make_subplots

    heights = [_ROW_HEIGHT] * max(len(rows), 1) + [STRIP_HEIGHT] * bool(marks)
    figure = make_subplots(
        rows=len(heights), cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=heights
    )
    count = sum(len(panel.curves) for panel in rows)
    colour = 0
    for place, panel in enumerate(rows, 1):
        for name, curve, style in panel.curves:
            style = dict(style)
            points = style.pop("points", None)  # times of readings; others have no marker
            line = {"width": 1.4, "color": COLOURS[colour % len(COLOURS)], **style.get("line", {})}
            buckets = MOST_POINTS // (2 * max(count, 1))
            times, values = thin(curve.times, curve.values, buckets, stand=line.get("shape") == "hv")
            size = 4 if points is None else np.where(np.isin(times, points), 4, 0)
            scatter = {
                "mode": "lines+markers" if len(times) < _FEW_POINTS else "lines",
                "marker": {"size": size, "color": line["color"], "line": {"width": 0}},
                **style,
                "line": line,
            }
            figure.add_trace(
                go.Scatter(
                    x=times,
                    y=_narrow(values),
                    name=name,
                    legendgroup=panel.title,
                    legendgrouptitle_text=panel.title,
                    hovertemplate=hover(panel.unit),
                    **scatter,
                ),
                row=place,
                col=1,
            )
            colour += 1
        for number, (text, height) in enumerate(panel.lines):
            figure.add_trace(
                go.Scatter(
                    x=[t / 1e6 for t in shown],
                    y=[height, height],
                    name="<br>".join(label(part) for part in text.splitlines()),
                    mode="lines",
                    legendgroup=panel.title,
                    line={"dash": "dash", "width": 1.2, "color": _LINES[number % len(_LINES)]},
                    hovertemplate=hover(panel.unit),
                ),
                row=place,
                col=1,
            )
        figure.update_yaxes(_axis(panel), row=place, col=1)
        _title(figure, panel.title, place)
    strip = draw_phases(figure, spans, shown, owners)
    if marks:
        _title(figure, draw_marks(figure, marks, shown, len(heights)), len(heights))
    figure.update_xaxes(title_text="seconds of the run", row=len(heights), col=1)
    styled(figure, max(sum(heights), _legend_height(figure)) + 120 + strip)
    return figure.update_layout(margin={"t": 80 + strip})  # room for the names of bands


def _title(figure: Any, text: str, row: int) -> None:
    top = next(figure.select_yaxes(row=row, col=1)).domain[1]
    title = {"text": label(text), "font": {"size": 13}, "showarrow": False}
    corner = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": top, "yanchor": "bottom"}
    figure.add_annotation({**title, **corner})


def _legend_height(figure: Any) -> int:
    """Return how high the figure has to be for its legend not to be cut."""
    named = [trace for trace in figure.data if trace.name and trace.showlegend is not False]
    groups = len({trace.legendgroup for trace in named})
    rows: int = sum(1 + trace.name.count("<br>") for trace in named)
    return min(_LEGEND_ROW * rows + _LEGEND_TITLE * groups + _LEGEND_ROW, _TALLEST_LEGEND)


def _narrow(values: Any) -> Any:
    """Return values in 32 bits: seven digits are more than a picture shows, in half the bytes."""
    return numpy().asarray(values, numpy().float32)


def _axis(panel: Panel) -> dict[str, Any]:
    axis: dict[str, Any] = {"rangemode": "tozero"}
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


def process_stack(data: RunCurves) -> Any:
    """Return resident memory stacked by process; the thinned instants are the tree's lows and highs, and each one's peak."""
    np, go = numpy(), plotly()
    # A process that lies outside of the span has no value in it.
    rows = {n: v for n, v in data.of("fast", "rss_bytes").items() if not np.isnan(v).all()}
    times = data.lanes["fast"].times_us
    if len(rows) < 2 or not len(times):
        return None
    processes = {p.id: p for p in data.run.processes}
    table = {n: np.nan_to_num(v) for n, v in rows.items()}
    total = np.sum(list(table.values()), axis=0)
    ordered = sorted(table, key=lambda n: -float(table[n].max()))
    buckets = max(200, MOST_POINTS // (4 * min(len(ordered), _MOST_STACKED + 1)))
    figure = go.Figure()
    shown = [(n, table[n]) for n in ordered[:_MOST_STACKED]]
    rest = ordered[_MOST_STACKED:]
    stacked = [(label(title_of(processes[n]), 32) if n in processes else "?", v) for n, v in shown]
    if rest:
        stacked.append((f"{len(rest)} more", np.sum([table[n] for n in rest], axis=0)))
    keep = np.arange(len(times))
    if len(times) > 2 * buckets:
        highest = [int(values.argmax()) for _, values in stacked]  # each one's own peak is drawn too
        keep = np.unique(np.r_[0, highest, lowest_and_highest(times, total, buckets), len(times) - 1])
    for place, (name, values) in enumerate(stacked):
        colour = _STACKED[place % len(_STACKED)]
        figure.add_trace(
            go.Scatter(
                x=times[keep] / 1e6,
                y=_narrow(values[keep]),
                name=name,
                stackgroup="tree",
                mode="lines",
                line={"width": 0.5, "color": colour},
                hovertemplate=hover("B"),
            )
        )
    figure.update_yaxes(rangemode="tozero", **byte_ticks(float(total.max())))
    figure.update_layout(legend_traceorder="normal")
    figure.update_xaxes(title_text="seconds of the run", range=[t / 1e6 for t in data.span])
    return styled(figure, max(330, _legend_height(figure) + 95))


def aligned(figures: Sequence[Any]) -> None:
    """Give figures one right margin, wide enough for each legend: time axes below each other are as long."""
    named = [trace.name for figure in figures for trace in figure.data if trace.name]
    names = [html.unescape(line) for name in named for line in name.split("<br>")]
    width = _LEGEND_SIDE + _LEGEND_LETTER * max(map(len, names), default=0)
    for figure in figures:
        figure.update_layout(margin={"r": min(round(width), _WIDEST_LEGEND)}, showlegend=True)


def overlay(runs: Sequence[RunCurves]) -> Any:
    """Return the tree's resident memory of several runs over the time since each began, with each one's peak."""
    curves: list[tuple[str, Curve, dict[str, Any]]] = []
    for place, data in enumerate(runs):
        ink = COLOURS[place % len(COLOURS)]
        tree = data.rss()
        if tree is not None:
            curves.append((label(data.title, 40), tree, {"line": {"width": 1.4, "color": ink}}))
        for peak in data.summary.peaks:
            if peak.name == LARGEST:
                span = numpy().array([data.span[0], data.span[1]]) / 1e6
                level = Curve(span, numpy().full(2, float(peak.bytes)))
                title = f"{label(data.title, 24)}: {LARGEST}, {peak.kind}"
                line = {"width": 1.2, "dash": "dash", "color": ink}
                curves.append((title, level, {"mode": "lines", "line": line}))
    memory = Panel("tree, sum of RSS", "B", curves)
    used = []
    for data in runs:
        memory_of_device = device_panels(data)[0]
        used += [(f"{label(data.title, 24)}: {n}", c, s) for n, c, s in memory_of_device.curves[:1]]
    begin, end = min(data.span[0] for data in runs), max(data.span[1] for data in runs)
    figure = _rows(
        [p for p in (memory, Panel("GPU memory", "B", used)) if p.curves], [], [], (begin, end), {}
    )
    return figure.update_xaxes(range=[begin / 1e6, end / 1e6])
