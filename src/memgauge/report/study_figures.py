"""The figures of a study, in Plotly: one definition each, for the page, a notebook, a dashboard."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from memgauge.report.style import COLOURS, byte_ticks, label, plotly, styled
from memgauge.study.analysis.drivers import columns_of
from memgauge.study.analysis.records import FigureAnalysis
from memgauge.study.records import FIGURES, Trial
from memgauge.units import format_bytes

_GREY = "#8a8f98"
_MOST_POINTS, _MOST_PANELS, _COLUMNS = 5000, 12, 3
_MOST_LINES, _MOST_NAMES = 1000, 12
_LOGARITHMIC = (
    30  # a parameter whose highest value is so many times its lowest is drawn over orders of magnitude
)


def _title(figure: str) -> str:
    return FIGURES[figure][0] if figure in FIGURES else figure


def importances(figures: Sequence[FigureAnalysis]) -> Any:
    """Return bars: the share of the variance per parameter, with intervals, against the noise floor."""
    go = plotly()
    plot = go.Figure()
    shown = [f for f in figures if f.importances]
    names = list(dict.fromkeys(i.name for f in shown for i in f.importances))
    for place, figure in enumerate(shown):
        by_name = {i.name: i for i in figure.importances}
        rows = [by_name[n] for n in names if n in by_name]
        colour = COLOURS[place % len(COLOURS)]
        plot.add_trace(
            go.Bar(
                x=[100 * r.share for r in rows],
                y=[label(r.name) for r in rows],
                orientation="h",
                name=label(figure.title),
                marker={"color": colour},
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [100 * max(r.high - r.share, 0) for r in rows],
                    "arrayminus": [100 * max(r.share - r.low, 0) for r in rows],
                    "thickness": 1,
                    "color": _GREY,
                },
                visible=True if place == 0 else "legendonly",
                hovertext=[label(r.words, 200) for r in rows],
                hoverinfo="text",
            )
        )
    floor = max((100 * (f.floor or 0) for f in shown[:1]), default=0.0)
    plot.add_vline(x=floor, line={"dash": "dot", "color": _GREY})
    plot.add_annotation(
        x=floor,
        y=1,
        yref="paper",
        xanchor="left",
        yanchor="bottom",
        text=f"noise: {floor:.2f} %",
        showarrow=False,
        font={"color": _GREY},
    )
    plot.update_xaxes(title_text="share of the variance, %", rangemode="tozero")
    plot.update_yaxes(autorange="reversed")
    styled(plot, 140 + 34 * max(len(names), 2))
    plot.update_layout(hovermode="closest", showlegend=True)
    return plot


def against_parameters(trials: Sequence[Trial], analysis: FigureAnalysis) -> Any:
    """Return one panel per parameter: the trials as points, the partial dependence as a line with its band."""
    from plotly.subplots import make_subplots

    go = plotly()
    figure = analysis.figure
    points = [t for t in trials if t.status == "done" and figure in t.figures][:_MOST_POINTS]
    shown = analysis.importances[:_MOST_PANELS]
    rows = (len(shown) + _COLUMNS - 1) // _COLUMNS
    titles = [label(f"{i.name}: {100 * i.share:.1f} %") for i in shown]
    plot = make_subplots(
        rows=rows,
        cols=_COLUMNS,
        subplot_titles=titles,
        shared_yaxes=True,
        vertical_spacing=0.28 / max(rows, 1),
    )
    heights = [t.figures[figure] for t in points] or [0, 1]
    for place, importance in enumerate(shown):
        at = {"row": place // _COLUMNS + 1, "col": place % _COLUMNS + 1}
        column = _values(points, importance.name)
        is_number = all(
            isinstance(v, (int, float)) and not isinstance(v, bool) for v in column if v is not None
        )
        x = column if is_number else [label(v, 30) for v in column]
        plot.add_trace(
            go.Scattergl(
                x=x,
                y=[t.figures[figure] for t in points],
                mode="markers",
                marker={"size": 5, "color": _GREY, "opacity": 0.6},
                hovertext=[_hover(t, figure) for t in points],
                hoverinfo="text",
                showlegend=False,
            ),
            **at,
        )
        if not is_number:  # Plotly would read names such as "64,32" as numbers
            order = list(
                dict.fromkeys([*map(str, x), *(label(v, 30) for v in importance.values if v is not None)])
            )
            few = len(order) <= _MOST_NAMES
            plot.update_xaxes(
                type="category", categoryorder="array", categoryarray=order, showticklabels=few, **at
            )
        known = [k for k, v in enumerate(importance.values) if v is not None]
        cx = [importance.values[k] if is_number else label(importance.values[k], 30) for k in known]
        colour = COLOURS[0] if importance.verdict == "driver" else _GREY
        for curve, width in (
            (importance.curve_low_bytes, 0.5),
            (importance.curve_high_bytes, 0.5),
            (importance.curve_bytes, 2),
        ):
            plot.add_trace(
                go.Scatter(
                    x=cx,
                    y=[curve[k] for k in known],
                    mode="lines" if is_number else "markers",
                    line={"color": colour, "width": width},
                    marker={
                        "color": colour,
                        "size": 6 + 6 * width,
                        "symbol": "line-ew",
                        "line": {"color": colour, "width": 0.5 + width},
                    },
                    showlegend=False,
                    hoverinfo="skip",
                ),
                **at,
            )
        numbers = [v for v in column if v is not None]
        if is_number and _spans_orders(numbers):
            plot.update_xaxes(type="log", **at)
    low, high = min(heights), max(heights)
    edge = 0.06 * (high - low) or 0.01 * high
    ticks = [
        low + (high - low) * i / 4 for i in range(5)
    ]  # bytes far from zero: the differences are what matters
    plot.update_yaxes(
        range=[low - edge, high + edge], tickvals=ticks, ticktext=[format_bytes(int(v)) for v in ticks]
    )
    styled(plot, 60 + 250 * max(rows, 1))
    plot.update_layout(hovermode="closest")
    return plot


def _values(trials: Sequence[Trial], name: str) -> list[Any]:
    if name == "machine":
        return [t.machine_name for t in trials]
    found = [t.params.get(name) for t in trials]
    return [",".join(map(str, v)) if isinstance(v, (tuple, list)) else v for v in found]


def _hover(trial: Trial, figure: str) -> str:
    params = ", ".join(f"{n}={v}" for n, v in trial.params.items())
    return label(f"trial {trial.number}: {format_bytes(trial.figures.get(figure))}; {params}", 300)


def parallel(trials: Sequence[Trial], figure: str) -> Any:
    """Return parallel coordinates: one line per trial through all parameters to its memory."""
    go = plotly()
    shown = [t for t in trials if t.status == "done" and figure in t.figures][:_MOST_LINES]
    dimensions = []
    for name, column in columns_of(shown, len({t.machine_name for t in shown}) > 1).items():
        numbers = [v for v in column if v is not None]
        if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in numbers):
            lowest = min(numbers)
            dimensions.append(_axis(label(name, 20), [lowest if v is None else v for v in column]))
        else:
            column = ["—" if v is None else str(v) for v in column]
            names = sorted(set(column))
            every = len(names) // _MOST_NAMES + 1  # names that would lie over each other are left out
            dimensions.append(
                {
                    "label": label(name, 20),
                    "values": [names.index(v) for v in column],
                    "tickvals": list(range(0, len(names), every)),
                    "ticktext": [label(n, 16) for n in names[::every]],
                }
            )
    values = [t.figures[figure] for t in shown]
    ticks = byte_ticks(float(max(values, default=1)))
    dimensions.append({"label": label(_title(figure), 24), "values": values, **ticks})
    plot = go.Figure(
        go.Parcoords(
            dimensions=dimensions,
            line={"color": values, "colorscale": "Viridis", "showscale": False},
            labelfont={"color": _GREY},
            tickfont={"color": _GREY},
            rangefont={"color": "rgba(0,0,0,0)"},
        )
    )
    styled(plot, 380)
    plot.update_layout(margin={"l": 110, "r": 90, "t": 60, "b": 30})
    return plot


def _spans_orders(numbers: Sequence[float]) -> bool:
    return bool(numbers) and min(numbers) > 0 and max(numbers) > _LOGARITHMIC * min(numbers)


def _axis(name: str, values: list[float]) -> dict[str, Any]:
    """Return one axis of numbers, over orders of magnitude where they span some."""
    if not _spans_orders(values):
        return {"label": name, "values": values}
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return {
        "label": name,
        "values": [math.log10(v) for v in values],
        "tickvals": list(range(low, high + 1)),
        "ticktext": [f"{10.0**power:g}" for power in range(low, high + 1)],
    }


def predicted_against_measured(trials: Sequence[Trial]) -> Any:
    """Return points on and beside the diagonal: what was predicted, what was measured, the range as bars."""
    go = plotly()
    plot = go.Figure()
    highest = 0
    for place, (figure, expected, low, high) in enumerate(
        (
            ("peak_allocated_bytes", "allocated_bytes", None, None),
            ("peak_resident_bytes", "host_expected_bytes", "host_low_bytes", "host_high_bytes"),
            ("peak_process_device_bytes", "device_expected_bytes", "device_low_bytes", "device_high_bytes"),
        )
    ):
        rows = [t for t in trials if t.status == "done" and figure in t.figures and t.predicted]
        rows = [t for t in rows if getattr(t.predicted, expected) is not None][:_MOST_POINTS]
        if not rows:
            continue
        x = [getattr(t.predicted, expected) for t in rows]
        y = [t.figures[figure] for t in rows]
        highest = max(highest, *x, *y)
        bars = None
        if low is not None and high is not None:
            bars = {
                "type": "data",
                "symmetric": False,
                "array": [getattr(t.predicted, high) - v for t, v in zip(rows, x, strict=True)],
                "arrayminus": [v - getattr(t.predicted, low) for t, v in zip(rows, x, strict=True)],
                "thickness": 0.6,
                "width": 0,
            }
        plot.add_trace(
            go.Scatter(
                x=x,
                y=y,
                mode="markers",
                error_x=bars,
                name=label(_title(figure)),
                marker={"size": 6, "color": COLOURS[place]},
                hovertext=[_hover(t, figure) for t in rows],
                hoverinfo="text",
            )
        )
    if not highest:
        return None
    plot.add_shape(type="line", x0=0, y0=0, x1=highest, y1=highest, line={"color": _GREY, "dash": "dot"})
    plot.update_xaxes(title_text="predicted", rangemode="tozero", **byte_ticks(float(highest)))
    plot.update_yaxes(title_text="measured", rangemode="tozero", **byte_ticks(float(highest)))
    styled(plot, 460)
    plot.update_layout(hovermode="closest")
    return plot


def batch_curves(trials: Sequence[Trial], figures: Sequence[str]) -> Any:
    """Return memory over batch size, a line per framework and per figure of host and device; None without batches.

    A line goes through the median of the trials at each batch size; the bars hold all of them.
    """
    import statistics

    go = plotly()
    done = [t for t in trials if t.status == "done" and isinstance(t.params.get("batch_size"), int)]
    if len({t.params["batch_size"] for t in done}) < 2:
        return None
    plot, highest = go.Figure(), 0
    frameworks = sorted({str(t.params.get("framework", "")) for t in done})
    for place, figure in enumerate(figures):
        for number, framework in enumerate(frameworks):
            at: dict[int, list[int]] = {}
            for t in done:
                if str(t.params.get("framework", "")) == framework and figure in t.figures:
                    at.setdefault(int(t.params["batch_size"]), []).append(t.figures[figure])  # type: ignore[arg-type]
            if not at:
                continue
            x = sorted(at)
            middle = [statistics.median(at[b]) for b in x]
            highest = max(highest, *(max(v) for v in at.values()))
            plot.add_trace(
                go.Scatter(
                    x=x,
                    y=middle,
                    name=label(", ".join(filter(None, (framework, _title(figure))))),
                    mode="lines+markers",
                    line={
                        "color": COLOURS[number % len(COLOURS)],
                        "dash": ("solid", "dash", "dot", "dashdot")[place % 4],
                    },
                    error_y={
                        "type": "data",
                        "symmetric": False,
                        "array": [max(at[b]) - m for b, m in zip(x, middle, strict=True)],
                        "arrayminus": [m - min(at[b]) for b, m in zip(x, middle, strict=True)],
                        "thickness": 0.8,
                    },
                )
            )
    if not highest:
        return None
    sizes = sorted({int(t.params["batch_size"]) for t in done})  # type: ignore[arg-type]
    ticks = {"tickvals": sizes} if len(sizes) <= _MOST_NAMES else {}
    plot.update_xaxes(title_text="batch size", type="log", **ticks)
    plot.update_yaxes(rangemode="tozero", **byte_ticks(float(highest)))
    return styled(plot, 400)
