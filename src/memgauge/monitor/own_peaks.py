"""The kernel's highest values of this process and of its control group, read and set back at phases."""

from __future__ import annotations

import contextlib
import os
from operator import call
from typing import Any

from memgauge.monitor.held import Held

_MOST_BYTES = 2047  # of /proc/self/status: VmHWM stands well within them
_BACK = b"5"  # sets the highest resident size back (proc(5), clear_refs)


class OwnPeaks:
    """What this process may read and set back.

    What another thread takes and gives back between the reading and the setting back would be in no phase.
    os.pread and os.write let other threads of Python run; libc's own, called with the interpreter's lock held and
    one after the other without bytecode in between, do not.

    Args:
        may_reset: Whether the recording owns this process's highest resident size.
        group: File of the control group's peak, if that may be set back too.

    Raises:
        ImportError: This Python has no ctypes.
        OSError: The kernel does not let us.
    """

    def __init__(self, may_reset: bool, group: str) -> None:
        self._files: list[Held] = []
        self._written: list[Held] = []  # of them
        # What is called: functions, descriptors, buffers, sizes, offsets.
        self._calls: tuple[tuple[Any, ...], ...] = ()
        if not may_reset:
            return
        import ctypes  # by a job that is recorded only

        libc = ctypes.PyDLL(None)
        libc.pread.restype = libc.pwrite.restype = ctypes.c_ssize_t  # of this object, which is ours alone
        self._status, self._charged = (ctypes.create_string_buffer(_MOST_BYTES + 1) for _ in range(2))

        def pair(source: int, buffer: Any, back: int, said: bytes) -> list[tuple[Any, ...]]:
            size, offset = ctypes.c_size_t(_MOST_BYTES), ctypes.c_long(0)
            return [
                (libc.pread, ctypes.c_int(source), buffer, size, offset),
                (libc.pwrite, ctypes.c_int(back), ctypes.c_char_p(said), ctypes.c_size_t(len(said)), offset),
            ]

        try:
            status = self._open("/proc/self/status", os.O_RDONLY)
            clear = self._open("/proc/self/clear_refs", os.O_WRONLY, is_written=True)
        except OSError:
            self.close()
            raise
        calls = pair(status, self._status, clear, _BACK)
        # The group may be another user's, and before Linux 6.12 its peak is the whole run's only.
        with contextlib.suppress(OSError):
            if group:
                file = self._open(group, os.O_RDWR, is_written=True)
                os.write(file, b"0")
                calls += pair(file, self._charged, file, b"0")
        self._calls = tuple(zip(*calls, strict=True))

    def _open(self, path: str, flags: int, *, is_written: bool = False) -> int:
        file = Held(os.open(path, flags | os.O_CLOEXEC))
        self._files.append(file)
        if is_written:
            self._written.append(file)
        return file.number

    def take(self) -> tuple[int | None, int | None]:
        """Return the highest resident bytes since the last call, and the group's; None where there is none to read."""
        if not all(file.is_ours() for file in self._written):  # the program has closed what it did not open
            self.close()
        if not self._calls:
            return None, None
        read, _, *group = map(call, *self._calls)
        status = self._status.raw[: max(read, 0)]
        at = status.find(b"VmHWM:")
        highest = None if at < 0 else int(status[at + 6 : status.index(b"kB", at)]) * 1024
        return highest, int(self._charged.value[: group[0]]) if group and group[0] > 0 else None

    def close(self) -> None:
        """Let go of the files."""
        self._calls = ()
        self._written.clear()
        while self._files:
            self._files.pop().close()
