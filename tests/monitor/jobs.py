"""Small programs to record, with pipes to hold them still: no test here sleeps to be in step."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memgauge.monitor.exits import Exits
from memgauge.storage import RunFile

MIB = 2**20
# `say` and `wait` are how a job and its test stay in step; both are inherited by what it forks.
PRELUDE = """
import os, sys, time
def say(text=""):
    os.write(int(os.environ["SAY"]), (text or "-").encode() + b"\\n")
def wait():
    return os.read(int(os.environ["WAIT"]), 1)
"""


class Job:
    """A recorded program: `heard()` waits for a line of it, `go()` lets it pass one `wait()`."""

    def __init__(self, code: str, path: Path, *options: str, wrap: bool = True, **popen: Any) -> None:
        self.path = path
        say_read, say = os.pipe()
        wait, self._go = os.pipe()
        script = path.with_suffix(".py")
        script.write_text(PRELUDE + code)
        command = [sys.executable, str(script)]
        if wrap:
            command = [*memgauge("monitor", "-o", str(path), *options), "--", *command]
        environment = {**os.environ, "SAY": str(say), "WAIT": str(wait), **popen.pop("env", {})}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        self.process = subprocess.Popen(command, pass_fds=(say, wait), env=environment, text=True, **pipes)
        os.close(say)
        os.close(wait)
        self._heard = os.fdopen(say_read)
        STARTED.append(self)

    def heard(self) -> str:
        line = self._heard.readline()
        assert line, self.process.communicate()[1]
        return line.strip()

    def go(self) -> None:
        os.write(self._go, b"x")

    def end(self, timeout: float = 60) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out or "", err or ""

    def close(self) -> None:
        """Leave nothing behind, whatever became of the test."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr, self._heard):
            if pipe is not None:
                pipe.close()
        os.close(self._go)


STARTED: list[Job] = []


def memgauge(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "memgauge", *arguments]


def why_ends_are_not_told() -> str:
    """Return why the kernel does not tell here what processes held at their end, "" if it does."""
    try:
        Exits().close()
    except OSError as error:
        return f"taskstats: {error}"
    return ""


def until(path: Path, true: Callable[[RunFile], Any], process: Any = None) -> Any:
    """Read the growing file until something holds of it; pytest's own timeout is the limit."""
    while True:
        if path.exists():
            try:
                with RunFile(path) as run:
                    found = true(run)
            except Exception as error:
                if "no run file" not in str(error) and "empty" not in str(error):
                    raise
                found = None
            if found:
                return found
        assert process is None or process.poll() is None, process.communicate()


def more_ticks(path: Path, job: Job, count: int = 3) -> None:
    """Wait until the file holds so many ticks that were taken after this call."""
    now = time.monotonic_ns()

    def later(run: RunFile) -> bool:
        begin = (now - run.header["started_monotonic_ns"]) // 1000
        return sum(t > begin for _, c in run.chunks("fast", begin) for t in c.times_us) >= count

    until(path, later, job.process)


def ticks(run: RunFile, lane: str = "fast") -> int:
    return sum(len(chunk.times_us) for _, chunk in run.chunks(lane))


def values(run: RunFile, metric: str, pid: int | None = None) -> list[tuple[int, int]]:
    """Return (time, value) of one metric, of one process if `pid` is given."""
    owner = {p.id: p.pid for p in run.processes}
    ids = {
        s.id for s in run.series if s.metric == metric and (pid is None or owner.get(s.process or 0) == pid)
    }
    found = []
    for lane in ("fast", "cpu", "medium", "slow"):
        for _, chunk in run.chunks(lane):
            for column in chunk.columns:
                if column.series in ids:
                    found += list(zip(chunk.times_us[column.first :], column.values, strict=False))
    return found
