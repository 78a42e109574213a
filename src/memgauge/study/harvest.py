"""From what a trial left behind (its result and its run file) to its record in the ledger."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from memgauge.errors import MemgaugeError
from memgauge.explain.recorded import Recording
from memgauge.explain.recording import summarise
from memgauge.storage import RunFile
from memgauge.study.isolation import background
from memgauge.study.records import Baseline, Machine, Status, Trial
from memgauge.study.trial import Result

RUN, RESULT, OBSERVED, JOB = "run.mg", "result.json", "observed.json", "job.json"
MACHINE = "machine.json"  # where it ran, if that is not here
SAID = "stderr.txt"  # what its processes wrote to either output
USED = "used.json"  # what the machine used before and after
STOPPED = "stopped.json"  # why the runner ended a trial: a limit
MOST_ATTEMPTS = 3  # a trial whose process is killed by somebody so often is given up
_LONGEST_ERROR = 4000


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """Why the runner ended a trial."""

    status: Status
    cause: str
    censored_at_bytes: int | None = None


def read_result(folder: Path, name: str = RESULT) -> Result | None:
    """Return what a trial's process wrote, None if it wrote nothing that can be read."""
    try:
        return msgspec.json.decode((folder / name).read_bytes(), type=Result)
    except (OSError, msgspec.DecodeError):
        return None


def harvest(
    trial: Trial, folder: Path, machine: Machine, baseline: Baseline | None, *, jobs: int = 1
) -> Trial | None:
    """Return the finished record of a trial, None if it has to be run again.

    A trial whose process was killed by somebody, with no sign that memory had run out, is not finished.

    Args:
        trial: Its record so far.
        folder: Where its files are.
        machine: Where it ran.
        baseline: Of its environment.
        jobs: Trials that ran at the same time.
    """
    result = read_result(folder) or Result()
    figures = dict(result.figures)
    recording, noise = None, None
    try:
        with RunFile(folder / RUN) as run:
            recording = summarise(run)
            noise = background(run, machine.memory_bytes, _used(folder), jobs=jobs)
            figures |= _figures(recording)
    except MemgaugeError:
        pass  # killed before the recording began: the result alone has to do
    observed = read_result(folder, OBSERVED)
    if observed is not None:
        figures |= observed.figures
    environment = _environment_bytes(result, baseline)
    if environment is not None and "peak_resident_bytes" in figures:
        figures["peak_network_bytes"] = figures["peak_resident_bytes"] - environment
    if result.outcome is not None:
        figures |= {n: v for n, v in result.outcome.get("memory", {}).items() if isinstance(v, int)}
    status, cause, censored, error = _ending(folder, result, recording, figures)
    if status is None:
        return None
    error = error or (f"not observed: {observed.error}" if observed is not None and observed.error else None)
    return msgspec.structs.replace(
        trial,
        status=status,
        figures=figures,
        seconds=result.seconds,
        cpu_seconds=None if recording is None or recording.cpu_ns is None else recording.cpu_ns / 1e9,
        error=None if error is None else error[-_LONGEST_ERROR:],
        cause=cause,
        censored_at_bytes=censored,
        background=noise,
        machine=machine,
        outcome=result.outcome,
        versions=result.versions,
        ended_unix_ns=time.time_ns(),
    )


def _environment_bytes(result: Result, baseline: Baseline | None) -> int | None:
    """Return what was resident of a trial's environment: by its baseline, or by its own reading if that was after all of it."""
    if baseline is None:
        return result.loaded_bytes if result.state == "done" else None
    # What was killed did not say whether it had made an optimizer: with one, what is left is a bound in any case.
    return baseline.environment_bytes(result.has_dynamo or result.state == "began")


def given_up(trial: Trial, machine: Machine) -> Trial | None:
    """Return the record of a trial that was killed too often to be run again; None if it may be."""
    if trial.attempts < MOST_ATTEMPTS:
        return None
    return msgspec.structs.replace(
        trial,
        status="failed",
        error=f"its process or its monitor was killed {trial.attempts} times, by what is not known",
        machine=machine,
        ended_unix_ns=time.time_ns(),
    )


def machine_of(folder: Path, here: Machine) -> Machine:
    """Return the machine that a trial ran on, by what it left; `here` if it left nothing."""
    try:
        return msgspec.json.decode((folder / MACHINE).read_bytes(), type=Machine)
    except (OSError, msgspec.DecodeError):
        return here


def with_run_file(trial: Trial, folder: Path, study: Path) -> Trial:
    """Return a trial with the path of its run file, in which it is written what trial it is of, and where it ran."""
    path = folder / RUN
    if not path.exists():
        return trial
    found = msgspec.structs.replace(trial, run_file=str(path.relative_to(study)))
    with contextlib.suppress(MemgaugeError), RunFile(path) as run:
        run.set_documents(
            trial=msgspec.json.encode(found).decode(), machine=msgspec.json.encode(found.machine).decode()
        )
    return found


def _used(folder: Path) -> tuple[int, int] | None:
    try:
        return msgspec.json.decode((folder / USED).read_bytes(), type=tuple[int, int])
    except (OSError, msgspec.DecodeError):
        return None


def _figures(recording: Recording) -> dict[str, int]:
    found: dict[str, int] = {}
    names = {
        "largest process, resident": "peak_resident_bytes",
        "tree, sum of PSS": "peak_pss_bytes",
        "tree, sum of RSS": "peak_tree_rss_bytes",
        "system used": "peak_system_used_bytes",
    }
    for peak in recording.peaks:
        if peak.name in names:
            found[names[peak.name]] = peak.bytes
        elif peak.name.endswith(" on the GPU"):
            found["peak_process_device_bytes"] = found.get("peak_process_device_bytes", 0) + peak.bytes
    if recording.average_used_bytes is not None:
        found["average_system_used_bytes"] = recording.average_used_bytes
    devices = [d.peak_used_bytes for d in recording.devices if d.peak_used_bytes is not None]
    if devices:
        found["peak_device_bytes"] = max(devices)
    for phase in recording.phases:
        if phase.name == "train" and phase.peak_bytes is not None and phase.peak_kind == "exact":
            found["peak_train_bytes"] = phase.peak_bytes
    return found


def _ending(
    folder: Path, result: Result, recording: Recording | None, figures: dict[str, int]
) -> tuple[Status | None, str | None, int | None, str | None]:
    """Return status, cause, the bound if the peak is only known to lie above it, and the error."""
    seen = figures.get("peak_resident_bytes") or figures.get("peak_tree_rss_bytes")
    try:
        stopped = msgspec.json.decode((folder / STOPPED).read_bytes(), type=Stopped)
    except (OSError, msgspec.DecodeError):
        stopped = None
    if result.state == "done" and (recording is None or recording.state == "lost"):
        return None, None, None, None  # the sampler was killed: there is no exact peak
    if result.state == "done":
        return "done", None, None, None
    if stopped is not None:
        return stopped.status, stopped.cause, stopped.censored_at_bytes or seen, None
    if result.state == "out-of-memory":
        return "out-of-memory", "the framework could not allocate", seen, result.error
    if result.state in ("failed", "missing"):
        return "failed", None, None, result.error
    if recording is not None and recording.out_of_memory:
        return "out-of-memory", "the kernel killed it for lack of memory", seen, None
    if (
        recording is not None
        and recording.state == "ended"
        and recording.signal not in (None, "SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
    ):
        return "failed", None, None, f"the process was ended by {recording.signal}"
    if recording is not None and recording.state == "ended" and recording.exit_code is not None:
        how = f"the process ended with exit code {recording.exit_code} before the trial was done"
        return "failed", None, None, f"{how}: {_said(folder)}".removesuffix(": ")
    return None, None, None, None


def _said(folder: Path) -> str:
    try:
        return (folder / SAID).read_bytes()[-1500:].decode(errors="replace").strip()
    except OSError:
        return ""
