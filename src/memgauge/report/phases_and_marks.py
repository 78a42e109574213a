"""Phases as bands and marks as lines over the curves of a figure, with their names."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from memgauge.explain.bands import Band, titled
from memgauge.report.phase_bars import ABOVE, bars_of
from memgauge.report.style import FITTED, GREY, LETTER, label, plotly, rows_of

_MOST_BANDS = 150
# Of phases, the longest name first; what has no colour of its own is grey.
_BANDS = (
    "72,120,208",
    "238,133,74",
    "106,204,100",
    "149,108,180",
    "214,95,95",
    "140,97,60",
    "220,126,192",
    "213,187,103",
    "130,198,226",
    "47,158,158",
    "163,198,68",
    "91,91,214",
)
_OTHER_BANDS = "138,143,152"
_MOST_NAMES = 60  # of phases that are drawn, the longest first: each has room for more than one band
_NARROW = 0.004  # of the width: a band as narrow has an outline, or nobody would see it
_INKS = (GREY, "#956cb4", "#ee854a", "#4a9e45")  # of marks, the most frequent name first
_LETTER = 0.0065  # width of one letter over a band, as a share of the figure's
_LONGEST_MARK, _MARK_ROWS, STRIP_HEIGHT = 24, 4, 76  # names of marks, below the curves
# Digits of 10 pixels are 6.4 wide (DejaVu Sans), a page's curves at its widest some 740; where there is less room the page
# hides names that would lie over others.
_MARK_LETTER = 6.4 / 740
_COLUMNS = 800  # marks that one column of a screen holds are one triangle
_LINES_APART = (
    1 / 120
)  # of the width, at least: 6 pixels of a page's, so that the curves are seen between them
_MOST_HOVERED = 8  # names of marks under the pointer; of more their number
_LONGEST_TITLE, _MOST_TITLES, _TITLE_ROWS = 20, 40, 3  # names over bands: letters, how many, above each other


def draw_phases(figure: Any, spans: list[Band], shown: tuple[int, int], owners: Mapping[int, str]) -> int:
    """Draw phases as bands, above them as bars, and the names of their colours in the legend.

    Where bands overlap their colours mix. The bars have a row for each name, in the colour and the order of the legend,
    of each process if those of several overlap.

    Args:
        figure: Where.
        spans: The phases, in the order of their begins.
        shown: The time that is drawn, in µs.
        owners: What processes are called, by their number.

    Returns:
        How many pixels the bars take above the figure.
    """
    if not spans:
        return 0
    lasted: Counter[str] = Counter()
    for band in spans:
        lasted[band.name] += band.end_us - band.begin_us
    names = [name for name, _ in lasted.most_common()]
    inks = dict(zip(names, _BANDS, strict=False))
    bars = bars_of(spans, list(inks))
    most_names = max(_MOST_NAMES // len(bars.blocks), len(_BANDS))
    drawn = _drawn_bands(spans, names[:most_names], shown, bars.block_of)
    narrow_us = _NARROW * (shown[1] - shown[0])
    shapes: list[dict[str, Any]] = []
    for band in drawn:
        ink = inks.get(band.name, _OTHER_BANDS)
        shapes.append(bars.bar(band, ink))
        is_narrow = band.name in inks and band.end_us - band.begin_us < narrow_us
        shapes.append(
            {
                "type": "rect",
                "xref": "x",
                "yref": "paper",
                "x0": band.begin_us / 1e6,
                "x1": band.end_us / 1e6,
                "y0": 0,
                "y1": 1,
                "fillcolor": f"rgba({ink},{0.3 if is_narrow else 0.13})",
                "line": {"width": 1, "color": f"rgba({ink},.3)"} if is_narrow else {"width": 0},
                "layer": "below",
            }
        )
    titles = _band_titles(drawn, (shown[1] - shown[0]) / 1e6, ABOVE + bars.height)
    notes = [*bars.named(owners), *titles]
    figure.update_layout(
        shapes=[*figure.layout.shapes, *shapes], annotations=[*figure.layout.annotations, *notes]
    )
    were, are = Counter(b.name for b in spans), Counter(b.name for b in drawn)
    for name, ink in inks.items():
        fewer = f", {were[name]:,} drawn as {are[name]:,}" if are[name] < were[name] else ""
        _name_colour(figure, label(name, 24) + fewer, ink)
    rest = len(names) - len(inks)
    if rest:
        left_out = max(len(names) - most_names, 0)
        _name_colour(
            figure,
            f"{rest:,} more names" + (f", {left_out:,} not drawn" if left_out else ""),
            _OTHER_BANDS,
        )
    return bars.height


def _name_colour(figure: Any, text: str, ink: str) -> None:
    """Add a colour of bands to the legend."""
    figure.add_trace(
        plotly().Scatter(
            x=[None],
            y=[None],
            name=text,
            mode="markers",
            marker={"symbol": "square", "size": 11, "color": f"rgba({ink},1)"},
            legendgroup="phases",
            legendgrouptitle_text="phases",
            hoverinfo="skip",
        ),
        row=1,
        col=1,
    )


def _drawn_bands(
    spans: list[Band], names: list[str], shown: tuple[int, int], block_of: Mapping[int, int]
) -> list[Band]:
    """Return the bands to draw, the longest first: of each name all, or as many as there is room for.

    What is too many is put together with its neighbours of the same name and bar, so that no name vanishes.

    Args:
        spans: All of them.
        names: The names that are drawn.
        shown: The time that is drawn, in µs.
        block_of: Where the bars of each process are.
    """
    groups: dict[tuple[str, int], list[Band]] = {
        (name, block): [] for name in names for block in sorted({*block_of.values()})
    }
    for band in spans:
        group = groups.get((band.name, block_of[band.pid]))
        if group is not None:
            group.append(band)
    drawn: list[Band] = []
    left = _MOST_BANDS
    for place, group in enumerate(sorted(groups.values(), key=len)):
        share = left // (len(groups) - place)
        kept = group if len(group) <= share else _merged(group, share, shown)
        left -= len(kept)
        drawn += kept
    return sorted(drawn, key=lambda b: b.begin_us - b.end_us)


def _merged(group: list[Band], most: int, shown: tuple[int, int]) -> list[Band]:
    """Return bands of one name as at most so many: those that begin in one of as many equal times are one."""
    columns: dict[int, Band] = {}
    width_us = max(shown[1] - shown[0], 1)
    for band in group:
        column = min((band.begin_us - shown[0]) * most // width_us, most - 1)
        other = columns.get(column)
        if other is None:
            columns[column] = band
        else:
            begin, end = min(other.begin_us, band.begin_us), max(other.end_us, band.end_us)
            columns[column] = msgspec.structs.replace(other, begin_us=begin, end_us=end, value=None)
    return list(columns.values())


def _band_titles(bands: Iterable[Band], span_s: float, above: int) -> Iterator[dict[str, Any]]:
    """Yield the names of bands, each over its beginning, in rows; who finds no room in any has none.

    Args:
        bands: The longest first.
        span_s: What is drawn, in seconds.
        above: How many pixels above the figure they begin.
    """

    def width_s(band: Band) -> float:
        return _LETTER * span_s * min(len(titled(band)), _LONGEST_TITLE)

    wide = [band for band in bands if band.end_us - band.begin_us >= 1e6 * width_s(band)]
    ordered = sorted(_told_once(wide, width_s)[:_MOST_TITLES], key=lambda b: (b.begin_us, b.depth))
    spans = [
        (b.begin_us / 1e6, b.begin_us / 1e6 + LETTER * span_s * (min(len(titled(b)), _LONGEST_TITLE) + 1))
        for b in ordered
    ]
    for band, row in zip(ordered, rows_of(spans, _TITLE_ROWS), strict=True):
        if row is not None:
            yield _note(band.begin_us / 1e6, 1.0, titled(band), above + 12 * row)


def _told_once(bands: list[Band], width_s: Callable[[Band], float]) -> list[Band]:
    """Return bands without those whose name begins where another process's phase of that name has it already."""
    said: dict[str, Band] = {}
    left_out = set()
    for band in sorted(bands, key=lambda b: (b.begin_us, b.depth)):
        first = said.setdefault(titled(band), band)
        if first.pid != band.pid and band.begin_us <= first.begin_us + 1e6 * width_s(first):
            left_out.add(band.mark)
        else:
            said[titled(band)] = band
    return [band for band in bands if band.mark not in left_out]


def draw_marks(figure: Any, marks: Sequence[Any], shown: tuple[int, int], row: int) -> str:
    """Draw marks as lines, with names in a strip below the curves where there is room, else under the pointer.

    Args:
        figure: Where.
        marks: In order of time.
        shown: The time that is drawn, in µs.
        row: The strip.

    Returns:
        What the strip is called: how many lines there are if not each mark has one.
    """
    count = Counter(m.name for m in marks)
    inks = {name: _INKS[i % len(_INKS)] for i, (name, _) in enumerate(count.most_common())}
    width_us = max(shown[1] - shown[0], 1)
    together: dict[int, list[Any]] = {}
    for mark in marks:
        together.setdefault((mark.time_us - shown[0]) * _COLUMNS // width_us, []).append(mark)
    groups = [sorted(group, key=lambda m: (count[m.name], m.time_us)) for group in together.values()]
    axis = next(figure.select_yaxes(row=row, col=1))
    top = axis.domain[1]
    ordered = sorted(groups, key=lambda g: (count[g[0].name], g[0].time_us))
    shapes = []
    drawn_us: list[int] = []
    for group in ordered:
        place = bisect_left(drawn_us, group[0].time_us)
        beside = drawn_us[max(place - 1, 0) : place + 1]
        if any(abs(us - group[0].time_us) < _LINES_APART * width_us for us in beside):
            continue
        drawn_us.insert(place, group[0].time_us)
        x = group[0].time_us / 1e6
        line = {"width": 1, "dash": "dot", "color": inks[group[0].name]}
        across = {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": top, "y1": 1}
        shapes.append({**across, "line": line})
    notes = list(_mark_titles(ordered, shown, axis.plotly_name.replace("axis", "")))
    figure.update_layout(
        shapes=[*figure.layout.shapes, *shapes], annotations=[*figure.layout.annotations, *notes]
    )
    figure.add_trace(
        plotly().Scatter(
            x=[group[0].time_us / 1e6 for group in groups],
            y=[_MARK_ROWS] * len(groups),
            mode="markers",
            marker={
                "symbol": "triangle-up",
                "size": 7,
                "color": [inks[group[0].name] for group in groups],
            },
            hovertext=[_hovered(group) for group in groups],
            hovertemplate="%{hovertext}<extra></extra>",
            showlegend=False,
        ),
        row=row,
        col=1,
    )
    figure.update_yaxes(visible=False, fixedrange=True, range=[0, _MARK_ROWS + 0.5], row=row, col=1)
    is_each_drawn = len(shapes) == len(groups)
    return "marks" if is_each_drawn else f"marks, {len(marks):,} drawn as {len(shapes):,} lines"


def _hovered(group: Sequence[Any]) -> str:
    names = [label(titled(mark), _LONGEST_MARK) for mark in group[:_MOST_HOVERED]]
    more = len(group) - len(names)
    return "<br>".join([*names, f"and {more:,} more"] if more else names)


def _mark_titles(
    groups: Iterable[Sequence[Any]], shown: tuple[int, int], axis: str
) -> Iterator[dict[str, Any]]:
    """Yield the names of marks, each from its mark to the right, or to the left at the right edge.

    Args:
        groups: Marks at about one time, whose first has the name; who comes first has room first.
        shown: The time that is drawn, in µs.
        axis: The y axis of the strip.
    """
    letter_s = _MARK_LETTER * (shown[1] - shown[0]) / 1e6
    rows: list[list[tuple[float, float]]] = [[] for _ in range(_MARK_ROWS)]
    for group in groups:
        title = titled(group[0])
        x = group[0].time_us / 1e6
        width = letter_s * (min(len(title), _LONGEST_MARK) + 1)
        is_late = x + width > shown[1] / 1e6
        begin = x - width if is_late else x
        for place, taken in enumerate(rows):
            if all(begin >= to or begin + width <= since for since, to in taken):
                taken.append((begin, begin + width))
                note = _note(x, _MARK_ROWS - place - 0.9, title, longest=_LONGEST_MARK)
                yield {**note, "yref": axis, "xanchor": "right" if is_late else "left"}
                break


def _note(x: float, y: float, title: str, above: int = 0, longest: int = _LONGEST_TITLE) -> dict[str, Any]:
    place = {"x": x, "y": y, "xref": "x", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    return {
        **place,
        "name": FITTED,
        "showarrow": False,
        "text": label(title, longest),
        "yshift": above,
        "font": {"size": 10, "color": GREY},
    }
