"""Resident memory of a CPU run: what the process holds before, and how it grows.

    resident = imports (measured here) + libraries' first use + malloc under torch's requests

The middle term is what torch and its libraries load or set up at the first
optimizer, matrix product or convolution. The last is replayed by a model of the
C library, whose heap keeps what is freed below its top; how much of that is
used again depends on small objects that no trace sees, so the result is a range.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from memgauge.allocators import glibc
from memgauge.records import Range, Trace
from memgauge.targets import TargetOptions
from memgauge.units import MIB
from memgauge.workload import Workload

# What the first use of a library adds to resident memory, outside torch's allocator. Measured on
# x86-64 Linux, torch 2.13.0+cpu, November 2026: benchmarks/host_first_use.py prints them again.
FIRST_USE_BYTES: Mapping[str, int] = {
    "optimizer": 72 * MIB,  # torch.optim imports torch._dynamo
    "matmul": 22 * MIB,  # MKL's packing buffers
    "convolution": 20 * MIB,  # oneDNN's primitives and generated kernels
}
# Each convolution of another shape is a program that oneDNN writes when it first runs: forward, and as
# much again for backward. Measured as above, with two threads; with one, pointwise ones take none.
CONVOLUTION_PROGRAM_BYTES = 128 * 2**10
# Share of blocks that a small object of the program keeps from merging: low, expected, high. No trace
# sees these objects (graph nodes, tensor heads, what the interpreter keeps); 24 networks of 0.5 to 3 GiB
# on the machine above grew as if they pinned none to one in five. Which blocks: several draws.
PINNED_SHARES = (0.0, 1 / 8, 1 / 5)
DRAWS = 3
# How far the first uses were seen to vary from one run to the next.
FIRST_USE_SLACK_BYTES = 24 * MIB


class Baseline(Protocol):
    """What a process holds before the run, from wherever it is known."""

    reason: str  # why it is unknown
    has_dynamo: bool  # whether its imports loaded torch._dynamo

    def baseline_bytes(self) -> int | None:
        """Return resident bytes after all imports; None if unknown."""


class Host:
    """Measures the import baseline in a fresh process while the trace is made."""

    def __init__(
        self,
        workload: Workload | str,
        options: TargetOptions | None,
        sets: Mapping[str, str] | None,
        threads: int | None,
    ) -> None:
        self.reason = ""
        self.has_dynamo = False
        self._bytes: int | None = None
        self._thread = threading.Thread(target=self._measure, args=(workload, options, sets, threads))
        self._thread.start()

    def _measure(self, workload: Workload | str, options: object, sets: object, threads: int | None) -> None:
        import msgspec

        from memgauge.measure import make_job, run_child

        try:
            job = make_job(workload, options, sets, threads=threads)  # type: ignore[arg-type]
            result, ended = run_child(msgspec.structs.replace(job, kind="baseline"))
        except Exception as error:  # the trace will say more of the same
            self.reason = f"the import baseline could not be measured: {error}"
            return
        if result.resident is None:
            self.reason = f"the import baseline could not be measured: {ended}"
        else:
            self._bytes = int(result.resident["baseline_bytes"])
            self.has_dynamo = bool(result.resident["has_dynamo"])

    def baseline_bytes(self) -> int | None:
        """Return resident bytes after all imports; None if it could not be measured (see `reason`)."""
        self._thread.join()
        return self._bytes


def host_memory(trace: Trace, baseline_bytes: int, has_dynamo: bool = False) -> Range:
    """Return the range of peak resident memory for a CPU run with this trace.

    Args:
        trace: What the run requests and gives back.
        baseline_bytes: Resident once everything is imported.
        has_dynamo: Whether those imports loaded torch._dynamo already, as some libraries do.

    Low: the heap merges and uses again all that is freed. High: a small object stays behind
    every fifth block and keeps its hole from merging. Expected: behind every eighth.
    Real runs lie between the two: `benchmarks/accuracy_cpu.py large` shows how they do.
    """
    fixed = baseline_bytes + first_use_bytes(trace, has_dynamo)
    none, some, many = (_heap_peaks(trace, share) for share in PINNED_SHARES)
    low = min(none + some + many)
    expected, high = (max(sum(peaks) // len(peaks), low) for peaks in (some, many))
    slack = FIRST_USE_SLACK_BYTES + low // 50
    return Range(
        max(fixed + low - slack, baseline_bytes),
        fixed + expected,
        fixed + max(expected, high) + slack,
    )


def _heap_peaks(trace: Trace, pinned_share: float) -> list[int]:
    """Return the heap's peak for each draw of the blocks that are pinned."""
    draws = range(DRAWS if pinned_share else 1)
    return [
        max(glibc.replay(trace.events, pinned_share=pinned_share, seed=seed), default=0) for seed in draws
    ]


def first_use_bytes(trace: Trace, has_dynamo: bool = False) -> int:
    """Return what libraries take at their first use, by what the trace used."""
    operators = {event.operator for event in trace.events}
    total = 0
    if "optimizer" in trace.uses and not has_dynamo:
        total += FIRST_USE_BYTES["optimizer"]
    if operators & {"aten.addmm", "aten.mm", "aten.bmm", "aten.baddbmm"}:
        total += FIRST_USE_BYTES["matmul"]
    if "aten.convolution" in operators:
        total += FIRST_USE_BYTES["convolution"] + CONVOLUTION_PROGRAM_BYTES * _convolution_programs(trace)
    return total


def _convolution_programs(trace: Trace) -> int:
    """Return how many different convolutions there are, forward and backward counted apart."""
    shapes = {module.path: (module.parameter_count, module.output_shape) for module in trace.modules}
    return len(
        {
            (event.operator, shapes.get(event.layer))
            for event in trace.events
            if event.operator in ("aten.convolution", "aten.convolution_backward")
        }
    )


def memory_total_bytes() -> int | None:
    """Return the memory of this machine, or of the cgroup if that is less; None if unknown."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):
            continue
    return total
