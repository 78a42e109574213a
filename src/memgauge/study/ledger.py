"""The ledger: every trial of a study and what became of it, kept by Optuna.

Trials are asked for and told here and nowhere else; their processes never open it. The record of a trial is one
JSON document in its user attributes; Optuna's own parameters, states and values beside it let Optuna's dashboard
show a study. SQLite has one writer, the runner that holds the folder's lock; PostgreSQL may have several.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from memgauge.errors import FileFormatError, MissingError, UsageError, missing_extra, nearest
from memgauge.study.file import StudyFile
from memgauge.study.records import FINISHED, Baseline, StudyRecord, Trial, Value

RECORD, FILE, BASELINES, THREADS = "memgauge", "memgauge.file", "memgauge.baseline.", "memgauge.threads"
SQLITE = "sqlite:///"
_BUSY_S = 30
_PLANNING = 0x6D656D67  # PostgreSQL's advisory lock of whoever plans a study
_TRIALS_SQL = (
    "SELECT t.number, t.state, a.value_json FROM trials t JOIN trial_user_attributes a"
    " ON a.trial_id = t.trial_id AND a.key = 'memgauge' WHERE t.study_id = {} ORDER BY t.number"
)


class LedgerError(MissingError):
    """The ledger cannot be reached or written now; what was measured is kept, and the study can go on later."""


def url_of(place: str | Path) -> str:
    """Return the URL of a ledger: a URL as it is (`postgresql://…`), a path as SQLite."""
    text = str(place)
    if "://" not in text:
        return f"{SQLITE}{Path(text).absolute()}"
    scheme, rest = text.split("://", 1)
    return f"postgresql+psycopg://{rest}" if scheme in ("postgres", "postgresql") else text


def shown(url: str) -> str:
    """Return a URL without its password."""
    head, at, tail = url.rpartition("@")
    if not at or "://" not in head:
        return url.removeprefix(SQLITE)
    scheme, _, login = head.partition("://")
    return f"{scheme}://{login.split(':')[0]}@{tail}"


@contextlib.contextmanager
def _reached(url: str) -> Iterator[None]:
    """Turn what a database raises when it is away, full or locked into one error."""
    import optuna
    import sqlalchemy.exc

    try:
        yield
    except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.DBAPIError) as error:
        cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
        reason = str(getattr(cause, "orig", None) or cause or error).strip().splitlines()[0]
        raise LedgerError(
            f"the ledger {shown(url)} cannot be used: {reason}; what was measured is kept, run the study again"
        ) from error


class Ledger:
    """One study in its database, open for writing.

    Args:
        url: Where it is.
        file: The study; made if there is none of its name.

    Raises:
        LedgerError: The database cannot be reached.
        UsageError: A study of this name exists and runs something else.
        MissingError: Optuna or the database's driver is not installed.
    """

    def __init__(self, url: str, file: StudyFile) -> None:
        try:
            import optuna
        except ModuleNotFoundError as error:
            raise missing_extra("optuna", "study") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.url, self.name = url, file.study.name
        self._optuna = optuna
        with self.alone(), _reached(url):
            self._storage = _storage(url)
            self._study = optuna.create_study(
                storage=self._storage, study_name=self.name, direction="minimize", load_if_exists=True
            )
            self._id = self._study._study_id
            self._ids: dict[int, int] = {}  # number -> Optuna's id
            self._distributions: dict[str, Any] = {}
            self._adopt(file)

    def _adopt(self, file: StudyFile) -> None:
        """Keep the study file, or check that the one that is kept runs the same."""
        kept = self._study.user_attrs.get(FILE)
        if kept is not None:
            _compare(msgspec.convert(kept, StudyFile), file)
        plain = msgspec.to_builtins(file)
        if kept != plain:
            self._study.set_user_attr(FILE, plain)
        self.file = file

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other runners of a shared ledger from planning meanwhile; SQLite has one runner anyway."""
        if not self.url.startswith("postgresql"):
            yield
            return
        import sqlalchemy

        with contextlib.ExitStack() as stack:
            with _reached(self.url), _driver(self.url):
                engine = sqlalchemy.create_engine(self.url, connect_args={"connect_timeout": 10})
                stack.callback(engine.dispose)
                connection = stack.enter_context(engine.connect())
                connection.execute(sqlalchemy.text(f"SELECT pg_advisory_lock({_PLANNING})"))
            yield  # the lock is the connection's, and goes with it

    def threads(self, wanted: int | None) -> int | None:
        """Return the CPU threads of this study's trials: what its first run decided."""
        with _reached(self.url):
            kept = self._study.user_attrs.get(THREADS)
            if kept is None and wanted is not None:
                self._study.set_user_attr(THREADS, wanted)
            return wanted if kept is None else int(kept)

    def keep_baseline(self, key: str, baseline: Baseline) -> None:
        """Keep the baseline of an environment on a machine."""
        with _reached(self.url):
            self._study.set_user_attr(BASELINES + key, msgspec.to_builtins(baseline))

    def add(self, trials: Sequence[Trial]) -> list[Trial]:
        """Write down planned or finished trials; returns them with their numbers."""
        found = []
        with _reached(self.url):
            for trial in trials:
                found.append(self._added(trial))
        return found

    def _added(self, trial: Trial) -> Trial:
        trial_module = self._optuna.trial
        state, value = self._state_of(trial)
        params = {name: _plain(value) for name, value in trial.params.items()}
        try:
            frozen = trial_module.FrozenTrial(
                number=-1,
                state=state,
                value=value,
                datetime_start=_time(trial.began_unix_ns if trial.status in FINISHED else None),
                datetime_complete=_time(trial.ended_unix_ns if trial.status in FINISHED else None),
                params=params,
                distributions={n: self._distribution(n, v) for n, v in params.items()},
                user_attrs={RECORD: msgspec.to_builtins(trial)},
                system_attrs={},
                intermediate_values={},
                trial_id=-1,
            )
            made = self._storage._create_new_trial(self._id, frozen)
        except ValueError as error:
            raise UsageError(
                f"the ledger of {self.name!r} cannot take {trial.params}: {error}; "
                "a parameter that changes its kind or its choices is another study, so give it another name"
            ) from error
        self._ids[made.number] = made._trial_id
        return msgspec.structs.replace(trial, number=made.number)

    def _distribution(self, name: str, value: Any) -> Any:
        if name not in self._distributions:
            self._distributions[name] = _distribution(
                self._optuna.distributions, self._values(name), self.file, name
            )
        return self._distributions[name]

    def _values(self, name: str) -> list[Any]:
        parameter = self.file.space.get(name)
        if parameter is None:
            return [_plain(point[name]) for point in self.file.list if name in point]
        levels = parameter.values
        return [_plain(v) for v in levels] if levels is not None else [parameter.low, parameter.high]

    def claim(self, trial: Trial) -> bool:
        """Ask for one waiting trial; False if another runner was faster."""
        states = self._optuna.trial.TrialState
        with _reached(self.url):
            number = self._id_of(trial.number)
            try:
                if not self._storage.set_trial_state_values(number, states.RUNNING):
                    return False
            except self._optuna.exceptions.UpdateFinishedTrialError:
                return False
            self._write(trial)
        return True

    def release(self, trial: Trial) -> None:
        """Give a trial back: it will be run again."""
        with _reached(self.url):
            self._write(trial)
            self._storage.set_trial_state_values(
                self._id_of(trial.number), self._optuna.trial.TrialState.WAITING
            )

    def update(self, trial: Trial) -> None:
        """Write down what is known of a trial that is not finished."""
        with _reached(self.url):
            self._write(trial)

    def finish(self, trial: Trial) -> None:
        """Tell how a trial ended. Optuna sees a value only where one was measured."""
        assert trial.status in FINISHED
        state, value = self._state_of(trial)
        with _reached(self.url):
            number = self._id_of(trial.number)
            try:
                self._write(trial)
                self._storage.set_trial_state_values(number, state, None if value is None else [value])
            except self._optuna.exceptions.UpdateFinishedTrialError:
                return  # told before, by a runner that was killed in between

    def _state_of(self, trial: Trial) -> tuple[Any, float | None]:
        """Return Optuna's state and value for a trial; above its limit it has no value, and is no failure."""
        states = self._optuna.trial.TrialState
        if trial.status not in FINISHED:
            return states.WAITING, None
        peak = trial.figures.get("peak_resident_bytes") or trial.figures.get("peak_allocated_bytes")
        if trial.status == "done" and peak is not None:
            return states.COMPLETE, float(peak)
        return (states.FAIL if trial.status in ("failed", "done") else states.PRUNED), None

    def _write(self, trial: Trial) -> None:
        self._storage.set_trial_user_attr(self._id_of(trial.number), RECORD, msgspec.to_builtins(trial))

    def _id_of(self, number: int) -> int:
        if number not in self._ids:
            self._ids[number] = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        return self._ids[number]

    def read(self) -> StudyRecord:
        """Return the study as it is now."""
        return read_ledger(self.url, self.name)

    def close(self) -> None:
        """Let go of the database."""
        with contextlib.suppress(Exception):  # it may be away already
            self._storage.remove_session()
            self._storage.engine.dispose()


@contextlib.contextmanager
def _driver(url: str) -> Iterator[None]:
    """Say which extra brings the driver of a database that is not installed."""
    try:
        yield
    except ImportError as error:
        extra = "postgres" if url.startswith("postgres") else "study"
        raise missing_extra(f"the driver of {shown(url)}", extra) from error


def _storage(url: str) -> Any:
    import optuna

    arguments: dict[str, Any] = {"connect_args": {"timeout": _BUSY_S}} if url.startswith("sqlite") else {}
    if url.startswith("postgresql"):
        arguments = {"pool_pre_ping": True, "connect_args": {"connect_timeout": 10}}
    try:
        with _driver(url):
            return optuna.storages.RDBStorage(url, engine_kwargs=arguments)
    except MissingError:
        raise
    except Exception as error:
        import sqlalchemy.exc

        if isinstance(error, sqlalchemy.exc.ArgumentError):
            raise UsageError(
                f"{shown(url)} is no URL of a database: {error}; write postgresql://user@host/name"
            ) from error
        if isinstance(error, sqlalchemy.exc.DatabaseError) and "not a database" in str(error):
            raise FileFormatError(f"{shown(url)} is not a ledger: it is no SQLite file") from error
        raise


def _compare(kept: StudyFile, now: StudyFile) -> None:
    """Refuse a study that changed what its trials are; points and repeats may be added."""
    checked: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("study", ("target", "device", "record")),
        ("limits", ("steps", "epochs", "trial_memory", "trial_seconds")),
    )
    for part, fields in checked:
        for name in fields:
            before, after = getattr(getattr(kept, part), name), getattr(getattr(now, part), name)
            if before != after:
                raise UsageError(
                    f"[{part}] {name} was {before!r} when study {now.study.name!r} began and is {after!r} now; "
                    "its trials could not be compared: give it another name or --out another folder"
                )
    if kept.fixed != now.fixed:
        names = [n for n in {*kept.fixed, *now.fixed} if kept.fixed.get(n) != now.fixed.get(n)]
        raise UsageError(
            f"[fixed] {', '.join(sorted(names))} changed since study {now.study.name!r} began; "
            "give it another name or --out another folder"
        )


def _distribution(kinds: Any, values: list[Any], file: StudyFile, name: str) -> Any:
    parameter = file.space.get(name)
    if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        return kinds.IntDistribution(min(values), max(values))
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        low, high = float(min(values)), float(max(values))
        return kinds.FloatDistribution(low, high, log=bool(parameter and parameter.log))
    return kinds.CategoricalDistribution(list(dict.fromkeys(values)))


def _time(unix_ns: int | None) -> Any:
    import datetime

    return None if unix_ns is None else datetime.datetime.fromtimestamp(unix_ns / 1e9)


def _plain(value: Value) -> Any:
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else value


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
    connection = sqlite3.connect(f"file:{Path(path).absolute()}?mode=ro", uri=True, timeout=_BUSY_S)
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
    with _reached(url):
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
