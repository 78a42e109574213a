"""One HTML page that needs no network: figures, tables, and Plotly itself inside it.

Everything that a recorded job named is data: it is escaped here, and the page forbids to load
anything or to send anything (content security policy).
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

from memgauge.report.style import FITTED

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
)
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --paper: #fff; --faint: #6b727c; --line: #dfe3e8; --warn: #a25b00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --paper: #16181c; --faint: #9aa2ad; --line: #31363d; --warn: #e9a24a; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 1240px; padding: 24px; }
h1 { font-size: 22px; margin: 48px 0 4px; overflow-wrap: anywhere; } h1:first-child { margin-top: 0; } h2 { font-size: 17px; margin: 32px 0 8px; }
p { margin: 4px 0; } summary { cursor: pointer; color: var(--faint); margin: 8px 0; } .faint { color: var(--faint); } .warn { color: var(--warn); }
table { border-collapse: collapse; margin: 8px 0; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th { text-align: left; font-weight: 500; color: var(--faint); } th, td { padding: 3px 16px 3px 0; vertical-align: top;
  border-bottom: 1px solid var(--line); } td.number, th.number { text-align: right; white-space: nowrap; }
td { white-space: nowrap; } td.long { white-space: normal; overflow-wrap: anywhere; min-width: 240px; } code { font-size: 13px; overflow-wrap: anywhere; }
@media (max-width: 760px) {
  th, th.number, table:has(.long) td:not(.number) { white-space: normal; }
  th, td { padding-right: 10px; } td.long { min-width: 110px; } }
.parcoords text { text-shadow: 0 0 3px var(--paper), 0 0 3px var(--paper) !important; }
"""


def escaped(text: object) -> str:
    """Return text as HTML, control characters made visible."""
    shown = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(text))
    return html.escape(shown)


def shortened(text: object, longest: int = 400) -> str:
    """Return text that fits a cell; how long it was is said."""
    full = str(text)
    if len(full) <= longest:
        return full
    was_cut = re.search(r"… \((\d+) characters\)$", full)  # a long name of the job is cut when it is recorded
    return f"{full[:longest]}… ({was_cut[1] if was_cut else len(full)} characters)"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, long: str = "") -> str:
    """Return a table; columns whose name ends with a space are numbers, to the right.

    Args:
        columns: The names.
        rows: The cells, as they are.
        long: The name of the column whose text may break anywhere.
    """
    head = "".join(
        f'<th class="{"number" if name.endswith(" ") else ""}">{escaped(name.rstrip())}</th>'
        for name in columns
    )
    kinds = ["number" if name.endswith(" ") else "long" if name == long else "" for name in columns]
    body = []
    for row in rows:
        cells = zip(row, kinds, strict=True)
        body.append("".join(f'<td class="{kind}">{escaped(shortened(cell))}</td>' for cell, kind in cells))
    lines = "".join(f"<tr>{cells}</tr>" for cells in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>" if body else ""


def fold(title: str, content: str) -> str:
    """Return HTML that is shown when its title is clicked."""
    return f"<details><summary>{escaped(shortened(title))}</summary>{content}</details>"


def figure(plot: Any, number: int) -> str:
    """Return a figure as HTML: its place, and its content as JSON, which is drawn when it comes into view.

    Args:
        plot: The figure; its layout has a height.
        number: Its number on the page.
    """
    height = int(plot.layout.height or 450)
    content = plot.to_json().replace("<", "\\u003c")  # so that no name can end the element
    return (
        f'<div class="figure" id="figure{number}" style="min-height:{height}px"></div>'
        f'<script type="application/json">{content}</script>'
    )


# Figures are drawn one by one as they come near the window, all of them before printing: a long page is
# usable at once. On a narrow window the legend goes below the curves. Of names that would lie over each other the first
# is shown: which do so is known only where they are drawn, at the width and for the span of that moment.
_DRAW = (
    f'const fitted = "{FITTED}";'
    + """
const fit = place => {
  const named = [...place.querySelectorAll("g.annotation")]
    .filter(name => place.layout.annotations[name.dataset.index].name === fitted)
    .sort((a, b) => a.dataset.index - b.dataset.index), shown = [];
  for (const name of named) {
    const a = name.querySelector("text").getBoundingClientRect();
    // Names in a row are 4 pixels apart, those of two rows may touch by as much.
    const hidden = shown.some(
      b => a.left < b.right + 4 && b.left < a.right + 4 && a.top + 4 < b.bottom && b.top + 4 < a.bottom);
    name.style.visibility = hidden ? "hidden" : "";
    if (!hidden) shown.push(a);
  }
};
const draw = place => {
  if (place.dataset.drawn) return;
  place.dataset.drawn = "yes";
  const {data, layout} = JSON.parse(place.nextElementSibling.textContent);
  if (innerWidth < 760 && layout.height) {
    const named = data.filter(trace => ["scatter", "bar"].includes(trace.type) && trace.name && trace.showlegend !== false);
    const rows = named.map(trace => trace.name.split("<br>").length).reduce((a, b) => a + b, 0), below = 20 * rows + 60;
    layout.legend = {...layout.legend, orientation: "h", x: 0, xanchor: "left", y: 0, yref: "container", yanchor: "bottom"};
    if (rows > 1) {
      const left = data.some(trace => trace.orientation === "h") ? layout.margin.l : 72;  // names of bars need more
      layout.margin = {...layout.margin, l: left, r: 8, b: 45 + below};
      layout.height += below;
    }
  }
  Plotly.newPlot(place, data, layout, {displaylogo: false, responsive: true, scrollZoom: true}).then(() => {
    fit(place);
    place.on("plotly_afterplot", () => fit(place));
  });
};
const seen = new IntersectionObserver(
  entries => entries.forEach(entry => entry.isIntersecting && (seen.unobserve(entry.target), draw(entry.target))),
  {rootMargin: "300px"});
const figures = document.querySelectorAll(".figure");
if (figures.length) draw(figures[0]);
figures.forEach(place => seen.observe(place));
addEventListener("beforeprint", () => {
  figures.forEach(draw);
  document.querySelectorAll("details").forEach(fold => { fold.open = true; });
});
"""
)


def page(title: str, sections: Iterable[str]) -> str:
    """Return the page; its text stands before Plotly is read."""
    from plotly.offline import get_plotlyjs

    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{_STYLE}</style></head><body>{''.join(sections)}"
        f"<script>{get_plotlyjs()}</script><script>{_DRAW}</script></body></html>\n"
    )
