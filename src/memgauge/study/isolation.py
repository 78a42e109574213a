"""What is not the network's: baselines of an environment, and what else ran meanwhile.

A baseline is measured in fresh processes that import and load what a trial does, and build nothing; with torch
also what its first optimizer loads, which is the same for any training. The
background is what the machine did less what the trial's own processes did, from the trial's run file.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from memgauge.columns import MISSING
from memgauge.explain.samples import chunks_of
from memgauge.storage import RunFile
from memgauge.study.plan import Subject
from memgauge.study.records import Background, Baseline
from memgauge.study.trial import Job, Result
from memgauge.units import format_bytes

# A trial counts as disturbed when others kept more than this many cores busy, or the memory that others use
# moved by more than this share of the machine's. Our own choice: below, an idle desktop's own work passes.
DISTURBED_CORES = 0.5
DISTURBED_MEMORY_SHARE = 0.02
_TIMEOUT_S = 600


def environment(threads: int | None) -> dict[str, str]:
    """Return the environment of a trial's process: its CPU threads, and where memgauge is."""
    home = str(Path(__file__).resolve().parents[2])
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))}
    if threads is not None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
            found[name] = str(threads)
    return found


def measure_baseline(subject: Subject, repeats: int) -> Baseline | str:
    """Return the baseline of a subject's environment, in as many fresh processes; or why there is none."""
    found: list[Result] = []
    for _ in range(repeats):
        result, said = run_job(Job(kind="baseline", subject=subject))
        if result.state != "done" or result.loaded_bytes is None:
            return result.error or said or "the process of the baseline ended early"
        found.append(result)
    loaded = [r.loaded_bytes or 0 for r in found]
    trained = [r.with_optimizer_bytes for r in found if r.with_optimizer_bytes is not None]
    interpreter = [r.interpreter_bytes or 0 for r in found]
    return Baseline(
        interpreter_bytes=int(statistics.median(interpreter)),
        imported_bytes=int(statistics.median([r.imported_bytes or r.loaded_bytes or 0 for r in found])),
        loaded_bytes=int(statistics.median(loaded)),
        spread_bytes=max(loaded) - min(loaded),
        repeats=len(found),
        has_dynamo=found[0].has_dynamo,
        with_optimizer_bytes=int(statistics.median(trained)) if len(trained) == len(found) else None,
    )


def run_job(job: Job) -> tuple[Result, str]:
    """Run one job in a fresh process that nothing records; returns its result and its last words."""
    with tempfile.TemporaryDirectory(prefix="memgauge-") as folder:
        job_file, result_file = Path(folder, "job.json"), Path(folder, "result.json")
        job_file.write_bytes(msgspec.json.encode(job))
        command = [sys.executable, "-P", "-m", "memgauge.study.trial", str(job_file), str(result_file)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(job.subject.threads),
        )
        try:
            _, said = process.communicate(timeout=_TIMEOUT_S)
        except BaseException as error:
            process.kill()
            process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            said = b"it did not end within 10 minutes"
        result = Result()
        if result_file.exists():
            result = msgspec.json.decode(result_file.read_bytes(), type=Result)
        return result, said[-2000:].decode(errors="replace").strip()


def background(
    run: RunFile, memory_bytes: int | None, used: tuple[int, int] | None, *, jobs: int = 1
) -> Background:
    """Return what others did while a run was recorded.

    Args:
        run: The recording.
        memory_bytes: The machine's memory.
        used: What the whole machine used before and after.
        jobs: Trials that ran at the same time; what the others of them did counts as background, and
            is not taken as a disturbance.
    """
    begin, end, busy_ns = _grown(run, "medium", "system_cpu_ns") or (0, 0, 0)
    own = _grown_total(run, "cpu", "cpu_ns")
    cores = None
    if end > begin and own is not None:
        # The two lanes begin and end some ticks apart: what is over is never below zero.
        cores = max(0.0, (busy_ns - own) / ((end - begin) * 1000))
    reasons = []
    if jobs == 1:
        if cores is not None and cores > DISTURBED_CORES:
            reasons.append(f"others kept {cores:.1f} cores busy")
        if (
            used is not None
            and memory_bytes
            and abs(used[1] - used[0]) > DISTURBED_MEMORY_SHARE * memory_bytes
        ):
            reasons.append(f"the memory that others use moved by {format_bytes(used[1] - used[0])}")
    return Background(
        mean_cores=None if cores is None else round(cores, 3),
        used_before_bytes=used[0] if used else None,
        used_after_bytes=used[1] if used else None,
        reasons=tuple(reasons),
    )


def used_bytes() -> int | None:
    """Return what the whole machine uses now: total − free − buffers − cached."""
    from memgauge.monitor.machine import Memory

    try:
        return Memory().read()[0]
    except OSError:
        return None


def _grown(run: RunFile, lane: str, metric: str) -> tuple[int, int, int] | None:
    """Return first and last time, µs, and how far a counter of the machine moved between them."""
    wanted = {s.id for s in run.series if s.metric == metric}
    first: tuple[int, int] | None = None
    last: tuple[int, int] | None = None
    for chunk in chunks_of(run, lane):
        for series, start, values in chunk.columns:
            if series in wanted:
                for place, value in enumerate(values, start):
                    if value != MISSING:
                        last = (chunk.times_us[place], value)
                        first = first or last
    if first is None or last is None:
        return None
    return first[0], last[0], last[1] - first[1]


def _grown_total(run: RunFile, lane: str, metric: str) -> int | None:
    """Return the CPU time of the trial's processes over the recording, ns."""
    whole = run.header.get("command_cpu_ns")
    if whole is not None:
        return int(whole)
    ids = {s.id for s in run.series if s.metric == metric}
    firsts: dict[int, int] = {}
    lasts: dict[int, int] = {}
    for chunk in chunks_of(run, lane):
        for series, _, values in chunk.columns:
            known = [v for v in values if v != MISSING] if series in ids else []
            if known:
                firsts.setdefault(series, known[0])
                lasts[series] = known[-1]
    return sum(lasts[s] - firsts[s] for s in lasts) if lasts else None
