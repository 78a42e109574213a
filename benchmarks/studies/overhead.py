"""What a study adds to its bare processes, and how long its report takes.

    python -m benchmarks.studies.overhead [--trials 200]

The bare process is the same one: a fresh interpreter that resolves the TARGET and runs it, with nothing recording.
The clock is what the user waits for; the processors' time says the same on a machine that others keep busy.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from memgauge.study.file import parse
from memgauge.study.isolation import environment
from memgauge.study.plan import points_of, subject_of
from memgauge.study.runner import Options, Runner
from memgauge.study.trial import Job

STUDY = """
[study]
name = "tiny"
target = "zoo:mlp"
design = "sobol"
trials = {trials}
threads = 1
[limits]
steps = 2
[fixed]
widths = "64,32,10"
[space.batch_size]
low = 1
high = 100000
log = true
"""


def bare_seconds(trials: int, folder: Path) -> list[float]:
    """Return the time of each bare process."""
    file = parse(STUDY.format(trials=trials), "tiny")
    found = []
    for number, point in enumerate(points_of(file)):
        job, result = folder / "job.json", folder / f"{number}.json"
        job.write_bytes(msgspec.json.encode(Job(kind="trial", subject=subject_of(file, point, 1))))
        command = [sys.executable, "-P", "-m", "memgauge.study.trial", str(job), str(result)]
        begin = time.perf_counter()
        subprocess.run(command, check=True, env=environment(1))
        found.append(time.perf_counter() - begin)
    return found


def children_seconds() -> float:
    """Return the CPU time of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def own_seconds() -> float:
    """Return the CPU time of this process and of those that it started."""
    return time.process_time() + children_seconds()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    trials = parser.parse_args().trials
    begun: list[tuple[float, float]] = []

    def told(what: str, _runner: Runner) -> None:
        if what == "start" and not begun:
            begun.append((time.perf_counter(), own_seconds()))

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        busy = own_seconds()
        half = bare_seconds(trials // 2, folder)  # before and after, since the machine is not always as quick
        bare_cpu = own_seconds() - busy
        file = parse(STUDY.format(trials=trials), "tiny")
        begin, busy = time.perf_counter(), own_seconds()
        record = Runner(file, folder / "tiny.study", Options(), told).run()
        whole, whole_cpu = time.perf_counter() - begin, own_seconds() - busy
        once, once_cpu = begun[0][0] - begin, begun[0][1] - busy
        busy = own_seconds()
        half += bare_seconds(trials - trials // 2, folder)
        bare_cpu += own_seconds() - busy
        begin = time.perf_counter()
        page = folder / "r.html"
        command = [
            sys.executable,
            "-m",
            "memgauge",
            "study",
            "report",
            str(folder / "tiny.study"),
            "-o",
            str(page),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        report = time.perf_counter() - begin
        done = sum(t.status == "done" for t in record.trials)
    bare = sum(half)
    print(f"{done} of {trials} trials done; seconds of the clock, and of the processors")
    print(f"bare processes   {bare:8.1f} {bare_cpu:8.1f}   median {statistics.median(half):.2f} each")
    print(f"study            {whole:8.1f} {whole_cpu:8.1f}")
    print(f"  before a trial {once:8.1f} {once_cpu:8.1f}   three baselines, {trials} estimates, the ledger")
    print(
        f"added per trial  {(whole - bare) / trials:8.2f} {(whole_cpu - bare_cpu) / trials:8.2f}   "
        f"(goal: 0.5); without what comes before {(whole - once - bare) / trials:.2f} "
        f"{(whole_cpu - once_cpu - bare_cpu) / trials:.2f}"
    )
    print(f"report           {report:8.1f}            (goal: 30)")


if __name__ == "__main__":
    main()
