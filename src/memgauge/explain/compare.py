"""Set two accounts side by side and say what explains most of the difference.

Any two of estimate and measurement will do, since both have one shape. A
difference is always A minus B, and a percentage is of B; an unknown figure on
either side leaves both unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from memgauge.explain import rows
from memgauge.explain.rows import KindRow, LayerRow, Row, layer_title
from memgauge.records import Account, Measurement
from memgauge.units import format_bytes, format_difference
from memgauge.usercode import what_was_raised

AnyRow = TypeVar("AnyRow", bound=Row)


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
    categories, layers = rows.categories(a, b), rows.layers(a, b)
    return Comparison(
        gap=_gap(a, b, categories, layers),
        a=_side(a),
        b=_side(b),
        differs=_differs(a, b),
        kinds=rows.kinds(a, b),
        phases=rows.phases(a, b),
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


def _gap(a: Account, b: Account, categories: Sequence[Row], layers: Sequence[LayerRow]) -> str:
    """Say in one sentence what explains most of the difference of the two peaks."""
    names = side_names(a, b)
    the_a, the_b = (name if len(name) == 1 else f"the {name}" for name in names)
    hosts = [
        None if account.peak.host_bytes is None else account.peak.host_bytes.expected for account in (a, b)
    ]
    if None in (a.peak.allocated_bytes, b.peak.allocated_bytes) and None not in hosts:
        knows = a.peak.allocated_bytes is not None or b.peak.allocated_bytes is not None
        return _of_hosts(the_a, the_b, *(h for h in hosts if h is not None), on="one" if knows else "neither")
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


def _of_hosts(the_a: str, the_b: str, a_bytes: int, b_bytes: int, *, on: str) -> str:
    """Say how the resident peaks differ, where that is what both sides know."""
    if a_bytes == b_bytes:
        return f"Peak resident memory is equal, {format_bytes(a_bytes)}; allocated is known on {on} side."
    difference = format_difference(a_bytes - b_bytes, b_bytes)
    return (
        f"Peak resident memory of {the_a} is {difference} against {the_b}; allocated is known on {on} side."
    )


def _equal(peak_bytes: int, categories: Sequence[Row]) -> str:
    same = f"Peak allocated is equal to the byte, {format_bytes(peak_bytes)}"
    moved = [r for r in categories if r.difference_bytes]
    if not moved:
        return f"{same}, and so is every category."
    said = ", ".join(f"{r.name} {format_difference(r.difference_bytes, r.b_bytes)}" for r in moved)
    return f"{same}, but not its categories: {said}."


def _explained(difference: int, categories: Sequence[Row], layers: Sequence[LayerRow]) -> str:
    """Name the category and the layer that go furthest in the direction of the difference."""
    sign = 1 if difference > 0 else -1
    category, layer = _furthest(categories, sign), _furthest(layers, sign)
    said = f": {category.name} explains most of it ({_amount(category)})" if category else ""
    if layer:
        said += f"{',' if said else ':'} by layer {layer_title(layer.name, layer.type)} ({_amount(layer)})"
    return said


def _furthest(candidates: Sequence[AnyRow], sign: int) -> AnyRow | None:
    most = max(candidates, key=lambda r: sign * (r.difference_bytes or 0), default=None)
    return most if most is not None and sign * (most.difference_bytes or 0) > 0 else None


def _amount(row: Row) -> str:
    return format_difference(row.difference_bytes, 0)


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
        if _text(facts[0].get(key)) != _text(facts[1].get(key)) and _matters(key, facts, (a, b))
    ]
    for account, name in zip((a, b), side_names(a, b), strict=True):
        if isinstance(account, Measurement) and account.ended != "completed":
            lines.append(f"{name} did not complete: {what_was_raised(account.ended)}")
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
    return _text(facts[key]) if key in facts else "nothing"


def _text(value: object) -> str:
    """A tuple that went through JSON comes back as a list; both read the same."""
    return str(list(value)) if isinstance(value, tuple) else str(value)


__all__ = ["Comparison", "KindRow", "LayerRow", "Row", "Side", "compare", "side_names"]
