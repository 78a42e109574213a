"""Attributes replaced for the length of a trace, and put back whatever happens."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

_MISSING = object()


class Patches(ExitStack):
    """A stack of replacements; leaving it restores every attribute to what it was."""

    def set(self, target: Any, name: str, value: Any) -> Any:
        """Replace `target.name` and return what it was (None if it was not there)."""
        own = vars(target).get(name, _MISSING) if hasattr(target, "__dict__") else _MISSING
        before = getattr(target, name, None)
        if own is _MISSING:
            self.callback(_delete, target, name)
        else:
            self.callback(setattr, target, name, own)
        setattr(target, name, value)
        return before


def _delete(target: Any, name: str) -> None:
    if name in vars(target):
        delattr(target, name)
