"""Measure the suite on this machine's GPU, estimate it on the same machine, write one JSON.

    python -m benchmarks.gpu --out gpu.json                  both; resumes where it was stopped
    python -m benchmarks.gpu --estimate gpu.json             add or renew the estimates, on any machine

Measuring needs torch, and NVML's binding for the driver's view. Estimating needs memgauge's own
dependencies as well; where they are missing the measurements are kept and --estimate adds the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.workloads import SUITE, parts

ROOT = Path(__file__).parents[2]
MISSING = 3
_TIMEOUT_S = 120


def main() -> int:
    """Measure and estimate; returns an exit code: 3 without a CUDA device."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--estimate", type=Path, help="a file of measurements to add estimates to")
    parser.add_argument("--only", default="", help="comma-separated names")
    parser.add_argument("--list", action="store_true", help="print the workloads' names")
    asked = parser.parse_args()
    names = [n for n in SUITE if not asked.only or n in asked.only.split(",")]
    if asked.list:
        print("\n".join(names))
        return 0
    if asked.estimate is not None:
        document = json.loads(asked.estimate.read_text())
        _estimate(document, asked.estimate)
        return 0
    import torch

    if not torch.cuda.is_available():
        print("benchmarks.gpu: no CUDA device here; nothing was measured", file=sys.stderr)
        return MISSING
    document = (
        json.loads(asked.out.read_text()) if asked.out.exists() else {"machine": _machine(), "rows": {}}
    )
    for number, name in enumerate(names, start=1):
        if name not in document["rows"]:
            document["rows"][name] = _measured(name)
            _save(document, asked.out)
        print(f"{number}/{len(names)} {name}", file=sys.stderr, flush=True)
    try:
        import msgspec
    except ModuleNotFoundError:
        print(f"no msgspec here: estimate elsewhere with --estimate {asked.out}", file=sys.stderr)
        return 0
    del msgspec
    _estimate(document, asked.out)
    return 0


def _machine() -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": properties.name,
        "total_bytes": torch.cuda.mem_get_info()[1],
        "capability": list(torch.cuda.get_device_capability()),
        "multiprocessors": properties.multi_processor_count,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _measured(name: str) -> dict[str, Any]:
    conf = SUITE[name].alloc_conf
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    if conf:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = conf
    command = [sys.executable, "-m", "benchmarks.gpu.measured", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment, check=False
        )
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return {"name": name, "error": f"no end within {_TIMEOUT_S} s"}
    except (IndexError, json.JSONDecodeError):
        return {"name": name, "error": done.stderr.strip().splitlines()[-1:] or done.returncode}


def _estimate(document: dict[str, Any], out: Path) -> None:
    """Add what memgauge says of each measured workload, and whether the replay of its history is exact."""
    sys.path[:0] = [str(ROOT / "src")]
    from benchmarks.gpu.replayed import replayed

    for name, row in document["rows"].items():
        if "error" in row:
            continue
        row["estimate"] = estimated(name, document["machine"])
        row["replay"] = replayed(row["history"], SUITE[name].alloc_conf)
        _save(document, out)
    _show(document)


def estimated(name: str, machine: dict[str, Any]) -> dict[str, Any]:
    """Return memgauge's estimate of a workload on a machine."""
    from memgauge.allocators.settings import parse_cuda_settings
    from memgauge.device_memory import device_memory
    from memgauge.devices import Device
    from memgauge.devices.stack import Stack, parse_version
    from memgauge.estimate import traced
    from memgauge.workload import Workload

    place = Device(
        name="cuda",
        title=machine["gpu"],
        kind="cuda",
        capacity_bytes=machine["total_bytes"],
        compute_capability=tuple(machine["capability"]),
        multiprocessors=machine["multiprocessors"],
    )
    stack = Stack(torch=parse_version(machine["torch"], "torch"), cuda=parse_version(machine["cuda"], "CUDA"))
    begin = time.perf_counter()
    try:
        build, batch, step = parts(name)
        trace = traced(Workload(build=build, batch=batch, step=step), place, steps=3, threads=1, stack=stack)
        memory = device_memory(trace, place, stack, parse_cuda_settings(SUITE[name].alloc_conf))
    except Exception as error:  # a miss is a result
        return {"error": f"{type(error).__name__}: {str(error)[-300:]}"}
    return {
        "allocated": max(memory.timeline.allocated_bytes),
        "reserved": [memory.reserved.low, memory.reserved.expected, memory.reserved.high],
        "device": [memory.device.low, memory.device.expected, memory.device.high],
        "seconds": round(time.perf_counter() - begin, 3),
    }


def _save(document: dict[str, Any], out: Path) -> None:
    part = out.with_suffix(".part")
    part.write_text(json.dumps(document))
    part.replace(out)


def _show(document: dict[str, Any]) -> None:
    print(f"{'workload':44} {'allocated':>10} {'error':>8} {'reserved':>10} {'error':>8}  replay")
    for name, row in document["rows"].items():
        said = row.get("estimate", {})
        if "error" in row or "error" in said:
            print(f"{name:44} {str(row.get('error') or said['error'])[:60]}")
            continue
        allocated = 100 * (said["allocated"] / row["allocated"] - 1)
        reserved = 100 * (said["reserved"][1] / row["reserved"] - 1)
        exact = (
            "exact" if row["replay"][0] == row["replay"][1] else f"{row['replay'][0] - row['replay'][1]:+d} B"
        )
        print(
            f"{name:44} {row['allocated'] >> 20:>6} MiB {allocated:>+7.2f}% {row['reserved'] >> 20:>6} MiB "
            f"{reserved:>+7.2f}%  {exact}"
        )


if __name__ == "__main__":
    sys.exit(main())
