"""How figures look: colours, names, ticks at binary amounts; readable on light and on dark paper."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator
from typing import Any

from memgauge.errors import missing_extra
from memgauge.units import format_bytes

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
GREY, GRID = "#8a8f98", "rgba(128,128,128,.22)"
LETTER = 0.0098  # width of a letter of 10 pixels as a share of a figure's, in a window of 700 pixels
FITTED = "fitted"  # the name of an annotation that a page hides where it would lie over one of before
LIMIT = "#d65f5f"  # of what there is at most, and of peaks


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


def hover(unit: str) -> str:
    """Return what is shown under the pointer, for amounts of one unit."""
    if unit.startswith("B"):
        return "%{y:,.0f} " + unit + " at %{x:.3f} s<extra>%{fullData.name}</extra>"
    return "%{y:.1f} " + unit + " at %{x:.3f} s<extra>%{fullData.name}</extra>"


def styled(figure: Any, height: int) -> Any:
    """Return the figure in a style that reads on light and on dark paper."""
    figure.update_layout(
        template="none",
        height=height,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": GREY, "family": "system-ui, sans-serif", "size": 12},
        hovermode="x unified",
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": COLOURS[0]},
        hoverlabel={"bgcolor": "#2b2f36", "font": {"color": "#f0f0f0"}},
        legend={"groupclick": "toggleitem", "font": {"size": 11}},
        margin={"l": 95, "r": 20, "t": 50, "b": 45},
    )
    figure.update_xaxes(gridcolor=GRID, zerolinecolor=GRID, linecolor=GRID)
    figure.update_yaxes(gridcolor=GRID, zerolinecolor=GRID, linecolor=GRID)
    return figure


def rows_of(spans: Iterable[tuple[float, float]], most: int) -> Iterator[int | None]:
    """Yield a row for each text from its begin to its end, so that none lies over another; None if it has no room.

    Args:
        spans: In the order of their begins.
        most: Rows.
    """
    ends = [-math.inf] * most
    for begin, end in spans:
        row = next((row for row, taken in enumerate(ends) if taken <= begin), None)
        if row is not None:
            ends[row] = end
        yield row


def draw_limit(figure: Any, height_bytes: int, text: str) -> None:
    """Draw what there is at most across a figure, with its name at the left end."""
    figure.add_hline(
        y=height_bytes,
        line={"dash": "dash", "width": 1.2, "color": LIMIT},
        annotation={"text": text, "font": {"size": 11, "color": LIMIT}},
        annotation_position="top left",
    )
