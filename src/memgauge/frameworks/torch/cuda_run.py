"""Measure on CUDA: really run the workload and read the caching allocator's own history.

The allocator records each allocation and release with address, size and time;
the marks of the hooks have times too, and `observed` makes a trace of both.
Statistics of the allocator give the exact peaks, NVML or the driver what the
process takes beyond it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from memgauge.errors import MissingError
from memgauge.frameworks.torch import protocol
from memgauge.frameworks.torch.observed import Found, Reading, Runner
from memgauge.records import Trace
from memgauge.workload import Workload

# Entries of the allocator's history that are kept; older ones are lost beyond it.
HISTORY_ENTRIES = 10_000_000


def cuda_run(workload: Workload, *, steps: int) -> tuple[Trace, dict[str, Any]]:
    """Run the workload on the CUDA device that is here; returns its trace and exact peaks.

    Raises:
        MissingError: There is no CUDA device.
        Exception: Whatever the user's own functions raise, with `partial_trace` attached.
    """
    require_cuda()
    mark_times_us: list[int] = []
    runner = Runner(workload, lambda _: mark_times_us.append(time.time_ns() // 1000))
    device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.init()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(max_entries=HISTORY_ENTRIES, context=None)
    failure: BaseException | None = None
    try:
        with runner.scopes:
            protocol.run(workload, runner, device, steps)
        torch.cuda.synchronize()
    except (Exception, KeyboardInterrupt) as error:
        failure = error
    history = torch.cuda.memory._snapshot()["device_traces"][device.index]
    torch.cuda.memory._record_memory_history(enabled=None)
    trace = Reading(runner).read(in_order(history, mark_times_us))
    if failure is not None:
        failure.partial_trace = trace  # type: ignore[attr-defined]
        raise failure
    return trace, peaks(torch.cuda.memory_stats()) | device_peak(device.index)


def require_cuda(instead: str = "measure with --device cpu, or estimate instead") -> None:
    """Check that there is a CUDA device; the error says what to do `instead`.

    Raises:
        MissingError: There is none; the message says why.
    """
    if not torch.cuda.is_available():
        reason = "this torch has no CUDA" if torch.version.cuda is None else "no usable GPU was found"
        raise MissingError(f"no CUDA device here ({reason}); {instead}")


def in_order(history: Sequence[Mapping[str, Any]], mark_times_us: Sequence[int]) -> Iterator[int | Found]:
    """Yield marks (their numbers) and allocations of the allocator's history in the order of time.

    Args:
        history: Entries of `torch.cuda.memory._snapshot()["device_traces"][i]`: action,
            addr, size in bytes, time_us. What is given back counts from `free_completed`,
            when the block may be used again.
        mark_times_us: Time of each mark, microseconds since the epoch.
    """
    next_mark = 0
    for index, entry in enumerate(history):
        while next_mark < len(mark_times_us) and mark_times_us[next_mark] <= entry["time_us"]:
            yield next_mark
            next_mark += 1
        if entry["action"] == "alloc":
            yield Found(entry["addr"], entry["size"], "", index, None)
        elif entry["action"] == "free_completed":
            yield Found(entry["addr"], -entry["size"], "", None, None)
    yield from range(next_mark, len(mark_times_us))


def peaks(statistics: Mapping[str, int]) -> dict[str, Any]:
    """Return the exact peaks from `torch.cuda.memory_stats()`, bytes."""
    return {
        f"{kind}_bytes": statistics.get(f"{kind}_bytes.all.peak")
        for kind in ("requested", "allocated", "reserved")
    }


def device_peak(index: int) -> dict[str, Any]:
    """Return what the process takes on the device now, by NVML or else by the driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory:
                return {
                    "device_bytes": int(process.usedGpuMemory),
                    "device_instrument": "NVML, this process, after the last step",
                }
    except Exception:  # no binding, another pid namespace, a MIG slice: the driver still knows
        pass
    free, total = torch.cuda.mem_get_info(index)
    return {
        "device_bytes": total - free,
        "device_instrument": "cudaMemGetInfo after the last step: all processes on the device",
    }
