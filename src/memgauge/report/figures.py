"""The figures of a recording, in Plotly: one definition each, for the page, a notebook, a dashboard."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from memgauge.explain.bands import Band, titled
from memgauge.explain.recorded import LARGEST
from memgauge.report.curves import Curve, numpy
from memgauge.report.panels import Panel, RunCurves, device_panels, panels, title_of
from memgauge.report.style import COLOURS, GREY, byte_ticks, hover, label, plotly, styled
from memgauge.report.thinning import lowest_and_highest, thin

# Points of all curves of one figure together: more than a screen has columns, few enough to be drawn at once.
MOST_POINTS = 24_000
_FEW_POINTS = 60  # so few are drawn as points too: a run of one sample would be invisible
_MOST_BANDS, _MOST_LINES, _MOST_STACKED = 150, 150, 12
_BANDS = (
    "rgba(72,120,208,.13)",
    "rgba(238,133,74,.13)",
    "rgba(106,204,100,.13)",
    "rgba(149,108,180,.13)",
    "rgba(214,95,95,.13)",
)
_LINES = (("#d65f5f", "right"), ("#956cb4", "left"))
_ROW_HEIGHT = 230
_INKS = (GREY, "#956cb4", "#ee854a", "#4a9e45")  # of marks, the most frequent name first
_MARK_ROOM = 0.012  # between the names of two marks, as a share of the time from first to last
_LETTER = 0.0065  # width of one letter over a band, as a share of the figure's
_LONGEST_TITLE, _MOST_TITLES, _TITLE_ROWS = 20, 40, 3  # names over bands: letters, how many, above each other


def timeline(data: RunCurves) -> Any:
    """Return the time line of one recording: rows on one time axis, phases as bands, epochs as lines."""
    figure = _rows(panels(data), data.bands, data.marks)
    figure.update_xaxes(range=[t / 1e6 for t in data.span])
    return figure


def _rows(rows: list[Panel], spans: list[Band], marks: Sequence[Any]) -> Any:
    go = plotly()
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=max(len(rows), 1), cols=1, shared_xaxes=True, vertical_spacing=0.06)
    count = sum(len(panel.curves) for panel in rows)
    colour = 0
    for place, panel in enumerate(rows, 1):
        for name, curve, style in panel.curves:
            times, values = thin(curve.times, curve.values, MOST_POINTS // (2 * max(count, 1)))
            line = style.get("line", {"width": 1.4, "color": COLOURS[colour % len(COLOURS)]})
            scatter = {
                "mode": "lines+markers" if len(times) < _FEW_POINTS else "lines",
                "marker": {"size": 4, "color": line["color"]},
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
        top = next(figure.select_yaxes(row=place, col=1)).domain[1]
        title = {"text": label(panel.title), "font": {"size": 13}, "showarrow": False}
        corner = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": top, "yanchor": "bottom"}
        figure.add_annotation({**title, **corner})
    _draw_phases(figure, spans, marks)
    figure.update_xaxes(title_text="seconds of the run", row=max(len(rows), 1), col=1)
    styled(figure, _ROW_HEIGHT * max(len(rows), 1) + 104)
    return figure.update_layout(margin={"t": 64})  # room for the names of bands


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


def _draw_phases(figure: Any, spans: list[Band], marks: Sequence[Any]) -> None:
    """Draw the longest phases as bands and the first marks as lines; more would hide the curves."""
    names = list(dict.fromkeys(b.name for b in spans))
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    shown = sorted(spans, key=lambda b: b.begin_us - b.end_us)[:_MOST_BANDS]
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
    notes += _band_titles(shown, span_s)
    if marks:
        _draw_marks(marks, shapes, notes)
    figure.update_layout(
        shapes=[*figure.layout.shapes, *shapes], annotations=[*figure.layout.annotations, *notes]
    )


def _band_titles(bands: Iterable[Band], span_s: float) -> Iterator[dict[str, Any]]:
    """Yield the names of bands, each over its beginning, in rows; who finds no room in any has none.

    Args:
        bands: The longest first.
        span_s: What all bands lie in.
    """

    def width_s(band: Band) -> float:
        return _LETTER * span_s * min(len(titled(band)), _LONGEST_TITLE)

    wide = [band for band in bands if band.end_us - band.begin_us >= 1e6 * width_s(band)][:_MOST_TITLES]
    row_ends = [-math.inf] * _TITLE_ROWS
    for band in sorted(wide, key=lambda b: (b.begin_us, b.depth)):
        begin = band.begin_us / 1e6
        row = next((row for row, end in enumerate(row_ends) if end <= begin), None)
        if row is not None:
            row_ends[row] = begin + width_s(band) + _LETTER * span_s
            yield _note(begin, 1.0, titled(band), 16 + 12 * row)


def _draw_marks(marks: Sequence[Any], shapes: list[dict[str, Any]], notes: list[dict[str, Any]]) -> None:
    """Draw marks as lines; those of the rarest names first, named wherever there is room for a name."""
    count = Counter(m.name for m in marks)
    ordered = sorted(marks, key=lambda m: (count[m.name], m.time_us))[:_MOST_LINES]
    room = _MARK_ROOM * max(marks[-1].time_us - marks[0].time_us, 1)
    inks = {name: _INKS[i % len(_INKS)] for i, (name, _) in enumerate(count.most_common())}
    named: list[int] = []
    for mark in ordered:
        x = mark.time_us / 1e6
        line = {"width": 1, "dash": "dot", "color": inks[mark.name]}
        shapes.append(
            {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line}
        )
        if all(abs(mark.time_us - other) >= room for other in named):
            named.append(mark.time_us)
            notes.append({**_note(x, 0.0, titled(mark)), "textangle": -90})


def _note(x: float, y: float, title: str, above: int = 0) -> dict[str, Any]:
    place = {"x": x, "y": y, "xref": "x", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    return {
        **place,
        "showarrow": False,
        "text": label(title, _LONGEST_TITLE),
        "yshift": above,
        "font": {"size": 10, "color": GREY},
    }


def process_stack(data: RunCurves) -> Any:
    """Return resident memory stacked by process; the thinned instants are the tree's lows and highs, and each one's peak."""
    np, go = numpy(), plotly()
    rows = data.of("fast", "rss_bytes")
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
    stacked = [(title_of(processes[n]) if n in processes else "?", v) for n, v in shown]
    if rest:
        stacked.append((f"{len(rest)} more", np.sum([table[n] for n in rest], axis=0)))
    keep = np.arange(len(times))
    if len(times) > 2 * buckets:
        highest = [int(values.argmax()) for _, values in stacked]  # each one's own peak is drawn too
        keep = np.unique(np.r_[0, highest, lowest_and_highest(times, total, buckets), len(times) - 1])
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
                hovertemplate=hover("B"),
            )
        )
    figure.update_yaxes(rangemode="tozero", **byte_ticks(float(total.max())))
    figure.update_layout(legend_traceorder="normal")
    figure.update_xaxes(title_text="seconds of the run")
    return styled(figure, 330)


def overlay(runs: Sequence[RunCurves]) -> Any:
    """Return the tree's resident memory of several runs over the time since each began, with each one's peak."""
    curves: list[tuple[str, Curve, dict[str, Any]]] = []
    for place, data in enumerate(runs):
        ink = COLOURS[place % len(COLOURS)]
        tree = data.sum_of("fast", "rss_bytes")
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
    return _rows([p for p in (memory, Panel("GPU memory", "B", used)) if p.curves], [], [])
