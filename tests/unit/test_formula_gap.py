"""Formula against trace: every byte of the difference has a name, and the names are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from memgauge.arguments import TargetOptions
from memgauge.by_hand import both
from memgauge.errors import UsageError
from memgauge.estimate import estimate
from memgauge.formula.reasons import extra_name
from memgauge.formula.records import Both
from memgauge.records import MemoryEvent
from memgauge.workload import Workload

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

DEVICES = ("cpu", "nvidia-a100-80gb")
KIB = 1024


def run(
    model: Callable[[], nn.Module], shape: tuple[int, ...], *, device: str = "cpu", infer: bool = False
) -> Both:
    """Return both methods for a small network trained by SGD, whose peak is at the end of its forward pass."""

    def build() -> Any:
        made = model()
        return made if infer else (made, torch.optim.SGD(made.parameters(), lr=0.1))

    def train(made: Any, optimizer: Any, x: Any) -> None:
        optimizer.zero_grad()
        made(x).sum().backward()
        optimizer.step()

    def predict(made: Any, x: Any) -> Any:
        with torch.no_grad():
            return made(x)

    mode = "infer" if infer else "train"
    workload = Workload(
        build=build, batch=lambda: torch.randn(shape), step=predict if infer else train, mode=mode
    )
    return both(workload, device=device, threads=1)


def named(found: Both) -> dict[str, int]:
    return {item.name: item.gap_bytes for item in found.gap}


def assert_adds_up(found: Both) -> None:
    assert sum(item.gap_bytes for item in found.gap) == found.difference_bytes
    assert found.difference_bytes == found.trace_bytes - found.formula_bytes
    assert sum(row.difference_bytes for row in found.categories) == found.difference_bytes
    assert sum(row.formula_bytes for row in found.categories) == found.formula_bytes
    for row in found.categories:
        assert sum(i.gap_bytes for i in found.gap if i.category == row.name) == row.difference_bytes
    for item in found.gap:
        assert item.why
        if item.parts_bytes:
            assert sum(item.parts_bytes.values()) == item.gap_bytes
    assert "remainder" not in named(found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("target", "options", "sets"),
    [
        ("zoo:torres-cnn", {}, {}),
        ("zoo:torres-cnn", {"mode": "infer"}, {}),
        ("zoo:resnet50", {"batch_size": 2}, {}),
        ("zoo:resnet50", {"batch_size": 2, "checkpointing": True}, {}),
        ("zoo:googlenet", {"batch_size": 2, "mode": "infer"}, {}),
        ("zoo:vit-b16", {"batch_size": 2, "precision": "amp-bfloat16"}, {"layers": "2", "dropout": "0.1"}),
        ("zoo:gpt2", {"batch_size": 2}, {"layers": "2", "width": "64", "heads": "2", "dropout": "0.1"}),
        ("zoo:lstm", {}, {"vocabulary": "500"}),
        ("zoo:dcgan", {"batch_size": 4}, {"width": "8"}),
        ("zoo:mlp", {"optimizer": "adafactor"}, {}),
        ("zoo:mlp", {"optimizer": "lbfgs,history_size=2"}, {}),
    ],
)
def test_the_items_add_up_to_the_difference(
    target: str, options: dict[str, Any], sets: dict[str, str], device: str
) -> None:
    found = both(target, device=device, options=TargetOptions(**options), sets=sets, threads=1)
    assert_adds_up(found)


def test_the_traces_side_is_the_estimate() -> None:
    found = both("zoo:torres-cnn", threads=1)
    alone = estimate("zoo:torres-cnn", threads=1, host=False)
    assert found.trace.peak == alone.peak
    assert found.trace_bytes == alone.peak.allocated_bytes
    assert found.trace.at_peak == alone.at_peak


def test_a_relu_in_place_is_counted_twice_by_hand() -> None:
    found = run(lambda: nn.Sequential(nn.Linear(8, 256), nn.ReLU(inplace=True), nn.Linear(256, 256)), (32, 8))
    assert named(found)["in-place results counted twice"] == -32 * 256 * 4
    assert_adds_up(found)


def test_flattening_takes_nothing() -> None:
    found = run(
        lambda: nn.Sequential(nn.Linear(8, 256), nn.Unflatten(1, (4, 64)), nn.Flatten(), nn.GELU()), (32, 8)
    )
    views = next(item for item in found.gap if item.name == "views counted as memory")
    assert views.parts_bytes == {"Unflatten": -32 * 256 * 4, "Flatten": -32 * 256 * 4}
    assert named(found)["gradients of in-place results and views counted twice"] == -2 * 32 * 256 * 4


def test_pooling_keeps_an_index_for_each_output() -> None:
    found = run(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.MaxPool2d(2), nn.GELU()),
        (4, 3, 32, 32),
        device="nvidia-a100-80gb",  # no workspace of a pointwise convolution above it
    )
    assert named(found)["indices of pooling"] == 4 * 8 * 16 * 16 * 8


@pytest.mark.parametrize(("device", "element"), [("cpu", 4), ("nvidia-a100-80gb", 1)])
def test_dropout_keeps_a_mask(device: str, element: int) -> None:
    found = run(lambda: nn.Sequential(nn.Linear(8, 512), nn.Dropout(0.5), nn.GELU()), (64, 8), device=device)
    assert named(found)["masks of dropout"] == 64 * 512 * element


def test_sums_and_concatenations_belong_to_no_layer() -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            y = self.dense(x)
            return nn.functional.gelu(torch.cat([y, y + x], 1))

    found = run(Adds, (64, 16))
    item = next(i for i in found.gap if i.name == "results of functions between layers")
    assert item.parts_bytes["aten.cat"] == 64 * 32 * 4


def test_normalisation_keeps_statistics_and_buffers() -> None:
    found = run(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU()), (4, 3, 16, 16))
    assert named(found)["statistics of normalisation"] == 2 * 8 * 4
    assert named(found)["buffers, such as running statistics"] == 2 * 8 * 4 + 8


def test_workspaces_are_beside_the_formula() -> None:
    found = both("zoo:torres-cnn", threads=1)
    assert named(found)["workspaces of kernels"] == found.trace.at_peak.categories["workspace"]


def test_blocks_of_a_gpu_are_rounded_up() -> None:
    found = run(lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), (5, 3), device="nvidia-a100-80gb")
    parameters = {row.name: row for row in found.categories}["parameter"]
    assert parameters.trace_bytes == 4 * 512
    item = next(i for i in found.gap if i.category == "parameter")
    assert (item.name, item.gap_bytes) == ("rounding by the allocator", 4 * 512 - 24 * 4)


def test_inference_counts_two_maps_and_names_what_else_lives() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

        def forward(self, x: Any) -> Any:
            kept = []
            for layer in self.layers:
                x = layer(x)
                kept.append(x)
            return kept

    found = run(Keeps, (32, 64), infer=True)
    assert found.formula.training is None
    assert named(found)["outputs of layers beyond the two largest"] == 2 * 32 * 64 * 4
    assert_adds_up(found)


def test_a_gap_in_a_later_step_adds_up() -> None:
    assert_adds_up(both("zoo:mlp", steps=6, device="nvidia-a100-80gb"))


def test_no_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one step"):
        both("zoo:mlp", steps=0)


class _Called(nn.Module):
    """A network whose forward pass is a function, so that layers and functions can be mixed."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self._forward = forward

    def forward(self, x: Any) -> Any:
        return self._forward(self, x)


def test_what_a_pooling_function_returns_is_no_index() -> None:
    pool = nn.functional.max_pool2d
    found = run(
        lambda: _Called(lambda m, x: m.b(pool(m.a(x), 2)), a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 4, 1)),
        (8, 3, 32, 32),
        device="nvidia-a100-80gb",
    )
    outputs = 8 * 8 * 16 * 16
    assert named(found)["indices of pooling"] == 8 * outputs
    assert_adds_up(found)
    made = MemoryEvent(0, 4 * outputs, "step 1 forward", "", "aten.max_pool2d_with_indices")
    assert extra_name(made, "Net", is_layer=False, output=0) == "results of functions between layers"
    assert extra_name(made, "Net", is_layer=False, output=1) == "indices of pooling"


def test_what_a_dropout_function_returns_is_no_mask() -> None:
    drop = nn.functional.dropout
    found = run(
        lambda: _Called(lambda m, x: m.b(drop(m.a(x))), a=nn.Linear(64, 64), b=nn.Linear(64, 8)),
        (128, 64),
        device="nvidia-a100-80gb",
    )
    assert named(found)["masks of dropout"] == 128 * 64
    beside = named(found)["results of functions between layers"] - 4 * 128 * 64
    assert 0 <= beside <= 16  # the sum
    assert_adds_up(found)


def test_what_checkpointing_drops_is_named_after_it() -> None:
    from torch.utils.checkpoint import checkpoint

    def forward(made: Any, x: Any) -> Any:
        return checkpoint(made.block, x, use_reentrant=False)

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))

    found = run(lambda: _Called(forward, block=block()), (256, 64))
    dropped = named(found)["outputs that checkpointing computes again"]
    assert dropped <= -2 * 4 * 256 * 64
    assert_adds_up(found)


def test_parameters_that_the_loss_does_not_reach_have_neither_gradient_nor_state() -> None:
    def build() -> Any:
        made = _Called(lambda m, x: m.used(x), used=nn.Linear(64, 8), idle=nn.Linear(100, 100))
        return made, torch.optim.Adam(made.parameters())

    def step(made: Any, optimizer: Any, x: Any) -> None:
        optimizer.zero_grad()
        made(x).sum().backward()
        optimizer.step()

    found = both(Workload(build=build, batch=lambda: torch.randn(16, 64), step=step), threads=1)
    idle = 4 * (100 * 100 + 100)
    assert named(found)["gradients of parameters that the loss does not reach"] == -idle
    assert named(found)["optimizer state of parameters that the loss does not reach"] == pytest.approx(
        -2 * idle, rel=0.01
    )
    assert_adds_up(found)


def test_views_in_a_batch_count_once_and_with_what_they_hold() -> None:
    def batch() -> Any:
        x = torch.randn(64, 100)
        return x, x[:1], torch.ones(1).expand(1000, 1000)

    def step(made: Any, made_batch: Any) -> None:
        made(made_batch[0]).sum().backward()

    found = both(Workload(build=lambda: nn.Linear(100, 10), batch=batch, step=step), threads=1)
    inputs = next(row for row in found.categories if row.name == "input")
    assert inputs.formula_bytes == inputs.trace_bytes == 4 * 64 * 100 + 4
