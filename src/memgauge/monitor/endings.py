"""Whether the kernel killed processes for lack of memory: by the counters of such kills, and by its log."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from memgauge.monitor.cgroup import Group
from memgauge.monitor.events import FIRST_PIDS
from memgauge.monitor.notes import Notes

_MOST_NAMED = 3
_REMEDY = "raise the job's memory limit, or let it take less: a smaller batch, fewer workers"


class Victim(NamedTuple):
    """A process that the kernel killed for lack of memory."""

    pid: int
    name: str
    is_sure: bool

    def because(self) -> str:
        return "out of memory" if self.is_sure else "probably out of memory"


class OomKills:
    """The out-of-memory kills of the job's control group; of the machine where the group does not count them.

    Args:
        group: The job's group.
    """

    def __init__(self, group: Group | None) -> None:
        self._group = group
        self._of_group = None if group is None else group.oom_kills()
        self._of_machine = _of_machine()
        self.victims: list[Victim] = []

    def judge(self, pid: int, name: str) -> Victim | None:
        """Return what a process that SIGKILL has ended fell victim to; None if not to a lack of memory.

        Counters say that some process was killed; the kernel's log, where it may be read, says which. It
        decides, since a process may have moved to another group. Without it the group's counter does, and
        the machine's, which counts the kills of other jobs too, only where the group has none. Each kill
        that was counted has one victim: who is killed by others later is none.
        """
        is_sure = self._was_for_memory(pid)
        if is_sure is None:
            return None
        self.victims.append(Victim(pid, name, is_sure))
        return self.victims[-1]

    def _was_for_memory(self, pid: int) -> bool | None:
        """Return whether that is sure; None if it was not."""
        known = len(self.victims)
        if self._of_machine is not None and (_of_machine() or 0) - self._of_machine <= known:
            return None
        named = _is_named(pid)
        if named is not None:
            return True if named else None
        if self._of_group is not None:
            return False if self.unexplained() > 0 else None
        return None if self._of_machine is None else False

    def unexplained(self) -> int:
        """Return how many kills the job's group counted of which no victim is known."""
        if self._group is None or self._of_group is None:
            return 0
        return max(0, (self._group.oom_kills() or 0) - self._of_group - len(self.victims))

    def say(self, notes: Notes, *, ends_are_told: bool) -> None:
        """Note who was killed for lack of memory.

        Args:
            notes: Get it.
            ends_are_told: Whether the kernel tells how each process ended; else a victim may not be known.
        """
        if self.victims:
            maybe = "" if all(v.is_sure for v in self.victims) else "probably "
            named = ", ".join(f"{v.pid} ({v.name})" for v in self.victims[:_MOST_NAMED])
            more = len(self.victims) - _MOST_NAMED
            others = f" and {more:,} more" if more > 0 else ""
            notes.say("memory", f"{maybe}killed by the kernel for lack of memory: {named}{others}", _REMEDY)
        if not ends_are_told and (count := self.unexplained()):
            where = "in the job's control group, which may hold others; nothing tells here which"
            notes.say("memory", f"{count:,} killed by the kernel for lack of memory {where}", _REMEDY)


def _of_machine() -> int | None:
    with contextlib.suppress(OSError, IndexError, ValueError):
        data = Path("/proc/vmstat").read_bytes()
        at = data.index(b"oom_kill ")
        return int(data[at + 9 :].split(None, 1)[0])
    return None


def _is_named(pid: int) -> bool | None:
    """Return whether the kernel's log names a process as killed; None if it cannot be read or has other numbers."""
    try:
        if os.readlink("/proc/self/ns/pid") != FIRST_PIDS:
            return None
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    wanted = b"Killed process %d (" % pid
    try:
        while True:
            try:
                if wanted in os.read(log, 8192):
                    return True
            except BrokenPipeError:  # records were overwritten meanwhile
                continue
            except OSError:  # EAGAIN: the end of it
                return False
    finally:
        os.close(log)
