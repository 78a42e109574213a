"""Predicted against really allocated on this machine's CPU, over two sets of workloads.

    python benchmarks/accuracy_cpu.py steps               training steps of all kinds (benchmarks/steps)
    python benchmarks/accuracy_cpu.py models --count 20   library models drawn by the hash of their name
    python benchmarks/accuracy_cpu.py large               runs of 0.5 to 3 GiB, for resident memory
    ... --json FILE   writes (and goes on from) one JSON document; --only NAME[,NAME]

For each case: the allocated peak with workspace left out ("tensors"), the whole
allocated peak, and the growth of resident memory over the import baseline. A
case that cannot be estimated or measured is a miss and stays in the table.
`--in-process` leaves resident memory out and runs each case in this process, several times faster.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import memgauge
from memgauge.allocators import cpu
from memgauge.errors import MemgaugeError
from memgauge.targets import TargetOptions, resolve
from memgauge.units import MIB, format_bytes, parse_bytes
from memgauge.workload import Workload

sys.path.insert(0, str(Path(__file__).parent.parent))

Case = tuple[str, Callable[[], "Workload | str"], TargetOptions]
RESIDENT_FROM = 500 * MIB  # the range for resident memory is judged for runs that peak above this


# Ordinary networks at sizes that fill a process: batch, image size or sequence length, optimizer.
LARGE: tuple[tuple[str, TargetOptions], ...] = (
    ("zoo:gpt2", TargetOptions(batch_size=1, sequence_length=128)),
    ("zoo:vgg16", TargetOptions(batch_size=2)),
    ("zoo:alexnet", TargetOptions(batch_size=64, optimizer="adam")),
    ("zoo:googlenet", TargetOptions(batch_size=16)),
    ("zoo:dcgan", TargetOptions(batch_size=256)),
    ("zoo:vit-b16", TargetOptions(batch_size=2)),
    ("torchvision:resnet18", TargetOptions(batch_size=32, optimizer="sgd")),
    ("torchvision:resnet50", TargetOptions(batch_size=8, optimizer="adam")),
    ("torchvision:densenet121", TargetOptions(batch_size=8)),
    ("torchvision:mobilenet_v3_large", TargetOptions(batch_size=32)),
    ("torchvision:efficientnet_b0", TargetOptions(batch_size=16)),
    ("torchvision:convnext_tiny", TargetOptions(batch_size=4)),
    ("torchvision:swin_t", TargetOptions(batch_size=4)),
    ("timm:mixer_b16_224", TargetOptions(batch_size=4)),
    ("timm:regnety_016", TargetOptions(batch_size=16)),
    ("timm:resnet50", TargetOptions(batch_size=32, mode="infer")),
    ("transformers:bert", TargetOptions(batch_size=2, sequence_length=128)),
    ("transformers:distilbert", TargetOptions(batch_size=4, sequence_length=256)),
    ("transformers:roberta", TargetOptions(batch_size=4, sequence_length=128, optimizer="sgd")),
    ("transformers:t5", TargetOptions(batch_size=8, sequence_length=128)),
)


def large_cases() -> list[Case]:
    """Return ordinary networks at sizes at which resident memory is judged."""
    return [(name, lambda name=name: name, options) for name, options in LARGE]


def step_cases() -> list[Case]:
    """Return the training steps of all kinds."""
    from benchmarks.steps import STEPS

    return [(name, make, TargetOptions()) for name, make in STEPS.items()]


def model_names() -> list[str]:
    """Return `library:name` of every model of the three libraries, quantised ones (not eager) left out.

    Of transformers, the types that have a model class of their own.
    """
    from memgauge.frameworks.torch.torchvision_compat import import_torchvision

    torchvision = import_torchvision()
    import timm
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    names = [f"torchvision:{n}" for n in torchvision.models.list_models() if "quantized" not in n]
    names += [f"timm:{n}" for n in timm.list_models()]
    return names + [f"transformers:{n}" for n in MODEL_MAPPING_NAMES]


def model_cases(count: int, largest: int) -> list[Case]:
    """Return library models: of each library in turn the next name in the order of its SHA-256.

    A model whose estimated peak exceeds `largest` would not run on a small machine; it is
    passed over and named. The batch is 2.
    """
    order = sorted(model_names(), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    queues = [[n for n in order if n.startswith(kind)] for kind in ("torchvision", "timm", "transformers")]
    names = [name for turn in zip(*queues, strict=False) for name in turn]
    options = TargetOptions(batch_size=2)
    chosen: list[Case] = []
    for name in names:
        if len(chosen) == count:
            break
        try:
            peak = memgauge.estimate(name, options=options, host=False, steps=2).peak.allocated_bytes or 0
        except MemgaugeError:
            peak = 0  # a miss, which stays in
        if peak > largest:
            print(f"passed over, too large to run here: {name} ({format_bytes(peak)})", file=sys.stderr)
            continue
        chosen.append((name, lambda name=name: name, options))
    return chosen


def run_case(name: str, make: Callable[[], Workload | str], options: TargetOptions) -> dict[str, Any]:
    """Predict and measure one case; returns one row."""
    row: dict[str, Any] = {"name": name}
    begin = time.perf_counter()
    target = make()
    options_of = options if isinstance(target, str) else None
    try:
        estimate = memgauge.estimate(target, options=options_of)
        row["estimate_s"] = round(time.perf_counter() - begin, 3)
        measurement = memgauge.measure(target, options=options_of)
    except MemgaugeError as error:
        return row | {"error": f"{type(error).__name__}: {str(error)[-300:]}"}
    except Exception as error:  # a miss like any other
        return row | {"error": f"{type(error).__name__}: {str(error)[-300:]}"}
    if measurement.ended != "completed":
        return row | {"error": f"the real run ended: {measurement.ended[-300:]}"}
    said, base = estimate.peak.host_bytes, estimate.peak.host_baseline_bytes
    seen, seen_base = measurement.peak.host_bytes, measurement.peak.host_baseline_bytes
    if said is None or seen is None:
        return row | {"error": "resident memory is not known"}
    return row | {
        "tensors": [estimate.peak.tensor_bytes, measurement.peak.tensor_bytes],
        "whole": [estimate.peak.allocated_bytes, measurement.peak.allocated_bytes],
        "growth": [said.low - base, said.expected - base, said.high - base, seen.expected - seen_base],
        "unattributed": measurement.at_peak.categories.get("unattributed", 0),
        "peak_operator": [estimate.at_peak.operator, measurement.at_peak.operator],
    }


def run_in_process(name: str, make: Callable[[], Workload | str], options: TargetOptions) -> dict[str, Any]:
    """Trace and really run one case in this process; returns one row without resident memory."""
    from memgauge.explain.peak import account
    from memgauge.frameworks.torch import predict
    from memgauge.frameworks.torch.profiled import profiled_run

    try:
        target = make()
        workload = resolve(target, options) if isinstance(target, str) else target
        begin = time.perf_counter()
        said = predict.predict(workload, kind="cpu", steps=3, threads=predict.threads_of_run(None))
        elapsed = time.perf_counter() - begin
        gc.collect()
        seen = profiled_run(workload, steps=3)
    except Exception as error:  # a miss like any other
        return {"name": name, "error": f"{type(error).__name__}: {str(error)[-300:]}"}
    (ours, our_peak, *_), (theirs, their_peak, *_) = (account(t, cpu.replay(t.events)) for t in (said, seen))
    return {
        "name": name,
        "estimate_s": round(elapsed, 3),
        "tensors": [ours.tensor_bytes, theirs.tensor_bytes],
        "whole": [ours.allocated_bytes, theirs.allocated_bytes],
        "unattributed": their_peak.categories.get("unattributed", 0),
        "peak_operator": [our_peak.operator, their_peak.operator],
    }


def error_of(pair: list[int]) -> float:
    """Return the relative error of predicted against measured."""
    return (pair[0] - pair[1]) / pair[1]


def percent(pair: list[int], digits: int) -> str:
    """Return the error as people read it."""
    return "exact" if pair[0] == pair[1] else f"{100 * error_of(pair):+.{digits}f} %"


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures that the goals name."""
    good = [r for r in rows if "error" not in r]
    tensors = [abs(error_of(r["tensors"])) for r in good]
    whole = [abs(error_of(r["whole"])) for r in good]
    large = [r["growth"] for r in good if "growth" in r and r["whole"][1] >= RESIDENT_FROM]
    inside = [low <= real <= high for low, _, high, real in large]
    widths = [(high - low) / 2 / expected for low, expected, high, _ in large]
    return {
        "cases": len(rows),
        "misses": len(rows) - len(good),
        "tensors_exact": sum(e == 0 for e in tensors),
        "tensors_worst_percent": round(100 * max(tensors, default=0), 3),
        "whole_median_percent": round(100 * statistics.median(whole), 3) if whole else None,
        "whole_within_5_percent": sum(e <= 0.05 for e in whole),
        "whole_worst_percent": round(100 * max(whole, default=0), 2),
        "resident_cases": len(large),
        "resident_inside": sum(inside),
        "resident_median_half_width_percent": round(100 * statistics.median(widths), 1) if widths else None,
    }


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """Print one line for each case and the summary."""
    table = Table("case", "tensors", "error", "whole", "error", "growth", "range", box=None)
    for row in rows:
        if "error" in row:
            table.add_row(str(row["name"]), "miss", "", str(row["error"])[:60])
            continue
        low, _, high, real = row.get("growth", (None,) * 4)
        table.add_row(
            str(row["name"]),
            format_bytes(row["tensors"][1]),
            percent(row["tensors"], 3),
            format_bytes(row["whole"][1]),
            percent(row["whole"], 2),
            format_bytes(real),
            f"{format_bytes(low)} – {format_bytes(high)}"
            + ("" if low is None or low <= real <= high else " ✗"),
        )
    console.print(table)
    console.print_json(json.dumps(summary(rows)))


def main() -> None:
    """Run the set that was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", choices=("steps", "models", "large"))
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--largest", type=parse_bytes, default="6GiB", help="peak that still runs here")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--in-process", action="store_true")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    cases = {
        "steps": step_cases,
        "large": large_cases,
        "models": lambda: model_cases(asked.count, asked.largest),
    }[asked.set]()
    if asked.only:
        cases = [c for c in cases if c[0] in asked.only.split(",")]
    run = run_in_process if asked.in_process else run_case
    rows: dict[str, dict[str, Any]] = {}
    if asked.json and asked.json.exists():
        rows = {r["name"]: r for r in json.loads(asked.json.read_text())["rows"]}
    console = Console()
    for name, make, options in cases:
        if name not in rows:
            rows[name] = run(name, make, options)
            print(json.dumps(rows[name]), file=sys.stderr, flush=True)
        if asked.json:
            done = [rows[c[0]] for c in cases if c[0] in rows]
            asked.json.write_text(json.dumps({"rows": done, "summary": summary(done)}, indent=1) + "\n")
    show([rows[c[0]] for c in cases], console)


if __name__ == "__main__":
    main()
