"""Which processes belong to the job: its own, their children, however they came about (Linux).

Three ways to find one, each the net under the one before:

  events      the kernel tells of every fork, exec and exit (process connector; needs CAP_NET_ADMIN):
              nobody is missed, and how each ended is known
  children    /proc/PID/task/TID/children, read whenever a new pid was given out since the last look
  the table   all of /proc: who left the tree's parents but stayed in its process groups

Without events a process that lives between two looks is missed. It still leaves its page faults in
its parent's account when it is waited for: that is how "at least so many were missed" is known.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable

from memgauge.monitor.machine import LastPid
from memgauge.monitor.processes import Tracked, read_command, read_stat

EVENTS, CHILDREN, TABLE, ADOPTED, GIVEN = (
    "event",
    "children",
    "process table",
    "orphan adopted",
    "given",
)
_THREADS_EVERY_US = 100_000  # the children of other threads are looked for no more often


class Tree:
    """The processes that are followed, by pid.

    Args:
        roots: The pids to begin with.
        found: Is called with each process that joins, after it was opened.
        own: The sampler's own pid if orphans are adopted by it, else None.
    """

    def __init__(self, found: Callable[[Tracked], None], own: int | None, excluded: set[int]) -> None:
        self.live: dict[int, Tracked] = {}
        self.joined = 0  # how many were ever followed
        self.unseen = 0  # exits of processes that were never read
        self.unseen_is_exact = False
        self.refused: str = ""  # why a process of the tree could not be opened, the last time
        self.events: Events | None = None
        self.excluded = excluded
        self._found = found
        self._own = own
        self._last_pid = LastPid()
        self._threads_looked_us = -_THREADS_EVERY_US
        self._ghosts: dict[int, int] = {}  # forked, but gone before it could be opened: pid -> parent
        self._groups: set[int] = set()
        self._strangers: set[int] = set()
        self._table_pid = -1

    def listen(self) -> str:
        """Begin to listen to events; returns "" or why that is not possible."""
        try:
            self.events = Events()
        except OSError as error:
            return f"{error.strerror or error}"
        self.unseen_is_exact = True
        return ""

    def add(self, pid: int, how: str, parent: int | None = None) -> Tracked | None:
        """Follow a process and all that descend from it; None if it is gone already."""
        if pid in self.live or pid in self.excluded:
            return self.live.get(pid)
        try:
            process = Tracked(pid)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self.refused = "no file descriptors are left to follow more processes"
            elif error.errno in (errno.EACCES, errno.EPERM):
                self.refused = f"process {pid} may not be read ({error.strerror})"
            return None
        process.found = how
        process.command = read_command(pid)
        self.live[pid] = process
        self.joined += 1
        self._found(process)
        for child in self._children_of(process, with_threads=True):
            self.add(child, how)
        return process

    def look(self, now_us: int) -> None:
        """Find new processes, if any were made since the last look."""
        if self.events is not None or not self._last_pid.has_moved():
            return
        with_threads = now_us - self._threads_looked_us >= _THREADS_EVERY_US
        if with_threads:
            self._threads_looked_us = now_us
        for process in list(self.live.values()):
            for pid in self._children_of(process, with_threads and process.threads > 1):
                if pid not in self.live:
                    self.add(pid, CHILDREN)
        self.adopt()

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
            with open(f"/proc/self/task/{self._own}/children", "rb", buffering=0) as file:
                pids = [int(pid) for pid in file.read(65536).split()]
        except OSError:
            return
        for pid in pids:
            if pid not in self.live and pid not in self.excluded:
                self.add(pid, ADOPTED)

    def look_through_table(self) -> None:
        """Find processes that no parent leads to: by process group, or a parent's thread."""
        newest = self._last_pid.last
        if self.events is not None and self.unseen_is_exact and self._table_pid != -1:
            return  # events have told of everybody since the first look
        if self.events is not None:
            self._last_pid.has_moved()
            newest = self._last_pid.last
        if newest == self._table_pid and newest != -1:
            return
        self._table_pid = newest
        try:
            pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        except OSError:
            return
        self._strangers &= pids
        self._groups |= {pid for pid in self.live if _leads(pid)}
        for pid in sorted(pids - self._strangers - self.live.keys() - self.excluded):
            try:
                stat = read_stat(pid)
            except OSError:
                continue
            if stat.state in "ZX":
                continue
            if stat.parent in self.live or stat.group in self._groups:
                self.add(pid, TABLE)
            else:
                self._strangers.add(pid)
        self.adopt()

    def hear(self, exec_: Callable[[Tracked], None], ended: Callable[[Tracked, int | None], None]) -> bool:
        """Take in what events tell, in their order: a pid may end and be given out again within one look.

        Returns whether anything was about the tree; they tell of the whole machine.

        Args:
            exec_: Is called with a process that has become another program.
            ended: Is called with a process whose first thread has ended and its status, as wait(2) gives it;
                with None if its number belongs to another process by now.
        """
        if self.events is None:
            return False
        events, complete = self.events.read()
        concerned = not complete
        for what, pid, other in events:
            concerned |= pid in self.live or other in self.live or pid in self._ghosts or other == self._own
            if what == FORK:  # of a child `pid` by `other`
                is_ours = other in self.live or other in self._ghosts or other == self._own
                if pid in self.live and self.live[pid].is_over():
                    ended(self.live[pid], None)
                if is_ours and pid not in self.excluded and self.add(pid, EVENTS) is None:
                    self._ghosts[pid] = other
            elif what == EXEC and pid in self.live:
                exec_(self.live[pid])
            elif what == EXIT:
                if pid in self.live:
                    ended(self.live[pid], other)
                elif self._ghosts.pop(pid, None) is not None:
                    self.unseen += 1
        if not complete:
            self.unseen_is_exact = False
            for process in list(self.live.values()):
                for child in self._children_of(process, True):
                    self.add(child, CHILDREN)
        return concerned

    def drop(self, process: Tracked) -> None:
        """Follow a process no more."""
        process.gone = True
        self.live.pop(process.pid, None)
        self._last_pid.forget()  # its number may be another's already
        process.close()

    def close(self) -> None:
        """Stop to listen."""
        if self.events is not None:
            self.events.close()

    def account_for_children(self, process: Tracked, faults: int, gone: Iterable[Tracked]) -> None:
        """Count a missed child if a process inherited page faults and none of its known children ended."""
        grew = faults - process.children_faults
        process.children_faults = faults
        if self.events is not None or grew <= 0:
            return
        if not any(child.parent_pid == process.pid for child in gone):
            self.unseen += 1


def _leads(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except OSError:
        return False


FORK, EXEC, EXIT = 1, 2, 0x80000000
_NETLINK_CONNECTOR, _CN_IDX_PROC, _CN_VAL_PROC, _LISTEN = 11, 1, 1, 1
_HEADERS = 16 + 20  # struct nlmsghdr, struct cn_msg
_EVENT = struct.Struct("=IIQIIII")  # what, cpu, timestamp_ns, and the first four numbers of the event
_BUFFER = 4 * 2**20


class Events:
    """Forks, execs and exits of the whole system, from the kernel (linux/cn_proc.h).

    Raises:
        OSError: It is not allowed (needs CAP_NET_ADMIN in the first namespaces), or not built in.
    """

    def __init__(self) -> None:
        self.socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_CONNECTOR
        )
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            self.socket.bind((0, _CN_IDX_PROC))
            payload = struct.pack("=IIIIHHI", _CN_IDX_PROC, _CN_VAL_PROC, 0, 0, 4, 0, _LISTEN)
            self.socket.send(struct.pack("=IHHII", 16 + len(payload), 3, 0, 0, os.getpid()) + payload)
            self.socket.settimeout(0.2)
            self.socket.recv(4096)  # the kernel acknowledges; silence means another namespace
            self.socket.setblocking(False)
        except OSError:
            self.socket.close()
            raise

    def read(self) -> tuple[list[tuple[int, int, int]], bool]:
        """Return (what, pid, parent or exit status) of what is waiting, and whether nothing was lost."""
        found: list[tuple[int, int, int]] = []
        complete = True
        while len(found) < 20_000:
            try:
                data = self.socket.recv(4096)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                complete = False
                continue
            if len(data) < _HEADERS + _EVENT.size:
                continue
            what, _, _, a, b, c, d = _EVENT.unpack_from(data, _HEADERS)
            if what == FORK and c == d:  # child pid == child tgid: a process, not a thread
                found.append((FORK, d, b))
            elif (what == EXEC and a == b) or (what == EXIT and a == b):
                found.append((what, b, c))
        return found, complete

    def close(self) -> None:
        self.socket.close()
