"""Exact highest values: from the kernel's own marks, reset at phases by their one owner."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from memgauge.monitor import cgroup
from memgauge.monitor.clock import Clock
from memgauge.monitor.exits import Exit
from memgauge.monitor.launch import Job
from memgauge.monitor.listening import Heard, PeakLock
from memgauge.monitor.notes import Notes
from memgauge.monitor.processes import PAGE, TICK_US
from memgauge.monitor.tracked import Tracked
from memgauge.monitor.tree import Tree
from memgauge.storage import SPAN, PeakRow, RunWriter

# A mark that is older, or ahead of the sampler's clock by so much, was told by another clock.
_OLDEST_MARK_US, _AHEAD_US = 24 * 3600 * 1_000_000, 1_000_000
HIGHEST_US = 1_000_000  # the highest size of a process that seems to stand still is read so often
BELOW_LAUNCHER = "the command stayed below what its launcher held before it"
_BATCH_BYTES = 64 * PAGE * (os.cpu_count() or 1)  # ru_maxrss may be so much below VmHWM (percpu_counter)
_AT_EXIT = "taskstats at its end, hiwater_rss"
_TOLD = "wait4, ru_maxrss: the command and all that it waited for"
_PAST = "it may have been reached before the recording began"


class _Largest(NamedTuple):
    """The largest process so far, and how that is known."""

    bytes: int
    kind: str
    instrument: str
    reason: str
    pid: int


@dataclass(slots=True)
class _Phase:
    """A phase that is open: its highest value so far, None once it cannot be exact any more."""

    mark: int
    span: int | None
    highest_bytes: int | None
    group_bytes: int | None


class Peaks:
    """Highest resident sizes of processes, of their phases, and of the command and its children.

    Args:
        writer: Where peaks and marks go.
        tree: The processes that are followed.
        notes: Is told when another recording owns the counters.
        clock: The clock of the run.
    """

    def __init__(self, writer: RunWriter, tree: Tree, notes: Notes, clock: Clock) -> None:
        self._writer, self._tree, self._notes, self._clock = writer, tree, notes, clock
        self._phases: dict[int, list[_Phase]] = {}  # pid -> open phases, the innermost last
        self.job: Job | None = None
        self.root: Tracked | None = None
        self.group_bytes = 0  # the control group's highest peak that a phase's boundary told
        self.group: cgroup.Group | None = None
        self._largest: _Largest | None = None  # of all processes so far
        self._was_missed = False  # whether some process may have been larger than its last reading
        self.largest_bytes = 0  # the largest of the command and all that it waited for, once it has ended
        self._largest_instrument = ""

    # ------------------------------------------------------------------ one process

    def claim(self, process: Tracked) -> None:
        """Take the right to reset a process's highest resident size, and reset it if it has a past."""
        process.hwm_kind = "exact"
        process.has_past = self._clock.of(process.born_ns) < -TICK_US
        if not process.has_peak:
            process.hwm_kind = "sampled"
            return
        try:
            self._guard_parent_of(process)
            process.lock = PeakLock(process.pid, process.started_ticks)
        except OSError as error:
            if error.errno == errno.EMFILE:
                process.hwm_kind = "unguarded"
                return
            process.hwm_kind = "other"
            self._notes.say(
                "peaks",
                "another recording may reset the highest resident sizes of this job, so peaks here are lower bounds",
                "end the other recording, or read the peaks in its file",
            )
            return
        if process.has_past and not process.reset_highest():
            process.hwm_kind = "past"

    def _guard_parent_of(self, process: Tracked) -> None:
        """Take the parent's lock if another recording had it: who has that has those of its children, so that one has all.

        Raises:
            OSError: The other recording has it still.
        """
        parent = self._tree.live.get(process.parent_pid)
        if parent is not None and parent.hwm_kind == "other" and parent.lock is None:
            parent.lock = PeakLock(parent.pid, parent.started_ticks)

    def owns(self, pid: int | None) -> bool:
        """Return whether this recording may reset the peak of a process."""
        if pid is None:
            return False
        if pid not in self._tree.live:
            self._tree.look(self._clock.now_us())
        process = self._tree.live.get(pid)
        return process is not None and process.lock is not None

    def welcome(self, pid: int) -> str:
        """Return what a process is told that calls: whether it resets its peak, and the group's peak to reset."""
        owns = self.owns(pid)
        path = self.group.peak_for_phases(pid) if owns and self.group is not None else ""
        return f"{'owner' if owns else 'reader'} {path}".rstrip()

    def read_changed(self, now_us: int) -> None:
        """Read the peaks of processes that moved since the last look, and of the others now and then."""
        for process in self._tree.live.values():
            resident = process.resident_bytes
            if resident != process.looked_bytes or now_us - process.hwm_read_us >= HIGHEST_US:
                process.looked_bytes = resident
                self.read(process, now_us)

    def read_oldest(self, now_us: int, most_ns: int) -> None:
        """Read the peaks of all processes, those first that were read longest ago, in so much CPU time at most."""
        end_ns = time.thread_time_ns() + most_ns
        for process in sorted(self._tree.live.values(), key=lambda p: p.hwm_read_us):
            if time.thread_time_ns() > end_ns:
                return
            self.read(process, now_us)

    def read(self, process: Tracked, now_us: int) -> None:
        """Read the highest resident size of one process; while it runs in its parent's memory, it has none."""
        try:
            if process.is_lent_memory():
                return
            highest = process.read_highest()
        except OSError:
            return
        if highest is not None:
            if process.hwm_kind == "other":  # it may have been set back since a sample was higher
                highest = max(highest, max(process.resident, default=0))
            process.hwm_bytes = max(process.hwm_bytes, highest)
            process.hwm_read_us = now_us

    def keep_changed(self, now_us: int) -> None:
        """Put into the file what grew."""
        for process in self._tree.live.values():
            if process.hwm_bytes != process.kept_bytes:
                process.kept_bytes = process.hwm_bytes
                self.keep(process, now_us, is_alive=True)

    def keep(self, process: Tracked, now_us: int, *, is_alive: bool) -> None:
        """Put the peak of one process into the file, with its kind."""
        highest, instrument = process.hwm_bytes, "VmHWM"
        kind, reason = _kind_of(process, now_us, is_alive=is_alive)
        if process.at_exit is not None and not (process.lender is not None and process.at_exit.is_fork):
            highest, instrument = max(highest, process.at_exit.highest_bytes), _AT_EXIT
        elif not process.hwm_read_us:
            highest, instrument = max(highest, max(process.resident, default=0)), process.instrument
        if process is self.root and self.job is not None and self.largest_bytes and process.at_exit is None:
            sampled = highest
            highest, kind, reason = self._of_root(highest, kind, reason)
            if highest != sampled:
                instrument = "wait4, ru_maxrss"
        elif process is self.root and self.largest_bytes > highest and self._told_of_root():
            if self.largest_bytes > highest + _BATCH_BYTES:  # of a program that it was before
                instrument = "wait4, ru_maxrss"
            highest = self.largest_bytes
        if highest:
            self._writer.set_peak(
                PeakRow("rss_bytes", highest, kind, instrument, reason, process.id, None, None)
            )
        self._compare(_Largest(highest, kind, instrument, reason, process.pid))
        if not is_alive and kind != "exact":
            self._was_missed = True

    def keep_unread(self, number: int, end: Exit) -> None:
        """Put the peak of a process into the file of which only its end is known."""
        self._writer.set_peak(
            PeakRow("rss_bytes", end.highest_bytes, "exact", _AT_EXIT, "", number, None, None)
        )
        self._compare(_Largest(end.highest_bytes, "exact", _AT_EXIT, "", end.pid))

    def _compare(self, found: _Largest) -> None:
        if self._largest is None or found.bytes >= self._largest.bytes:
            self._largest = found

    def _of_root(self, highest: int, kind: str, reason: str) -> tuple[int, str, str]:
        """Return the command's own peak, now that wait4 told the largest of it and its children."""
        assert self.job is not None
        largest = self.largest_bytes
        if largest <= self.job.launcher_bytes:
            # The number includes what the launcher held; VmHWM is what is left to know it by.
            if highest:
                return (
                    highest,
                    "lower bound",
                    reason or "the command was gone before its last peak could be read",
                )
            return largest, "upper bound", BELOW_LAUNCHER
        if largest <= highest or self._is_alone():
            return max(largest, highest), "exact", ""
        return highest, "lower bound", reason

    def command_ended(self, told_bytes: int, read_bytes: int) -> None:
        """Take in the largest of the command and its children: what wait4 told, or what was read before.

        Args:
            told_bytes: By wait4.
            read_bytes: VmHWM of the command, read before its phases set it back, and with it what wait4 tells.
        """
        self.largest_bytes = max(told_bytes, read_bytes)
        is_told = told_bytes >= read_bytes - _BATCH_BYTES
        self._largest_instrument = _TOLD if is_told else "VmHWM, before its phases set it back,"

    def _told_of_root(self) -> bool:
        """Return whether what wait4 told is the command's own, and not its launcher's."""
        return self.job is not None and self.largest_bytes > self.job.launcher_bytes and self._is_alone()

    def _is_alone(self) -> bool:
        """Return whether nobody but the command was there: what wait4 told is its own then."""
        others = any(p is not self.root for p in self._tree.live.values())
        return not others and self._tree.joined <= 1 and self._tree.unseen == 0

    def keep_largest(self, process: int | None = None) -> None:
        """Keep the largest process: as wait4 told of the command and its children, or as they were read.

        Args:
            process: The row of the command, if it was gone before it could be read.
        """
        told = self._told()
        if process is not None:
            if told is not None:
                self._set_largest("rss_bytes", told, process)
            return
        read = self._largest
        if read is not None and (self._was_missed or self._tree.unseen) and read.kind == "exact":
            why = "was never read" if self._tree.unseen else "may have grown after its last reading"
            read = read._replace(kind="lower bound", reason=f"another process {why}")
        if told is None or (read is not None and read.bytes > told.bytes + _BATCH_BYTES):
            told = read  # not waited for: a daemon, or a process that was attached to
        elif read is not None and read.kind == "exact" and told.kind != "exact":
            told = read  # a command smaller than its launcher
        elif read is not None and read.bytes > told.bytes:
            told = told._replace(bytes=read.bytes)  # the kernel's batches
        if told is not None and told.bytes:
            self._set_largest("largest_process_bytes", told, None)

    def _told(self) -> _Largest | None:
        """Return what wait4 told of the command and its children, None if there was no command."""
        if not self.largest_bytes or self.job is None:
            return None
        exact = self.largest_bytes > self.job.launcher_bytes
        kind, reason = ("exact", "") if exact else ("upper bound", BELOW_LAUNCHER)
        return _Largest(self.largest_bytes, kind, self._largest_instrument, reason, self.job.pid)

    def _set_largest(self, metric: str, largest: _Largest, process: int | None) -> None:
        instrument = largest.instrument
        if not instrument.startswith("wait4"):
            instrument += f" of process {largest.pid}"
        row = PeakRow(metric, largest.bytes, largest.kind, instrument, largest.reason, process, None, None)
        self._writer.set_peak(row)

    # ------------------------------------------------------------------ phases

    def hear(self, heard: Iterable[Heard]) -> bool:
        """Put what processes said into the file; returns whether a phase began or ended."""
        boundary = False
        now_us = self._clock.now_us()
        for said in heard:
            time_us = self._clock.of(said.time_ns)
            if not now_us - _OLDEST_MARK_US < time_us < now_us + _AHEAD_US:
                time_us = now_us
                self._notes.say(
                    "marks",
                    f"the clock of process {said.pid} is another (a time namespace): its marks have the time at which "
                    "they arrived",
                )
            facts = said.facts if said.span is None else {**said.facts, SPAN: said.span}
            mark = self._writer.add_mark(time_us, said.pid, said.kind, said.name, said.value, facts)
            if said.kind != "mark":
                boundary = True
                self._bound(said, mark)
        return boundary

    def _bound(self, said: Heard, mark: int) -> None:
        stack = self._phases.setdefault(said.pid, [])
        process = self._tree.live.get(said.pid)
        highest = said.highest_bytes  # since the boundary before this one
        if highest is not None:
            if process is not None:
                process.hwm_bytes = max(process.hwm_bytes, highest)
            for phase in stack:
                if phase.highest_bytes is not None:
                    phase.highest_bytes = max(phase.highest_bytes, highest)
        elif process is not None and process.hwm_kind in ("other", "unguarded"):
            for phase in stack:
                phase.highest_bytes = None
        group = said.group_bytes
        if group is not None:
            self.group_bytes = max(self.group_bytes, group)
            for phase in stack:
                if phase.group_bytes is not None:
                    phase.group_bytes = max(phase.group_bytes, group)
        if said.kind == "begin":
            stack.append(
                _Phase(mark, said.span, None if highest is None else 0, None if group is None else 0)
            )
            return
        for phase in stack:
            if phase.span == said.span:
                stack.remove(phase)
                self._keep_phase(phase, process)
                return

    def _keep_phase(self, phase: _Phase, process: Tracked | None) -> None:
        number = None if process is None else process.id
        if phase.highest_bytes:
            instrument = "VmHWM, reset at the phase's boundaries" + (
                "" if process is None or process.at_exit is None else "; taskstats at its end"
            )
            row = PeakRow("rss_bytes", phase.highest_bytes, "exact", instrument, "", number, None, phase.mark)
            self._writer.set_peak(row)
        if phase.group_bytes and self.group is not None:
            kind, reason = self.group.kind()
            instrument = f"{self.group.instrument}, reset at the phase's boundaries"
            row = PeakRow(
                "cgroup_bytes", phase.group_bytes, kind, instrument, reason, number, None, phase.mark
            )
            self._writer.set_peak(row)

    def forget(self, process: Tracked) -> None:
        """Let go of a process that is gone; what it held at its end is the last word on phases that it left open."""
        if process.lock is not None:
            process.lock.release()  # type: ignore[attr-defined]
        for phase in self._phases.pop(process.pid, ()):
            if process.at_exit is not None and phase.highest_bytes is not None:
                phase.highest_bytes = max(phase.highest_bytes, process.at_exit.highest_bytes)
                self._keep_phase(phase, process)


def _kind_of(process: Tracked, now_us: int, *, is_alive: bool) -> tuple[str, str]:
    """Return what a process's highest value is worth, and why it is no more."""
    if not process.hwm_read_us and process.at_exit is None:
        why = "it was gone before its peak could be read" if process.has_peak else "this system keeps no peak"
        return "lower bound", f"highest sample; {why}"
    if process.hwm_kind == "other":
        return "lower bound", "another recording resets it"
    if process.hwm_kind == "unguarded":
        return "lower bound", "another recording may have reset it: no descriptor was left to find out"
    if process.hwm_kind == "past":
        return "upper bound", _PAST
    if is_alive or process.at_exit is not None:
        return "exact", ""
    late_ms = max(0, now_us - process.hwm_read_us) / 1000
    return "lower bound", f"last read {late_ms:.0f} ms before the process was found gone"
