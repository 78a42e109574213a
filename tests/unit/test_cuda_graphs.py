"""CUDA graphs: what is requested in a capture lies in a pool of its own, which stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import memgauge
from memgauge import Workload, devices
from memgauge.allocators.cuda_caching import GRAPH_POOL, CudaCachingAllocator
from memgauge.allocators.settings import CudaSettings
from memgauge.devices.stack import Stack
from memgauge.errors import WorkloadError
from memgauge.estimate import traced
from memgauge.records import NEVER_BACKWARD, Estimate
from memgauge.units import MIB

STACK = Stack(torch=(2, 6))
NUMBERS = 4 * MIB // 4  # float32 of 4 MiB: requests below 10 MiB share segments of 20

RANDOM_STATES = 2  # MiB: seed and offset, in a segment of small requests


def estimated(build: Callable[[], Any], batch: Callable[[], Any], step: Callable[..., Any]) -> Estimate:
    workload = Workload(build=build, batch=batch, step=step)
    return memgauge.estimate(workload, device="nvidia-a100-40gb", stack=STACK)


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

    assert reserved(lambda: build(True), step) == (20 + 20 + RANDOM_STATES) * MIB

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

    wanted = 20 + (20 if shares else 40) + RANDOM_STATES
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


def test_a_capture_on_a_full_card_gets_nothing_of_the_cache() -> None:
    allocator = CudaCachingAllocator(capacity_bytes=100 * MIB)
    block = allocator.allocate(64 * MIB)
    assert block is not None
    allocator.free(block)
    assert allocator.allocate(64 * MIB, GRAPH_POOL) is None
    assert (
        allocator.allocate(80 * MIB) is not None
    )  # another request of the default pool gives the cache back


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))


def captured_step(capturable: bool) -> Workload:
    """A whole step as torch's documentation of CUDA graphs captures it."""

    def build() -> tuple[Any, ...]:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), capturable=capturable)
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

    return Workload(build=build, batch=lambda: torch.zeros(512, 256), step=step)


def test_the_steps_of_a_captured_loop_request_their_batch_and_nothing_else() -> None:
    trace = traced(captured_step(True), devices.find("nvidia-a100-40gb"), steps=3, threads=1, stack=STACK)
    assert not any(NEVER_BACKWARD in text for text in trace.assumptions)
    asked = [e.requested_bytes for e in trace.events if e.phase.startswith("step") and e.requested_bytes > 0]
    assert asked == [512 * 256 * 4] * 3
    hidden = 512 * 1024 * 4
    of_graph = [
        e.requested_bytes
        for e in trace.events
        if e.requested_bytes > 0 and trace.streams.get(e.storage, 0) >= GRAPH_POOL
    ]
    assert of_graph.count(hidden) >= 3  # the hidden layer, its ReLU and the gradient
    gradients = sorted(p.numel() * 4 for p in network().parameters())
    assert all(of_graph.count(size) >= 1 for size in gradients)


def test_an_optimizer_that_cannot_be_captured_is_an_error_as_in_torch() -> None:
    with pytest.raises(WorkloadError, match="capturable is False"):
        traced(captured_step(False), devices.find("nvidia-a100-40gb"), steps=1, threads=1, stack=STACK)


def test_graphed_callables_run_by_torchs_own_function() -> None:
    def build() -> tuple[Any, ...]:
        model = network()
        graphed = torch.cuda.make_graphed_callables(model, (torch.zeros(512, 256, requires_grad=True),))
        return graphed, torch.optim.SGD(model.parameters(), 0.1)

    def step(model: nn.Module, optimizer: Any, batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    workload = Workload(build=build, batch=lambda: torch.zeros(512, 256), step=step)
    trace = traced(workload, devices.find("nvidia-a100-40gb"), steps=3, threads=1, stack=STACK)
    captured = {s: pool for s, pool in trace.streams.items() if pool >= GRAPH_POOL}
    assert len(set(captured.values())) == 1  # forward and backward share a pool, on one stream
    sizes = {e.storage: e.requested_bytes for e in trace.events if e.requested_bytes > 0}
    hidden = 512 * 1024 * 4
    assert [size for s, size in sizes.items() if s in captured].count(hidden) >= 2
    in_steps = [e for e in trace.events if e.phase.startswith("step") and e.requested_bytes > 0]
    assert not any(e.requested_bytes == hidden or e.storage in captured for e in in_steps)


def test_a_capture_that_raises_is_over() -> None:
    def build() -> nn.Module:
        module = nn.Module()
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(ValueError, match="mine"), torch.cuda.graph(graph):
            module.x = torch.zeros(NUMBERS)
            raise ValueError("mine")
        assert not torch.cuda.is_current_stream_capturing()
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        module.y = torch.zeros(NUMBERS)
        return module

    assert reserved(build, lambda module, batch: None) == (20 + 20 + RANDOM_STATES) * MIB


def test_one_capture_at_a_time() -> None:
    def build() -> nn.Module:
        with torch.cuda.graph(torch.cuda.CUDAGraph()), torch.cuda.graph(torch.cuda.CUDAGraph()):
            return nn.Module()

    with pytest.raises(WorkloadError, match="captured already"):
        reserved(build, lambda module, batch: None)


@pytest.mark.parametrize("use", [lambda graph: graph.replay(), lambda graph: graph.pool()])
def test_a_graph_that_was_never_captured_has_nothing(use: Callable[[Any], Any]) -> None:
    with pytest.raises(WorkloadError, match="this CUDA graph was never captured"):
        reserved(nn.Module, lambda module, batch: use(torch.cuda.CUDAGraph()))


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda graph, x: x.sum().item(), "not permitted when stream is capturing"),
        (lambda graph, x: x.nonzero(), "not permitted when stream is capturing"),
        (lambda graph, x: x[x > 0], "not permitted when stream is capturing"),
        (lambda graph, x: x.index_put_((x > 0,), x.sum()), "not permitted when stream is capturing"),
        (lambda graph, x: x.cpu(), "not permitted when stream is capturing"),
        (lambda graph, x: x.copy_(torch.ones(64, device="cpu")), "not permitted when stream is capturing"),
        (lambda graph, x: torch.ones(64, device="cpu").cuda(), "not permitted when stream is capturing"),
        (lambda graph, x: torch.cuda.synchronize(), "not permitted when stream is capturing"),
        (lambda graph, x: (graph.capture_end(), graph.capture_end()), "no CUDA graph is being captured"),
    ],
)
def test_what_a_capture_does_not_permit_is_an_error(use: Callable[..., Any], said: str) -> None:
    def build() -> nn.Module:
        x, graph = torch.zeros(64), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            use(graph, x)
        return nn.Module()

    with pytest.raises(WorkloadError, match=said):
        reserved(build, lambda module, batch: None)


def test_copies_that_do_not_wait_are_captured() -> None:
    def build() -> nn.Module:
        x, graph = torch.zeros(64), torch.cuda.CUDAGraph()
        outside = torch.ones(64, device="cpu")
        with torch.cuda.graph(graph):
            x.copy_(outside.pin_memory(), non_blocking=True)
            assert outside.cuda(non_blocking=True).is_cuda
            assert x.to("cpu", non_blocking=True).is_pinned()
            x[0] = 5
            assert x[torch.zeros(3, dtype=torch.long)].is_cuda
            outside[outside > 0].cpu().sum().item()  # of the host alone
        return nn.Module()

    assert reserved(build, lambda module, batch: None)


def test_a_graph_is_captured_once() -> None:
    def build() -> nn.Module:
        graph = torch.cuda.CUDAGraph()
        for _ in range(2):
            with torch.cuda.graph(graph):
                pass
        return nn.Module()

    with pytest.raises(WorkloadError, match="owns a captured graph already"):
        reserved(build, lambda module, batch: None)


@pytest.mark.parametrize("drops", [True, False])
def test_of_graphs_that_were_dropped_it_is_said_that_their_pools_are_kept(drops: bool) -> None:
    graphs: list[Any] = []

    def build() -> nn.Module:
        graphs[:] = [torch.cuda.CUDAGraph()]
        with torch.cuda.graph(graphs[0]):
            pass
        if drops:
            graphs.clear()
        return nn.Module()

    said = estimated(build, lambda: torch.zeros(4), lambda module, batch: None).unmodelled
    assert any("graphs that were dropped" in line for line in said) == drops


def test_a_step_that_captures_each_time_is_never_taken_for_one_that_repeats() -> None:
    def step(module: nn.Module, batch: torch.Tensor) -> None:
        module.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(module.graph):
            module.x = batch * 2

    workload = Workload(build=nn.Module, batch=lambda: torch.zeros(NUMBERS), step=step)
    trace = traced(workload, devices.find("nvidia-a100-40gb"), steps=6, threads=1, stack=STACK)
    assert len(set(trace.streams.values())) == 6
