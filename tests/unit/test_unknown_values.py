"""The advice of an error is one that works."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from memgauge.allocators import cpu
from memgauge.errors import UnsupportedError, WorkloadError
from memgauge.explain.peak import account
from memgauge.frameworks.torch.profiled import profiled_run
from memgauge.frameworks.torch.trace import trace
from memgauge.records import Trace
from memgauge.workload import Workload


def workload(step: object, **values: float) -> Workload:
    return Workload(
        build=lambda: torch.nn.Linear(8, 8), batch=lambda: torch.randn(32, 8), step=step, values=values
    )


def tensor_bytes(found: Trace) -> int:
    return account(found, cpu.replay(found.events))[0].tensor_bytes


def selecting(model: torch.nn.Module, x: torch.Tensor) -> None:
    model(x)[x[:, 0] > 0].sum().backward()


def test_a_mask_that_only_a_run_would_know_is_named_with_what_to_declare() -> None:
    with pytest.raises(UnsupportedError, match=r'test_unknown_values\.py:\d+ .*values=\{"nonzero": 32\}'):
        trace(workload(selecting))


def test_what_the_error_says_to_declare_is_read() -> None:
    assert trace(workload(selecting, nonzero=16)).events


def test_what_cannot_be_declared_is_not_offered() -> None:
    def counted(model: torch.nn.Module, x: torch.Tensor) -> None:
        torch.unique_consecutive(model(x)[0].long())

    with pytest.raises(UnsupportedError, match="measure"):
        trace(workload(counted))


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64, torch.int32])
def test_bincount_gives_as_many_counts_as_minlength(dtype: torch.dtype | None) -> None:
    seen: list[torch.Tensor] = []

    def step(model: torch.nn.Module, x: torch.Tensor) -> None:
        classes = model(x).abs().clamp(max=8).long().flatten()
        weights = None if dtype is None else torch.ones(classes.shape, dtype=dtype)
        seen.append(torch.bincount(classes, weights, minlength=5000))

    found = trace(workload(step), steps=1)
    assert any("minlength" in text for text in found.assumptions)
    real = profiled_run(workload(step), steps=1)
    assert tensor_bytes(found) == tensor_bytes(real)
    said, ran = seen
    assert (said.shape, said.dtype) == (ran.shape, ran.dtype)


def test_how_many_values_bincount_counts_is_declared_where_minlength_does_not_say_it() -> None:
    seen: list[int] = []

    def step(model: torch.nn.Module, x: torch.Tensor) -> None:
        seen.append(torch.bincount(model(x).long().flatten()).numel())

    with pytest.raises(UnsupportedError, match=r'test_unknown_values\.py:\d+ .*values=\{"bincount"'):
        trace(workload(step))
    trace(workload(step, bincount=21), steps=1)
    assert seen == [21]


def test_how_many_values_differ_is_declared_and_each_element_says_which_it_is() -> None:
    seen: list[torch.Size] = []

    def unique(model: torch.nn.Module, x: torch.Tensor) -> None:
        found = torch.unique(model(x), return_inverse=True, return_counts=True)
        seen.extend(t.shape for t in found)

    with pytest.raises(UnsupportedError, match=r'values=\{"unique": 256\}'):
        trace(workload(unique))
    trace(workload(unique, unique=7), steps=1)
    assert [tuple(shape) for shape in seen] == [(7,), (32, 8), (7,)]


def test_a_prediction_writes_no_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    file.write_text("precious")

    def saving(model: torch.nn.Module, x: torch.Tensor) -> None:
        model(x).sum().backward()
        torch.save(model.state_dict(), file)

    found = trace(workload(saving))
    assert file.read_text() == "precious"
    assert any("torch.save" in text for text in found.assumptions)


def test_memory_of_numpy_is_named_and_not_counted_as_torchs() -> None:
    def batch() -> torch.Tensor:
        return torch.from_numpy(np.ones((32, 8), dtype=np.float32))

    def step(model: torch.nn.Module, x: torch.Tensor) -> None:
        model(x).sum().backward()

    found = trace(Workload(build=lambda: torch.nn.Linear(8, 8), batch=batch, step=step))
    assert any("NumPy" in text for text in found.unmodelled)
    assert 32 * 8 * 4 not in {e.requested_bytes for e in found.events if e.operator == "aten.lift_fresh"}


def test_nested_tensors_are_followed_into_what_they_wrap() -> None:
    def step(model: torch.nn.Module, x: torch.Tensor) -> None:
        ragged = torch.nested.nested_tensor([x[:5], x[5:14]], layout=torch.jagged)
        torch.nested.to_padded_tensor(model(ragged), 0.0).sum().backward()

    found = trace(workload(step))
    assert 14 * 8 * 4 in {e.requested_bytes for e in found.events}


def looping(model: torch.nn.Module, x: torch.Tensor) -> None:
    y = model(x)
    while y.norm() > 1:
        y = model(y)
    y.sum().backward()


def until_all_are_done(model: torch.nn.Module, x: torch.Tensor) -> None:
    y, rounds = model(x), 1
    done = y.mean(-1) > 5
    while not done.all() and rounds < 20:
        y, rounds = model(y), rounds + 1
        done = done | (y.mean(-1) > 5)
    y.sum().backward()


def layers_called(step: object = looping, **values: float) -> int:
    calls: list[int] = []

    class Counted(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return super().forward(x)

    trace(
        Workload(build=lambda: Counted(8, 8), batch=lambda: torch.randn(32, 8), step=step, values=values),
        steps=1,
    )
    return len(calls)


def test_a_condition_is_false_unless_declared_and_a_number_is_how_often_a_loop_goes_on() -> None:
    assert layers_called() == 1
    assert layers_called(condition=7) == 8


def test_a_loop_until_all_are_done_goes_on_as_often_as_declared() -> None:
    assert layers_called(until_all_are_done) == 1
    assert layers_called(until_all_are_done, condition=True) == 1
    assert layers_called(until_all_are_done, condition=False) == 20
    assert layers_called(until_all_are_done, condition=-7) == 8


@pytest.mark.parametrize("rounds", [False, -19])
def test_a_declared_loop_takes_what_the_real_run_takes(rounds: float) -> None:
    declared = workload(until_all_are_done, condition=rounds)
    assert tensor_bytes(trace(declared)) == tensor_bytes(profiled_run(declared))


def test_a_check_that_is_taken_to_pass_is_named_with_its_line_and_what_to_declare() -> None:
    found = trace(workload(until_all_are_done)).assumptions
    assert any(
        re.search(r'all\(\) .*test_unknown_values\.py:\d+.*values=\{"condition"', text) for text in found
    )


def test_checks_within_torch_pass_whatever_is_declared() -> None:
    def step(model: torch.nn.Module, x: torch.Tensor) -> None:
        torch.distributions.Normal(model(x), model(x).exp(), validate_args=True)

    assert trace(workload(step, condition=False)).events


def test_what_any_finite_number_answers_is_known() -> None:
    inf, nan = float("inf"), float("nan")
    known: dict[str, bool] = {}

    def step(model: torch.nn.Module, x: torch.Tensor) -> None:
        loss = model(x).square().mean()
        known.update(
            isfinite=bool(torch.isfinite(loss)),
            item=torch.isfinite(loss).item(),
            every=bool(torch.isfinite(model(x)).all()),
            isnan=bool(torch.isnan(loss)),
            isinf=bool(loss.isinf()),
            isneginf=bool(torch.isneginf(loss)),
            itself=bool(loss == loss),
            not_itself=bool(loss != loss),
            below=bool(loss < inf),
            above=bool(loss > -inf),
            absolute=bool(loss.abs() == inf),
            tensor=bool(torch.full((), inf) > loss),
            nan=bool(loss == nan),
        )
        if torch.isfinite(loss):
            loss.backward()

    found = trace(workload(step))
    holds = {"isfinite", "item", "every", "itself", "below", "above", "tensor"}
    assert known == {name: name in holds for name in known}
    assert found.assumptions == ["computed numbers are finite"]
    assert any("backward" in event.phase for event in found.events)


def test_what_finite_numbers_answer_differently_is_not_known() -> None:
    def step(model: torch.nn.Module, x: torch.Tensor) -> None:
        y = model(x)
        assert [bool(c) for c in (y.mean() < 1e9, y.sum() == y.mean(), y[0, 0] == y[0, 1])] == [False] * 3
        y.sum().backward()

    found = trace(workload(step))
    assert not any("finite" in text for text in found.assumptions)
    assert any("taken as false" in text for text in found.assumptions)


def test_parameters_of_a_lazy_module_are_those_of_its_first_forward() -> None:
    def step(model: torch.nn.Module, x: torch.Tensor) -> None:
        optimizer = torch.optim.Adam(model.parameters())
        model(x).sum().backward()
        optimizer.step()

    lazy = Workload(build=lambda: torch.nn.LazyLinear(16), batch=lambda: torch.randn(32, 8), step=step)
    said, real = trace(lazy), profiled_run(lazy)
    assert tensor_bytes(said) == tensor_bytes(real)
    assert (
        [m.parameter_count for m in said.modules]
        == [m.parameter_count for m in real.modules]
        == [8 * 16 + 16]
    )


def test_a_loop_that_never_ends_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"test_unknown_values\.py:\d+ was read .* never ends"):
        layers_called(condition=True)


def test_a_name_that_nothing_reads_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"'conditon'.*nearest: condition"):
        workload(looping, conditon=1)


def test_the_line_is_the_users_own_and_not_that_of_a_package_in_between() -> None:
    import typing_extensions

    @typing_extensions.deprecated("old", category=None)
    def select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x[mask]

    def step(model: torch.nn.Module, x: torch.Tensor) -> None:
        y = model(x)
        select(y, y > 0).sum().backward()

    with pytest.raises(UnsupportedError, match=r"test_unknown_values\.py:\d+ depends on .* at most 256"):
        trace(workload(step))


def test_a_hundred_thousand_tokens_are_routed_evenly_to_experts() -> None:
    tokens, width, experts = 100_000, 16, 4
    held: list[int] = []

    def step(router: torch.nn.Module, x: torch.Tensor) -> None:
        chosen = router(x).topk(2, -1).indices
        held[:] = [torch.where(chosen == expert)[0].numel() for expert in range(experts)]

    run = Workload(
        build=lambda: torch.nn.Linear(width, experts), batch=lambda: torch.randn(tokens, width), step=step
    )
    assert any("routing" in text for text in trace(run, device="cuda").assumptions)
    assert held == [tokens * 2 // experts] * experts


@pytest.mark.parametrize("values", [{}, {"condition": True, "item": 1.0}])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_line_search_of_lbfgs_takes_one_evaluation_and_does_not_end_the_iterations(
    device: str, values: dict[str, float]
) -> None:
    evaluations, iterations, asked = 0, 5, []

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Linear(64, 64)
        return model, torch.optim.LBFGS(
            model.parameters(), max_iter=iterations, line_search_fn="strong_wolfe"
        )

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        def closure() -> torch.Tensor:
            nonlocal evaluations
            evaluations += 1
            optimizer.zero_grad()
            loss = model(x).square().mean()
            asked.append(bool(loss > 0))
            loss.backward()
            return loss

        optimizer.step(closure)

    found = trace(
        Workload(build=build, batch=lambda: torch.randn(2, 64), step=step, values=values),
        device=device,
        steps=1,
    )
    assert evaluations == 1 + iterations
    # A condition of the closure is the program's own, and answered as declared.
    assert asked == [values.get("condition", False)] * evaluations
    assert "LBFGS's line search is taken to accept its first step" in found.assumptions
