"""The clock of a run: microseconds since it began, whatever becomes of the system's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from memgauge.monitor.processes import TICK_US

_A_STEP_NS = 500_000_000  # what the wall clock may drift from the monotonic one before it was set


class Clock:
    """Times of one run.

    Args:
        wall_ns: Tells the time of day, in nanoseconds since 1970.
    """

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self.wall_ns = wall_ns
        self.origin_ns = time.monotonic_ns()
        self.began_unix_ns = wall_ns()
        self._offset_ns = self.began_unix_ns - self.origin_ns

    def now_us(self) -> int:
        return (time.monotonic_ns() - self.origin_ns) // 1000

    def of(self, monotonic_ns: int) -> int:
        """Return a monotonic time in µs of the run."""
        return (monotonic_ns - self.origin_ns) // 1000

    def born_us(self, started_ticks: int) -> int:
        """Return when a process began, in µs of the run; as coarse as the kernel's clock tick.

        Args:
            started_ticks: Clock ticks since boot, as /proc/PID/stat gives them.
        """
        since_boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        slept_ns = since_boot_ns - time.monotonic_ns()
        return started_ticks * TICK_US - (self.origin_ns + slept_ns) // 1000

    def read_wall(self, now_us: int) -> tuple[int, int]:
        """Return the wall clock, and by how many ns it was set since the last look; 0 if it was not."""
        wall = self.wall_ns()
        offset = wall - self.origin_ns - now_us * 1000
        moved, self._offset_ns = offset - self._offset_ns, offset
        return wall, moved if abs(moved) > _A_STEP_NS else 0
