"""What a user sees while a study runs: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from memgauge.cli.output import note
from memgauge.study.records import FINISHED
from memgauge.study.runner import Runner
from memgauge.units import format_bytes, format_duration

_LINE_EVERY_S = 10.0


class StudyProgress:
    """Is told by the runner what happens, and shows it on stderr."""

    def __init__(self) -> None:
        self._began: float | None = None  # when the first trial started
        self._done_before = 0  # trials that had ended by then
        self._said = 0.0
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> StudyProgress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}", markup=False),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("reading the study", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, runner: Runner) -> None:
        """Show what happened."""
        if what in ("note", "data", "baseline", "estimate"):
            self.say(what, runner.said)
            return
        done = sum(t.status in FINISHED for t in runner.trials.values())
        if what == "start" and self._began is None:
            self._began, self._done_before = time.monotonic(), done
        self._show(self._doing(runner, done), done, runner.total)
        if what == "end" and done == runner.total:
            self._said = 0.0

    def say(self, what: str, text: str) -> None:
        """Show in words what is being done (it may be left out), or a note, which is not."""
        if what == "note":
            self._line(text)
        else:
            self._show(text, 0, None)

    def _doing(self, runner: Runner, done: int) -> str:
        parts = []
        if runner.running:
            parts.append(f"trial {', '.join(map(str, sorted(runner.running)))}")
        left = self._left(runner, done)
        if left:
            parts.append(left)
        last = runner.last
        if last is not None and "peak_resident_bytes" in last.figures:
            parts.append(f"last: {format_bytes(last.figures['peak_resident_bytes'])}")
        return "; ".join(parts)

    def _left(self, runner: Runner, done: int) -> str:
        ran = done - self._done_before
        if ran < 2 or done >= runner.total or self._began is None:
            return ""
        each = (time.monotonic() - self._began) / ran
        return f"about {format_duration(each * (runner.total - done) * 1e6)} left"

    def _show(self, text: str, done: int, total: int | None) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=done, total=total)
            return
        now = time.monotonic()
        if now - self._said >= _LINE_EVERY_S:
            self._said = now
            note(f"{done} of {total} trials; {text}" if total else text)

    def _line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(f"memgauge: {text}", markup=False, highlight=False)
        else:
            note(text)
