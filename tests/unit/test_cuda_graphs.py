"""CUDA graphs: what is requested in a capture lies in a pool of its own, which stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import memgauge
from memgauge import Workload
from memgauge.allocators.cuda_caching import GRAPH_POOL, CudaCachingAllocator
from memgauge.allocators.settings import CudaSettings
from memgauge.devices.stack import Stack
from memgauge.errors import UnsupportedError
from memgauge.records import NEVER_BACKWARD, Estimate
from memgauge.units import MIB

NUMBERS = 4 * MIB // 4  # float32 of 4 MiB: requests below 10 MiB share segments of 20


def estimated(build: Callable[[], Any], batch: Callable[[], Any], step: Callable[..., Any]) -> Estimate:
    workload = Workload(build=build, batch=batch, step=step)
    return memgauge.estimate(workload, device="nvidia-a100-40gb", stack=Stack(torch=(2, 6)))


def reserved(build: Callable[[], Any], step: Callable[..., Any]) -> int | None:
    return estimated(build, lambda: torch.zeros(NUMBERS), step).peak.reserved_bytes


def test_what_a_graph_requested_serves_nothing_else_and_stays() -> None:
    def build(is_graphed: bool) -> nn.Module:
        module = nn.Module()
        module.x = torch.zeros(NUMBERS)
        module.graph = torch.cuda.CUDAGraph()
        if is_graphed:
            with torch.cuda.graph(module.graph):
                assert torch.cuda.is_current_stream_capturing()
                module.y = (module.x * 2) * 3  # the product by 2 is temporary
        else:
            module.y = (module.x * 2) * 3
        assert not torch.cuda.is_current_stream_capturing()
        return module

    def step(module: nn.Module, batch: torch.Tensor) -> None:
        module.x.copy_(batch)
        module.graph.replay()
        torch.cuda.empty_cache()
        kept = [module.x * 5 for _ in range(3)]  # with x and the batch five in the default pool's 20 MiB
        assert len(kept) == 3

    assert reserved(lambda: build(True), step) == 40 * MIB

    def plain(module: nn.Module, batch: torch.Tensor) -> None:
        kept = [module.x * 5 for _ in range(2)]  # with x, y and the batch five in one segment
        assert len(kept) == 2

    assert reserved(lambda: build(False), plain) == 20 * MIB


@pytest.mark.parametrize("shares", [True, False])
def test_captures_that_share_a_pool_share_its_blocks(shares: bool) -> None:
    def build() -> nn.Module:
        module = nn.Module()
        module.x = torch.zeros(NUMBERS)
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(first):
            module.y = module.x * 2
        with torch.cuda.graph(second, pool=first.pool() if shares else None):
            module.z = module.x * 3
        return module

    wanted = 20 + (20 if shares else 40)
    assert reserved(build, lambda module, batch: None) == wanted * MIB


@pytest.mark.parametrize("expandable", [True, False])
def test_cached_blocks_of_a_graph_are_not_given_back(expandable: bool) -> None:
    allocator = CudaCachingAllocator(CudaSettings(expandable_segments=expandable))
    for stream in (0, GRAPH_POOL, GRAPH_POOL + 1):
        block = allocator.allocate(60 * MIB, stream)
        assert block is not None
        allocator.free(block)
    allocator.release_cached()
    assert allocator.reserved_bytes == 2 * 60 * MIB


def test_a_card_that_is_full_gets_nothing_from_a_graph() -> None:
    allocator = CudaCachingAllocator(capacity_bytes=100 * MIB)
    block = allocator.allocate(64 * MIB, GRAPH_POOL)
    assert block is not None
    allocator.free(block)
    assert allocator.allocate(64 * MIB) is None
    assert allocator.allocate(64 * MIB, GRAPH_POOL) is not None


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))


def test_a_whole_step_captured_as_torch_advises() -> None:
    """Its activations lie in the graph's pool once and for all; steps request a batch and nothing else."""

    def build() -> tuple[Any, ...]:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), capturable=True)
        x = torch.zeros(512, 256)
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            for _ in range(3):
                optimizer.zero_grad(set_to_none=True)
                model(x).square().mean().backward()
                optimizer.step()
        torch.cuda.current_stream().wait_stream(warm)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
        model.kept = x, graph, loss  # type: ignore[assignment]
        return model, optimizer

    def step(model: nn.Module, optimizer: Any, batch: torch.Tensor) -> None:
        x, graph, _ = model.kept
        x.copy_(batch)
        graph.replay()

    said = estimated(build, lambda: torch.zeros(512, 256), step)
    assert not any(NEVER_BACKWARD in text for text in said.assumptions)
    steps = [phase for phase in said.phases if phase.name.startswith("step")]
    parameters = sum(p.numel() for p in network().parameters()) * 4
    # Parameters, their gradients (in the graph's pool) and two of Adam's are still there in every step.
    assert min(phase.requested_bytes or 0 for phase in steps) >= 4 * parameters


def test_graphed_callables_run_by_torchs_own_function() -> None:
    def build() -> tuple[Any, ...]:
        model = network()
        graphed = torch.cuda.make_graphed_callables(model, (torch.zeros(512, 256, requires_grad=True),))
        return graphed, torch.optim.SGD(model.parameters(), 0.1)

    def step(model: nn.Module, optimizer: Any, batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    def plain() -> tuple[Any, ...]:
        model = network()
        return model, torch.optim.SGD(model.parameters(), 0.1)

    batch = lambda: torch.zeros(512, 256)  # noqa: E731
    graphed, usual = estimated(build, batch, step), estimated(plain, batch, step)
    assert (graphed.peak.reserved_bytes or 0) > (usual.peak.reserved_bytes or 0)


def test_a_graph_that_was_never_captured_cannot_be_replayed() -> None:
    with pytest.raises(
        UnsupportedError, match=r"test_cuda_graphs\.py:\d+: this CUDA graph was never captured"
    ):
        reserved(nn.Module, lambda module, batch: torch.cuda.CUDAGraph().replay())
