"""How this system tells of its processes and of itself: Linux's /proc, else psutil. Chosen once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NamedTuple, Protocol

from memgauge.errors import UsageError
from memgauge.monitor.tracked import Stat, Tracked

READER = "MEMGAUGE_READER"  # environment: "psutil" reads by psutil on Linux too


class Memory(Protocol):
    """Memory of the whole machine."""

    used_instrument: str
    available_instrument: str

    def read(self) -> tuple[int, int]:
        """Return used and available bytes."""

    def total_bytes(self) -> int:
        """Return the bytes that the machine has."""


class Counters(Protocol):
    """Counters of the whole machine that only grow."""

    energy_reason: str  # why there is no CPU energy, though the machine counts it

    def metrics(self) -> list[tuple[str, str, int | None]]:
        """Return metric, instrument and refresh time in µs of what `read` gives, in its order."""

    def read(self) -> list[int]:
        """Return the values of `metrics`, in its order."""


class System(NamedTuple):
    """What a recording asks of the system that it runs on."""

    name: str
    open: Callable[[int], Tracked]  # raises OSError for a process that is gone or may not be read
    stat: Callable[[int], Stat]  # raises OSError
    command: Callable[[int], str]  # of a pid, quoted as in a shell; "" if unknown
    owner: Callable[[int], int]  # user id; raises OSError
    process_of: Callable[[int], int]  # the process that a thread's number belongs to; of a process its own
    pids: Callable[[], set[int]]  # of all processes; raises OSError
    newest_pid: Callable[[], int] | None  # the last number given out: while it stands still nobody was born
    boot: Callable[[], str]  # names this run of the machine; "" if nothing does
    memory: Callable[[], Memory]
    counters: Callable[[], Counters]
    tells_events: bool  # whether the kernel may tell of forks and exits, and let us adopt orphans
    lacks: tuple[tuple[str, str], ...]  # what no recording here has, and what there is in its place


def this_system() -> System:
    """Return the reader of this system.

    Raises:
        UsageError: A recording is not possible here.
    """
    require_posix()
    if sys.platform == "linux" and os.environ.get(READER) != "psutil":
        from memgauge.monitor import machine, processes

        return System(
            "/proc",
            processes.LinuxProcess,
            processes.read_stat,
            processes.read_command,
            lambda pid: os.stat(f"/proc/{pid}").st_uid,
            processes.process_of,
            processes.all_pids,
            machine.newest_pid(),
            machine.boot,
            machine.Memory,
            machine.Counters,
            tells_events=True,
            lacks=(),
        )
    from memgauge.monitor import portable

    return System(
        "psutil",
        portable.PortableProcess,
        portable.read_stat,
        portable.read_command,
        portable.owner_of,
        lambda pid: pid,
        portable.all_pids,
        None,
        lambda: "",
        portable.Memory,
        portable.Counters,
        tells_events=False,
        lacks=portable.LACKS,
    )


def require_posix() -> None:
    """Refuse systems whose processes and signals work otherwise.

    Raises:
        UsageError: This is one of them.
    """
    if os.name != "posix":
        raise UsageError(
            f"recording works on Linux, and with fewer figures on macOS and other Unix systems; not on "
            f"{sys.platform}. In WSL it does. Here memgauge estimates, and reads recordings: show, report, "
            "compare, export"
        )
