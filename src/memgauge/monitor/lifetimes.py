"""The job's processes from their joining to their end; with the first of them the run ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from memgauge.monitor import launch
from memgauge.monitor.clock import Clock
from memgauge.monitor.devices import DeviceReadings
from memgauge.monitor.endings import OomKills, Victim
from memgauge.monitor.exits import Exit
from memgauge.monitor.launch import Ending, Job
from memgauge.monitor.notes import Notes
from memgauge.monitor.peaks import Peaks
from memgauge.monitor.processes import TICK_US
from memgauge.monitor.readings import ProcessReadings
from memgauge.monitor.system import System
from memgauge.monitor.tracked import Tracked
from memgauge.monitor.tree import ENDED, GIVEN, Tree, watches_only
from memgauge.storage import RunWriter

_YOUNG_US = 5_000_000  # for so long it is looked for what a process became: what forks to become another does it at once
_OF_A_KILLED_CHILD = (128 + 9, 256 - 9)  # what a shell, and Python's sys.exit(returncode), end with after it
_SEE_OFF_S = 0.3  # how long those may take that end with the command


class Lifetimes:
    """Who joins, who ends and how; `ending` is set once the run is over.

    Args:
        writer: Gets processes and their ends.
        tree: The processes that are followed.
        clock: The clock of the run.
        system: Reads processes.
        processes, devices, peaks: Have something to open and to keep for each process.
        hear: Takes in the marks that wait: the last words of a process come before its end.
    """

    def __init__(
        self,
        writer: RunWriter,
        tree: Tree,
        *,
        clock: Clock,
        system: System,
        processes: ProcessReadings,
        devices: DeviceReadings,
        peaks: Peaks,
        hear: Callable[[], None],
    ) -> None:
        self._writer, self._tree, self._clock, self._system = writer, tree, clock, system
        self._processes, self._devices, self._peaks, self._hear = processes, devices, peaks, hear
        self._job: Job | None = None
        self._command: Sequence[str] = ()
        self._root: Tracked | None = None
        self._statuses: dict[int, int] = {}  # pid -> status, of those whose end was told
        self._unexplained: dict[int, Tracked] = {}  # by pid, those found gone before anything told how
        self._cpu_ns = 0  # of the command, of orphans that we waited for, and of those that nobody waits for
        self.ending: Ending | None = None
        self.oom_kills = OomKills(None)
        tree.joins = self._join

    def begin_command(self, job: Job, command: Sequence[str]) -> None:
        """Follow a command that was started just now, and all that it starts."""
        self._job = self._peaks.job = job
        self._command = command
        self._follow(job.pid)

    def begin_pid(self, pid: int) -> None:
        """Follow a process that was there before, and all that it starts."""
        self._follow(pid)
        if self._root is None:
            self.ending = Ending("gone", detail="the process was over before it could be read")

    def _follow(self, pid: int) -> None:
        self._root = self._peaks.root = self._tree.add(pid, GIVEN)

    def _join(self, process: Tracked) -> None:
        parent = self._tree.live.get(process.parent_pid)
        process.seen_us = self._clock.now_us()
        if parent is not None:
            with contextlib.suppress(OSError):
                process.lender = parent if process.runs_in_memory_of(parent) else None
        if (
            not process.command
            and parent is not None
            and process.at_exit is not None
            and process.at_exit.is_fork
        ):
            process.command = parent.command  # it has ended already, and has none any more
        process.id = self._writer.add_process(
            process.pid,
            parent=None if parent is None else parent.id,
            name=process.name,
            command=process.command,
            started_us=self._begun_us(process),
            seen_us=process.seen_us,
            found=process.found,
        )
        self._peaks.claim(process)
        self._processes.begin(process)

    def _begun_us(self, process: Tracked) -> int:
        """Return when a process began; the system tells it in ticks, by which a command begins before its run."""
        began = self._clock.of(process.born_ns)
        return 0 if -TICK_US <= began < 0 else began

    def lose(self, gone: list[Tracked], now_us: int) -> None:
        """Follow processes no more that a reading found gone; what is known of their end is kept."""
        if gone:
            self.hear_events()  # of children of theirs first, which are nobody's once their parents are dropped
        self._lose(gone, now_us)

    def _lose(self, gone: list[Tracked], now_us: int) -> None:
        if self._job is not None and self._root in gone:
            self.reap()  # a tick saw it before its parent, us, was told: its last marks and its usage first
        if gone:
            self._hear()  # a phase that ended just before its process did still has its own exact peak
            self._tree.hear_ends()
        for process in gone:
            if process.gone or self._may_run_on(process):
                continue
            self._peaks.keep(process, now_us, is_alive=False)
            status = self._statuses.pop(process.pid, None)
            if status is None and self._tree.events is not None:
                self._unexplained[process.pid] = process
            parent = self._tree.live.get(process.parent_pid)
            if parent is not None and parent.waits_for_nobody():
                self._cpu_ns += process.whole_cpu_ns()
            self._drop(process, now_us, self._told(process.pid, process.name, status))
            if process is self._root and self._job is None:
                unknown = Ending("gone", detail="the process ended; only its parent can know how")
                self.ending = unknown if status is None else self._judged(process.pid, status)
        self._tree.adopt()  # what its children became, before anything told of them

    def _drop(self, process: Tracked, now_us: int, ended: str | None) -> None:
        """Follow a process no more; what is known of its peak is in the file by now."""
        self._peaks.forget(process)
        self._writer.end_process(process.id, now_us, ended)
        self._processes.end(process)
        self._devices.end(process)
        self._tree.drop(process)

    def _may_run_on(self, process: Tracked) -> bool:
        """Return whether it is the command, not waited for: its first thread may be over before the others."""
        return self._job is not None and process is self._root and process.pid not in self._statuses

    def root_ends(self) -> bool:
        """Return whether the first process is over, or has given its memory back already."""
        if self._root is None or self._root.gone or self._root.is_over():
            return True
        try:
            return self._root.read_resident() == 0
        except OSError:
            return True

    # ------------------------------------------------------------------ what the kernel tells

    def hear_events(self) -> bool:
        """Take in forks, execs and exits; returns whether any of them was about the job."""

        def ended(process: Tracked, status: int | None) -> None:
            if process is self._root and self._job is not None:
                return  # the command is waited for
            if status is not None:
                self._statuses[process.pid] = status
            if status is None or process.is_over():  # else it has a moment left, or other threads
                self._lose([process], self._clock.now_us())

        def late(pid: int, status: int) -> None:
            gone = self._unexplained.pop(pid, None)
            if gone is not None:
                self._writer.end_process(gone.id, self._clock.now_us(), self._told(pid, gone.name, status))

        return self._tree.hear(self._rename, ended, late, self._keep_unread)

    def _keep_unread(self, end: Exit, parent_pid: int, status: int) -> None:
        """Keep what the kernel told of a process that was gone before it could be opened."""
        now, parent = self._clock.now_us(), self._tree.live.get(parent_pid)
        number = self._writer.add_process(
            end.pid,
            parent=None if parent is None else parent.id,
            name=end.name,
            command=parent.command if end.is_fork and parent is not None else "",
            started_us=now - end.lived_us,
            seen_us=now,
            found=ENDED,
        )
        self._writer.end_process(number, now, self._told(end.pid, end.name, status))
        self._peaks.keep_unread(number, end)

    def look_again(self, now_us: int) -> None:
        """Take in what processes became soon after their fork, where no event tells of it."""
        if self._tree.events is None:
            for process in list(self._tree.live.values()):
                if now_us - process.seen_us < _YOUNG_US:
                    command = self._system.command(process.pid)
                    if command not in ("", process.command):
                        self._rename(process)

    def _rename(self, process: Tracked) -> None:
        process.lender = None  # another program has memory of its own
        command = self._system.command(process.pid)
        if process is not self._root and watches_only(command):  # from here on it is none of the job's
            self._tree.excluded.add(process.pid)
            self._drop(process, self._clock.now_us(), "became the sampler of another recording")
            return
        with contextlib.suppress(OSError):
            process.name = process.read_stat().name
            process.command = command
            self._writer.rename_process(process.id, process.name, process.command)

    def pass_on(self, signals: launch.Signals, *, is_program: bool) -> None:
        """Take in signals: those of children, and those that the command is to have, or that end us.

        Args:
            signals: Has some that arrived.
            is_program: Whether the recording belongs to a program, which the terminal's signals are for.
        """
        for arrived in signals.read():
            number = arrived.number
            if number == signal.SIGCHLD:
                self.reap()
            elif self._job is None:
                if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT) and not (
                    is_program and arrived.is_from_terminal
                ):
                    why = f"the recording was stopped by {launch.signal_name(number)}; the job went on"
                    self.ending = Ending("stopped", detail=why)
            elif arrived.is_for_job():
                with contextlib.suppress(OSError):
                    os.kill(self._job.pid, number)

    def reap(self) -> None:
        """Wait for children that have ended: the command, and orphans that came to us."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._statuses[pid] = status
            if pid not in self._tree.excluded:
                self._cpu_ns += round((usage.ru_utime + usage.ru_stime) * 1e9)
            if self._job is not None and pid == self._job.pid:
                self._command_ended(self._job, status, usage)
            elif (process := self._tree.live.get(pid)) is not None:
                self.lose([process], self._clock.now_us())

    def _command_ended(self, job: Job, status: int, usage: Any) -> None:
        now = self._clock.now_us()
        self.hear_events()
        self._hear()
        process = self._tree.live.get(job.pid)
        # A reset of VmHWM at a phase's boundary resets ru_maxrss too; what was read before it counts.
        read = process.hwm_bytes if process is not None else 0
        self._peaks.command_ended(usage.ru_maxrss * launch.MAXRSS_BYTES, read)
        if process is not None:
            self.lose([process], now)
        else:  # it was over before it could be looked at; its peak is known all the same
            name = os.path.basename(self._command[0])
            number = self._writer.add_process(
                job.pid,
                parent=None,
                name=name,
                command=" ".join(self._command),
                started_us=0,
                seen_us=now,
                found="waited for",
            )
            self._writer.end_process(number, now, self._told(job.pid, name, status))
            self._peaks.keep_largest(number)
        self.ending = self._judged(job.pid, status)

    def _told(self, pid: int, name: str, status: int | None) -> str | None:
        """Return how a process ended as text, None if nobody could know; one that was killed is judged."""
        if status is None:
            return None
        ending = launch.ending_of(status)
        victim = self.oom_kills.judge(pid, name) if ending.signal == "SIGKILL" else None
        return ending.text() if victim is None else f"{ending.text()}, {victim.because()}"

    def _judged(self, pid: int, status: int) -> Ending:
        """Return how the run ended by the status of its first process, whose row has its end already."""
        ending = launch.ending_of(status)
        if ending.code in _OF_A_KILLED_CHILD:
            why = self._why_a_child_was_killed()
        else:
            found = next((v for v in reversed(self.oom_kills.victims) if v.pid == pid), None)
            why = "" if found is None else f"{_maybe(found)}the kernel killed it for lack of memory"
        return ending._replace(out_of_memory=True, detail=why) if why else ending

    def _why_a_child_was_killed(self) -> str:
        """Return why a command ended as one does whose child was killed; "" if not for lack of memory."""
        self.lose([p for p in self._tree.live.values() if p.is_over()], self._clock.now_us())
        if self.oom_kills.victims:
            victim = self.oom_kills.victims[-1]
            return f"{_maybe(victim)}the kernel killed {victim.pid} ({victim.name}) for lack of memory"
        # Where nobody tells how children end, the group's counter has to do for them as it does for the command.
        if self._tree.events is None and self.oom_kills.unexplained():
            return "probably the kernel killed a process of it for lack of memory"
        return ""

    # ------------------------------------------------------------------ after the end

    def see_off(self, notes: Notes) -> None:
        """Wait a moment for those that end with the command; name those that went on or were killed."""
        self._see_off_command(notes)
        self.oom_kills.say(notes, ends_are_told=self._tree.events is not None)

    def _see_off_command(self, notes: Notes) -> None:
        self.hear_events()
        if self._job is None or self.ending is None or self.ending.how not in ("exit", "signal"):
            return
        until = time.monotonic() + _SEE_OFF_S
        while True:
            self.hear_events()
            self._tree.look(self._clock.now_us())
            self.reap()
            self.lose([p for p in self._tree.live.values() if p.is_over()], self._clock.now_us())
            if not self._tree.live or time.monotonic() >= until:
                break
            time.sleep(_SEE_OFF_S / 20)
        stay = list(self._tree.live.values())
        for process in stay:
            with contextlib.suppress(OSError):
                process.read_counts()
            self._cpu_ns += process.whole_cpu_ns()
        self._writer.set(command_cpu_ns=self._cpu_ns)
        if stay:
            named = ", ".join(f"{p.pid} ({p.name})" for p in stay[:3])
            notes.say(
                "processes",
                f"{len(stay)} went on after the command had ended, without being recorded: {named}",
                f"memgauge monitor --pid {stay[0].pid}; or let the command wait for them",
            )


def _maybe(victim: Victim) -> str:
    return "" if victim.is_sure else "probably "
