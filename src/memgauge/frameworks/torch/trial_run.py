"""One trial's run of a workload, with its phases marked for whoever records it."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch

from memgauge.allocators import cpu
from memgauge.explain.peak import account
from memgauge.frameworks.torch import protocol
from memgauge.frameworks.torch.bare import resident_bytes
from memgauge.frameworks.torch.cuda_run import peaks, require_cuda
from memgauge.frameworks.torch.profiled import profiled_run
from memgauge.monitor.marks import mark, phase
from memgauge.workload import Workload

__all__ = ["allocated_peaks", "device_peaks", "resident_bytes", "run_trial", "set_threads"]


def set_threads(threads: int | None) -> int:
    """Set torch's CPU threads, if a number is given; returns how many there are."""
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def run_trial(workload: Workload, *, steps: int, device: str) -> tuple[float, list[float]]:
    """Run the workload; returns the seconds of all steps together, and of each.

    Raises:
        MissingError: The device is not here.
        Exception: Whatever the user's own functions raise.
    """
    if device == "cuda":
        require_cuda()
        torch.cuda.reset_peak_memory_stats()
    with contextlib.ExitStack() as stack:
        observer = _Phases(stack)
        protocol.run(workload, observer, torch.device(device), steps)
    return sum(observer.step_seconds), observer.step_seconds


class _Phases:
    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.step_seconds: list[float] = []
        self._begin = 0.0
        self._build = phase("build")
        self._build.__enter__()

    def built(self, objects: Any) -> None:
        self._build.__exit__(None, None, None)
        self._stack.enter_context(phase("train"))

    def step_begins(self, number: int) -> None:
        mark("step", number)
        self._begin = time.perf_counter()

    def batch_made(self) -> None:
        pass

    def step_ended(self, number: int) -> None:
        self.step_seconds.append(time.perf_counter() - self._begin)


def allocated_peaks(workload: Workload, *, steps: int) -> dict[str, int]:
    """Return the exact peaks of allocated and requested bytes of a CPU run, by torch's profiler."""
    trace = profiled_run(workload, steps=steps)
    peak = account(trace, cpu.replay(trace.events))[0]
    found = {"peak_allocated_bytes": peak.allocated_bytes, "peak_requested_bytes": peak.requested_bytes}
    return {name: value for name, value in found.items() if value is not None}


def device_peaks() -> dict[str, int]:
    """Return the caching allocator's exact peaks, if this process uses CUDA."""
    if not torch.cuda.is_initialized():
        return {}
    found = peaks(torch.cuda.memory_stats())
    return {f"peak_{name}": value for name, value in found.items() if value is not None}
