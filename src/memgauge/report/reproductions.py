"""Theirs and ours: for a terminal, and as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from memgauge.report.tables import grid, plain
from memgauge.report.text import bullets, section
from memgauge.reproduce.records import Cell, Claim, Reproduction, Reproductions, Section, Table
from memgauge.units import format_bytes

_BYTES = "_bytes"
_EXACT = {"bytes": "B", "parameters": "", "elements": "", "layers": "", "times": "", "number": ""}


def reproductions_view(found: Reproductions) -> RenderableType:
    """Return the texts for a terminal."""
    parts: list[RenderableType] = []
    for text in found.texts:
        parts += [Text(), *_text_view(text)] if parts else _text_view(text)
    return Group(*parts)


def _text_view(text: Reproduction) -> list[RenderableType]:
    head = Text(f"{text.name}: {text.title}", style="bold")
    parts: list[RenderableType] = [head, Text(_citation(text), style="dim")]
    for part in text.sections:
        shown: list[RenderableType] = []
        if part.claims:
            shown.append(_claims_table(part.claims))
        if part.table is not None:
            shown += [Text()] * bool(shown) + [_NumbersTable(part.table)]
        shown += bullets(part.notes) if part.notes else []
        parts += section(part.title, *shown)
    return parts


def _claims_table(claims: Iterable[Claim]) -> RenderableType:
    table = grid("number", "theirs", "ours", "", "exactly", "why", flexible="why")
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    for item in claims:
        style = "yellow" if item.verdict == "differs" else ""
        table.add_row(
            item.what,
            item.theirs or "—",
            item.ours,
            Text(item.verdict, style=style),
            exactly(item),
            Text(item.why, style="dim"),
        )
    return table


class _NumbersTable:
    """A table whose amounts stay whole: texts break their lines, and columns give way where room is short."""

    _DROPPED_FIRST = ("learning rate", "ours of theirs, %", "parameter_bytes", "output", "kind")
    _TEXT_CELLS = 14  # what a text is left before a column gives way

    def __init__(self, found: Table) -> None:
        self._columns = {
            name: [cell_text(name, row[i]) for row in found.rows] for i, name in enumerate(found.columns)
        }
        self._amounts = {
            name for i, name in enumerate(found.columns) if any(_is_amount(row[i]) for row in found.rows)
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(self._columns)
        for name in self._DROPPED_FIRST:
            if name in shown and sum(self._width(n) + 2 for n in shown) > options.max_width:
                shown.remove(name)
        table = grid(*(_heading(name) for name in shown))
        for name, column in zip(shown, table.columns, strict=True):
            column.no_wrap, column.overflow = False, "fold"
            column.justify = "right" if name in self._amounts else "left"
            if name in self._amounts:
                column.width = self._width(name)
        for row in zip(*(self._columns[name] for name in shown), strict=True):
            table.add_row(*(plain(text) for text in row))
        yield table
        if left_out := [_heading(name) for name in self._columns if name not in shown]:
            yield Text(f"left out for want of room, in --json: {', '.join(left_out)}", style="dim")

    def _width(self, name: str) -> int:
        widest = max(len(text) for text in (*_heading(name).split(), *self._columns[name]))
        return widest if name in self._amounts else min(widest, self._TEXT_CELLS)


def _is_amount(cell: Cell) -> bool:
    return not isinstance(cell, str) or cell.replace(".", "").isdecimal()


def markdown_page(found: Reproductions) -> str:
    """Return the page of the documentation: every number of every text beside ours."""
    lines = [
        "# Reproductions",
        "",
        "The numbers of four texts about training memory beside ours, with the reason for each difference.",
        "Written by `memgauge reproduce --write docs/reproductions.md`; *theirs* is as printed, *ours* is computed",
        "when the command runs, in their unit and to their decimals. `equal, cut off`: they dropped digits instead of",
        "rounding. Bytes in tables are IEC units: 1 MiB = 2^20 bytes.",
    ]
    for text in found.texts:
        lines += ["", f"## {text.title}", "", f"`memgauge reproduce {text.name}` · {_citation(text)}"]
        for part in text.sections:
            lines += ["", f"### {part.title}", "", *_markdown_section(part)]
    return "\n".join(lines) + "\n"


def _markdown_section(part: Section) -> list[str]:
    lines: list[str] = []
    if part.claims:
        lines += _markdown_table(
            ("number", "theirs", "ours", "", "exactly", "why"),
            [(c.what, c.theirs or "—", c.ours, c.verdict, exactly(c), c.why) for c in part.claims],
        )
    if part.table is not None:
        names = part.table.columns
        rows = [
            tuple(cell_text(n, cell) for n, cell in zip(names, row, strict=True)) for row in part.table.rows
        ]
        lines += [""] * bool(lines) + _markdown_table([_heading(n) for n in names], rows)
    lines += [""] * bool(part.notes and lines) + [f"- {note}" for note in part.notes]
    return lines


def _markdown_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    names = list(columns)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def cell_text(column: str, cell: Cell) -> str:
    """Return a cell as people read it: bytes in binary units, counts with separators."""
    if cell is None:
        return "—"
    if column.endswith(_BYTES) and isinstance(cell, int):
        return format_bytes(cell)
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def exactly(item: Claim) -> str:
    """Return ours before rounding, with its unit."""
    unit = _EXACT[item.exact_unit]
    number = f"{item.exact:,}" if isinstance(item.exact, int) else f"{item.exact:,.4g}"
    return f"{number} {unit}".strip()


def _heading(column: str) -> str:
    name = f"{column.removesuffix(_BYTES)} memory" if column.endswith(_BYTES) else column
    return name.replace("_", " ")


def _citation(text: Reproduction) -> str:
    year = f" ({text.year})" if text.year is not None else ""
    return f"{text.author}{year}, {text.source}"
