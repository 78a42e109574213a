"""Reads a run file, also while it grows, and what can be read of a damaged one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from memgauge.columns import Chunk, unpack
from memgauge.errors import FileFormatError, MissingError, UsageError
from memgauge.storage.schema import (
    APPLICATION_ID,
    MADE_BY,
    VERSION,
    Device,
    Mark,
    Note,
    PeakRow,
    Process,
    Series,
    companions,
)

_KEPT_CHUNKS = 16_384  # chunks that are unpacked once only: some 200 MB for 24 hours of nine processes
_GIVE_UP_AFTER = 5000  # ids in a row that cannot be read, in a damaged file


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
        self.damage = _cut_off(self.path)
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
                self._note_damage(f"samples of the {lane} lane, chunk {number}: {error}")

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

    def set_documents(self, **documents: str) -> None:
        """Add JSON documents to a finished run, by their kind, all or none.

        Raises:
            MissingError: The file cannot be written, or the disk is full.
        """
        try:
            with contextlib.closing(sqlite3.connect(self.path)) as db, db:
                db.executemany("INSERT OR REPLACE INTO document VALUES (?, ?)", documents.items())
        except sqlite3.Error as error:
            raise MissingError(f"{self.path} cannot be written: {error}") from error

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
            if _cut_off(self.path):
                db.execute("PRAGMA writable_schema = ON")  # SQLite's way to read a file shorter than it says
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return db
        except sqlite3.DatabaseError as error:
            if "unable to open" not in str(error) and "readonly" not in str(error):
                raise FileFormatError(f"{self.path} is damaged beyond reading: {error}") from error
        # A WAL beside it needs a folder that may be written; so a copy is read, with its companions.
        self._copy = tempfile.TemporaryDirectory(prefix="memgauge-")
        for name in (self.path, *companions(self.path)):
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
            raise FileFormatError(f"{self.path} is an SQLite file, but no run file; {MADE_BY}")
        if version > VERSION:
            raise FileFormatError(
                f"{self.path} was made by a newer memgauge (run file {version}, this one reads {VERSION}); "
                "run: pip install --upgrade memgauge"
            )

    def _rows(self, table: str, columns: str, make: Callable[..., Any]) -> list[Any]:
        """Return the rows of a table; those that can be read if it is damaged."""
        found: list[Any] = []
        order = "key" if table == "header" else "id"
        emptied = 0
        try:
            never_null = {c[1] for c in self._db.execute(f"PRAGMA table_info({table})") if c[3]}
            rows = self._db.execute(f"SELECT {columns} FROM {table} ORDER BY {order}")
            needed = [place for place, c in enumerate(rows.description) if c[0] in never_null]
            for row in rows:
                if any(row[place] is None for place in needed):
                    emptied += 1  # part of a page is gone; SQLite gives nulls for what was there
                    continue
                found.append(tuple(row) if make is tuple else make(*row))
        except sqlite3.Error as error:
            self.damage.append(f"table {table}: {error}; {len(found)} rows could be read")
        if emptied:
            self.damage.append(f"table {table}: {emptied} rows are incomplete and left out")
        return found

    def _note_damage(self, text: str) -> None:
        if text not in self.damage:  # the same chunks are read again for another figure
            self.damage.append(text)

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
            self._note_damage(f"samples: {error}")
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


def _refuse_foreign(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    if not head:
        raise FileFormatError(f"{path} is empty; {MADE_BY}")
    if not head.startswith(b"SQLite format 3\0"):
        raise FileFormatError(f"{path} is no run file, or its beginning is damaged; {MADE_BY}")


def _cut_off(path: Path) -> list[str]:
    """Return what is missing at the end of a file; SQLite takes a page that is partly there as it is.

    Source: sqlite.org/fileformat2.html, 1.3: page size at byte 16, pages at 28, valid if 24 equals 92. Pages
    that the WAL still holds are not missing: a full disk may have kept them from the file.
    """
    try:
        if os.path.exists(f"{os.path.realpath(path)}-wal"):  # SQLite puts it beside the file, not its link
            return []
        with path.open("rb") as file:
            head = file.read(100)
        size = path.stat().st_size
    except OSError:
        return []
    page = int.from_bytes(head[16:18], "big")
    whole = (65536 if page == 1 else page) * int.from_bytes(head[28:32], "big")
    if len(head) < 100 or head[24:28] != head[92:96] or size >= whole:
        return []
    return [f"the end of the file is missing: {whole - size:,} of {whole:,} bytes"]


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


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
