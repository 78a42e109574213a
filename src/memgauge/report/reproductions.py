"""Theirs and ours: for a terminal, and as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from memgauge.report.tables import plain
from memgauge.report.text import bullets, section
from memgauge.reproduce.records import (
    DIFFERS,
    VERDICTS,
    Cell,
    Claim,
    Reproduction,
    Reproductions,
    Section,
    Table,
)
from memgauge.units import format_bytes

_BYTES = "_bytes"
_GAP, _INDENT = 2, 4
_EXACT = {"bytes": "B", "parameters": "", "elements": "", "layers": "", "times": "", "number": ""}


def reproductions_view(found: Reproductions) -> RenderableType:
    """Return the texts for a terminal."""
    parts: list[RenderableType] = []
    for text in found.texts:
        parts += [Text(), *_text_view(text)] if parts else _text_view(text)
    return Group(*parts, *section("Verdicts", *bullets(_legend())))


def _legend() -> list[str]:
    return [f"{verdict}: {meaning}" for verdict, meaning in VERDICTS.items()]


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


def _claims_table(claims: Sequence[Claim]) -> RenderableType:
    columns = {
        "number": [item.what for item in claims],
        "theirs": [item.theirs or "—" for item in claims],
        "ours": [item.ours for item in claims],
        "verdict": [item.verdict for item in claims],
    }
    reasons = [". ".join(part for part in (_exact_part(item), item.why) if part) for item in claims]
    return _RowsWithReasons(columns, amounts={"theirs", "ours", "verdict"}, reasons=reasons)


def _exact_part(item: Claim) -> str:
    exact = exactly(item)
    return "" if exact == item.ours else f"exactly {exact}"


class _NumbersTable:
    """A table whose amounts stay whole: what does not fit beside the others stands below its row, named."""

    _BELOW = ("why",)
    _BELOW_IF_NARROW = ("hidden layers", "learning rate", "batch", "parameter_bytes", "output", "category")
    _TEXT_CELLS = 14  # what a text is left before a column gives way

    def __init__(self, found: Table) -> None:
        self._columns = {
            name: [cell_text(name, row[i]) for row in found.rows] for i, name in enumerate(found.columns)
        }
        self._amounts = {
            name for i, name in enumerate(found.columns) if all(_is_amount(row[i]) for row in found.rows[:1])
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = [name for name in self._columns if name not in self._BELOW]
        for name in self._BELOW_IF_NARROW:
            if name in shown[1:] and sum(self._width(n) + _GAP for n in shown) > options.max_width:
                shown.remove(name)
        below = [name for name in self._columns if name not in shown]
        yield _RowsWithReasons(
            {_heading(name): self._columns[name] for name in shown},
            amounts={_heading(name) for name in self._amounts},
            reasons=[self._below_row(below, i) for i in range(len(self._columns[shown[0]]))],
        )

    def _below_row(self, names: Sequence[str], row: int) -> str:
        cells = [(name, self._columns[name][row]) for name in names]
        said = [text if name in self._BELOW else f"{_heading(name)} {text}" for name, text in cells if text]
        return "; ".join(said)

    def _width(self, name: str) -> int:
        widest = max(len(text) for text in (*_heading(name).split(), *self._columns[name]))
        return widest if name in self._amounts else min(widest, self._TEXT_CELLS)


class _RowsWithReasons:
    """Rows of a table; amounts stay whole, texts share the rest, and each row's reason stands below it."""

    def __init__(
        self, columns: Mapping[str, Sequence[str]], *, amounts: Set[str], reasons: Sequence[str]
    ) -> None:
        self._columns, self._amounts, self._reasons = columns, amounts, reasons

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width)
        rows = zip(*self._columns.values(), strict=True)
        yield self._line([Text(name, style="dim") for name in self._columns], widths)
        for cells, reason in zip(rows, self._reasons, strict=True):
            yield self._line([_styled(cell) for cell in cells], widths)
            if reason:
                yield Padding(Text(plain(reason).plain, style="dim"), (0, 0, 0, _INDENT), expand=False)

    def _line(self, cells: Sequence[Text], widths: Mapping[str, int]) -> RenderableType:
        table = RichTable.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
        for name, width in widths.items():
            table.add_column(
                width=width, justify="right" if name in self._amounts else "left", overflow="fold"
            )
        table.add_row(*cells)
        return table

    def _widths(self, room: int) -> dict[str, int]:
        """Return the width of each column: amounts whole, texts as wide as they are or as there is room for."""
        whole = {
            name: max(len(text) for text in ([*name.split()] if name in self._amounts else [name]) + [*cells])
            for name, cells in self._columns.items()
        }
        texts = sorted((name for name in whole if name not in self._amounts), key=lambda name: whole[name])
        left = room - _GAP * len(whole) - sum(whole[name] for name in whole if name in self._amounts)
        for number, name in enumerate(texts):
            whole[name] = max(min(whole[name], left // (len(texts) - number)), 1)
            left -= whole[name]
        return whole


def _styled(cell: str) -> Text:
    return Text(cell, style="yellow") if cell == DIFFERS else plain(cell)


def _is_amount(cell: Cell) -> bool:
    return not isinstance(cell, str) or cell.replace(".", "").isdecimal()


def markdown_page(found: Reproductions) -> str:
    """Return the page of the documentation: every number of every text beside ours."""
    lines = [
        "# Reproductions",
        "",
        "The numbers of four texts about training memory beside ours, with the reason for each difference.",
        "Written by `memgauge reproduce --write docs/reproductions.md`; *theirs* is as printed, *ours* is computed",
        "when the command runs, in their unit and to their decimals. Bytes in tables are IEC units: 1 MiB = 2^20 bytes.",
        "",
        "The verdicts:",
        "",
        *(f"- `{verdict}`: {meaning}" for verdict, meaning in VERDICTS.items()),
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
            ("number", "theirs", "ours", "verdict", "exactly", "why"),
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
