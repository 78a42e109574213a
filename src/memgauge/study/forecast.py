"""What is known of trials before they run: their data, the baselines of their environments, their estimates.

Each point is estimated once, whatever its repeats; what the ledger has is not estimated again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import msgspec

from memgauge.errors import UsageError
from memgauge.study.design import key_of
from memgauge.study.file import StudyFile
from memgauge.study.isolation import measure_baseline
from memgauge.study.plan import Subject, missing, points_of, subject_of
from memgauge.study.predict import Predictor
from memgauge.study.records import Baseline, Machine, Predicted, StudyRecord, Trial
from memgauge.units import format_bytes

Say = Callable[[str, str], None]  # what happens ("data", "baseline", "estimate", "note"), and its words


class Forecast:
    """Measures baselines and estimates trials, and keeps both.

    Args:
        machine: Where baselines are measured.
        threads: CPU threads of a trial.
        repeats: Fresh processes per baseline; 0 for none.
        subject: Returns what a trial runs.
        say: Is told what is being done.
        keep: Is given each baseline that was measured.
    """

    def __init__(
        self,
        machine: Machine,
        threads: int | None,
        repeats: int,
        subject: Callable[[Trial], Subject],
        say: Say,
        keep: Callable[[str, Baseline], None],
    ) -> None:
        self._machine, self._threads, self._repeats = machine, threads, repeats
        self._subject, self._say, self._keep = subject, say, keep
        self.baselines: dict[str, Baseline] = {}
        self._estimates: dict[str, tuple[Predicted, str | None]] = {}

    def check(self, trials: Iterable[Trial]) -> None:
        """Find what is wrong with any of these trials before anything is measured or estimated.

        Raises:
            UsageError: A trial cannot be what it is; the message names it.
        """
        from memgauge import training

        for trial in trials:
            wanted = self._subject(trial).training
            if wanted is not None:
                with _named(trial):
                    training.check(wanted)

    def obtain_data(self, trials: Iterable[Trial]) -> None:
        """Download or generate the data of these trials, and hold all files against their checksums.

        Raises:
            UsageError: Files are missing, cut or damaged.
        """
        from memgauge import training

        done: set[tuple[str, str | None]] = set()
        for trial in trials:
            wanted = self._subject(trial).training
            if wanted is None or (wanted.data, wanted.data_dir) in done:
                continue
            done.add((wanted.data, wanted.data_dir))
            with _named(trial):
                made = training.obtain(wanted, lambda text: self._say("data", text))
            if made is not None:
                self._say(
                    "note", f"{wanted.data}: {made}; memory is that of the real ones, accuracy means nothing"
                )

    def make(self, trials: Iterable[Trial]) -> None:
        """Measure the baselines of all environments of these trials and estimate those without an estimate.

        Raises:
            UsageError: A trial cannot be what it is; the message names it.
        """
        unique: dict[str, Trial] = {}
        for trial in trials:
            unique.setdefault(key_of(trial.params), trial)
        with contextlib.closing(Predictor(self._threads)) as predictor:
            self._check_targets(unique.values(), predictor)
            for done, (key, trial) in enumerate(unique.items(), 1):
                if trial.predicted is not None and trial.number >= 0:
                    self._estimates[key] = (trial.predicted, None)
                    continue
                subject = self._subject(trial)
                self._measure_baseline(subject)
                baseline = self.baseline_of(subject, self._machine)
                predicted, whole, misuse = predictor.ask(subject, baseline)
                if misuse is not None:
                    raise UsageError(f"{said(trial)}: {misuse}")
                self._estimates[key] = (predicted, whole)
                self._say("estimate", f"estimating {done} of {len(unique)}")

    def _check_targets(self, trials: Iterable[Trial], predictor: Predictor) -> None:
        """Find names that a TARGET does not take, before a baseline costs its processes: one trial for each set of names.

        Raises:
            UsageError: There is no such TARGET, or it takes no such argument.
        """
        for trial in {frozenset(t.params): t for t in trials if t.predicted is None}.values():
            subject = self._subject(trial)
            if subject.target is not None:
                misuse = predictor.check(subject)
                if misuse is not None:
                    raise UsageError(f"{said(trial)}: {misuse}")

    def _measure_baseline(self, subject: Subject) -> None:
        key = self._key(subject, self._machine)
        if key in self.baselines or not self._repeats:
            return
        self._say("baseline", f"baseline of {subject.environment}")
        found = measure_baseline(subject, self._repeats)
        if isinstance(found, str):
            last = found.strip().splitlines()[-1:] or [""]
            self._say("note", f"the baseline of {subject.environment} could not be measured: {last[0]}")
            return
        self.baselines[key] = found
        self._keep(key, found)

    def _key(self, subject: Subject, machine: Machine) -> str:
        return f"{machine.name}: {subject.environment}, {self._threads} threads"

    def baseline_of(self, subject: Subject, machine: Machine) -> Baseline | None:
        """Return the baseline of an environment on a machine, None if there is none."""
        return self.baselines.get(self._key(subject, machine))

    def document(self, trial: Trial) -> str | None:
        """Return the whole estimate of a trial as JSON, if it was made by this run."""
        return self._estimates.get(key_of(trial.params), (None, None))[1]

    def told(self, trial: Trial) -> Trial:
        """Return a trial with its estimate and the key of its baseline."""
        predicted = self._estimates.get(key_of(trial.params), (None, None))[0]
        key = self._key(self._subject(trial), self._machine)
        return msgspec.structs.replace(
            trial, predicted=predicted, baseline=key if key in self.baselines else None
        )


@contextlib.contextmanager
def _named(trial: Trial) -> Iterator[None]:
    """Name the trial in what is wrong with it."""
    try:
        yield
    except UsageError as error:
        raise type(error)(f"{said(trial)}: {error}") from error


def planned(file: StudyFile, machine: Machine, say: Say) -> StudyRecord:
    """Return a study as it would be run on a machine: its trials with their estimates, those that cannot fit marked.

    Baselines are measured once, since what fits depends on them; no trial runs and nothing is written.

    Raises:
        UsageError: A trial cannot be what it is; the message names it.
    """
    threads = file.study.threads or machine.cores
    repeats = min(1, file.study.baselines)

    def subject(trial: Trial) -> Subject:
        return subject_of(file, trial.params, threads, trial.repeat)

    forecast = Forecast(machine, threads, repeats, subject, say, lambda *_: None)
    points = points_of(file)
    note_fewer(file, len(points), say)
    trials = missing(file, points, [])
    forecast.check(trials)
    forecast.make(trials)
    room = capacity(file, machine.memory_bytes)
    found = []
    for number, trial in enumerate(trials):
        told = msgspec.structs.replace(forecast.told(trial), number=number)
        why = too_large(told.predicted, room)
        found.append(told if why is None else msgspec.structs.replace(told, status="does-not-fit", cause=why))
    return StudyRecord(
        name=file.study.name,
        file=msgspec.to_builtins(file),
        trials=found,
        baselines=forecast.baselines,
    )


def note_fewer(file: StudyFile, points: int, say: Say) -> None:
    """Say that a space has fewer points than trials were asked for."""
    wanted = file.study.trials
    if wanted is not None and points < wanted and file.study.design in ("random", "sobol"):
        say("note", f"[study] trials = {wanted}, but the space has {points} points: each is tried once")


def capacity(file: StudyFile, memory_bytes: int | None) -> int | None:
    """Return the memory that a trial may take: the study's limit or the largest machine's, whichever is less."""
    limits = [b for b in (file.limits.memory_bytes, memory_bytes) if b is not None]
    return min(limits) if limits and file.study.device == "cpu" else None


def too_large(predicted: Predicted | None, capacity_bytes: int | None) -> str | None:
    """Return why a trial cannot fit, by its estimate; None if it may."""
    if predicted is None or capacity_bytes is None:
        return None
    least = predicted.host_low_bytes if predicted.host_low_bytes is not None else predicted.allocated_bytes
    if least is None or least <= capacity_bytes:
        return None
    if predicted.bound is not None:
        return f"takes at least {format_bytes(least)} ({predicted.bound}); there are {format_bytes(capacity_bytes)}"
    return (
        f"predicted {format_bytes(predicted.host_expected_bytes or least)}, at least {format_bytes(least)}; "
        f"there are {format_bytes(capacity_bytes)}"
    )


def said(trial: Trial) -> str:
    """Return the parameters of a trial in one line."""
    return ", ".join(f"{name}={value}" for name, value in trial.params.items())
