"""Random numbers in the place of data: files in the formats of real sets, and arrays of floats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from memgauge.data import cifar, idx
from memgauge.data.catalogue import Description
from memgauge.data.records import Array

SEED = 20210  # one for every study, so that a set is made once
IDX_HELD_OUT = 10_000  # pictures in the test files of MNIST
_PIECE = 4 << 20  # values that are made at once


def write_files(what: Description, folder: Path) -> None:
    """Write the files of `what` with random bytes: same names, format, counts and shapes."""
    random = np.random.default_rng(SEED)
    if what.kind == "cifar":
        for name in what.files:
            labels = random.integers(0, what.classes, cifar.PER_FILE, np.uint8)
            shape = (cifar.PER_FILE, cifar.SIDE, cifar.SIDE, cifar.CHANNELS)
            cifar.write_records(folder / name, random.integers(0, 256, shape, np.uint8), labels)
        return
    counts = (what.rows, what.rows, IDX_HELD_OUT, IDX_HELD_OUT)
    for name, count in zip(what.files, counts, strict=True):
        if "labels" in name:
            values = random.integers(0, what.classes, count, np.uint8)
        else:
            values = random.integers(0, 256, (count, what.height, what.width), np.uint8)
        idx.write_idx(folder / name, values)


def fill_floats(what: Description, pictures: Array) -> None:
    """Fill pictures (rows, height, width, channels) of float32 with numbers from 0 to 1, piece by piece."""
    random = np.random.default_rng(SEED)
    for rows in _pieces(what):
        random.random(dtype=np.float32, out=pictures[rows])


def labels_of(what: Description) -> Array:
    """Return random classes: (rows,), of one byte where that is enough."""
    kind = np.uint8 if what.classes <= 256 else np.int64
    return np.random.default_rng((SEED, 1)).integers(0, what.classes, what.rows, kind)


def _pieces(what: Description) -> Iterator[slice]:
    step = max(1, _PIECE // what.picture_values)
    for start in range(0, what.rows, step):
        yield slice(start, min(start + step, what.rows))
