"""What each lane reads when it is due: the readings of one round, in their order."""

from __future__ import annotations

import time
from collections.abc import Callable

from memgauge.monitor.devices import DeviceReadings
from memgauge.monitor.lanes import Pace, budget_for, in_step
from memgauge.monitor.notes import Notes
from memgauge.monitor.peaks import Peaks
from memgauge.monitor.readings import GroupReadings, MachineReadings, ProcessReadings
from memgauge.monitor.tracked import Tracked
from memgauge.monitor.tree import Tree
from memgauge.storage import RunWriter
from memgauge.units import format_duration

CPU_NS = 100_000_000  # who has run is read by /proc/PID/stat too, at three times what its memory takes
MEDIUM_NS, SLOW_NS = 250_000_000, 1_000_000_000
_AFTER_BOUNDARY_NS = 200_000_000  # how soon the slow lane looks after a phase has begun or ended


class Rounds:
    """The four lanes of a recording.

    Args:
        writer: Gets the time of each round.
        tree: The processes that are followed.
        notes: Is told when a lane slows down, and which processes may not be read.
        processes, machine, devices, peaks: What is read.
        lose: Is called with processes that a reading found gone, and the time.
        look_again: Is called with the time before each reading of the slow lane.
    """

    def __init__(
        self,
        writer: RunWriter,
        tree: Tree,
        notes: Notes,
        *,
        processes: ProcessReadings,
        machine: MachineReadings,
        devices: DeviceReadings,
        peaks: Peaks,
        lose: Callable[[list[Tracked], int], None],
        look_again: Callable[[int], None],
    ) -> None:
        self._tree, self._notes, self._lose, self._look_again = tree, notes, lose, look_again
        self._processes, self._machine, self._devices, self._peaks = processes, machine, devices, peaks
        self._times = {name: writer.lane(name).times_us for name in ("fast", "cpu", "medium", "slow")}
        self.group = GroupReadings(writer, None)
        self.paces: list[Pace] = []

    def open(self, interval_ns: int, budget: float | None) -> None:
        """Set the pace of each lane.

        Args:
            interval_ns: Of the fast lane; the others keep in step with it.
            budget: Share of one core that each may take, None for what is usual.
        """

        def pace(name: str, least_ns: int, read: Callable[[int], None]) -> Pace:
            allowed = budget_for(max(interval_ns, least_ns), budget)
            return Pace(name, in_step(interval_ns, least_ns), allowed, read, self._slowed)

        self.paces = [
            pace("fast", interval_ns, self._read_fast),
            pace("cpu", CPU_NS, self._read_cpu),
            pace("medium", MEDIUM_NS, self._read_medium),
            pace("slow", SLOW_NS, self._read_slow),
        ]

    def look_soon(self) -> None:
        """Let the slow lane look before it is due, since a phase has begun or ended."""
        slow = self.paces[3]
        slow.due_ns = min(slow.due_ns, time.monotonic_ns() + _AFTER_BOUNDARY_NS)

    def read_peaks(self, now_us: int, since_ns: int) -> None:
        """Read peaks for the next commit, if their lane is asked for too rarely to have them there.

        Args:
            now_us: The time.
            since_ns: How long ago the last commit was; of that the medium lane's budget is spent at most.
        """
        medium = self.paces[2]
        if medium.asked_ns > 2 * MEDIUM_NS:
            self._peaks.read_oldest(now_us, int(medium.budget * since_ns))
            self.group.keep_peak(self._peaks.group_bytes)

    def account(self) -> dict[str, dict[str, int]]:
        """Return what was asked of each lane, and what came of it."""
        return {pace.name: pace.account() for pace in self.paces}

    def _read_fast(self, now_us: int) -> None:
        self._tree.look(now_us)
        gone = self._processes.read_fast()
        self._machine.read_fast(self._processes.have_moved)
        self._devices.read_fast()
        self._times["fast"].append(now_us)
        if gone:
            self._lose(gone, now_us)

    def _read_cpu(self, now_us: int) -> None:
        gone = self._processes.read_cpu()
        self._times["cpu"].append(now_us)
        if gone:
            self._lose(gone, now_us)

    def _read_medium(self, now_us: int) -> None:
        self._machine.read_medium()
        self._devices.read_medium()
        self._times["medium"].append(now_us)
        self._peaks.read_changed(now_us)
        if self._processes.shares_are_behind():
            _, _, medium, slow = self.paces
            slow.due_ns = medium.due_ns  # at once, and in step with the others

    def _read_slow(self, now_us: int) -> None:
        self._tree.look_through_table()
        self._look_again(now_us)
        if self._tree.refused:
            self._say_refused()
        self._processes.read_slow(now_us)
        self.paces[3].aside_ns += self._processes.shares_took_ns
        self._machine.read_slow()
        self.group.read_slow(self._peaks.group_bytes)
        self._times["slow"].append(now_us)

    def _say_refused(self) -> None:
        no_more = "descriptors" in self._tree.refused
        remedy = (
            "raise the limit: ulimit -n 65536" if no_more else "run memgauge as the same user, or as root"
        )
        self._notes.say("processes", self._tree.refused, remedy)
        self._tree.refused = ""

    def _slowed(self, pace: Pace, share: float) -> None:
        is_slower = share > pace.budget
        is_back = pace.interval_ns == pace.asked_ns
        what = "slowed down" if is_slower else "is back at what was asked" if is_back else "is faster again"
        self._notes.say(
            "budget",
            f"the {pace.name} lane {what}: {format_duration(pace.interval_ns / 1000)} between readings "
            f"(it took {100 * share:.2g} % of a core, its budget is {100 * pace.budget:g} %)",
            "--budget allows more; --interval asks for less" if not is_back else "",
            again=True,
        )
