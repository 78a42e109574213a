"""What a study adds to its bare processes, and how long its report takes.

    python -m benchmarks.studies.overhead [--trials 200]

The bare process is the same one: a fresh interpreter that resolves the TARGET and runs it, with nothing recording.
"""

from __future__ import annotations

import argparse
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


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    trials = parser.parse_args().trials
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        half = bare_seconds(trials // 2, folder)  # before and after, since the machine is not always as quick
        file = parse(STUDY.format(trials=trials), "tiny")
        begin = time.perf_counter()
        record = Runner(file, folder / "tiny.study", Options()).run()
        whole = time.perf_counter() - begin
        half += bare_seconds(trials - trials // 2, folder)
        begin = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "memgauge",
            "study",
            "report",
            str(folder / "tiny.study"),
            "-o",
            str(folder / "r.html"),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        report = time.perf_counter() - begin
        done = sum(t.status == "done" for t in record.trials)
    bare = sum(half)
    print(f"{done} of {trials} trials done")
    print(f"bare processes   {bare:8.1f} s   median {statistics.median(half):.2f} s")
    print(f"study            {whole:8.1f} s   baselines and estimates included")
    print(f"added per trial  {(whole - bare) / trials:8.2f} s   (goal: 0.5)")
    print(f"report           {report:8.1f} s   (goal: 30)")


if __name__ == "__main__":
    main()
