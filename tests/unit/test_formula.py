"""The calculation by hand: formulas against real modules, feature maps against real runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from memgauge.arguments import TargetOptions
from memgauge.by_hand import by_hand
from memgauge.errors import UsageError, WorkloadError
from memgauge.formula import optimizers, totals
from memgauge.formula.records import LayerCall, OptimizerUse, OutputTensor, ParameterShape
from memgauge.workload import Workload

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from memgauge.frameworks.torch.element_types import bits_named, bits_of  # noqa: E402
from memgauge.frameworks.torch.parameter_formulas import evaluate, parameter_formula  # noqa: E402


def training(
    make: Callable[[], nn.Module],
    batch: Callable[[], Any],
    optimizer: Callable[..., Any] | None = None,
    loss: Callable[[Any], Any] = lambda output: output.sum(),
) -> Workload:
    """Return the plain training of a small network."""

    def build() -> Any:
        model = make()
        return model, (optimizer or torch.optim.SGD)(model.parameters(), lr=0.1)

    def step(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


# -- parameters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "formula"),
    [
        (nn.Conv2d(3, 64, 3), "64 × (3 × 3 × 3) + 64"),
        (nn.Conv2d(8, 16, (3, 5), groups=4, bias=False), "16 × (2 × 3 × 5)"),
        (nn.Conv1d(4, 6, 7), "6 × (4 × 7) + 6"),
        (nn.Conv3d(2, 5, 3), "5 × (2 × 3 × 3 × 3) + 5"),
        (nn.ConvTranspose2d(6, 4, 3, groups=2), "6 × (2 × 3 × 3) + 4"),
        (nn.Linear(5, 7), "7 × 5 + 7"),
        (nn.Linear(5, 7, bias=False), "7 × 5"),
        (nn.Bilinear(3, 4, 5), "5 × 3 × 4 + 5"),
        (nn.BatchNorm2d(9), "2 × 9"),
        (nn.LayerNorm((4, 5)), "2 × 20"),
        (nn.LayerNorm(6, bias=False), "6"),
        (nn.RMSNorm(8), "8"),
        (nn.GroupNorm(2, 8), "2 × 8"),
        (nn.Embedding(10, 3), "10 × 3"),
        (nn.RNN(3, 4), "1 × 4 × (3 + 4) + 2 × 1 × 4"),
        (nn.LSTM(3, 4, 2), "4 × 4 × (3 + 4) + 2 × 4 × 4 + 4 × 4 × (4 + 4) + 2 × 4 × 4"),
        (nn.GRU(3, 4, bias=False), "3 × 4 × (3 + 4)"),
        (nn.LSTMCell(3, 4), "4 × 4 × (3 + 4) + 2 × 4 × 4"),
        (nn.MultiheadAttention(8, 2), "3 × 8 × 8 + 3 × 8 + 8 × 8 + 8"),
        (nn.PReLU(3), "3"),
        (nn.ReLU(), ""),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_layers_parameters_are_written_out(module: nn.Module, formula: str) -> None:
    parameters = list(module.parameters())
    assert parameter_formula(module, parameters) == formula
    assert evaluate(formula) == sum(p.numel() for p in parameters)


@pytest.mark.parametrize(
    "module",
    [
        nn.LSTM(3, 4, 2, bidirectional=True),
        nn.LSTM(3, 4, proj_size=2),
        nn.MultiheadAttention(8, 2, kdim=3, vdim=5, add_bias_kv=True),
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)),
        nn.BatchNorm1d(4, affine=False),
        nn.Transformer(8, 2, 1, 1, 16),
    ],
    ids=lambda module: type(module).__name__,
)
def test_a_formula_is_true_where_the_kind_is_not_plain(module: nn.Module) -> None:
    parameters = list(module.parameters())
    assert evaluate(parameter_formula(module, parameters)) == sum(p.numel() for p in parameters)


def test_only_sums_and_products_are_evaluated() -> None:
    with pytest.raises(ValueError, match="not a formula"):
        evaluate("__import__('os')")


# -- the layer table ----------------------------------------------------------------------------------


class Residual(nn.Module):
    """A shortcut, an in-place layer, a layer called twice, a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.again = nn.Conv2d(4, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.flat = nn.Flatten()
        self.dense = nn.Linear(8 * 4 * 4, 5)

    def forward(self, x: Any) -> Any:
        x = self.relu(self.norm(self.first(x)))
        x = x + self.again(x)
        x = torch.cat([x, self.again(x)], 1)
        return self.dense(self.flat(self.pool(x)))


class Token(nn.Module):
    """Direct parameters of the root, attention that uses its children's weights, a tuple returned."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.idle = nn.Linear(3, 3)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        mixed, _ = self.attention(x, x, x, need_weights=False)
        return self.head(mixed[:, 0])


class Tied(nn.Module):
    """One weight under two names, and a dictionary returned by a layer."""

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(6))

        def forward(self, x: Any) -> Any:
            return {"scaled": x * self.scale, "plus": (x + 1, None)}

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10, 6)
        self.wrapped = self.Wrapped()
        self.output = nn.Linear(6, 10, bias=False)
        self.output.weight = self.tokens.weight

    def forward(self, x: Any) -> Any:
        return self.output(self.wrapped(self.tokens(x))["scaled"])


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "residual": (Residual, lambda: torch.randn(2, 3, 8, 8)),
    "token": (Token, lambda: torch.randn(2, 3, 8)),
    "tied": (Tied, lambda: torch.randint(0, 10, (2, 5))),
    "mlp": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Dropout(0.5), nn.Linear(6, 2)),
        lambda: torch.randn(3, 4),
    ),
    "recurrent": (lambda: Recurrent(), lambda: torch.randn(2, 5, 3)),
    "alone": (lambda: nn.Linear(4, 2), lambda: torch.randn(3, 4)),
}


class Recurrent(nn.Module):
    """An LSTM, whose call returns three tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.lstm(x)[0]


def tensors_of(nest: Any) -> list[Any]:
    if isinstance(nest, torch.Tensor):
        return [nest]
    values = nest.values() if isinstance(nest, dict) else nest if isinstance(nest, (tuple, list)) else ()
    return [t for value in values for t in tensors_of(value)]


def maps_of_a_real_run(model: nn.Module, x: Any) -> dict[str, int]:
    """Return the bytes that each called layer really returns, by hooks on a real forward pass."""
    found: dict[str, int] = {}
    callers: list[str] = []
    stack: list[str] = []
    handles = []
    for name, module in model.named_modules():

        def enter(*_: Any, name: str = name) -> None:
            callers.extend(stack[-1:])
            stack.append(name)

        def leave(_m: Any, _i: Any, output: Any, name: str = name) -> None:
            stack.pop()
            found[name] = found.get(name, 0) + sum(t.numel() * t.element_size() for t in tensors_of(output))

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    model(x)
    for handle in handles:
        handle.remove()
    return {name: count for name, count in found.items() if name not in callers}


@pytest.mark.parametrize("name", NETWORKS)
def test_feature_maps_are_those_of_a_real_run(name: str) -> None:
    make, batch = NETWORKS[name]
    formula = by_hand(training(make, batch))
    assert {r.path: r.feature_map_bytes for r in formula.layers if r.calls} == maps_of_a_real_run(
        make(), batch()
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_is_counted_once(name: str) -> None:
    make, batch = NETWORKS[name]
    formula = by_hand(training(make, batch))
    real = list(make().parameters())
    assert formula.parameters == sum(p.numel() for p in real)
    assert formula.training is not None
    assert formula.training.parameter_bytes == sum(p.numel() * p.element_size() for p in real)
    assert all(evaluate(row.parameter_formula) == row.parameters for row in formula.layers)


def row_of(workload: Workload, path: str) -> Any:
    return next(row for row in by_hand(workload).layers if row.path == path)


def test_a_layer_that_is_called_twice_counts_two_outputs_and_one_set_of_parameters() -> None:
    row = row_of(training(*NETWORKS["residual"]), "again")
    assert (row.calls, row.parameters, row.feature_map_bytes) == (2, 4 * 4 * 9 + 4, 2 * (2 * 4 * 8 * 8 * 4))


def test_shared_parameters_are_counted_where_they_come_first_and_say_so() -> None:
    row = row_of(training(*NETWORKS["tied"]), "output")
    assert (row.parameters, row.parameter_formula) == (0, "")
    assert row.note == "shares parameters with tokens, counted there"


def test_direct_parameters_and_uncalled_modules_have_rows_of_their_own() -> None:
    rows = {row.path: row for row in by_hand(training(*NETWORKS["token"])).layers}
    assert (rows[""].parameters, rows[""].calls, rows[""].note) == (8, 0, "held by the module itself")
    assert (rows["idle"].parameters, rows["idle"].note) == (12, "not called as a module")
    assert rows["attention"].parameters == 4 * 8 * 8 + 4 * 8
    assert "attention.out_proj" not in rows


def test_a_call_that_returns_several_tensors_lists_them_all() -> None:
    row = row_of(training(*NETWORKS["recurrent"]), "lstm")
    assert row.output_shapes == ((2, 5, 4), (2, 2, 4), (2, 2, 4))


def test_frozen_parameters_have_no_gradient_and_no_state() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        model[0].requires_grad_(False)
        return model

    formula = by_hand(training(make, lambda: torch.randn(3, 4), torch.optim.Adam))
    assert formula.training is not None
    assert (formula.training.parameter_bytes, formula.training.gradient_bytes) == (30 * 4, 10 * 4)
    assert formula.training.optimizer_state_bytes == 2 * 10 * 4 + 2 * 4


def test_a_checkpointed_layer_is_counted_once() -> None:
    plain = by_hand("zoo:gpt2", sets=SMALL_GPT)
    again = by_hand("zoo:gpt2", options=TargetOptions(checkpointing=True), sets=SMALL_GPT)
    assert plain.layers == again.layers


SMALL_GPT = {"layers": "2", "width": "32", "heads": "2", "sequence_length": "8", "batch_size": "2"}


# -- totals ---------------------------------------------------------------------------------------------


def test_totals_add_up_as_one_does_it_by_hand() -> None:
    make, batch = NETWORKS["mlp"]
    found = by_hand(training(make, batch, torch.optim.Adam))
    parameters, maps = 44 * 4, (18 + 18 + 18 + 6) * 4
    assert found.training is not None
    assert found.training.total_bytes == parameters * 4 + 4 * 4 + 2 * maps + 3 * 4 * 4
    assert found.inference.two_largest_bytes == 2 * 18 * 4
    assert found.inference.layers == ("0", "1")
    assert found.inference.total_bytes == parameters + 2 * 18 * 4 + 48


def call(path: str, count: int) -> LayerCall:
    return LayerCall(1, path, (OutputTensor(count, None, "new"),))


def test_the_two_largest_maps_must_be_neighbours() -> None:
    calls = [call("a", 9), call("b", 1), call("c", 6), call("d", 5)]
    assert [c.path for c in totals.largest_pair(calls)] == ["c", "d"]
    assert [c.path for c in totals.largest_pair(calls[:1])] == ["a"]


def test_inference_has_no_training() -> None:
    found = by_hand("zoo:mlp", options=TargetOptions(mode="infer"))
    assert (found.training, found.optimizer_state, found.mode) == (None, (), "infer")


# -- element types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("float64", 64),
        ("double", 64),
        ("bfloat16", 16),
        ("float8_e4m3fn", 8),
        ("float4_e2m1fn_x2", 4),
        ("int8", 8),
        ("uint4", 4),
        ("int1", 1),
        ("complex64", 64),
    ],
)
def test_every_element_type_has_its_bits(name: str, bits: int) -> None:
    assert bits_named(name) == bits


def test_every_whole_byte_type_agrees_with_torch() -> None:
    for dtype in (torch.float32, torch.float16, torch.int64, torch.bool, torch.float8_e5m2):
        assert bits_of(dtype) == 8 * dtype.itemsize


@pytest.mark.parametrize(
    ("precision", "each"),
    [("float64", 8.0), ("float16", 2.0), ("float8_e5m2", 1.0), ("float4_e2m1fn_x2", 0.5)],
)
def test_bytes_follow_the_element_type(precision: str, each: float) -> None:
    found = by_hand("zoo:mlp", precision=precision, options=TargetOptions(batch_size=2))
    assert found.inference.parameter_bytes == pytest.approx(669_706 * each, abs=3)
    assert found.inference.two_largest_bytes == 2 * 2 * 512 * each
    assert found.element_type == precision
    assert bool(found.assumptions) == (each <= 1)


def test_autocast_keeps_parameters_and_halves_what_it_casts() -> None:
    found = by_hand("zoo:mlp", options=TargetOptions(precision="amp-bfloat16", batch_size=2))
    assert found.inference.parameter_bytes == 669_706 * 4
    assert found.inference.two_largest_bytes == 2 * 2 * 512 * 2


def test_an_unknown_element_type_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'bfloat61' is unknown \(nearest: bfloat16"):
        by_hand("zoo:mlp", precision="bfloat61")


# -- optimizers ---------------------------------------------------------------------------------------------

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True}),
    ("Adam", {"foreach": True}),
    ("Adam", {"fused": True}),
    ("AdamW", {}),
    ("AdamW", {"amsgrad": True}),
    ("Adagrad", {}),
    ("RMSprop", {}),
    ("RMSprop", {"centered": True}),
    ("RMSprop", {"centered": True, "momentum": 0.5}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("ASGD", {}),
    ("Rprop", {}),
    ("Adafactor", {}),
    ("Muon", {}),
    ("LBFGS", {"history_size": 3}),
    ("SparseAdam", {}),
]


def real_state_bytes(optimizer: Any) -> int:
    found: dict[int, int] = {}

    def walk(nest: Any) -> None:
        if isinstance(nest, torch.Tensor):
            found[nest.untyped_storage().data_ptr()] = nest.untyped_storage().nbytes()
        elif isinstance(nest, dict):
            for value in nest.values():
                walk(value)
        elif isinstance(nest, (list, tuple)):
            for value in nest:
                walk(value)

    walk(dict(optimizer.state))
    return sum(found.values())


@pytest.mark.parametrize(
    ("name", "options"), VARIANTS, ids=lambda v: v if isinstance(v, str) else "-".join(v)
)
def test_an_optimizers_formula_is_the_state_it_really_has(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    shapes = [(6, 5), (7, 3)] if name == "Muon" else [(6, 5), (7,), (2, 3, 4), (1,)]
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    optimizer = getattr(torch.optim, name)(parameters, **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = sum(((p**4).sum() + (p**2 * torch.arange(p.numel()).view(p.shape)).sum()) for p in parameters)
        loss.backward()
        if name == "SparseAdam":
            for p in parameters:
                p.grad = p.grad.to_sparse()
        return loss

    for _ in range(2):
        if name == "LBFGS":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    use = OptimizerUse((name,), ((group, tuple(ParameterShape(shape, 32) for shape in shapes)),))
    told = sum(row.state_bytes for row in optimizers.state_rows(use))
    real = real_state_bytes(optimizer)
    if name == "LBFGS":  # some of its numbers share a storage or are Python's
        assert told == pytest.approx(real, abs=8 * 4)
    else:
        assert told == real


def test_every_optimizer_of_torch_has_a_formula() -> None:
    classes = {
        n
        for n, c in vars(torch.optim).items()
        if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)
    }
    assert set(optimizers.RULES) == classes - {"Optimizer"}


def test_counters_stay_on_the_host_of_a_gpu_run() -> None:
    use = OptimizerUse(("Adam",), (({}, (ParameterShape((10,), 32),)),))
    on_cpu, on_gpu = (
        sum(r.state_bytes for r in optimizers.state_rows(use, on_gpu=gpu)) for gpu in (False, True)
    )
    assert (on_cpu, on_gpu) == (84, 80)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("sgd", 0),
        ("sgd,momentum=0.9", 1),
        ("adamw,amsgrad=true", 3),
        ("lbfgs,history_size=4", 10),
        ("sparseadam", 2),
    ],
)
def test_an_optimizer_is_chosen_by_name(name: str, sizes: int) -> None:
    found = by_hand("zoo:mlp", options=TargetOptions(optimizer=name))
    assert found.training is not None
    assert found.training.optimizer_state_bytes == pytest.approx(sizes * 669_706 * 4, abs=64)


def test_an_optimizer_the_network_cannot_use_is_counted_and_said() -> None:
    found = by_hand("zoo:mlp", options=TargetOptions(optimizer="muon"))
    assert [row.name for row in found.optimizer_state] == ["momentum_buffer"]
    assert found.optimizer_state[0].state_bytes == (784 * 512 + 512 * 512 + 512 * 10) * 4
    assert any("Muon is counted over all trained parameters" in line for line in found.assumptions)


def test_an_unknown_optimizer_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'adamx' is unknown \(nearest: adamax"):
        by_hand("zoo:mlp", options=TargetOptions(optimizer="adamx"))


def test_a_users_own_optimizer_is_counted_as_its_parent_or_read_off() -> None:
    class Mine(torch.optim.Adam):
        pass

    class Other(torch.optim.Optimizer):
        def __init__(self, parameters: Any, lr: float) -> None:
            super().__init__(parameters, {"lr": lr})

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["three"] = torch.zeros(3, *p.shape)

    mine = by_hand(training(*NETWORKS["mlp"], Mine))
    other = by_hand(training(*NETWORKS["mlp"], Other))
    assert mine.optimizer_state[0].optimizer == "Adam"
    assert other.optimizer_state[0].state_bytes == 3 * 44 * 4
    assert "read off" in other.optimizer_state[0].formula


# -- what has no layer table ----------------------------------------------------------------------------------


def test_a_bare_function_is_offered_the_trace() -> None:
    def step(weight: Any, x: Any) -> None:
        (x @ weight).sum().backward()

    workload = Workload(
        build=lambda: torch.randn(3, 2, requires_grad=True), batch=lambda: torch.randn(4, 3), step=step
    )
    with pytest.raises(UsageError, match=r"no layer table.*no torch.nn.Module.*--method trace"):
        by_hand(workload)


def test_modules_that_are_not_called_are_no_table() -> None:
    workload = Workload(
        build=lambda: nn.Linear(3, 2),
        batch=lambda: torch.randn(4, 3),
        step=lambda m, x: (x @ m.weight.T).sum().backward(),
    )
    with pytest.raises(UsageError, match="calls none of the modules"):
        by_hand(workload)


def test_shapes_that_change_from_step_to_step_are_no_table() -> None:
    lengths = iter([4, 7, 5, 6])
    workload = training(lambda: nn.Linear(3, 2), lambda: torch.randn(next(lengths), 3))
    with pytest.raises(UsageError, match=r"shapes are dynamic: step 2 differs from step 1.*--method trace"):
        by_hand(workload)


def test_shapes_that_depend_on_values_are_no_table() -> None:
    class Selects(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            return self.dense(x[(x > 0).any(1)])

    with pytest.raises(UsageError, match=r"no layer table.*--method trace"):
        by_hand(training(Selects, lambda: torch.randn(100, 3)))


def test_a_fault_of_the_users_code_is_told_as_such() -> None:
    with pytest.raises(WorkloadError, match="reduction dim"):
        by_hand(training(lambda: nn.Linear(3, 2), lambda: torch.randn(4, 5)))


def test_seventy_billion_parameters_take_seconds() -> None:
    import time

    begin = time.monotonic()
    found = by_hand("zoo:llama-70b", options=TargetOptions(precision="bfloat16"))
    assert found.parameters == 70_553_706_496
    assert found.inference.parameter_bytes == 2 * 70_553_706_496
    assert time.monotonic() - begin < 60


def test_a_weight_that_is_computed_belongs_to_its_layer() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)), nn.Linear(5, 2))

    first, second = by_hand(training(make, lambda: torch.randn(3, 6))).layers
    assert (first.path, first.parameters, first.feature_map_bytes) == ("0", 6 * 5 + 5 + 5, 3 * 5 * 4)
    assert (second.path, second.parameters) == ("1", 12)


def test_a_parameter_that_only_the_optimizer_knows_is_counted() -> None:
    def build():  # type: ignore[no-untyped-def]
        model, extra = nn.Linear(4, 2), nn.Parameter(torch.zeros(7))
        return model, torch.optim.SGD([*model.parameters(), extra], lr=0.1)

    def step(model: Any, optimizer: Any, x: Any) -> None:
        (model(x).sum() + optimizer.param_groups[0]["params"][-1].sum()).backward()
        optimizer.step()

    found = by_hand(Workload(build=build, batch=lambda: torch.randn(3, 4), step=step))
    assert found.parameters == 10 + 7
    assert found.layers[-1].note == "known to the optimizer only"


def test_two_networks_are_told_apart() -> None:
    rows = by_hand("zoo:dcgan", sets={"width": "4", "batch_size": "2"}).layers
    assert (
        sum(r.parameters for r in rows if r.path.startswith("Generator."))
        == 100 * 32 * 16 + 64 + sum(i * o * 16 + 2 * o for i, o in ((32, 16), (16, 8), (8, 4))) + 4 * 3 * 16
    )
    assert {r.calls for r in rows if r.path.startswith("Discriminator.")} == {3}


def test_inference_mode_is_followed() -> None:
    def step(model: Any, x: Any) -> Any:
        with torch.inference_mode():
            return model(x)

    def build() -> Any:
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2)).eval()

    found = by_hand(Workload(build=build, batch=lambda: torch.randn(3, 4), step=step, mode="infer"))
    assert found.inference.two_largest_bytes == 2 * 3 * 8 * 4


def test_training_without_an_optimizer_is_training() -> None:
    def step(model: Any, x: Any) -> None:
        model(x).sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None

    workload = Workload(build=lambda: nn.Linear(4, 2), batch=lambda: torch.randn(3, 4), step=step)
    found = by_hand(workload)
    assert found.training is not None
    assert (found.training.gradient_bytes, found.training.optimizer_state_bytes) == (40, 0)
    assert "build() returned no optimizer: no state is counted" in found.assumptions


def test_a_step_that_never_goes_backward_is_inference() -> None:
    workload = Workload(
        build=lambda: nn.Linear(4, 2), batch=lambda: torch.randn(3, 4), step=lambda model, x: model(x)
    )
    found = by_hand(workload)
    assert found.training is None
    assert "the step never called backward: inference only" in found.assumptions


def test_layers_under_vmap_count_the_whole_batch() -> None:
    def step(model: Any, optimizer: Any, x: Any) -> None:
        parameters = dict(model.named_parameters())

        def loss_of(parameters: Any, x: Any) -> Any:
            return torch.func.functional_call(model, parameters, (x,)).sum()

        gradients = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))(parameters, x)
        for name, parameter in parameters.items():
            parameter.grad = gradients[name].mean(0)
        optimizer.step()

    def build() -> Any:
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    found = by_hand(Workload(build=build, batch=lambda: torch.randn(3, 4), step=step))
    assert [row.feature_map_bytes for row in found.layers] == [3 * 8 * 4, 3 * 8 * 4, 3 * 2 * 4]
