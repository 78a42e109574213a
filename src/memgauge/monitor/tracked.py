"""One process that is followed: what is known of it, and the columns that its values go to.

How it is read is a matter of the system: `processes` does it by Linux's /proc, `portable` by psutil.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from typing import Any, ClassVar, NamedTuple

from memgauge.monitor.exits import Exit

LONGEST_COMMAND = 4096


class Stat(NamedTuple):
    """What a system tells of any process; what it does not tell is 0."""

    name: str
    state: str  # one letter, as in proc(5): Z for one that has ended and was not waited for
    parent: int
    group: int
    session: int
    minor_faults: int
    children_minor_faults: int  # of children that ended and were waited for, and of theirs
    major_faults: int
    cpu_ns: int  # user and system time
    threads: int
    started_ticks: int  # of 10 ms as a rule, since the system's own zero; with the pid it names a process


class Tracked(ABC):
    """One process that is followed.

    Args:
        pid: Its number.
        stat: What it was when it joined.
        born_ns: When it began, on the monotonic clock.
    """

    instrument: ClassVar[str]  # of resident bytes
    cpu_instrument: ClassVar[str]
    cpu_refresh_us: ClassVar[int | None]  # how fine it gives CPU time; None for finer than anybody asks
    slow_metrics: ClassVar[dict[str, str]]  # of the slow lane -> its instrument
    has_peak: ClassVar[bool]  # whether the system keeps the highest resident size, and sets it back
    has_faults: ClassVar[bool]  # whether page faults tell that pages came or went

    __slots__ = (
        "at_exit",
        "born_ns",
        "children_faults",
        "clock",
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
        "lender",
        "lock",
        "looked_bytes",
        "name",
        "parent_pid",
        "pid",
        "ran_ns",
        "resident",
        "resident_bytes",
        "seen_us",
        "series",
        "shares",
        "started_ticks",
        "threads",
        "unread",
    )

    def __init__(self, pid: int, stat: Stat, born_ns: int) -> None:
        self.pid = pid
        self.name = stat.name
        self.parent_pid = stat.parent
        self.started_ticks, self.born_ns = stat.started_ticks, born_ns
        self.threads = stat.threads
        self.faults = (stat.minor_faults, stat.major_faults)
        self.children_faults = stat.children_minor_faults
        self.shares: tuple[int, int] | None = None
        self.lender: Tracked | None = (
            None  # its parent, while it runs in that one's memory and has none of its own
        )
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
        self.at_exit: Exit | None = None  # what the kernel told of its end
        self.resident: array[int] = array("q")
        self.resident_bytes = 0  # the last of them
        self.clock: int | None = None  # of time.clock_gettime_ns: tells for how long it has run
        self.ran_ns = -1  # what that told when its memory was last read; -1 lets it be read whatever it tells
        self.cpu: array[int] = array("q")
        self.columns: dict[str, array[int]] = {}  # of the slow lane, by metric

    @abstractmethod
    def read_stat(self) -> Stat:
        """Return what it is now.

        Raises:
            OSError: It is gone.
        """

    @abstractmethod
    def read_resident(self) -> int:
        """Return resident bytes; 0 for a process that has no memory any more.

        Raises:
            OSError: It is gone.
        """

    def runs_in_memory_of(self, other: Tracked) -> bool:
        """Return whether both have one and the same memory, as after vfork(2) until the child becomes another program."""
        return False

    def is_lent_memory(self) -> bool:
        """Return whether it runs in its parent's memory still; looks, for one that did a moment ago.

        Raises:
            OSError: It is gone.
        """
        if self.lender is not None and not self.runs_in_memory_of(self.lender):
            self.lender = None
        return self.lender is not None

    @abstractmethod
    def read_counts(self) -> tuple[int, int]:
        """Return CPU time in ns and the minor faults of its past children; sets `faults` and `threads`.

        Raises:
            OSError: It is gone.
        """

    @abstractmethod
    def read_highest(self) -> int | None:
        """Return the highest resident size in bytes; None if it has no memory any more, or nobody keeps it.

        Raises:
            OSError: It is gone.
        """

    @abstractmethod
    def reset_highest(self) -> bool:
        """Set the highest resident size back to what is resident now; False where that is not allowed."""

    @abstractmethod
    def read_shares(self) -> tuple[int, int] | None:
        """Return PSS and USS in bytes, MISSING for one that the system lacks; None if it has no memory.

        Raises:
            PermissionError: The process may not be looked into.
        """

    @abstractmethod
    def count_files(self) -> int:
        """Return the number of its open file descriptors.

        Raises:
            PermissionError: The process may not be looked into.
        """

    @abstractmethod
    def children(self) -> list[int]:
        """Return the pids of the children that its main thread made."""

    @abstractmethod
    def children_of_threads(self) -> list[int]:
        """Return the pids of the children that its other threads made."""

    @abstractmethod
    def whole_cpu_ns(self) -> int:
        """Return CPU time in ns by the last reading of its counts, with that of all that it waited for."""

    @abstractmethod
    def waits_for_nobody(self) -> bool:
        """Return whether it ignores SIGCHLD: then its children's CPU time is in nobody's account (wait(2))."""

    def is_over(self) -> bool:
        """Return whether it has ended, waited for or not; its first thread may be over before the others."""
        try:
            stat = self.read_stat()
        except OSError:
            return True
        return stat.state in "ZX" and stat.threads <= 1

    def name_now(self) -> str:
        """Return its name by the last reading of its counts; programs rename themselves."""
        return self.name

    def follow_other_thread(self) -> None:  # noqa: B027
        """Read memory by a thread that lives, since the first one is over and shows none any more."""

    def close(self) -> None:  # noqa: B027
        """Let go of what reading it holds open."""


def shortened(command: str) -> str:
    """Return a command line, cut where it is longer than anybody reads."""
    if len(command) <= LONGEST_COMMAND:
        return command
    return f"{command[:LONGEST_COMMAND]}… ({len(command)} characters)"
