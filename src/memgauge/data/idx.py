"""The IDX format of MNIST: a magic number, the sizes, the values; plain or gzipped.

    0x00 0x00 TYPE DIMENSIONS, then each size as a big-endian 32-bit number, then the values

Only bytes (type 0x08) are read: MNIST and its successors have nothing else.

Source:
    The section "file formats" of Y. LeCun's MNIST page.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from memgauge.data.records import Array
from memgauge.errors import FileFormatError

_BYTES = 0x08
_CHUNK = 1 << 20


def read_idx(path: Path, dimensions: int, *, mapped: bool = False, rows: int | None = None) -> Array:
    """Return the values of an IDX file: (rows, …) of uint8.

    Args:
        path: The file; gzipped if its name ends in `.gz`.
        dimensions: How many it must have: 3 for pictures, 1 for labels.
        mapped: Map the file instead of reading it; not possible when gzipped.
        rows: Only the first so many, if there are more.

    Raises:
        FileFormatError: The file is of another kind, cut, or has bytes too many.
    """
    zipped = path.suffix == ".gz"
    if mapped and zipped:
        raise FileFormatError(f"{path}: a gzipped file cannot be mapped; run: gunzip --keep {path}")
    try:
        with _opened(path, zipped) as file:
            shape, start = _header(path, file, dimensions)
            if not zipped:
                check_size(path, start + math.prod(shape), "sizes in its header")
            if mapped:
                return np.memmap(path, np.uint8, "r", start, shape)
            wanted = (min(shape[0], rows) if rows is not None else shape[0], *shape[1:])
            values = np.empty(wanted, np.uint8)
            _fill(path, file, values)
            if zipped and wanted == shape and file.read(1):
                raise FileFormatError(f"{path}: there are more values than its header says; fetch it again")
            return values
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileFormatError(f"{path}: the gzipped data are damaged ({error}); fetch it again") from error
    except OSError as error:
        raise FileFormatError(f"{path}: {error.strerror or error}") from error


def write_idx(path: Path, values: Array) -> None:
    """Write an array of uint8 as a plain IDX file."""
    with path.open("wb") as file:
        file.write(header(values.shape))
        file.write(np.ascontiguousarray(values, np.uint8).data)


def header(shape: tuple[int, ...]) -> bytes:
    """Return the beginning of an IDX file of bytes."""
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, _BYTES, len(shape), *shape)


def check_size(path: Path, expected: int, why: str) -> None:
    """Raise `FileFormatError` if a file does not have this many bytes."""
    size = path.stat().st_size
    if size != expected:
        what = "cut off" if size < expected else "too long"
        raise FileFormatError(f"{path} is {what}: {size:,} bytes, {expected:,} by the {why}")


def _opened(path: Path, zipped: bool) -> Any:
    return gzip.open(path) if zipped else path.open("rb")


def _header(path: Path, file: IO[bytes], dimensions: int) -> tuple[tuple[int, ...], int]:
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0":
        raise FileFormatError(f"{path} is no IDX file: it begins with {start.hex(' ') or 'nothing'}")
    if start[2] != _BYTES or start[3] != dimensions:
        raise FileFormatError(
            f"{path}: type 0x{start[2]:02x} with {start[3]} dimensions; expected bytes (0x08) with {dimensions}"
        )
    sizes = file.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise FileFormatError(f"{path} is cut off in its header")
    return struct.unpack(f">{dimensions}I", sizes), 4 + 4 * dimensions


def _fill(path: Path, file: IO[bytes], values: Array) -> None:
    """Read into an array piece by piece, so that there is never a second copy."""
    view: Any = values.reshape(-1)  # a view: it is contiguous
    done = 0
    while done < len(view):
        piece = file.read(min(_CHUNK, len(view) - done))
        if not piece:
            raise FileFormatError(f"{path} is cut off: {done:,} of {len(view):,} values")
        view[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
        done += len(piece)
