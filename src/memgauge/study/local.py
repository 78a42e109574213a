"""The executor of one machine: as many trials beside each other as its cores and its memory allow."""

from __future__ import annotations

import time
from multiprocessing import connection
from pathlib import Path
from typing import Protocol

from memgauge.study.order import Order
from memgauge.study.process import LOOK_S, Running

_REST_S = 0.25  # the longest rest where there is nothing to watch but the time


class Executor(Protocol):
    """Who runs trials: this machine, or a cluster."""

    @property
    def jobs(self) -> int:
        """How many trials may share a machine."""

    @property
    def capacity_bytes(self) -> int | None:
        """The memory of the largest machine; None if unknown."""

    @property
    def is_full(self) -> bool:
        """Whether there is no room for any more, however small."""

    def can_take(self, order: Order) -> bool:
        """Return whether there is room for this one now."""

    def start(self, order: Order, folder: Path) -> None:
        """Start a trial; its files go to `folder`."""

    def finished(self) -> list[int]:
        """Return the numbers of trials that ended since the last call; waits a moment."""

    def stop(self) -> list[int]:
        """End all that runs; returns the numbers of what was ended."""


class Local:
    """Runs trials as processes here, as many at a time as `jobs`, memory and cores allow.

    Args:
        jobs: At most so many at a time.
        cores: Cores that they share.
        memory_bytes: Memory that they share; None if that is not known.
        capacity_bytes: Memory of the machine.
    """

    def __init__(self, jobs: int, cores: int, memory_bytes: int | None, capacity_bytes: int | None) -> None:
        self._jobs, self._cores, self._memory_bytes = jobs, cores, memory_bytes
        self._capacity_bytes = capacity_bytes
        self._running: dict[int, Running] = {}

    @property
    def jobs(self) -> int:
        return self._jobs

    @property
    def capacity_bytes(self) -> int | None:
        return self._capacity_bytes

    @property
    def is_full(self) -> bool:
        return len(self._running) >= self._jobs

    def can_take(self, order: Order) -> bool:
        running = [r.order for r in self._running.values()]
        if not running:
            return True
        cores = sum(o.cores for o in running) + order.cores
        memory = sum(o.memory_bytes for o in running) + order.memory_bytes
        fits = self._memory_bytes is None or memory <= self._memory_bytes
        return not self.is_full and cores <= self._cores and fits

    def start(self, order: Order, folder: Path) -> None:
        self._running[order.number] = Running(order, folder)

    def adopt(self, order: Order, folder: Path) -> None:
        """Take over a trial that still runs, though the runner that started it is gone."""
        self._running[order.number] = Running(order, folder, adopted=True)

    def finished(self) -> list[int]:
        if self._running:
            self._wait()
        ended = [number for number, run in self._running.items() if run.is_over()]
        for number in ended:
            del self._running[number]
        return ended

    def _wait(self) -> None:
        """Wait for the first process that ends; a moment only where its memory is watched."""
        ends = [run.end for run in self._running.values()]
        if None in ends or any(run.is_watched for run in self._running.values()):
            time.sleep(LOOK_S)
        else:
            connection.wait([end for end in ends if end is not None], _REST_S)

    def stop(self) -> list[int]:
        numbers = list(self._running)
        for run in self._running.values():
            run.kill()
        self._running.clear()
        return numbers
