"""What a run file holds: its tables, and a row of each as a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from memgauge.errors import UsageError

_SQLITE = b"SQLite format 3\0"  # how such a file begins
APPLICATION_ID = 0x6D656D67  # "memg", in the header of the file: what kind of SQLite file it is
VERSION = 1
SCHEMA_NAME = f"memgauge.run/{VERSION}"
SPAN = "span"  # among the facts of a phase's two marks: the number that joins them within a process
MADE_BY = 'run files are made by "memgauge monitor"'

TABLES = """
CREATE TABLE header (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE process (id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, parent INTEGER, name TEXT NOT NULL,
    command TEXT NOT NULL, started_us INTEGER, seen_us INTEGER NOT NULL, gone_us INTEGER, ended TEXT,
    found TEXT NOT NULL);
CREATE TABLE device (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, identity TEXT NOT NULL,
    total_bytes INTEGER, facts TEXT NOT NULL);
CREATE TABLE series (id INTEGER PRIMARY KEY, lane TEXT NOT NULL, metric TEXT NOT NULL, process INTEGER,
    device INTEGER, refresh_us INTEGER, instrument TEXT NOT NULL);
CREATE TABLE chunk (id INTEGER PRIMARY KEY, lane TEXT NOT NULL, first_us INTEGER NOT NULL,
    last_us INTEGER NOT NULL, ticks INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE mark (id INTEGER PRIMARY KEY, time_us INTEGER NOT NULL, pid INTEGER NOT NULL, kind TEXT NOT NULL,
    name TEXT NOT NULL, value TEXT, facts TEXT NOT NULL);
CREATE TABLE peak (id INTEGER PRIMARY KEY, metric TEXT NOT NULL, bytes INTEGER NOT NULL, kind TEXT NOT NULL,
    instrument TEXT NOT NULL, reason TEXT NOT NULL, process INTEGER, device INTEGER, phase INTEGER,
    UNIQUE (metric, process, device, phase));
CREATE TABLE note (id INTEGER PRIMARY KEY, time_us INTEGER NOT NULL, topic TEXT NOT NULL, text TEXT NOT NULL,
    remedy TEXT NOT NULL);
CREATE TABLE document (kind TEXT PRIMARY KEY, content TEXT NOT NULL) WITHOUT ROWID;
"""


class Process(NamedTuple):
    """One process of the tree. `started_us` is negative for one that was there before the recording."""

    id: int
    pid: int
    parent: int | None  # its parent's id in this file
    name: str
    command: str
    started_us: int | None
    seen_us: int
    gone_us: int | None  # when it was found gone; None if it outlived the recording
    ended: str | None  # exit code or signal, where it could be known
    found: str  # how it was found


class Device(NamedTuple):
    """One GPU, or one slice of one."""

    id: int
    kind: str
    name: str
    identity: str
    total_bytes: int | None
    facts: dict[str, Any]


class Series(NamedTuple):
    """One quantity of one process, of one device or of the system, sampled in one lane."""

    id: int
    lane: str
    metric: str
    process: int | None
    device: int | None
    refresh_us: int | None  # how often the source itself changes, where that is slower than the lane
    instrument: str


class Mark(NamedTuple):
    """What the job said at one instant: `kind` is mark, begin or end."""

    id: int
    time_us: int
    pid: int
    kind: str
    name: str
    value: str | None
    facts: dict[str, Any]


class PeakRow(NamedTuple):
    """A highest value. `kind`: exact (a counter), lower bound (samples) or upper bound."""

    metric: str
    bytes: int
    kind: str
    instrument: str
    reason: str  # why it is no more than a bound
    process: int | None
    device: int | None
    phase: int | None  # id of the mark that began the phase; None for the whole run


class Note(NamedTuple):
    """Something that was missed or changed, with what to do about it."""

    time_us: int
    topic: str
    text: str
    remedy: str


def is_run_file(path: Path) -> bool:
    """Return whether a file is a run file of any version, judged by its first bytes."""
    head = _head(path)
    return head.startswith(_SQLITE) and head[68:72] == APPLICATION_ID.to_bytes(4, "big")


def refuse_recorded(path: Path) -> None:
    """Refuse to write over what was recorded: a run file, one that is damaged, or the ledger of a study.

    Raises:
        UsageError: The path, or what it links to, is such a file.
    """
    if _head(path).startswith(_SQLITE):
        what = "a recording" if is_run_file(path) else "a database, such as a ledger or a damaged recording"
        raise UsageError(f"{path} is {what}, so it is not overwritten; choose another name")


def _head(path: Path) -> bytes:
    """Return the first bytes of a file, none if there is nothing to read."""
    try:
        if not path.is_file():
            return b""  # a pipe's first bytes belong to who reads it all
        with path.open("rb") as file:
            return file.read(100)
    except (OSError, ValueError):
        return b""


def companions(path: Path) -> tuple[Path, ...]:
    """Return the files that SQLite may keep beside a run file."""
    return tuple(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))
