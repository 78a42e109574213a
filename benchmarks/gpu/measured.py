"""Really run one workload of the suite on the CUDA device that is here; one JSON document on stdout.

    python -m benchmarks.gpu.measured "residual cudnn.benchmark"

Started by `python -m benchmarks.gpu` in a fresh process for each workload, with its allocator settings in
PYTORCH_CUDA_ALLOC_CONF; without a name it describes the machine. Needs torch; NVML's binding adds the
driver's view: of this process, and of the device before it had a context.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch

from benchmarks.gpu.workloads import parts

STEPS = 3
HISTORY = 400_000


def measure(name: str) -> dict[str, Any]:
    """Return peaks, the allocator's history and the driver's view of three steps."""
    device = torch.device("cuda", torch.cuda.current_device())
    before = device_used_bytes()
    torch.cuda.synchronize()  # makes the context, and leaves the allocator empty: its history is whole
    begin = time.perf_counter()
    torch.cuda.memory._record_memory_history(max_entries=HISTORY, context=None)
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
    statistics = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info(device)
    return {
        "name": name,
        "seconds": round(time.perf_counter() - begin, 3),
        "requested": statistics["requested_bytes.all.peak"],
        "allocated": statistics["allocated_bytes.all.peak"],
        "reserved": statistics["reserved_bytes.all.peak"],
        "retries": statistics["num_alloc_retries"],
        "reserved_now": torch.cuda.memory_reserved(),
        "device_used": total - free,
        "device_used_before": before,
        "process": process_bytes(),
        "history": compact(snapshot["device_traces"][device.index or 0]),
    }


def compact(trace: list[dict[str, Any]]) -> list[list[Any]]:
    """Return the allocator's history as [action, address, size] rows, addresses numbered as they appear.

    A fourth number is the stream, numbered likewise; the default one, whose identity is 0, has none.
    """
    numbers: dict[int, int] = {}
    streams: dict[int, int] = {0: 0}
    actions = {"alloc": "a", "free_completed": "f", "segment_alloc": "s", "segment_free": "g", "segment_map": "m",
               "segment_unmap": "u"}  # fmt: skip
    rows: list[list[Any]] = []
    for entry in trace:
        if entry["action"] in actions:
            address = numbers.setdefault(entry["addr"], len(numbers))
            stream = streams.setdefault(entry.get("stream", 0), len(streams))
            rows.append([actions[entry["action"]], address, entry["size"], *([stream] if stream else [])])
    return rows


def machine() -> dict[str, Any]:
    """Return the card and the versions that the estimates need."""
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


def device_used_bytes() -> int | None:
    """Return what NVML says that all processes take on the device, None where it cannot."""
    try:
        import pynvml

        pynvml.nvmlInit()
        identity = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{identity.removeprefix('GPU-')}")
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    except Exception:  # no binding, no permission, a MIG slice
        return None


def process_bytes() -> int | None:
    """Return what NVML says that this process takes, None where it cannot."""
    try:
        import pynvml

        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid == os.getpid() and process.usedGpuMemory:
                    return int(process.usedGpuMemory)
    except Exception:  # no binding, another pid namespace, a MIG slice
        return None
    return None


if __name__ == "__main__":
    name = "".join(sys.argv[1:2])
    try:
        answer = measure(name) if name else machine()
    except Exception as error:  # out of memory or no such kernel: a result like any other
        said = next(iter(str(error).splitlines()), "")
        answer = {"name": name, "error": f"{type(error).__name__}: {said[:300]}"}
    print(json.dumps(answer))
