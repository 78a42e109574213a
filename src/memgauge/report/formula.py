"""The calculation by hand as text: the layer table, the totals, and the gap to the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from memgauge.formula.records import Both, Formula, GapItem, LayerRow, StateRow
from memgauge.report.tables import grid, layer_name, plain, target_of
from memgauge.report.text import bullets, section
from memgauge.units import format_bytes, format_difference

_MOST_PARTS = 3


def formula_view(formula: Formula, *, layers: int | None = None) -> RenderableType:
    """Return the calculation by hand as text.

    Args:
        formula: What to show.
        layers: How many layers to list; None for all.
    """
    parts: list[RenderableType] = [_headline(formula)]
    if layers != 0:
        parts += section(_title("Layers", layers, len(formula.layers)), _LayersTable(formula.layers[:layers]))
        notes = [f"{row.path or row.kind}: {row.note}" for row in formula.layers[:layers] if row.note]
        if notes:
            parts += section("Notes on layers", *bullets(notes))
    if formula.training is not None:
        parts += section("Training, by hand", _training(formula))
        parts += section("Optimizer state", _state(formula.optimizer_state))
    parts += section("Inference, by hand", _inference(formula))
    if formula.assumptions:
        parts += section("Assumed", *bullets(formula.assumptions))
    return Group(*parts)


def both_view(both: Both, *, layers: int | None = None) -> RenderableType:
    """Return formula and trace side by side, and the items of the gap.

    Args:
        both: What to show.
        layers: How many layers of the formula's table to list; None for all.
    """
    head = Text(style="bold")
    head.append_text(target_of(both.formula.workload)).append(" on ")
    head.append_text(plain(both.formula.device.get("name", "?")))
    head.append(
        f": formula {format_bytes(both.formula_bytes)}, trace {format_bytes(both.trace_bytes)}, "
        f"trace − formula {format_difference(both.difference_bytes, both.formula_bytes)}"
    )
    if both.trace.fits is not None:
        head.append(f"; fits by the trace: {both.trace.fits.verdict}")
    table = grid("category", "formula", "trace", "trace − formula")
    for row in both.categories:
        name = "temporary (gradients of activations)" if row.name == "temporary" else row.name
        cells = (row.formula_bytes, row.trace_bytes, row.difference_bytes)
        table.add_row(plain(name), *(format_bytes(count) for count in cells))
    total = (both.formula_bytes, both.trace_bytes, both.difference_bytes)
    table.add_row("total", *(format_bytes(count) for count in total), style="bold")
    instant = both.trace.at_peak
    moment = Text(f"the trace at its peak, in {instant.phase}, {instant.operator}", style="dim")
    parts: list[RenderableType] = [head, *section("Side by side", moment, table)]
    parts += section("What the formula misses (+) and counts too much (−)", _gap(both.gap))
    shown = formula_view(both.formula, layers=layers)
    return Group(*parts, Text(), shown)


def _headline(formula: Formula) -> Text:
    head = Text(style="bold")
    head.append_text(target_of(formula.workload))
    what = "training" if formula.training is not None else "inference"
    head.append(f", by hand: {what} {format_bytes(formula.total_bytes)}")
    if formula.training is not None:
        head.append(f", inference {format_bytes(formula.inference.total_bytes)}")
    return head.append(f"; {formula.parameters:,} parameters, {formula.element_type}")


class _LayersTable:
    """The layer table, with as many columns as there is room for; formulas break their lines."""

    _ORDER = ("layer", "kind", "output", "formula", "parameters", "their bytes", "feature maps")
    _DROPPED_FIRST = ("their bytes", "output", "kind")
    _FORMULA_CELLS = 24  # what a formula is left before another column gives way

    def __init__(self, rows: Sequence[LayerRow]) -> None:
        cells = [_layer_cells(row) for row in rows]
        self._cells = {name: [row[name] for row in cells] for name in self._ORDER}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(self._ORDER)
        for name in self._DROPPED_FIRST:
            if sum(self._width(column) + 2 for column in shown) > options.max_width:
                shown.remove(name)
        table = grid(*shown, flexible="formula")
        table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
        for row in zip(*(self._cells[name] for name in shown), strict=True):
            table.add_row(*row)
        yield table

    def _width(self, name: str) -> int:
        widest = max([len(name), *(cell.cell_len for cell in self._cells[name])])
        return min(widest, self._FORMULA_CELLS) if name == "formula" else widest


def _layer_cells(row: LayerRow) -> dict[str, Text]:
    kind = plain(row.kind)
    kind.truncate(20, overflow="ellipsis")
    shapes = ", ".join("×".join(map(str, shape)) or "1" for shape in row.output_shapes[:2])
    more = ", …" if len(row.output_shapes) > 2 else ""
    return {
        "layer": layer_name(row.path, row.kind),
        "kind": kind.append(f" ×{row.calls}" if row.calls > 1 else ""),
        "output": Text(shapes + more or "—"),
        "formula": plain(row.parameter_formula),
        "parameters": Text(f"{row.parameters:,}" if row.parameters else ""),
        "their bytes": Text(format_bytes(row.parameter_bytes) if row.parameters else ""),
        "feature maps": Text(format_bytes(row.feature_map_bytes) if row.calls else ""),
    }


def _training(formula: Formula) -> RenderableType:
    training = formula.training
    assert training is not None
    rows = {
        "parameters": training.parameter_bytes,
        "gradients": training.gradient_bytes,
        "optimizer state": training.optimizer_state_bytes,
        "activations": training.activation_bytes,
        "gradients of activations": training.activation_gradient_bytes,
        "input": training.input_bytes,
    }
    return _sum(rows, training.total_bytes)


def _inference(formula: Formula) -> RenderableType:
    inference = formula.inference
    pair = " and ".join(path or "the model itself" for path in inference.layers)
    rows = {
        "parameters": inference.parameter_bytes,
        f"two largest consecutive feature maps ({pair})": inference.two_largest_bytes,
        "input": inference.input_bytes,
    }
    return _sum(rows, inference.total_bytes)


def _sum(rows: Mapping[str, int], total: int) -> RenderableType:
    table = grid("", "", "bytes")
    for name, count in rows.items():
        table.add_row(plain(name), format_bytes(count), f"{count:,}")
    table.add_row("total", format_bytes(total), f"{total:,}", style="bold")
    return table


def _state(rows: Sequence[StateRow]) -> RenderableType:
    if not rows:
        return Text("none: the optimizer keeps nothing beside the gradients", style="dim")
    table = grid("optimizer", "keeps", "", "of P elements", "source", flexible="source")
    for row in rows:
        table.add_row(row.optimizer, row.name, format_bytes(row.state_bytes), row.formula, row.source)
    return table


def _gap(items: Sequence[GapItem]) -> RenderableType:
    table = grid("", "category", "item", flexible="item")
    for item in items:
        sign = "+" if item.gap_bytes > 0 else ""
        text = Text(item.name)
        listed = list(item.parts_bytes.items())
        if listed and [name for name, _ in listed] != [item.category]:
            more = f" and {len(listed) - _MOST_PARTS} more" if len(listed) > _MOST_PARTS else ""
            named = ", ".join(f"{name} {format_bytes(abs(count))}" for name, count in listed[:_MOST_PARTS])
            text.append(" (").append_text(plain(named)).append(f"{more})")
        text.append(f": {item.why}", style="dim")
        table.add_row(f"{sign}{format_bytes(item.gap_bytes)}", plain(item.category), text)
    return table


def _title(name: str, count: int | None, all_count: int) -> str:
    return name if count is None or count >= all_count else f"{name} ({count} of {all_count})"
