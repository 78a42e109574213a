"""Measure the suite on this machine's GPU, estimate it on the same machine, write one JSON.

    python -m benchmarks.gpu --out gpu.json                  both; resumes where it was stopped
    python -m benchmarks.gpu --estimate gpu.json             add or renew the estimates, on any machine

Both need torch and numpy alone; NVML's binding adds the driver's view. About eight seconds for each workload,
most of them for a fresh process. What was measured is saved after each; the same command goes on from there,
and tries again what ended in an error.
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

from benchmarks.gpu import plain_records
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
    parser.add_argument("--only", default="", help="names, separated by ';' (some have commas)")
    parser.add_argument("--list", action="store_true", help="print the workloads' names")
    asked = parser.parse_args()
    names = asked.only.split(";") if asked.only else list(SUITE)
    unknown = [name for name in names if name not in SUITE]
    if unknown:
        parser.error(f"--only {unknown[0]!r}: no such workload; --list prints the names")
    if asked.list:
        print("\n".join(names))
        return 0
    try:
        if asked.estimate is not None:
            _estimate(_document(asked.estimate), asked.estimate)
            return 0
        return _measure(names, asked.out)
    except _Unreadable as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130


class _Unreadable(Exception):
    """A file that is not one of the suite's, or a device that says nothing."""


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
        unknown = [name for name in document["rows"] if name not in SUITE]
        document["machine"]["capability"]
    except OSError as error:
        raise _Unreadable(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise _Unreadable(f"{path} is not a file of this suite: {error!r}") from error
    if unknown:
        raise _Unreadable(f"{path} has a workload that this suite does not: {unknown[0]!r}")
    return dict(document)


def _measure(names: list[str], out: Path) -> int:
    import torch

    if not torch.cuda.is_available():
        print("benchmarks.gpu: no CUDA device here; nothing was measured", file=sys.stderr)
        return MISSING
    document = _document(out) if out.exists() else {"machine": _measured(), "rows": {}}
    if "error" in document["machine"]:
        raise _Unreadable(f"the machine cannot be described: {document['machine']['error']}")
    for number, name in enumerate(names, start=1):
        if "error" in document["rows"].get(name, {"error": "not run"}):
            document["rows"][name] = _measured(name)
            _save(document, out)
        print(f"{number}/{len(names)} {name}", file=sys.stderr, flush=True)
    _estimate(document, out)
    return 0


def _measured(name: str = "") -> dict[str, Any]:
    """Return what a fresh process says of a workload, or of the machine; this one never opens the device."""
    conf = SUITE[name].alloc_conf if name else ""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"):
        environment.pop(variable, None)  # the caller's own settings are none of the suite's
    if conf:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = conf
    command = [sys.executable, "-m", "benchmarks.gpu.measured", *filter(None, [name])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment, check=False
        )
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return {"name": name, "error": f"no end within {_TIMEOUT_S} s"}
    except (IndexError, ValueError):
        said = done.stderr.strip().splitlines()
        return {"name": name, "error": said[-1] if said else f"exit code {done.returncode}"}


def _estimate(document: dict[str, Any], out: Path) -> None:
    """Add what memgauge says of each measured workload, and whether the replay of its history is exact."""
    sys.path[:0] = [str(ROOT / "src")]
    plain_records.install()
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
        threads_per_multiprocessor=machine.get("threads_per_multiprocessor"),
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
        off = row["replay"][0] - row["reserved"]  # torch's own statistics: the history must be whole, too
        exact = "exact" if off == 0 else f"{off:+d} B"
        print(
            f"{name:44} {row['allocated'] >> 20:>6} MiB {allocated:>+7.2f}% {row['reserved'] >> 20:>6} MiB "
            f"{reserved:>+7.2f}%  {exact}"
        )


if __name__ == "__main__":
    sys.exit(main())
