"""From files to arrays: in memory, read piece by piece so that nothing is there twice, or mapped."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import psutil

from memgauge.data import cifar, generate, idx
from memgauge.data.catalogue import Description, describe
from memgauge.data.files import Located, complete_or_nothing, data_folder, locate, next_step, room_for
from memgauge.data.records import Array, DataSet
from memgauge.errors import FileFormatError, UsageError, missing_extra

ACCESS = ("memory", "mapped")
HELD_OUT = 1_000
_SPARE = 64 << 20


def load(name: str, directory: str | None = None, access: str = "memory") -> DataSet:
    """Load a data set.

    Args:
        name: As `describe` takes it.
        directory: Where the files of a real data set are; see `files`.
        access: `memory`, or `mapped`: the kernel reads a page when it is first used and may drop it again;
            used pages count as resident memory of the process all the same.

    Raises:
        UsageError: The name is unknown, files are missing, or memory or disk are too small.
        FileFormatError: A file is damaged, cut, of another kind, or has a wrong checksum.
        MissingError: The digits are asked for and scikit-learn is not installed.
    """
    what = describe(name)
    mapped = access == "mapped"
    if not mapped:
        _check_memory(what)
    if what.kind == "digits":
        return _digits(what)
    if what.kind == "synthetic":
        return _synthetic(what, mapped)
    found = locate(what, directory)
    with next_step(found.files[0].parent, is_ours=directory is None):
        return (_idx if what.kind == "idx" else _cifar)(what, found, mapped)


def _check_memory(what: Description) -> None:
    available = psutil.virtual_memory().available
    if what.pictures_bytes + _SPARE > available:
        raise UsageError(
            f"data {what.name!r} takes {what.pictures_bytes:,} bytes in memory and {available:,} are available; "
            "use data_access = 'mapped', or fewer rows as synthetic:ROWSxHxWxC"
        )


def _idx(what: Description, found: Located, mapped: bool) -> DataSet:
    pictures_file, labels_file, held_pictures_file, held_labels_file = found.files
    pictures = idx.read_idx(pictures_file, 3, mapped=mapped)
    labels = idx.read_idx(labels_file, 1)
    _check_labels(labels_file, labels, len(pictures), what.classes)
    held = idx.read_idx(held_pictures_file, 3, rows=HELD_OUT)[..., np.newaxis]
    held_labels = idx.read_idx(held_labels_file, 1, rows=HELD_OUT)
    _check_labels(held_labels_file, held_labels, len(held), what.classes)
    return DataSet(
        name=what.name,
        parts=(pictures[..., np.newaxis],),
        labels=labels,
        classes=what.classes,
        highest=255.0,
        synthetic=found.synthetic,
        held_out=None if found.synthetic else (held, held_labels),
        source=found.source,
    )


def _check_labels(path: Path, labels: Array, pictures: int, classes: int) -> None:
    if len(labels) != pictures:
        raise FileFormatError(f"{path}: {len(labels):,} labels for {pictures:,} pictures")
    if labels.size and labels.max() >= classes:
        raise FileFormatError(f"{path}: label {labels.max()}, but there are {classes} classes")


def _cifar(what: Description, found: Located, mapped: bool) -> DataSet:
    *training, held_file = found.files
    parts, labels = [], []
    for file in training:
        records = cifar.map_records(file)
        labels.append(cifar.labels_of(file, records))
        parts.append(cifar.pictures_of(records) if mapped else cifar.read_pictures(file))
    held = cifar.map_records(held_file)[:HELD_OUT]
    held_out = np.array(cifar.pictures_of(held)), cifar.labels_of(held_file, held)
    return DataSet(
        name=what.name,
        parts=tuple(parts),
        labels=np.concatenate(labels),
        classes=what.classes,
        highest=255.0,
        synthetic=found.synthetic,
        held_out=None if found.synthetic else held_out,
        source=found.source,
    )


def _synthetic(what: Description, mapped: bool) -> DataSet:
    shape = (what.rows, what.height, what.width, what.channels)
    if mapped:
        path = _mapped_floats(what, shape)
        pictures = _open_floats(path, shape)
        source = f"random numbers in {path}"
    else:
        pictures = np.empty(shape, np.float32)
        generate.fill_floats(what, pictures)
        source = "random numbers made in memory"
    return DataSet(what.name, (pictures,), generate.labels_of(what), what.classes, 1.0, True, None, source)


def _mapped_floats(what: Description, shape: tuple[int, ...]) -> Path:
    folder = data_folder() / "floats-{}-synthetic".format("x".join(map(str, shape)))
    if not folder.is_dir():
        room_for(what.pictures_bytes * 21 // 20, folder)
        with complete_or_nothing(folder) as new:
            pictures = np.lib.format.open_memmap(new / "pictures.npy", "w+", np.float32, shape)
            generate.fill_floats(what, pictures)
            pictures.flush()
    return folder / "pictures.npy"


def _open_floats(path: Path, shape: tuple[int, ...]) -> Array:
    try:
        pictures: Array = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} is damaged ({error}); remove it and it is made again") from error
    if pictures.shape != shape or pictures.dtype != np.float32:
        raise FileFormatError(
            f"{path} holds {pictures.dtype} {pictures.shape}; remove it and it is made again"
        )
    return pictures


def _digits(what: Description) -> DataSet:
    """Read the digits that scikit-learn ships, without importing it: that takes 148 MiB more (159 against 11; scikit-learn 1.9.1, Linux, 2026-11-21)."""
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise missing_extra("scikit-learn", "data")
    path = Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    try:
        with gzip.open(path, "rt") as file:
            table = np.loadtxt(file, np.uint8, delimiter=",")
    except (OSError, EOFError, ValueError) as error:
        raise FileFormatError(f"{path}: {error}; install scikit-learn again") from error
    pictures, labels = table[:, :-1].reshape(-1, what.height, what.width, 1), table[:, -1]
    held_out = pictures[what.rows :].copy(), labels[what.rows :].copy()
    return DataSet(
        name=what.name,
        parts=(pictures[: what.rows].copy(),),
        labels=labels[: what.rows].copy(),
        classes=what.classes,
        highest=16.0,
        synthetic=False,
        held_out=held_out,
        source=f"scikit-learn's handwritten digits, {path}",
    )
