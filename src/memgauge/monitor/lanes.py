"""When what is read: lanes with an interval, a budget of CPU time, and their own account of both."""

from __future__ import annotations

import time
from collections.abc import Callable

BUDGET = 0.02  # of one core, for each lane
FAST_BUDGET = 0.08  # for an interval under 10 ms, which is asked for on purpose
_WINDOW_NS = 1_000_000_000  # the cost is judged once in this time
_SLOWEST_NS = 60_000_000_000


def budget_for(interval_ns: int, asked: float | None) -> float:
    """Return the share of one core that a lane with this interval may take."""
    if asked is not None:
        return asked
    return FAST_BUDGET if interval_ns < 10_000_000 else BUDGET


def in_step(interval_ns: int, least_ns: int) -> int:
    """Return the shortest multiple of an interval that is not under `least_ns`.

    Lanes that are due together share one wake-up; what is read from a cold cache costs three times as much.
    """
    return -(-least_ns // interval_ns) * interval_ns


class Pace:
    """One lane: runs `read(now_us)` every `interval_ns`, more slowly while it costs too much.

    Args:
        name: The lane's name.
        interval_ns: The interval that was asked for.
        budget: Share of one core.
        read: Reads and keeps everything of this lane.
        changed: Is told the new interval in ns whenever it changes, and the share that made it so.
    """

    def __init__(
        self,
        name: str,
        interval_ns: int,
        budget: float,
        read: Callable[[int], None],
        changed: Callable[[Pace, float], None],
    ) -> None:
        self.name = name
        self.asked_ns = self.interval_ns = interval_ns
        self.budget = budget
        self.due_ns = 0
        self.ticks = 0
        self.aside_ns = 0  # CPU time of readings that have a budget of their own
        self.late = 0  # ticks that were skipped, since the one before them came too late
        self.read = read
        self._changed = changed
        # A look at the CPU clock is a call of the kernel's, as a reading is: of many ticks some are enough. Odd
        # numbers, so that what is done every second or tenth tick falls on both.
        self._measured_each = 7 if interval_ns <= 20_000_000 else 3 if interval_ns <= 100_000_000 else 1
        self._window_ticks = 0  # of those whose cost was measured
        self._window_cost_ns = 0
        self._window_end_ns = 0

    def run(self, now_ns: int, now_us: int) -> None:
        """Read once, and set the time for the next."""
        if self.ticks % self._measured_each and self.interval_ns == self.asked_ns:
            self.read(now_us)
        else:
            began, self.aside_ns = time.thread_time_ns(), 0
            self.read(now_us)
            self._window_cost_ns += time.thread_time_ns() - began - self.aside_ns
            self._window_ticks += 1
        self.ticks += 1
        self.due_ns += self.interval_ns
        if self.due_ns <= now_ns:  # too late for some: they are skipped, and the lanes stay in step
            skipped = (now_ns - self.due_ns) // self.interval_ns + 1
            self.due_ns += skipped * self.interval_ns
            if self.ticks > 1:
                self.late += skipped
        if now_ns >= self._window_end_ns:
            self._judge(now_ns)

    def account(self) -> dict[str, int]:
        """Return what was asked and what came of it."""
        return {
            "asked_ns": self.asked_ns,
            "interval_ns": self.interval_ns,
            "ticks": self.ticks,
            "skipped": self.late,
        }

    def _judge(self, now_ns: int) -> None:
        cost_ns = self._window_cost_ns // max(1, self._window_ticks)
        is_first = self._window_end_ns == 0
        enough = self._window_ticks >= 3
        if not is_first and not enough:
            return
        self._window_end_ns = now_ns + _WINDOW_NS
        self._window_ticks = self._window_cost_ns = 0
        if is_first:  # opening files and finding devices is paid once
            return
        affordable_ns = min(int(cost_ns / self.budget), _SLOWEST_NS)
        if affordable_ns > self.interval_ns * 1.1:
            self._change(affordable_ns, cost_ns)
        elif self.interval_ns > self.asked_ns and affordable_ns < self.interval_ns // 2:
            self._change(max(self.asked_ns, affordable_ns), cost_ns)

    def _change(self, interval_ns: int, cost_ns: int) -> None:
        share = cost_ns / self.interval_ns
        self.interval_ns = interval_ns
        self._changed(self, share)
