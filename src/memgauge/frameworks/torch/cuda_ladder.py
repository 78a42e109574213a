"""Measure what a process takes on the CUDA device that is here, step by step. Runs in a fresh process.

    python -m memgauge.frameworks.torch.cuda_ladder     one JSON document on stdout

Outside torch's allocator: what is used on the device by NVML, minus what was before this process had a
context, minus what torch has reserved. Without NVML the driver is asked (`cudaMemGetInfo`), and the device
is taken to be idle before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from memgauge.calibration import Readings
from memgauge.frameworks.torch.cuda_run import identity, require_cuda
from memgauge.monitor import nvml
from memgauge.units import MIB

_WIDTH = 256


def readings() -> Readings:
    """Return the ladder, workspaces and constants of the device that is here.

    Raises:
        MissingError: There is no CUDA device.
    """
    used_before = nvml.used_bytes()  # of every device: which is ours, CUDA tells once it has begun
    require_cuda("run this where the GPU is; memgauge devices lists cards that need no measurement")
    index = torch.cuda.current_device()
    uuid = identity(index)
    before = nvml.of_device(used_before, uuid)
    device = torch.device("cuda", index)
    held: list[Any] = [torch.zeros(1, device=device)]

    def outside() -> int:
        torch.cuda.synchronize()
        now = None if before is None else nvml.of_device(nvml.used_bytes(), uuid)
        if before is not None and now is not None:
            used = now - before
        else:
            free, total = torch.cuda.mem_get_info(index)
            used = total - free
        return int(used - torch.cuda.memory_reserved(index))

    ladder = {"init": outside()}
    constants = _constants(index)
    matrix = torch.ones(_WIDTH, _WIDTH, device=device)
    result = torch.empty_like(matrix)
    workspace = _growth(index, lambda: torch.mm(matrix, matrix, out=result))
    ladder["product"] = outside()
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(), torch.nn.Linear(32, 10),
    ).to(device)  # fmt: skip
    loss = torch.nn.functional.cross_entropy(
        model(torch.randn(8, 3, 64, 64, device=device)), torch.zeros(8, dtype=torch.int64, device=device)
    )
    ladder["convolution"] = outside()
    product = (torch.ones(_WIDTH, _WIDTH, device=device, requires_grad=True) @ matrix).sum()
    kept = torch.cuda.memory_allocated(index)
    product.backward()  # type: ignore[no-untyped-call]
    gradient = _WIDTH * _WIDTH * 4
    backward_workspace = torch.cuda.memory_allocated(index) - kept - gradient
    loss.backward()
    ladder["backward"] = outside()
    torch.optim.Adam(model.parameters()).step()
    ladder["optimizer"] = outside()
    del held
    properties = torch.cuda.get_device_properties(index)
    return Readings(
        title=properties.name,
        total_bytes=torch.cuda.mem_get_info(index)[1],
        compute_capability=torch.cuda.get_device_capability(index) if torch.version.hip is None else None,
        architecture="" if torch.version.hip is None else properties.gcnArchName.partition(":")[0],
        multiprocessors=properties.multi_processor_count,
        threads_per_multiprocessor=getattr(properties, "max_threads_per_multi_processor", None),
        ladder=ladder,
        cublas_workspace=workspace,
        backward_workspace=max(backward_workspace, 0),
        constants=constants,
        torch=str(torch.__version__),
        cuda=str(torch.version.cuda or torch.version.hip),
        driver=nvml.driver_version(),
        used_before=before,
    )


def _growth(index: int, action: Callable[[], object]) -> int:
    """Return what stays allocated after an action that makes no tensor."""
    before = torch.cuda.memory_allocated(index)
    action()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated(index) - before


def _constants(index: int) -> dict[str, int]:
    """Return what the allocator reserves for one request of each kind, from an empty cache."""
    found = {}
    for name, size in (("small", 1024), ("shared", 2 * MIB), ("own", 30 * MIB + 1)):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(index)
        # Small requests may find room in the segment of what is held; enough of them make a new one.
        count = 2 * MIB // size + 1 if name == "small" else 1
        tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(count)]
        found[name] = torch.cuda.memory_reserved(index) - before
        del tensors
    torch.cuda.empty_cache()
    return found


if __name__ == "__main__":
    from memgauge.errors import MemgaugeError

    try:
        sys.stdout.write(msgspec.json.encode(readings()).decode())
    except MemgaugeError as error:
        sys.stderr.write(f"memgauge: {error}\n")
        sys.exit(error.exit_code)
