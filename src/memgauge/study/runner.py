"""Run a study: plan, estimate, order, run each trial in a fresh process, tell the ledger. Kill it anywhere.

What makes it safe to kill: a trial is claimed in the ledger before it starts, its result and run file lie in its
folder before it is told, and telling it twice changes nothing. A new runner first looks at what was claimed and not
told: still running (it is taken over), ended (it is told), or gone (it is run again).
"""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from memgauge.errors import MissingError
from memgauge.study.database import LedgerError, url_of
from memgauge.study.design import key_of
from memgauge.study.file import StudyFile
from memgauge.study.forecast import Forecast, capacity, most_bytes, note_fewer, said, too_large
from memgauge.study.harvest import harvest
from memgauge.study.holding import held, terminated_as_interrupted
from memgauge.study.ledger import Ledger
from memgauge.study.local import Executor, Local
from memgauge.study.machine import available_bytes, this_machine
from memgauge.study.plan import Subject, points_of, subject_of
from memgauge.study.process import Limits, Order, is_alive
from memgauge.study.records import FINISHED, Machine, Params, StudyRecord, Trial
from memgauge.units import format_bytes

LEDGER, TRIALS = "ledger.db", "trials"
MOST_ATTEMPTS = 3  # a trial whose process is killed by somebody so often is given up
LEAST_DISK_BYTES = 64 * 2**20  # a run file of an hour takes a few MB; below this nothing is begun
_LEDGER_PATIENCE_S = 60  # how long a ledger may be away before the study stops
_SHARE_OF_MEMORY = 0.9  # of what is available, for trials that run at the same time: estimates are ranges

Progress = Callable[[str, "Runner"], None]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a study is run this time; none of it changes what its trials are."""

    jobs: int = 1
    ledger: str | None = None  # a URL; SQLite in the study's folder if None
    repeat_disturbed: bool = False
    retry_failed: bool = False
    take_over: bool = False  # trials that another machine claimed and never told
    machine: str | None = None
    at_most: int | None = None  # trials to run this time


class Runner:
    """One run of a study.

    Args:
        file: The study.
        folder: Where ledger, run files and report lie.
        options: How it is run this time.
        progress: Is told what happens: a word ("data", "baseline", "estimate", "start", "end", "note") and the runner.
        executor: Who runs the trials; processes of this machine if None.

    Raises:
        UsageError: The study is not right, or another runner has its folder.
        LedgerError: The ledger cannot be reached.
    """

    def __init__(
        self,
        file: StudyFile,
        folder: Path,
        options: Options | None = None,
        progress: Progress | None = None,
        executor: Callable[[Runner], Executor] | None = None,
    ) -> None:
        self.file, self.folder, self.options = file.checked(), folder, options or Options()
        self.machine: Machine = this_machine(self.options.machine)
        self._tell = progress or (lambda _what, _runner: None)
        self._make_executor = executor
        self.trials: dict[int, Trial] = {}
        self.waiting: list[int] = []
        self.running: set[int] = set()
        self.said = ""  # in words, what is being done or was noted
        self.last: Trial | None = None  # the trial that ended last
        self.total = self.ended_before = 0
        self._subjects: dict[int, Subject] = {}
        self._started = 0
        self._claim = f"{self.machine.name}:{self.machine.boot}:{folder.absolute()}"

    # ---------------------------------------------------------------- the way through

    def run(self) -> StudyRecord:
        """Run what is left of the study; returns all of it.

        Raises:
            KeyboardInterrupt: It was interrupted; what ran is run again next time.
            LedgerError: The ledger went away and did not come back.
            MissingError: The disk is full, or the folder cannot be written any more.
        """
        points = points_of(self.file)
        with held(self.folder), terminated_as_interrupted():
            self.ledger = Ledger(url_of(self.options.ledger or self.folder / LEDGER), self.file)
            try:
                self._begin(points)
                self._go()
                return self.record()
            except OSError as error:
                raise MissingError(
                    f"{error.filename or self.folder} cannot be written: {error.strerror or error}; run the study "
                    "again when it can: what is done is kept"
                ) from error
            finally:
                self.ledger.close()

    def record(self) -> StudyRecord:
        """Return the study as it stands."""
        found = self.ledger.read()
        found.folder = str(self.folder)
        return found

    def _begin(self, points: list[Params]) -> None:
        known = self.ledger.read()
        threads = self.file.study.threads or max(1, self.machine.cores // self.options.jobs)
        self.threads = self.ledger.threads(threads)
        # Every subject is made before anything is written: a wrong name must not leave half a study.
        for point in points:
            subject_of(self.file, point, self.threads)
        self.executor = (self._make_executor or _local)(self)
        self.capacity_bytes = capacity(self.file, self.executor.capacity_bytes)
        self.forecast = Forecast(
            self.machine,
            self.threads,
            self.file.study.baselines,
            self._subject,
            self._say,
            self.ledger.keep_baseline,
        )
        self.forecast.baselines = known.baselines
        todo = self._to_do([*known.trials, *self._missing(points, known.trials)])
        note_fewer(self.file, len(points), self._say)
        self.forecast.check(todo)
        if isinstance(self.executor, Local):  # a cluster's nodes have their own
            self.forecast.obtain_data(todo)
        self.forecast.make(todo)
        with self.ledger.alone():
            trials = list(self.ledger.read().trials)
            new = [*self._missing(points, trials), *self._again(trials)]
            trials += self.ledger.add([self.forecast.told(t) for t in new])
        self.trials = {t.number: t for t in trials}
        self.total = len(self.trials)
        self._recover()
        self.waiting = self._ordered(t for t in self.trials.values() if t.status == "waiting")
        self.ended_before = sum(t.status in FINISHED for t in self.trials.values())

    def _to_do(self, trials: list[Trial]) -> list[Trial]:
        if self.options.repeat_disturbed or self.options.retry_failed:
            return trials
        return [t for t in trials if t.status in ("waiting", "running")]

    def _missing(self, points: list[Params], known: list[Trial]) -> list[Trial]:
        """Return the trials of the design that the ledger does not have yet."""
        planned = {(key_of(t.params), t.repeat) for t in known}
        return [
            Trial(number=-1, params=point, repeat=repeat)
            for repeat in range(self.file.study.repeats)
            for point in points
            if (key_of(point), repeat) not in planned
        ]

    def _again(self, trials: list[Trial]) -> list[Trial]:
        """Return new trials for those that were disturbed or failed, if that is asked for."""
        repeated = {t.repeats_trial for t in trials}
        return [
            Trial(number=-1, params=t.params, repeat=t.repeat, repeats_trial=t.number)
            for t in trials
            if t.number not in repeated
            and (
                (self.options.repeat_disturbed and t.status == "done" and t.is_disturbed)
                or (self.options.retry_failed and t.status == "failed")
            )
        ]

    def _go(self) -> None:
        try:
            while self.waiting or self.running:
                self._start_what_fits()
                for number in self.executor.finished():
                    self._ended(number)
                if not self.running and self._is_enough():
                    break
        except BaseException:
            for number in self.executor.stop():
                with contextlib.suppress(LedgerError):
                    self.ledger.release(msgspec.structs.replace(self.trials[number], status="waiting"))
            raise

    def _is_enough(self) -> bool:
        return self.options.at_most is not None and self._started >= self.options.at_most

    def _start_what_fits(self) -> None:
        while self.waiting and not self._is_enough():
            number = next((n for n in self.waiting if self.executor.can_take(self.order_of(n))), None)
            if number is None:
                return
            self.waiting.remove(number)
            trial = self.trials[number]
            refusal = too_large(trial.predicted, self.capacity_bytes)
            if refusal is None:
                self._refuse_full_disk()
            claimed = msgspec.structs.replace(
                trial,
                status="running",
                attempts=trial.attempts + (refusal is None),
                began_unix_ns=time.time_ns(),
                claim=self._claim,
            )
            if not self._patiently(lambda claimed=claimed: self.ledger.claim(claimed)):  # type: ignore[misc]
                continue  # another machine has it
            self.trials[number] = claimed
            if refusal is not None:
                self._finish(
                    msgspec.structs.replace(
                        claimed, status="does-not-fit", cause=refusal, ended_unix_ns=time.time_ns()
                    )
                )
                continue
            self.executor.start(self.order_of(number), self.folder_of(number))
            self.running.add(number)
            self._started += 1
            self._tell("start", self)

    def _ended(self, number: int) -> None:
        self.running.discard(number)
        trial = self.trials[number]
        machine = self._machine_of(number)
        baseline = self.forecast.baseline_of(self._subject(trial), machine)
        found = harvest(trial, self.folder_of(number), machine, baseline, jobs=self.executor.jobs)
        if found is None and trial.attempts >= MOST_ATTEMPTS:
            found = msgspec.structs.replace(
                trial,
                status="failed",
                error=f"its process or its monitor was killed {trial.attempts} times, by what is not known",
                machine=machine,
                ended_unix_ns=time.time_ns(),
            )
        if found is None:
            again = msgspec.structs.replace(trial, status="waiting")
            self.trials[number] = again
            self._patiently(lambda: self.ledger.release(again))
            self.waiting.append(number)
            self.note(f"trial {number} was killed; it is run again")
            return
        if (self.folder_of(number) / "run.mg").exists():
            path = (self.folder_of(number) / "run.mg").relative_to(self.folder)
            found = msgspec.structs.replace(found, run_file=str(path))
            self._describe(number, found)
        self._finish(found)

    def _finish(self, trial: Trial) -> None:
        self.trials[trial.number] = self.last = trial
        self._patiently(lambda: self.ledger.finish(trial))
        self._tell("end", self)

    def _describe(self, number: int, trial: Trial) -> None:
        """Write into the run file which trial it is of, and on which machine."""
        from memgauge.errors import MemgaugeError
        from memgauge.storage import RunFile

        with contextlib.suppress(MemgaugeError), RunFile(self.folder_of(number) / "run.mg") as run:
            run.set_document("trial", msgspec.json.encode(trial).decode())
            run.set_document("machine", msgspec.json.encode(trial.machine).decode())

    # ---------------------------------------------------------------- orders and room

    def _subject(self, trial: Trial) -> Subject:
        if trial.number < 0:
            return subject_of(self.file, trial.params, self.threads, trial.repeat)
        if trial.number not in self._subjects:
            self._subjects[trial.number] = subject_of(self.file, trial.params, self.threads, trial.repeat)
        return self._subjects[trial.number]

    def order_of(self, number: int) -> Order:
        """Return what an executor is told of a trial."""
        trial = self.trials[number]
        subject = self._subject(trial)
        record, torch = (
            self.file.study.record,
            subject.training is None or subject.training.framework == "torch",
        )
        return Order(
            number=number,
            subject=subject,
            limits=Limits(
                memory_bytes=self.file.limits.memory_bytes if subject.device == "cpu" else None,
                seconds=self.file.limits.trial_seconds,
            ),
            interval=self.file.study.interval,
            observe=torch
            and subject.device == "cpu"
            and bool({"peak_allocated_bytes", "peak_requested_bytes"} & set(record)),
            estimate=self.forecast.document(trial),
            title=f"{self.file.study.name}, trial {number}: {said(trial)}",
            memory_bytes=most_bytes(trial.predicted) or 0,
            cores=self.threads or 1,
        )

    def _ordered(self, trials: Iterable[Trial]) -> list[int]:
        """Return the order in which trials run: whole rounds of repeats, each the cheapest first or shuffled."""
        found = list(trials)
        if self.file.study.order == "random":
            source = random.Random(self.file.study.seed)
            shuffled = {t.number: source.random() for t in sorted(found, key=lambda t: t.number)}
            found.sort(key=lambda t: (t.repeat, shuffled[t.number]))
        else:
            found.sort(key=lambda t: (t.repeat, most_bytes(t.predicted) or 0, t.number))
        return [t.number for t in found]

    def folder_of(self, number: int) -> Path:
        return self.folder / TRIALS / f"{number:05d}"

    # ---------------------------------------------------------------- resuming

    def _recover(self) -> None:
        """Look after trials that were claimed and never told."""
        for number, trial in list(self.trials.items()):
            if trial.status in FINISHED:
                if trial.ended_unix_ns is not None and trial.claim == self._claim:
                    self.ledger.finish(trial)
                continue
            if trial.status != "running":
                continue
            if trial.claim != self._claim and not self.options.take_over:
                where = (trial.claim or "?").partition(":")[0]
                self.note(f"trial {number} is claimed by {where}; --take-over runs it here if that is gone")
                continue
            folder = self.folder_of(number)
            if is_alive(folder) and isinstance(self.executor, Local):
                self.executor.adopt(self.order_of(number), folder)
                self.running.add(number)
                self.note(f"trial {number} still runs; its end is awaited")
            else:
                self._ended(number)
        self.waiting = []

    def _machine_of(self, number: int) -> Machine:
        try:
            return msgspec.json.decode((self.folder_of(number) / "machine.json").read_bytes(), type=Machine)
        except (OSError, msgspec.DecodeError):
            return self.machine

    # ---------------------------------------------------------------- faults

    def note(self, text: str) -> None:
        """Tell something that happened."""
        self._say("note", text)

    def _say(self, what: str, text: str) -> None:
        self.said = text
        self._tell(what, self)

    def _patiently(self, action: Callable[[], Any]) -> Any:
        """Do something with the ledger; wait for it if it is away for a while."""
        until = time.monotonic() + _LEDGER_PATIENCE_S
        pause = 0.5
        while True:
            try:
                return action()
            except LedgerError as error:
                if time.monotonic() + pause > until:
                    raise
                self.note(f"{str(error).partition(';')[0]}; trying again in {pause:g} s")
                time.sleep(pause)
                pause = min(2 * pause, 10)

    def _refuse_full_disk(self) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < LEAST_DISK_BYTES:
            raise MissingError(
                f"{self.folder} has {format_bytes(free)} left, too little to record a trial; make room and run "
                "the study again: what is done is kept"
            )


def _local(runner: Runner) -> Executor:
    available = available_bytes()
    room = None if available is None else int(available * _SHARE_OF_MEMORY)
    return Local(runner.options.jobs, runner.machine.cores, room, runner.machine.memory_bytes)
