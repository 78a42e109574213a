"""Two accounts, quantity by quantity: what A has, what B has, and the difference.

A difference is always A minus B, and a percentage is of B; an unknown figure on
either side leaves both unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from memgauge.explain.peak import STEADY
from memgauge.records import Account, Category, Layer, Range

OUTSIDE = "outside every layer"
ROOT = "the model itself"
_KINDS = ("requested", "allocated", "reserved", "tensor", "device", "pinned", "host")


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


def layer_title(path: str, kind: str) -> str:
    """Return what people call a layer: the empty path is the model itself, if it has a type."""
    return path or (ROOT if kind else OUTSIDE)


def difference(a: int | None, b: int | None) -> tuple[int | None, float | None]:
    """Return `a - b`, and how many percent of `b` that is; None where it is not known."""
    if a is None or b is None:
        return None, None
    return a - b, round(100 * (a - b) / b, 6) if b else None


def _row(name: str, a_bytes: int | None, b_bytes: int | None) -> Row:
    found, percent = difference(a_bytes, b_bytes)
    return Row(name=name, a_bytes=a_bytes, b_bytes=b_bytes, difference_bytes=found, percent_of_b=percent)


def kinds(a: Account, b: Account) -> tuple[KindRow, ...]:
    """Return the peak of each kind of memory; of pinned memory only where one side has some."""
    rows = (_kind(name, a, b) for name in _KINDS)
    return tuple(row for row in rows if row.name != "pinned" or row.a_bytes or row.b_bytes)


def _kind(name: str, a: Account, b: Account) -> KindRow:
    key = f"{name}_bytes"
    values: tuple[int | Range | None, int | Range | None] = (getattr(a.peak, key), getattr(b.peak, key))
    ranges = [v if isinstance(v, Range) else None for v in values]
    counts = [v.expected if isinstance(v, Range) else v for v in values]
    found, percent = difference(*counts)
    return KindRow(
        name=name,
        a_bytes=counts[0],
        b_bytes=counts[1],
        difference_bytes=found,
        percent_of_b=percent,
        a_range=ranges[0],
        b_range=ranges[1],
        a_unknown=a.unknown.get(f"peak.{key}", "") if counts[0] is None else "",
        b_unknown=b.unknown.get(f"peak.{key}", "") if counts[1] is None else "",
    )


def phases(a: Account, b: Account) -> tuple[Row, ...]:
    """Return peak allocated of each phase in the order of the run; the steady step comes last."""
    of_a, of_b = ({p.name: p.allocated_bytes for p in account.phases} for account in (a, b))
    names = sorted({**of_a, **of_b}, key=lambda name: name == STEADY)
    return tuple(_row(name, of_a.get(name), of_b.get(name)) for name in names)


def categories(a: Account, b: Account) -> tuple[Row, ...]:
    """Return the bytes of each category at the two peaks; they add up to the difference of the peaks."""
    known = [c.value for c in Category]
    held = {**a.at_peak.categories, **b.at_peak.categories}
    names = [n for n in known if n in held] + [n for n in held if n not in known]
    rows = (_row(n, _held(a, a.at_peak.categories, n), _held(b, b.at_peak.categories, n)) for n in names)
    return tuple(sorted(rows, key=_size_of_difference))


def _held(account: Account, categories: Mapping[str, int], name: str) -> int | None:
    """What is not listed holds nothing, unless nothing is known of who holds the peak."""
    return categories.get(name, 0) if _is_attributed(account) else None


def _is_attributed(account: Account) -> bool:
    peak_bytes = account.peak.allocated_bytes
    return peak_bytes == 0 or (peak_bytes is not None and bool(account.at_peak.categories))


def layers(a: Account, b: Account) -> tuple[LayerRow, ...]:
    """Return what each layer holds at the two peaks, and at its own highest."""
    of_a, of_b = ({layer.path: layer for layer in account.layers} for account in (a, b))
    rows = [_layer(path, (a, of_a.get(path)), (b, of_b.get(path))) for path in {**of_a, **of_b}]
    return tuple(sorted(rows, key=lambda r: (_size_of_difference(r), -abs(r.peak_difference_bytes or 0))))


def _layer(path: str, a: tuple[Account, Layer | None], b: tuple[Account, Layer | None]) -> LayerRow:
    (a_held, a_highest), (b_held, b_highest) = _of_layer(*a), _of_layer(*b)
    held, held_percent = difference(a_held, b_held)
    highest, highest_percent = difference(a_highest, b_highest)
    return LayerRow(
        name=path,
        type=next((layer.type for _, layer in (a, b) if layer is not None and layer.type), ""),
        a_bytes=a_held,
        b_bytes=b_held,
        difference_bytes=held,
        percent_of_b=held_percent,
        a_peak_bytes=a_highest,
        b_peak_bytes=b_highest,
        peak_difference_bytes=highest,
        peak_percent_of_b=highest_percent,
    )


def _of_layer(account: Account, layer: Layer | None) -> tuple[int | None, int | None]:
    """Bytes at the peak and at the layer's own highest; a layer that is not there holds nothing."""
    if not _is_attributed(account):
        return None, None
    return (sum(layer.at_peak_bytes.values()), layer.peak_bytes) if layer is not None else (0, 0)


def _size_of_difference(row: Row) -> int:
    return -abs(row.difference_bytes or 0)
