"""The job's control group: the kernel's own peak of the whole tree, page cache and kernel memory included.

    v2    memory.peak, memory.current; since Linux 6.12 each open file has a peak of its own that a write resets
    v1    memory.max_usage_in_bytes, memory.usage_in_bytes; a write of 0 resets it for everybody

The group that a job finds itself in may hold others and have a past: its peak is then an upper bound.
`make` gives the command a group of its own, where that is allowed: its peak is then exact, for all
processes together and however short they lived.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

_PREFIX = "memgauge-"


class Names(NamedTuple):
    """How one version of the interface calls things."""

    version: int
    current: str
    peak: str
    anonymous: bytes
    file: bytes
    events: str  # has a line "oom_kill N"


V1 = Names(
    1, "memory.usage_in_bytes", "memory.max_usage_in_bytes", b"\nrss ", b"\ncache ", "memory.oom_control"
)
V2 = Names(2, "memory.current", "memory.peak", b"\nanon ", b"\nfile ", "memory.events")


class Group:
    """One memory control group.

    Args:
        folder: Where it is, under /sys/fs/cgroup.
        names: Its version.
        is_own: Whether it was made for this job alone.

    Raises:
        OSError: It has no such counters, as the root of v2 has none.
    """

    def __init__(self, folder: Path, names: Names, *, is_own: bool = False) -> None:
        self.folder, self.names, self.is_own = folder, names, is_own
        self._is_reset = False
        self._resets: int | None = None  # pid of the process that resets the peak of v1 at its phases
        self._current = os.open(folder / names.current, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._stat = os.open(folder / "memory.stat", os.O_RDONLY | os.O_CLOEXEC)
            self._peak = self._open_peak()
        except OSError:
            os.close(self._current)
            raise

    def _open_peak(self) -> int:
        path = self.folder / self.names.peak
        if self.names.version == 2:
            with contextlib.suppress(OSError):  # older than 6.12, or not ours to write
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    os.write(fd, b"reset\n")  # for this descriptor only: nobody else's numbers change
                    self._is_reset = True
                    return fd
                except OSError:
                    os.close(fd)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def instrument(self) -> str:
        return f"cgroup v{self.names.version}, {self.names.peak}"

    def read_peak(self) -> int:
        """Return the highest charge in bytes."""
        return int(os.pread(self._peak, 64, 0))

    def read(self) -> tuple[int, int, int]:
        """Return bytes charged now: all, anonymous memory, page cache."""
        stat = b"\n" + os.pread(self._stat, 8192, 0)
        parts = [_number(stat, key) for key in (self.names.anonymous, self.names.file)]
        return int(os.pread(self._current, 64, 0)), parts[0], parts[1]

    def kind(self) -> tuple[str, str]:
        """Return what its peak is worth, and why it is no more."""
        if self.is_own:
            return "exact", ""
        others = "may hold more than this job"
        return "upper bound", f"the group {others}" + ("" if self._is_reset else ", and has a past")

    def oom_kills(self) -> int | None:
        """Return how many of its processes the kernel killed for lack of memory; None if it does not say."""
        try:
            found = _number(b"\n" + (self.folder / self.names.events).read_bytes(), b"\noom_kill ")
        except OSError:
            return None
        return None if found < 0 else found

    def peak_for_phases(self, pid: int) -> str:
        """Return the file whose peak a process may reset at its phases; "" if it must not.

        Of v2 each open file has a peak of its own. Of v1 there is one for all: only in a group of our own,
        and only one process may.
        """
        is_v2 = self.names.version == 2
        if (is_v2 and not self._is_reset) or (not is_v2 and not self.is_own):
            return ""
        if not is_v2:
            if self._resets not in (None, pid) and os.path.exists(f"/proc/{self._resets}"):
                return ""
            self._resets = pid
        return str(self.folder / self.names.peak)

    def enter(self, pid: int) -> None:
        """Move a process into it.

        Raises:
            OSError: That is not allowed.
        """
        (self.folder / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Let go; a group that was made here is removed, who is left in it moves up."""
        for fd in (self._current, self._stat, self._peak):
            os.close(fd)
        if self.is_own:
            with contextlib.suppress(OSError):
                for pid in (self.folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(OSError):
                        (self.folder.parent / "cgroup.procs").write_text(pid)
                self.folder.rmdir()


def of_process(pid: int, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> Group | None:
    """Return the memory group of a process; None where it has none with counters."""
    found = _place(pid, root, proc)
    if found is None:
        return None
    try:
        return Group(*found)
    except OSError:
        return None


def make(root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> Group:
    """Make a group for one job, below the group that we are in.

    Raises:
        OSError: That is not allowed, or this system has no memory groups.
    """
    place = _place(os.getpid(), root, proc)
    if place is None:
        raise OSError("this system has no memory control groups")
    above, names = place
    _sweep(above)
    folder = above / f"{_PREFIX}{os.getpid()}"
    folder.mkdir()
    try:
        return Group(folder, names, is_own=True)
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise


def _place(pid: int, root: Path, proc: Path) -> tuple[Path, Names] | None:
    """Return the folder of a process's memory group, and its version (cgroups(7))."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    paths = {parts[1]: parts[2] for line in lines if len(parts := line.split(":", 2)) == 3}
    for controllers, path in paths.items():
        if "memory" in controllers.split(","):
            return _inside(root / "memory", path), V1
    return (_inside(root, paths[""]), V2) if "" in paths else None


def _inside(mount: Path, path: str) -> Path:
    """Return the group's folder; in a container the mount may begin at the group itself."""
    folder = mount / path.lstrip("/")
    return folder if folder.is_dir() else mount


def _sweep(above: Path) -> None:
    """Remove groups that killed recordings left; one that still holds processes stays."""
    for folder in above.glob(f"{_PREFIX}[0-9]*"):
        pid = folder.name.removeprefix(_PREFIX)
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _number(data: bytes, key: bytes) -> int:
    at = data.find(key)
    return -1 if at < 0 else int(data[at + len(key) :].split(b"\n", 1)[0])
