"""The ledger: every trial of a study and what became of it, kept by Optuna.

Trials are asked for and told here and nowhere else; their processes never open it. The record of a trial is one
JSON document in its user attributes; Optuna's own parameters, states and values beside it let Optuna's dashboard
show a study. SQLite has one writer, the runner that holds the folder's lock; PostgreSQL may have several.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from memgauge.errors import UsageError, missing_extra
from memgauge.study.database import driver, open_storage, reached
from memgauge.study.file import StudyFile
from memgauge.study.planning import write_trials
from memgauge.study.reading import BASELINES, FILE, read_ledger
from memgauge.study.records import FINISHED, Baseline, StudyRecord, Trial, Value

RECORD, THREADS = "memgauge", "memgauge.threads"
_PLANNING = 0x6D656D67  # PostgreSQL's advisory lock of whoever plans a study


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
        with self.alone(), reached(url):
            self._storage = open_storage(url)
            self._study = optuna.create_study(
                storage=self._storage, study_name=self.name, direction="minimize", load_if_exists=True
            )
            self._id = self._study._study_id
            self._ids: dict[int, int] = {}  # number -> Optuna's id
            self._distributions: dict[str, Any] = {}
            self._adopt(file)

    @property
    def _is_empty(self) -> bool:
        """Whether no trial was planned yet: then nothing binds a study to what its file said before."""
        return not self._storage.get_n_trials(self._id)

    def _adopt(self, file: StudyFile) -> None:
        """Keep the study file, or check that the one that is kept runs the same."""
        kept = self._study.user_attrs.get(FILE)
        if kept is not None and not self._is_empty:
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
            with reached(self.url), driver(self.url):
                engine = sqlalchemy.create_engine(self.url, connect_args={"connect_timeout": 10})
                stack.callback(engine.dispose)
                connection = stack.enter_context(engine.connect())
                connection.execute(sqlalchemy.text(f"SELECT pg_advisory_lock({_PLANNING})"))
            yield  # the lock is the connection's, and goes with it

    def threads(self, otherwise: int) -> int:
        """Return the CPU threads of this study's trials: what its file says, or what its first run decided.

        Args:
            otherwise: Where neither says anything.

        Raises:
            UsageError: The file says something else than the first run.
        """
        asked = self.file.study.threads
        with reached(self.url):
            kept = self._study.user_attrs.get(THREADS)
            if kept is None or (asked is not None and self._is_empty):
                self._study.set_user_attr(THREADS, asked or otherwise)
                return asked or otherwise
        if asked not in (None, int(kept)):
            raise UsageError(
                f"[study] threads = {asked}, but the trials of study {self.name!r} run with {kept} since it began; "
                "they could not be compared: give it another name or --out another folder"
            )
        return int(kept)

    def keep_baseline(self, key: str, baseline: Baseline) -> None:
        """Keep the baseline of an environment on a machine."""
        with reached(self.url):
            self._study.set_user_attr(BASELINES + key, msgspec.to_builtins(baseline))

    def add(self, trials: Sequence[Trial]) -> list[Trial]:
        """Write down planned or finished trials, all or none; returns them with their numbers.

        Raises:
            UsageError: A parameter changed its kind or its choices since the study began, or another runner
                planned trials that run something else.
        """
        with reached(self.url):
            self._adopt(self.file)
            try:
                made = write_trials(self._storage, self._id, [self._frozen(t) for t in trials])
            except ValueError as error:
                raise UsageError(
                    f"the ledger of {self.name!r} cannot take these trials: {error}; a parameter that changes its "
                    "kind or its choices is another study, so give it another name"
                ) from error
        self._ids.update(made)
        return [msgspec.structs.replace(t, number=n) for t, (n, _) in zip(trials, made, strict=True)]

    def _frozen(self, trial: Trial) -> Any:
        """Return a trial as Optuna has it."""
        state, value = self._state_of(trial)
        params = {name: _plain(value) for name, value in trial.params.items()}
        is_over = trial.status in FINISHED
        return self._optuna.trial.FrozenTrial(
            number=-1,
            state=state,
            value=value,
            datetime_start=_time(trial.began_unix_ns if is_over else None),
            datetime_complete=_time(trial.ended_unix_ns if is_over else None),
            params=params,
            distributions={n: self._distribution(n, v) for n, v in params.items()},
            user_attrs={RECORD: msgspec.to_builtins(trial)},
            system_attrs={},
            intermediate_values={},
            trial_id=-1,
        )

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
        with reached(self.url):
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
        with reached(self.url):
            self._write(trial)
            self._storage.set_trial_state_values(
                self._id_of(trial.number), self._optuna.trial.TrialState.WAITING
            )

    def finish(self, trial: Trial) -> None:
        """Tell how a trial ended. Optuna sees a value only where one was measured."""
        assert trial.status in FINISHED
        state, value = self._state_of(trial)
        with reached(self.url):
            number = self._id_of(trial.number)
            try:
                self._write(trial)
                self._storage.set_trial_state_values(number, state, None if value is None else [value])
            except self._optuna.exceptions.UpdateFinishedTrialError:
                return  # told before, by a runner that was killed in between

    def tell_half_told(self) -> None:
        """Tell those trials again that a runner was telling when it was killed: written down, and not yet ended."""
        with reached(self.url):
            running = self._storage.get_all_trials(
                self._id, deepcopy=False, states=(self._optuna.trial.TrialState.RUNNING,)
            )
        for found in running:
            if RECORD in found.user_attrs:
                trial = msgspec.convert(found.user_attrs[RECORD], Trial)
                if trial.status in FINISHED:
                    self.finish(trial)

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


def _compare(kept: StudyFile, now: StudyFile) -> None:
    """Refuse a study that changed what its trials are; points and repeats may be added."""
    checked: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("study", ("target", "design", "seed", "order", "interval", "device", "record")),
        ("limits", ("steps", "epochs", "trial_memory", "trial_seconds")),
    )
    for part, fields in checked:
        for name in fields:
            before, after = getattr(getattr(kept, part), name), getattr(getattr(now, part), name)
            if before != after:
                raise UsageError(
                    f"[{part}] {name} was {before!r} when study {now.study.name!r} began and is {after!r} now; "
                    f"its trials would be of two designs: write {name} = {before!r} again, or give the study another "
                    "name or --out another folder"
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
