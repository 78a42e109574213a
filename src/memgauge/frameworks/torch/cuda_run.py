"""Measure on CUDA: really run the workload and read the caching allocator's own history.

The allocator records each allocation and release with address and size; each mark
of the hooks knows how many of them there were before it, by the allocator's own
counters, and `observed` makes a trace of both.
Statistics of the allocator give the exact peaks, NVML or the driver what the
process takes beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from memgauge.errors import MissingError
from memgauge.frameworks.torch import protocol
from memgauge.frameworks.torch.observed import Found, Reading, Runner
from memgauge.monitor import nvml
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
    device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(max_entries=HISTORY_ENTRIES, context=None, stacks="python")
    begin, calls_before = _calls(device), list[int]()
    runner = Runner(workload, lambda _: calls_before.append(_calls(device) - begin))
    failure: BaseException | None = None
    try:
        with runner.scopes:
            protocol.run(workload, runner, device, steps)
    except (Exception, KeyboardInterrupt) as error:
        failure = error
    history = torch.cuda.memory._snapshot()["device_traces"][device.index]
    torch.cuda.memory._record_memory_history(enabled=None)
    trace = Reading(runner).read(in_order(history, calls_before))
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


def _calls(device: torch.device) -> int:
    """Return how many allocations and releases the allocator was asked for since the process began."""
    counted = torch.cuda.memory_stats_as_nested_dict(device)["allocation"]["all"]
    return int(counted["allocated"] + counted["freed"])


def in_order(history: Sequence[Mapping[str, Any]], calls_before: Sequence[int]) -> Iterator[int | Found]:
    """Yield marks (their numbers) and allocations of the allocator's history in the order of time.

    The entries have times as well, but of a clock that torch fits to the system's afterwards.

    Args:
        history: Entries of `torch.cuda.memory._snapshot()["device_traces"][i]`: action,
            addr, size in bytes as requested. What is given back counts from `free_completed`,
            when the block may be used again.
        calls_before: How many allocations and releases (`alloc`, `free_requested`) stand before each mark.
    """
    next_mark = calls = 0
    for index, entry in enumerate(history):
        action = entry["action"]
        if action in ("alloc", "free_requested"):
            while next_mark < len(calls_before) and calls_before[next_mark] <= calls:
                yield next_mark
                next_mark += 1
            calls += 1
        if action == "alloc":
            yield Found(entry["addr"], entry["size"], "", index, None)
        elif action == "free_completed":
            yield Found(entry["addr"], -entry["size"], "", None, None)
    yield from range(next_mark, len(calls_before))


def peaks(statistics: Mapping[str, int]) -> dict[str, Any]:
    """Return the exact peaks from `torch.cuda.memory_stats()`, bytes."""
    return {
        f"{kind}_bytes": statistics.get(f"{kind}_bytes.all.peak")
        for kind in ("requested", "allocated", "reserved")
    }


def device_peak(index: int) -> dict[str, Any]:
    """Return what the process took on the device at most, by NVML or else by the driver.

    They are asked now; what torch has given back since its peak is added.
    """
    reserved = torch.cuda.memory_stats_as_nested_dict(index)["reserved_bytes"]["all"]
    given_back = int(reserved["peak"] - reserved["current"])
    instrument = "NVML, this process, after the last step"
    used = nvml.process_bytes(identity(index))
    if used is None:
        free, total = torch.cuda.mem_get_info(index)
        used = total - free
        instrument = "cudaMemGetInfo after the last step: all processes on the device"
    if given_back:
        instrument += "; and what torch gave back since its peak"
    return {"device_bytes": used + given_back, "device_instrument": instrument}


def identity(index: int) -> str:
    """Return the UUID of torch's device, "" where this torch does not tell (before 2.5)."""
    return str(getattr(torch.cuda.get_device_properties(index), "uuid", ""))
