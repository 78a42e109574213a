"""A loaded data set, and the order in which its samples are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class DataSet:
    """Pictures and classes, in memory or mapped.

    Attributes:
        name: As asked for.
        parts: Pictures (rows, height, width, channels), cut into one array per file.
        labels: The class of each picture: (rows,).
        classes: How many there are.
        highest: The pictures' largest possible value: 255 for bytes, 16 for digits, 1 for floats.
        synthetic: The numbers are random; memory is that of the real set, accuracy means nothing.
        held_out: Pictures and labels that are not trained on, a thousand at most; None if there are none.
        source: Where it came from, for people.
    """

    name: str
    parts: tuple[Array, ...]
    labels: Array
    classes: int
    highest: float
    synthetic: bool
    held_out: tuple[Array, Array] | None
    source: str

    @property
    def rows(self) -> int:
        """How many pictures there are."""
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of a picture."""
        height, width, channels = self.parts[0].shape[1:]
        return height, width, channels

    def take(self, chosen: Array) -> tuple[Array, Array]:
        """Return copies of some pictures (len(chosen), height, width, channels) and their labels, in that order."""
        if len(self.parts) == 1:
            return self.parts[0][chosen], self.labels[chosen]
        taken = np.empty((len(chosen), *self.shape), self.parts[0].dtype)
        start = 0
        for part in self.parts:
            here = (chosen >= start) & (chosen < start + len(part))
            taken[here] = part[chosen[here] - start]
            start += len(part)
        return taken, self.labels[chosen]

    def all_pictures(self) -> Array:
        """Return every picture as one array; a copy where the data set consists of several files."""
        return self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts)


def order(rows: int, seed: int, epoch: int) -> Array:
    """Return the order of the samples in an epoch: (rows,), equal for every framework and machine."""
    return np.random.default_rng((seed, epoch)).permutation(rows)
