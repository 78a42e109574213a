"""Accounts and comparisons as text for a terminal of 80 columns or more.

Each view begins with the answer in one sentence. The tables after it go from
the whole to the parts; at the end stands what the figures rest on.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memgauge.explain.compare import Comparison, KindRow, LayerRow, Row, Side, side_names
from memgauge.records import Account, Estimate, Measurement
from memgauge.report.tables import (
    LayersTable,
    categories_table,
    format_range,
    grid,
    kinds_table,
    layer_name,
    merge_steps,
    phases_table,
    plain,
    room,
    span_name,
    target_of,
)
from memgauge.units import format_bytes, format_difference

DEFAULT_LAYERS = 10
_VERDICT_STYLES = {"yes": "bold green", "no": "bold red", "uncertain": "bold yellow"}


def estimate_view(estimate: Estimate, *, layers: int | None = DEFAULT_LAYERS) -> RenderableType:
    """Return an estimate as text.

    Args:
        estimate: What to show.
        layers: How many layers to list; None for all.
    """
    head = _headline(estimate, "")
    if estimate.fits is not None:
        head.append(", fits: ")
        head.append(plain(estimate.fits.verdict).plain, _VERDICT_STYLES.get(estimate.fits.verdict, ""))
    notes = [Text(plain(room(estimate.fits)).plain, style="dim")] if estimate.fits is not None else []
    return Group(head, *notes, *_body(estimate, layers), Text(), _footer(estimate))


def measurement_view(measurement: Measurement, *, layers: int | None = DEFAULT_LAYERS) -> RenderableType:
    """Return a measurement as text; one that died says so first.

    Args:
        measurement: What to show.
        layers: How many layers to list; None for all.
    """
    notes = []
    if measurement.ended != "completed":
        # A traceback keeps its lines; within a line the text is data like any other.
        died = Text("the run did not complete; figures are what was seen until then\n", style="bold red")
        died.append("\n".join(plain(line).plain for line in measurement.ended.splitlines()), style="red")
        notes.append(died)
    head = _headline(measurement, ", measured")
    return Group(head, *notes, *_body(measurement, layers), Text(), _footer(measurement))


def comparison_view(comparison: Comparison, *, layers: int | None = DEFAULT_LAYERS) -> RenderableType:
    """Return a comparison as text; differences are the first minus the second.

    Args:
        comparison: What to show.
        layers: How many layers to list; None for all. Equal ones are left out unless all are asked for.
    """
    names = side_names(comparison.a, comparison.b)
    sides = (comparison.a, comparison.b)
    parts: list[RenderableType] = [Text(plain(comparison.gap).plain, style="bold")]
    parts += [_side_line(name, side) for name, side in zip(names, sides, strict=True)]
    if comparison.differs:
        parts += section("Not equal in the two set-ups", *bullets(comparison.differs))
    known = [r for r in comparison.kinds if r.a_bytes is not None or r.b_bytes is not None]
    if known:
        parts += section("Memory at its peak", _kinds(known, names))
    if comparison.categories:
        title = "Categories at the peak, largest difference first"
        parts += section(title, _rows("category", comparison.categories, names))
    shown = [r for r in comparison.layers if layers is None or r.difference_bytes or r.peak_difference_bytes]
    if shown and layers != 0:
        title = "Layers at the peak, largest difference first"
        parts += section(title + _of(layers, len(shown)), _layer_rows(shown[:layers], names))
    elif comparison.layers and layers != 0:
        parts += section("Layers", Text(f"no difference in any of {len(comparison.layers)}"))
    if not comparison.phases:
        return Group(*parts)
    phases = [(r.name, _cells(r.a_bytes, r.b_bytes, r.difference_bytes)) for r in comparison.phases]
    table = grid("phase", *names, "difference")
    for joined, cells in merge_steps(phases):
        table.add_row(plain(span_name(joined)), *cells)
    return Group(*parts, *section("Peak allocated by phase", table))


def _headline(account: Account, suffix: str) -> Text:
    head = Text(style="bold")
    head.append_text(target_of(account.workload))
    head.append(" on ").append_text(plain(account.device.get("name", "?")))
    peak = account.peak
    figures = [f"peak allocated {format_bytes(peak.allocated_bytes)}"]
    if peak.reserved_bytes is not None:
        figures.append(f"reserved {format_bytes(peak.reserved_bytes)}")
    if peak.device_bytes is not None:
        figures.append(f"device {format_range(peak.device_bytes)}")
    if peak.pinned_bytes:
        figures.append(f"pinned on the host {format_bytes(peak.pinned_bytes)}")
    if peak.host_bytes is not None:
        figures.append(f"resident {format_range(peak.host_bytes)}")
    return head.append(f"{suffix}: {', '.join(figures)}")


def _body(account: Account, layers: int | None) -> Iterable[RenderableType]:
    """Yield the sections that estimates and measurements share."""
    yield from section("Memory at its peak", kinds_table(account))
    if account.at_peak.categories:
        yield from section("The peak", _instant(account), Text(), categories_table(account))
    if account.layers and layers != 0:
        title = "Layers at the peak, largest first" + _of(layers, len(account.layers))
        yield from section(title, LayersTable(account, layers))
    if account.phases:
        yield from section("Highest of each phase", phases_table(account))
    for title, lines in (("Assumed", account.assumptions), ("Not modelled", account.unmodelled)):
        if lines:
            yield from section(title, *bullets(lines))
    other = [f"{key}: {why}" for key, why in account.unknown.items() if not key.startswith("peak.")]
    if other:
        yield from section("Unknown", *bullets(other))


def _instant(account: Account) -> Text:
    at, found = account.at_peak, [layer for layer in account.layers if layer.path == account.at_peak.layer]
    text = Text("in ").append_text(plain(at.phase or "an unknown phase"))
    if at.operator:
        text.append(", operator ").append_text(plain(at.operator))
    if not at.layer:
        return text
    text.append(", layer ").append_text(plain(at.layer))
    if found and found[0].type:
        text.append(" (").append_text(plain(found[0].type)).append(")")
    return text


def _footer(account: Account) -> Text:
    facts = [f"{account.steps} steps" if account.steps != 1 else "1 step"]
    if account.threads is not None:
        facts.append(f"{account.threads} threads" if account.threads != 1 else "1 thread")
    facts += [f"{name} {version}" for name, version in account.versions.items()]
    if isinstance(account, Measurement) and account.step_ns:
        facts.append(f"median step {_time(int(statistics.median(account.step_ns)))}")
    if account.elapsed_ns is not None:
        verb = "predicted" if isinstance(account, Estimate) else "measured"
        facts.append(f"{verb} in {_time(account.elapsed_ns)}")
    return Text(plain(", ".join(facts)).plain, style="dim")


def _time(elapsed_ns: int) -> str:
    return f"{elapsed_ns / 1e9:.3g} s" if elapsed_ns >= 1e9 else f"{elapsed_ns / 1e6:.3g} ms"


def section(title: str, *parts: RenderableType) -> list[RenderableType]:
    """Return an empty line, a title and the parts under it."""
    return [Text(), Text(title, style="bold underline"), *parts]


def _of(count: int | None, all_count: int) -> str:
    return "" if count is None or count >= all_count else f" ({count} of {all_count})"


def bullets(lines: Iterable[str]) -> list[RenderableType]:
    """Return one item for each line, continued under its own text."""
    items = Table.grid(padding=(0, 1, 0, 0))
    items.add_column()
    items.add_column(overflow="fold")
    for line in lines:
        items.add_row("-", plain(line))
    return [items]


def _side_line(name: str, side: Side) -> Text:
    line = Text(f"{name}: ", style="dim").append_text(target_of(side.workload))
    line.append(" on ").append_text(plain(side.device.get("name", "?")))
    return line if len(name) > 1 else line.append(f" ({side.kind})")


def _cells(a_bytes: int | None, b_bytes: int | None, difference: int | None) -> tuple[str, str, str]:
    return format_bytes(a_bytes), format_bytes(b_bytes), format_difference(difference, b_bytes)


def _rows(title: str, rows: Iterable[Row], names: tuple[str, str]) -> RenderableType:
    table = grid(title, *names, "difference")
    for row in rows:
        table.add_row(plain(row.name), *_cells(row.a_bytes, row.b_bytes, row.difference_bytes))
    return table


def _kinds(rows: Sequence[KindRow], names: tuple[str, str]) -> RenderableType:
    """Return the kinds; a range is shown as such, and whether the other is in it."""
    has_range = any(_in_range(row) for row in rows)
    table = grid("memory", *names, "difference", *(["in range?"] if has_range else []))
    for row in rows:
        cells = list(_cells(row.a_bytes, row.b_bytes, row.difference_bytes))
        for place, figure in enumerate((row.a_range, row.b_range)):
            cells[place] = format_range(figure) if figure is not None else cells[place]
        table.add_row(row.name, *cells, *([_in_range(row)] if has_range else []))
    return table


def _in_range(row: KindRow) -> str:
    """Say where B's figure lies in A's range: `yes`, `below` or `above`; nothing if A has no range."""
    if row.a_range is None or row.a_range.low == row.a_range.high or row.b_bytes is None:
        return ""
    return "below" if row.b_bytes < row.a_range.low else "above" if row.b_bytes > row.a_range.high else "yes"


def _layer_rows(rows: Iterable[LayerRow], names: tuple[str, str]) -> RenderableType:
    table = grid("layer", *names, "difference", "of own peak", flexible="layer")
    for row in rows:
        own = format_difference(row.peak_difference_bytes, 0)
        table.add_row(
            layer_name(row.name, row.type), *_cells(row.a_bytes, row.b_bytes, row.difference_bytes), own
        )
    return table
