"""The clock of a run: microseconds since it began, whatever becomes of the system's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

_A_STEP_NS = 500_000_000  # what the wall clock may drift from the monotonic one before it was set


class Clock:
    """Times of one run.

    Args:
        wall_ns: Tells the time of day, in nanoseconds since 1970.
    """

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self.wall_ns = wall_ns
        self.begin()

    def begin(self) -> None:
        """Let the run begin now: what the sampler took to get ready is no part of it."""
        self.origin_ns = time.monotonic_ns()
        self.began_unix_ns = self.wall_ns()
        self._offset_ns = self.began_unix_ns - self.origin_ns

    def now_us(self) -> int:
        return (time.monotonic_ns() - self.origin_ns) // 1000

    def of(self, monotonic_ns: int) -> int:
        """Return a monotonic time in µs of the run."""
        return (monotonic_ns - self.origin_ns) // 1000

    def read_wall(self) -> tuple[int, int]:
        """Return the wall clock, and by how many ns it was set since the last look; 0 if it was not."""
        before = time.monotonic_ns()
        wall = self.wall_ns()
        offset = wall - (before + time.monotonic_ns()) // 2
        moved, self._offset_ns = offset - self._offset_ns, offset
        return wall, moved if abs(moved) > _A_STEP_NS else 0
