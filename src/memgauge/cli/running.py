"""What a user sees while something runs, and where the user's own prints go meanwhile."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TextIO

from memgauge.cli.output import note
from memgauge.errors import WorkloadError

_PATIENCE_S = 5.0  # without a terminal one line is written after this long


@contextlib.contextmanager
def running(title: str) -> Iterator[Callable[[str], None]]:
    """Show `title` and the elapsed time on stderr; yields a function that replaces the title.

    What the user's code prints meanwhile goes to stderr too, since stdout is for the result; what it warns of
    is shown once, however often it is traced.

    Raises:
        WorkloadError: The user's code called `sys.exit`.
    """
    shown = _spinner(title) if sys.stderr.isatty() else _one_line(title)
    try:
        with shown as tell, _stdout_to_stderr(), _each_warning_once():
            yield tell
    except SystemExit as error:
        raise WorkloadError(
            f"the workload called sys.exit({error.code!r}); a TARGET must return, so guard a script's "
            'own run with: if __name__ == "__main__":'
        ) from error


@contextlib.contextmanager
def _spinner(title: str) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title)
        yield lambda stage: progress.update(task, description=stage)


@contextlib.contextmanager
def _one_line(title: str) -> Iterator[Callable[[str], None]]:
    timer = threading.Timer(_PATIENCE_S, note, (f"{title} …",))
    timer.daemon = True
    timer.start()
    try:
        yield lambda stage: None
    finally:
        timer.cancel()


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send prints to stderr, and what libraries and subprocesses write to descriptor 1 as well."""
    sys.stdout.flush()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a descriptor is closed: there is nothing to keep clean
            saved = os.dup(1)
            stack.callback(os.close, saved)
            os.dup2(2, 1)
            stack.callback(os.dup2, saved, 1)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


@contextlib.contextmanager
def _each_warning_once() -> Iterator[None]:
    """Show a warning of one place once: Python forgets what it has shown whenever somebody changes filters."""
    show = warnings.showwarning
    shown: set[tuple[str, type[Warning], str, int]] = set()

    def show_once(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        place = str(message), category, filename, lineno
        if place not in shown:
            shown.add(place)
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = show_once
    try:
        yield
    finally:
        warnings.showwarning = show
