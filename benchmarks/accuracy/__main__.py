"""Accuracy on GPUs: estimates beside what others measured.

    python -m benchmarks.accuracy run --path FOLDER --out RESULTS      (resumes; --limit for a part)
    python -m benchmarks.accuracy peers --path FOLDER --out RESULTS    (the other predictors, where installed)
    python -m benchmarks.accuracy sweep --path FOLDER --out RESULTS    (architectures that are in no set: do they run?)
    python -m benchmarks.accuracy report --out RESULTS --docs docs     (docs/accuracy.md and its picture)

FOLDER holds the sets, which are not part of this repository; docs/accuracy.md says where each is from.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from benchmarks.accuracy import sets
from memgauge.errors import MemgaugeError


def main() -> int:
    """Run the command that was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("run", "peers", "sweep", "report"))
    parser.add_argument("--path", type=Path, help="folder of the sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--sets", default=",".join(sets.SETS), help="comma-separated")
    parser.add_argument("--half", choices=("build", "report", "both"), default="both")
    parser.add_argument("--limit", type=int, help="at most so many cases of each set, chosen by a hash")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=300, help="for one answer of one peer")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    asked = parser.parse_args()
    for name in ("jobs", "seconds", "limit"):
        count = getattr(asked, name)
        if count is not None and count < 1:
            parser.error(f"--{name} {count}: it must be at least 1")
    if asked.out.exists() and not asked.out.is_dir():
        parser.error(f"--out {asked.out} is a file; name a folder")
    try:
        if asked.command == "report":
            from benchmarks.accuracy.report import write

            if not any(asked.out.glob("*.jsonl")):
                parser.error(f"--out {asked.out} holds no results; run writes them")
            write(asked.out, asked.docs)
            return 0
        if asked.path is None:
            parser.error(f"{asked.command} needs --path")
        return _sweep(asked) if asked.command == "sweep" else _run(asked)
    except MemgaugeError as error:
        print(f"benchmarks.accuracy: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130


def _run(asked: argparse.Namespace) -> int:
    from benchmarks.accuracy.run import run

    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.sets.split(","):
        skipped = sets.Skipped()
        cases = sets.read(name, asked.path, skipped)
        for line in skipped:
            print(f"damaged row skipped: {line}", file=sys.stderr)
        if skipped:
            print(f"{name}: {len(skipped)} damaged rows skipped", file=sys.stderr)
        if asked.half != "both":
            cases = [case for case in cases if case.half == asked.half]
        cases.sort(key=lambda case: hashlib.sha256(case.key.encode()).digest())
        peers = asked.command == "peers"
        out = asked.out / (f"{name}.peers.jsonl" if peers else f"{name}.jsonl")
        run(cases[: asked.limit], out, jobs=asked.jobs, peer_seconds=asked.seconds if peers else None)
    return 0


def _sweep(asked: argparse.Namespace) -> int:
    from benchmarks.accuracy import sweep

    asked.out.mkdir(parents=True, exist_ok=True)
    measured = [sets.read(name, asked.path, sets.Skipped()) for name in ("timm", "largest")]
    known = frozenset(case.family for cases in measured for case in cases)
    sweep.sweep(sweep.draws(known), asked.out / "sweep.jsonl", limit=asked.limit, seconds=asked.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
