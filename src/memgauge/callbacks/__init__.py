"""Phases of other libraries' training loops: epochs, training, validation, and steps if asked.

    from memgauge.callbacks.lightning import MemoryPhases      # PyTorch Lightning
    from memgauge.callbacks.transformers import MemoryPhases   # Hugging Face Trainer
    from memgauge.callbacks.keras import MemoryPhases          # Keras, whatever its backend

Each is a callback that does nothing while nothing records.
"""

from __future__ import annotations

from memgauge.monitor.marks import mark, phase


class Phases:
    """Phases that are opened and closed by name, as callbacks hear of them."""

    def __init__(self) -> None:
        self._open: list[tuple[str, phase]] = []

    def begin(self, name: str, value: object = None) -> None:
        """Begin a phase within those that are open."""
        opened = phase(name, value)
        opened.__enter__()
        self._open.append((name, opened))

    def end(self, name: str) -> None:
        """End the innermost phase of that name, and those within it; nothing if there is none."""
        if not self.is_open(name):
            return
        while True:
            known, opened = self._open.pop()
            opened.__exit__(None, None, None)
            if known == name:
                return

    def end_all(self) -> None:
        """End what is open, innermost first: what an exception left is not to last until the process's end."""
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)

    def is_open(self, name: str) -> bool:
        return any(known == name for known, _ in self._open)

    def mark(self, name: str, value: object = None) -> None:
        """Say that something happened now."""
        mark(name, value)
