"""The binary format of CIFAR-10: records of one label and 3,072 values, red plane first.

Source:
    https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version": 10,000 records in each file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from memgauge.data.records import Array
from memgauge.errors import FileFormatError

SIDE, CHANNELS, CLASSES = 32, 3, 10
VALUES = CHANNELS * SIDE * SIDE
RECORD = 1 + VALUES
PER_FILE = 10_000


def map_records(path: Path) -> Array:
    """Return a file's records as they are on disk: (records, 3073), mapped.

    Raises:
        FileFormatError: The file is cut, empty, or a label is no class.
    """
    try:
        size = path.stat().st_size
        if size == 0 or size % RECORD:
            raise FileFormatError(
                f"{path} is damaged or cut off: {size:,} bytes are no multiple of {RECORD:,}, the size of a "
                "record"
            )
        records = np.memmap(path, np.uint8, "r", shape=(size // RECORD, RECORD))
    except OSError as error:
        raise FileFormatError(f"{path}: {error.strerror or error}") from error
    return records


def labels_of(path: Path, records: Array) -> Array:
    """Return a copy of the labels: (records,).

    Raises:
        FileFormatError: One of them is no class: the file is damaged or of another kind.
    """
    labels = np.array(records[:, 0])
    wrong = np.flatnonzero(labels >= CLASSES)
    if wrong.size:
        raise FileFormatError(
            f"{path}: record {wrong[0] + 1} has the label {labels[wrong[0]]}, not 0 to 9; it is damaged or no "
            "CIFAR-10 file"
        )
    return labels


def pictures_of(records: Array) -> Array:
    """Return the pictures in the records as a view: (records, 32, 32, 3)."""
    planes = records[:, 1:].reshape(len(records), CHANNELS, SIDE, SIDE)
    return np.asarray(planes).transpose(0, 2, 3, 1)


def read_pictures(path: Path) -> Array:
    """Return a file's pictures in memory, read piece by piece: (records, 32, 32, 3), planes one after the other."""
    size = path.stat().st_size
    planes = np.empty((size // RECORD, VALUES), np.uint8)
    with path.open("rb") as file:
        for start in range(0, len(planes), 500):
            piece = np.frombuffer(file.read(500 * RECORD), np.uint8).reshape(-1, RECORD)
            planes[start : start + len(piece)] = piece[:, 1:]
    return planes.reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1)


def write_records(path: Path, pictures: Array, labels: Array) -> None:
    """Write pictures (records, 32, 32, 3) of uint8 and labels (records,) as one file."""
    records = np.empty((len(labels), RECORD), np.uint8)
    records[:, 0] = labels
    records[:, 1:] = np.asarray(pictures).transpose(0, 3, 1, 2).reshape(len(labels), VALUES)
    with path.open("wb") as file:
        file.write(records.data)
