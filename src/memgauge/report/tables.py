"""The parts that text views are made of: bars, ranges, tables of one account.

Whatever a user, a model or a file named is data: it goes into `Text` as it is,
control characters made visible, and is never read as markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rich import measure
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from memgauge.explain.rows import layer_title
from memgauge.records import Account, Fits, Layer, Measurement, Range
from memgauge.units import format_bytes

_MOST_PHASES = 24
_BAR_CELLS = 28
_TEXT_COLUMNS = ("type", "output", "mostly")

_MEANINGS = {
    "requested": "what the operators asked for",
    "allocated": "blocks handed out, rounding included",
    "reserved": "what the allocator holds from the driver",
    "tensor": "allocated, with workspace left out",
    "device": "all that the process takes on the device",
    "pinned": "host memory that is pinned for copies to the device",
    "host": "resident memory of the process",
    "host_baseline": "of it, resident before the run",
}

Values = TypeVar("Values")


def plain(text: object) -> Text:
    """Return a user's string as it is, with control characters made visible."""
    return Text("".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text)))


def short(text: object, longest: int) -> Text:
    """Return a user's string with control characters made visible, cut where it is longer."""
    shown = plain(text)
    shown.truncate(longest, overflow="ellipsis")
    return shown


def short_command(command: str, longest: int) -> Text:
    """Return a command line on one line, its program without the folder, cut where it is longer.

    >>> short_command("/usr/bin/python3 train.py  --epochs 3", 25).plain
    'python3 train.py --epoch…'
    """
    words = command.split()
    if words and words[0].startswith("/"):
        words[0] = words[0].rpartition("/")[2] or words[0]
    return short(" ".join(words), longest)


def format_range(figure: Range | None) -> str:
    """Return `353 MiB (310–401)`, or one amount if all three are equal.

    >>> format_range(Range(low=1024, expected=2048, high=3072))
    '2.00 KiB (1.00–3.00)'
    """
    if figure is None:
        return format_bytes(None)
    low, expected, high = (format_bytes(b) for b in (figure.low, figure.expected, figure.high))
    if low == high:
        return expected
    units = {text.rpartition(" ")[2] for text in (low, expected, high)}
    if len(units) > 1:
        return f"{expected} ({low} – {high})"
    return f"{expected} ({low.partition(' ')[0]}–{high.partition(' ')[0]})"


def room(fits: Fits) -> str:
    """Return how much memory is left or lacking, why the verdict is what it is, and the least that is enough."""
    said = [] if fits.capacity_bytes is None else [f"capacity {format_bytes(fits.capacity_bytes)}"]
    if fits.free_bytes is not None:
        over = fits.free_bytes < 0
        said.append(f"{format_bytes(abs(fits.free_bytes))} {'too little' if over else 'left'}")
    if fits.reason:
        said.append(fits.reason)
    if fits.least_capacity_bytes is not None:
        said.append(f"runs where {format_range(fits.least_capacity_bytes)} are usable")
    return "; ".join(said)


def grid(*columns: str, flexible: str = "") -> Table:
    """Return an empty table without lines: text to the left, amounts to the right.

    The `flexible` column takes what room is left and breaks its lines; the others stay whole.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, name in enumerate(columns):
        is_text = number == 0 or name in _TEXT_COLUMNS or name == flexible
        table.add_column(
            name,
            justify="left" if is_text else "right",
            no_wrap=name != flexible,
            overflow="fold" if name == flexible else "ellipsis",
        )
    return table


class Bar:
    """A bar whose length is a share of `_BAR_CELLS`, to half a cell."""

    def __init__(self, part: int, whole: int) -> None:
        self._halves = round(2 * _BAR_CELLS * part / whole) if whole > 0 else 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        full, half = divmod(self._halves, 2)
        text = "#" * (full + half) if options.ascii_only else "█" * full + "▌" * half
        yield Segment(text[: options.max_width], console.get_style("cyan"))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> measure.Measurement:
        return measure.Measurement(1, max(1, self._halves // 2 + 1))


def kinds_table(account: Account) -> RenderableType:
    """Return the peak of each kind of memory, with what it means, how it was read or why it is unknown."""
    table = grid("memory", "peak", "", flexible="")
    for name, peak, note in kind_rows(account):
        table.add_row(name, peak, Text(plain(note).plain, style="dim"))
    return table


def kind_rows(account: Account) -> Iterator[tuple[str, str, str]]:
    """Yield each kind of memory, its peak, and what it means, how it was read or why it is unknown."""
    for name, meaning in _MEANINGS.items():
        key = f"peak.{name}_bytes"
        figure = getattr(account.peak, f"{name}_bytes")
        if figure is None and key not in account.unknown:
            continue
        text = format_range(figure) if figure is None or isinstance(figure, Range) else format_bytes(figure)
        instrument = account.instruments.get(key) if isinstance(account, Measurement) else None
        note = account.unknown.get(key, "unknown") if figure is None else instrument or meaning
        yield name.replace("_", " "), text, note


def categories_table(account: Account) -> RenderableType:
    """Return what each category holds at the peak, largest first, with bars that add up to the whole."""
    held = sorted(account.at_peak.categories.items(), key=lambda item: -item[1])
    whole = sum(count for _, count in held)
    table = grid("category", "at peak", "share", "", flexible="")
    for name, count in held:
        table.add_row(plain(name), format_bytes(count), _percent(count, whole), Bar(count, whole))
    return table


def phases_table(account: Account) -> RenderableType:
    """Return the highest occupancy of each phase; like steps are one line."""
    kinds = ("requested", "tensor", "allocated", "reserved")
    shown = [k for k in kinds if any(getattr(p, f"{k}_bytes") is not None for p in account.phases)]
    cells = [(p.name, tuple(format_bytes(getattr(p, f"{k}_bytes")) for k in shown)) for p in account.phases]
    rows = merge_steps(cells)
    table = grid("phase", *shown, "", flexible="")
    for names, values in rows[:_MOST_PHASES]:
        mark = Text("peak", style="bold") if account.at_peak.phase in names else ""
        table.add_row(plain(span_name(names)), *values, mark)
    if len(rows) > _MOST_PHASES:
        table.add_row(f"and {len(rows) - _MOST_PHASES} more, in --json")
    return table


def merge_steps(rows: Iterable[tuple[str, Values]]) -> list[tuple[tuple[str, ...], Values]]:
    """Join neighbouring steps whose phases all have equal values; each result names what it joins.

    `step 2 forward` and `step 3 forward` become one if the whole of step 2 equals the whole of step 3.
    """
    blocks: list[list[tuple[list[str], Values]]] = []
    previous: list[tuple[str, Values]] | None = None
    for block in _steps(rows):
        current = [(_without_number(name), values) for name, values in block]
        if previous == current and _number(block[0][0]) is not None:
            for (names, _), (name, _) in zip(blocks[-1], block, strict=True):
                names.append(name)
        else:
            blocks.append([([name], values) for name, values in block])
        previous = current
    return [(tuple(names), values) for block in blocks for names, values in block]


def _steps(rows: Iterable[tuple[str, Values]]) -> list[list[tuple[str, Values]]]:
    blocks: list[list[tuple[str, Values]]] = []
    for name, values in rows:
        number = _number(name)
        if blocks and number is not None and _number(blocks[-1][0][0]) == number:
            blocks[-1].append((name, values))
        else:
            blocks.append([(name, values)])
    return blocks


def _number(name: str) -> int | None:
    found = re.match(r"step (\d+)\b", name)
    return int(found[1]) if found else None


def _without_number(name: str) -> str:
    return re.sub(r"^step \d+\b", "step", name)


def span_name(names: Sequence[str]) -> str:
    """Return `step 2–9 forward` for the names of joined steps, the name itself for one."""
    if len(names) == 1:
        return names[0]
    return re.sub(r"^step \d+", f"step {_number(names[0])}–{_number(names[-1])}", names[0])


class LayersTable:
    """The layers that hold most at the peak, with as many columns as there is room for."""

    _ORDER = ("layer", "type", "output", "parameters", "at peak", "mostly", "own peak")
    _DROPPED_FIRST = ("parameters", "output", "type")

    def __init__(self, account: Account, count: int | None) -> None:
        rows = [_layer_cells(layer) for layer in largest_layers(account.layers, count)]
        self._cells = {name: [row[name] for row in rows] for name in self._ORDER}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(self._ORDER)
        for name in self._DROPPED_FIRST:
            if sum(self._width(column) + 2 for column in shown) > options.max_width:
                shown.remove(name)
        table = grid(*shown, flexible="layer")
        for row in zip(*(self._cells[name] for name in shown), strict=True):
            table.add_row(*row)
        yield table

    def _width(self, name: str) -> int:
        return max([len(name), *(cell.cell_len for cell in self._cells[name])])


def _layer_cells(layer: Layer) -> dict[str, Text]:
    held = sum(layer.at_peak_bytes.values())
    most = max(layer.at_peak_bytes, key=lambda c: layer.at_peak_bytes[c], default="") if held else ""
    shape = layer.output_shape
    kind = plain(layer.type)
    kind.truncate(20, overflow="ellipsis")
    return {
        "layer": layer_name(layer.path, layer.type),
        "type": kind,
        "output": Text("—" if shape is None else "×".join(str(n) for n in shape)),
        "parameters": Text(f"{layer.parameters:,}"),
        "at peak": Text(format_bytes(held)),
        "mostly": plain(most),
        "own peak": Text(format_bytes(layer.peak_bytes)),
    }


def layer_name(path: str, kind: str) -> Text:
    """Return what a layer is called; what has no path is dimmed, since that is not its name."""
    return plain(path) if path else Text(layer_title(path, kind), style="dim")


def largest_layers(layers: Sequence[Layer], count: int | None) -> list[Layer]:
    """Return the `count` layers that hold most at the peak, then by their own highest; all if None."""
    ordered = sorted(layers, key=lambda y: (-sum(y.at_peak_bytes.values()), -y.peak_bytes))
    return ordered if count is None else ordered[:count]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "—"


def target_of(workload: dict[str, object]) -> Text:
    """Return what a workload is called: its TARGET, or that it was handed over as an object."""
    return plain(workload.get("target") or "workload")
