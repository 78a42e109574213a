"""A recording's series as arrays, ready to be drawn: on common times, gaps as NaN."""

from __future__ import annotations

from typing import Any, NamedTuple

from memgauge.columns import MISSING
from memgauge.errors import missing_extra
from memgauge.explain.samples import STANDS
from memgauge.storage import RunFile

GAP = 5  # intervals: what is longer apart is drawn as a gap


class Curve(NamedTuple):
    """One series: times in seconds of the run and values, both of shape (points,)."""

    times: Any
    values: Any


class Lane(NamedTuple):
    """All series of one lane on the lane's own times; NaN where one was not there."""

    times_us: Any  # shape (ticks,)
    series: dict[int, Any]  # series id -> shape (ticks,)


def numpy() -> Any:
    """Return numpy.

    Raises:
        MissingError: It is not installed.
    """
    try:
        import numpy as np
    except ModuleNotFoundError as error:
        raise missing_extra("numpy", "report") from error
    return np


def read_lane(run: RunFile, lane: str, begin_us: int | None, end_us: int | None) -> Lane:
    """Return one lane of a recording, or of a span of it."""
    np = numpy()
    chunks = [chunk for _, chunk in run.chunks(lane, begin_us, end_us)]
    sizes = [len(c.times_us) for c in chunks]
    total = sum(sizes)
    times = (
        np.concatenate([np.frombuffer(c.times_us, np.int64) for c in chunks])
        if chunks
        else np.zeros(0, np.int64)
    )
    series: dict[int, Any] = {}
    start = 0
    for chunk, size in zip(chunks, sizes, strict=True):
        for number, first, values in chunk.columns:
            row = series.get(number)
            if row is None:
                row = series[number] = np.full(total, np.nan, np.float64)
            piece = np.frombuffer(values, np.int64).astype(np.float64)
            piece[piece == MISSING] = np.nan
            row[start + first : start + first + len(piece)] = piece
        start += size
    if begin_us is not None or end_us is not None:
        inside = np.ones(total, bool)
        if begin_us is not None:
            inside &= times >= begin_us
        if end_us is not None:
            inside &= times <= end_us
        times, series = times[inside], {k: v[inside] for k, v in series.items()}
    return Lane(times, series)


def with_gaps(times_us: Any, values: Any, interval_us: float | None = None) -> Curve:
    """Return a curve in seconds with a NaN wherever samples are missing for longer than `GAP` intervals.

    Args:
        times_us: Shape (points,).
        values: Shape (points,).
        interval_us: Between two samples; the median of what is between these if None.
    """
    np = numpy()
    if len(times_us) < 2:
        return Curve(times_us / 1e6, values)
    steps = np.diff(times_us)
    interval_us = np.median(steps) if interval_us is None else interval_us
    holes = np.flatnonzero(steps > GAP * max(interval_us, 1))
    if not len(holes):
        return Curve(times_us / 1e6, values)
    times = np.insert(times_us.astype(np.float64), holes + 1, times_us[holes] + steps[holes] / 2)
    return Curve(times / 1e6, np.insert(values, holes + 1, np.nan))


def standing(
    times_us: Any, values: Any, interval_us: float, shown: tuple[int, int], most: Curve | None = None
) -> Curve:
    """Return a curve of readings each of which stands until the next one, to be drawn in steps over a span.

    At the sides of the span, where there may be no reading, it has a point with what stands there.

    Args:
        times_us: Of all readings, also of those outside the span; shape (points,).
        values: Shape (points,).
        interval_us: Between two looks; no reading stands for longer than `GAP` of them.
        shown: The span, in µs.
        most: What the values cannot be above; a reading stands for as long as it is not.
    """
    np = numpy()
    curve = with_gaps(times_us, values, interval_us)
    if most is not None and len(curve.times) and len(most.times):
        curve = _while_possible(curve, most, GAP * interval_us / 1e6)
    times, found = curve
    begin, end = shown[0] / 1e6, shown[1] / 1e6
    first, last = int(np.searchsorted(times, begin)), int(np.searchsorted(times, end, "right"))
    inside, kept = times[first:last], found[first:last]

    def stands_at(time: float, later: int) -> bool:
        """Return whether the reading before `later` stands at a time, at which there is none."""
        if not later or np.isnan(found[later - 1]) or times[later - 1] == time:
            return False
        if later < len(times):
            return bool(times[later] != time and not np.isnan(found[later]))
        return bool(1e6 * (time - times[later - 1]) <= GAP * interval_us)

    if stands_at(begin, first):
        inside, kept = np.r_[begin, inside], np.r_[found[first - 1], kept]
    if stands_at(end, last):
        inside, kept = np.r_[inside, end], np.r_[kept, found[last - 1]]
    return Curve(inside, kept)


def _while_possible(curve: Curve, most: Curve, longest_s: float) -> Curve:
    """Return a curve of readings in which each that comes to lie above the most ends where it last did not.

    Args:
        curve: The readings, with gaps.
        most: What they cannot be above, read at other times.
        longest_s: For how long a reading stands.
    """
    np = numpy()
    times, values = curve
    reading = np.searchsorted(times, most.times, "right") - 1  # the one that stands, -1 before the first
    above = np.flatnonzero((reading >= 0) & (values[reading] > most.values * (1 + 1 / STANDS)))
    which, first = np.unique(reading[above], return_index=True)
    found = above[first]
    ends = np.maximum(times[which], most.times[np.maximum(found - 1, 0)])
    is_followed = ~np.isnan(np.r_[values, 0.0][which + 1])  # no gap begins at the reading anyway
    here = is_followed & (ends - times[which] <= longest_s)
    which, ends, found = which[here], ends[here], found[here]
    held = ends > times[which]
    at = np.r_[which[held], which] + 1
    order = np.argsort(at, kind="stable")  # where a reading was held, that comes before its end
    new_times = np.r_[ends[held], (ends + most.times[found]) / 2]
    new_values = np.r_[values[which[held]], np.full(len(which), np.nan)]
    return Curve(
        np.insert(times, at[order], new_times[order]), np.insert(values, at[order], new_values[order])
    )


def rate(times_us: Any, totals: Any, least_us: int = 0) -> Curve:
    """Return how fast a counter grew, per second, between readings at least `least_us` apart."""
    np = numpy()
    known = ~np.isnan(totals)
    times, values = times_us[known], totals[known]
    if len(times) < 2:
        return Curve(np.zeros(0), np.zeros(0))
    if least_us:
        place = times // least_us
        keep = np.r_[True, place[1:] != place[:-1]]
        times, values = times[keep], values[keep]
    steps = np.diff(times)
    good = steps > 0
    return Curve(times[1:][good] / 1e6, np.diff(values)[good] * 1e6 / steps[good])
