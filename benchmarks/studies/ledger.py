"""How fast a ledger of ten thousand trials is shown.

python -m benchmarks.studies.ledger [--trials 10000]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from memgauge.study.database import url_of
from memgauge.study.file import parse
from memgauge.study.ledger import Ledger
from memgauge.study.machine import this_machine
from memgauge.study.plan import points_of
from memgauge.study.records import Background, Predicted, Trial

STUDY = """
[study]
name = "large"
target = "zoo:mlp"
design = "random"
trials = {trials}
[space.batch_size]
low = 1
high = 100000
[space.learning_rate]
low = 1e-5
high = 0.1
log = true
[space.widths]
values = ["784,64,10", "784,128,10", "784,256,10"]
"""


def main() -> None:
    """Print how long writing and showing take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    trials = parser.parse_args().trials
    file = parse(STUDY.format(trials=trials), "large")
    figures = dict.fromkeys(
        ("peak_resident_bytes", "peak_network_bytes", "peak_train_bytes", "peak_pss_bytes"), 350000000
    )
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "large.study")
        folder.mkdir()
        ledger = Ledger(url_of(folder / "ledger.db"), file)
        begin = time.perf_counter()
        written = ledger.add(
            [
                Trial(
                    number=-1,
                    params=p,
                    status="done",
                    predicted=Predicted(host_expected_bytes=340_000_000, parameters=9, activations=9),
                    figures=figures,
                    machine=this_machine(),
                    background=Background(mean_cores=0.1),
                    seconds=1.5,
                )
                for p in points_of(file)
            ]
        )
        print(f"planning {len(written)} trials  {time.perf_counter() - begin:6.2f} s", flush=True)
        ledger.close()
        for name, options in (
            ("text", []),
            ("json", ["--json"]),
            ("csv", ["--csv", "-"]),
            ("sorted", ["--sort", "batch_size"]),
        ):
            command = [sys.executable, "-m", "memgauge", "study", "show", str(folder), *options]
            times = []
            for _ in range(5):
                begin = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                times.append(time.perf_counter() - begin)
            print(f"show, {name:7s}        {sorted(times)[2]:6.2f} s   median of 5 (goal: 2)")


if __name__ == "__main__":
    main()
