"""What one process holds, read from /proc on file descriptors that stay open (Linux).

A kept descriptor belongs to one process: when that is gone the read fails, even if its pid is
used again. Reading one costs a tenth of opening the file again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import ClassVar

from memgauge.monitor.tracked import Stat, Tracked, shortened

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")  # how fine /proc gives CPU time: 10 ms as a rule
TICK_US = TICK_NS // 1000
# The kernel's own tick, CONFIG_HZ: the step of its coarse clock (clock_getres(2), CLOCK_MONOTONIC_COARSE = 6).
SCHEDULER_TICK_NS = round(time.clock_getres(6) * 1e9) if sys.platform == "linux" else TICK_NS


def cpu_clock(pid: int) -> int:
    """Return the clock that tells the CPU time of all threads of a process, to the nanosecond.

    Linux makes its number of the pid (clock_getcpuclockid(3); kernel, include/linux/posix-timers.h). Any user
    may read it: 0.4 µs, where /proc/PID/stat takes 3.4 (EPYC, Linux 6.18, November 2026, warm). For a process that
    runs on another core it is as of that core's last scheduler tick (kernel/sched/cputime.c, `thread_group_cputime`).
    """
    return ~pid << 3 | 2


def _has_cpu_clocks() -> bool:
    try:
        time.clock_gettime_ns(cpu_clock(os.getppid() or os.getpid()))
    except OSError:  # systems that only look like Linux
        return False
    return True


def has_tickless_cpus() -> bool:
    """Return whether some CPUs run a lone process without scheduler ticks (kernel, timers/no_hz, `nohz_full`)."""
    try:
        with open("/sys/devices/system/cpu/nohz_full") as file:
            return any(map(str.isdigit, file.read()))
    except OSError:
        return False


_KCMP = {"x86_64": 312, "aarch64": 272, "riscv64": 272, "ppc64le": 354, "s390x": 343}.get(os.uname().machine)
_KCMP_VM = 1  # include/uapi/linux/kcmp.h
_libc = ctypes.CDLL(None)


def _same_memory(pid: int, other: int) -> bool | None:
    """Return whether two processes have the same address space (kcmp(2)); None if the kernel does not tell."""
    if _KCMP is None:
        return None
    order = int(_libc.syscall(_KCMP, pid, other, _KCMP_VM, 0, 0))
    return None if order < 0 else order == 0


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

    return shortened(join(part.decode(errors="backslashreplace") for part in parts if part or len(parts) > 1))


def process_of(number: int) -> int:
    """Return the process that a thread belongs to (proc(5), Tgid); threads have numbers, and folders, of their own."""
    try:
        with open(f"/proc/{number}/status", "rb") as file:
            data = file.read(4096)
    except OSError:
        return number
    at = data.find(b"\nTgid:")
    return int(data[at + 6 :].split(None, 1)[0]) if at >= 0 else number


def all_pids() -> set[int]:
    """Return the numbers of all processes.

    Raises:
        OSError: /proc cannot be listed.
    """
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


class LinuxProcess(Tracked):
    """One process that is followed, by its descriptors.

    Raises:
        OSError: It is gone, or there are no descriptors left.
    """

    instrument = "/proc/PID/statm"
    has_cpu_clock = _has_cpu_clocks()
    cpu_instrument = "clock_gettime, the process's CPU clock" if has_cpu_clock else "/proc/PID/stat"
    cpu_refresh_us = SCHEDULER_TICK_NS // 1000 if has_cpu_clock else TICK_US
    slow_metrics: ClassVar[dict[str, str]] = {
        "pss_bytes": "/proc/PID/smaps_rollup",
        "uss_bytes": "/proc/PID/smaps_rollup",
        "threads": "/proc/PID/stat",
        "open_files": "/proc/PID/fd",
        "minor_faults": "/proc/PID/stat",
        "major_faults": "/proc/PID/stat",
    }
    has_peak = has_faults = True

    __slots__ = (
        "_counts",
        "_cpu_ns",
        "_memory_of",
        "_resident",
        "_stat",
        "_statm",
        "children_fd",
        "rollup_fd",
        "stat_fd",
        "statm_fd",
        "status_fd",
    )

    def __init__(self, pid: int) -> None:
        self.stat_fd = self.statm_fd = self.status_fd = self.children_fd = self.rollup_fd = -1
        self._memory_of = f"/proc/{pid}"
        try:
            self.stat_fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            self.statm_fd = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
            self.status_fd = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
            stat = self.read_stat()
        except OSError:
            self.close()
            raise
        super().__init__(pid, stat, stat.started_ticks * TICK_NS - _slept_ns())
        self._stat, self._counts, self._cpu_ns = b"", (0, 0), -1
        self._statm, self._resident = b"", 0
        self.clock = cpu_clock(pid) if self.has_cpu_clock else None
        try:
            self.children_fd = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.children_fd = -1  # the kernel was built without it, or it went just now

    def read_stat(self) -> Stat:
        return parse_stat(os.pread(self.stat_fd, 1024, 0))

    def read_resident(self) -> int:
        data = os.pread(self.statm_fd, 64, 0)
        if data != self._statm:
            self._statm = data
            self._resident = int(data.split(b" ", 2)[1]) * PAGE
        return self._resident

    def runs_in_memory_of(self, other: Tracked) -> bool:
        if (same := _same_memory(self.pid, other.pid)) is not None:
            return same
        # Not allowed, as in many containers. A fork has none of its parent's pages of files at first, so that its
        # sizes are others; between the two readings the parent's other threads may change them.
        return isinstance(other, LinuxProcess) and any(
            os.pread(self.statm_fd, 64, 0) == os.pread(other.statm_fd, 64, 0) for _ in range(3)
        )

    def read_counts(self) -> tuple[int, int]:
        cpu_ns = -1
        if self.clock is not None:
            cpu_ns = time.clock_gettime_ns(self.clock)
            if cpu_ns == self._cpu_ns:  # it has not run since: nothing of what it counts has moved
                return self._counts
            self._cpu_ns = cpu_ns
        data = os.pread(self.stat_fd, 1024, 0)
        if data != self._stat:
            self._stat = data
            f = data[data.rindex(b")") + 2 :].split(b" ", 18)
            self.faults = (int(f[7]), int(f[9]))
            self.threads = int(f[17])
            self._counts = ((int(f[11]) + int(f[12])) * TICK_NS, int(f[8]))
        if self.clock is not None:
            self._counts = (cpu_ns, self._counts[1])
        return self._counts

    def name_now(self) -> str:
        data = self._stat
        return data[data.index(b"(") + 1 : data.rindex(b")")].decode(errors="replace") if data else self.name

    def follow_other_thread(self) -> None:
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            folder = f"/proc/{self.pid}/task/{thread}"
            statm = os.open(f"{folder}/statm", os.O_RDONLY | os.O_CLOEXEC)
            if int(os.pread(statm, 64, 0).split()[1]) == 0:
                os.close(statm)
                continue
            for old in (self.statm_fd, self.status_fd, self.rollup_fd):
                if old >= 0:
                    os.close(old)
            self.statm_fd, self.rollup_fd, self._memory_of = statm, -1, folder
            self.status_fd = os.open(f"{folder}/status", os.O_RDONLY | os.O_CLOEXEC)
            return

    def read_highest(self) -> int | None:
        """Return VmHWM in bytes; None for a process that has no memory any more."""
        self.ran_ns = -1  # pages are taken from sleepers too, when memory is short: not unseen for long
        data = os.pread(self.status_fd, 4096, 0)
        at = data.find(b"VmHWM:")
        return None if at < 0 else int(data[at + 6 : data.index(b"kB", at)]) * 1024

    def children(self) -> list[int]:
        if self.children_fd < 0:
            return []
        return [int(pid) for pid in read_whole(self.children_fd).split()]

    def children_of_threads(self) -> list[int]:
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
                    found += [int(pid) for pid in read_whole(file.fileno()).split()]
            except OSError:
                continue
        return found

    def read_shares(self) -> tuple[int, int] | None:
        try:
            data = os.pread(self.rollup_fd, 4096, 0) if self.rollup_fd >= 0 else b""
        except ProcessLookupError:
            # The descriptor is of an address space: another program has begun, in a new one (execve(2)).
            os.close(self.rollup_fd)
            self.rollup_fd, data = -1, b""
        if self.rollup_fd < 0:
            self.rollup_fd = os.open(f"{self._memory_of}/smaps_rollup", os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(self.rollup_fd, 4096, 0)
        if b"Pss:" not in data:
            return None
        private = sum(_kib(data, key) for key in (b"Private_Clean:", b"Private_Dirty:", b"Private_Hugetlb:"))
        return _kib(data, b"\nPss:") * 1024, private * 1024

    def whole_cpu_ns(self) -> int:
        if not self._stat:
            return 0
        f = self._stat[self._stat.rindex(b")") + 2 :].split(b" ", 15)
        return self._counts[0] + (int(f[13]) + int(f[14])) * TICK_NS

    def waits_for_nobody(self) -> bool:
        try:
            data = os.pread(self.status_fd, 4096, 0)
        except OSError:
            return False
        at = data.find(b"SigIgn:") + 7
        return bool(int(data[at : data.index(b"\n", at)], 16) >> (signal.SIGCHLD - 1) & 1)

    def count_files(self) -> int:
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


def read_whole(fd: int) -> bytes:
    """Return all of a file of /proc, however long: one read gives no more than a page (kernel, fs/seq_file.c)."""
    data = os.pread(fd, PAGE, 0)
    if len(data) > PAGE // 2:  # a line is shorter than that: there may be more
        while piece := os.pread(fd, PAGE, len(data)):
            data += piece
    return data


def _slept_ns() -> int:
    """Return how much longer ago the machine booted than the monotonic clock counts."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()


def _kib(data: bytes, key: bytes) -> int:
    at = data.find(key)
    if at < 0:
        return 0
    at += len(key)
    return int(data[at : data.index(b"kB", at)])
