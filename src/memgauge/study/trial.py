"""What runs in the fresh process of a trial: one job in, one result file out.

    python -P -m memgauge.study.trial JOB RESULT

The result is replaced whole each time there is more to say, so a process that is killed leaves what was
known until then. Kinds of jobs: `trial` (the run itself, nothing looking on from inside), `allocated` (a few
steps under torch's profiler), `baseline` (imports and data only).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from memgauge import environment
from memgauge.errors import MemgaugeError, MissingError
from memgauge.monitor.marks import phase
from memgauge.study.plan import Subject
from memgauge.usercode import user_traceback
from memgauge.workload import Workload

LIFELINE = "MEMGAUGE_LIFELINE"  # a pipe whose other end is held by who must live for this trial to go on
OBSERVED_STEPS = 3  # steps under the profiler, at most: the peak is reached in the first or second
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "OOM when allocating", "bad_alloc")
_OUT_OF_MEMORY_KINDS = ("OutOfMemoryError", "ResourceExhaustedError", "MemoryError", "_ArrayMemoryError")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One run to make."""

    kind: str  # "trial", "allocated" or "baseline"
    subject: Subject


class Result(msgspec.Struct, kw_only=True):
    """What a run had to say."""

    state: str = "began"  # began, done, failed, out-of-memory, missing
    interpreter_bytes: int | None = None
    imported_bytes: int | None = None
    loaded_bytes: int | None = None
    has_dynamo: bool = False  # whether torch._dynamo was loaded by then; of a trial, when it ended
    with_optimizer_bytes: int | None = None  # of a baseline with torch: after its first optimizer was made
    seconds: float | None = None
    figures: dict[str, int] = {}
    outcome: dict[str, Any] | None = None
    versions: dict[str, str] = {}
    error: str | None = None
    error_kind: str | None = None


class _Writer:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.result = Result()

    def write(self) -> None:
        aside = self._path.with_suffix(".part")
        with open(aside, "wb") as file:
            file.write(msgspec.json.encode(self.result))
        os.replace(aside, self._path)


def run_job(job: Job, writer: _Writer) -> None:
    """Run the job; its result is written as it becomes known."""
    result, subject = writer.result, job.subject
    result.interpreter_bytes = resident_bytes()
    writer.write()
    if subject.folder is not None and os.path.isdir(subject.folder):
        os.chdir(subject.folder)
        sys.path.insert(0, subject.folder)
    if job.kind == "allocated":
        _observe(subject, result)
    elif subject.training is not None:
        _train(job, subject, writer)
    else:
        _run_target(job, subject, writer)
    result.state = "done"


def _run_target(job: Job, subject: Subject, writer: _Writer) -> None:
    result = writer.result
    with phase("import"):
        workload = workload_of(subject)
        assert workload is not None
        environment.put(workload.own.variables)
        from memgauge.frameworks.torch import trial_run
    trial_run.set_threads(subject.threads)
    result.imported_bytes = result.loaded_bytes = resident_bytes()
    result.has_dynamo = "torch._dynamo" in sys.modules
    result.versions = _versions(("torch",))
    writer.write()
    if job.kind == "baseline":
        _load_first_optimizer(result)
        return
    try:
        result.seconds, _ = trial_run.run_trial(workload, steps=subject.steps, device=subject.device)
    finally:
        result.figures.update(trial_run.device_peaks())


def _train(job: Job, subject: Subject, writer: _Writer) -> None:
    from memgauge import training

    assert subject.training is not None
    result = writer.result
    if job.kind == "baseline":

        def imported() -> None:
            result.imported_bytes = resident_bytes()

        training.baseline(subject.training, imported)
        result.loaded_bytes = resident_bytes()
        result.has_dynamo = "torch._dynamo" in sys.modules
        if subject.training.framework == "torch":
            _load_first_optimizer(result)
        return
    outcome = training.train(subject.training)
    result.outcome = msgspec.to_builtins(outcome)
    result.seconds, result.versions = outcome.seconds, outcome.versions
    if "torch" in sys.modules and subject.training.framework == "torch":
        from memgauge.frameworks.torch import trial_run

        result.figures.update(trial_run.device_peaks())


def _load_first_optimizer(result: Result) -> None:
    """Load what torch loads at the first optimizer: the same for any training, so part of its environment."""
    from memgauge.frameworks.torch import first_optimizer

    first_optimizer.load()
    result.with_optimizer_bytes = resident_bytes()


def _say_what_was_loaded(result: Result) -> None:
    """Note whether a trial made an optimizer; its own reading was then taken before all its environment was there."""
    has_dynamo = "torch._dynamo" in sys.modules
    if has_dynamo and not result.has_dynamo:
        result.loaded_bytes = None
    result.has_dynamo = has_dynamo


def _observe(subject: Subject, result: Result) -> None:
    workload = workload_of(subject)
    if workload is None:
        raise MissingError("there is no workload to observe for this framework")
    from memgauge.frameworks.torch import trial_run

    trial_run.set_threads(subject.threads)
    result.figures = trial_run.allocated_peaks(workload, steps=min(_steps(subject), OBSERVED_STEPS))


def _steps(subject: Subject) -> int:
    return OBSERVED_STEPS if subject.training is not None else subject.steps


def workload_of(subject: Subject) -> Workload | None:
    """Return the workload of a trial, resolved in this process; None where a training has none."""
    if subject.training is not None:
        from memgauge import training

        return training.workload(subject.training)
    from memgauge.targets import resolve

    assert subject.target is not None
    return resolve(subject.target, subject.options, subject.sets)


def resident_bytes() -> int:
    """Return the resident size of this process, by /proc (proc(5), statm)."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _versions(names: tuple[str, ...]) -> dict[str, str]:
    found = {n: str(getattr(sys.modules.get(n), "__version__", "")) for n in names}
    return {name: version for name, version in found.items() if version}


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory ran out."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    text = str(error)
    return bool(kinds & set(_OUT_OF_MEMORY_KINDS)) or any(said in text for said in _OUT_OF_MEMORY)


def _hold_lifeline() -> None:
    """End this process when the one that asked for it dies, as a worker of a cluster may."""
    reader = os.environ.pop(LIFELINE, None)
    if reader is None:
        return

    def wait() -> None:
        os.read(int(reader), 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def main() -> int:
    """Run one job; the exit code is 0 if it was done."""
    _hold_lifeline()
    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Job)
    writer = _Writer(Path(sys.argv[2]))
    result = writer.result
    try:
        try:
            run_job(job, writer)
        finally:
            if job.kind == "trial":
                _say_what_was_loaded(result)
    except BaseException as error:
        result.error_kind = type(error).__name__
        result.error = str(error) if isinstance(error, MemgaugeError) else user_traceback(error)
        said_by = error.__cause__ if isinstance(error, MemgaugeError) and error.__cause__ else error
        missing = isinstance(error, MissingError)
        result.state = "out-of-memory" if is_out_of_memory(said_by) else "missing" if missing else "failed"
        writer.write()
        if isinstance(error, KeyboardInterrupt):
            raise
        return 1
    writer.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
