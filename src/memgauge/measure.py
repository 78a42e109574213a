"""Really run a workload in fresh processes, and say what it took.

    workload ── bare run      → resident memory, time; recorded by the monitor
             └─ profiled run  → every allocation → timeline → account → Measurement

Two runs, since observing by the second disturbs the first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from memgauge import devices, errors
from memgauge.allocators import cpu, cuda_caching
from memgauge.child import Job, Result
from memgauge.errors import MemgaugeError, MissingError, RunError, UsageError, WorkloadError, missing_extra
from memgauge.explain.bands import bands
from memgauge.explain.peak import STEADY, account
from memgauge.explain.samples import ProcessSamples
from memgauge.monitor.recorder import recorded
from memgauge.records import AtPeak, Measurement, Peak, Range, Trace
from memgauge.storage import RunFile
from memgauge.targets import TargetOptions
from memgauge.usercode import what_was_raised
from memgauge.workload import Workload

PROFILER = "torch.profiler, every allocation of the CPU allocator"
HISTORY = "torch.cuda.memory history and statistics of the caching allocator"
RECORDED_EVERY = "10ms"  # between samples of the bare run


def measure(
    workload: Workload | str,
    *,
    device: str = "cpu",
    steps: int = 3,
    threads: int | None = None,
    options: TargetOptions | None = None,
    sets: Mapping[str, str] | None = None,
    record: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Measurement:
    """Return what `steps` steps of a workload really took on `"cpu"` or `"cuda"`.

    A run that dies is returned as such: `ended` says how, the figures what was seen until then.

    Args:
        workload: A TARGET, or a `Workload` (sent to the fresh process with cloudpickle).
        device: `"cpu"`, or `"cuda"` for the device that is here.
        steps: Steps to run, at least 1.
        threads: CPU threads; torch's own number if None.
        options: Batch size and the like, for TARGETs that take them.
        sets: Arguments of a TARGET's function, as text.
        record: Run file to keep of the bare run, with this measurement inside; one that is there is replaced.
        progress: Is told what is being done.

    Raises:
        UsageError: A name is unknown, a number out of range.
        WorkloadError: The user's code raised before anything could be seen.
        RunError: The process died before anything could be seen.
        MissingError: There is no CUDA device here.
    """
    if steps < 1:
        raise UsageError(f"steps={steps}: a run has at least one step")
    place = devices.find(device)
    if place.name not in ("cpu", "cuda"):
        raise UsageError(
            f"device {device!r} cannot be measured here: it is cpu, or cuda for the GPU that is here"
        )
    tell = progress or (lambda _: None)
    job = make_job(workload, options, sets, steps=steps, threads=threads, device=place.kind)
    tell("bare run: resident memory and time")
    bare, bare_ended = run_child(msgspec.structs.replace(job, kind="bare"), record)
    if bare.exit_code == 3:
        raise MissingError(bare_ended)
    tell("observed run: every allocation")
    kind = "profiled" if place.kind == "cpu" else "cuda"
    observed, observed_ended = run_child(msgspec.structs.replace(job, kind=kind))
    completed = len(bare.resident["step_ns"]) if bare.resident else 0
    if observed.trace is None and observed_ended.startswith(_KILLED) and 0 < completed < steps:
        # What the profiler heard died with the process; the steps before can be observed by themselves.
        tell(f"observed run again, step 1 to {completed}: every allocation")
        observed, _ = run_child(msgspec.structs.replace(job, kind=kind, steps=completed))
    ended = observed_ended if bare_ended == "completed" else bare_ended
    trace = observed.trace
    if trace is None and bare.resident is None:
        _raise(observed if observed.error else bare, ended)
    result = _measurement(workload, place, bare, observed, ended, steps)
    if record is not None and Path(record).exists():
        with RunFile(record) as run:
            run.set_documents(measurement=msgspec.json.encode(result, enc_hook=str).decode())
    return result


def make_job(
    workload: Workload | str,
    options: TargetOptions | None,
    sets: Mapping[str, str] | None,
    *,
    steps: int = 3,
    threads: int | None = None,
    device: str = "cpu",
) -> Job:
    """Return the job for a fresh process, its workload named or pickled."""
    pickled = None
    if not isinstance(workload, str):
        pickled = _pickle(workload)
    return Job(
        kind="bare",
        target=workload if isinstance(workload, str) else None,
        options=options or TargetOptions(),
        sets=dict(sets or {}),
        pickled=pickled,
        device=device,
        steps=steps,
        threads=threads,
        import_path=tuple(sys.path) if pickled else (os.getcwd(),),
    )


def _pickle(workload: Workload) -> bytes:
    try:
        import cloudpickle
    except ModuleNotFoundError as error:
        raise missing_extra("cloudpickle", "torch") from error
    try:
        return bytes(cloudpickle.dumps(workload))
    except Exception as error:
        raise WorkloadError(
            f"this workload cannot be sent to a fresh process ({error}); "
            "put it in a file and measure path/to/file.py:function"
        ) from error


def run_child(job: Job, record: str | Path | None = None) -> tuple[Result, str]:
    """Run one job in a fresh process; returns what it wrote and how it ended.

    Args:
        job: What to run. A bare run is recorded by the monitor, where the system has what that needs.
        record: Run file to keep.
    """
    with tempfile.TemporaryDirectory(prefix="memgauge-") as folder:
        job_file, result_file = Path(folder, "job"), Path(folder, "result")
        job_file.write_bytes(msgspec.msgpack.encode(job))
        command = [sys.executable, "-m", "memgauge.child", str(job_file), str(result_file)]
        environment: dict[str, str] | None = None
        run_file = Path(folder, "run.mg") if record is None else Path(record)
        is_recorded = job.kind == "bare" and sys.platform == "linux"
        if is_recorded:
            title = f"{job.target or 'workload'}, {job.steps} steps on {job.device}, bare run"
            command, environment = recorded(
                command, run_file, interval=RECORDED_EVERY, gpu=job.device != "cpu", title=title
            )
        code, said = _run(command, environment, Path(folder, "said"))
        result = Result()
        if result_file.exists():
            result = msgspec.msgpack.decode(result_file.read_bytes(), type=Result)
        out_of_memory = False
        if is_recorded and run_file.exists():
            with RunFile(run_file) as run:
                out_of_memory = bool((run.header.get("ended") or {}).get("out_of_memory"))
                if result.resident is not None:
                    result.resident["peak_bytes"] = max(result.resident["peak_bytes"], _highest(run))
    return result, _ending(code, result, said, out_of_memory=out_of_memory)


def _highest(run: RunFile) -> int:
    """Return the highest resident size within phases; a run that was killed could not tell its own."""
    samples = ProcessSamples(run)
    seen = [
        samples.highest(b.pid, b.begin_us, b.end_us) or 0
        for b in bands(run.marks, run.last_us(), run.processes)
    ]
    return max([0, *seen, *(p.bytes for p in run.peaks if p.metric == "rss_bytes" and p.phase is not None)])


def _run(command: Sequence[str], environment: dict[str, str] | None, errors: Path) -> tuple[int, str]:
    """Run a command to its end; returns its exit code and the end of what it said."""
    with errors.open("wb+") as file:
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=file,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        try:
            process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the sampler and what it runs
            process.wait()
            raise
        file.seek(0)
        return process.returncode, file.read()[-4000:].decode(errors="replace").strip()


_KILLED, _OUT_OF_MEMORY = "killed by", "out of memory"


def failure_of(ended: str) -> MemgaugeError:
    """Return the error for a run that ended so: the user's mistake, or a run that died."""
    kind = RunError if ended.startswith((_KILLED, _OUT_OF_MEMORY)) else WorkloadError
    return kind(f"the run did not complete: {what_was_raised(ended) or 'it ended early'}")


def _ending(code: int, result: Result, said: str, *, out_of_memory: bool = False) -> str:
    if out_of_memory:
        return f"{_OUT_OF_MEMORY}: the kernel killed the run for lack of memory"
    if code == 0 and result.error is None:
        return "completed"
    if code < 0:
        name = signal.Signals(-code).name
        hint = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
        return f"{_KILLED} {name}{hint}"
    text = result.error or said or f"exit code {code}"
    if "can't allocate memory" in text or "OutOfMemoryError" in text:
        return f"{_OUT_OF_MEMORY}: {text}"
    return text


def _raise(result: Result, ended: str) -> None:
    if result.exit_code == 2:
        raise getattr(errors, result.error_kind or "", WorkloadError)(ended)
    raise RunError(ended)


def _measurement(
    workload: Workload | str, place: devices.Device, bare: Result, observed: Result, ended: str, steps: int
) -> Measurement:
    trace = observed.trace or Trace(events=(), categories=(), layers=())
    timeline = cpu.replay(trace.events) if place.kind == "cpu" else cuda_caching.replay(trace.events)
    peak, at_peak, phases, layers = account(trace, timeline)
    completed = ended == "completed"
    unknown: dict[str, str] = {}
    instruments = {"peak.allocated_bytes": PROFILER if place.kind == "cpu" else HISTORY}
    if observed.trace is None:
        unknown["peak.allocated_bytes"] = "the observed run died before it could be read"
        peak = Peak(requested_bytes=None, allocated_bytes=None)
        at_peak = AtPeak(phase="", operator="", layer="", categories={})
    resident = bare.resident
    if observed.trace is not None and resident is not None and ended.startswith(_KILLED):
        instruments["peak.allocated_bytes"] += f"; of the {len(resident['step_ns'])} steps that completed"
    if resident is not None:
        host = resident["peak_bytes"]
        peak = msgspec.structs.replace(
            peak, host_bytes=Range(host, host, host), host_baseline_bytes=resident["baseline_bytes"]
        )
        instruments["peak.host_bytes"] = resident["instrument"]
        instruments["step_ns"] = "time.perf_counter_ns in the bare run"
    else:
        unknown["peak.host_bytes"] = "the bare run died before its first reading"
    if place.kind == "cpu":
        unknown["peak.reserved_bytes"] = "torch keeps no reserve on the CPU"
        unknown["peak.device_bytes"] = "a CPU run takes no device memory"
    elif observed.device is not None:
        facts = observed.device
        peak = msgspec.structs.replace(
            peak,
            requested_bytes=facts["requested_bytes"],
            allocated_bytes=facts["allocated_bytes"],
            reserved_bytes=facts["reserved_bytes"],
            device_bytes=_exact(facts.get("device_bytes")),
        )
        instruments["peak.device_bytes"] = facts.get("device_instrument", "")
    described: Mapping[str, Any] = {"target": workload} if isinstance(workload, str) else workload.description
    return Measurement(
        workload={**described, **observed.description},
        device={"name": place.name, "title": place.title, "kind": place.kind},
        peak=peak,
        at_peak=at_peak,
        phases=phases if completed else tuple(p for p in phases if p.name != STEADY),
        layers=layers,
        threads=observed.threads or bare.threads,
        steps=steps,
        assumptions=tuple(trace.assumptions) if completed else (),  # they are about whole steps
        unmodelled=tuple(trace.unmodelled),
        unknown=unknown,
        versions=observed.versions or bare.versions,
        instruments=instruments,
        step_ns=tuple(resident["step_ns"]) if resident else (),
        ended=ended,
    )


def _exact(count_bytes: int | None) -> Range | None:
    return None if count_bytes is None else Range(count_bytes, count_bytes, count_bytes)
