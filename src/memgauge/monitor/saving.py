"""The run file over time: its header, a transaction at least once a second, trouble with the disk, its end."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from typing import Any

from memgauge.monitor.clock import Clock
from memgauge.monitor.launch import Ending
from memgauge.monitor.notes import Notes
from memgauge.monitor.system import System
from memgauge.storage import RunWriter

_LONGEST_UNWRITTEN_S = 60


def header(config: Mapping[str, Any], clock: Clock, system: System) -> dict[str, object]:
    """Return what is known of a run at its beginning."""
    from memgauge.version import installed_version

    is_program = config.get("stop_fd") is not None
    return {
        "memgauge": installed_version(),
        "command": config.get("command"),
        "title": config.get("title"),
        "root_pid": config.get("pid"),
        "folder": os.getcwd(),
        "way": "command" if config.get("command") else "python" if is_program else "pid",
        **began(clock),
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "reader": system.name,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "boot": system.boot(),
        "sampler_pid": os.getpid(),
        "sampler_started_ticks": system.stat(os.getpid()).started_ticks,
        "interval_ns": config["interval_ns"],
    }


def began(clock: Clock) -> dict[str, object]:
    """Return when a run began, for its header."""
    return {"started_unix_ns": clock.began_unix_ns, "started_monotonic_ns": clock.origin_ns}


class Saving:
    """Puts what was read into the file; a file that cannot be written stops the recording, not the job.

    Args:
        writer: The run file.
        clock: The clock of the run.
        notes: Is told what is missing.
    """

    def __init__(self, writer: RunWriter, clock: Clock, notes: Notes) -> None:
        self._writer, self._clock, self._notes = writer, clock, notes
        self._unwritten_since: float | None = None
        self._files_moved = False
        self.is_complete = False

    def flush(self, **facts: object) -> None:
        """Write what was added since the last time, and facts of the header."""
        writer = self._writer
        writer.set(alive_us=self._clock.now_us(), **facts)
        try:
            writer.flush()
        except OSError as error:
            self._could_not_write(error)
            return
        if self._unwritten_since is not None:
            self._unwritten_since = None
            self._notes.say("file", "the file could be written again")
        if not self._files_moved and not writer.is_in_place():
            self._files_moved = True
            self._notes.complain(
                f"{writer.path} was removed or replaced while it is written; the job goes on, the recording will be lost"
            )

    def _could_not_write(self, error: OSError) -> None:
        if self._unwritten_since is None:
            self._unwritten_since = time.monotonic()
            self._notes.complain(
                f"{self._writer.path} cannot be written: {error}; the job goes on, memgauge keeps trying"
            )
        elif time.monotonic() - self._unwritten_since > _LONGEST_UNWRITTEN_S:
            self._unwritten_since = time.monotonic()
            dropped = self._writer.drop_samples()
            self._notes.say(
                "file", f"{dropped} ticks are missing: {error}", "make room where the run file is"
            )

    def end(self, ending: Ending, **facts: object) -> None:
        """Add how the run ended; `close` writes it."""
        self._writer.set(
            ended={
                "how": ending.how,
                "code": ending.code,
                "signal": ending.signal,
                "out_of_memory": ending.out_of_memory,
                "text": ending.text(),
            },
            **facts,
        )

    def close(self) -> None:
        """Write everything that is left, and close the file; `is_complete` says whether it has all."""
        writer = self._writer
        try:
            writer.close()
        except OSError as error:
            self._notes.complain(f"the end of the recording could not be written to {writer.path}: {error}")
        else:
            self.is_complete = writer.is_in_place()
            if not self.is_complete:
                self._notes.complain(f"{writer.path} was removed while it was written; the recording is lost")
