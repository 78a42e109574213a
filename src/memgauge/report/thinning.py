"""Curves with fewer points that keep every peak: the lowest and the highest value of each bucket.

Of values that stand until the next one, the last of each bucket too: the next may be many buckets later.
Never a mean, never each n-th value: each could remove the peak, and the peak is what a picture of
memory is for. A gap in the samples stays a gap.
"""

from __future__ import annotations

from typing import Any

MOST_BUCKETS = 20_000  # of one curve


def thin(times: Any, values: Any, buckets: int, *, stand: bool = False) -> tuple[Any, Any]:
    """Return the points that a picture needs: in each bucket the lowest and the highest, in order.

    Args:
        times: Times, ascending; shape (points,).
        values: Values, NaN where there is none; shape (points,).
        buckets: How many buckets of equal time, at most `MOST_BUCKETS`.
        stand: Whether each value is drawn until the next one.
    """
    import numpy as np

    buckets = max(1, min(buckets, MOST_BUCKETS))
    if len(times) <= 2 * buckets:
        return times, values
    keep = [lowest_and_highest(times, values, buckets), [0, len(times) - 1]]
    if stand:
        place = _places(times, buckets)
        keep.append(np.flatnonzero(place[1:] != place[:-1]))
    kept = np.unique(np.concatenate(keep))
    return times[kept], values[kept]


def _places(times: Any, buckets: int) -> Any:
    """Return the bucket of each time."""
    import numpy as np

    since = (times - times[0]).astype(np.float64)
    return np.minimum((since * buckets / (since[-1] or 1)).astype(np.int64), buckets - 1)


def lowest_and_highest(times: Any, values: Any, buckets: int) -> Any:
    """Return the indices of each bucket's lowest and highest value, and of one NaN if it has any."""
    import numpy as np

    place = _places(times, buckets)
    starts = np.flatnonzero(np.r_[True, place[1:] != place[:-1]])
    numbers = np.asarray(values, dtype=np.float64)
    is_gap = np.isnan(numbers)
    order = np.lexsort((numbers, place))  # NaN sorts last within its bucket
    counts = np.diff(np.r_[starts, len(numbers)])
    gaps = np.add.reduceat(is_gap.astype(np.int64), starts)
    lowest = order[starts]
    highest = order[np.maximum(starts + counts - gaps - 1, starts)]
    first_gap = order[np.minimum(starts + counts - gaps, starts + counts - 1)][gaps > 0]
    return np.unique(np.concatenate([lowest, highest, first_gap]))
