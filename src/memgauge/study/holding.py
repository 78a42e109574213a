"""One runner per folder, which ends in order when it is told to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from memgauge.errors import UsageError

LOCK = "runner.lock"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a study's folder, made if it is not there, as its only runner.

    Raises:
        UsageError: Another runner has it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "another process"
            raise UsageError(
                f"{folder} is in use: process {holder} runs this study; wait for it, or --out another folder"
            ) from None
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"%d" % os.getpid(), 0)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a study as Ctrl-C does: in order, and to be resumed."""
    before = {}

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, interrupt)
    except ValueError:  # not the main thread: whoever started it looks after signals
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
