"""Where a trial runs: what its run file and its record say of the machine."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from pathlib import Path

from memgauge.study.records import Machine


@functools.cache
def this_machine(name: str | None = None) -> Machine:
    """Return the machine that we run on; `name` is what the user calls it, its host name by default."""
    return Machine(
        name=name or platform.node(),
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=_memory_bytes(),
        gpus=tuple(_gpus()),
        python=platform.python_version(),
        boot=_text("/proc/sys/kernel/random/boot_id"),
    )


def _processor() -> str:
    for line in _text("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    from memgauge.host import memory_total_bytes

    return memory_total_bytes()


def _gpus() -> list[str]:
    """Return the names of the GPUs; none without NVIDIA's binding or driver."""
    with contextlib.suppress(Exception):  # each error of NVML means the same: no GPU that we can name
        import pynvml

        pynvml.nvmlInit()
        return [
            str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)))
            for i in range(pynvml.nvmlDeviceGetCount())
        ]
    return []


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def available_bytes() -> int | None:
    """Return the memory that can be had without swapping (proc(5), MemAvailable)."""
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
