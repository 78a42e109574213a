"""Host memory that a CUDA run pins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import memgauge
from memgauge import Workload
from memgauge.allocators.cuda_host import CudaHostAllocator
from memgauge.errors import WorkloadError
from memgauge.units import MIB


def pinned(batch: Callable[[], Any]) -> int | None:
    workload = Workload(
        build=lambda: nn.Linear(4, 4),
        batch=batch,
        step=lambda model, b: b[0].cuda(non_blocking=True),
        mode="infer",
    )
    return memgauge.estimate(workload, device="nvidia-a100-40gb").peak.pinned_bytes


def test_blocks_are_powers_of_two_and_kept() -> None:
    allocator = CudaHostAllocator()
    blocks = [allocator.allocate(size) for size in (1, 512, 513, 9 * MIB)]
    assert blocks == [1, 512, 1024, 16 * MIB]
    for block in blocks:
        allocator.free(block)
    held = allocator.reserved_bytes
    assert allocator.allocate(10 * MIB) == 16 * MIB
    assert allocator.reserved_bytes == held
    allocator.allocate(10 * MIB)
    assert allocator.reserved_bytes == held + 16 * MIB


def host(numbers: int) -> torch.Tensor:
    return torch.zeros(numbers, device="cpu")


def test_a_batch_is_pinned_once_however_many_steps_there_are() -> None:
    assert pinned(lambda: (host(9 * MIB // 4).pin_memory(),)) == 16 * MIB
    assert pinned(lambda: (host(9 * MIB // 4),)) is None


def test_what_is_pinned_already_is_not_copied() -> None:
    def batch() -> Any:
        tensor = torch.empty(9 * MIB // 4, device="cpu", pin_memory=True)
        assert tensor.is_pinned()
        assert tensor.pin_memory() is tensor
        return (tensor,)

    assert pinned(batch) == 16 * MIB


def test_the_batch_that_is_copied_is_still_pinned_when_the_next_is_made() -> None:
    kept: list[torch.Tensor] = []

    def batch() -> Any:
        kept.append(host(9 * MIB // 4).pin_memory())
        del kept[:-2]
        return (kept[-1],)

    assert pinned(batch) == 3 * 16 * MIB  # two are kept while the third is made


def test_a_data_loader_that_pins() -> None:
    data = TensorDataset(torch.zeros(64, 3, 65_536))  # 768 KiB each
    batches: Iterator[Any] = iter(())

    def batch() -> Any:
        nonlocal batches
        found = next(batches, None)
        if found is None:
            batches = iter(DataLoader(data, batch_size=4, pin_memory=True))
            found = next(batches)
        return found

    assert pinned(batch) in (4 * MIB, 8 * MIB)  # 3 MiB in blocks of 4; the one before may live still


def test_device_memory_cannot_be_pinned() -> None:
    with pytest.raises(WorkloadError, match=r"cannot pin 'torch\.cuda\.FloatTensor'"):
        pinned(lambda: (torch.zeros(3, device="cuda").pin_memory(),))
