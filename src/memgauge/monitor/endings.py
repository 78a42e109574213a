"""Whether the kernel killed a process for lack of memory: by the counters of such kills, and by its log."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from memgauge.monitor.cgroup import Group

_SURE = "the kernel killed it for lack of memory"
_FIRST_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO: only here the log's process numbers are ours


class OomKills:
    """The out-of-memory kills of the job's control group; of the machine where the group does not count them.

    Args:
        group: The job's group.
    """

    def __init__(self, group: Group | None) -> None:
        self._group = group
        self._of_group = None if group is None else group.oom_kills()
        self._of_machine = _of_machine()

    def was_cause(self, pid: int) -> str:
        """Return why SIGKILL came to a process that it has ended; "" if not for lack of memory.

        Counters say that some process was killed; the kernel's log, where it may be read, says which. It
        decides, since a process may have moved to another group. Without it the group's counter does, and
        the machine's, which counts the kills of other jobs too, only where the group has none.
        """
        if self._of_machine is not None and (_of_machine() or 0) <= self._of_machine:
            return ""
        named = _is_named(pid)
        if named is not None:
            return _SURE if named else ""
        if self._of_group is not None and self._group is not None:
            return f"probably {_SURE}" if (self._group.oom_kills() or 0) > self._of_group else ""
        return "" if self._of_machine is None else f"probably {_SURE}"


def _of_machine() -> int | None:
    with contextlib.suppress(OSError, IndexError, ValueError):
        data = Path("/proc/vmstat").read_bytes()
        at = data.index(b"oom_kill ")
        return int(data[at + 9 :].split(None, 1)[0])
    return None


def _is_named(pid: int) -> bool | None:
    """Return whether the kernel's log names a process as killed; None if it cannot be read or has other numbers."""
    try:
        if os.readlink("/proc/self/ns/pid") != _FIRST_PIDS:
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
