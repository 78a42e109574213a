"""What one process holds, read from /proc on file descriptors that stay open (Linux).

A kept descriptor belongs to one process: when that is gone the read fails, even if its pid is
used again. Reading one costs a tenth of opening the file again.
"""

from __future__ import annotations

import os
from array import array
from typing import Any, NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")  # how fine the kernel gives CPU time: 10 ms as a rule
TICK_US = TICK_NS // 1000


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that are recorded (proc(5))."""

    name: str
    state: str
    parent: int
    group: int
    session: int
    minor_faults: int
    children_minor_faults: int  # of children that ended and were waited for, and of theirs
    major_faults: int
    cpu_ns: int  # user and system time, in clock ticks
    threads: int
    started_ticks: int  # since boot; with the pid it names a process for good


def parse_stat(data: bytes) -> Stat:
    """Return the fields of one /proc/PID/stat; a name may hold spaces and parentheses."""
    end = data.rindex(b")")
    f = data[end + 2 :].split(b" ", 21)
    return Stat(
        data[data.index(b"(") + 1 : end].decode(errors="replace"),
        f[0].decode(),
        int(f[1]),
        int(f[2]),
        int(f[3]),
        int(f[7]),
        int(f[8]),
        int(f[9]),
        (int(f[11]) + int(f[12])) * TICK_NS,
        int(f[17]),
        int(f[19]),
    )


def read_stat(pid: int) -> Stat:
    """Return the stat of any process.

    Raises:
        OSError: There is none.
    """
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        return parse_stat(file.read(1024))


def read_command(pid: int) -> str:
    """Return a process's command line with its arguments quoted as a shell would, "" if unknown."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            parts = file.read().rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    from shlex import join

    text = join(part.decode(errors="backslashreplace") for part in parts if part or len(parts) > 1)
    return text if len(text) <= LONGEST_COMMAND else f"{text[:LONGEST_COMMAND]}… ({len(text)} characters)"


LONGEST_COMMAND = 4096


class Tracked:
    """One process that is followed: its descriptors, and the columns that its values go to.

    Raises:
        OSError: It is gone, or there are no descriptors left.
    """

    instrument = "/proc/PID/statm"

    __slots__ = (
        "_counts",
        "_stat",
        "children_faults",
        "children_fd",
        "columns",
        "command",
        "cpu",
        "faults",
        "found",
        "gone",
        "has_past",
        "hwm_bytes",
        "hwm_kind",
        "hwm_read_us",
        "id",
        "kept_bytes",
        "lock",
        "looked_bytes",
        "name",
        "parent_pid",
        "pid",
        "resident",
        "resident_bytes",
        "rollup_fd",
        "seen_us",
        "series",
        "shares",
        "started_ticks",
        "stat_fd",
        "statm_fd",
        "status_fd",
        "threads",
        "unread",
    )

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.stat_fd = self.statm_fd = self.status_fd = self.children_fd = self.rollup_fd = -1
        try:
            self.stat_fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            self.statm_fd = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
            self.status_fd = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
            stat = self.read_stat()
        except OSError:
            self.close()
            raise
        self.name = stat.name
        self.parent_pid = stat.parent
        self.started_ticks = stat.started_ticks
        self.threads = stat.threads
        self.faults = (stat.minor_faults, stat.major_faults)
        self.children_faults = stat.children_minor_faults
        self._stat, self._counts = b"", (0, 0)
        self.shares: tuple[int, int] | None = None
        self.has_past = False  # whether it was there before the recording
        self.looked_bytes = self.kept_bytes = 0
        self.series: list[tuple[Any, int]] = []
        self.command = ""
        self.id = 0
        self.seen_us = 0
        self.found = ""
        self.gone = False
        self.lock: object = None
        self.unread: set[str] = set()
        self.hwm_bytes = 0
        self.hwm_read_us = 0
        self.hwm_kind = ""
        self.resident: array[int] = array("q")
        self.resident_bytes = 0  # the last of them
        self.cpu: array[int] = array("q")
        self.columns: list[array[int]] = []  # of the slow lane
        try:
            self.children_fd = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.children_fd = -1  # the kernel was built without it, or it went just now

    def read_stat(self) -> Stat:
        return parse_stat(os.pread(self.stat_fd, 1024, 0))

    def read_resident(self) -> int:
        """Return resident bytes; 0 for a process that has no memory any more.

        Raises:
            OSError: It is gone.
        """
        return int(os.pread(self.statm_fd, 64, 0).split(b" ", 2)[1]) * PAGE

    def read_counts(self) -> tuple[int, int]:
        """Return CPU time in ns and the minor faults of its past children; sets `faults` and `threads`.

        Raises:
            OSError: It is gone.
        """
        data = os.pread(self.stat_fd, 1024, 0)
        if data != self._stat:  # a process that sleeps says the same again
            self._stat = data
            f = data[data.rindex(b")") + 2 :].split(b" ", 18)
            self.faults = (int(f[7]), int(f[9]))
            self.threads = int(f[17])
            self._counts = ((int(f[11]) + int(f[12])) * TICK_NS, int(f[8]))
        return self._counts

    def is_over(self) -> bool:
        """Return whether it has ended, waited for or not; its first thread may be over before the others."""
        try:
            stat = self.read_stat()
        except OSError:
            return True
        return stat.state in "ZX" and stat.threads <= 1

    def follow_other_thread(self) -> None:
        """Read memory by a thread that lives, since the first one is over: that one shows none any more."""
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            folder = f"/proc/{self.pid}/task/{thread}"
            statm = os.open(f"{folder}/statm", os.O_RDONLY | os.O_CLOEXEC)
            if int(os.pread(statm, 64, 0).split()[1]) == 0:
                os.close(statm)
                continue
            for old in (self.statm_fd, self.status_fd, self.rollup_fd):
                if old >= 0:
                    os.close(old)
            self.statm_fd, self.rollup_fd = statm, -1
            self.status_fd = os.open(f"{folder}/status", os.O_RDONLY | os.O_CLOEXEC)
            return

    def read_highest(self) -> int | None:
        """Return VmHWM in bytes; None for a process that has no memory any more."""
        data = os.pread(self.status_fd, 4096, 0)
        at = data.find(b"VmHWM:")
        return None if at < 0 else int(data[at + 6 : data.index(b"kB", at)]) * 1024

    def children(self) -> list[int]:
        """Return the pids of the children that its main thread made."""
        if self.children_fd < 0:
            return []
        data = os.pread(self.children_fd, 65536, 0)
        return [int(pid) for pid in data.split()]

    def children_of_threads(self) -> list[int]:
        """Return the pids of the children that its other threads made."""
        found: list[int] = []
        try:
            threads = os.listdir(f"/proc/{self.pid}/task")
        except OSError:
            return found
        for thread in threads:
            if thread == str(self.pid):
                continue
            try:
                with open(f"/proc/{self.pid}/task/{thread}/children", "rb", buffering=0) as file:
                    found += [int(pid) for pid in file.read(65536).split()]
            except OSError:
                continue
        return found

    def read_shares(self) -> tuple[int, int] | None:
        """Return PSS and USS in bytes; None if the process has no memory any more.

        Raises:
            PermissionError: The process may not be looked into.
        """
        if self.rollup_fd < 0:
            self.rollup_fd = os.open(f"/proc/{self.pid}/smaps_rollup", os.O_RDONLY | os.O_CLOEXEC)
        data = os.pread(self.rollup_fd, 4096, 0)
        if b"Pss:" not in data:
            return None
        private = sum(_kib(data, key) for key in (b"Private_Clean:", b"Private_Dirty:", b"Private_Hugetlb:"))
        return _kib(data, b"\nPss:") * 1024, private * 1024

    def count_files(self) -> int:
        """Return the number of its open file descriptors.

        Raises:
            PermissionError: The process may not be looked into.
        """
        folder = f"/proc/{self.pid}/fd"
        return os.stat(folder).st_size or len(os.listdir(folder))  # its size is their number since Linux 6.2

    def reset_highest(self) -> bool:
        """Set VmHWM back to what is resident now; False where that is not allowed (proc(5), clear_refs)."""
        try:
            with open(f"/proc/{self.pid}/clear_refs", "wb", buffering=0) as file:
                file.write(b"5")
        except OSError:
            return False
        return True

    def close(self) -> None:
        for fd in (self.stat_fd, self.statm_fd, self.status_fd, self.children_fd, self.rollup_fd):
            if fd >= 0:
                os.close(fd)
        self.stat_fd = self.statm_fd = self.status_fd = self.children_fd = self.rollup_fd = -1


def _kib(data: bytes, key: bytes) -> int:
    at = data.find(key)
    if at < 0:
        return 0
    at += len(key)
    return int(data[at : data.index(b"kB", at)])
