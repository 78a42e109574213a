"""Every error that memgauge raises on purpose.

    MemgaugeError                 exit code 1
    ├── UsageError                2  what the user typed or wrote cannot be used
    │   ├── WorkloadError         2  the user's build, batch or step is at fault
    │   └── FileFormatError       2  a file is not what it should be
    ├── TraceError                2  the step cannot be followed on paper
    │   └── UnsupportedError      2  one operator or feature is in the way; names it
    ├── RunError                  1  a real run died; carries what was seen until then
    └── MissingError              3  something needed is not installed or not here

A message says what happened, with the user's own value, and what to do next.
The command line turns these into one line on stderr and the exit code; nothing
else in the package prints or exits.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class MemgaugeError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(MemgaugeError):
    """What the user asked for cannot be used as it stands."""

    exit_code = 2


class WorkloadError(UsageError):
    """The user's own workload raised or is not shaped as memgauge expects."""


class FileFormatError(UsageError):
    """A file is damaged, of another kind, or made by a newer version."""


class TraceError(MemgaugeError):
    """The step could not be followed without running it."""

    exit_code = 2


class UnsupportedError(TraceError):
    """One operator or feature is in the way; the message names it and the user's line."""


class RunError(MemgaugeError):
    """A real run died before it was done."""


class MissingError(MemgaugeError):
    """Something needed is not here; the message says how to get it."""

    exit_code = 3


def missing_extra(package: str, extra: str) -> MissingError:
    """Return the error for a missing optional dependency, with the line that installs it."""
    return MissingError(f'{package} is not installed; run: pip install "memgauge[{extra}]"')


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return ` (nearest: a, b)` for a misspelt name, or an empty string if nothing is near.

    Names with the same numbers come first: people write RTX 3090 or Tesla V100 for what has more in its name.
    """
    names, words = list(known), re.findall(r"[a-z]+\d\w*|\d\d\w*", name.lower())
    shared = {k: sum(word in k.lower() for word in words) for k in names}
    close = sorted((k for k in names if shared[k]), key=lambda k: -shared[k])
    close += [k for k in names if len(name) > 2 and k.startswith(name) and k not in close]
    close += [k for k in difflib.get_close_matches(name, names, n=count, cutoff=0.5) if k not in close]
    close = close[:count]
    return f" (nearest: {', '.join(close)})" if close else ""
