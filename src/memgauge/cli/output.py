"""Results to stdout: text or one JSON document; notes to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from memgauge.errors import UsageError
from memgauge.records import NEVER_BACKWARD, NEVER_STEPPED, OF_THE_ENVIRONMENT, STEPS_GROW

if TYPE_CHECKING:
    import msgspec
    from rich.console import RenderableType


class _Output(Console):
    """A console that leaves a closed pipe to the error boundary."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def show(view: RenderableType, *, piped_width: int | None = None) -> None:
    """Print a view on stdout; nothing in it is read as markup, and colour is for terminals only.

    `piped_width` is the width of a line where no terminal says how wide it is.
    """
    console = _Output(highlight=False, markup=False, emoji=False)
    if piped_width is not None and not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = piped_width
    console.print(view)


def show_json(record: msgspec.Struct) -> None:
    """Write a record on stdout as one JSON document, in UTF-8 whatever the terminal speaks."""
    from memgauge.report.json import to_json

    text = to_json(record) + "\n"
    raw = getattr(sys.stdout, "buffer", None)
    if raw is None:
        sys.stdout.write(text)
        return
    sys.stdout.flush()
    raw.write(text.encode())
    raw.flush()


def save_json(record: msgspec.Struct, out: Path | None) -> None:
    """Save a record as JSON if there is a file to save it to, and say so on stderr.

    Raises:
        UsageError: The file is a recording, or cannot be written.
    """
    if out is None:
        return
    from memgauge.report.json import to_json

    write_text(out, to_json(record) + "\n", "--out")
    note(f"saved to {out}")


def refuse_program(out: Path, option: str = "") -> None:
    """Refuse to write over what somebody wrote: a slip of the shell's completion is enough.

    Raises:
        UsageError: The file is there, and its name is that of a program.
    """
    if out.suffix in _PROGRAMS and out.exists():
        named = f"{option} {out}".lstrip()
        raise UsageError(f"{named} is a program, so it is not overwritten; choose another name")


_PROGRAMS = (".py", ".ipynb", ".sh")


def write_text(out: Path, text: str, option: str = "") -> None:
    """Write the text that was asked for by an option; never over a recording.

    Raises:
        UsageError: The file is a recording or a program, or cannot be written.
    """
    from memgauge.report.written import written

    refuse_program(out, option)
    with written(out, option) as place:
        place.write_text(text, encoding="utf-8", errors="backslashreplace")


def warn(assumptions: Iterable[str]) -> None:
    """Write on stderr which assumptions the user may not have meant."""
    for text in assumptions:
        if text.startswith((NEVER_BACKWARD, NEVER_STEPPED, STEPS_GROW)):
            note(f"warning: {text}")
        elif OF_THE_ENVIRONMENT in text:
            note(text)


def note(message: str) -> None:
    """Write one line on stderr."""
    sys.stderr.write(f"memgauge: {message}\n")
