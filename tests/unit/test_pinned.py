"""Host memory that a CUDA run pins."""

from __future__ import annotations

import threading
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
from memgauge.explain.compare import compare
from memgauge.frameworks.torch.cuda_placement import Placement
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
    block = allocator.allocate(10 * MIB)
    assert allocator.reserved_bytes == held + 16 * MIB
    allocator.free(block)
    allocator.release_cached()
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes) == (16 * MIB, held + 16 * MIB)


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


def test_a_loader_with_workers_changes_nothing_on_the_device() -> None:
    data = TensorDataset(torch.zeros(64, 3, 65_536))

    def device_bytes(workers: int) -> tuple[int | None, ...]:
        batches: Iterator[Any] = iter(())

        def batch() -> Any:
            nonlocal batches
            found = next(batches, None)
            if found is None:
                batches = iter(DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers))
                found = next(batches)
            return found

        workload = Workload(
            build=lambda: nn.Linear(65_536, 4),
            batch=batch,
            step=lambda model, b: model(b[0].cuda(non_blocking=True)).sum().backward(),
        )
        peak = memgauge.estimate(workload, device="nvidia-a100-40gb").peak
        return peak.allocated_bytes, peak.reserved_bytes

    assert device_bytes(1) == device_bytes(0)


def test_what_another_thread_makes_on_the_host_leaves_the_main_threads_results_on_the_device() -> None:
    placement = Placement(set())
    inside, leave = threading.Event(), threading.Event()

    def make_on_the_host() -> None:
        with placement.at(False):
            inside.set()
            leave.wait(60)

    other = threading.Thread(target=make_on_the_host)
    with placement.at(False):
        other.start()  # as a loader's thread, in the midst of a call that names the host
        assert inside.wait(60)
    assert placement.now
    leave.set()
    other.join()
    assert placement.now


def test_a_copy_to_the_host_that_does_not_block_is_pinned() -> None:
    def taken(non_blocking: bool) -> int | None:
        workload = Workload(
            build=lambda: nn.Linear(4, 4),
            batch=lambda: torch.zeros(9 * MIB // 4, device="cuda"),
            step=lambda model, b: b.to("cpu", non_blocking=non_blocking),
            mode="infer",
        )
        return memgauge.estimate(workload, device="nvidia-a100-40gb").peak.pinned_bytes

    # The result of a step is dropped after the next batch was made, before the next result.
    assert (taken(True), taken(False)) == (16 * MIB, None)


@pytest.mark.parametrize(
    "make",
    [
        lambda like: torch.zeros_like(like, pin_memory=True),
        lambda like: like.new_empty(like.shape, pin_memory=True),
        lambda like: torch.ones(like.shape, device="cpu", pin_memory=True),
    ],
)
def test_factories_that_pin(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert pinned(lambda: (make(host(9 * MIB // 4)),)) == 16 * MIB


def test_a_view_is_pinned_with_what_lies_between() -> None:
    assert pinned(lambda: (host(4 * MIB // 4)[::2].pin_memory(),)) == 4 * MIB
    assert pinned(lambda: (torch.zeros(1, 64, device="cpu").expand(9999, 64).pin_memory(),)) == 256


def test_a_capture_gives_the_cache_of_pinned_blocks_back() -> None:
    def batch() -> Any:
        host(9 * MIB // 4).pin_memory()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            pass
        return (host(3 * MIB // 4).pin_memory(),)

    assert pinned(batch) == 20 * MIB  # in a later step: 16 beside 4 of the step before


def test_device_memory_cannot_be_pinned() -> None:
    with pytest.raises(WorkloadError, match=r"cannot pin 'torch\.cuda\.FloatTensor'"):
        pinned(lambda: (torch.zeros(3, device="cuda").pin_memory(),))


def test_pinned_memory_is_compared_where_one_side_has_some() -> None:
    def said(pins: bool) -> Any:
        def batch() -> Any:
            made = host(9 * MIB // 4)
            return made.pin_memory() if pins else made

        workload = Workload(
            build=lambda: nn.Linear(4, 4), batch=batch, step=lambda model, b: b.cuda(), mode="infer"
        )
        return memgauge.estimate(workload, device="nvidia-a100-40gb")

    with_pins, without = said(True), said(False)
    (row,) = [kind for kind in compare(with_pins, without).kinds if kind.name == "pinned"]
    assert (row.a_bytes, row.b_bytes) == (16 * MIB, None)
    assert not any(kind.name == "pinned" for kind in compare(without, without).kinds)
