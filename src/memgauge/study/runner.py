"""Run a study: plan, estimate, order, run each trial in a fresh process, tell the ledger. Kill it anywhere.

What makes it safe to kill: a trial is claimed in the ledger before it starts, its result and run file lie in its
folder before it is told, and telling it twice changes nothing. A new runner first looks at what was claimed and not
told: still running (it is taken over), ended (it is told), or gone (it is run again).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from memgauge.study.database import LedgerError, patiently, url_of
from memgauge.study.file import StudyFile
from memgauge.study.forecast import Forecast, capacity, note_fewer, too_large
from memgauge.study.harvest import given_up, harvest, machine_of, with_run_file
from memgauge.study.holding import (
    LEDGER,
    TRIALS,
    held,
    refuse_full_disk,
    terminated_as_interrupted,
    written_in_order,
)
from memgauge.study.ledger import Ledger
from memgauge.study.local import Executor, Local
from memgauge.study.machine import available_bytes, this_machine
from memgauge.study.order import Order, order_of
from memgauge.study.plan import Subject, again, in_order, missing, points_of, subject_of
from memgauge.study.process import is_alive
from memgauge.study.records import Machine, Params, StudyRecord, Trial

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
        self._make_executor = executor or _local
        self.trials: dict[int, Trial] = {}
        self.waiting: list[int] = []
        self.running: set[int] = set()
        self.said = ""  # in words, what is being done or was noted
        self.last: Trial | None = None  # the trial that ended last
        self.total = 0
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
        with held(self.folder), terminated_as_interrupted(), written_in_order(self.folder):
            self.ledger = Ledger(url_of(self.options.ledger or self.folder / LEDGER), self.file)
            try:
                self._prepare(points)
                self._plan(points)
                self._recover()
                self._go()
                return self.record()
            finally:
                self.ledger.close()

    def record(self) -> StudyRecord:
        """Return the study as it stands."""
        found = self.ledger.read()
        found.folder = str(self.folder)
        return found

    def _prepare(self, points: list[Params]) -> None:
        """Find what is wrong with the study, obtain its data, measure baselines and estimate what is left of it."""
        known = self.ledger.read()
        self.threads = self.ledger.threads(max(1, self.machine.cores // self.options.jobs))
        # Every subject is made before anything is written: a wrong name must not leave half a study.
        for point in points:
            subject_of(self.file, point, self.threads)
        self.executor = self._make_executor(self)
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
        left = [*known.trials, *missing(self.file, points, known.trials)]
        if not (self.options.repeat_disturbed or self.options.retry_failed):
            left = [t for t in left if t.status in ("waiting", "running")]
        note_fewer(self.file, len(points), self._say)
        self.forecast.check(left)
        if isinstance(self.executor, Local):  # a cluster's nodes have their own
            self.forecast.obtain_data(left)
        self.forecast.make(left)

    def _plan(self, points: list[Params]) -> None:
        """Write the trials that the ledger does not have yet into it."""
        with self.ledger.alone():
            known = self.ledger.read().trials
            repeated = again(known, disturbed=self.options.repeat_disturbed, failed=self.options.retry_failed)
            new = [*missing(self.file, points, known), *repeated]
            trials = [*known, *self.ledger.add([self.forecast.told(t) for t in new])]
        self.trials = {t.number: t for t in trials}
        self.total = len(self.trials)

    def _recover(self) -> None:
        """Look after trials that were claimed and never told, then line up what waits."""
        self.ledger.tell_half_told()
        for number, trial in list(self.trials.items()):
            if trial.status == "running":
                self._recover_one(number, trial)
        self.waiting = [t.number for t in in_order(self.file, self.trials.values()) if t.status == "waiting"]

    def _recover_one(self, number: int, trial: Trial) -> None:
        folder = self.folder_of(number)
        if trial.claim != self._claim and not self.options.take_over:
            where = (trial.claim or "?").partition(":")[0]
            self.note(f"trial {number} is claimed by {where}; --take-over runs it here if that is gone")
        elif is_alive(folder) and isinstance(self.executor, Local):
            self.executor.adopt(self.order_of(number), folder)
            self.running.add(number)
            self.note(f"trial {number} still runs; its end is awaited")
        else:
            self._ended(number)

    def _go(self) -> None:
        try:
            while self.waiting or self.running:
                self._start_what_fits()
                if not self.running and self._is_enough():
                    break
                for number in self._awaited():
                    self._ended(number)
        except BaseException:
            for number in self.executor.stop():
                with contextlib.suppress(LedgerError):
                    self.ledger.release(msgspec.structs.replace(self.trials[number], status="waiting"))
            raise

    def _awaited(self) -> list[int]:
        """Return the trials that end next; until then there is no more room, so nothing else is looked at."""
        found: list[int] = []
        while self.running and not found:
            found = self.executor.finished()
        return found

    def _is_enough(self) -> bool:
        return self.options.at_most is not None and self._started >= self.options.at_most

    # ---------------------------------------------------------------- one trial

    def _start_what_fits(self) -> None:
        while self.waiting and not self.executor.is_full and not self._is_enough():
            number = next((n for n in self.waiting if self.executor.can_take(self.order_of(n))), None)
            if number is None:
                return
            self.waiting.remove(number)
            self._start(number)

    def _start(self, number: int) -> None:
        """Claim a trial and start it, unless it cannot fit or another machine has it."""
        trial = self.trials[number]
        refusal = too_large(trial.predicted, self.capacity_bytes)
        if refusal is None:
            refuse_full_disk(self.folder)
        claimed = msgspec.structs.replace(
            trial,
            status="running",
            attempts=trial.attempts + (refusal is None),
            began_unix_ns=time.time_ns(),
            claim=self._claim,
        )
        if not patiently(lambda: self.ledger.claim(claimed), self.note):
            return
        self.trials[number] = claimed
        if refusal is not None:
            self._finish(
                msgspec.structs.replace(
                    claimed, status="does-not-fit", cause=refusal, ended_unix_ns=time.time_ns()
                )
            )
            return
        self.executor.start(self.order_of(number), self.folder_of(number))
        self.running.add(number)
        self._started += 1
        self._tell("start", self)

    def _ended(self, number: int) -> None:
        """Read what a trial left behind and tell it; one that was killed is run again."""
        self.running.discard(number)
        trial, folder = self.trials[number], self.folder_of(number)
        machine = machine_of(folder, self.machine)
        baseline = self.forecast.baseline_of(self._subject(trial), machine)
        found = harvest(trial, folder, machine, baseline, jobs=self.executor.jobs) or given_up(trial, machine)
        if found is not None:
            self._finish(with_run_file(found, folder, self.folder))
            return
        waits = self.trials[number] = msgspec.structs.replace(trial, status="waiting")
        patiently(lambda: self.ledger.release(waits), self.note)
        self.waiting.append(number)
        self.note(f"trial {number} was killed; it is run again")

    def _finish(self, trial: Trial) -> None:
        self.trials[trial.number] = self.last = trial
        patiently(lambda: self.ledger.finish(trial), self.note)
        self._tell("end", self)

    def _subject(self, trial: Trial) -> Subject:
        """Return what a trial runs."""
        found = self._subjects.get(trial.number)
        if found is None:
            found = subject_of(self.file, trial.params, self.threads, trial.repeat)
            if trial.number >= 0:
                self._subjects[trial.number] = found
        return found

    def order_of(self, number: int) -> Order:
        """Return what an executor is told of a trial."""
        trial = self.trials[number]
        return order_of(self.file, trial, self._subject(trial), self.forecast.document(trial))

    def folder_of(self, number: int) -> Path:
        return self.folder / TRIALS / f"{number:05d}"

    # ---------------------------------------------------------------- telling

    def note(self, text: str) -> None:
        """Tell something that happened."""
        self._say("note", text)

    def _say(self, what: str, text: str) -> None:
        self.said = text
        self._tell(what, self)


def _local(runner: Runner) -> Executor:
    available = available_bytes()
    room = None if available is None else int(available * _SHARE_OF_MEMORY)
    return Local(runner.options.jobs, runner.machine.cores, room, runner.machine.memory_bytes)
