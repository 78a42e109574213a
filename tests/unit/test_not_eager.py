"""What is not eager PyTorch is named: on either target, never silently traced as if it were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from memgauge.errors import UnsupportedError, WorkloadError  # noqa: E402
from memgauge.frameworks.torch.trace import trace  # noqa: E402
from memgauge.records import Trace  # noqa: E402
from memgauge.workload import Workload  # noqa: E402

TARGETS = ("cpu", "cuda")


def traced(step: Callable[..., Any], build: Callable[..., Any] | None = None, device: str = "cpu") -> Trace:
    workload = Workload(
        build=build or (lambda: nn.Linear(4, 4)), batch=lambda: torch.randn(2, 4), step=step, mode="infer"
    )
    return trace(workload, device=device, steps=1)


def call(model: Any, x: Any) -> Any:
    return model(x)


@pytest.mark.parametrize(
    "step",
    [
        lambda model, x: model(x).cuda(),
        lambda model, x: model(x.to("cuda")),
        lambda model, x: model(x) + torch.zeros(1, device="cuda"),
    ],
)
def test_a_device_written_out_gets_the_line_to_write_instead(step: Callable[..., Any]) -> None:
    with pytest.raises(
        WorkloadError, match=r"test_not_eager\.py:\d+: .*write \.to\(device\).*def build\(device\)"
    ):
        traced(step)


def test_a_device_written_out_in_build_is_named_too() -> None:
    with pytest.raises(WorkloadError, match=r"test_not_eager\.py:\d+"):
        traced(call, lambda: nn.Linear(4, 4, device="cuda"))


@pytest.mark.parametrize("device", TARGETS)
def test_compiling_in_build_is_named_and_traced_as_eager_code(device: str) -> None:
    plain = traced(call, device=device)
    result = traced(call, lambda: torch.compile(nn.Linear(4, 4)), device)
    assert [e.requested_bytes for e in result.events] == [e.requested_bytes for e in plain.events]
    assert any("torch.compile (Linear)" in note for note in result.unmodelled)


@pytest.mark.parametrize("device", TARGETS)
def test_compiling_before_is_named(device: str) -> None:
    compiled = torch.compile(nn.Linear(4, 4))
    assert any("torch.compile (Linear)" in note for note in traced(call, lambda: compiled, device).unmodelled)


@pytest.mark.parametrize("device", TARGETS)
def test_a_compiled_function_of_the_step_is_named(device: str) -> None:
    @torch.compile
    def double(x: Any) -> Any:
        return x * 2

    result = traced(lambda model, x: double(model(x)), device=device)
    assert any("torch.compile (double)" in note for note in result.unmodelled)


@pytest.mark.parametrize("device", TARGETS)
def test_a_compiled_step_is_named_and_so_is_what_it_calls(device: str) -> None:
    @torch.compile
    def double(x: Any) -> Any:
        return x * 2

    @torch.compile
    def step(model: Any, x: Any) -> Any:
        return double(model(x))

    notes = traced(step, device=device).unmodelled
    assert all(any(f"torch.compile ({name})" in note for note in notes) for name in ("step", "double"))


def test_nothing_is_named_where_nothing_is_compiled() -> None:
    assert not traced(call).unmodelled


@pytest.mark.parametrize("device", TARGETS)
def test_a_higher_order_operator_is_named_with_the_users_line(device: str) -> None:
    from torch.nn.attention import flex_attention

    def step(model: Any, x: Any) -> Any:
        q = torch.randn(1, 1, 128, 16, device=x.device)
        return flex_attention.flex_attention(q, q, q)

    with pytest.raises(UnsupportedError, match=r"flex_attention at .*test_not_eager\.py:\d+"):
        traced(step, device=device)


@pytest.mark.parametrize("device", TARGETS)
def test_flex_attention_is_named_where_it_is_trained_with_a_score_of_ones_own(device: str) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def step(model: Any, x: Any) -> None:
        q = model(x)[None, None]
        flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + (i - j)).sum().backward()

    with pytest.raises(UnsupportedError, match=r"flex_attention at .*test_not_eager\.py:\d+"):
        traced(step, device=device)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantised_operator_is_named_with_the_users_line() -> None:
    def step(model: Any, x: Any) -> Any:
        return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)

    with pytest.raises(UnsupportedError, match=r"quant.* at .*test_not_eager\.py:\d+ is quantised"):
        traced(step)


def test_a_quantised_module_is_named() -> None:
    from torch.ao.nn.quantized import Linear

    before = Linear(4, 4)
    with pytest.raises(UnsupportedError, match=r'module "0" \(Linear\) is quantised'):
        traced(call, lambda: nn.Sequential(before))


@pytest.mark.parametrize("device", TARGETS)
def test_an_operator_without_a_shape_rule_is_named_with_the_users_line(device: str) -> None:
    library = torch.library.Library("memgauge_test", "FRAGMENT")
    try:
        library.define(f"opaque_{device}(Tensor x) -> Tensor")
        library.impl(f"opaque_{device}", lambda x: x.clone(), "CPU")
        operator = getattr(torch.ops.memgauge_test, f"opaque_{device}")
        message = rf"memgauge_test\.opaque_{device} at .*test_not_eager\.py:\d+.*register_fake"
        with pytest.raises(UnsupportedError, match=message):
            traced(lambda model, x: operator(model(x)), device=device)
    finally:
        library._destroy()


def test_torch_compile_is_put_back() -> None:
    before = torch.compile
    traced(call)
    assert torch.compile is before


def strided(model: Any, x: Any) -> Any:
    return model(torch.nested.nested_tensor([x, x[:1]])).to_padded_tensor(0.0)


def jagged(model: Any, x: Any) -> Any:
    return model(torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged)).values()


def jagged_and_moved(model: Any, x: Any) -> Any:
    rows = torch.zeros(2, 4, device="cpu")
    return model(torch.nested.nested_tensor([rows, rows[:1]], layout=torch.jagged).to(x.device)).values()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("device", "step"),
    [("cpu", strided), ("cuda", strided), ("cuda", jagged), ("cuda", jagged_and_moved)],
)
def test_nested_tensors_are_named_with_the_users_line(device: str, step: Callable[..., Any]) -> None:
    # A trace that follows jagged ones on CUDA aborts the interpreter: no exception of Python's.
    with pytest.raises(UnsupportedError, match=r"test_not_eager\.py:\d+: nested tensors"):
        traced(step, device=device)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("device", TARGETS)
def test_the_nested_tensors_of_an_encoder_come_with_how_to_leave_them_out(device: str) -> None:
    def build(**options: Any) -> Any:
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        return nn.TransformerEncoder(layer, 1, **options).eval()

    def step(model: Any, x: Any) -> Any:
        padded = torch.tensor([[False, True]], device=x.device)
        with torch.no_grad():
            return model(x[None], src_key_padding_mask=padded)

    with pytest.raises(UnsupportedError, match=r"test_not_eager\.py:\d+: .*enable_nested_tensor=False"):
        traced(step, build, device)
    assert traced(step, lambda: build(enable_nested_tensor=False), device).events
