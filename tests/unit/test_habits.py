"""What programs do out of habit, and a script of theirs expects to work."""

from __future__ import annotations

import io
import pathlib
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import memgauge
from memgauge import Workload
from memgauge.errors import UnsupportedError, WorkloadError
from memgauge.frameworks.torch.trace import trace
from memgauge.records import Estimate
from memgauge.units import GIB, MIB


def estimated(build: Any, batch: Any, step: Any, **options: Any) -> Estimate:
    workload = Workload(build=build, batch=batch, step=step, **options)
    return memgauge.estimate(workload, device="nvidia-a100-40gb")


def network() -> nn.Module:
    return nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(8)))  # 32 MiB of float32


def half() -> torch.Tensor:
    return torch.zeros(1, 1024, dtype=torch.half)


def test_a_peak_that_the_default_device_makes_is_said_with_the_remedy() -> None:
    def on_the_host() -> nn.Module:
        with torch.device("cpu"):
            return network().half().cuda()

    there = estimated(lambda: network().half().cuda(), half, lambda m, x: m(x), mode="infer")
    assert there.peak.allocated_bytes is not None and there.peak.allocated_bytes > 32 * MIB
    assert any("torch.device('cpu')" in text for text in there.assumptions)
    moved = estimated(on_the_host, half, lambda m, x: m(x), mode="infer")
    assert moved.peak.allocated_bytes is not None and moved.peak.allocated_bytes < 32 * MIB
    assert not any("default device" in text for text in moved.assumptions)


def test_a_batch_that_is_pinned_is_made_on_the_host() -> None:
    def batch() -> torch.Tensor:
        return torch.zeros(MIB, dtype=torch.uint8).pin_memory().to("cuda", non_blocking=True)

    found = estimated(lambda: nn.Linear(2, 2), batch, lambda m, x: x * 2, mode="infer")
    assert found.peak.pinned_bytes == MIB


def test_pinning_what_was_built_on_the_card_is_an_error_that_says_where_to_make_it() -> None:
    def build() -> nn.Module:
        model = nn.Linear(2, 2)
        model.kept = torch.zeros(8)
        return model

    with pytest.raises(WorkloadError, match=r"only dense CPU tensors.*device='cpu'"):
        estimated(build, lambda: None, lambda m, _: m.kept.pin_memory())


def test_a_data_set_that_build_makes_on_the_host_stays_there_and_loaders_pin_its_batches() -> None:
    def build() -> tuple[nn.Module, list[torch.Tensor]]:
        return nn.Linear(1024, 2), [torch.zeros(1024, device="cpu") for _ in range(4096)]  # 16 MiB

    def step(model: nn.Module, data: list[torch.Tensor], _: None) -> None:
        for x in torch.utils.data.DataLoader(data, batch_size=64, pin_memory=True):
            model(x.cuda(non_blocking=True)).sum().backward()

    workload = Workload(build=build, batch=lambda: None, step=step)
    found = memgauge.estimate(workload, device="nvidia-a100-40gb")
    assert found.at_peak.categories["activation"] < MIB
    assert found.peak.allocated_bytes is not None and found.peak.allocated_bytes < 24 * MIB
    assert found.peak.pinned_bytes


class _Raises(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such gradient")


def test_what_raises_in_backward_is_said_to_be_there_and_not_what_comes_after_one_that_was_caught() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> None:
        _Raises.apply(model(x)).sum().backward()

    def careful(model: nn.Module, x: torch.Tensor) -> None:
        try:
            step(model, x)
        except ValueError:
            raise KeyError("mine") from None

    with pytest.raises(WorkloadError, match="raised in step 1 backward"):
        estimated(lambda: nn.Linear(2, 2), lambda: torch.zeros(1, 2), step)
    with pytest.raises(WorkloadError, match="raised in step 1 forward"):
        estimated(lambda: nn.Linear(2, 2), lambda: torch.zeros(1, 2), careful)


def test_what_a_program_sets_for_all_that_comes_is_undone() -> None:
    def build() -> nn.Module:
        torch.set_default_device("cuda")
        torch.set_default_dtype(torch.bfloat16)
        torch.set_float32_matmul_precision("high")
        return nn.Linear(64, 64)

    estimated(build, lambda: torch.zeros(2, 64), lambda m, x: m(x).sum().backward())
    assert (torch.get_default_dtype(), torch.get_float32_matmul_precision()) == (torch.float32, "highest")
    assert torch.zeros(1).device.type == "cpu"
    with torch.device("meta"):
        estimated(build, lambda: torch.zeros(2, 64), lambda m, x: m(x).sum().backward())
        assert torch.zeros(1).device.type == "meta"
    assert torch.zeros(1).device.type == "cpu"


def test_a_run_that_holds_more_after_each_step_is_warned_of() -> None:
    def warned(step: Any) -> list[str]:
        kept: list[torch.Tensor] = []
        found = estimated(lambda: network(), lambda: torch.zeros(64, 1024), lambda m, x: step(kept, m(x)))
        return [text for text in found.assumptions if text.startswith("memory grows from step to step")]

    def keep_all(kept: list[torch.Tensor], y: torch.Tensor) -> None:
        y.sum().backward()
        kept.append(y.detach())

    def keep_last(kept: list[torch.Tensor], y: torch.Tensor) -> None:
        y.sum().backward()
        kept[:] = [y.detach()]

    def accumulate(model: nn.Module, x: torch.Tensor) -> None:
        model(x).sum().backward()
        calls.append(1)
        if len(calls) % 2 == 0:
            model.zero_grad()

    (text,) = warned(keep_all)
    assert "by 256.0 KiB" in text
    assert warned(keep_last) == []
    calls: list[int] = []
    found = estimated(network, lambda: torch.zeros(64, 1024), accumulate)
    assert not any("grows" in text for text in found.assumptions)


def test_products_with_sparse_matrices_copy_no_dense_one_and_modules_may_hold_them() -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            places, ones = torch.randint(0, 20_000, (2, 50_000)), torch.ones(50_000)
            links = torch.sparse_coo_tensor(places, ones, (20_000, 20_000), check_invariants=False)
            self.register_buffer("links", links.coalesce())
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.links @ self.layer(x) + torch.sparse.mm(self.links, x)

    def build() -> nn.Module:
        return Graph().to("cuda")

    found = estimated(build, lambda: torch.zeros(20_000, 16), lambda m, x: m(x).sum().backward())
    assert (
        found.peak.allocated_bytes is not None and found.peak.allocated_bytes < 64 * MIB
    )  # dense it is 1.5 GiB


def test_the_share_of_the_card_that_a_program_sets_is_its_limit() -> None:
    def build(share: float) -> nn.Module:
        torch.cuda.set_per_process_memory_fraction(share)
        return nn.Linear(2, 2)

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return torch.empty(8 * GIB, dtype=torch.uint8, device="cuda")

    def fits(share: float) -> Any:
        return estimated(lambda: build(share), lambda: torch.zeros(2), step, mode="infer").fits

    assert fits(0.5).verdict == "yes"
    refused = fits(0.1)
    assert refused.verdict == "no"
    assert refused.free_bytes < -4 * GIB and "10 % of the card" in refused.reason
    with pytest.raises(WorkloadError, match="Invalid fraction value"):
        fits(2.0)


def test_pools_of_a_programs_own_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"test_habits.py:\d+: torch.cuda.MemPool is not followed"):
        estimated(lambda: nn.Linear(2, 2), lambda: torch.zeros(2), lambda m, x: torch.cuda.MemPool())


@pytest.mark.parametrize(
    "asks",
    [
        lambda: torch.zeros(2).to("cuda:1"),
        lambda: torch.zeros(2).cuda(1),
        lambda: torch.zeros(2, device=torch.device("cuda:1")),
        lambda: nn.Linear(2, 2).to("cuda:1"),
        lambda: torch.cuda.set_device(1),
        lambda: torch.cuda.device("cuda:1"),
        lambda: torch.cuda.get_device_properties(1),
        lambda: torch.cuda.max_memory_allocated(1),
        lambda: torch.cuda.memory.memory_reserved("cuda:1"),
        lambda: torch.cuda.synchronize(device=1),
        lambda: torch.cuda.Stream(device=1),
        lambda: torch.cuda.current_stream("cuda:1"),
        lambda: torch.cuda.get_rng_state("cuda:1"),
        lambda: torch.Generator("cuda:1"),
    ],
)
def test_a_second_card_is_refused_by_its_name(asks: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"test_habits.py:\d+: cuda:1 .* a workload of its own"):
        estimated(lambda: nn.Linear(2, 2), lambda: torch.zeros(2), lambda m, x: asks(), mode="infer")


def test_the_first_card_may_be_named() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        torch.cuda.set_device(0)
        with torch.cuda.device("cuda:0"):
            return model.to("cuda:0")(
                x.to("cuda").cuda(0).to(torch.device("cuda", torch.cuda.current_device()))
            )

    assert estimated(
        lambda: nn.Linear(2, 2), lambda: torch.zeros(1, 2), step, mode="infer"
    ).peak.allocated_bytes


def doubles(device: torch.device) -> None:
    try:
        torch.empty(2**20, device=device)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()


def in_the_old_way(device: torch.device) -> None:
    try:
        torch.empty(2**20, device=device)
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise


@pytest.mark.parametrize(("tries", "is_said"), [(doubles, True), (in_the_old_way, True), (network, False)])
def test_a_program_that_waits_for_the_end_of_memory_is_told_that_it_never_comes(
    tries: Any, is_said: bool
) -> None:
    def step(model: nn.Module, x: torch.Tensor) -> Any:
        return tries(x.device) if is_said else tries()

    found = estimated(lambda: nn.Linear(2, 2), lambda: torch.zeros(2), step, mode="infer")
    assert any("memgauge fit" in text for text in found.unmodelled) == is_said


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    "where", ["cuda", "cuda:0", torch.device("cuda"), {"cpu": "cuda"}, lambda s, _: "cuda"]
)
def test_a_checkpoint_that_is_loaded_onto_the_card_counts_there(
    where: Any, old: bool, tmp_path: pathlib.Path
) -> None:
    if callable(where):
        where = lambda storage, _: torch.serialization.default_restore_location(storage, "cuda")  # noqa: E731
    large, small = torch.zeros(4 * MIB, dtype=torch.uint8), torch.tensor([3.0, 4.0])
    saved = {"large": large, "view": large[:5], "small": small}
    torch.save(saved, tmp_path / "saved.pt", _use_new_zipfile_serialization=not old)
    found: dict[str, torch.Tensor] = {}

    def step(model: nn.Module, x: torch.Tensor) -> None:
        found.update(torch.load(tmp_path / "saved.pt", map_location=where))
        assert {str(t.device) for t in found.values()} == {"cuda:0"}
        assert found["small"].tolist() == [3.0, 4.0]
        found.clear()

    workload = Workload(build=lambda: nn.Linear(2, 2), batch=lambda: torch.zeros(2), step=step, mode="infer")
    taken = [e.requested_bytes for e in trace(workload, device="cuda", steps=1).events if "step" in e.phase]
    assert sorted(size for size in taken if size > 0) == [8, 8, 4 * MIB]  # batch, small, large once
    assert sum(taken) == 0


def test_a_checkpoint_for_a_second_card_or_moved_by_hand_is_refused(tmp_path: pathlib.Path) -> None:
    torch.save(torch.zeros(2), tmp_path / "saved.pt")

    def load(where: Any) -> None:
        def build() -> nn.Module:
            torch.load(tmp_path / "saved.pt", map_location=where)
            return nn.Linear(2, 2)

        estimated(build, lambda: torch.zeros(2), lambda m, x: m(x))

    with pytest.raises(UnsupportedError, match="cuda:1 is not followed"):
        load("cuda:1")
    with pytest.raises(UnsupportedError, match="map_location='cuda'"):
        load(lambda storage, _: storage.cuda())


@pytest.mark.parametrize("there_before", [False, True])
def test_loading_what_the_run_saved_says_that_nothing_was(tmp_path: pathlib.Path, there_before: bool) -> None:
    file = tmp_path / "saved.pt"
    if there_before:
        torch.save(nn.Linear(2, 2).state_dict(), file)

    def reloads(keep: Any, kept: Any) -> None:
        def step(model: nn.Module, x: torch.Tensor) -> None:
            torch.save(model.state_dict(), keep)
            model.load_state_dict(torch.load(kept))

        estimated(lambda: nn.Linear(2, 2), lambda: torch.zeros(1, 2), step, mode="infer")

    buffer = io.BytesIO()
    for keep, kept in ((file, str(file)), (buffer, buffer)):
        with pytest.raises(
            UnsupportedError, match=r"test_habits.py:\d+: torch.load .* torch.save writes no file"
        ):
            reloads(keep, kept)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_forward_mode_derivatives_are_followed(device: str) -> None:
    # In a process of its own: torch prepares for them once.
    program = f"""
import torch
from memgauge import Workload
from memgauge.frameworks.torch.trace import trace

def step(model, x):
    torch.func.jvp(model, (x,), (torch.ones_like(x),))

workload = Workload(
    build=lambda: torch.nn.Linear(2, 2), batch=lambda: torch.zeros(1, 2), step=step, mode="infer"
)
assert sum(e.operator == "aten.addmm" for e in trace(workload, device="{device}", steps=1).events)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_program_may_profile_itself(capfd: pytest.CaptureFixture[str]) -> None:
    kinds = torch.profiler.ProfilerActivity

    def step(model: nn.Module, x: torch.Tensor) -> None:
        with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA], profile_memory=True):
            model(x).sum().backward()

    assert estimated(lambda: nn.Linear(2, 2), lambda: torch.zeros(1, 2), step).peak.allocated_bytes
    assert "CUDA" not in capfd.readouterr().err


def test_a_number_that_is_read_twice_is_the_same_until_it_is_written_to() -> None:
    read: list[float] = []

    def step(model: nn.Module, x: torch.Tensor) -> None:
        loss = model(x).sum()
        read.extend((loss.item(), loss.item()))
        loss.detach().mul_(2)
        read.append(loss.item())
        read.append(model(x).sum().item())

    trace(Workload(build=lambda: network(), batch=lambda: torch.randn(1, 1024), step=step, mode="infer"))
    first, again, written, other = read[:4]
    assert first == again > written > other


def test_a_number_that_is_read_in_inference_mode_falls_too() -> None:
    read: list[float] = []

    def step(model: nn.Module, x: torch.Tensor) -> None:
        with torch.inference_mode():
            score = model(x).sum()
            read.append(score.item())
            read.append(score.mul_(2).item())

    trace(Workload(build=network, batch=lambda: torch.randn(1, 1024), step=step, mode="infer"))
    assert read[0] > read[1]


def test_each_trace_draws_the_same_numbers_and_the_process_goes_on_with_its_own() -> None:
    def drawn() -> tuple[float, ...]:
        return torch.rand(1, device="cpu").item(), random.random(), float(np.random.rand())

    found: list[tuple[float, ...]] = []

    def build() -> nn.Module:
        found.append(drawn())
        return nn.Linear(2, 2)

    def traced() -> None:
        trace(Workload(build=build, batch=lambda: torch.zeros(1, 2), step=lambda m, x: m(x), mode="infer"))

    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    traced()
    after = drawn()
    traced()
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    assert found[0] == found[1]
    assert drawn() == after


def test_state_of_an_optimizer_that_the_step_makes_is_optimizer_state() -> None:
    def train(
        model: nn.Module, x: torch.Tensor
    ) -> None:  # as a Trainer does it: the whole training is one step
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(x).sum().backward()
            optimizer.step()

    workload = Workload(build=lambda: nn.Linear(256, 256), batch=lambda: torch.randn(8, 256), step=train)
    for device in ("cpu", "nvidia-a100-40gb"):
        held = memgauge.estimate(workload, device=device).at_peak.categories
        assert held["optimizer_state"] >= 2 * 256 * 257 * 4, (device, held)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_averaged_weights_have_their_batch_norm_updated(device: str) -> None:
    def build() -> tuple[Any, ...]:
        model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
        averaged = torch.optim.swa_utils.AveragedModel(model)
        return model, averaged, torch.optim.SGD(model.parameters(), 0.1)

    def step(model: nn.Module, averaged: Any, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(model)
        torch.optim.swa_utils.update_bn([x], averaged)

    workload = Workload(build=build, batch=lambda: torch.randn(8, 64), step=step)
    assert not trace(workload, device=device).assumptions


def accumulating(count: int) -> Workload:
    def build() -> tuple[nn.Module, torch.optim.Optimizer, list[int]]:
        model = nn.Linear(1024, 1024, bias=False)
        return model, torch.optim.AdamW(model.parameters()), []

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, done: list[int], x: torch.Tensor) -> None:
        model(x).sum().backward()
        done.append(1)
        if len(done) % count == 0:
            optimizer.step()
            optimizer.zero_grad()

    return Workload(build=build, batch=lambda: torch.zeros(4, 1024), step=step)


def test_steps_that_differ_are_each_traced_also_after_two_that_were_alike() -> None:
    state = {
        (count, steps): memgauge.estimate(accumulating(count), steps=steps).at_peak.categories.get(
            "optimizer_state"
        )
        for count, steps in ((3, 3), (4, 3), (4, 8), (6, 7))
    }
    assert state[3, 3] == state[4, 8] == state[6, 7] == 2 * 4 * MIB + 4
    assert state[4, 3] is None


def test_a_run_in_which_no_optimizer_steps_is_warned_of() -> None:
    def warned(workload: Workload) -> list[str]:
        return [
            a for a in memgauge.estimate(workload).assumptions if a.startswith("no optimizer made a step")
        ]

    assert warned(accumulating(4)) and not warned(accumulating(2))
    assert not warned(Workload(build=network, batch=half, step=lambda m, x: m(x.float()).sum().backward()))


@pytest.mark.parametrize("device", ["cpu", "nvidia-t4"])
def test_operators_that_only_call_others_are_followed_in_inference_mode(device: str) -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return model(x).repeat_interleave(3, dim=1)

    workload = Workload(
        build=lambda: nn.Linear(8, 8), batch=lambda: torch.zeros(4, 8), step=step, mode="infer"
    )
    assert memgauge.estimate(workload, device=device).peak.allocated_bytes


@pytest.mark.parametrize("device", ["cpu", "nvidia-t4"])
def test_draws_of_given_means_are_made_where_these_are(device: str) -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        mean = model(x)
        return (
            torch.normal(mean, mean.exp())
            + torch.normal(mean)
            + torch.normal(0.0, 1.0, mean.shape, device=x.device)
        )

    workload = Workload(
        build=lambda: nn.Linear(64, 64), batch=lambda: torch.zeros(64, 64), step=step, mode="infer"
    )
    found = memgauge.estimate(workload, device=device)
    assert found.peak.allocated_bytes is not None and found.peak.allocated_bytes >= 5 * 64 * 64 * 4


@pytest.mark.parametrize("device", ["cpu", "nvidia-t4"])
def test_a_skeleton_on_meta_stays_there(device: str) -> None:
    def build() -> tuple[nn.Module, dict[str, torch.Tensor]]:
        models = [nn.Linear(512, 512) for _ in range(3)]
        stacked, _ = torch.func.stack_module_state(models)  # type: ignore[arg-type]
        return models[0].to("meta"), stacked

    def step(skeleton: nn.Module, stacked: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda p: torch.func.functional_call(skeleton, (p,), (x,)))(stacked)

    workload = Workload(build=build, batch=lambda: torch.zeros(8, 512), step=step, mode="infer")
    found = memgauge.estimate(workload, device=device)
    assert found.peak.allocated_bytes is not None and 3 * MIB <= found.peak.allocated_bytes < 24 * MIB


def test_what_is_given_back_at_the_end_of_a_step_is_not_its_forward_pass() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        y.sum().backward()
        return y

    found = estimated(network, lambda: torch.zeros(2**14, 1024), step)
    reserved = {p.name: p.reserved_bytes for p in found.phases}
    forward, backward = reserved["step 1 forward"], reserved["step 1 backward"]
    assert forward is not None and backward is not None and forward < backward
