"""The trace against torch's own CPU allocator: the same steps, really run in this process."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks.steps import STEPS
from memgauge.allocators import cpu
from memgauge.explain.peak import account
from memgauge.frameworks.torch.cpu_workspace import workspace_bytes
from memgauge.frameworks.torch.profiled import profiled_run
from memgauge.frameworks.torch.trace import trace
from memgauge.records import Peak, Trace
from memgauge.workload import Workload

# Quick ones of many kinds; benchmarks/accuracy_cpu.py runs all of them.
EXACT = [
    "plain_cnn",
    "resnet",
    "vae",
    "siamese_triplets",
    "gpt",
    "capacity_experts",
    "autocast_grad_scaler",
    "autocast_bfloat16",
    "checkpoint_non_reentrant",
    "checkpoint_reentrant",
    "never_zero_grad",
    "zero_grad_keeps_memory",
    "ema_copy",
    "lora",
    "custom_function",
    "in_place",
    "complex_network",
    "message_passing",
    "wasserstein_gan",
    "quasi_newton",
    "deep_q_learning",
    "best_weights_kept",
    "checkpoints_on_disk",
    "numpy_batches",
    "loader_batches",
    "random_scale",
    "weighted_labels",
    "contrastive_mask",
]


def peak_of(found: Trace) -> Peak:
    return account(found, cpu.replay(found.events))[0]


def predicted(name: str) -> Trace:
    workspace = partial(workspace_bytes, threads=torch.get_num_threads())
    return trace(STEPS[name](), workspace=workspace)


@pytest.mark.parametrize("name", EXACT)
def test_tensors_at_the_peak_are_exact_to_the_byte(name: str) -> None:
    said = peak_of(predicted(name))
    gc.collect()
    seen = peak_of(profiled_run(STEPS[name]()))
    assert said.tensor_bytes == seen.tensor_bytes
    assert said.allocated_bytes == pytest.approx(seen.allocated_bytes, rel=0.05)


def test_a_step_that_is_guarded_by_a_finite_loss_is_followed_as_it_runs() -> None:
    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        loss = model(x).square().mean()
        if not torch.isfinite(loss) or loss >= float("inf"):
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Linear(256, 256)
        return model, torch.optim.AdamW(model.parameters())

    workload = Workload(build=build, batch=lambda: torch.randn(64, 256), step=step)
    workspace = partial(workspace_bytes, threads=torch.get_num_threads())
    said, found = peak_of(trace(workload, workspace=workspace)), peak_of(profiled_run(workload, steps=3))
    assert said.tensor_bytes == found.tensor_bytes


@pytest.mark.parametrize("decomposed", [torch.linalg.cholesky, torch.linalg.lu_factor])
def test_formulas_that_add_two_tensors_hold_a_third(decomposed: Any) -> None:
    def step(scale: torch.nn.Parameter, x: torch.Tensor) -> None:
        matrix = x @ x.T + scale * torch.eye(400) * 400
        found = decomposed(matrix)
        (found[0] if isinstance(found, tuple) else found).sum().backward()

    workload = Workload(
        build=lambda: torch.nn.Parameter(torch.ones(())), batch=lambda: torch.randn(400, 400), step=step
    )
    workspace = partial(workspace_bytes, threads=torch.get_num_threads())
    said, found = peak_of(trace(workload, workspace=workspace)), peak_of(profiled_run(workload, steps=3))
    assert said.allocated_bytes == pytest.approx(found.allocated_bytes, rel=0.01)


@pytest.mark.parametrize("once", ["checkpoint", "hooks"])
@pytest.mark.parametrize(
    "selected",
    [lambda x: x[torch.arange(60)], lambda x: x.sort(1).values, lambda x: x.max(1).values],
    ids=["index", "sort", "max"],
)
def test_what_is_saved_is_asked_for_as_often_as_in_a_real_run(selected: Any, once: str) -> None:
    # Checkpoints, and hooks that keep what they pack in a dict, give each saved tensor out once.
    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        def run(x: torch.Tensor) -> torch.Tensor:
            return selected(model(x)).square()

        kept: dict[int, torch.Tensor] = {}

        def pack(tensor: torch.Tensor) -> int:
            kept[len(kept)] = tensor
            return len(kept) - 1

        optimizer.zero_grad()
        if once == "checkpoint":
            found = torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False)
        else:
            with torch.autograd.graph.saved_tensors_hooks(pack, kept.pop):
                found = run(x)
        found.mean().backward()
        optimizer.step()

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Linear(256, 256)
        return model, torch.optim.SGD(model.parameters(), 0.1)

    workload = Workload(build=build, batch=lambda: torch.randn(600, 256), step=step)
    workspace = partial(workspace_bytes, threads=torch.get_num_threads())
    said, found = peak_of(trace(workload, workspace=workspace)), peak_of(profiled_run(workload, steps=3))
    assert said.tensor_bytes == found.tensor_bytes
    assert said.allocated_bytes == found.allocated_bytes


def test_products_with_a_sparse_matrix_take_what_they_take() -> None:
    def build() -> tuple[torch.Tensor, torch.nn.Module]:
        places, ones = torch.randint(0, 5_000, (2, 100_000)), torch.ones(100_000)
        links = torch.sparse_coo_tensor(places, ones, (5_000, 5_000), check_invariants=False)
        return links.coalesce(), torch.nn.Embedding(5_000, 32)

    def step(links: torch.Tensor, table: torch.nn.Module, rows: torch.Tensor) -> None:
        x = torch.sparse.mm(links, table.weight)
        x[rows].square().mean().backward()

    workload = Workload(build=build, batch=lambda: torch.randint(0, 5_000, (64,)), step=step)
    workspace = partial(workspace_bytes, threads=torch.get_num_threads())
    said, found = peak_of(trace(workload, workspace=workspace)), peak_of(profiled_run(workload, steps=3))
    assert said.allocated_bytes == pytest.approx(found.allocated_bytes, rel=0.005)
    assert said.tensor_bytes == pytest.approx(found.tensor_bytes, rel=0.005)


def test_categories_of_trace_and_run_agree_though_found_independently() -> None:
    said, seen = predicted("resnet"), profiled_run(STEPS["resnet"]())
    ours = account(said, cpu.replay(said.events))[1].categories
    theirs = account(seen, cpu.replay(seen.events))[1].categories
    for category in ("parameter", "buffer", "gradient", "optimizer_state", "input"):
        assert ours.get(category) == theirs.get(category), category
    assert ours["activation"] == pytest.approx(theirs["activation"], rel=0.01)


def test_measured_attribution_leaves_little_unattributed() -> None:
    seen = profiled_run(STEPS["gpt"]())
    categories = account(seen, cpu.replay(seen.events))[1].categories
    assert categories.get("unattributed", 0) <= 0.05 * sum(categories.values())


def test_layers_hold_what_the_run_shows_that_they_hold() -> None:
    said, seen = predicted("plain_cnn"), profiled_run(STEPS["plain_cnn"]())
    ours = {x.path: sum(x.at_peak_bytes.values()) for x in account(said, cpu.replay(said.events))[3]}
    theirs = {x.path: sum(x.at_peak_bytes.values()) for x in account(seen, cpu.replay(seen.events))[3]}
    for path in ("conv1", "conv2", "fc1", "fc2"):
        assert ours[path] == pytest.approx(theirs[path], rel=0.02), path
