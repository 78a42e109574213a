"""A descriptor in a process that is not ours alone: a program may close it, and give its number to a file of its own.

Daemons do (`os.closerange`). What is written to such a number then would be in the program's file or on its network.
"""

from __future__ import annotations

import os


class Held:
    """A descriptor that was opened here, known again by its file.

    Args:
        number: The descriptor.
    """

    __slots__ = ("_device", "_inode", "number")

    def __init__(self, number: int) -> None:
        found = os.fstat(number)
        self.number, self._device, self._inode = number, found.st_dev, found.st_ino

    def is_ours(self) -> bool:
        """Return whether the number still stands for what was opened here."""
        try:
            found = os.fstat(self.number)
        except OSError:
            return False
        return found.st_ino == self._inode and found.st_dev == self._device

    def close(self) -> None:
        """Close it, if it is still ours."""
        if self.is_ours():
            os.close(self.number)
