"""Really run workloads of the suite on the CUDA device that is here; one line of JSON on stdout for each.

    python -m benchmarks.gpu.measured "residual cudnn.benchmark"     one
    python -m benchmarks.gpu.measured --serve                        each that a line of stdin names
    python -m benchmarks.gpu.measured ""                             the machine itself

Each runs in a process of its own, so that its peaks and its allocator are its own. A server imports torch
once and forks for each, before CUDA has begun; the allocator's settings are its environment's.
Needs torch; NVML's binding adds the driver's view: of this process, and of the device before and after.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.gpu.workloads import parts
from memgauge.monitor import nvml

STEPS = 3
HISTORY = 400_000


def measure(name: str) -> dict[str, Any]:
    """Return peaks, the allocator's history and the driver's view of three steps."""
    used_before = settled()  # of every device: which is ours, CUDA tells once it has begun
    device = torch.device("cuda", torch.cuda.current_device())
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    torch.cuda.synchronize()  # makes the context, and leaves the allocator empty: its history is whole
    begin = time.perf_counter()
    torch.cuda.memory._record_memory_history(max_entries=HISTORY, context=None, stacks="python")
    build, batch, step = parts(name)
    with torch.device(device):
        made = build()
    objects = made if isinstance(made, tuple) else (made,)
    for _ in range(STEPS):
        with torch.device(device):
            data = batch()
        step(*objects, data)
        del data
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    statistics = torch.cuda.memory_stats(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "name": name,
        "seconds": round(time.perf_counter() - begin, 3),
        "requested": statistics["requested_bytes.all.peak"],
        "allocated": statistics["allocated_bytes.all.peak"],
        "reserved": statistics["reserved_bytes.all.peak"],
        "reserved_now": statistics["reserved_bytes.all.current"],
        "retries": statistics["num_alloc_retries"],
        "process": nvml.process_bytes(uuid),  # by NVML
        "used_before": nvml.of_device(used_before, uuid),  # on the device, by NVML
        "used": nvml.of_device(nvml.used_bytes(), uuid),
        "cuda_used": total - free,  # cudaMemGetInfo: without what the driver keeps for itself
        "history": compact(snapshot["device_traces"][device.index], snapshot["segments"]),
    }


def settled(every_s: float = 0.05, at_most_s: float = 2) -> dict[str, int]:
    """Return the bytes in use on every device, once they stay: what ended just now may still be giving its own back."""
    end = time.monotonic() + at_most_s
    used = nvml.used_bytes()
    while used and time.monotonic() < end:
        time.sleep(every_s)
        before, used = used, nvml.used_bytes()
        if used == before:
            break
    return used


def compact(trace: list[dict[str, Any]], segments: Sequence[dict[str, Any]] = ()) -> list[list[Any]]:
    """Return the allocator's history as [action, address, size] rows, addresses from the lowest one on.

    A fourth number is the stream, numbered as they appear; the default one, whose identity is 0, has none. A fifth
    is the pool of a CUDA graph: as the entry says, or before torch did (`pool_id`), by the `segments` that such
    pools have at the end, of what came after the segment.
    """
    actions = {"alloc": "a", "free_completed": "f", "segment_alloc": "s", "segment_free": "g", "segment_map": "m",
               "segment_unmap": "u"}  # fmt: skip
    entries = [entry for entry in trace if entry["action"] in actions]
    lowest = min((entry["addr"] for entry in entries), default=0)
    streams: dict[int, int] = {0: 0}
    pools: dict[tuple[int, ...], int] = {(0, 0): 0}
    pool_of = _pools_of(entries, segments)
    rows: list[list[Any]] = []
    for index, entry in enumerate(entries):
        stream = streams.setdefault(entry.get("stream", 0), len(streams))
        row = [actions[entry["action"]], entry["addr"] - lowest, entry["size"]]
        pool = pools.setdefault(pool_of(index, entry), len(pools))
        rows.append([*row, stream, pool] if pool else [*row, stream] if stream else row)
    return rows


def _pools_of(
    entries: list[dict[str, Any]], segments: Sequence[dict[str, Any]]
) -> Callable[[int, dict[str, Any]], tuple[int, ...]]:
    """Return what tells the pool of an entry, by its index and itself; (0, 0) is no graph's."""
    default = (0, 0)
    begun = {e["addr"]: index for index, e in enumerate(entries) if e["action"] == "segment_alloc"}
    spans = [
        (s["address"], s["address"] + s["total_size"], begun.get(s["address"], 0), pool)
        for s in segments
        if (pool := tuple(s.get("segment_pool_id", default))) != default
    ]

    def pool_of(index: int, entry: dict[str, Any]) -> tuple[int, ...]:
        if "pool_id" in entry:
            return tuple(entry["pool_id"])
        address = entry["addr"]
        return next(
            (p for begin, end, since, p in spans if begin <= address < end and since <= index), default
        )

    return pool_of


def machine() -> dict[str, Any]:
    """Return the card and the versions that the estimates need; without a card there is none to name."""
    if not torch.cuda.is_available():
        return {"gpu": None}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": properties.name,
        "total_bytes": torch.cuda.mem_get_info()[1],
        "capability": list(torch.cuda.get_device_capability()),
        "multiprocessors": properties.multi_processor_count,
        "threads_per_multiprocessor": getattr(properties, "max_threads_per_multi_processor", None),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def answer(name: str) -> dict[str, Any]:
    """Return what there is to say of a workload, or of the machine (""); a failure is an answer, too."""
    try:
        return measure(name) if name else machine()
    except Exception as error:  # out of memory, no such kernel: a result like any other
        said = next(iter(str(error).splitlines()), "")
        return {
            "name": name,
            "error": f"{type(error).__name__}: {said[:300]}",
            "traceback": "".join(traceback.format_exception(error)).splitlines()[-12:],
        }


def forked(name: str) -> str:
    """Return the answer's line from a process of its own."""
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(sink, 1)
            said_here = None if torch.cuda._is_in_bad_fork() else answer(name)
            if said_here is None or _is_of_the_fork(said_here):
                os.execv(sys.executable, [sys.executable, "-m", "benchmarks.gpu.measured", name])
            with open(1, "w", closefd=False) as line:
                print(json.dumps(said_here), file=line)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(sink)
    with open(source) as lines:
        said = lines.read().splitlines()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    died = {
        "name": name,
        "error": f"the process died: {f'signal {-code}' if code < 0 else f'exit code {code}'}",
    }
    return said[-1] if said and not code else json.dumps(died)


def _is_of_the_fork(answered: dict[str, Any]) -> bool:
    """Return whether a process from the start may do better: something began CUDA before the fork, unknown to torch.

    The driver then answers with cudaErrorInitializationError, or torch sees no device at all.
    """
    return answered.get("gpu", "") is None or "initialization error" in answered.get("error", "")


def serve() -> None:
    """Answer for each name that stdin gives, a line for a line."""
    with contextlib.suppress(Exception):
        importlib.import_module("torch._dynamo")  # every optimizer asks for it: once, not in each process
    for line in sys.stdin:
        print(forked(line.rstrip("\n")), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        print(json.dumps(answer("".join(sys.argv[1:2]))))
