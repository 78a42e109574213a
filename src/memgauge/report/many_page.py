"""The page of one workload over many values or cards: what it takes there, with its range, and what there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from memgauge.report.many import LEAST, fitting_line, how_traced, largest_line, what_binds
from memgauge.report.page import escaped, figure, page, table
from memgauge.report.style import COLOURS, LIMIT, byte_ticks, draw_limit, label, plotly, styled
from memgauge.report.tables import format_range, target_of
from memgauge.units import format_bytes
from memgauge.varied import Curve, Row
from memgauge.vary import Catalogue, Largest

_INKS = {"yes": "#4a9e45", "uncertain": "#d9a514", "no": LIMIT}
_COLUMNS = ("fits", "on the device ", "least ", "usable ")
_HOVER = "%{y:,.0f} B<extra>%{fullData.name}</extra>"
_ACROSS = "%{x:,.0f} B<extra>%{y}, %{fullData.name}</extra>"
_ROW_HEIGHT = 26  # pixels of a card's bar
_WIDEST = 6  # times what the run takes: of larger cards the bar is cut, and says how far it goes


def curve_page(result: Curve) -> str:
    """Return one HTML page for a workload over values of an argument on one card."""
    name = target_of(result.workload).plain
    return page(f"{name} on {result.device} – memgauge", _curve_sections(name, result))


def largest_page(result: Largest) -> str:
    """Return one HTML page for the search of the largest value that fits a card."""
    curve = result.curve
    name = target_of(curve.workload).plain
    said = [line for line in (largest_line(result), what_binds(result)) if line]
    if result.limit:
        said.append(f"no more, since: {result.limit}")
    return page(f"{name} on {curve.device} – memgauge", _curve_sections(name, curve, said))


def catalogue_page(result: Catalogue) -> str:
    """Return one HTML page for a workload on every card of the catalogue."""
    name = target_of(result.workload).plain
    return page(f"{name} on every card – memgauge", _catalogue_sections(name, result))


def _curve_sections(name: str, result: Curve, said: Sequence[str] = ()) -> Iterator[str]:
    yield f"<h1>{escaped(name)} on {escaped(result.device)} by {escaped(result.argument)}</h1>"
    yield "".join(f"<p>{escaped(line)}</p>" for line in said)
    yield figure(curve_figure(result), 1)
    yield table((f"{result.argument} ", *_COLUMNS), [(row.value, *_cells(row)) for row in result.rows])
    yield f'<p class="faint">{escaped(LEAST)}</p><p class="faint">{escaped(how_traced(result))}</p>'


def _catalogue_sections(name: str, result: Catalogue) -> Iterator[str]:
    yield f"<h1>{escaped(name)} on every card</h1><p>{escaped(fitting_line(result))}</p>"
    yield figure(catalogue_figure(result), 1)
    yield table(("device", *_COLUMNS), [(row.device, *_cells(row)) for row in result.rows])
    yield "".join(f'<p class="faint">left out: {escaped(line)}</p>' for line in result.left_out)
    yield f'<p class="faint">{escaped(LEAST)}</p>'


def _cells(row: Row) -> tuple[str, ...]:
    fits = row.fits
    amounts = (row.device_bytes, fits.least_capacity_bytes)
    return fits.verdict, *(format_range(a) for a in amounts), format_bytes(fits.capacity_bytes)


def curve_figure(result: Curve) -> Any:
    """Return what the device would show over the values, its range as a band, and what the card has."""
    go = plotly()
    drawn = go.Figure()
    values = [row.value for row in result.rows]
    ink = COLOURS[0]
    sides = {
        side: [getattr(row.device_bytes, side) for row in result.rows] for side in ("low", "expected", "high")
    }
    hidden = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
    drawn.add_trace(go.Scatter(x=values, y=sides["low"], **hidden))
    drawn.add_trace(
        go.Scatter(
            x=values,
            y=sides["high"],
            name="range, 95 %",
            fill="tonexty",
            fillcolor="rgba(72,120,208,.18)",
            mode="lines",
            line={"width": 0},
            hovertemplate=_HOVER,
        )
    )
    drawn.add_trace(
        go.Scatter(
            x=values,
            y=sides["expected"],
            name="on the device",
            mode="lines+markers",
            line={"width": 1.6, "color": ink},
            marker={"size": 8, "color": [_INKS[row.fits.verdict] for row in result.rows]},
            customdata=[row.fits.verdict for row in result.rows],
            hovertemplate="%{y:,.0f} B, fits: %{customdata}<extra>%{fullData.name}</extra>",
        )
    )
    least = [row.fits.least_capacity_bytes for row in result.rows]
    if any(least):
        drawn.add_trace(
            go.Scatter(
                x=values,
                y=[None if figure is None else figure.expected for figure in least],
                name="least that is enough",
                mode="lines",
                line={"width": 1.4, "dash": "dot", "color": COLOURS[1]},
                hovertemplate=_HOVER,
            )
        )
    usable = max((row.fits.capacity_bytes or 0 for row in result.rows), default=0)
    if usable:
        draw_limit(drawn, usable, f"usable {format_bytes(usable)}")
    drawn.update_xaxes(title_text=label(result.argument, 40), rangemode="tozero")
    drawn.update_yaxes(rangemode="tozero", **byte_ticks(float(max([usable, *sides["high"]]))))
    return styled(drawn, 460)


def catalogue_figure(result: Catalogue) -> Any:
    """Return a bar for each card: what the run takes there, with its range, beside what is usable."""
    go = plotly()
    rows = list(reversed(result.rows))  # the first on top
    names = [row.device for row in rows]
    drawn = go.Figure()
    usable = [row.fits.capacity_bytes for row in rows]
    drawn.add_trace(
        go.Bar(
            y=names,
            x=usable,
            orientation="h",
            name="usable",
            marker={"color": "rgba(138,143,152,.25)"},
            hovertemplate=_ACROSS,
        )
    )
    for verdict, ink in _INKS.items():
        of_this = [row if row.fits.verdict == verdict else None for row in rows]
        if not any(of_this):
            continue
        taken = [None if row is None else row.device_bytes for row in of_this]
        drawn.add_trace(
            go.Bar(
                y=names,
                x=[None if t is None else t.expected for t in taken],
                orientation="h",
                name=f"on the device, fits: {verdict}",
                width=0.4,
                marker={"color": ink},
                error_x={
                    "array": [None if t is None else t.high - t.expected for t in taken],
                    "arrayminus": [None if t is None else t.expected - t.low for t in taken],
                    "thickness": 1,
                    "width": 3,
                },
                hovertemplate=_ACROSS,
            )
        )
    highest = max([*(count or 0 for count in usable), *(row.device_bytes.high for row in rows)], default=0)
    shown = min(highest, _WIDEST * max((row.device_bytes.high for row in rows), default=0)) or 1
    edge = 1.02 * shown
    drawn.update_xaxes(range=[0, edge], **byte_ticks(float(shown)))
    for name, count in zip(names, usable, strict=True):
        if (count or 0) > edge:
            drawn.add_annotation(
                x=edge,
                y=name,
                xanchor="right",
                text=f"to {format_bytes(count)} →",
                showarrow=False,
                font={"size": 10},
            )
    drawn.update_layout(barmode="overlay")
    styled(drawn, 120 + _ROW_HEIGHT * len(rows))
    return drawn.update_layout(hovermode="closest", margin={"l": 160})
