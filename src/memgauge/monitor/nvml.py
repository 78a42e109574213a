"""What NVML says of a device that is known by its UUID, for whoever runs on it.

CUDA numbers devices in an order of its own (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER) and NVML by the bus, so
that an index of one is none of the other; both know the UUID. No CUDA context is opened here, and nothing is
raised: without the binding, the driver or the right to ask there is no answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any


def used_bytes() -> dict[str, int]:
    """Return the bytes in use on every device and MIG slice by UUID, the driver's own reserve included.

    Differences of these say what a process takes. They do not go with `cudaMemGetInfo`, whose total leaves
    the driver's reserve out (nvml.h: `nvmlMemory_t.used` is the sum of reserved and allocated).
    """
    found = {}
    for nvml, handle, uuid in _devices():
        try:
            found[uuid] = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
        except nvml.NVMLError:
            continue
    return found


def of_device(figures: dict[str, int], uuid: str) -> int | None:
    """Return the figure of one device.

    Args:
        figures: By UUID, as `used_bytes` returns them.
        uuid: With NVML's prefix ("GPU-", "MIG-") or without it, as torch gives it; "" where torch does not
            tell: then the only device that there is.
    """
    if not uuid:
        return next(iter(figures.values())) if len(figures) == 1 else None
    return figures.get(_bare(uuid))


def process_bytes(uuid: str) -> int | None:
    """Return what this process takes on one device; None where the driver does not tell.

    In a container the driver may know the process by another number, then it does not.
    """
    for nvml, handle, found in _devices():
        if found != _bare(uuid):
            continue
        try:
            for process in running(nvml, handle, "Compute"):
                if int(process.pid) == os.getpid() and process.usedGpuMemory:
                    return int(process.usedGpuMemory)
        except nvml.NVMLError:
            return None
    return None


def driver_version() -> str:
    """Return the driver's version, "" where it does not tell."""
    nvml = _started()
    if nvml is None:
        return ""
    try:
        return _text(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError:
        return ""


def running(nvml: Any, handle: Any, kind: str) -> list[Any]:
    """Return the processes on a device, of `kind` "Compute" or "Graphics".

    The binding's call without a version is that of its own time; to an older driver it must name one.

    Raises:
        NVMLError: The driver refuses.
    """
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    try:
        return list(getattr(nvml, name)(handle))
    except getattr(nvml, "NVMLLibraryMismatchError", ()):
        return list(getattr(nvml, name + "_v2")(handle))


def _started() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _devices() -> Iterator[tuple[Any, Any, str]]:
    """Yield the binding, the handle and the bare UUID of every device, and of every MIG slice."""
    nvml = _started()
    if nvml is None:
        return
    for handle in _each(nvml, nvml.nvmlDeviceGetCount, nvml.nvmlDeviceGetHandleByIndex):
        yield nvml, handle, _uuid(nvml, handle)
        for part in _each(
            nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle
        ):
            yield nvml, part, _uuid(nvml, part)


def _each(nvml: Any, count: Any, get: Any, *parent: Any) -> Iterator[Any]:
    """Yield the handles that `get` gives; a place that is empty, or another user's, is left out."""
    try:
        places = range(count(*parent))
    except nvml.NVMLError:
        return
    for place in places:
        try:
            handle = get(*parent, place)
        except nvml.NVMLError:
            continue
        yield handle


def _uuid(nvml: Any, handle: Any) -> str:
    try:
        return _bare(_text(nvml.nvmlDeviceGetUUID(handle)))
    except nvml.NVMLError:
        return ""


def _bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
