"""The sampler's one loop: it waits for whatever comes first, and does it.

What may come: a lane that is due, a signal, a process that wants to say something, an event of the process
table, the end of the program that records itself.
"""

from __future__ import annotations

import gc
import os
import select
import time
from collections.abc import Callable, Iterable
from typing import Any

from memgauge.monitor.clock import Clock
from memgauge.monitor.launch import Ending, Signals
from memgauge.monitor.lifetimes import Lifetimes
from memgauge.monitor.listening import Listener
from memgauge.monitor.peaks import Peaks
from memgauge.monitor.rounds import Rounds
from memgauge.monitor.saving import Saving
from memgauge.monitor.tree import Tree

FLUSH_NS = 800_000_000  # a killed sampler loses what came after the last flush
DEAF_NS = 100_000_000  # how long events may wait after some that were about strangers only
DRAIN_NS = 50_000_000  # how long marks may wait for the next look
# A process that ends closes its files before anybody can see that it is over (kernel, do_exit).
CLOSED_NS = 500_000_000
_STOPPED = "the program ended the recording"
# epoll_wait(2) counts in milliseconds, so a wait ends up to one too late. Where that is half of it or more, it is
# slept through instead, and what has come is looked for afterwards: so much later it is answered at most.
_SLEPT_NS = 2_000_000


class Loop:
    """Runs until `lifetimes.ending` is set.

    Args:
        rounds: The lanes; the first is the fast one.
        lifetimes: Hears of signals and of the ends of processes.
        tree: The processes that are followed; its events, where there are any, wake the loop.
        listener, hear: Where marks arrive, and what takes them in.
        peaks, saving: Are kept and written at each flush.
        clock: The clock of the run.
        signals: Those that the sampler got.
        stop_fd: Ends the recording when it is written to, or closed by a program that lives on, if there is one.
    """

    def __init__(
        self,
        rounds: Rounds,
        lifetimes: Lifetimes,
        tree: Tree,
        *,
        listener: Listener,
        hear: Callable[[], None],
        peaks: Peaks,
        saving: Saving,
        clock: Clock,
        signals: Signals,
        stop_fd: int | None,
    ) -> None:
        self._rounds, self._lifetimes, self._tree = rounds, lifetimes, tree
        self._listener, self._hear = listener, hear
        self._peaks, self._saving, self._clock = peaks, saving, clock
        self._signals, self._stop_fd = signals, stop_fd
        self._waiter, self._waiter_counts_ns = _waiter()
        self._flush_ns = self._drain_ns = 0
        self._deaf_until_ns = 0  # events of strangers wake nobody up to here; 0 while they do
        self._closed_until_ns = (
            0  # up to here a program that let go of `stop_fd` may end; 0 while it holds it
        )

    def run(self) -> None:
        """Wait for what comes first, and do it. A wake-up costs more than a tick: the way to the tick is short."""
        for fd in self._sources():
            self._waiter.register(fd, select.POLLIN)
        wait, counts_ns, lifetimes, monotonic, time_of = (
            self._waiter.poll,
            self._waiter_counts_ns,
            self._lifetimes,
            time.monotonic_ns,
            self._clock.of,
        )
        fast, *_ = paces = self._rounds.paces
        start = monotonic()
        self._flush_ns = self._drain_ns = start + FLUSH_NS // 4
        for pace in paces:
            pace.due_ns = start
        rest_ns = start  # when anything but the fast lane is due
        gc.collect()
        gc.freeze()
        gc.disable()  # nothing here makes cycles; a collection would only make a tick late
        while lifetimes.ending is None:
            left_ns = (fast.due_ns if fast.due_ns < rest_ns else rest_ns) - monotonic()
            if 0 < left_ns < _SLEPT_NS:
                time.sleep(left_ns / 1e9)
                left_ns = 0
            ready = wait(max(0, left_ns) / counts_ns)
            if ready:
                self._answer({fd for fd, _ in ready})
            now = monotonic()
            if now >= fast.due_ns:
                fast.run(now, time_of(now))
            if now >= rest_ns or ready:
                rest_ns = self._do_rest(now)

    def close(self) -> None:
        """Wait for nothing any more."""
        if hasattr(self._waiter, "close"):
            self._waiter.close()

    def _sources(self) -> Iterable[int]:
        """Return the descriptors that tell of something by becoming readable."""
        yield self._signals.fd
        for bell in self._listener.doorbells():
            yield bell.fileno()
        if self._stop_fd is not None:
            yield self._stop_fd
        if self._tree.events is not None:
            yield self._tree.events.socket.fileno()

    def _answer(self, ready: set[int]) -> None:
        """Take in what has come: events of the process table, signals, who wants to say something, the end."""
        lifetimes, events = self._lifetimes, self._tree.events
        is_called = any(bell.fileno() in ready for bell in self._listener.doorbells())
        if events is not None and events.socket.fileno() in ready:
            if not lifetimes.hear_events():
                self._waiter.unregister(events.socket)
                self._deaf_until_ns = min(self._rounds.paces[0].due_ns, time.monotonic_ns() + DEAF_NS)
        elif is_called:
            lifetimes.hear_events()  # who calls may have been forked just now
        if self._signals.fd in ready:
            lifetimes.pass_on(self._signals, is_program=self._stop_fd is not None)
        if is_called:
            self._listener.accept(self._peaks.welcome, self._tree.live.__contains__)
        if self._stop_fd in ready:
            assert self._stop_fd is not None
            if os.read(self._stop_fd, 4096):
                lifetimes.ending = Ending("stopped", detail=_STOPPED)
            else:  # the program is gone, or ends: how, its process tells; or it has closed what it does not know
                self._waiter.unregister(self._stop_fd)
                self._closed_until_ns = time.monotonic_ns() + CLOSED_NS

    def _do_rest(self, now: int) -> int:
        """Do what is due apart from the fast lane; returns when something will be."""
        others = self._rounds.paces[1:]
        for pace in others:
            if pace.due_ns <= now:
                pace.run(now, self._clock.of(now))
        if now >= self._drain_ns:
            self._drain_ns = now + DRAIN_NS
            if self._listener.is_used():
                self._hear()
        if now >= self._flush_ns:
            self._flush_ns += FLUSH_NS * ((now - self._flush_ns) // FLUSH_NS + 1)
            self._rounds.read_peaks(self._clock.of(now), FLUSH_NS)
            self._peaks.keep_changed(self._clock.of(now))
            self._saving.flush(**self._tree.missed())
        if self._closed_until_ns and now >= self._closed_until_ns:
            self._closed_until_ns = 0
            if not self._lifetimes.root_ends():
                self._lifetimes.ending = Ending("stopped", detail=_STOPPED)
        due = [self._flush_ns, *(pace.due_ns for pace in others)]
        if self._closed_until_ns:
            due.append(self._closed_until_ns)
        if self._listener.is_used():
            due.append(self._drain_ns)
        if self._deaf_until_ns:
            if self._deaf_until_ns <= now:
                assert self._tree.events is not None
                self._waiter.register(self._tree.events.socket, select.POLLIN)
                self._deaf_until_ns = 0
            else:
                due.append(self._deaf_until_ns)
        return min(due)


def _waiter() -> tuple[Any, int]:
    """Return what waits for descriptors, and the ns that it counts in.

    `selectors` has one for every system, but its wait of 10 ms takes 105 us of CPU for 75 (2 cores, 2026-11-22).
    """
    return (select.epoll(), 10**9) if hasattr(select, "epoll") else (select.poll(), 10**6)
