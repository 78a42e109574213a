"""The samples of a run file, put together: sums over the tree, one process over time, first and last values."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import add

from memgauge.columns import MISSING, Chunk
from memgauge.storage import RunFile

STANDS = 256  # memory stands while it moves by no more than one part in so many


class Sums:
    """Values of one lane over the run, added up over the tree: `times_us` and as many values each.

    A tick at which some process could not be read has no sum: it would be of the others only.
    """

    def __init__(self, run: RunFile, metric: str = "rss_bytes", lane: str = "fast") -> None:
        wanted = {s.id for s in run.series if s.metric == metric}
        self.times_us: array[int] = array("q")
        self.total: array[int] = array("q")
        for chunk in chunks_of(run, lane) if wanted else ():
            for time_us, total in zip(chunk.times_us, _added(chunk, wanted), strict=True):
                if total is not None:
                    self.times_us.append(time_us)
                    self.total.append(total)

    def highest(self, begin_us: int, end_us: int) -> int | None:
        """Return the highest sum within a span, None if it holds no sample."""
        values = self.total[bisect_left(self.times_us, begin_us) : bisect_right(self.times_us, end_us)]
        return max(values) if values else None

    def nearest(self, time_us: int) -> int:
        """Return the sum whose time is nearest; there must be one."""
        after = bisect_left(self.times_us, time_us)
        around = range(max(0, after - 1), min(after + 1, len(self.total)))
        return min((abs(self.times_us[n] - time_us), self.total[n]) for n in around)[1]


def chunks_of(run: RunFile, lane: str) -> Iterator[Chunk]:
    """Yield the chunks of a lane."""
    for _, chunk in run.chunks(lane):
        yield chunk


def _added(chunk: Chunk, wanted: set[int]) -> list[int | None]:
    """Return the sum of the wanted series at each tick, None where none of them or not all were read."""
    size = len(chunk.times_us)
    total, known = [0] * size, [False] * size
    missing: set[int] = set()
    for series, first, values in chunk.columns:
        if series not in wanted:
            continue
        last = first + len(values)
        if MISSING in values:
            missing.update(place for place, value in enumerate(values, first) if value == MISSING)
        total[first:last] = map(add, total[first:last], values)
        known[first:last] = [True] * len(values)
    for place in missing:
        known[place] = False
    return [t if k else None for t, k in zip(total, known, strict=True)]


class ProcessSamples:
    """The sampled resident size of each process, for phases whose peak no counter has."""

    def __init__(self, run: RunFile) -> None:
        owner = {p.id: p.pid for p in run.processes}
        pid_of = {s.id: owner.get(s.process or 0) for s in run.series if s.metric == "rss_bytes"}
        self._times: dict[int, array[int]] = {}
        self._values: dict[int, array[int]] = {}
        for chunk in chunks_of(run, "fast"):
            for series, first, values in chunk.columns:
                pid = pid_of.get(series)
                if pid is not None:
                    self._values.setdefault(pid, array("q")).extend(values)
                    times = chunk.times_us[first : first + len(values)]
                    self._times.setdefault(pid, array("q")).extend(times)

    def highest(self, pid: int, begin_us: int, end_us: int) -> int | None:
        """Return the highest sample of a process within a span, None if there is none."""
        times = self._times.get(pid)
        if times is None:
            return None
        begin, end = bisect_left(times, begin_us), bisect_right(times, end_us)
        return max(self._values[pid][begin:end], default=None)


def last_values(run: RunFile) -> dict[int, tuple[int, int, int]]:
    """Return first, last and highest value of each series, those that could not be read left out."""
    found: dict[int, tuple[int, int, int]] = {}
    for lane in ("fast", "cpu", "medium", "slow"):
        for chunk in chunks_of(run, lane):
            for series, _, values in chunk.columns:
                known = values if MISSING not in values else array("q", (v for v in values if v != MISSING))
                if known:
                    first, _, highest = found.get(series, (known[0], 0, 0))
                    found[series] = (first, known[-1], max(highest, max(known)))
    return found


def grown(
    lasts: dict[int, tuple[int, int, int]], run: RunFile, metric: str, device: int | None
) -> int | None:
    """Return by how much a counter of the machine or a device grew, None if it was not read."""
    for s in run.series:
        if s.metric == metric and s.device == device and s.id in lasts:
            return lasts[s.id][1] - lasts[s.id][0]
    return None


def median(values: Iterable[int]) -> int | None:
    """Return the median, None of nothing."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None
