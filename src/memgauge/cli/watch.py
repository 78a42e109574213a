"""`memgauge watch`: look at a recording in progress."""

from __future__ import annotations

import contextlib
import io
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memgauge.cli.output import note
from memgauge.cli.show import RunPath
from memgauge.errors import MemgaugeError, UsageError

if TYPE_CHECKING:
    from memgauge.report.live import Live

EPILOG = (
    "Example: memgauge watch run.mg\n\n"
    "Ctrl-C ends the watching, not the recording. Without a terminal a line is written every 10 s."
)
_EVERY_S, _LINE_EVERY_S = 0.5, 10.0
_PANEL_LINES = 9
_LEFT_LINES = 3  # at least, for the command's output


def command(
    file: RunPath,
    below: Annotated[bool, typer.Option("--below", hidden=True)] = False,
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait for the file to appear.")] = 0.0,
) -> None:
    """Show a recording in progress: the tree with memory per process, GPUs, PCIe, the phase, a small curve."""
    if not 0 <= wait < math.inf:
        raise UsageError(f"--wait {wait:g} is out of range; it is seconds, 0 or more")
    from memgauge.report.live import Live
    from memgauge.storage import RunFile

    _await(file, wait)
    with RunFile(file) as run:
        live = Live(run)
        live.refresh()
        if below and sys.stderr.isatty():
            _show_below(live)
        elif not below and sys.stdout.isatty():
            _show(live)
        else:
            _show_lines(live, sys.stderr if below else sys.stdout)
        if not below:
            note(live.ended)


def _await(file: Path, seconds: float) -> None:
    from memgauge.storage import RunFile

    until = time.monotonic() + seconds
    while True:
        try:
            RunFile(file).close()
            return
        except MemgaugeError:
            if time.monotonic() >= until:
                raise
        time.sleep(0.05)


def _moments(live: Live, every_s: float) -> Iterator[None]:
    """Yield after each look until the recording has ended."""
    while True:
        live.refresh()
        yield
        if live.state != "recording":
            return
        time.sleep(every_s)


def _show(live: Live) -> None:
    from rich.console import Console
    from rich.live import Live as Screen

    with Screen(live.view(), console=Console(markup=False, emoji=False), auto_refresh=False) as screen:
        for _ in _moments(live, _EVERY_S):
            screen.update(live.view(), refresh=True)


def _show_lines(live: Live, out: object) -> None:
    last = 0.0
    for _ in _moments(live, _EVERY_S):
        if time.monotonic() - last >= _LINE_EVERY_S or live.state != "recording":
            last = time.monotonic()
            print(f"memgauge: {live.line()}", file=out, flush=True)  # type: ignore[call-overload]


def _show_below(live: Live) -> None:
    """Keep the last lines of the terminal for the panel; the command's output scrolls above them."""
    with contextlib.ExitStack() as stack:
        stack.callback(_give_lines_back)
        size = os.terminal_size((0, 0))
        for _ in _moments(live, _EVERY_S):
            now = _terminal_size()
            if now != size:
                size = now
                _take_lines(size)
            _draw(live, size)


def _terminal_size() -> os.terminal_size:
    """Return the size of the terminal that stderr is: the viewer of `monitor --live` has no other stream on it."""
    with contextlib.suppress(OSError, ValueError):
        size = os.get_terminal_size(sys.stderr.fileno())
        if size.columns and size.lines:
            return size
    return shutil.get_terminal_size()


def _panel_of(size: os.terminal_size) -> range:
    """Return the panel's lines, counted from 1: the last ones, of a low terminal less."""
    return range(size.lines - max(0, min(_PANEL_LINES, size.lines - _LEFT_LINES)) + 1, size.lines + 1)


def _take_lines(size: os.terminal_size) -> None:
    panel = _panel_of(size)
    # Make room, keep the cursor above, and let only the lines above scroll (DECSTBM).
    room = "\n" * len(panel) + (f"\x1b[{len(panel)}A" if panel else "")
    sys.stderr.write(f"{room}\x1b7\x1b[1;{panel.start - 1}r\x1b8")
    sys.stderr.flush()


def _draw(live: Live, size: os.terminal_size) -> None:
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(file=buffer, width=size.columns, force_terminal=True, markup=False, emoji=False)
    console.print(live.view(), crop=True)
    text = [*buffer.getvalue().splitlines(), *[""] * _PANEL_LINES]
    drawn = "".join(f"\x1b[{at};1H\x1b[2K{line}" for at, line in zip(_panel_of(size), text, strict=False))
    sys.stderr.write(f"\x1b7{drawn}\x1b8")
    sys.stderr.flush()


def _give_lines_back() -> None:
    clear = "".join(f"\x1b[{at};1H\x1b[2K" for at in _panel_of(_terminal_size()))
    sys.stderr.write(f"\x1b7\x1b[r{clear}\x1b8")
    sys.stderr.flush()
