"""Finding a data set's files: in a folder that is given, downloaded, or generated in the same format.

Without a folder memgauge's own is used: `$MEMGAUGE_DATA`, else `memgauge/data` in the user's cache.
There a set is looked for, then downloaded, and where that fails generated: valid files of the same
format, counts and shapes, full of random numbers, in a folder `NAME-synthetic` with a text that says so.
Everything appears under its name only when complete, so that processes at the same time do not
disturb each other. `checksums.md5` beside the files is what md5sum writes and is checked at every load.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from memgauge.data import cifar, generate, idx
from memgauge.data.catalogue import Description, Download
from memgauge.errors import FileFormatError, MemgaugeError, UsageError
from memgauge.units import format_bytes

CHECKSUMS, SYNTHETIC = "checksums.md5", "SYNTHETIC.txt"
_TIMEOUT_S = 10
_CHUNK = 1 << 20
_SUBFOLDERS = {
    "mnist": ("mnist", "MNIST/raw"),
    "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw"),
    "cifar10": ("cifar10", "cifar-10-batches-bin"),
}


@dataclass(frozen=True, slots=True)
class Located:
    """The files of a data set, in the order of its description, and where they came from."""

    files: tuple[Path, ...]
    synthetic: bool
    source: str


def data_folder() -> Path:
    """Return memgauge's own folder for data sets."""
    if own := os.environ.get("MEMGAUGE_DATA"):
        return Path(own)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "memgauge" / "data"


def locate(what: Description, directory: str | None, say: Callable[[str], None] | None = None) -> Located:
    """Return the files of a data set, downloading or generating them if no folder is given and none are there.

    Args:
        what: The data set.
        directory: Where its files are; memgauge's own folder if None.
        say: Is told what takes long: how much was downloaded, what is generated and why.

    Raises:
        UsageError: The given folder does not have them, or a disk is too small.
        FileFormatError: A checksum is wrong.
    """
    found = find(what, directory)
    if found is None:
        found = _obtain(what, say or (lambda _: None))
    _verify(what, found.files, is_ours=directory is None)
    return found


def find(what: Description, directory: str | None) -> Located | None:
    """Return the files that are there already; None if no folder is given and there are none.

    Raises:
        UsageError: The given folder does not exist or lacks files; names them.
    """
    if directory is None:
        folders = [data_folder() / what.name, data_folder() / f"{what.name}-synthetic"]
    else:
        given = Path(directory)
        if not given.is_dir():
            raise UsageError(f"data_dir {directory!r} is no folder; it must have {', '.join(what.files)}")
        folders = [given / sub for sub in _SUBFOLDERS[what.name]] + [given]
    nearest: list[str] = list(what.files)
    for folder in folders:
        files = [_plain_or_gzipped(folder, name) for name in what.files]
        if all(files):
            return _located(folder, tuple(file for file in files if file))
        missing = [name for name, file in zip(what.files, files, strict=True) if not file]
        nearest = min(nearest, missing, key=len)
    if directory is None:
        return None
    raise UsageError(
        f"data_dir {directory!r} lacks {', '.join(nearest)} of {what.name}; leave data_dir out to have the data "
        "downloaded, or generated where there is no network"
    )


def check_files(what: Description, directory: str | None) -> None:
    """Find what is wrong with given files by their sizes and headers, without reading them.

    Raises:
        UsageError: The folder lacks files.
        FileFormatError: A file is cut or of another kind.
    """
    if not what.files:
        if directory is not None and not Path(directory).is_dir():
            raise UsageError(f"data_dir {directory!r} is no folder")
        return
    found = find(what, directory)
    for path in found.files if found else ():
        with next_step(path.parent, is_ours=directory is None):
            if what.kind == "cifar":
                cifar.map_records(path)
            elif path.suffix != ".gz":
                idx.read_idx(path, _dimensions(path), mapped=True)


def _dimensions(path: Path) -> int:
    return 1 if "labels" in path.name else 3


def fetch(what: Description, progress: Callable[[str, int], None] | None = None) -> Located:
    """Download a data set into memgauge's own folder and return its files.

    Args:
        what: A data set that has downloads.
        progress: Called with a file's name and the bytes that have come.

    Raises:
        MemgaugeError: It could not be reached.
        FileFormatError: What came has another checksum than its publisher says.
    """
    if not what.downloads:
        raise UsageError(f"{what.name} is not downloaded: it is made here")
    with complete_or_nothing(data_folder() / what.name) as folder:
        for download in what.downloads:
            arrived = folder / download.file
            _download(download, arrived, progress)
            _unpack(arrived, what)
        _write_checksums(folder, what.files)
    found = find(what, None)
    assert found is not None
    return found


def _obtain(what: Description, say: Callable[[str], None]) -> Located:
    def arrived(file: str, done_bytes: int) -> None:
        say(f"downloading {what.name}: {file}, {format_bytes(done_bytes)}")

    try:
        say(f"downloading {what.name}")
        return fetch(what, arrived)
    except FileFormatError:
        raise
    except MemgaugeError as error:  # not reachable
        say(f"generating {what.name}, of the same shapes: {error}")
        return generated(what)


def generated(what: Description) -> Located:
    """Return generated files of a data set's format, made in memgauge's own folder if they are not there."""
    target = data_folder() / f"{what.name}-synthetic"
    if not target.is_dir():
        room_for(what.rows * (what.picture_values + 1) * 6 // 5, target)
        with complete_or_nothing(target) as folder:
            generate.write_files(what, folder)
            _write_checksums(folder, what.files)
            (folder / SYNTHETIC).write_text(
                f"Random numbers in the format, counts and shapes of {what.name}, made by memgauge because the "
                "data set was not here and could not be downloaded. Memory is the same; accuracy means nothing.\n"
            )
    return _located(target, tuple(target / name for name in what.files))


def room_for(count_bytes: int, target: Path) -> None:
    """Raise `UsageError` if the disk of `target` has no room for a file of that size."""
    folder = target
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < count_bytes:
        raise UsageError(
            f"{target} needs {count_bytes:,} bytes of disk and {free:,} are free; set MEMGAUGE_DATA to a folder "
            "on a larger disk"
        )


def _located(folder: Path, files: tuple[Path, ...]) -> Located:
    synthetic = (folder / SYNTHETIC).is_file()
    return Located(files, synthetic, f"generated files in {folder}" if synthetic else f"files in {folder}")


def _plain_or_gzipped(folder: Path, name: str) -> Path | None:
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    return None


@contextmanager
def next_step(folder: Path, *, is_ours: bool) -> Iterator[None]:
    """Say of a damaged file what to do: memgauge's own are made again, a user's are the user's to copy."""
    try:
        yield
    except FileFormatError as error:
        again = f"remove {folder} and it is made again" if is_ours else "fetch or copy it again"
        raise FileFormatError(f"{error}; {again}") from error


def _verify(what: Description, files: tuple[Path, ...], *, is_ours: bool) -> None:
    known = {download.file: download.md5 for download in what.downloads}
    listed = files[0].parent / CHECKSUMS
    if listed.is_file():
        for line in listed.read_text().splitlines():
            md5, _, name = line.partition("  ")
            known[name] = md5
    for file in files:
        expected = known.get(file.name)
        if expected is not None and (found := md5_of(file)) != expected:
            with next_step(file.parent, is_ours=is_ours):
                raise FileFormatError(
                    f"{file}: its MD5 sum is {found}, not {expected}; the file is damaged or of another data set"
                )


def md5_of(path: Path) -> str:
    """Return a file's MD5 sum; it is what the publishers give, and here it guards against damage only."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _write_checksums(folder: Path, names: tuple[str, ...]) -> None:
    lines = [f"{md5_of(folder / name)}  {name}\n" for name in names]
    (folder / CHECKSUMS).write_text("".join(lines))


def _download(download: Download, path: Path, progress: Callable[[str, int], None] | None) -> None:
    try:
        with urllib.request.urlopen(download.url, timeout=_TIMEOUT_S) as answer, path.open("wb") as file:
            done = 0
            while piece := answer.read(_CHUNK):
                file.write(piece)
                done += len(piece)
                if progress is not None:
                    progress(download.file, done)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise MemgaugeError(f"{download.url} could not be fetched: {error}") from error
    if (found := md5_of(path)) != download.md5:
        raise FileFormatError(f"{download.url}: what came has the MD5 sum {found}, not {download.md5}")


def _unpack(arrived: Path, what: Description) -> None:
    """Unpack a downloaded file beside itself: the gzipped file, or the members of the archive by name."""
    folder = arrived.parent
    if arrived.name.endswith(".tar.gz"):
        with tarfile.open(arrived) as archive:
            for member in archive:
                name = Path(member.name).name
                source = archive.extractfile(member) if name in what.files and member.isfile() else None
                if source is not None:
                    with source, (folder / name).open("wb") as file:
                        shutil.copyfileobj(source, file)
    else:
        with gzip.open(arrived) as unzipped, (folder / arrived.stem).open("wb") as file:
            shutil.copyfileobj(unzipped, file)
    arrived.unlink()


@contextmanager
def complete_or_nothing(target: Path) -> Iterator[Path]:
    """Give a temporary folder that becomes `target` at the end, unless another process was faster."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise UsageError(
            f"{target.parent}: {error.strerror}; set MEMGAUGE_DATA to a folder that can be written"
        ) from error
    try:
        yield folder
        folder.chmod(0o755)
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
