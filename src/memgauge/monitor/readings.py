"""What the lanes read of processes and of the machine, and the columns that it goes to."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from memgauge.monitor.cgroup import Group
from memgauge.monitor.clock import Clock
from memgauge.monitor.notes import Notes
from memgauge.monitor.processes import PAGE, SCHEDULER_TICK_NS, has_tickless_cpus
from memgauge.monitor.system import System
from memgauge.monitor.tracked import Tracked
from memgauge.monitor.tree import Tree
from memgauge.storage import MISSING, Lane, PeakRow, RunWriter

SHARES_BUDGET = 0.02  # share of a core for PSS and USS: reading them holds the target's memory map
SHARES_AHEAD_US = 100_000  # what may be spent of it in advance, so that short runs are read each second
SHARES_STEP = 1 / 256  # of the tree's resident memory: what may move before shares are read again at once,
SHARES_STAND_US = 10_000_000  # and how long a reading stands if less than that has moved
# Of the tree's resident memory, what may move before shares are read out of turn: with everything spent of what
# may be spent in advance, and with nothing; between the two it goes with what is spent.
SHARES_BEHIND, SHARES_BEHIND_AT_BEST = 1 / 4, 1 / 16
# How long a reading of the system's memory stands while the tree's has not moved:
SYSTEM_STANDS_NS = 50_000_000


class ProcessReadings:
    """Resident memory, CPU time, shares of pages and counts of every process of the tree.

    Args:
        writer: Has the lanes fast, cpu and slow.
        tree: The processes that are followed.
        notes: Is told what may not be read.
        interval_ns: Of the lane fast. From two scheduler ticks on, who has not run is not read again.
    """

    def __init__(self, writer: RunWriter, tree: Tree, notes: Notes, interval_ns: int) -> None:
        self._writer, self._tree, self._notes = writer, tree, notes
        self._fast, self._cpu, self._slow = (writer.lane(name) for name in ("fast", "cpu", "slow"))
        self._gone_lately: list[Tracked] = []  # since the last reading of CPU time
        self._shares_left_us, self._looked_us = float(SHARES_AHEAD_US), 0
        self._state: list[tuple[int, int, int]] = []  # id, faults, resident of all, when shares were read
        self._read_us = 0
        self.shares_took_ns = 0  # of CPU, at the last reading of the slow lane
        self._refused: set[str] = set()  # what may not be read of some process
        # Who has run is known as of the last scheduler tick, which no CPU without ticks tells.
        self._skips_sleepers = interval_ns >= 2 * SCHEDULER_TICK_NS and not has_tickless_cpus()
        self.have_moved = True  # whether the last reading found other resident memory than the one before

    def begin(self, process: Tracked) -> None:
        """Open the columns of a process that joined."""
        rss = self._writer.add_series("fast", "rss_bytes", process.instrument, process=process.id)
        process.resident = self._fast.column(rss)
        cpu = self._writer.add_series(
            "cpu", "cpu_ns", process.cpu_instrument, process=process.id, refresh_us=process.cpu_refresh_us
        )
        process.cpu = self._cpu.column(cpu)
        process.series += [(self._fast, rss), (self._cpu, cpu)]

    def end(self, process: Tracked) -> None:
        """Close the columns of a process that is gone."""
        for lane, series in process.series:
            lane.close_column(series)
        self._gone_lately.append(process)

    def read_fast(self) -> list[Tracked]:
        """Read what is resident; returns who is gone.

        Who has not run has touched nothing. What others do to a sleeper (they swap it out, write into it, share its
        memory) is seen once `read_highest` was called.
        """
        gone: list[Tracked] = []
        moved, skips, time_of = bool(self._gone_lately), self._skips_sleepers, time.clock_gettime_ns
        for process in self._tree.live.values():
            try:
                if process.lender is not None and process.is_lent_memory():
                    process.resident.append(0)  # it is in the lender's
                    continue
                if skips and process.clock is not None:
                    ran_ns = time_of(process.clock)
                    if ran_ns == process.ran_ns:
                        process.resident.append(process.resident_bytes)
                        continue
                    process.ran_ns = ran_ns
                resident = process.read_resident()
                if resident == 0:
                    if process.is_over():
                        gone.append(process)
                        continue
                    process.follow_other_thread()
                    resident = process.read_resident()
            except OSError:
                gone.append(process)
                continue
            if resident != process.resident_bytes:
                process.resident_bytes = resident
                moved = True
            process.resident.append(resident)
        self.have_moved = moved or bool(gone)
        return gone

    def read_cpu(self) -> list[Tracked]:
        """Read CPU times; returns who is gone."""
        gone = []
        for process in self._tree.live.values():
            try:
                cpu_ns, childrens_faults = process.read_counts()
            except OSError:
                gone.append(process)
                continue
            process.cpu.append(cpu_ns)
            if childrens_faults != process.children_faults:
                self._tree.account_for_children(process, childrens_faults, self._gone_lately)
        self._gone_lately = []
        return gone

    def read_slow(self, now_us: int) -> None:
        """Read shares, where they may have changed and the budget allows it, and counts."""
        processes = list(self._tree.live.values())
        state = [(p.id, sum(p.faults), p.resident_bytes) for p in processes]
        earned = (now_us - self._looked_us) * SHARES_BUDGET
        self._shares_left_us = min(SHARES_AHEAD_US, self._shares_left_us + earned)
        self._looked_us = now_us
        stand = self._still_stand(state, now_us)
        may_read = self._shares_left_us > 0
        began = time.thread_time_ns()
        for process in processes:
            self._read_slow_of(process, stand, may_read)
        self.shares_took_ns = 0
        if may_read and not stand:
            self.shares_took_ns = time.thread_time_ns() - began
            self._shares_left_us -= self.shares_took_ns / 1000
            self._state, self._read_us = state, now_us

    def shares_are_behind(self) -> bool:
        """Return whether the tree's memory has moved far since shares were read, and they may be read again."""
        resident = sum(p.resident_bytes for p in self._tree.live.values())
        read = sum(resident for _, _, resident in self._state)
        may_move = max(SHARES_BEHIND * (1 - self._shares_left_us / SHARES_AHEAD_US), SHARES_BEHIND_AT_BEST)
        return self._shares_left_us > 0 and abs(resident - read) > may_move * max(resident, read)

    def _still_stand(self, state: list[tuple[int, int, int]], now_us: int) -> bool:
        """Return whether the last reading of shares is as good as a new one would be.

        Shares change by faults, by giving pages back, and by who is there: by nothing else. A fault is a
        page; one that brings more shows in what is resident.
        """
        if any(not p.has_faults for p in self._tree.live.values()):
            return False
        if state == self._state:
            return True
        if [s[0] for s in state] != [s[0] for s in self._state] or now_us - self._read_us >= SHARES_STAND_US:
            return False
        moved = sum(
            abs(faults - faults_then) * PAGE + abs(resident - resident_then)
            for (_, faults, resident), (_, faults_then, resident_then) in zip(state, self._state, strict=True)
        )
        return moved <= SHARES_STEP * sum(s[2] for s in state)

    def _read_slow_of(self, process: Tracked, stand: bool, may_read: bool) -> None:
        columns = process.columns or self._slow_columns(process)
        name = process.name_now()
        if name != process.name:
            process.name = name
            self._writer.rename_process(process.id, name, process.command)
        shares = process.shares if stand else None
        if shares is None:
            shares = self._read_shares(process) if may_read else None
            process.shares = shares
        files = MISSING
        if "files" not in process.unread:
            try:
                files = process.count_files()
            except PermissionError:
                self._cannot(process, "files", "the number of open files")
            except OSError:
                process.unread.add("files")
        pss, uss = shares or (MISSING, MISSING)
        minor, major = process.faults
        values = {
            "pss_bytes": pss,
            "uss_bytes": uss,
            "threads": process.threads,
            "open_files": files,
            "minor_faults": minor,
            "major_faults": major,
        }
        for metric, column in columns.items():
            column.append(values[metric])

    def _read_shares(self, process: Tracked) -> tuple[int, int] | None:
        if "shares" in process.unread:
            return None
        if process.lender is not None:
            return 0, 0
        try:
            return process.read_shares()
        except PermissionError:
            self._cannot(process, "shares", "PSS and USS")
        except ProcessLookupError:  # no memory at this moment: it ends, or only its first thread has
            pass
        except OSError:
            process.unread.add("shares")
        return None

    def _slow_columns(self, process: Tracked) -> dict[str, Any]:
        for metric, instrument in process.slow_metrics.items():
            series = self._writer.add_series("slow", metric, instrument, process=process.id)
            process.series.append((self._slow, series))
            process.columns[metric] = self._slow.column(series)
        return process.columns

    def _cannot(self, process: Tracked, what: str, title: str) -> None:
        process.unread.add(what)
        if what not in self._refused and not _is_ending(process):
            self._refused.add(what)
            self._notes.say(
                "permission",
                f"{title} of some processes may not be read by this user, as of {process.pid} ({process.name})",
                "run memgauge as the user of the job, or as root",
            )


def _is_ending(process: Tracked) -> bool:
    """Return whether it has let go of its memory: its files in /proc are root's from then on (proc(5))."""
    try:
        return process.read_resident() == 0
    except OSError:
        return True


class MachineReadings:
    """The machine's memory and counters, and what the sampler itself takes.

    Args:
        writer: Has the lanes fast, medium and slow.
        clock: The clock of the run.
        notes: Is told of what may not be read, and of a system clock that was set.
        system: Reads the machine.
        own: The sampler itself.
        interval_ns: Of the lane fast.
    """

    def __init__(
        self,
        writer: RunWriter,
        clock: Clock,
        notes: Notes,
        system: System,
        own: Tracked,
        interval_ns: int,
    ) -> None:
        self._clock, self._notes = clock, notes
        self._memory, self._counters = system.memory(), system.counters()
        self._own = own
        writer.set(memory_total_bytes=self._memory.total_bytes())
        if self._counters.energy_reason:
            notes.say(
                "energy",
                self._counters.energy_reason,
                "run memgauge as root, or: chmod a+r /sys/class/powercap/*/energy_uj",
            )
        self._system = self._memory.read()
        self._system_stands, self._system_stood = max(1, SYSTEM_STANDS_NS // interval_ns), 0  # ticks
        refresh_us = self._system_stands * interval_ns // 1000 if self._system_stands > 1 else None
        self._used, self._available = (
            _column(writer, "fast", metric, instrument, refresh_us)
            for metric, instrument in (
                ("system_used_bytes", self._memory.used_instrument),
                ("system_available_bytes", self._memory.available_instrument),
            )
        )
        self._machine = [
            _column(writer, "medium", metric, instrument, refresh)
            for metric, instrument, refresh in self._counters.metrics()
        ]
        self._own_cpu = _column(writer, "slow", "sampler_cpu_ns", "clock_gettime, process CPU time")
        self._own_rss = _column(writer, "slow", "sampler_rss_bytes", self._own.instrument)
        self._wall = _column(writer, "slow", "wall_clock_ns", "clock_gettime, real time")

    def read_fast(self, tree_has_moved: bool) -> None:
        """Read what the system uses, and what it could give.

        It takes about two fifths of what a tick's readings do. While the tree's memory stands still, only others can move it: then a
        reading stands for `SYSTEM_STANDS_NS`.
        """
        self._system_stood += 1
        if tree_has_moved or self._system_stood >= self._system_stands:
            self._system, self._system_stood = self._memory.read(), 0
        used, available = self._system
        self._used.append(used)
        self._available.append(available)

    def read_medium(self) -> None:
        """Read counters of pressure, disk, network and energy."""
        for column, value in zip(self._machine, self._counters.read(), strict=True):
            column.append(value)

    def read_slow(self) -> None:
        """Read the sampler's own cost, and the wall clock."""
        self._own_cpu.append(time.process_time_ns())
        self._own_rss.append(self._own.read_resident())
        wall, moved = self._clock.read_wall()
        self._wall.append(wall)
        if moved:
            self._notes.say(
                "clock",
                f"the system's clock was set by {moved / 1e9:+.1f} s; times here do not depend on it",
                again=True,
            )

    def own_peak_bytes(self) -> int:
        """Return the sampler's highest resident size; where none is kept, the highest sample."""
        return self._own.read_highest() or self._own.hwm_bytes


class GroupReadings:
    """The job's control group: what it is charged, and its peak.

    Args:
        writer: Has the lane slow.
        group: The group; None where there is none to read.
    """

    def __init__(self, writer: RunWriter, group: Group | None) -> None:
        self._writer, self._group = writer, group
        self._highest = 0
        self._written: PeakRow | None = None
        if group is None:
            return
        self._columns = [
            _column(writer, "slow", f"cgroup_{what}bytes", f"cgroup v{group.names.version}, {source}")
            for what, source in (
                ("", group.names.current),
                ("anonymous_", "memory.stat"),
                ("file_", "memory.stat"),
            )
        ]
        writer.set(cgroup={"folder": str(group.folder), "is_own": group.is_own})

    def read_slow(self, told_bytes: int) -> None:
        """Read what it is charged now, and keep its peak.

        Args:
            told_bytes: The highest peak that the job told at its phases, where it resets the counter.
        """
        if self._group is None:
            return
        try:
            now = self._group.read()
        except (OSError, ValueError):
            now = (MISSING, MISSING, MISSING)
        for column, value in zip(self._columns, now, strict=True):
            column.append(value)
        self.keep_peak(told_bytes)

    def keep_peak(self, told_bytes: int) -> None:
        """Put its peak into the file."""
        if self._group is None:
            return
        with contextlib.suppress(OSError, ValueError):
            kind, reason = self._group.kind()
            self._highest = max(self._highest, self._group.read_peak(), told_bytes)
            row = PeakRow(
                "cgroup_bytes", self._highest, kind, self._group.instrument, reason, None, None, None
            )
            if row != self._written:
                self._writer.set_peak(row)
                self._written = row

    def close(self, told_bytes: int) -> None:
        """Keep the last of it, and let go."""
        if self._group is not None:
            self.keep_peak(told_bytes)
            self._group.close()


def _column(writer: RunWriter, lane: str, metric: str, instrument: str, refresh_us: int | None = None) -> Any:
    opened: Lane = writer.lane(lane)
    return opened.column(writer.add_series(lane, metric, instrument, refresh_us=refresh_us))
