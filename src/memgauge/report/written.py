"""Files are written aside and take their place once they are whole: what fails midway leaves the old one."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from memgauge.errors import UsageError
from memgauge.storage import refuse_recorded


@contextlib.contextmanager
def written(out: Path, option: str = "") -> Iterator[Path]:
    """Yield the path to write a file to, which is at `out` when the block ends; never over a recording.

    Pipes, what is open here (`/dev/stdout`), and what could not be replaced as it is are written in place.

    Args:
        out: The file.
        option: The one that asked for it.

    Raises:
        UsageError: It is a recording, or cannot be written.
    """
    refuse_recorded(out)
    try:
        target = Path(os.path.realpath(out))  # a link stays one
        aside = _aside(out, target.parent)
        if aside is None:
            yield out
            return
        try:
            yield aside
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        named = f"{option} {out}".lstrip()
        raise UsageError(f"{named} cannot be written: {error.strerror or error}") from error


def _aside(out: Path, folder: Path) -> Path | None:
    """Return an empty file in a folder, with owner and permissions of the one it is for; None if it cannot replace that."""
    old = out.stat() if out.exists() else None
    is_plain = old is None or (stat.S_ISREG(old.st_mode) and old.st_nlink == 1 and not _is_open(old))
    if not is_plain or not os.access(out if old else folder, os.W_OK):
        return None
    aside = folder / f".memgauge-{secrets.token_hex(4)}"
    try:
        aside.touch(exist_ok=False)
        if old is not None:
            os.chown(aside, old.st_uid, old.st_gid)
            aside.chmod(stat.S_IMODE(old.st_mode))
    except PermissionError:
        aside.unlink(missing_ok=True)
        return None
    return aside


def _is_open(found: os.stat_result) -> bool:
    """Return whether a file is open in this process, as what the shell redirected to is."""
    for number in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(int(number)), found):
                return True
    return False
