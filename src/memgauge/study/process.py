"""One trial as processes of this machine: started under the monitor, watched, ended at its limits.

Everything that belongs to a trial holds the lock of its folder, inherited from process to process; so a runner
that comes later knows whether something of a trial still lives, whoever was killed in between.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from memgauge.errors import MissingError
from memgauge.explain.recording import how_it_ended
from memgauge.monitor.processes import PAGE, read_stat
from memgauge.monitor.recorder import interval_ns
from memgauge.storage import RunFile
from memgauge.study.harvest import JOB, MACHINE, OBSERVED, RESULT, RUN, SAID, STOPPED, USED, Stopped
from memgauge.study.isolation import environment, used_bytes
from memgauge.study.order import Order
from memgauge.study.trial import LIFELINE, Job
from memgauge.units import format_bytes

LOCK = "alive"
ESTIMATE = "estimate.json"
LOOK_S = 0.01  # between two looks at a trial's memory and end
_ORPHANS_S = 5.0  # how long a killed process may take to be gone
_TREE_EVERY_S = 0.5  # processes of a trial are found again so often


class Running:
    """One trial that runs: first the recorded process, then the observed one, if there is one.

    Args:
        order: What to run.
        folder: Where its files go.
        adopted: It runs already; its end is awaited.
        outlives_us: Whether it goes on if this process dies, for the next runner to take over.
    """

    def __init__(
        self, order: Order, folder: Path, *, adopted: bool = False, outlives_us: bool = True
    ) -> None:
        self._lifeline: tuple[int, int] | None = None if outlives_us else os.pipe()
        self.order, self._folder = order, folder
        self._process: subprocess.Popen[bytes] | None = None
        self.end: int | None = (
            None  # a descriptor that can be read when the process has ended, if there is one
        )
        self._pids: list[int] = []
        self._look_for_pids = 0.0
        self._is_observing = False
        self._began = time.monotonic()
        self._used_before: int | None = None
        if adopted:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for name in (RESULT, OBSERVED, STOPPED, MACHINE, USED, RUN, f"{RUN}-wal", f"{RUN}-shm", SAID):
            (folder / name).unlink(missing_ok=True)
        self._used_before = used_bytes()
        self._start_recorded()

    def _start_recorded(self) -> None:
        order, folder = self.order, self._folder
        (folder / JOB).write_bytes(msgspec.json.encode(Job(kind="trial", subject=order.subject)))
        if order.estimate is not None:  # of a deep network it is longer than an argument may be (128 KiB)
            (folder / ESTIMATE).write_text(order.estimate)
        config = {
            "file": str(folder / RUN),
            "interval_ns": interval_ns(order.interval),
            "overwrite": True,
            "gpu": order.subject.device != "cpu",
            "title": order.title,
            "estimate_file": str(folder / ESTIMATE) if order.estimate is not None else None,
        }
        child = [sys.executable, "-P", "-m", "memgauge.study.trial", str(folder / JOB), str(folder / RESULT)]
        self._spawn([sys.executable, "-P", "-m", "memgauge.monitor.sampler", json.dumps(config), *child])

    def _start_observed(self) -> None:
        folder = self._folder
        job = folder / "observe.json"
        job.write_bytes(msgspec.json.encode(Job(kind="allocated", subject=self.order.subject)))
        self._spawn([sys.executable, "-P", "-m", "memgauge.study.trial", str(job), str(folder / OBSERVED)])

    def _spawn(self, command: list[str]) -> None:
        lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise MissingError(
                    f"a process of an earlier run of {self._folder.name} still lives and holds "
                    f"{self._folder / LOCK}; end it (fuser names it), and run the study again"
                ) from None
            with open(self._folder / SAID, "ab") as said:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    pass_fds=(lock, *(self._lifeline or ())[:1]),
                    start_new_session=True,  # the terminal's Ctrl-C is for the runner
                    env=self._environment(),
                )
        finally:
            os.close(lock)
        self._forget_end()
        with contextlib.suppress(OSError, AttributeError):  # a kernel before 5.3
            self.end = os.pidfd_open(self._process.pid)
        self._began = time.monotonic()
        self._pids, self._look_for_pids = [self._process.pid], 0.0

    def _environment(self) -> dict[str, str]:
        found = environment(self.order.subject.threads)
        if self._lifeline is not None:
            found[LIFELINE] = str(self._lifeline[0])
        return found

    def is_over(self) -> bool:
        """Look at the trial: end it at a limit, go on with its second process, say whether all is done."""
        alive = self._process.poll() is None if self._process is not None else is_alive(self._folder)
        if alive:
            self._watch()
            return False
        self._end_orphans()
        (self._folder / ESTIMATE).unlink(missing_ok=True)  # the run file holds it
        if not self._is_observing:
            self._write_used()
        if self.order.observe and not self._is_observing and self._recorded_is_done():
            self._is_observing = True
            self._start_observed()
            return False
        self._forget_end()
        return True

    def _end_orphans(self) -> None:
        """End what outlived the monitor: a trial that nothing records any more is no trial."""
        if self._process is None or not is_alive(self._folder):
            return
        for pid in _session_members(self._process.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + _ORPHANS_S
        while is_alive(self._folder) and time.monotonic() < until:
            time.sleep(LOOK_S)

    @property
    def is_watched(self) -> bool:
        """Whether its memory has a limit that may be reached any moment."""
        return self.order.limits.memory_bytes is not None and not self._is_observing

    def _forget_end(self) -> None:
        if self.end is not None:
            os.close(self.end)
            self.end = None

    def _write_used(self) -> None:
        before, after = self._used_before, used_bytes()
        if before is not None and after is not None:
            (self._folder / USED).write_bytes(msgspec.json.encode((before, after)))

    def _recorded_is_done(self) -> bool:
        from memgauge.study.harvest import read_result

        result = read_result(self._folder)
        return result is not None and result.state == "done" and not (self._folder / OBSERVED).exists()

    def _watch(self) -> None:
        limits, now = self.order.limits, time.monotonic()
        if limits.seconds is not None and now - self._began > limits.seconds:
            self._end(Stopped(status="time-limit", cause=f"stopped at its limit of {limits.seconds:g} s"))
            return
        if limits.memory_bytes is None or not self.is_watched:
            return
        if now >= self._look_for_pids:
            self._pids, self._look_for_pids = self._find_pids(), now + _TREE_EVERY_S
        held = sum(_resident(pid) for pid in self._pids)
        if held > limits.memory_bytes:
            cause = f"held {format_bytes(held)}, above its limit of {format_bytes(limits.memory_bytes)}"
            self._end(Stopped(status="out-of-memory", cause=cause, censored_at_bytes=limits.memory_bytes))

    def _find_pids(self) -> list[int]:
        """Return the trial's processes without the sampler, which is not part of its memory."""
        session = self._session()
        return [pid for pid in _session_members(session) if pid != session] if session else []

    def _session(self) -> int | None:
        if self._process is not None:
            return self._process.pid
        with contextlib.suppress(Exception), RunFile(self._folder / RUN) as run:
            if how_it_ended(run)[0] == "recording":
                return int(run.header["sampler_pid"])
            root = int(run.header.get("root_pid") or 0)
            return read_stat(root).session if root else None
        return None

    def _end(self, why: Stopped) -> None:
        aside = self._folder / f"{STOPPED}.part"
        aside.write_bytes(msgspec.json.encode(why))
        aside.replace(self._folder / STOPPED)
        session = self._session()
        for pid in _session_members(session) if session else []:
            if pid != session:  # the sampler sees its command end, and writes down the rest
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """End everything that belongs to the trial; it will be run again."""
        session = self._session()
        for pid in _session_members(session) if session else []:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._forget_end()
        for end in self._lifeline or ():
            os.close(end)
        self._lifeline = None


def is_alive(folder: Path) -> bool:
    """Return whether any process of a trial still lives: it holds the folder's lock."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(lock)


def _session_members(session: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError):
                if read_stat(int(name)).session == session:
                    found.append(int(name))
    return found


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, IndexError, ValueError):
        return 0
