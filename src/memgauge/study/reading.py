"""Reading a ledger without Optuna: ten thousand trials take a moment, and whoever reads disturbs no runner."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from memgauge.errors import FileFormatError, UsageError, missing_extra, nearest
from memgauge.study.database import BUSY_S, SQLITE, LedgerError, reached, shown
from memgauge.study.records import FINISHED, Baseline, StudyRecord, Trial

FILE, BASELINES = "memgauge.file", "memgauge.baseline."
_TRIALS_SQL = (
    "SELECT t.number, t.state, a.value_json FROM trials t JOIN trial_user_attributes a"
    " ON a.trial_id = t.trial_id AND a.key = 'memgauge' WHERE t.study_id = {} ORDER BY t.number"
)


def read_ledger(url: str, name: str | None = None) -> StudyRecord:
    """Return a study as its ledger has it, without Optuna: ten thousand trials take a moment.

    Args:
        url: Where the ledger is.
        name: The study; may be left out where the ledger has one only.

    Raises:
        UsageError: There is no such study, or the ledger has several.
        FileFormatError: It is no ledger of ours.
        LedgerError: The database cannot be reached.
    """
    rows = _sqlite_rows(url.removeprefix(SQLITE)) if url.startswith(SQLITE) else _server_rows(url)
    with contextlib.closing(rows):
        next(rows)  # begin
        studies = {str(n): int(i) for i, n in rows.send("SELECT study_id, study_name FROM studies")}
        if not studies:
            raise UsageError(f"{shown(url)} has no study yet")
        if name is None and len(studies) > 1:
            raise UsageError(
                f"{shown(url)} has several studies: {', '.join(sorted(studies))}; name one with --study"
            )
        if name is not None and name not in studies:
            raise UsageError(f"{shown(url)} has no study {name!r}{nearest(name, studies)}")
        name = name or next(iter(studies))
        number = studies[name]
        attributes = rows.send(f"SELECT key, value_json FROM study_user_attributes WHERE study_id = {number}")
        trials = rows.send(_TRIALS_SQL.format(number))
    kept = dict(attributes)
    if FILE not in kept:
        raise FileFormatError(f"{shown(url)}: study {name!r} was not made by memgauge")
    decode = msgspec.json.Decoder(Trial).decode
    return StudyRecord(
        name=name,
        file=msgspec.json.decode(kept[FILE]),
        trials=[_with_state(decode(text), int(n), str(state)) for n, state, text in trials],
        baselines={
            key.removeprefix(BASELINES): msgspec.json.decode(text, type=Baseline)
            for key, text in kept.items()
            if key.startswith(BASELINES)
        },
    )


def _with_state(trial: Trial, number: int, state: str) -> Trial:
    status = {"WAITING": "waiting", "RUNNING": "running"}.get(state, trial.status)
    if state == "RUNNING" and trial.status in FINISHED:
        status = trial.status  # told in part, by a runner that was killed
    if trial.number == number and trial.status == status:
        return trial
    return msgspec.structs.replace(trial, number=number, status=status)  # type: ignore[arg-type]


def _sqlite_rows(path: str) -> Any:
    """Yield the rows of each statement that is sent; a generator, so that it closes after itself."""
    if not Path(path).is_file():
        raise UsageError(f"{path}: there is no such ledger; it is made by: memgauge study run FILE")
    connection = sqlite3.connect(f"file:{Path(path).absolute()}?mode=ro", uri=True, timeout=BUSY_S)
    try:
        statement = yield
        while True:
            statement = yield connection.execute(statement).fetchall()
    except sqlite3.DatabaseError as error:
        if "no such table" in str(error) or "not a database" in str(error):
            raise FileFormatError(f"{path} is not a ledger of studies ({error})") from error
        raise LedgerError(f"the ledger {path} cannot be read: {error}") from error
    finally:
        connection.close()


def _server_rows(url: str) -> Any:
    try:
        import sqlalchemy
    except ModuleNotFoundError as error:
        raise missing_extra("sqlalchemy", "study") from error
    with reached(url):
        try:
            engine = sqlalchemy.create_engine(url, connect_args={"connect_timeout": 10})
        except ImportError as error:
            raise missing_extra(f"the driver of {shown(url)}", "postgres") from error
        except sqlalchemy.exc.ArgumentError as error:
            raise UsageError(f"{shown(url)} is no URL of a database: {error}") from error
        try:
            with engine.connect() as connection:
                statement = yield
                while True:
                    statement = yield connection.execute(sqlalchemy.text(statement)).fetchall()
        except sqlalchemy.exc.ProgrammingError as error:
            raise FileFormatError(
                f"{shown(url)} has no studies: {str(error.orig).splitlines()[0]}"
            ) from error
        finally:
            engine.dispose()
