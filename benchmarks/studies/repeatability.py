"""How far the exact peaks of the same trial lie apart.

python -m benchmarks.studies.repeatability [--repeats 10] [--only mlp torres-cnn alexnet keras-cnn]
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
{target}
design = "list"
repeats = {repeats}
threads = 1
baselines = 0
[limits]
steps = 3
{fixed}
[[list]]
batch_size = 64
"""
KERAS = (
    '[fixed]\nframework = "keras"\nmodel = "torres-cnn"\ndata = "synthetic:1024x32x32x3"\noptimizer = "adam"'
)
NETWORKS = {
    "mlp": ('target = "zoo:mlp"', ""),
    "torres-cnn": ('target = "zoo:torres-cnn"', ""),
    "alexnet": ('target = "zoo:alexnet"', ""),
    "keras-cnn": ("", KERAS),
}


def main() -> None:
    """Print the spread per network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    arguments = parser.parse_args()
    for network in arguments.only:
        target, fixed = NETWORKS[network]
        with tempfile.TemporaryDirectory() as place:
            file = parse(STUDY.format(target=target, fixed=fixed, repeats=arguments.repeats), network)
            record = Runner(file, Path(place, "s"), Options()).run()
        peaks = [t.figures["peak_resident_bytes"] for t in record.trials if t.status == "done"]
        spread = (max(peaks) - min(peaks)) / statistics.mean(peaks)
        print(
            f"{network:12s} {len(peaks)} times: {format_bytes(min(peaks))} to {format_bytes(max(peaks))}, "
            f"spread {100 * spread:.2f} % (goal: 3)",
            flush=True,
        )


if __name__ == "__main__":
    main()
