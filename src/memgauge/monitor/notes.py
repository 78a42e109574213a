"""What a recording has to say about itself: each thing once, in the file or on stderr."""

from __future__ import annotations

import contextlib
import os

from memgauge.monitor.clock import Clock
from memgauge.storage import RunWriter

_MOST = 50


class Notes:
    """What was missed or changed, with the remedy."""

    def __init__(self, writer: RunWriter, clock: Clock) -> None:
        self._writer, self._clock = writer, clock
        self._count = 0
        self._said: set[tuple[str, str]] = set()

    def say(self, topic: str, text: str, remedy: str = "", *, again: bool = False) -> None:
        """Put a note into the file, unless it is there already; `again` if it may be."""
        if (topic, text) in self._said and not again:
            return
        self._said.add((topic, text))
        self._count += 1
        if self._count <= _MOST:
            self._writer.add_note(self._clock.now_us(), topic, text, remedy)

    def complain(self, text: str) -> None:
        """Say on stderr what the file cannot hold."""
        with contextlib.suppress(OSError):
            os.write(2, f"memgauge: {text}\n".encode(errors="backslashreplace"))
