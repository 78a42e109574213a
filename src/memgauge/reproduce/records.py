"""One original number beside ours, and why they differ; tables of them; one text as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal

import msgspec

Cell = int | float | str | None

EQUAL, CUT_OFF, DIFFERS, READING, OURS_ONLY = "equal", "equal, cut off", "differs", "our reading", "ours only"
VERDICTS = {
    EQUAL: "to their decimals",
    CUT_OFF: "they dropped digits instead of rounding",
    DIFFERS: "the reason says why",
    READING: "something in ours was chosen so that it gives theirs: agreement proves nothing",
    OURS_ONLY: "a number that they do not have",
}


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One number of the original beside ours.

    Attributes:
        what: What the number is of.
        theirs: As printed in the original; None where only we give a number.
        ours: Ours in the original's unit and with its decimals.
        verdict: One of `VERDICTS`.
        exact: Ours before rounding, in `exact_unit`.
        exact_unit: `bytes`, `parameters`, `elements`, `layers`, `times`.
        why: The reason for a difference, or what the number leaves out.
    """

    what: str
    theirs: str | None
    ours: str
    verdict: str
    exact: int | float
    exact_unit: str
    why: str


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers side by side; a column named `…_bytes` holds bytes."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a text: claims, a table, or both, and what was assumed for them."""

    title: str
    claims: tuple[Claim, ...] = ()
    table: Table | None = None
    notes: tuple[str, ...] = ()


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """One text, its numbers made again."""

    name: str
    title: str
    author: str
    year: int | None
    source: str
    sections: tuple[Section, ...]


class Reproductions(msgspec.Struct, frozen=True, tag_field="schema", tag="memgauge.reproductions/1"):
    """Every text that was asked for."""

    texts: tuple[Reproduction, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """What a unit's name means in a text: `MB` may be 10^6, 2^20 or 1,024,000 bytes; `per` of it are `size`."""

    name: str
    size: int
    meaning: str
    exact_unit: str = "bytes"
    per: int = 1


MB = Unit("MB", 10**6, "MB = 10^6 bytes")
MB_BINARY = Unit("MB", 2**20, "MB = 2^20 bytes, that is MiB")
MB_MIXED = Unit("MB", 1024 * 1000, "MB = 1024 × 1000 bytes")
GB = Unit("GB", 10**9, "GB = 10^9 bytes")
GB_MIXED = Unit("GB", 1024 * 10**6, "GB = 1024 × 10^6 bytes")
KB = Unit("KB", 10**3, "KB = 10^3 bytes")
KB_BINARY = Unit("KB", 2**10, "KB = 2^10 bytes, that is KiB")
MILLION = Unit("million", 10**6, "", "parameters")
PARAMETERS = Unit("", 1, "", "parameters")
ELEMENTS = Unit("", 1, "", "elements")
LAYERS = Unit("", 1, "", "layers")
TIMES = Unit("×", 1, "", "times")
NUMBER = Unit("", 1, "", "number")


def claim(
    what: str,
    theirs: str,
    ours: int | float,
    unit: Unit,
    why: str = "",
    *,
    is_reading: bool = False,
    is_cut: bool = True,
) -> Claim:
    """Set one printed number beside ours; whether they agree is computed, to their decimals.

    Args:
        what: What the number is of.
        theirs: The printed number without its unit: `224.69`, `1,792`.
        ours: Ours, in `unit.exact_unit`.
        unit: What their unit means.
        why: The reason for a difference; the unit's meaning is added.
        is_reading: Whether something in ours was inferred from theirs.
        is_cut: Whether they may have cut digits off; False where they are known to have rounded.
    """
    number = Decimal(theirs.replace(",", ""))
    places = Decimal(1).scaleb(int(number.as_tuple().exponent))
    value = Decimal(ours) * unit.per / unit.size
    rounded, cut = (value.quantize(places, rounding=how) for how in (ROUND_HALF_UP, ROUND_DOWN))
    agrees = EQUAL if rounded == number else CUT_OFF if is_cut and cut == number else DIFFERS
    verdict = READING if is_reading and agrees != DIFFERS else agrees
    label = f" {unit.name}" if unit.name else ""
    return Claim(
        what=what,
        theirs=f"{theirs}{label}",
        ours=f"{rounded:,}{label}",
        verdict=verdict,
        exact=ours,
        exact_unit=unit.exact_unit,
        why="; ".join(part for part in (unit.meaning, why) if part),
    )


def ours_only(what: str, ours: int | float, unit: Unit, why: str = "", *, digits: int = 2) -> Claim:
    """Return a number that the text does not have but that its reader needs."""
    value = Decimal(ours) * unit.per / unit.size
    label = f" {unit.name}" if unit.name else ""
    text = f"{value:,.{digits}f}" if unit.size > 1 or isinstance(ours, float) else f"{int(ours):,}"
    return Claim(
        what=what,
        theirs=None,
        ours=f"{text}{label}",
        verdict=OURS_ONLY,
        exact=ours,
        exact_unit=unit.exact_unit,
        why="; ".join(part for part in (unit.meaning, why) if part),
    )


def totals_of(rows: Sequence[tuple[Cell, ...]], *columns: int) -> tuple[int, ...]:
    """Return the sums of the whole numbers in these columns of a table."""
    return tuple(sum(cell for row in rows if isinstance(cell := row[i], int)) for i in columns)
