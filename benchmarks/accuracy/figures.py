"""From rows of results to the figures that docs/accuracy.md states."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from memgauge.device_memory import placement_bytes, widened, within_card
from memgauge.records import Range, Uncertainty

Row = dict[str, Any]
FAILS = 0.2  # the line at which xMem's authors call an estimate failed
_NORMAL = 1.96 * 1.4826  # from the median of deviations to 95 % of a normal distribution
_SMALLEST = 0.25  # share of an environment's networks that show how constant its constant is


def takes_constant(environment: str, kind: str) -> bool:
    """Return whether what was measured holds more than torch's memory, unknown for the environment.

    The context for device figures; for xMem's, modules and handles that are loaded after its first sample.
    """
    return kind == "device" or environment.startswith("xMem")


def _beside(rows: Sequence[Row], kind: str) -> list[tuple[int, int]]:
    """Return (reserved, measured minus reserved) of the build half's undamaged rows."""
    return sorted(
        (said, r["measured"][kind] - said)
        for r in rows
        if "error" not in r and r["half"] == "build" and not r["damaged"] and kind in r["measured"]
        for said in ((r["limited"] if kind == "reserved" else None) or r["reserved"],)
    )


def constant(rows: Sequence[Row], kind: str = "device") -> int:
    """Return what stands for an environment's unknown driver: the median of measured minus reserved.

    From the build half's undamaged rows only.
    """
    known = [beside for _, beside in _beside(rows, kind)]
    return int(statistics.median(known)) if known else 0


def constant_spread(rows: Sequence[Row], beside: int, kind: str = "device") -> int:
    """Return how far the constant is off, 95 %: over the build half's quarter with least reserved.

    By the median of deviations, since some rows are damaged. There the other sources of error are
    small; what remains is that kernels are loaded as they are called.
    """
    off = [abs(found - beside) for _, found in _beside(rows, kind)]
    smallest = off[: max(1, int(_SMALLEST * len(off)))]
    return int(_NORMAL * statistics.median(smallest)) if smallest else 0


def estimate_range(row: Row, kind: str, beside: int, beside_spread: int = 0) -> Range:
    """Return the range of a row as memgauge gives it, with an environment's constant for the context."""
    if kind == "allocated":
        expected = row["allocated"]
    else:
        expected = row["reserved"]
        if kind == "reserved" and row["limited"]:
            expected = row["limited"]
    spread = placement_bytes(expected)
    parts = [Uncertainty(source="placement", low_bytes=spread, high_bytes=spread, basis="")]
    if kind != "allocated":
        up = max(row["high"] - row["reserved"], 0)
        down = max(row["reserved"] - row["low"], 0)
        parts.append(Uncertainty(source="workspaces", low_bytes=down, high_bytes=up, basis=""))
    if kind == "device":
        parts.append(
            Uncertainty(source="context", low_bytes=beside_spread, high_bytes=beside_spread, basis="")
        )
        fits = max(row["usable"], row["allocated"] + beside)  # cached blocks give way where the card ends
        return within_card(widened(min(expected + beside, fits), tuple(parts), at_least=0), row["usable"])
    if kind == "reserved":
        return widened(expected + beside, tuple(parts), at_least=row["allocated"])
    return widened(expected, tuple(parts), at_least=0)


def errors(pairs: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the figures of (predicted, measured) pairs; relative errors in percent of measured."""
    if not pairs:
        return {"n": 0}
    signed = [(p - m) / m for p, m in pairs]
    sizes = sorted(map(abs, signed))
    return {
        "n": len(sizes),
        "median": 100 * statistics.median(sizes),
        "mean": 100 * statistics.mean(sizes),
        "p90": 100 * quantile(sizes, 0.9),
        "p99": 100 * quantile(sizes, 0.99),
        "worst": 100 * sizes[-1],
        "under": 100 * sum(s < 0 for s in signed) / len(signed),
        "failed": 100 * sum(s > FAILS for s in sizes) / len(sizes),
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the ordered values do not exceed."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def coverage(ranges: Sequence[tuple[Range, int]], families: Sequence[str]) -> dict[str, Any]:
    """Return how often ranges held what was measured, with the binomial 95 % interval, width and score.

    `alike` counts every family of architectures once, however many rows it has: what a new one may expect.
    The score is Gneiting and Raftery's interval score (2007, eq. 43) at 95 %, in percent of measured.
    """
    if not ranges:
        return {"n": 0}
    holds = [r.low <= m <= r.high for r, m in ranges]
    inside = sum(holds)
    low, high = binomial(inside, len(ranges))
    by_family: dict[str, list[bool]] = {}
    for family, held in zip(families, holds, strict=True):
        by_family.setdefault(family, []).append(held)
    widths = [(r.high - r.low) / r.expected for r, _ in ranges]
    scores = [((r.high - r.low) + 40 * max(r.low - m, 0) + 40 * max(m - r.high, 0)) / m for r, m in ranges]
    return {
        "n": len(ranges),
        "inside": 100 * inside / len(ranges),
        "interval": (100 * low, 100 * high),
        "alike": 100 * statistics.mean(map(statistics.mean, by_family.values())),
        "width": 100 * statistics.mean(widths),
        "score": 100 * statistics.mean(scores),
    }


def binomial(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share (Wilson 1927)."""
    z = 1.959964
    share = successes / trials
    middle = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return (middle - half) / (1 + z * z / trials), (middle + half) / (1 + z * z / trials)


def verdicts(rows: Sequence[tuple[str, bool]]) -> dict[str, Any]:
    """Return how often `yes` and `no` were right; uncertain ones apart.

    Args:
        rows: What was said (yes, no, uncertain) and whether it ran.
    """
    said = [(v, ran) for v, ran in rows if v != "uncertain"]
    ran = [v == "yes" for v, r in said if r]
    not_ran = [v == "no" for v, r in said if not r]
    shares = [sum(side) / len(side) for side in (ran, not_ran) if side]
    return {
        "n": len(rows),
        "uncertain": 100 * (len(rows) - len(said)) / len(rows) if rows else None,
        "right": 100 * sum(map(sum, (ran, not_ran))) / len(said) if said else None,
        "balanced": 100 * statistics.mean(shares) if shares else None,
    }


def judged(need: Range, capacity: int) -> str:
    """Return yes, no or uncertain for a need against a capacity."""
    return "yes" if need.high <= capacity else "no" if need.low > capacity else "uncertain"


def of_kind(
    rows: Sequence[Row], kind: str, beside: int, by: Callable[[Row], int] | None = None
) -> list[tuple[int, int]]:
    """Return (predicted, measured) pairs of one kind of memory."""
    pairs = []
    for row in rows:
        if kind in row["measured"] and "error" not in row:
            said = estimate_range(row, kind, beside).expected if by is None else by(row)
            pairs.append((said, row["measured"][kind]))
    return pairs
