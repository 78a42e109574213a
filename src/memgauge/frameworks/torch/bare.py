"""Measure resident memory and time: really run the workload with nothing looking on.

No hooks and no profiler, since both take memory of their own; only a recording that
looks on is told of phases. The kernel keeps
the highest resident size (VmHWM); it is reset after everything is imported, so
that the peak is the run's own and exact, not sampled.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from memgauge.frameworks.torch import protocol
from memgauge.monitor.marks import phase
from memgauge.workload import Workload

_STATUS = Path("/proc/self/status")


class BareRun(msgspec.Struct, kw_only=True):
    """Resident memory of the process and the time of each step, as far as the run came."""

    baseline_bytes: int
    peak_bytes: int
    instrument: str
    step_ns: list[int] = []
    error: str | None = None


def resident_bytes(field: str = "VmRSS") -> int:
    """Return VmRSS or VmHWM of this process, or the nearest that the system has."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    if field == "VmHWM":
        # ru_maxrss: KiB on Linux, bytes on macOS (getrusage(2) of each).
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    import psutil

    return int(psutil.Process().memory_info().rss)


def reset_peak() -> bool:
    """Set VmHWM back to VmRSS; False where the system does not allow it (proc(5), clear_refs)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def bare_run(workload: Workload, *, steps: int, device: str, report: Callable[[BareRun], None]) -> None:
    """Run the workload; `report` is called at the start, after each step and at the end."""
    observer = _Watch(report)
    try:
        protocol.run(workload, observer, torch.device(device), steps)
    finally:
        observer.say()
        observer.end_phase()


class _Watch:
    def __init__(self, report: Callable[[BareRun], None]) -> None:
        exact = reset_peak()
        instrument = "VmHWM, reset after import" if exact else "highest resident size since the process began"
        self._report = report
        self._begin = 0
        resident = resident_bytes()
        self.run = BareRun(baseline_bytes=resident, peak_bytes=resident, instrument=instrument)
        self.say()
        self._phase: phase | None = None
        self._begin_phase("setup")

    def say(self) -> None:
        self.run.peak_bytes = max(self.run.peak_bytes, resident_bytes("VmHWM"))
        self._report(self.run)

    def _begin_phase(self, name: str, value: object = None) -> None:
        self._phase = phase(name, value)
        self._phase.__enter__()

    def end_phase(self) -> None:
        """Close the phase that is open; what it peaked at must have been read, since a boundary resets it."""
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
            self._phase = None

    def built(self, objects: Any) -> None:
        self.say()
        self.end_phase()

    def step_begins(self, number: int) -> None:
        self._begin_phase("step", number)
        self._begin = time.perf_counter_ns()

    def batch_made(self) -> None:
        pass

    def step_ended(self, number: int) -> None:
        self.run.step_ns.append(time.perf_counter_ns() - self._begin)
        self.say()
        self.end_phase()
