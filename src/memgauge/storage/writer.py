"""Writes a run file: the sampler's side."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memgauge.columns import pack
from memgauge.errors import UsageError
from memgauge.storage.living import recording_process
from memgauge.storage.schema import (
    APPLICATION_ID,
    SCHEMA_NAME,
    TABLES,
    VERSION,
    PeakRow,
    companions,
    is_run_file,
)
from memgauge.units import format_bytes

_UNSET = object()
SEALED_TICKS = 128  # a chunk is rewritten at each flush until it has so many ticks,
SEALED_US = 60_000_000  # or spans so much time


class Lane:
    """The ticks of one lane that are not sealed yet. Columns keep their identity over chunks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.times_us: array[int] = array("q")
        self.open: dict[int, list[Any]] = {}  # series -> [index of its first tick, values]
        self.row: int | None = None  # id of the chunk in the file, once it was written
        self.written = 0  # ticks that the chunk in the file has

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

    def packed(self, *, deflated: bool) -> bytes:
        columns = [(series, entry[0], entry[1]) for series, entry in self.open.items()]
        return pack(self.times_us, columns, deflated=deflated)

    def seal(self) -> None:
        """Begin a new chunk; the arrays stay the same objects, so that who appends need not know."""
        del self.times_us[:]
        self.row, self.written = None, 0
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
        UsageError: The file exists, is being recorded into, or cannot be made.
    """

    def __init__(self, path: Path, header: Mapping[str, object], *, replace: bool = False) -> None:
        self.path = path
        self.lanes: dict[str, Lane] = {}
        self._header: dict[str, object] = {}
        self._pending: list[tuple[str, tuple[object, ...]]] = []
        self._last = {"process": 0, "device": 0, "series": 0, "mark": 0, "chunk": 0}
        if os.path.isdir(path):
            raise UsageError(
                f"{path} is a folder, the name of a file is missing; give one: {path / 'run.mg'}"
            )
        if os.path.exists(path):  # of a folder that may not be looked into Path.exists makes an exception
            if not replace:
                raise UsageError(
                    f"{path} exists already; choose another name, or overwrite it "
                    "(--overwrite; overwrite=True in Python)"
                )
            if not path.is_file() or (path.stat().st_size and not is_run_file(path)):
                raise UsageError(f"{path} exists and is no run file, so it is not overwritten")
            recorder = recording_process(path)
            if recorder is not None:
                raise UsageError(
                    f"{path} is being recorded by process {recorder}; "
                    "choose another name, or end that recording first"
                )
            self._remove()
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
            self._db.executescript(TABLES)
        except sqlite3.Error as error:
            self._remove()
            raise UsageError(f"{path} cannot be written: {_why(path, error)}") from error
        self._inode = path.stat().st_ino
        self.set(schema=SCHEMA_NAME, journal=mode, **header)
        try:
            self.flush()
        except OSError as error:
            self._remove()
            raise UsageError(f"{path} cannot be written: {error}") from error

    def _remove(self) -> None:
        for name in (self.path, *companions(self.path)):
            with contextlib.suppress(OSError):
                name.unlink()

    def set(self, **values: object) -> None:
        """Set entries of the header."""
        for key, value in values.items():
            if self._header.get(key, _UNSET) != value:
                self._header[key] = value
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

    def flush(self, *, is_last: bool = False) -> None:
        """Write all that was added, in one transaction. What fails stays buffered for the next try.

        Args:
            is_last: Whether no chunk will grow any more.

        Raises:
            OSError: It cannot be written now, with the reason.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for statement, values in self._pending:
                    self._db.execute(statement, values)
                for lane in self.lanes.values():
                    self._write_chunk(lane, is_last=is_last)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise OSError(_why(self.path, error)) from error
        self._pending.clear()
        for lane in self.lanes.values():
            lane.written = len(lane.times_us)
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
            self.flush(is_last=True)
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

    def _write_chunk(self, lane: Lane, *, is_last: bool) -> None:
        times = lane.times_us
        if not times or (len(times) == lane.written and not is_last):
            return
        row = lane.row or self._last["chunk"] + 1
        data = lane.packed(deflated=is_last or lane.is_full())
        values = (row, lane.name, times[0], times[-1], len(times), data)
        self._db.execute("INSERT OR REPLACE INTO chunk VALUES (?, ?, ?, ?, ?, ?)", values)
        lane.row = row
        self._last["chunk"] = max(self._last["chunk"], row)

    def _add(self, statement: str, *values: object) -> None:
        self._pending.append((statement, values))

    def _next(self, table: str) -> int:
        self._last[table] += 1
        return self._last[table]


def _why(path: Path, error: sqlite3.Error) -> str:
    """Return a reason that helps; SQLite says no more than that it cannot open a file."""
    folder = path.parent if str(path.parent) else Path(".")
    try:
        os.stat(folder)
    except PermissionError:
        return f"the folder {folder} may not be looked into"
    except OSError:
        return f"the folder {folder} does not exist"
    if not os.access(folder, os.W_OK):
        return f"the folder {folder} may not be written"
    if "full" in str(error):
        return "the disk is full"
    return str(error) + (_size_limit() if "I/O" in str(error) else "")


def _size_limit() -> str:
    """Return what to say of the limit of the size of files, "" if there is none."""
    try:
        import resource
    except ImportError:  # Windows
        return ""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    return f"; no file may be larger than {format_bytes(limit)} here: ulimit -f unlimited lifts that"


def _text(text: str) -> str:
    """Return text that any database can hold: what is no Unicode becomes visible escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, default=str)
