"""Two recordings beside each other, as text for a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from memgauge.explain.compare_recordings import (
    PeakRow,
    PhaseRow,
    RecordingsComparison,
    RecordingSide,
    TimeRow,
)
from memgauge.explain.recording import relative
from memgauge.report.tables import grid, plain, short_command
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
    if compared.phases:
        parts += section("Phases", _phases(compared.phases[:_MOST_PHASES]))
        left_out = len(compared.phases) - _MOST_PHASES
        parts += [Text(f"and {left_out:,} more, in --json")] if left_out > 0 else []
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
    """Return the phases, a line for each side; the difference is that of the peaks."""
    with_framework = any(row.framework is not None for row in rows)
    columns = ["phase", "", "times", "total", "peak", "difference", "kind"]
    table = grid(*columns, *(["framework's peak"] if with_framework else []), flexible="phase")
    for row in rows:
        cells = [
            "A\nB",
            f"{row.a_count or '—'}\n{row.b_count or '—'}",
            f"{format_duration(row.time.a_us)}\n{format_duration(row.time.b_us)}",
            f"{format_bytes(row.a_bytes)}\n{format_bytes(row.b_bytes)}",
            _difference(row.difference_bytes, row.b_bytes),
            f"{row.a_kind}\n{row.b_kind}",
        ]
        if with_framework:
            own = row.framework
            cells.append(f"{_framework(own, 'a')}\n{_framework(own, 'b')}")
        table.add_row(plain(row.name), *cells)
    return table


def _framework(row: PeakRow | None, side: str) -> str:
    if row is None:
        return "—"
    count, kind = (row.a_bytes, row.a_kind) if side == "a" else (row.b_bytes, row.b_kind)
    return format_bytes(count) + (" (or before)" if kind == "upper bound" else "")


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
