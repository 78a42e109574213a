"""From a data set's pictures to what a network takes, in NumPy: the same numbers for every framework."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memgauge.data import DataSet, describe
from memgauge.data.records import Array
from memgauge.training import Training
from memgauge.training.checks import SEQUENCE_LENGTH, image_size
from memgauge.training.networks import NETWORKS, Input

COLOURS = 3


@dataclass(frozen=True, slots=True)
class Inputs:
    """How the pictures of one data set become the input of one network.

    Attributes:
        takes: As in `Network`.
        size: Height and width to enlarge or reduce to; None to leave them.
        shape: Of one sample, channels last: (S, S, 3), (values,) or (sequence,).
        highest: The largest value of the pictures.
    """

    takes: Input
    size: int | None
    shape: tuple[int, ...]
    highest: float

    def make(self, pictures: Array, labels: Array) -> tuple[Array, Array]:
        """Return input (B, *shape) and target for pictures (B, height, width, channels) and labels (B,).

        Input is float32 from 0 to 1 (`reals`: −1 to 1) with the classes (B,) of int64 as target; for
        `tokens` both are (B, sequence) of int64.
        """
        if self.takes == "tokens":
            values = _bytes_of(pictures, self.highest).reshape(len(pictures), -1)
            length = self.shape[0]
            return values[:, :length].astype(np.int64), values[:, 1 : length + 1].astype(np.int64)
        if self.size is not None:
            pictures = resized(pictures, self.size)
        numbers = pictures.astype(np.float32)
        if self.highest != 1:
            numbers /= np.float32(self.highest)
        if self.takes == "vector":
            numbers = numbers.reshape(len(numbers), -1)
        elif numbers.shape[-1] < COLOURS:
            numbers = np.repeat(numbers, COLOURS, axis=-1)
        if self.takes == "reals":
            numbers = numbers * 2 - 1
        return numbers, labels.astype(np.int64)


def inputs_for(training: Training) -> Inputs:
    """Return how the training's data become its network's input."""
    what, network = describe(training.data), NETWORKS[training.model]
    size = image_size(training, what, network)
    highest = {"digits": 16.0, "synthetic": 1.0}.get(what.kind, 255.0)
    if network.takes == "tokens":
        shape: tuple[int, ...] = (int(training.options.get("sequence_length", SEQUENCE_LENGTH)),)
    elif network.takes == "vector":
        shape = (size * size * what.channels if size else what.picture_values,)
    else:
        assert size is not None
        shape = (size, size, COLOURS)
    return Inputs(network.takes, size, shape, highest)


def resized(pictures: Array, size: int) -> Array:
    """Return pictures (B, size, size, channels) by the nearest value; the same array if they have that size."""
    height, width = pictures.shape[1:3]
    if (height, width) == (size, size):
        return pictures
    rows, columns = np.arange(size) * height // size, np.arange(size) * width // size
    taken: Array = pictures[:, rows][:, :, columns]
    return taken


def samples(data: DataSet, inputs: Inputs, chosen: Array) -> tuple[Array, Array]:
    """Return input and target of the chosen samples."""
    return inputs.make(*data.take(chosen))


def whole(data: DataSet, inputs: Inputs) -> tuple[Array, Array]:
    """Return input and target for the whole data set: its own array where that is the input, else a copy."""
    first = data.parts[0]
    as_it_is = len(data.parts) == 1 and first.dtype == np.float32 and inputs.highest == 1
    if as_it_is and inputs.takes == "picture" and first.shape[1:] == inputs.shape:
        return first, data.labels.astype(np.int64)
    target = (data.rows, *inputs.shape) if inputs.takes == "tokens" else (data.rows,)
    x = np.empty((data.rows, *inputs.shape), np.int64 if inputs.takes == "tokens" else np.float32)
    y = np.empty(target, np.int64)
    for start in range(0, data.rows, 1000):
        rows = slice(start, min(start + 1000, data.rows))
        x[rows], y[rows] = samples(data, inputs, np.arange(rows.start, rows.stop))
    return x, y


def _bytes_of(pictures: Array, highest: float) -> Array:
    if pictures.dtype == np.uint8:
        return pictures
    return (pictures * (255 / highest)).astype(np.uint8)
