"""A study's folder: one runner has it, which ends in order when it is told to, and begins nothing on a full disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from memgauge.errors import MissingError, UsageError
from memgauge.units import format_bytes

LEDGER, TRIALS, LOCK = "ledger.db", "trials", "runner.lock"
LEAST_DISK_BYTES = 64 * 2**20  # a run file of an hour takes a few MB; below this nothing is begun


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


def refuse_full_disk(folder: Path) -> None:
    """Raise `MissingError` if a study's folder has no room to record a trial."""
    free = shutil.disk_usage(folder).free
    if free < LEAST_DISK_BYTES:
        raise MissingError(
            f"{folder} has {format_bytes(free)} left, too little to record a trial; make room and run "
            "the study again: what is done is kept"
        )


@contextlib.contextmanager
def written_in_order(folder: Path) -> Iterator[None]:
    """Turn what the system raises when a study's folder cannot be written any more into one error."""
    try:
        yield
    except OSError as error:
        raise MissingError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}; run the study "
            "again when it can: what is done is kept"
        ) from error


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
