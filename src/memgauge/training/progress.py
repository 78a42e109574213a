"""Epochs and steps of a training: the order of the samples, marks, times. The same for every framework."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from memgauge.data import order
from memgauge.data.records import Array
from memgauge.monitor.marks import mark
from memgauge.training import Training


class Progress:
    """Counts steps and times epochs.

    Args:
        training: Batch size, epochs, steps and seed.
        rows: Samples in the data set.
        wait: Called at the end of an epoch, before the clock is read: waits for a device.
    """

    def __init__(self, training: Training, rows: int, wait: Callable[[], None] = lambda: None) -> None:
        self._training, self._rows, self._wait = training, rows, wait
        self.steps = 0
        self.seconds_per_epoch: list[float] = []

    def epochs(self) -> Iterator[int]:
        """Give the number of each epoch, from 0, until epochs or steps are done; marks and times each."""
        for epoch in range(self._training.epochs):
            if self.is_done():
                return
            mark("epoch", epoch)
            begin = time.perf_counter()
            yield epoch
            self._wait()
            self.seconds_per_epoch.append(time.perf_counter() - begin)

    def batches(self) -> Iterator[Array]:
        """Give the chosen samples of each step, epoch by epoch; the last batch of an epoch may be smaller."""
        for epoch in self.epochs():
            shuffled = order(self._rows, self._training.seed, epoch)
            for start in range(0, self._rows, self._training.batch_size):
                if self.is_done():
                    break
                yield shuffled[start : start + self._training.batch_size]
                self.steps += 1

    def is_done(self) -> bool:
        """Whether the steps that were asked for are done."""
        return self._training.steps is not None and self.steps >= self._training.steps

    @property
    def seconds(self) -> float:
        return sum(self.seconds_per_epoch)
