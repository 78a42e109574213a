"""A trace for CUDA on a build without it: one test for each entry of docs/cuda-semantics.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
nn = torch.nn

import memgauge  # noqa: E402
from memgauge import devices  # noqa: E402
from memgauge.allocators import cuda_caching  # noqa: E402
from memgauge.errors import WorkloadError  # noqa: E402
from memgauge.frameworks.torch import cuda_autocast  # noqa: E402
from memgauge.frameworks.torch.cuda_devices import Card  # noqa: E402
from memgauge.frameworks.torch.trace import trace  # noqa: E402
from memgauge.records import Category, Trace  # noqa: E402
from memgauge.units import MIB  # noqa: E402
from memgauge.workload import Workload  # noqa: E402


def traced(
    step: Callable[..., Any],
    build: Callable[..., Any] = lambda: (),
    batch: Callable[..., Any] = lambda: None,
    *,
    device: str = "cuda",
    steps: int = 1,
    card: Card | None = None,
) -> Trace:
    return trace(Workload(build=build, batch=batch, step=step), device=device, steps=steps, card=card)


def requests(result: Trace, operator: str, phase: str = "") -> list[int]:
    """Return the sizes that an operator asked for, in order."""
    found = [e for e in result.events if e.requested_bytes > 0 and e.operator == f"aten.{operator}"]
    return [e.requested_bytes for e in found if phase in e.phase]


def peak(result: Trace) -> int:
    current = highest = 0
    for event in result.events:
        current += event.requested_bytes
        highest = max(highest, current)
    return highest


def held(result: Trace) -> int:
    """Return what is alive when backward begins, inputs and parameters included."""
    total = 0
    for event in result.events:
        if "backward" in event.phase:
            return total
        total += event.requested_bytes
    return total


def leaf(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, dtype=dtype, device="cuda").requires_grad_()


# -- operators ---------------------------------------------------------------------------------------


def test_dropout_keeps_a_mask_of_one_byte() -> None:
    def step(_: Any, batch: Any) -> None:
        x = torch.randn(8, 100, device=batch.device).requires_grad_()
        F.dropout(x, 0.5).sum().backward()

    batch = lambda device: torch.zeros(1, device=device)  # noqa: E731
    on_cuda = traced(step, build=lambda: None, batch=batch)
    on_cpu = traced(step, build=lambda: None, batch=batch, device="cpu")
    assert requests(on_cuda, "native_dropout") == [3200, 800]
    assert not requests(on_cpu, "native_dropout")


def test_dropout_in_place_has_no_kernel_of_its_own() -> None:
    result = traced(lambda _: F.dropout(leaf(8, 100) * 1.0, 0.5, inplace=True))
    assert not requests(result, "native_dropout")


def attention(
    dtype: Any, size: int = 64, heads: int = 4, rows: int = 48, **options: Any
) -> Callable[..., None]:
    def step(_: Any) -> None:
        q, k, v = (leaf(2, heads, rows, size, dtype=dtype) for _ in range(3))
        F.scaled_dot_product_attention(q, k, v, **options).sum().backward()

    return step


def test_half_precision_attention_is_flash_and_keeps_one_number_per_row() -> None:
    result = traced(attention(torch.float16))
    output, logsumexp, *seeds = requests(result, "_scaled_dot_product_flash_attention")
    assert (output, logsumexp) == (2 * 4 * 48 * 64 * 2, 2 * 4 * 48 * 4)
    assert sum(seeds) <= 32
    assert not requests(result, "_softmax")


def test_float32_attention_is_efficient_with_rows_rounded_up_to_32() -> None:
    result = traced(attention(torch.float32))
    assert requests(result, "_scaled_dot_product_efficient_attention") == [
        2 * 4 * 48 * 64 * 4,
        2 * 4 * 64 * 4,
    ]


def test_attention_without_gradients_keeps_no_statistics() -> None:
    def step(_: Any) -> None:
        q = torch.randn(2, 4, 48, 64, device="cuda")
        F.scaled_dot_product_attention(q, q, q)

    assert requests(traced(step), "_scaled_dot_product_efficient_attention") == [2 * 4 * 48 * 64 * 4]


def test_attention_in_inference_mode_takes_the_same_kernel() -> None:
    def step(_: Any) -> None:
        with torch.inference_mode():
            q = torch.randn(2, 4, 48, 64, device="cuda", dtype=torch.bfloat16)
            F.scaled_dot_product_attention(q, q, q)

    assert requests(traced(step), "_scaled_dot_product_flash_attention")


def test_a_boolean_mask_becomes_numbers_of_the_querys_type() -> None:
    def step(_: Any) -> None:
        q = leaf(2, 4, 48, 64, dtype=torch.float16)
        mask = torch.ones(48, 48, dtype=torch.bool, device="cuda")
        F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    result = traced(step)
    assert requests(result, "where") == [48 * 48 * 2]
    assert requests(result, "_scaled_dot_product_efficient_attention")


def test_a_mask_with_unaligned_rows_is_padded() -> None:
    def step(_: Any) -> None:
        q = leaf(2, 4, 47, 64)
        F.scaled_dot_product_attention(q, q, q, attn_mask=torch.zeros(47, 47, device="cuda"))

    assert requests(traced(step), "constant_pad_nd") == [47 * 48 * 4]


def test_an_odd_head_size_is_padded_for_flash() -> None:
    result = traced(attention(torch.float16, size=60))
    assert requests(result, "constant_pad_nd")[:3] == [2 * 4 * 48 * 64 * 2] * 3


@pytest.mark.parametrize(
    ("dtype", "capability", "kernel"),
    [
        (torch.float16, (7, 5), "_scaled_dot_product_efficient_attention"),
        (torch.bfloat16, (7, 5), "_safe_softmax"),
        (torch.float64, (8, 0), "_safe_softmax"),
        (torch.float16, (9, 0), "_scaled_dot_product_cudnn_attention"),
        (torch.float32, (9, 0), "_scaled_dot_product_efficient_attention"),
        (torch.float32, (3, 7), "_safe_softmax"),
    ],
)
def test_the_card_decides_which_attention_runs(dtype: Any, capability: tuple[int, int], kernel: str) -> None:
    result = traced(attention(dtype), card=Card(capability=capability))
    assert requests(result, kernel)


def test_a_kernel_that_was_asked_for_is_taken() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def step(_: Any) -> None:
        with sdpa_kernel(SDPBackend.MATH):
            attention(torch.float16)(None)

    squares = 2 * 4 * 48 * 48  # half is worked out in float32
    assert requests(traced(step), "_safe_softmax") == [4 * squares, squares, 4 * squares]


def test_shared_keys_stay_shared_in_flash_and_are_repeated_otherwise() -> None:
    def step(dtype: Any) -> Callable[..., None]:
        def run(_: Any) -> None:
            q, k = leaf(2, 8, 48, 64, dtype=dtype), leaf(2, 2, 48, 64, dtype=dtype)
            F.scaled_dot_product_attention(q, k, k, enable_gqa=True).sum().backward()

        return run

    assert requests(traced(step(torch.float16)), "_scaled_dot_product_flash_attention")
    assert requests(traced(step(torch.float32)), "_safe_softmax")


def test_attentions_backward_accumulates_the_querys_gradient_in_float32() -> None:
    result = traced(attention(torch.float16))
    workspace = [e for e in result.events if result.categories[e.storage] is Category.WORKSPACE]
    copies = [2 * 4 * 48 * 64 * 2] * 2  # of the gradient and the output, which lie head by head
    assert [e.requested_bytes for e in workspace if e.requested_bytes > 0] == [
        *copies, 2 * 4 * 128 * (64 + 1) * 4
    ]  # fmt: skip


def test_rms_norm_is_one_kernel_that_keeps_one_number_per_row() -> None:
    def step(_: Any) -> None:
        F.rms_norm(leaf(32, 100), (100,), leaf(100)).sum().backward()

    result = traced(step)
    assert requests(result, "_fused_rms_norm") == [32 * 100 * 4, 32 * 4]
    assert requests(result, "_fused_rms_norm_backward") == [32 * 100 * 4, 100 * 4]


def test_rms_norm_with_a_weight_of_another_type_is_taken_apart() -> None:
    result = traced(lambda _: F.rms_norm(leaf(32, 100, dtype=torch.float16), (100,), leaf(100)))
    assert not requests(result, "_fused_rms_norm")


def test_softmax_from_half_to_float_makes_no_copy_of_its_input() -> None:
    result = traced(lambda _: F.log_softmax(leaf(10, 10, dtype=torch.float16), -1, dtype=torch.float32))
    assert requests(result, "_log_softmax") == [400]
    assert not requests(result, "_to_copy")


def test_recurrent_cells_are_one_kernel() -> None:
    def step(_: Any) -> None:
        x = torch.randn(5, 10, device="cuda")
        h, c = nn.LSTMCell(10, 20, device="cuda")(x)
        (h + nn.GRUCell(10, 20, device="cuda")(x, c)).sum().backward()

    result = traced(step)
    assert requests(result, "_thnn_fused_lstm_cell") == [5 * 20 * 4, 5 * 20 * 4, 5 * 80 * 4]
    assert requests(result, "_thnn_fused_gru_cell") == [5 * 20 * 4, 5 * 100 * 4]


# -- recurrent layers ----------------------------------------------------------------------------------


def recurrent(kind: Any = nn.LSTM, **options: Any) -> Trace:
    def build() -> Any:
        model = kind(16, 32, 2, **options)
        return model, torch.optim.SGD(model.parameters(), 0.1)

    def step(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.zero_grad()
        model(x)[0].sum().backward()
        optimizer.step()

    return traced(step, build, lambda: torch.randn(7, 5, 16), steps=2)


def weights(gates: int, biases: bool = True) -> int:
    first, second = gates * 32 * (16 + 32), gates * 32 * (32 + 32)
    return (first + second + 2 * 2 * gates * 32) * 4


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_a_recurrent_layers_weights_and_gradients_are_one_buffer_each(kind: Any, gates: int) -> None:
    result = recurrent(kind)
    sizes = [e.requested_bytes for e in result.events]
    live = {e.storage: e for e in result.events if e.requested_bytes > 0}
    for event in result.events:
        if event.requested_bytes < 0:
            live.pop(event.storage, None)
    by_category = {
        c: [e.requested_bytes for s, e in live.items() if result.categories[s] is c] for c in Category
    }
    assert by_category[Category.PARAMETER] == [weights(gates)]
    assert by_category[Category.GRADIENT] == [weights(gates)]
    assert weights(gates) in sizes


def test_what_cudnn_keeps_is_named_as_estimated() -> None:
    assert any("cuDNN" in note for note in recurrent().unmodelled)


def test_cudnns_buffer_has_places_for_biases_that_are_not_there() -> None:
    assert weights(4) in [e.requested_bytes for e in recurrent(bias=False).events]


def test_without_cudnn_a_recurrent_layer_is_taken_apart() -> None:
    with torch.backends.cudnn.flags(enabled=False):
        assert not requests(recurrent(), "_cudnn_rnn")


# -- optimizers -----------------------------------------------------------------------------------------


def training(optimizer: Callable[..., Any]) -> Trace:
    def build() -> Any:
        model = nn.Linear(100, 100)
        return model, optimizer(model.parameters())

    def step(model: Any, chosen: Any, x: Any) -> None:
        chosen.zero_grad()
        model(x).sum().backward()
        chosen.step()

    return traced(step, build, lambda: torch.randn(4, 100), steps=2)


def state(result: Trace) -> int:
    sizes = {e.storage: e.requested_bytes for e in result.events if e.requested_bytes > 0}
    return sum(size for s, size in sizes.items() if result.categories[s] is Category.OPTIMIZER_STATE)


def test_adam_works_on_lists_and_keeps_its_counters_on_the_host() -> None:
    result = training(torch.optim.Adam)
    assert requests(result, "_foreach_sqrt", "step 1") == [40000, 400]
    assert state(result) == 2 * 40400


def test_adam_tensor_by_tensor_needs_one_temporary_at_a_time() -> None:
    result = training(lambda p: torch.optim.Adam(p, foreach=False))
    assert not requests(result, "_foreach_sqrt")
    assert state(result) == 2 * 40400


@pytest.mark.parametrize("option", ["fused", "capturable"])
def test_counters_are_on_the_device_where_the_kernel_needs_them_there(option: str) -> None:
    assert state(training(lambda p: torch.optim.AdamW(p, **{option: True}))) == 2 * 40400 + 2 * 4


def test_fused_adam_has_no_temporaries() -> None:
    result = training(lambda p: torch.optim.AdamW(p, fused=True))
    assert not [
        e
        for e in result.events
        if "optimizer" in e.phase and result.categories[e.storage] is Category.TEMPORARY
    ]


# -- autocast -------------------------------------------------------------------------------------------


def in_autocast(function: Callable[..., Any], *shape: int, dtype: Any = None) -> Any:
    seen: list[Any] = []

    def step(_: Any) -> None:
        x = torch.randn(*(shape or (4, 8)), device="cuda", dtype=torch.float16)
        with torch.autocast("cuda", dtype=dtype):
            seen.append(function(x).dtype)

    traced(step)
    return seen[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.layer_norm(x, (8,)),
        lambda x: F.softmax(x, -1),
        lambda x: F.mse_loss(x, x),
        lambda x: x.exp(),
        lambda x: x.pow(2),
        lambda x: x.sum(),
        lambda x: x.cumsum(0),
        lambda x: x.norm(),
        lambda x: torch.norm(x, 2, 1),
        lambda x: torch.addcmul(x, x, x.float()),
    ],
)
def test_autocast_runs_these_in_float32(function: Callable[..., Any]) -> None:
    assert in_autocast(function) is torch.float32


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.float() @ x.float().t(),
        lambda x: F.linear(x.float(), x.float()),
        lambda x: torch.einsum("ab,cb->ac", x.float(), x.float()),
        lambda x: torch.mv(x.float(), x[0].float()),
        lambda x: F.prelu(x.float(), torch.ones(1, device="cuda")),
    ],
)
def test_autocast_runs_these_in_float16_or_what_was_asked_for(function: Callable[..., Any]) -> None:
    assert in_autocast(function) is torch.float16
    assert in_autocast(function, dtype=torch.bfloat16) is torch.bfloat16


def test_autocast_leaves_the_rest_alone() -> None:
    assert in_autocast(lambda x: x + x) is torch.float16
    assert in_autocast(lambda x: torch.fft.rfft(x.float())) is torch.complex64
    assert in_autocast(lambda x: x.double() @ x.double().t()) is torch.float64


def test_autocast_leaves_host_tensors_alone() -> None:
    assert in_autocast(lambda x: torch.ones(2, 2) @ torch.ones(2, 2)) is torch.float32


def test_autocast_refuses_what_cuda_refuses() -> None:
    with pytest.raises(WorkloadError, match="unsafe to autocast"):
        in_autocast(lambda x: F.binary_cross_entropy(x, x))


def test_autocast_casts_each_weight_once_until_it_ends() -> None:
    def step(model: Any, x: Any) -> None:
        for _ in range(2):
            with torch.autocast("cuda"):
                model(model(x)).sum().backward()

    result = traced(step, lambda: nn.Linear(100, 100), lambda: torch.randn(4, 100))
    assert requests(result, "_to_copy", "forward").count(100 * 100 * 2) == 2


def test_autocast_for_the_cpu_does_nothing_on_the_device() -> None:
    def step(_: Any) -> None:
        x = torch.randn(4, 4, device="cuda")
        with torch.autocast("cpu"):
            assert torch.is_autocast_enabled("cpu")
            assert (x @ x).dtype is torch.float32

    traced(step)


def test_the_lists_of_autocast_name_operators_of_cuda() -> None:
    names = {f._schema.name.removeprefix("aten::") for f in cuda_autocast.operators_of("AutocastCUDA")}
    assert names >= cuda_autocast.FLOAT32 | cuda_autocast.FLOAT32_RESULT | cuda_autocast.PROMOTE


def test_a_gradient_scaler_is_on_the_device() -> None:
    def step(model: Any, optimizer: Any, scaler: Any, x: Any) -> None:
        with torch.autocast("cuda"):
            loss = model(x).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 65536.0

    def build() -> Any:
        model = nn.Linear(10, 10)
        return model, torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cuda")

    result = traced(step, build, lambda: torch.randn(2, 10), steps=2)
    assert any("scaler" in a for a in result.assumptions)


# -- devices --------------------------------------------------------------------------------------------


def test_tensors_say_where_they_are() -> None:
    def step(_: Any) -> None:
        here, there = torch.randn(5), torch.randn(5, device="cuda")
        assert here.is_cpu and not here.is_cuda and here.device.type == "cpu" and here.get_device() == -1
        assert there.is_cuda and not there.is_cpu and there.device == torch.device("cuda", 0)
        assert there.get_device() == 0 and there.type() == "torch.cuda.FloatTensor"
        assert (here + 1).is_cpu and (there + 1).is_cuda and (there * torch.tensor(2.0)).is_cuda
        assert torch.zeros_like(there).is_cuda and there.new_zeros(3).is_cuda
        assert here.new_zeros(3, device="cuda").is_cuda and there.new_zeros(3, device="cpu").is_cpu
        assert there.double().is_cuda and here.type_as(there).is_cuda

    traced(step)


@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.cuda(),
        lambda x: x.cuda(non_blocking=True),
        lambda x: x.to("cuda"),
        lambda x: x.to("cuda:0", torch.float16),
        lambda x: x.to(0),
        lambda x: x.to(device=torch.device("cuda"), dtype=torch.int32),
        lambda x: x.pin_memory().to("cuda", non_blocking=True),
        lambda x: x.to(torch.zeros(1, device="cuda")),
    ],
)
def test_a_move_to_the_device_is_a_counted_copy(move: Callable[..., Any]) -> None:
    def step(_: Any) -> None:
        moved = move(torch.zeros(100))
        assert moved.is_cuda and moved.cuda() is moved and moved.to(moved.device) is moved
        assert moved.cpu().is_cpu

    (size,) = requests(traced(step), "_to_copy")
    assert size in (200, 400)


def test_host_tensors_are_not_counted() -> None:
    def step(_: Any) -> None:
        x = torch.randn(1000) + 1
        assert (x.t() @ x).is_cpu

    assert not traced(step).events


def test_a_gradient_goes_back_to_the_host() -> None:
    def step(_: Any) -> None:
        x = torch.ones(3, requires_grad=True)
        (x.cuda() * 2).sum().backward()
        assert x.grad.is_cpu

    traced(step)


def test_models_may_be_moved_by_hand() -> None:
    def step(model: Any, x: Any) -> None:
        model(x.cuda()).sum().backward()

    by_hand = traced(step, lambda: nn.Linear(10, 10, device="cpu").cuda(), lambda: torch.randn(2, 10))
    by_device = traced(step, lambda device: nn.Linear(10, 10).to(device), lambda: torch.randn(2, 10))
    assert peak(by_hand) == peak(by_device)


def test_what_was_built_on_the_host_is_moved() -> None:
    def build() -> Any:
        with torch.device("cpu"):
            return nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10))

    result = traced(lambda model, x: model(x), build, lambda: torch.zeros(4, 10, device="cpu"))
    assert sum(requests(result, "_to_copy", "setup")) == (110 + 4 * 10) * 4 + 8


def test_torch_cuda_answers() -> None:
    def step(_: Any) -> None:
        assert (
            torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
        )
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.manual_seed_all(1)
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_reserved() == 0
        assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 0
        assert torch.cuda.is_bf16_supported() and torch.cuda.get_device_capability() == (8, 0)
        with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            event.synchronize()
        assert torch.cuda.get_rng_state().numel() == 16
        assert torch.accelerator.current_accelerator().type == "cuda"
        torch.randn(3, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
        assert torch.cuda.FloatTensor(3).is_cuda

    assert any("was told" in a for a in traced(step).assumptions)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_keep_their_input_and_random_state_on_the_host(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    def run(kept: bool) -> Trace:
        def step(model: Any, x: Any) -> None:
            x = x.requires_grad_()
            y = model(x) if kept else checkpoint(model, x, use_reentrant=reentrant)
            y.sum().backward()

        block = lambda: nn.Sequential(nn.Linear(8, 800), nn.ReLU(), nn.Dropout(0.1), nn.Linear(800, 8))  # noqa: E731
        return traced(step, block, lambda: torch.randn(500, 8))

    assert held(run(kept=True)) - held(run(kept=False)) > 500 * 800 * 4 * 2


# -- nothing leaks --------------------------------------------------------------------------------------


def everything() -> dict[str, Any]:
    places = (
        torch,
        torch.Tensor,
        torch.cuda,
        torch.cuda.memory,
        torch.cuda.random,
        torch.accelerator,
        torch.backends.cudnn,
        torch.fft,
        nn.Module,
    )
    found = {
        f"{p!r}.{n}": v
        for p in places
        for n, v in vars(p).items()
        if not n.startswith("__") or n == "__deepcopy__"
    }
    keys = ("AutogradCPU", "AutocastCPU", "CPU")
    return found | {k: sorted(torch._C._dispatch_get_registrations_for_dispatch_key(k)) for k in keys}


def ordered(result: Trace) -> list[Any]:
    """Return the events with releases at one instant sorted: autocast's cache drops its copies in any order."""
    found: list[Any] = []
    releases: list[Any] = []
    for event in result.events:
        if event.requested_bytes < 0:
            releases.append(event)
            continue
        found += [*sorted(releases), event]
        releases = []
    return [*found, *sorted(releases)]


def network() -> Any:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(8 * 36, 10)
    )
    return model, torch.optim.AdamW(model.parameters())


def learn(model: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    with torch.autocast(batch[0].device.type):
        loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def pictures() -> Any:
    return torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))


def test_a_trace_for_cuda_leaves_the_cpus_as_it_was() -> None:
    first = traced(learn, network, pictures, device="cpu", steps=3)
    traced(learn, network, pictures, steps=3)
    before = everything()
    on_cuda = traced(learn, network, pictures, steps=3)
    assert everything() == before
    again = traced(learn, network, pictures, device="cpu", steps=3)
    assert ordered(again) == ordered(first)
    assert ordered(traced(learn, network, pictures, steps=3)) == ordered(on_cuda)


def raise_on_purpose(_: Any) -> None:
    raise ValueError("on purpose")


def test_an_error_in_the_step_undoes_everything_too() -> None:
    before = everything()
    with pytest.raises(WorkloadError, match="on purpose"):
        traced(raise_on_purpose)
    assert everything() == before
    assert not torch.cuda.is_available() or torch.version.cuda


def test_a_model_that_was_there_before_is_given_back() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    values = {k: v.clone() for k, v in model.state_dict().items()}
    traced(lambda m, x: m(x).sum().backward(), lambda: model, lambda: torch.randn(3, 4))
    assert all(torch.equal(v, values[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None and p.device.type == "cpu" for p in model.parameters())


def test_an_estimate_replays_the_trace() -> None:
    result = traced(learn, network, pictures, steps=3)
    timeline = cuda_caching.replay(result.events)
    assert max(timeline.allocated_bytes) >= peak(result)


@pytest.mark.parametrize(("device", "capability"), [("nvidia-t4", (7, 5)), ("nvidia-h200", (9, 0))])
def test_the_device_that_is_asked_for_is_the_one_that_a_program_sees(
    device: str, capability: tuple[int, int]
) -> None:
    seen = []
    step = lambda: seen.append((torch.cuda.get_device_capability(), torch.cuda.mem_get_info()[1]))  # noqa: E731
    memgauge.estimate(
        Workload(build=lambda: (), batch=lambda: None, step=lambda _: step()), device=device, steps=1
    )
    usable = devices.find(device).usable_figure  # what the driver reports, not the vendor
    assert usable is not None and seen == [(capability, usable.bytes)]


def test_the_memory_that_a_program_is_told_is_free_leaves_room_for_its_context() -> None:
    seen: list[tuple[int, int]] = []

    def step(_: Any) -> Any:
        seen.append(torch.cuda.mem_get_info())
        return torch.empty(seen[0][0] // 2**21 * 2**21, dtype=torch.uint8, device="cuda")  # all of it

    workload = Workload(build=lambda: (), batch=lambda: None, step=step, mode="infer")
    found = memgauge.estimate(workload, device="nvidia-t4", steps=1)
    (context,) = [text for text in found.assumptions if text.startswith("CUDA context")]
    free, total = seen[0]
    assert f" {(total - free) // MIB} MiB" in context
    assert found.fits.least_capacity_bytes is not None
    assert found.fits.least_capacity_bytes.expected <= total


@pytest.mark.parametrize("way", ["first step", "dry run", "moved"])
def test_a_lazy_network_takes_on_a_card_what_the_plain_one_takes(way: str) -> None:
    def made(*, lazy: bool) -> torch.nn.Module:
        nn = torch.nn
        first = nn.LazyConv2d(32, 3) if lazy else nn.Conv2d(3, 32, 3)
        second = nn.LazyBatchNorm2d() if lazy else nn.BatchNorm2d(32)
        last = nn.LazyLinear(10) if lazy else nn.Linear(32 * 16, 10)
        return nn.Sequential(first, second, nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), last)

    def run(*, lazy: bool) -> int:
        def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
            if way == "moved":
                with torch.device("cpu"):
                    model = made(lazy=lazy)
                model = model.to("cuda")
            else:
                model = made(lazy=lazy)
            if way != "first step":
                model(torch.zeros(2, 3, 32, 32, device="cuda"))
            return model, torch.optim.SGD(model.parameters(), 0.1)

        def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()

        batch = lambda: torch.randn(8, 3, 32, 32, device="cuda")  # noqa: E731
        found = trace(Workload(build=build, batch=batch, step=step), device="cuda")
        return max(cuda_caching.replay(found.events).allocated_bytes)

    assert run(lazy=True) == run(lazy=False)
