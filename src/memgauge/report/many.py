"""Tables over many cards or values."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from memgauge.records import Range
from memgauge.report.tables import Bar, format_range, grid, plain, target_of
from memgauge.units import format_bytes
from memgauge.varied import Curve, Row
from memgauge.vary import Catalogue, Largest

_LEAST = "least: usable memory below which it does not run, cached blocks given back"
_STYLES = {"yes": "bold green", "no": "bold red", "uncertain": "bold yellow"}


def catalogue_view(result: Catalogue) -> RenderableType:
    """Return one line for each card: whether the run fits, and what it takes there."""
    fitting = [row.device for row in result.rows if row.fits.verdict == "yes"]
    head = Text(style="bold").append_text(target_of(result.workload))
    head.append(f": surely fits {len(fitting)} of {len(result.rows)} cards")
    if fitting:
        head.append(f", the smallest is {fitting[0]}")
    table = grid("device", "fits", "on the device", "least", "usable")
    for row in result.rows:
        table.add_row(plain(row.device), *_cells(row))
    left_out = [Text(f"left out: {plain(line).plain}", style="dim") for line in result.left_out]
    return Group(head, Text(), table, Text(), *left_out, Text(_LEAST, style="dim"))


def curve_view(result: Curve) -> RenderableType:
    """Return one line for each value of the argument that varies."""
    head = Text(style="bold").append_text(target_of(result.workload))
    head.append(f" on {plain(result.device).plain} by {plain(result.argument).plain}")
    return Group(head, Text(), _curve_table(result), Text(), _how(result))


def largest_view(result: Largest) -> RenderableType:
    """Return the largest value that fits, the moment that binds, and the curve."""
    curve = result.curve
    head = Text(style="bold").append_text(target_of(curve.workload))
    head.append(f" on {plain(curve.device).plain}: ")
    name = plain(curve.argument).plain
    if result.probably is None:
        head.append(f"not even {name}={min(r.value or 1 for r in curve.rows)} fits", style="bold red")
    else:
        surely = "none surely" if result.surely is None else f"{name}={result.surely} surely"
        head.append(f"{surely}, {name}={result.probably} probably")
    parts: list[RenderableType] = [head]
    if result.binds:
        where = Text("what binds: ", style="dim").append(plain(result.binds["phase"]).plain)
        if result.binds["operator"]:
            where.append(f", operator {plain(result.binds['operator']).plain}")
        if result.binds["layer"]:
            where.append(f", layer {plain(result.binds['layer']).plain}")
        parts.append(where)
    if result.limit:
        parts.append(Text("no more, since: ", style="dim").append(plain(result.limit).plain))
    return Group(*parts, Text(), _curve_table(curve), Text(), _how(curve))


def _curve_table(result: Curve) -> RenderableType:
    table = grid(result.argument, "fits", "on the device", "least", "usable", "", flexible="")
    most = max((row.device_bytes.high for row in result.rows), default=0)
    for row in result.rows:
        table.add_row(str(row.value), *_cells(row), Bar(row.device_bytes.expected, most))
    return table


def _cells(row: Row) -> tuple[RenderableType | str, ...]:
    fits = row.fits
    return (
        Text(fits.verdict, style=_STYLES.get(fits.verdict, "")),
        format_range(row.device_bytes),
        _least(fits.least_capacity_bytes),
        format_bytes(fits.capacity_bytes),
    )


def _least(figure: Range | None) -> str:
    return format_bytes(None if figure is None else figure.expected)


def _how(result: Curve) -> Text:
    if result.is_affine:
        said = "sizes are affine in it: traced " + ", ".join(map(str, result.traced)) + ", the rest replayed"
    else:
        said = f"traced {len(result.traced)} values"
    return Text(f"{_LEAST}\n{said}; {result.elapsed_ns / 1e9:.1f} s", style="dim")
