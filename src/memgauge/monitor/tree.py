"""Which processes belong to the job: its own, their children, however they came about.

Three ways to find one, each the net under the one before:

  events      the kernel tells of every fork, exec and exit (process connector; needs CAP_NET_ADMIN):
              nobody is missed, how each ended is known, and what it held at most (taskstats)
  children    /proc/PID/task/TID/children, read whenever a new pid was given out since the last look
  the table   of all processes: who left the tree's parents but stayed in its process groups; on systems
              other than Linux the only one, so it is looked through every 100 ms

Without events a process that lives between two looks is missed. It still leaves its page faults in
its parent's account when it is waited for: that is how "at least so many were missed" is known.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable

from memgauge.monitor.events import EXEC, EXIT, FORK, Events
from memgauge.monitor.exits import Exit, Exits
from memgauge.monitor.system import System
from memgauge.monitor.tracked import Stat, Tracked

EVENTS, CHILDREN, TABLE, ADOPTED, GIVEN, ENDED = (
    "event",
    "children",
    "process table",
    "orphan adopted",
    "given",
    "its end",
)
_THREADS_EVERY_US = 100_000  # the children of other threads are looked for no more often,
_TABLE_EVERY_US = 100_000  # and the table is looked through, where nothing else leads to children
# A fork is told of sooner after the birth; numbers are given out in turn, thousands of forks before the same again.
_REUSED_AFTER_NS = 30_000_000
# Ends that were told of strangers, or before it was known whose child it is; pids come back later.
_KEPT_ENDS = 4096


class Tree:
    """The processes that are followed, by pid.

    Args:
        system: Reads processes.
        own: The sampler itself if orphans are adopted by it, else None.
        excluded: Pids that are never followed.
    """

    def __init__(self, system: System, own: Tracked | None, excluded: set[int]) -> None:
        self.live: dict[int, Tracked] = {}
        self.joined = 0  # how many were ever followed
        self.unseen = 0  # exits of processes that were never read
        self.unseen_is_exact = False
        self.refused: str = ""  # why a process of the tree could not be opened, the last time
        self.events: Events | None = None
        self._exits: Exits | None = None
        self._ends: dict[int, tuple[int, Exit]] = {}  # pid -> when it was told, and the end
        self.excluded = excluded
        self.joins: Callable[[Tracked], None] = _unheeded  # is called with each process, after it was opened
        self._system = system
        self._own = own
        self._newest_pid = -1  # -1: unknown, or not to be relied on
        self._threads_looked_us = self._table_looked_us = -_THREADS_EVERY_US
        self._ghosts: dict[int, int] = {}  # forked, but gone before it could be opened: pid -> parent
        self._groups: set[int] = set()
        self._strangers: set[int] = set()
        self._table_pid = -1

    def listen(self) -> str:
        """Begin to listen to events; returns "" or why that is not possible."""
        if not self._system.tells_events:
            return "this system has none"
        try:
            self.events = Events()
        except OSError as error:
            return f"{error.strerror or error}"
        self.unseen_is_exact = True
        with contextlib.suppress(OSError):
            self._exits = Exits()
        return ""

    def add(self, pid: int, how: str, parent: int | None = None) -> Tracked | None:
        """Follow a process and all that descend from it; None if it is gone already."""
        if pid in self.live or pid in self.excluded:
            return self.live.get(pid)
        try:
            process = self._system.open(pid)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self.refused = "no file descriptors are left to follow more processes"
            elif error.errno in (errno.EACCES, errno.EPERM):
                self.refused = f"process {pid} may not be read ({error.strerror})"
            return None
        process.found = how
        process.command = self._system.command(pid)
        if how != GIVEN and watches_only(process.command):
            self.excluded.add(pid)
            process.close()
            return None
        told_ns, end = self._ends.pop(pid, (0, None))
        if told_ns >= process.born_ns:  # else it was the end of another one of this number
            process.at_exit = end
        self.live[pid] = process
        self.joined += 1
        self.joins(process)
        for child in self._children_of(process, with_threads=True):
            self.add(child, CHILDREN if how == GIVEN else how)
        return process

    def look(self, now_us: int) -> None:
        """Find new processes, if any were made since the last look."""
        if self.events is not None:
            return
        if self._system.newest_pid is None:
            if now_us - self._table_looked_us >= _TABLE_EVERY_US:
                self._table_looked_us = now_us
                self.look_through_table()
            return
        newest = self._system.newest_pid()
        if newest == self._newest_pid:
            return
        self._newest_pid = newest
        with_threads = now_us - self._threads_looked_us >= _THREADS_EVERY_US
        if with_threads:
            self._threads_looked_us = now_us
        for process in list(self.live.values()):
            for pid in self._children_of(process, with_threads and process.threads > 1):
                if pid not in self.live:
                    self.add(pid, CHILDREN)
        self.adopt()

    def missed(self) -> dict[str, object]:
        """Return how many processes were never read, for the header of the run file."""
        return {"unseen_processes": self.unseen, "unseen_is_exact": self.unseen_is_exact}

    def _children_of(self, process: Tracked, with_threads: bool) -> list[int]:
        try:
            children = process.children()
        except OSError:
            return []
        return children + process.children_of_threads() if with_threads else children

    def adopt(self) -> None:
        """Follow the orphans that came to the sampler, as to a reaper of its subtree (prctl(2))."""
        if self._own is None:
            return
        try:
            pids = self._own.children()
        except OSError:
            return
        for pid in pids:
            if pid not in self.live and pid not in self.excluded and not self._has_ended(pid):
                self.add(pid, ADOPTED)

    def _has_ended(self, pid: int) -> bool:
        """Return whether a child of ours has ended and was not waited for yet: it was followed to its end."""
        try:
            return self._system.stat(pid).state in "ZX"
        except OSError:
            return True

    def look_through_table(self) -> None:
        """Find processes that no parent leads to: by process group, or a parent's thread."""
        if self.events is not None and self.unseen_is_exact and self._table_pid != -1:
            return  # events have told of everybody since the first look
        newest = self._newest_pid
        if self.events is not None and self._system.newest_pid is not None:
            newest = self._system.newest_pid()
        if newest == self._table_pid and newest != -1:
            return
        self._table_pid = newest
        try:
            pids = self._system.pids()
        except OSError:
            return
        self._strangers &= pids
        self._groups |= {pid for pid in self.live if _leads(pid)}
        unknown: dict[int, Stat] = {}
        for pid in pids - self._strangers - self.live.keys() - self.excluded:
            with contextlib.suppress(OSError):
                stat = self._system.stat(pid)
                if stat.state not in "ZX":
                    unknown[pid] = stat
        # Whoever joins may be the parent of others, whatever the order of their numbers.
        while ours := [p for p, s in unknown.items() if s.parent in self.live or s.group in self._groups]:
            for pid in ours:
                del unknown[pid]
                self.add(pid, TABLE)
        self._strangers |= unknown.keys()
        self.adopt()

    def hear(
        self,
        exec_: Callable[[Tracked], None],
        ended: Callable[[Tracked, int | None], None],
        late: Callable[[int, int], None],
        unread: Callable[[Exit, int, int], None],
    ) -> bool:
        """Take in what events tell, in their order: a pid may end and be given out again within one look.

        Returns whether anything was about the tree; they tell of the whole machine.

        Args:
            exec_: Is called with a process that has become another program.
            ended: Is called with a process whose first thread has ended and its status, as wait(2) gives it;
                with None if its number belongs to another process by now.
            late: Is called with the number and status of a process that is not followed: it may have been, until
                a reading found it gone before the kernel told.
            unread: Is called with the end, the parent's pid and the status of a process that nobody had read.
        """
        if self.events is None:
            return False
        events, complete = self.events.read()
        self.hear_ends()
        concerned = not complete
        own = None if self._own is None else self._own.pid
        for what, pid, other, time_ns in events:
            concerned |= pid in self.live or other in self.live or pid in self._ghosts or other == own
            if what == FORK:  # of a child `pid` by `other`
                is_ours = other in self.live or other in self._ghosts or other == own
                former = self.live.get(pid)
                if former is not None and former.born_ns < time_ns - _REUSED_AFTER_NS and former.is_over():
                    ended(former, None)
                if is_ours and self.add(pid, EVENTS) is None and pid not in self.excluded:
                    self._ghosts[pid] = other
            elif what == EXEC and pid in self.live:
                exec_(self.live[pid])
            elif what == EXIT:
                self.excluded.discard(pid)
                if pid in self.live:
                    ended(self.live[pid], other)
                elif (parent := self._ghosts.pop(pid, None)) is not None:
                    _, end = self._ends.pop(pid, (0, None))
                    if end is None:
                        self.unseen += 1
                    else:
                        self.joined += 1
                        unread(end, parent, other)
                else:
                    late(pid, other)
        if not complete:
            self.unseen_is_exact = False
            for process in list(self.live.values()):
                for child in self._children_of(process, True):
                    self.add(child, CHILDREN)
        return concerned

    def hear_ends(self) -> None:
        """Take in what the kernel told of ends, so that each process has what it held at most."""
        if self._exits is None:
            return
        now_ns = time.monotonic_ns()
        for end in self._exits.read():
            process = self.live.get(end.pid)
            if process is not None and process.at_exit is None:
                process.at_exit = end
            else:
                self._ends.pop(end.pid, None)
                self._ends[end.pid] = now_ns, end
        while len(self._ends) > _KEPT_ENDS:
            del self._ends[next(iter(self._ends))]

    def drop(self, process: Tracked) -> None:
        """Follow a process no more."""
        process.gone = True
        self.live.pop(process.pid, None)
        self._newest_pid = -1  # its number may be another's already
        process.close()

    def close(self) -> None:
        """Stop to listen."""
        for source in (self.events, self._exits):
            if source is not None:
                source.close()

    def account_for_children(self, process: Tracked, faults: int, gone: Iterable[Tracked]) -> None:
        """Count a missed child if a process inherited page faults and none of its known children ended."""
        grew = faults - process.children_faults
        process.children_faults = faults
        if self.events is not None or grew <= 0:
            return
        if not any(child.parent_pid == process.pid for child in gone):
            self.unseen += 1


def watches_only(command: str) -> bool:
    """Return whether it is the sampler of another recording that has no command of its own to run."""
    return " -m memgauge.monitor.sampler " in command and command.endswith("}'")


def _unheeded(_: Tracked) -> None: ...


def _leads(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except OSError:
        return False
