"""The run file: everything about one recorded run, in one SQLite file.

    header      what was run, where, when, how it ended          (table header)
    processes   each process of the tree                         (process)
    devices     GPUs                                             (device)
    samples     by lane, in chunks of columns                    (series, chunk)
    marks       what the job said: instants, phases              (mark)
    peaks       highest values by counters, with their kind      (peak)
    notes       what could not be read or was missed, and why    (note)
    documents   an estimate or a measurement, as JSON            (document)

There is one writer, the sampler. It writes in WAL mode: readers and the writer never wait
for each other, and a writer that is killed at any moment leaves every transaction that it
had finished. Where WAL is impossible (some network file systems) it is a rollback journal,
which is as safe, but a reader may delay the writer. When a run ends in order, the WAL is
folded into the file and removed, so that one file remains. Times are microseconds since the
run began, on the monotonic clock of the machine.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from memgauge.columns import MISSING, Chunk, Column, pack, unpack
from memgauge.errors import FileFormatError, UsageError

APPLICATION_ID = 0x6D656D67  # "memg", in the header of the file: what kind of SQLite file it is
VERSION = 1
SCHEMA_NAME = f"memgauge.run/{VERSION}"
SEALED_TICKS = 128  # a chunk is rewritten at each flush until it has so many ticks,
SEALED_US = 60_000_000  # or spans so much time

_TABLES = """
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


class Lane:
    """The ticks of one lane that are not sealed yet. Columns keep their identity over chunks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.times_us: array[int] = array("q")
        self.open: dict[int, list[Any]] = {}  # series -> [index of its first tick, values]
        self.row: int | None = None  # id of the chunk in the file, once it was written

    def column(self, series: int) -> array[int]:
        """Return the array to append a series' values to, one per tick from the coming tick on."""
        values: array[int] = array("q")
        self.open[series] = [len(self.times_us), values]
        return values

    def close_column(self, series: int) -> None:
        """End a series; what it has is kept until the chunk is sealed."""
        entry = self.open.get(series)
        if entry is not None:
            entry.append("closed")

    def is_behind(self, series: int) -> bool:
        """Return whether a series has no value yet for the tick that is being read."""
        first, values = self.open[series][:2]
        return bool(first + len(values) <= len(self.times_us))

    def is_full(self) -> bool:
        times = self.times_us
        span_us: int = times[-1] - times[0] if times else 0
        return len(times) >= SEALED_TICKS or span_us >= SEALED_US

    def packed(self) -> bytes:
        return pack(self.times_us, (Column(s, entry[0], entry[1]) for s, entry in self.open.items()))

    def seal(self) -> None:
        """Begin a new chunk; the arrays stay the same objects, so that who appends need not know."""
        del self.times_us[:]
        self.row = None
        self.open = {s: entry for s, entry in self.open.items() if len(entry) == 2}
        for entry in self.open.values():
            entry[0] = 0
            del entry[1][:]


class RunWriter:
    """Writes a run file: what is added is buffered until `flush`, which is one transaction.

    Args:
        path: The file; it must not exist, unless `replace`.
        header: What is known at the start. Values are kept as JSON.

    Raises:
        UsageError: The file exists or cannot be made.
    """

    def __init__(self, path: Path, header: Mapping[str, object], *, replace: bool = False) -> None:
        self.path = path
        self.lanes: dict[str, Lane] = {}
        self._pending: list[tuple[str, tuple[object, ...]]] = []
        self._last = {"process": 0, "device": 0, "series": 0, "mark": 0, "chunk": 0}
        if path.exists():
            if not replace:
                raise UsageError(f"{path} exists already; choose another name, or add --overwrite")
            if not path.is_file() or (path.stat().st_size and not is_run_file(path)):
                raise UsageError(f"{path} exists and is no run file, so it is not overwritten")
            for name in (path, *_companions(path)):
                name.unlink(missing_ok=True)
        try:
            # One thread at a time uses it; the sampler's main thread all of the time.
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=2.0)
            self._db.execute("PRAGMA page_size = 4096")
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {VERSION}")
            # A cache of 512 KiB: the sampler is to stay small, and only appends.
            self._db.execute("PRAGMA cache_size = -512")
            mode = self._db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            # In WAL mode NORMAL means: no fsync at a commit, so a killed process loses nothing and a
            # machine that loses power at most what came after the last checkpoint.
            self._db.execute("PRAGMA synchronous = NORMAL" if mode == "wal" else "PRAGMA synchronous = OFF")
            self._db.executescript(_TABLES)
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be written: {_why(path, error)}") from error
        self._inode = path.stat().st_ino
        self.set(schema=SCHEMA_NAME, journal=mode, **header)
        try:
            self.flush()
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error}") from error

    def set(self, **values: object) -> None:
        """Set entries of the header."""
        for key, value in values.items():
            self._add("INSERT OR REPLACE INTO header VALUES (?, ?)", key, _json(value))

    def lane(self, name: str) -> Lane:
        """Return the lane of that name, new if need be."""
        return self.lanes.setdefault(name, Lane(name))

    def add_series(
        self,
        lane: str,
        metric: str,
        instrument: str,
        *,
        process: int | None = None,
        device: int | None = None,
        refresh_us: int | None = None,
    ) -> int:
        """Add a series and return its id."""
        number = self._next("series")
        values = (number, lane, metric, process, device, refresh_us, instrument)
        self._add("INSERT INTO series VALUES (?, ?, ?, ?, ?, ?, ?)", *values)
        return number

    def add_process(
        self,
        pid: int,
        *,
        parent: int | None,
        name: str,
        command: str,
        started_us: int | None,
        seen_us: int,
        found: str,
    ) -> int:
        """Add a process and return its id."""
        number = self._next("process")
        values = (number, pid, parent, _text(name), _text(command), started_us, seen_us, None, None, found)
        self._add("INSERT INTO process VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", *values)
        return number

    def rename_process(self, number: int, name: str, command: str) -> None:
        """Note what a process has become, after exec."""
        self._add(
            "UPDATE process SET name = ?, command = ? WHERE id = ?", _text(name), _text(command), number
        )

    def end_process(self, number: int, gone_us: int, ended: str | None = None) -> None:
        """Note that a process is gone, and how it ended if that is known."""
        self._add(
            "UPDATE process SET gone_us = coalesce(gone_us, ?), ended = coalesce(?, ended) WHERE id = ?",
            gone_us,
            ended,
            number,
        )

    def add_device(
        self, kind: str, name: str, identity: str, total_bytes: int | None, facts: Mapping[str, object]
    ) -> int:
        """Add a device and return its id."""
        number = self._next("device")
        values = (number, kind, _text(name), _text(identity), total_bytes, _json(facts))
        self._add("INSERT INTO device VALUES (?, ?, ?, ?, ?, ?)", *values)
        return number

    def add_mark(
        self, time_us: int, pid: int, kind: str, name: str, value: str | None, facts: Mapping[str, object]
    ) -> int:
        """Add a mark and return its id."""
        number = self._next("mark")
        text = None if value is None else _text(value)
        values = (number, time_us, pid, kind, _text(name), text, _json(facts))
        self._add("INSERT INTO mark VALUES (?, ?, ?, ?, ?, ?, ?)", *values)
        return number

    def set_peak(self, peak: PeakRow) -> None:
        """Set a peak in the place of what was known of it."""
        where = "metric = ? AND process IS ? AND device IS ? AND phase IS ?"
        key = (peak.metric, peak.process, peak.device, peak.phase)
        self._add(f"DELETE FROM peak WHERE {where}", *key)
        self._add("INSERT INTO peak VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)", *peak)

    def add_note(self, time_us: int, topic: str, text: str, remedy: str = "") -> None:
        """Add a note."""
        self._add("INSERT INTO note VALUES (NULL, ?, ?, ?, ?)", time_us, topic, _text(text), _text(remedy))

    def set_document(self, kind: str, content: str) -> None:
        """Keep a JSON document: `estimate` or `measurement`."""
        self._add("INSERT OR REPLACE INTO document VALUES (?, ?)", kind, content)

    def flush(self) -> None:
        """Write all that was added, in one transaction. What fails stays buffered for the next try.

        Raises:
            OSError: It cannot be written now, with the reason.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for statement, values in self._pending:
                    self._db.execute(statement, values)
                for lane in self.lanes.values():
                    self._write_chunk(lane)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise OSError(_why(self.path, error)) from error
        self._pending.clear()
        for lane in self.lanes.values():
            if lane.is_full():
                lane.seal()

    def is_in_place(self) -> bool:
        """Return whether the file is still where it was made."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Write what is left and fold the WAL into the file.

        Raises:
            OSError: It cannot be written.
        """
        try:
            self.flush()
            if self.is_in_place():
                self._db.execute("PRAGMA journal_mode = DELETE")  # checkpoints and removes the WAL
        except sqlite3.Error:
            pass  # somebody reads it just now: the WAL stays, and the file is as good with it
        finally:
            self._db.close()

    def drop_samples(self) -> int:
        """Forget the samples that could not be written; returns how many ticks they were."""
        dropped = 0
        for lane in self.lanes.values():
            dropped += len(lane.times_us)
            lane.seal()
        return dropped

    def _write_chunk(self, lane: Lane) -> None:
        times = lane.times_us
        if not times:
            return
        row = lane.row or self._last["chunk"] + 1
        values = (row, lane.name, times[0], times[-1], len(times), lane.packed())
        self._db.execute("INSERT OR REPLACE INTO chunk VALUES (?, ?, ?, ?, ?, ?)", values)
        lane.row = row
        self._last["chunk"] = max(self._last["chunk"], row)

    def _add(self, statement: str, *values: object) -> None:
        self._pending.append((statement, values))

    def _next(self, table: str) -> int:
        self._last[table] += 1
        return self._last[table]


class RunFile:
    """Reads a run file, also while it grows. What is damaged is skipped and named in `damage`.

    Args:
        path: The file.

    Raises:
        UsageError: There is no such file, or it may not be read.
        FileFormatError: It is no run file, made by a newer version, or too damaged to be read at all.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.damage: list[str] = []
        self._unpacked: dict[int, Chunk] = {}  # of a run that has ended: nothing changes any more
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        _refuse_foreign(self.path)
        self._db = self._open()
        try:
            self._check_version()
            self.refresh()
        except BaseException:
            self.close()
            raise

    def refresh(self) -> None:
        """Read again everything but the samples; they are read when they are asked for."""
        self.damage.clear()
        self.header: dict[str, Any] = {}
        for key, value in self._rows("header", "key, value", tuple):
            self.header[key] = _parsed(value)
        self.processes: list[Process] = self._rows("process", "*", Process)
        self.devices: list[Device] = self._rows("device", "*", _with_facts(Device))
        self.series: list[Series] = self._rows("series", "*", Series)
        self.marks: list[Mark] = self._rows("mark", "*", _with_facts(Mark))
        columns = "metric, bytes, kind, instrument, reason, process, device, phase"
        self.peaks: list[PeakRow] = self._rows("peak", columns, PeakRow)
        self.notes: list[Note] = self._rows("note", "time_us, topic, text, remedy", Note)

    def document(self, kind: str) -> str | None:
        """Return the JSON document of that kind, None if there is none."""
        try:
            row = self._db.execute("SELECT content FROM document WHERE kind = ?", (kind,)).fetchone()
        except sqlite3.Error as error:
            self.damage.append(f"document {kind}: {error}")
            return None
        return None if row is None else str(row[0])

    def chunks(
        self, lane: str, begin_us: int | None = None, end_us: int | None = None, after: int = 0
    ) -> Iterator[tuple[int, Chunk]]:
        """Yield the chunks of one lane in order with their ids, those that touch the span if one is given.

        Args:
            lane: Name of the lane.
            begin_us: Chunks that end before it are left out.
            end_us: Chunks that begin after it are left out.
            after: Chunks with ids up to this are left out.
        """
        where, values = "lane = ? AND id > ?", [lane, after]
        if begin_us is not None:
            where += " AND last_us >= ?"
            values.append(begin_us)
        if end_us is not None:
            where += " AND first_us <= ?"
            values.append(end_us)
        for number, data in self._each_chunk(where, values):
            known = self._unpacked.get(number)
            if known is not None:
                yield number, known
                continue
            try:
                chunk = unpack(data)
                if "ended" in self.header and len(self._unpacked) < _KEPT_CHUNKS:
                    self._unpacked[number] = chunk
                yield number, chunk
            except ValueError as error:
                self.damage.append(f"samples of the {lane} lane, chunk {number}: {error}")

    def latest_chunks(self, lane: str, count: int) -> list[Chunk]:
        """Return the last chunks of one lane, oldest first."""
        query = "SELECT data FROM chunk WHERE lane = ? ORDER BY id DESC LIMIT ?"
        return [unpack(row[0]) for row in self._db.execute(query, (lane, count))][::-1]

    def last_us(self) -> int:
        """Return the time of the last sample, 0 if there is none."""
        try:
            found = self._db.execute("SELECT max(last_us) FROM chunk").fetchone()[0]
        except sqlite3.Error:
            found = None
        return int(found or 0)

    def set_document(self, kind: str, content: str) -> None:
        """Add a JSON document to a finished run."""
        with sqlite3.connect(self.path) as db:
            db.execute("INSERT OR REPLACE INTO document VALUES (?, ?)", (kind, content))
        db.close()

    def close(self) -> None:
        self._db.close()
        if self._copy is not None:
            self._copy.cleanup()

    def __enter__(self) -> RunFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)
            db.text_factory = _decoded
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return db
        except sqlite3.DatabaseError as error:
            if "unable to open" not in str(error) and "readonly" not in str(error):
                raise FileFormatError(f"{self.path} is damaged beyond reading: {error}") from error
        # A WAL beside it needs a folder that may be written; so a copy is read, with its companions.
        self._copy = tempfile.TemporaryDirectory(prefix="memgauge-")
        for name in (self.path, *_companions(self.path)):
            if name.exists() and not name.name.endswith("-shm"):
                shutil.copy(name, self._copy.name)
        db = sqlite3.connect(Path(self._copy.name, self.path.name))
        db.text_factory = _decoded
        return db

    def _check_version(self) -> None:
        try:
            application = self._db.execute("PRAGMA application_id").fetchone()[0]
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.Error as error:
            raise FileFormatError(f"{self.path} is damaged beyond reading: {error}") from error
        if application != APPLICATION_ID:
            raise FileFormatError(f"{self.path} is an SQLite file, but no run file; {_MADE_BY}")
        if version > VERSION:
            raise FileFormatError(
                f"{self.path} was made by a newer memgauge (run file {version}, this one reads {VERSION}); "
                "run: pip install --upgrade memgauge"
            )

    def _rows(self, table: str, columns: str, make: Callable[..., Any]) -> list[Any]:
        """Return the rows of a table; those that can be read if it is damaged."""
        found: list[Any] = []
        order = "key" if table == "header" else "id"
        try:
            for row in self._db.execute(f"SELECT {columns} FROM {table} ORDER BY {order}"):
                found.append(tuple(row) if make is tuple else make(*row))
        except sqlite3.Error as error:
            self.damage.append(f"table {table}: {error}; {len(found)} rows could be read")
        return found

    def _each_chunk(self, where: str, values: list[Any]) -> Iterator[tuple[int, bytes]]:
        """Yield chunk ids and bytes; after damage each is tried on its own."""
        number = 0
        try:
            for number, data in self._db.execute(
                f"SELECT id, data FROM chunk WHERE {where} ORDER BY id", values
            ):
                yield number, data
            return
        except sqlite3.Error as error:
            self.damage.append(f"samples: {error}")
        failures = 0
        while failures < _GIVE_UP_AFTER:
            number += 1
            try:
                row = self._db.execute(
                    f"SELECT id, data FROM chunk WHERE id = {number} AND {where}", values
                ).fetchone()
            except sqlite3.Error:
                row = None
            failures = 0 if row else failures + 1
            if row:
                yield row


_KEPT_CHUNKS = 4096  # chunks that are unpacked once only: some 200 MB for 24 hours of nine processes
_GIVE_UP_AFTER = 5000  # ids in a row that cannot be read, in a damaged file
_MADE_BY = 'run files are made by "memgauge monitor"'


def is_run_file(path: Path) -> bool:
    """Return whether a file is a run file of any version, judged by its first bytes."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except (OSError, ValueError):
        return False
    return head.startswith(b"SQLite format 3\0") and head[68:72] == APPLICATION_ID.to_bytes(4, "big")


def _refuse_foreign(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    if not head:
        raise FileFormatError(f"{path} is empty; {_MADE_BY}")
    if not head.startswith(b"SQLite format 3\0"):
        raise FileFormatError(f"{path} is no run file, or its beginning is damaged; {_MADE_BY}")


def _companions(path: Path) -> tuple[Path, ...]:
    return tuple(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))


def _why(path: Path, error: sqlite3.Error) -> str:
    """Return a reason that helps; SQLite says no more than that it cannot open a file."""
    folder = path.parent if str(path.parent) else Path(".")
    if not folder.is_dir():
        return f"the folder {folder} does not exist"
    if path.is_dir():
        return "it is a folder"
    if not os.access(folder, os.W_OK):
        return f"the folder {folder} may not be written"
    if "full" in str(error):
        return "the disk is full"
    return str(error)


def _text(text: str) -> str:
    """Return text that any database can hold: what is no Unicode becomes visible escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, default=str)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _with_facts(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*row: Any) -> Any:
        facts = _parsed(row[-1])
        return make(*row[:-1], facts if isinstance(facts, dict) else {})

    return made


__all__ = [
    "MISSING",
    "Device",
    "Lane",
    "Mark",
    "Note",
    "PeakRow",
    "Process",
    "RunFile",
    "RunWriter",
    "Series",
    "is_run_file",
]
