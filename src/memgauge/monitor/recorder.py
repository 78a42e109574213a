"""Start a sampler: for a command (its own process becomes it), for a pid, or from Python."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from memgauge.errors import RunError, UsageError
from memgauge.monitor import marks
from memgauge.monitor.calling import ENVIRONMENT, with_outer
from memgauge.monitor.held import Held
from memgauge.monitor.system import require_posix
from memgauge.units import parse_duration_ns

SHORTEST_NS, LONGEST_NS = 1_000_000, 5_000_000_000
LEAST_SHARE = 0.0001  # of one core; the command line's 0.01 %
DEFAULT_INTERVAL = "100ms"
_STOPS_WITHIN_S = 30


def interval_ns(interval: str | float) -> int:
    """Return a sampling interval in nanoseconds: `"10ms"`, `"1s"`, or a number of seconds.

    Raises:
        UsageError: It is not a duration, or out of range.
    """
    if isinstance(interval, bool) or not isinstance(interval, (int, float, str)) or interval != interval:
        raise UsageError(f"an interval of {interval!r} is none; write seconds, or text such as '10ms'")
    if not isinstance(interval, str) and not SHORTEST_NS <= interval * 1e9 <= LONGEST_NS:
        raise UsageError(f"an interval of {interval} is out of range; it is 1ms to 5s")
    found = parse_duration_ns(f"{interval}s" if not isinstance(interval, str) else interval)
    if not SHORTEST_NS <= found <= LONGEST_NS:
        bare = isinstance(interval, str) and interval.strip().replace(".", "", 1).isdigit() and found > 0
        hint = f"; without a unit it is seconds, write {interval.strip()}ms" if bare else ""  # type: ignore[union-attr]
        raise UsageError(f"an interval of {interval} is out of range; it is 1ms to 5s{hint}")
    return found


def budget_share(budget: float | None) -> float | None:
    """Return a share of one core that each lane may take, as it is.

    Raises:
        UsageError: It is no number, or out of range.
    """
    is_number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
    if budget is None or (is_number and LEAST_SHARE <= budget <= 1):
        return budget
    raise UsageError(f"a budget of {budget!r} is out of range; it is a share of one core, {LEAST_SHARE} to 1")


def _run_path(path: str | os.PathLike[str]) -> Path:
    if isinstance(path, (str, os.PathLike)) and isinstance(os.fspath(path), str) and "\0" not in str(path):
        return Path(path)
    raise UsageError(f"{path!r} is no path of a run file; give one as text or pathlib.Path: run.mg")


def _check_types(pid: object, overwrite: object, gpu: object, title: object) -> None:
    for name, value in (("overwrite", overwrite), ("gpu", gpu)):
        if not isinstance(value, bool):
            raise UsageError(f"{name}={value!r} is neither True nor False")
    if pid is not None and (isinstance(pid, bool) or not isinstance(pid, int)):
        raise UsageError(f"pid={pid!r} is no number of a process")
    if title is not None and not isinstance(title, str):
        raise UsageError(f"title={title!r} is no text")


def become_sampler(config: dict[str, Any], command: Sequence[str]) -> NoReturn:
    """Replace this process by the sampler: it keeps the pid and the terminal, and is small."""
    require_posix()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    closed = [n for n, s in enumerate((sys.__stdin__, sys.__stdout__, sys.__stderr__)) if s is None]
    null = os.open(os.devnull, os.O_RDWR)
    for number in closed:  # else the run file would be opened in the place of a stream
        os.dup2(null, number)
        os.set_inheritable(number, True)
    os.execv(sys.executable, [*_SAMPLER, json.dumps({**config, "closed": closed}), *command])


def recorded(
    command: Sequence[str],
    path: str | os.PathLike[str],
    *,
    interval: str | float = DEFAULT_INTERVAL,
    gpu: bool = True,
    title: str | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return a command that runs and records another, and the environment that it needs.

    It ends as the recorded command does, with its exit code or of its signal, and passes signals on;
    to end both for certain, start it in a session of its own and kill that process group.

    Args:
        command: What to run, and its arguments.
        path: The run file; one that is there is replaced.
        interval: Time between two readings of the fast lane.
        gpu: Whether to read GPUs.
        title: What to call the run.

    Raises:
        UsageError: A recording is not possible on this system.
    """
    require_posix()
    config = {
        "file": os.path.abspath(path),
        "interval_ns": interval_ns(interval),
        "overwrite": True,
        "gpu": gpu,
        "title": title,
    }
    return [*_SAMPLER, json.dumps(config), *command], _environment()


def _environment() -> dict[str, str]:
    """Return our environment, such that memgauge can be imported in it."""
    path = os.pathsep.join(filter(None, (_HOME, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


# -P: a file of the user's that is called json.py must not be imported in the place of Python's own.
_SAMPLER = (sys.executable, "-P", "-m", "memgauge.monitor.sampler")
_HOME = str(Path(__file__).resolve().parents[2])  # where memgauge is, if it is not installed


class Monitor:
    """Record this process and all it starts, from a program or a notebook.

        with memgauge.Monitor("run.mg"):
            train()

    One Monitor is for one recording. The sampler is another process; it ends with the `with` block, or when
    this process ends, however that happens.

    Args:
        path: The run file.
        interval: Time between two readings of the fast lane: `"10ms"`, or seconds; 1 ms to 5 s.
        pid: Another process to record, with all it starts; this one if None.
        overwrite: Replace a run file that is there.
        gpu: Whether to read GPUs.
        budget: Share of one core that each lane may take; by default 2 %, for intervals under 10 ms 8 %.
            0.0001 to 1.
        title: What to call the run.

    Raises:
        UsageError: The file cannot be made, there is no such process, an argument is out of range, it was started
            before, or this system is not Unix.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        interval: str | float = DEFAULT_INTERVAL,
        pid: int | None = None,
        overwrite: bool = False,
        gpu: bool = True,
        budget: float | None = None,
        title: str | None = None,
    ) -> None:
        require_posix()
        _check_types(pid, overwrite, gpu, title)
        self.path = _run_path(path)
        self._config: dict[str, Any] = {
            "file": str(self.path.absolute()),
            "interval_ns": interval_ns(interval),
            "pid": os.getpid() if pid is None else pid,
            "overwrite": overwrite,
            "gpu": gpu,
            "budget": budget_share(budget),
            "title": title,
        }
        self._own = pid is None or pid == os.getpid()
        self._starter = -1  # the process that started it: children that it forks have this object too
        self._sampler = -1
        self._errors: Held | None = None  # what the sampler says; ends with it
        self._stop: Held | None = None  # ends the recording when it is closed
        self._before: str | None = None

    def start(self) -> Monitor:
        """Begin to record; returns when the sampler is ready."""
        if self._sampler != -1:
            raise UsageError(
                f"a Monitor is for one recording, and that of {self.path} was started; make another Monitor"
            )
        stop_reader, stop_writer = _pipe()
        tell_reader, tell_writer = _pipe()
        errors_reader, errors_writer = _pipe()
        config = {**self._config, "stop_fd": stop_reader, "tell_fd": tell_writer, "detach": True}
        try:
            starter = subprocess.Popen(
                [*_SAMPLER, json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors_writer,
                pass_fds=(stop_reader, tell_writer),
                start_new_session=True,  # the terminal's Ctrl-C is for the program
                env=_environment(),
            )
        finally:
            for end in (stop_reader, tell_writer, errors_writer):
                os.close(end)
        starter.wait()  # the sampler is its child, and none of ours: os.wait() of the program does not meet it
        self._starter, self._errors, self._stop = os.getpid(), Held(errors_reader), Held(stop_writer)
        said = os.read(tell_reader, 4096).decode()  # waits for "ready", or for its end
        os.close(tell_reader)
        if not said.startswith("ready "):
            self._give_up(said)
        _, pid, address = said.split(maxsplit=2)
        self._sampler = int(pid)
        if self._own:
            self._before = os.environ.get(ENVIRONMENT)
            os.environ[ENVIRONMENT] = with_outer(address)
            marks.look_again()
        return self

    def stop(self) -> None:
        """End the recording; returns when the file is complete. In a forked child it does nothing."""
        (errors, self._errors), (stop, self._stop) = (self._errors, None), (self._stop, None)
        if errors is None or stop is None:
            return
        if os.getpid() != self._starter:
            errors.close()
            stop.close()
            return
        if self._own:
            marks.let_go()
            if self._before is None:
                os.environ.pop(ENVIRONMENT, None)
            else:
                os.environ[ENVIRONMENT] = self._before
        if stop.is_ours():
            with contextlib.suppress(OSError):  # the sampler is gone; the file holds what it had written
                os.write(stop.number, b"stop")
            stop.close()
        said = _until_its_end(errors)
        if said is None:
            with contextlib.suppress(OSError):
                os.kill(self._sampler, signal.SIGKILL)
            raise RunError(f"the sampler did not end; {self.path} holds what it had written")
        if said:
            sys.stderr.write(said)

    def _give_up(self, said: str) -> NoReturn:
        assert self._errors is not None and self._stop is not None
        text = (_until_its_end(self._errors) or "").strip().removeprefix("memgauge: ")
        self._stop.close()
        self._errors = self._stop = None
        kind = UsageError if said == f"failed {UsageError.exit_code}\n" else RunError
        raise kind(text or "the sampler could not be started")

    def __enter__(self) -> Monitor:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _pipe() -> tuple[int, int]:
    """Return the ends of a pipe under other numbers than the standard streams', which a program may have closed."""
    import fcntl

    low = os.pipe()
    reader, writer = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in low)
    for end in low:
        os.close(end)
    return reader, writer


def _until_its_end(errors: Held) -> str | None:
    """Return what a sampler says until it ends; None if it does not end in time.

    A program that has closed the pipe has ended the recording by that: there is nothing to wait for.
    """
    said, ends_at = b"", time.monotonic() + _STOPS_WITHIN_S
    if not errors.is_ours():
        return ""
    with contextlib.closing(errors), selectors.DefaultSelector() as selector:
        selector.register(errors.number, selectors.EVENT_READ)
        while selector.select(ends_at - time.monotonic()):
            piece = os.read(errors.number, 65536)
            if not piece:
                return said.decode(errors="replace")
            said += piece
    return None
