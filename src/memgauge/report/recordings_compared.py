"""Two recordings beside each other, as text for a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from memgauge.explain.compare_recordings import (
    PeakRow,
    PhaseRow,
    RecordingsComparison,
    RecordingSide,
    SpanRow,
    TimeRow,
)
from memgauge.explain.recorded import still_open
from memgauge.explain.recording import relative
from memgauge.report.recording import LONGEST_NAME, MOST_EACH
from memgauge.report.tables import grid, plain, short, short_command
from memgauge.report.text import section
from memgauge.units import format_bytes, format_duration
from memgauge.units import format_difference as _signed

_LONGEST_COMMAND = 100
_MOST_PHASES = 20


def recordings_view(compared: RecordingsComparison) -> RenderableType:
    """Return two recordings side by side as text; differences are the first minus the second."""
    parts: list[RenderableType] = [Text(plain(compared.gap).plain, style="bold")]
    with_host = compared.a.host != compared.b.host
    parts += [_side(name, side, with_host) for name, side in (("A", compared.a), ("B", compared.b))]
    if compared.peaks:
        parts += section("Highest", _peaks(compared.peaks))
    for name, side in (("A", "a_unknown"), ("B", "b_unknown")):
        why = {getattr(row, side): row.name for row in compared.peaks if getattr(row, side)}
        parts += [plain(f"{what} of {name} is not known: {reason}") for reason, what in why.items()]
    if compared.phases:
        shown = compared.phases[:_MOST_PHASES]
        parts += section("Phases", _phases(shown))
        left_out = len(compared.phases) - _MOST_PHASES
        parts += [Text(f"and {left_out:,} more, in --json")] if left_out > 0 else []
        others = _others(shown)
        parts += [] if others is None else section("What else was held in phases", others)
    return Group(*parts, *section("Over the run", _times(compared.times)))


def _side(name: str, side: RecordingSide, with_host: bool) -> Text:
    line = Text(f"{name}: ", style="dim").append_text(plain(relative(side.file)))
    shown = [plain(side.title)] if side.title else []
    shown += [short_command(side.command, _LONGEST_COMMAND)] if side.command else []
    shown += [plain(side.ended)] + ([Text("on ").append_text(plain(side.host))] if with_host else [])
    for part in shown:
        line.append(", ").append_text(part)
    return line


def _peaks(rows: Sequence[PeakRow]) -> RenderableType:
    table = grid("highest", "A", "B", "difference", "kind", flexible="highest")
    for row in rows:
        table.add_row(plain(row.name), *_amounts(row), Text(_kinds(row)))
    return table


def _amounts(row: PeakRow) -> tuple[str, str, str]:
    return (
        format_bytes(row.a_bytes),
        format_bytes(row.b_bytes),
        _difference(row.difference_bytes, row.b_bytes),
    )


def _difference(difference_bytes: int | None, b_bytes: int | None) -> str:
    """Return the difference; of none that it is none, since "exact" is a kind of peaks."""
    return "equal" if difference_bytes == 0 else _signed(difference_bytes, b_bytes)


def _kinds(row: PeakRow) -> str:
    """Return the kind of both sides, once if it is the same."""
    if row.a_kind == row.b_kind:
        return row.a_kind
    return "\n".join(f"{name} {kind}" for name, kind in (("A", row.a_kind), ("B", row.b_kind)) if kind)


def _phases(rows: Sequence[PhaseRow]) -> RenderableType:
    """Return the phases and each of their values, a line for each side; the difference is that of the peaks."""
    table = grid("phase", "", "times", "total", "peak", "difference", "kind", flexible="phase")
    for row in rows:
        counts = f"{row.a_count or '—'}\n{row.b_count or '—'}"
        table.add_row(_named(row, (row.a_count, row.b_count)), "A\nB", counts, *_cells(row))
        for value in _shown_values(row):
            table.add_row(_named(value, (1, 1), indent="  "), "A\nB", "", *_cells(value), style="dim")
    return table


def _shown_values(row: PhaseRow) -> Sequence[SpanRow]:
    return row.values if len(row.values) <= MOST_EACH else ()


def _cells(row: SpanRow) -> tuple[str, ...]:
    return (
        f"{format_duration(row.time.a_us)}\n{format_duration(row.time.b_us)}",
        f"{format_bytes(row.a_bytes)}\n{format_bytes(row.b_bytes)}",
        _difference(row.difference_bytes, row.b_bytes),
        f"{row.a_kind}\n{row.b_kind}",
    )


def _named(row: SpanRow, counts: tuple[int, int], indent: str = "") -> Text:
    """Return the name of a phase, and that it has no end of its own, on which side if not on both."""
    shown = short(f"{indent}{row.name}", LONGEST_NAME)
    said = [still_open(u, c) for u, c in zip((row.a_unfinished, row.b_unfinished), counts, strict=True)]
    if said[0] == said[1] != "":
        shown.append(f"  ({said[0]})", "yellow")
    elif any(said):
        found = ", ".join(f"{name}: {what}" for name, what in zip("AB", said, strict=True) if what)
        shown.append(f"  ({found})", "yellow")
    return shown


def _others(rows: Sequence[PhaseRow]) -> RenderableType | None:
    """Return what else was held in phases, None if nothing else is known of any; that of values is in the JSON."""
    table = grid("phase", "of", "A", "B", "difference", "kind", flexible="phase")
    for row in rows:
        name = short(row.name, LONGEST_NAME)
        for what, found in _held(row):
            table.add_row(name, what, *_amounts(found), Text(_kinds(found)))
            name = Text()
    return table if table.row_count else None


def _held(row: PhaseRow) -> Iterator[tuple[str, PeakRow]]:
    """Yield what else is known of a phase."""
    for what, found in (
        ("tree's RSS", row.tree_rss),
        ("tree's PSS", row.tree_pss),
        ("GPU memory", row.gpu),
        ("framework", row.framework),
    ):
        if found is not None:
            yield what, found


def _times(rows: Sequence[TimeRow]) -> RenderableType:
    table = grid("over the run", "A", "B", "difference")
    for row in rows:
        table.add_row(row.name, format_duration(row.a_us), format_duration(row.b_us), _longer(row))
    return table


def _longer(row: TimeRow) -> str:
    if row.difference_us is None:
        return "—"
    sign = "-" if row.difference_us < 0 else "+"
    percent = "" if row.percent_of_b is None else f" ({row.percent_of_b:+.1f} %)"
    return f"{sign}{format_duration(abs(row.difference_us))}{percent}"
