"""Formula against trace, every byte of the difference under a name."""

from __future__ import annotations

from memgauge.formula.records import Both
from memgauge.reproduce.records import Cell, Section, Table
from memgauge.units import format_bytes


def gap_section(title: str, found: Both, *notes: str) -> Section:
    """Return the itemised difference of one network, its sum in the last row."""
    rows: list[tuple[Cell, ...]] = [
        (item.category, item.name, item.gap_bytes, item.why) for item in found.gap
    ]
    sides = f"{format_bytes(found.trace_bytes)} − {format_bytes(found.formula_bytes)}"
    rows.append(("total", "trace minus formula", found.difference_bytes, sides))
    return Section(
        title=f"Where formula and trace differ: {title}",
        table=Table(columns=("category", "what", "difference_bytes", "why"), rows=tuple(rows)),
        notes=notes,
    )
