"""How long estimates take, and torch's own MemTracker on the same steps in the same run.

    python benchmarks/speed.py [--json FILE] [--only NAME[,NAME]]

NAME: resnet50, gpt2, llama-8b, llama-70b, memtracker, further (batch sizes once three are traced), cold.
Times are of a warm process: a tiny network is traced first. Cold starts are whole
processes. Each figure is the median of `--repeats` runs except for the large models.
MemTracker follows the same two steps under FakeTensorMode; the truth beside both is
torch's profiler in a real run.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import memgauge
from memgauge import devices
from memgauge.frameworks.torch.bare import reset_peak, resident_bytes
from memgauge.frameworks.torch.protocol import call
from memgauge.targets import TargetOptions, resolve
from memgauge.units import GIB, format_bytes
from memgauge.varied import Varied
from memgauge.vary import largest
from memgauge.workload import Workload

# target, options, seconds that an estimate may take in a warm process
WARM: dict[str, tuple[str, TargetOptions, float]] = {
    "resnet50": ("torchvision:resnet50", TargetOptions(batch_size=32, optimizer="adam"), 1.0),
    "gpt2": ("zoo:gpt2", TargetOptions(batch_size=8), 2.0),
    "llama-8b": ("zoo:llama-8b", TargetOptions(batch_size=1), 6.0),
    "llama-70b": ("zoo:llama-70b", TargetOptions(batch_size=1), 15.0),
}
# Networks that build under FakeTensorMode, at sizes that really run here.
MEMTRACKER = {
    "zoo:resnet50": TargetOptions(batch_size=4, optimizer="adam"),
    "zoo:gpt2": TargetOptions(batch_size=1, sequence_length=64),
    "zoo:mlp": TargetOptions(batch_size=512),
    "zoo:vit-b16": TargetOptions(batch_size=2),
}

# Where further batch sizes of ResNet-50 are timed: a small card and a large one.
CARDS = ("nvidia-rtx-4060", "nvidia-a100-80gb")


def timed(run: Callable[[], object]) -> tuple[float, Any]:
    """Return the seconds that `run` takes and what it gives back."""
    gc.collect()
    begin = time.perf_counter()
    result = run()
    return time.perf_counter() - begin, result


def estimate_only(target: str, options: TargetOptions) -> memgauge.Estimate:
    """Return the estimate without the import baseline, which is a process of its own."""
    return memgauge.estimate(target, options=options, host=False)


def warm(name: str, repeats: int) -> dict[str, Any]:
    """Time one target in this process, and how far resident memory rises meanwhile."""
    target, options, goal = WARM[name]
    reset_peak()
    runs = [timed(lambda: estimate_only(target, options)) for _ in range(repeats)]
    seconds = statistics.median(s for s, _ in runs)
    peak = runs[-1][1].peak.allocated_bytes
    return {
        "seconds": round(seconds, 3),
        "goal_seconds": goal,
        "first_seconds": round(runs[0][0], 3),
        "process_peak_bytes": resident_bytes("VmHWM"),
        "estimated_peak_bytes": peak,
    }


def memtracker_peak(workload: Workload) -> int:
    """Return MemTracker's peak over two steps under FakeTensorMode, bytes."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    device = torch.device("cpu")
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device(device):
        objects = call(workload.build, device)
        tracker = MemTracker()
        tracker.track_external(*objects)
        with tracker:
            for _ in range(2):
                batch = call(workload.batch, device)
                workload.step(*objects, batch)
                tracker.reset_mod_stats()  # it refuses a second step otherwise
                del batch
        peak = tracker.get_tracker_snapshot("peak")
    return sum(kinds["Total"] for kinds in peak.values())


def beside_memtracker(target: str) -> dict[str, Any]:
    """Run both on one workload, and the real one; returns seconds and errors."""
    options = MEMTRACKER[target]
    workload = resolve(target, options)
    ours, estimate = timed(lambda: estimate_only(target, options))
    try:
        theirs, peak = timed(lambda: memtracker_peak(workload))
    except Exception as error:
        return {"seconds": round(ours, 3), "memtracker_error": f"{type(error).__name__}: {error}"}
    real = memgauge.measure(target, options=options).peak
    return {
        "seconds": round(ours, 3),
        "memtracker_seconds": round(theirs, 3),
        "times_faster": round(theirs / ours, 1),
        "error_percent": round(100 * (estimate.peak.allocated_bytes / real.allocated_bytes - 1), 3),
        "memtracker_error_percent": round(100 * (peak / real.allocated_bytes - 1), 3),
    }


def further_batches(card: str) -> dict[str, Any]:
    """Time each further batch size of ResNet-50 on a card, once three are traced: far from full to too large.

    CPU time, the least of ten runs: what it takes where nothing else runs.
    """

    def seconds_of(batch: int) -> float:
        begin = time.process_time()
        varied.row(batch, None)
        return time.process_time() - begin

    options = TargetOptions(optimizer="adam")
    varied = Varied("torchvision:resnet50", devices.find(card), "batch_size", options, {}, 3, None)
    varied.trace(64)
    fits = largest("torchvision:resnet50", device=card, name="batch_size", options=options, sets={})
    most = fits.probably or 1
    seconds = {}
    for share in (0.1, 0.25, 0.5, 0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.5, 4.0):
        batch = max(int(share * most), 9)
        seconds[batch] = min(seconds_of(batch) for _ in range(10))
    slowest = max(seconds, key=lambda batch: seconds[batch])
    return {
        "goal_ms": 50,
        "median_ms": round(1000 * statistics.median(seconds.values()), 1),
        "slowest_ms": round(1000 * seconds[slowest], 1),
        "slowest_batch": slowest,
        "largest_batch": most,
        "fit_seconds": round(fits.curve.elapsed_ns / 1e9, 2),
    }


def cold(code: list[str], repeats: int) -> float:
    """Return the median seconds of a whole Python process."""
    command = [sys.executable, *code]
    return statistics.median(
        timed(lambda: subprocess.run(command, check=True, capture_output=True))[0] for _ in range(repeats)
    )


def cold_starts(repeats: int) -> dict[str, Any]:
    """Time imports and a first estimate, each as a whole process."""
    bare = cold(["-c", "pass"], repeats)
    ours = cold(["-c", "import memgauge"], repeats)
    torch_seconds = cold(["-c", "import torch"], repeats)
    estimate = cold(["-m", "memgauge", "estimate", "torchvision:resnet50", "--json"], repeats)
    return {
        "import_memgauge_seconds": round(ours - bare, 3),
        "import_torch_seconds": round(torch_seconds, 3),
        "cold_estimate_seconds": round(estimate, 3),
        "cold_goal_seconds": round(2.5 * torch_seconds + 2.5, 3),
    }


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    only = set(asked.only.split(",")) - {""}
    estimate_only("zoo:mlp", TargetOptions())
    result: dict[str, Any] = {"torch": str(torch.__version__), "threads": torch.get_num_threads()}
    for name in WARM:
        if not only or name in only:
            result[name] = warm(name, 1 if "70b" in name else asked.repeats)
            print(name, result[name], file=sys.stderr, flush=True)
    for name in MEMTRACKER:
        if not only or "memtracker" in only:
            result[f"{name} beside MemTracker"] = beside_memtracker(name)
            print(name, result[f"{name} beside MemTracker"], file=sys.stderr, flush=True)
    for card in CARDS:
        if not only or "further" in only:
            result[f"further batches on {card}"] = further_batches(card)
            print(card, result[f"further batches on {card}"], file=sys.stderr, flush=True)
    if not only or "cold" in only:
        result["cold"] = cold_starts(asked.repeats)
    print(json.dumps(result, indent=1))
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
    if "llama-70b" in result:
        peak = format_bytes(result["llama-70b"]["process_peak_bytes"])
        print(f"resident at most {peak}, of {format_bytes(3 * GIB // 2)} allowed", file=sys.stderr)


if __name__ == "__main__":
    main()
