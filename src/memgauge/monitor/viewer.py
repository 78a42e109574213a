"""`--live`: a process of its own that shows the recording below the command's output."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any


class Viewer:
    """Shows the run file while it grows; it has the terminal's lines until `wait` returns.

    Args:
        file: The run file.
        mask: The signal mask to start it with.
    """

    def __init__(self, file: str, mask: set[Any]) -> None:
        self.pid: int | None = None
        command = [sys.executable, "-P", "-m", "memgauge", "watch", "--below", "--wait", "10", file]
        null = os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, null, 1)]
        with contextlib.suppress(OSError):
            self.pid = os.posix_spawn(
                command[0],
                command,
                dict(os.environ),
                file_actions=actions,
                setsigmask=mask,
                setsigdef=[signal.SIGINT],
            )
        os.close(null)

    def wait(self) -> None:
        """Let it see that the recording has ended, so that it gives the terminal back."""
        if self.pid is not None:
            with contextlib.suppress(OSError):
                os.waitpid(self.pid, 0)
