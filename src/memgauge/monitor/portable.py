"""What processes hold and the machine uses, by psutil: for Unix systems without Linux's /proc.

It costs more and tells less: no exact peak of a process (the system keeps none, or tells only the parent
when the process ends), so phases have none either; processes are found by looking through the table of all
of them. Tried on Linux; what macOS answers comes from psutil's documentation.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from shlex import join
from typing import ClassVar

import psutil

from memgauge.monitor.tracked import Stat, Tracked, shortened
from memgauge.storage import MISSING

_TICK_S = 0.01  # how fine times of birth are compared
_ZOMBIE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)

LACKS = (
    (
        "this system keeps no exact peak of each process: highest samples are given, as lower bounds",
        "ask for a shorter --interval; the peak of the command itself is exact, once it has ended",
    ),
    ("the peaks of phases are highest samples too", "ask for a shorter --interval"),
    ("PSS cannot be read: the sum of RSS counts shared pages in each process", "USS counts no shared page"),
    ("processes are found by looking every 100 ms; one that lives shorter is missed and not counted", ""),
    ("memory pressure, control groups and CPU energy are not read on this system", ""),
)


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    try:
        yield
    except psutil.AccessDenied as error:
        raise PermissionError(f"process {error.pid} may not be read") from error
    except psutil.NoSuchProcess as error:  # and ZombieProcess, which is one
        raise ProcessLookupError(f"there is no process {error.pid}") from error


class PortableProcess(Tracked):
    """One process that is followed, by psutil.

    Raises:
        OSError: It is gone, or may not be read.
    """

    instrument = "psutil, memory_info: rss"
    cpu_instrument = "psutil, cpu_times"
    cpu_refresh_us = 10_000  # as Linux and BSD tell it there; finer elsewhere
    slow_metrics: ClassVar[dict[str, str]] = {
        "uss_bytes": "psutil, memory_full_info: uss",
        "threads": "psutil, num_threads",
        "open_files": "psutil, num_fds",
    }
    has_peak = has_faults = False

    __slots__ = ("_process", "_whole_cpu_ns")

    def __init__(self, pid: int) -> None:
        with _as_os_errors():
            self._process = psutil.Process(pid)
            self._process.memory_info()  # what may not be read is refused now
            born_unix_ns = int(self._process.create_time() * 1e9)
        self._whole_cpu_ns = 0
        super().__init__(pid, self.read_stat(), born_unix_ns - time.time_ns() + time.monotonic_ns())

    def read_stat(self) -> Stat:
        return _stat_of(self._process)

    def read_resident(self) -> int:
        with _as_os_errors():
            resident = int(self._process.memory_info().rss)
        self.hwm_bytes = max(self.hwm_bytes, resident)
        return resident

    def read_counts(self) -> tuple[int, int]:
        with _as_os_errors():
            spent = self._process.cpu_times()
            self.threads = self._process.num_threads()
        own = spent.user + spent.system
        self._whole_cpu_ns = round((own + spent.children_user + spent.children_system) * 1e9)
        return round(own * 1e9), 0

    def whole_cpu_ns(self) -> int:
        return self._whole_cpu_ns

    def waits_for_nobody(self) -> bool:
        return False  # psutil does not tell

    def read_highest(self) -> None:
        return None

    def reset_highest(self) -> bool:
        return False

    def read_shares(self) -> tuple[int, int] | None:
        with _as_os_errors():
            return MISSING, int(self._process.memory_full_info().uss)

    def count_files(self) -> int:
        with _as_os_errors():
            return int(self._process.num_fds())

    def children(self) -> list[int]:
        return []  # the table of all processes tells; asking for those of one would read it each time

    def children_of_threads(self) -> list[int]:
        return []


def _stat_of(process: psutil.Process) -> Stat:
    with _as_os_errors(), process.oneshot():
        is_over = process.status() in _ZOMBIE
        return Stat(
            name=process.name(),
            state="Z" if is_over else "S",
            parent=process.ppid(),
            group=os.getpgid(process.pid),
            session=os.getsid(process.pid),
            minor_faults=0,
            children_minor_faults=0,
            major_faults=0,
            cpu_ns=0,
            threads=1 if is_over else process.num_threads(),
            started_ticks=int(process.create_time() / _TICK_S),
        )


def read_stat(pid: int) -> Stat:
    """Return the stat of any process.

    Raises:
        OSError: There is none, or it may not be read.
    """
    with _as_os_errors():
        return _stat_of(psutil.Process(pid))


def read_command(pid: int) -> str:
    """Return a process's command line with its arguments quoted as a shell would, "" if unknown."""
    try:
        return shortened(join(psutil.Process(pid).cmdline()))
    except psutil.Error:
        return ""


def owner_of(pid: int) -> int:
    """Return the user id of a process.

    Raises:
        OSError: There is none, or it may not be read.
    """
    with _as_os_errors():
        return int(psutil.Process(pid).uids().real)


def all_pids() -> set[int]:
    """Return the numbers of all processes."""
    return set(psutil.pids())


class Memory:
    """System memory as psutil gives it; what counts as used differs from one system to another."""

    used_instrument = "psutil, virtual_memory: used"
    available_instrument = "psutil, virtual_memory: available"

    def read(self) -> tuple[int, int]:
        """Return used and available bytes."""
        found = psutil.virtual_memory()
        return int(found.used), int(found.available)

    def total_bytes(self) -> int:
        return int(psutil.virtual_memory().total)


class Counters:
    """Counters of the machine that only grow; each is there only if psutil gives it."""

    energy_reason = ""

    def metrics(self) -> list[tuple[str, str, int | None]]:
        """Return metric, instrument and refresh time in µs of what `read` gives, in its order."""
        found: list[tuple[str, str, int | None]] = [("system_cpu_ns", "psutil, cpu_times, all cores", 10_000)]
        self._has_disks = psutil.disk_io_counters() is not None
        if self._has_disks:
            found += [
                (f"disk_{way}_bytes", "psutil, disk_io_counters, nowrap", None) for way in ("read", "write")
            ]
        found += [
            (f"network_{way}_bytes", "psutil, net_io_counters, without loopback", None)
            for way in ("received", "sent")
        ]
        return found

    def read(self) -> list[int]:
        """Return the values of `metrics`, in its order."""
        spent = psutil.cpu_times()
        values = [round((sum(spent) - spent.idle - getattr(spent, "iowait", 0.0)) * 1e9)]
        if self._has_disks:
            disks = psutil.disk_io_counters()
            values += [disks.read_bytes, disks.write_bytes]
        links = [n for name, n in psutil.net_io_counters(pernic=True).items() if not name.startswith("lo")]
        return [*values, sum(n.bytes_recv for n in links), sum(n.bytes_sent for n in links)]
