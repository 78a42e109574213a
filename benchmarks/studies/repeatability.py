"""How far the exact peaks of the same trial lie apart.

python -m benchmarks.studies.repeatability [--repeats 10]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from memgauge.study.file import parse
from memgauge.study.runner import Options, Runner
from memgauge.units import format_bytes

STUDY = """
[study]
name = "repeated"
target = "zoo:{target}"
design = "list"
repeats = {repeats}
threads = 1
baselines = 0
[limits]
steps = 3
[[list]]
batch_size = 64
"""


def main() -> None:
    """Print the spread per network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    for target in ("mlp", "torres-cnn", "alexnet"):
        with tempfile.TemporaryDirectory() as place:
            file = parse(STUDY.format(target=target, repeats=repeats), target)
            record = Runner(file, Path(place, "s"), Options()).run()
        peaks = [t.figures["peak_resident_bytes"] for t in record.trials if t.status == "done"]
        spread = (max(peaks) - min(peaks)) / statistics.mean(peaks)
        print(
            f"{target:12s} {len(peaks)} times: {format_bytes(min(peaks))} to {format_bytes(max(peaks))}, "
            f"spread {100 * spread:.2f} % (goal: 3)",
            flush=True,
        )


if __name__ == "__main__":
    main()
