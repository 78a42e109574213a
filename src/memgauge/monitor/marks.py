"""What a job says of itself: `mark` and `phase`. They cost microseconds, and nothing when nothing records.

    memgauge.mark("epoch", 3)
    with memgauge.phase("validate"):
        ...

    @memgauge.phase("load")
    def load(): ...

A recording is found by the environment variable that a recorded command gets, or by the name of the recorded
process, for that one and all below it; two recordings of one job both hear it.
Each boundary of a phase carries the kernel's highest resident
size of this process since the boundary before, exact and not sampled; it is then set back, if this
recording is the one that may (`peaks` belong to one recording at a time).
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import sys
import threading
from collections.abc import Callable
from types import FunctionType, TracebackType
from typing import ParamSpec, TypeVar

from memgauge.errors import UsageError
from memgauge.monitor.calling import Link, quoted
from memgauge.monitor.framework_memory import figures, reset_peaks

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


def mark(name: str, value: object = None) -> None:
    """Say that something happened now: an epoch began, a batch was loaded, a loss was seen.

    Args:
        name: What happened, as text; equal names are one kind of event.
        value: Which one, as text or number.
    """
    _send("mark", name, value)


class phase:
    """A span of the job, drawn as a band; its peak of this process is exact. Phases may be nested.

    It is for `with`, and decorates functions, of which each call is then a phase of its own:

        @memgauge.phase("validate")
        def validate(model): ...

    Of a generator or coroutine function that is the call only, not what runs later: use `with` inside it.
    The name is needed there too.

    Args:
        name: What the span is, as text; spans of equal names are one phase in a report. As with `mark`, what is
            no text is put into words by `str`, and a blank name is shown in quotes: none of them raises.
        value: Which one, as text or number.
        reset_torch: Reset torch's own peaks at the beginning, and TensorFlow's, so that those of this phase
            are exact. Not done by default: scripts log these numbers.

    Raises:
        UsageError: A function was given for a name, as `@memgauge.phase` without one does.
    """

    def __init__(self, name: str, value: object = None, *, reset_torch: bool = False) -> None:
        if isinstance(name, (FunctionType, type)):
            raise UsageError(f'write @memgauge.phase("{name.__name__}"): a phase needs a name, as text')
        self._name, self._value, self._reset_torch = name, value, reset_torch
        self._spans: list[int] = []

    def __call__(self, function: Callable[Given, Returned]) -> Callable[Given, Returned]:
        @functools.wraps(function)
        def within(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
            with phase(self._name, self._value, reset_torch=self._reset_torch):
                return function(*args, **kwargs)

        return within

    def __enter__(self) -> phase:
        self._spans.append(next(_spans))
        _send("begin", self._name, self._value, span=self._spans[-1], reset_torch=self._reset_torch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _send("end", self._name, self._value, span=self._spans.pop() if self._spans else 0)


def is_recorded() -> bool:
    """Return whether a recording listens to this process."""
    with _lock:
        return bool(_listening())


def look_again() -> None:
    """Look for a recording at the next mark, though none was there a moment ago."""
    with _lock:
        for link in _links:
            link.lose()
            link.look_now()


def let_go() -> None:
    """Send what waits, and end the connections: a recording is about to end; one around it is found again."""
    _finish()
    look_again()


def _send(
    kind: str, name: object, value: object, *, span: int | None = None, reset_torch: bool = False
) -> None:
    with _lock:
        listening = _listening()
    if not listening:
        return
    _finish_below_multiprocessing()
    if reset_torch:
        reset_peaks()
    texts, facts = quoted(name, value), figures()  # the job's own code may run in these: without the lock
    with _lock:
        for link in listening:
            link.send(kind, texts, facts, span)


def _listening() -> list[Link]:
    return [link for link in _links if link.is_open() or link.find(_links)]


def _finish() -> None:
    with _lock:
        for link in _links:
            link.finish()


def _finish_below_multiprocessing() -> None:
    """Have `_finish` called in a child of multiprocessing too, which ends by os._exit without `atexit`.

    What it calls instead (`Process._bootstrap`, `_exit_function`) it forgets at its fork: each child says it anew.
    """
    global _finishes_in
    if _finishes_in != (pid := os.getpid()):
        _finishes_in = pid
        for name in ("multiprocessing.util", "multiprocess.util"):
            if (util := sys.modules.get(name)) is not None:
                util.Finalize(None, _finish, exitpriority=_LAST)


def _forked() -> None:
    for link in _links:
        link.forked()
    _lock.release()


_LAST = -(1 << 30)  # after whatever else a child does at its end
_finishes_in = 0  # the process that calls `_finish` at its end
_lock = threading.RLock()  # of the links; a signal's handler may come back to it within its own thread
_spans = itertools.count(1)  # tell phases apart that threads of a process have open at once
_links = (Link(), Link())  # as many recordings of one job hear it
atexit.register(_finish)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forked)
