"""Measure the suite on this machine's GPU, estimate it on the same machine, write one JSON.

    python -m benchmarks.gpu --out gpu.json                  both; resumes where it was stopped
    python -m benchmarks.gpu --estimate gpu.json             add or renew the estimates, on any machine

Both need torch and numpy alone; NVML's binding adds the driver's view. What was measured is saved after each;
the same command goes on from there, and tries again what ended in an error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu import plain_records
from benchmarks.gpu.workloads import SUITE, parts

ROOT = Path(__file__).parents[2]
MISSING = 3
# For one workload: cuDNN's search tries many plans for each convolution, from a cold disk at first.
_TIMEOUT_S = 120
_OVER_S = 40  # beyond --minutes, for the workload that is under way then
_START_S = 120  # for a server to import torch from a cold disk


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
    parser.add_argument(
        "--minutes", type=float, default=9, help="begin no workload after so long (default 9)"
    )
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
            _estimate_all(_document(asked.estimate), asked.estimate)
            return 0
        return _measure(names, asked.out, asked.minutes)
    except _Unreadable as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130


class _Unreadable(Exception):
    """A file that is not one of the suite's or of this machine, or a device that says nothing."""


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


def _measure(names: list[str], out: Path, minutes: float) -> int:
    end = time.monotonic() + 60 * minutes
    if not out.absolute().parent.is_dir():
        raise _Unreadable(f"--out {out}: there is no folder {out.absolute().parent}")
    with _Servers(dict(os.environ)) as servers:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # this process estimates, and never opens the device
        # NVML stays open in this process: without a client the driver shuts the card down after each workload.
        _memgauge_is_importable()
        from memgauge.monitor import nvml

        nvml.used_bytes()
        machine = servers.measured("")
        if machine.get("gpu", "") is None:
            print("benchmarks.gpu: no CUDA device here; nothing was measured", file=sys.stderr)
            return MISSING
        if "error" in machine:
            raise _Unreadable(f"the machine cannot be described: {machine['error']}")
        document = _document(out) if out.exists() else {"machine": machine, "rows": {}}
        for fact in ("gpu", "torch"):
            if document["machine"].get(fact) != machine[fact]:
                there = document["machine"].get(fact)
                raise _Unreadable(f"{out} has {fact} {there}, here it is {machine[fact]}: name another --out")
        rows = document["rows"]
        waiting = [name for name in names if "error" in rows.get(name, {"error": "not run"})]
        waiting.sort(key=lambda name: SUITE[name].alloc_conf)  # one server after the other
        servers.until = end + _OVER_S
        for number, name in enumerate(waiting, start=1):
            if time.monotonic() > end:
                left = len(waiting) - number + 1
                print(f"{minutes:g} minutes are over, {left} left; the same command goes on", file=sys.stderr)
                break
            rows[name] = servers.measured(name)
            _estimate_row(name, document)
            _save(document, out)
            print(f"{number}/{len(waiting)} {name}", file=sys.stderr, flush=True)
    _show(document)
    return 0


class _Servers:
    """Processes that measure, one for each allocator setting; what does not answer in time is ended."""

    def __init__(self, environment: dict[str, str]) -> None:
        own = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING",
               "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"}  # fmt: skip
        self._environment = {name: value for name, value in environment.items() if name not in own}
        path = [str(ROOT), str(ROOT / "src"), *filter(None, [environment.get("PYTHONPATH")])]
        self._environment["PYTHONPATH"] = os.pathsep.join(path)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the rest)
        self._process: subprocess.Popen[bytes] | None = None
        self._conf = ""
        self.until = math.inf  # no answer is waited for beyond this, by the monotonic clock

    def __enter__(self) -> _Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._said.close()

    def measured(self, name: str) -> dict[str, Any]:
        """Return what a fresh process says of a workload, or ("") of the machine."""
        conf = SUITE[name].alloc_conf if name else ""
        limit: float = _TIMEOUT_S
        if self._process is None or conf != self._conf:
            self._end()
            self._process, self._conf = self._start(conf), conf
            limit += _START_S
        limit = min(limit, max(1, self.until - time.monotonic()))
        process, said_before = self._process, os.fstat(self._said.fileno()).st_size
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it died; what it said tells of what
            process.stdin.write(f"{name}\n".encode())
            process.stdin.flush()
        row: dict[str, Any] = {"name": name, "error": f"no end within {limit:.3g} s"}
        if select.select([process.stdout], [], [], limit)[0]:
            row["error"] = "the process that starts the others died"
            with contextlib.suppress(ValueError):
                row = json.loads(process.stdout.readline())
        if "error" in row and "traceback" not in row:
            self._end()
            self._said.seek(said_before)
            row["traceback"] = self._said.read().decode(errors="replace").splitlines()[-12:]
        return row

    def _start(self, conf: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.measured", "--serve"],
            env={**self._environment, **({"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)  # with what it has forked
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def _estimate_all(document: dict[str, Any], out: Path) -> None:
    for name in document["rows"]:
        _estimate_row(name, document)
        _save(document, out)
    _show(document)


def _estimate_row(name: str, document: dict[str, Any]) -> None:
    """Add what memgauge says of a measured workload, and whether the replay of its history is exact."""
    row = document["rows"].get(name, {"error": "not run"})
    if "error" in row:
        return
    _memgauge_is_importable()
    plain_records.install()
    from benchmarks.gpu.replayed import replayed

    row["estimate"] = estimated(name, document["machine"])
    try:
        row["replay"] = replayed(row["history"], SUITE[name].alloc_conf)
    except Exception as error:  # a miss is a result
        row["replay"] = {"error": f"{type(error).__name__}: {error}"}


def _memgauge_is_importable() -> None:
    if str(ROOT / "src") not in sys.path:
        sys.path.insert(0, str(ROOT / "src"))


def estimated(name: str, machine: dict[str, Any]) -> dict[str, Any]:
    """Return memgauge's estimate of a workload on a machine."""
    from memgauge.allocators.settings import parse_cuda_settings
    from memgauge.calibration import nearest
    from memgauge.device_memory import device_memory
    from memgauge.devices import Device
    from memgauge.devices.stack import Stack, parse_version
    from memgauge.estimate import traced
    from memgauge.workload import Workload

    size, capability = machine["total_bytes"], tuple(machine["capability"])
    known = nearest(machine["gpu"], capability, size)
    place = Device(
        name="cuda",
        title=machine["gpu"],
        kind="cuda",
        capacity_bytes=size,
        compute_capability=capability,
        multiprocessors=machine["multiprocessors"],
        threads_per_multiprocessor=machine.get("threads_per_multiprocessor"),
        rates=None if known is None else known.rates,
    )
    begin = time.perf_counter()
    try:
        stack = Stack(
            torch=parse_version(machine["torch"], "torch"), cuda=parse_version(machine["cuda"], "CUDA")
        )
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
    head = ("workload", "allocated", "error", "reserved", "error", "device", "error", "in range", "replay")
    form = "{:44} {:>10} {:>8} {:>10} {:>8} {:>10} {:>8} {:>8}  {}"
    print(form.format(*head))
    for name, row in document["rows"].items():
        said = row.get("estimate", {})
        if "error" in row or "error" in said:
            print(f"{name:44} {str(row.get('error') or said['error'])[:100]}")
            continue
        device = device_bytes(row)
        low, expected, high = said["device"]
        print(
            form.format(
                name,
                *_beside(said["allocated"], row["allocated"]),
                *_beside(said["reserved"][1], row["reserved"]),
                *_beside(expected, device),
                "yes" if low <= device <= high else "no",
                _verdict(row["replay"], row["reserved"]),
            )
        )


def _verdict(replay: dict[str, Any], reserved: int) -> str:
    if "error" in replay:
        return str(replay["error"])[:60]
    off = replay["peak"] - reserved  # torch's own statistics: the history must be whole, too
    if off or replay["differing"]:
        return f"{off:+d} B, {replay['differing']} moments differ"
    return "exact"


def _beside(said: int, measured: int) -> tuple[str, str]:
    return f"{measured >> 20} MiB", f"{100 * (said / measured - 1):+.2f}%"


def device_bytes(row: dict[str, Any]) -> int:
    """Return what a workload's process took on the device at most: by NVML, or else by the driver.

    They are asked at the end; what torch has given back since its peak is added.
    """
    given_back = row["reserved"] - row.get("reserved_now", row["reserved"])
    if row.get("process"):
        return int(row["process"] + given_back)
    if row.get("used") and row.get("used_before") is not None:
        return int(row["used"] - row["used_before"] + given_back)
    return int(row["cuda_used"] + given_back)


if __name__ == "__main__":
    sys.exit(main())
