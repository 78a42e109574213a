"""Tables over many cards or values."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from memgauge.records import Range
from memgauge.report.tables import Bar, format_range, grid, plain, target_of
from memgauge.units import format_bytes
from memgauge.varied import Curve, Row
from memgauge.vary import Catalogue, Largest

LEAST = "least: usable memory below which it does not run, cached blocks given back"
_STYLES = {"yes": "bold green", "no": "bold red", "uncertain": "bold yellow"}


def catalogue_view(result: Catalogue) -> RenderableType:
    """Return one line for each card: whether the run fits, and what it takes there."""
    head = Text(style="bold").append_text(target_of(result.workload)).append(f": {fitting_line(result)}")
    table = grid("device", "fits", "on the device", "least", "usable")
    for row in result.rows:
        # Any card goes by its name without the maker as well; with it, the table is wider than 80 columns.
        table.add_row(plain(row.device.removeprefix("nvidia-").removeprefix("amd-")), *_cells(row))
    left_out = [Text(f"left out: {plain(line).plain}", style="dim") for line in result.left_out]
    return Group(head, Text(), table, Text(), *left_out, Text(LEAST, style="dim"))


def fitting_line(result: Catalogue) -> str:
    """Return on how many cards the run fits, and the smallest of them."""
    fitting = [row.device for row in result.rows if row.fits.verdict == "yes"]
    smallest = f", the smallest is {plain(fitting[0]).plain}" if fitting else ""
    return f"surely fits {len(fitting)} of {len(result.rows)} cards{smallest}"


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
    head.append(largest_line(result), style="bold red" if result.probably is None else "")
    parts: list[RenderableType] = [head]
    binds = what_binds(result)
    if binds:
        parts.append(Text(binds))
    if result.limit:
        parts.append(Text("no more, since: ", style="dim").append(plain(result.limit).plain))
    return Group(*parts, Text(), _curve_table(curve), Text(), _how(curve))


def largest_line(result: Largest) -> str:
    """Return the largest values that fit, surely and probably."""
    name = plain(result.curve.argument).plain
    if result.probably is None:
        return f"not even {name}={min(r.value or 1 for r in result.curve.rows)} fits"
    surely = "none surely" if result.surely is None else f"{name}={result.surely} surely"
    return f"{surely}, {name}={result.probably} probably"


def what_binds(result: Largest) -> str:
    """Return the moment of the peak at the largest value; "" where it is not known."""
    if not result.binds:
        return ""
    parts = [result.binds["phase"]]
    parts += [f"{what} {result.binds[what]}" for what in ("operator", "layer") if result.binds[what]]
    return f"what binds: {plain(', '.join(parts)).plain}"


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
    return Text(f"{LEAST}\n{how_traced(result)}", style="dim")


def how_traced(result: Curve) -> str:
    """Return which values were traced, which replayed, and how long all took."""
    if result.affine_from is not None:
        since = "" if result.affine_from == min(result.traced) else f" from {result.affine_from} on"
        traced = ", ".join(map(str, result.traced))
        said = f"sizes are affine in it{since}: traced {traced}, the rest replayed"
    else:
        said = "traced one value" if len(result.traced) == 1 else f"traced {len(result.traced)} values"
    return f"{said}; {result.elapsed_ns / 1e9:.1f} s"
