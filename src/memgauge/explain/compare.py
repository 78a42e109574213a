"""Set two accounts side by side and say what explains most of the difference.

Any two of estimate and measurement will do, since both have one shape. A
difference is always A minus B, and a percentage is of B; an unknown figure on
either side leaves both unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

import msgspec

from memgauge.explain.peak import STEADY
from memgauge.records import Account, Category, Estimate, Measurement, Range
from memgauge.units import format_bytes, format_difference

OUTSIDE = "outside every layer"
_KINDS = ("requested", "allocated", "reserved", "tensor", "device", "host")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity on both sides; None where a side does not know it or has no such thing."""

    name: str
    a_bytes: int | None
    b_bytes: int | None
    difference_bytes: int | None
    percent_of_b: float | None


class KindRow(Row, frozen=True, kw_only=True):
    """The peak of one kind of memory; `a_bytes` and `b_bytes` are what is expected of a range."""

    a_range: Range | None = None
    b_range: Range | None = None
    a_unknown: str = ""  # why it is not known
    b_unknown: str = ""


class LayerRow(Row, frozen=True, kw_only=True):
    """What one layer holds at the peak, and the most that it holds at any time."""

    type: str
    a_peak_bytes: int | None
    b_peak_bytes: int | None
    peak_difference_bytes: int | None
    peak_percent_of_b: float | None


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """What one side is and how it came about."""

    kind: str  # "estimate" or "measurement"
    workload: dict[str, object]
    device: dict[str, object]
    steps: int
    threads: int | None
    versions: dict[str, str]
    ended: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.compare/1"):
    """Two accounts side by side; categories and layers are sorted by what explains most of the gap."""

    gap: str
    a: Side
    b: Side
    differs: tuple[str, ...]  # what is not equal in the two set-ups
    kinds: tuple[KindRow, ...]
    phases: tuple[Row, ...]
    categories: tuple[Row, ...]
    layers: tuple[LayerRow, ...]


def compare(a: Account, b: Account) -> Comparison:
    """Return the two accounts side by side.

    Args:
        a: An estimate or a measurement.
        b: What it is compared with: differences are `a - b`, percentages are of `b`.
    """
    categories, layers = _categories(a, b), _layers(a, b)
    return Comparison(
        gap=_gap(a, b, categories, layers),
        a=_side(a),
        b=_side(b),
        differs=_differs(a, b),
        kinds=tuple(_kind(name, a, b) for name in _KINDS),
        phases=_phases(a, b),
        categories=categories,
        layers=layers,
    )


def side_names(a: Account | Side, b: Account | Side) -> tuple[str, str]:
    """Return what to call the two sides: `estimate` and `measurement`, or `A` and `B` if alike."""
    one, other = _kind_of(a), _kind_of(b)
    return (one, other) if one != other else ("A", "B")


def _kind_of(account: Account | Side) -> str:
    if isinstance(account, Side):
        return account.kind
    return "measurement" if isinstance(account, Measurement) else "estimate"


def _side(account: Account) -> Side:
    return Side(
        kind=_kind_of(account),
        workload=account.workload,
        device=account.device,
        steps=account.steps,
        threads=account.threads,
        versions=account.versions,
        ended=account.ended if isinstance(account, Measurement) else "completed",
    )


def _difference(a_bytes: int | None, b_bytes: int | None) -> tuple[int | None, float | None]:
    if a_bytes is None or b_bytes is None:
        return None, None
    difference = a_bytes - b_bytes
    return difference, round(100 * difference / b_bytes, 6) if b_bytes else None


def _row(name: str, a_bytes: int | None, b_bytes: int | None) -> Row:
    difference, percent = _difference(a_bytes, b_bytes)
    return Row(name=name, a_bytes=a_bytes, b_bytes=b_bytes, difference_bytes=difference, percent_of_b=percent)


def _kind(name: str, a: Account, b: Account) -> KindRow:
    key = f"{name}_bytes"
    values: tuple[int | Range | None, int | Range | None] = (getattr(a.peak, key), getattr(b.peak, key))
    ranges = [v if isinstance(v, Range) else None for v in values]
    counts = [v.expected if isinstance(v, Range) else v for v in values]
    difference, percent = _difference(*counts)
    return KindRow(
        name=name,
        a_bytes=counts[0],
        b_bytes=counts[1],
        difference_bytes=difference,
        percent_of_b=percent,
        a_range=ranges[0],
        b_range=ranges[1],
        a_unknown=a.unknown.get(f"peak.{key}", "") if counts[0] is None else "",
        b_unknown=b.unknown.get(f"peak.{key}", "") if counts[1] is None else "",
    )


def _phases(a: Account, b: Account) -> tuple[Row, ...]:
    """Peak allocated of each phase in the order of the run; the steady step comes last."""
    of_a, of_b = ({p.name: p.allocated_bytes for p in account.phases} for account in (a, b))
    names = sorted({**of_a, **of_b}, key=lambda name: name == STEADY)
    return tuple(_row(name, of_a.get(name), of_b.get(name)) for name in names)


def _categories(a: Account, b: Account) -> tuple[Row, ...]:
    """Bytes of each category at the two peaks; they add up to the difference of the peaks."""
    known = [c.value for c in Category]
    held = {**a.at_peak.categories, **b.at_peak.categories}
    names = [n for n in known if n in held] + [n for n in held if n not in known]
    rows = (_row(n, _held(a, a.at_peak.categories, n), _held(b, b.at_peak.categories, n)) for n in names)
    return tuple(sorted(rows, key=_size_of_difference))


def _held(account: Account, categories: Mapping[str, int], name: str) -> int | None:
    """What is not listed holds nothing, unless the whole peak is unknown."""
    return None if account.peak.allocated_bytes is None else categories.get(name, 0)


def _layers(a: Account, b: Account) -> tuple[LayerRow, ...]:
    of_a, of_b = ({layer.path: layer for layer in account.layers} for account in (a, b))
    rows = []
    for path in {**of_a, **of_b}:
        layers = (of_a.get(path), of_b.get(path))
        held, highest = [], []
        for account, layer in zip((a, b), layers, strict=True):
            absent = None if account.peak.allocated_bytes is None else 0
            held.append(absent if layer is None or absent is None else sum(layer.at_peak_bytes.values()))
            highest.append(absent if layer is None or absent is None else layer.peak_bytes)
        base = _row(path, *held)
        difference, percent = _difference(*highest)
        row = LayerRow(
            **{name: getattr(base, name) for name in Row.__struct_fields__},
            type=next((layer.type for layer in layers if layer is not None and layer.type), ""),
            a_peak_bytes=highest[0],
            b_peak_bytes=highest[1],
            peak_difference_bytes=difference,
            peak_percent_of_b=percent,
        )
        rows.append(row)
    return tuple(sorted(rows, key=lambda r: (_size_of_difference(r), -abs(r.peak_difference_bytes or 0))))


def _size_of_difference(row: Row) -> int:
    return -abs(row.difference_bytes or 0)


def _gap(a: Account, b: Account, categories: Sequence[Row], layers: Sequence[Row]) -> str:
    """Say in one sentence what explains most of the difference of the two peaks."""
    names = side_names(a, b)
    the_a, the_b = (name if len(name) == 1 else f"the {name}" for name in names)
    for account, name in ((a, the_a), (b, the_b)):
        if account.peak.allocated_bytes is None:
            reason = account.unknown.get("peak.allocated_bytes", "")
            return f"The peaks cannot be compared: {name} has none{f' ({reason})' if reason else ''}."
    a_bytes, b_bytes = a.peak.allocated_bytes or 0, b.peak.allocated_bytes or 0
    difference = a_bytes - b_bytes
    if difference == 0:
        return _equal(a_bytes, categories)
    sentence = (
        f"Peak allocated of {the_a} is {format_difference(difference, b_bytes)} against {the_b}"
        f"{_explained(difference, categories, layers)}"
    )
    if a.at_peak.phase != b.at_peak.phase:
        sentence += f"; {the_a} peaks in {a.at_peak.phase}, {the_b} in {b.at_peak.phase}"
    return f"{sentence}."


def _equal(peak_bytes: int, categories: Sequence[Row]) -> str:
    same = f"Peak allocated is equal to the byte, {format_bytes(peak_bytes)}"
    moved = [r for r in categories if r.difference_bytes]
    if not moved:
        return f"{same}, and so is every category."
    said = ", ".join(f"{r.name} {format_difference(r.difference_bytes, r.b_bytes)}" for r in moved)
    return f"{same}, but not its categories: {said}."


def _explained(difference: int, categories: Sequence[Row], layers: Sequence[Row]) -> str:
    """Name the category and the layer that go furthest in the direction of the difference."""
    found = []
    for rows in (categories, layers):
        sign = 1 if difference > 0 else -1
        most = max(rows, key=lambda r: sign * (r.difference_bytes or 0), default=None)
        if most is None or sign * (most.difference_bytes or 0) <= 0:
            continue
        amount = format_difference(most.difference_bytes, 0)
        if rows is categories:
            found.append(f"mostly {most.name} ({amount})")
        else:
            found.append(f"most of it in layer {most.name} ({amount})" if most.name else f"{OUTSIDE} ({amount})")
    return f": {', '.join(found)}" if found else ""


def _differs(a: Account, b: Account) -> tuple[str, ...]:
    """Name what is not equal in the two set-ups, so that a gap is not blamed on memory alone."""
    facts: list[dict[str, object]] = []
    for account in (a, b):
        fact: dict[str, object] = {"device": account.device.get("name"), "steps": account.steps}
        if account.threads is not None:
            fact["threads"] = account.threads
        facts.append({**fact, **_flat(account.workload), **account.versions})
    lines = [
        f"{key}: {_said(facts[0], key)} against {_said(facts[1], key)}"
        for key in {**facts[0], **facts[1]}
        if facts[0].get(key) != facts[1].get(key) and _matters(key, facts, (a, b))
    ]
    for account, name in zip_longest((a, b), side_names(a, b)):
        if isinstance(account, Measurement) and account.ended != "completed":
            lines.append(f"{name} did not complete: {_first_line(account.ended)}")
    return tuple(lines)


def _matters(key: str, facts: Sequence[Mapping[str, object]], accounts: Iterable[Account]) -> bool:
    """A version or a thread count that one side does not record says nothing."""
    recorded = all(key in f for f in facts)
    optional = key == "threads" or any(key in account.versions for account in accounts)
    return recorded or not optional


def _flat(workload: Mapping[str, object]) -> dict[str, object]:
    """Lift the arguments of a user's function to the level of the options."""
    arguments = workload.get("arguments")
    lifted = {k: v for k, v in workload.items() if k != "arguments"}
    return {**lifted, **arguments} if isinstance(arguments, dict) else {**workload}


def _said(facts: Mapping[str, object], key: str) -> str:
    return str(facts[key]) if key in facts else "nothing"


def _first_line(text: str) -> str:
    """Return the line of a traceback that says what was wrong: its last."""
    return text.strip().splitlines()[-1] if text.strip() else text


__all__ = ["Comparison", "KindRow", "LayerRow", "Row", "Side", "compare", "side_names"]
_ = Estimate
