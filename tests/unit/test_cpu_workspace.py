"""Each rule against the real kernel, heard by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._C._profiler import _EventType  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from memgauge.frameworks.torch.cpu_shapes import output_specs_on_cpu  # noqa: E402
from memgauge.frameworks.torch.cpu_workspace import workspace_bytes  # noqa: E402
from memgauge.frameworks.torch.cpu_workspace.onednn import cache_bytes  # noqa: E402
from memgauge.frameworks.torch.operators import rule_of  # noqa: E402
from memgauge.frameworks.torch.phantom import storage_bytes  # noqa: E402
from memgauge.frameworks.torch.shapes import Spec, output_specs  # noqa: E402

aten = torch.ops.aten
F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
LAST = torch.channels_last
NO_AVX512 = "AVX512" not in torch.backends.cpu.get_cpu_capability()
needs_avx512 = pytest.mark.skipif(NO_AVX512, reason="layouts of another instruction set")


# oneDNN then takes other kernels for bfloat16, whose packed copies are not modelled.
BF16_INSTRUCTIONS = bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


def held(function: Callable[[], Any]) -> tuple[int, int, Any]:
    """Run and return (highest beyond what stays, what stays, the result)."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()
    live: dict[int, int] = {}
    now = highest = 0
    stack = list(reversed(profiler.profiler.kineto_results.experimental_event_tree()))
    while stack:
        event = stack.pop()
        if event.tag == _EventType.Allocation:
            size, address = event.extra_fields.alloc_size, event.extra_fields.ptr
            if size > 0:
                live[address] = size
            elif live.pop(address, None) is None:
                continue
            now += size
            highest = max(highest, now)
        stack.extend(reversed(event.children))
    return highest - now, now, result


def check(func: Any, *args: Any, tolerance: int = 0, **kwargs: Any) -> None:
    real, _, result = held(lambda: func(*args, **kwargs))
    said = workspace_bytes(func, args, kwargs, result, torch.get_num_threads())
    assert abs(said - real) <= tolerance, f"real {real:,}, said {said:,}"


def image(*shape: int, dtype: Any = F32, last: bool = False) -> Any:
    memory_format = LAST if last and len(shape) == 4 else torch.contiguous_format
    return torch.rand(*shape).to(dtype).contiguous(memory_format=memory_format)


# name: batch, input channels, input size, output channels, kernel, stride, padding, dilation, groups
CONVOLUTIONS = {
    "resnet stem": (2, 3, (64, 64), 64, 7, 2, 3, 1, 1),
    "vgg first": (4, 3, (32, 32), 64, 3, 1, 1, 1, 1),
    "vgg": (4, 64, (28, 28), 128, 3, 1, 1, 1, 1),
    "resnet down": (4, 64, (28, 28), 128, 3, 2, 1, 1, 1),
    "resnet shortcut": (4, 64, (28, 28), 128, 1, 2, 0, 1, 1),
    "bottleneck": (4, 64, (28, 28), 256, 1, 1, 0, 1, 1),
    "many weights": (2, 512, (7, 7), 512, 3, 1, 1, 1, 1),
    "odd channels": (4, 20, (28, 28), 24, 3, 1, 1, 1, 1),
    "one output": (4, 64, (28, 28), 1, 1, 1, 0, 1, 1),
    "few inputs": (4, 8, (28, 28), 32, 3, 1, 1, 1, 1),
    "mobilenet": (4, 96, (14, 14), 96, 3, 1, 1, 1, 96),
    "mobilenet down": (4, 20, (28, 28), 20, 3, 2, 1, 1, 20),
    "convnext": (4, 96, (14, 14), 96, 7, 1, 3, 1, 96),
    "vit patches": (2, 3, (64, 64), 192, 16, 16, 0, 1, 1),
    "resnext": (4, 64, (14, 14), 64, 3, 1, 1, 1, 4),
    "small groups": (4, 64, (14, 14), 64, 3, 2, 1, 1, 8),
    "dilated": (4, 64, (28, 28), 64, 3, 1, 2, 2, 1),
    "wide dilation": (2, 64, (33, 33), 64, 3, 1, 12, 12, 1),
    "wider dilation": (2, 256, (28, 28), 256, 3, 1, 18, 18, 1),
    "narrow dilation": (2, 256, (33, 33), 128, 3, 1, 4, 4, 1),
    "discriminator": (4, 64, (16, 16), 128, 4, 2, 1, 1, 1),
    "one image": (1, 3, (32, 32), 64, 3, 1, 1, 1, 1),
    "wave": (4, 16, (128,), 32, 9, 4, 4, 1, 1),
    "volume": (2, 16, (8, 8, 8), 32, 3, 1, 1, 1, 1),
    "volume stem": (2, 1, (16, 16, 16), 32, 3, 1, 1, 1, 1),
    "one volume": (1, 8, (8, 8, 8), 16, 3, 1, 1, 1, 1),
}


def convolve(
    case: tuple[Any, ...], dtype: Any = F32, last: bool = False, transposed: bool = False, tolerance: int = 0
) -> None:
    batch, inputs, size, outputs, kernel, stride, padding, dilation, groups = case
    dims = len(size)
    ends = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    x = image(batch, inputs, *size, dtype=dtype, last=last)
    weight = image(*ends, *[kernel] * dims, dtype=dtype, last=last)
    bias = torch.zeros(outputs, dtype=dtype)
    options = ([stride] * dims, [padding] * dims, [dilation] * dims, transposed, [0] * dims, groups)
    check(aten.convolution.default, x, weight, bias, *options, tolerance=tolerance)
    grad = torch.zeros_like(aten.convolution.default(x, weight, bias, *options))
    for mask in ([True, True, True], [False, True, True], [True, False, False]):
        check(
            aten.convolution_backward.default,
            grad, x, weight, [outputs], *options, mask,
            tolerance=tolerance,
        )  # fmt: skip


@needs_avx512
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    # im2col in the forward pass is cut to the second-level cache; the model says how much it is at most.
    convolve(CONVOLUTIONS[name], tolerance=2 * cache_bytes(2) if name == "wide dilation" else 0)


@needs_avx512
@pytest.mark.parametrize("threads", [1, 3, 4])
@pytest.mark.parametrize("name", ["vgg", "resnet down", "bottleneck", "mobilenet", "small groups"])
def test_convolution_with_other_threads(name: str, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        convolve(CONVOLUTIONS[name])
    finally:
        torch.set_num_threads(before)


@needs_avx512
@pytest.mark.parametrize(
    "case",
    [
        (4, 64, (14, 14), 32, 2, 2, 0, 1, 1),
        (4, 64, (14, 14), 32, 4, 2, 1, 1, 1),
        (4, 64, (14, 14), 3, 4, 2, 1, 1, 1),
        (4, 100, (1, 1), 64, 4, 1, 0, 1, 1),
        (4, 64, (14, 14), 32, 3, 1, 1, 1, 1),
    ],
)
def test_transposed_convolution(case: tuple[Any, ...]) -> None:
    convolve(case, transposed=True)


@pytest.mark.parametrize("name", ["vgg first", "bottleneck", "dilated", "resnext", "volume"])
def test_double_precision_is_im2col(name: str) -> None:
    convolve(CONVOLUTIONS[name], dtype=F64)


@needs_avx512
@pytest.mark.parametrize("name", ["vgg", "resnet down", "bottleneck", "mobilenet", "discriminator"])
def test_channels_last_convolution(name: str) -> None:
    """The activations stay as they are; blocks of weights may be padded otherwise than said."""
    _, inputs, _, outputs, kernel, *_, groups = CONVOLUTIONS[name]
    convolve(CONVOLUTIONS[name], last=True, tolerance=outputs * inputs // groups * kernel**2)


@needs_avx512
@pytest.mark.skipif(BF16_INSTRUCTIONS, reason="bfloat16 instructions, for which other kernels are chosen")
@pytest.mark.parametrize("name", ["vgg", "resnet down", "mobilenet", "many weights", "dilated"])
def test_bfloat16_convolution(name: str) -> None:
    convolve(CONVOLUTIONS[name], dtype=BF16)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_batch_norm(training: bool, last: bool) -> None:
    x, ones = image(8, 16, 12, 12, last=last), torch.ones(16)
    check(aten.native_batch_norm.default, x, ones, ones, ones, ones, training, 0.1, 1e-5)
    for mask in ([True, True, True], [False, True, True]):
        check(
            aten.native_batch_norm_backward.default,
            x, x, ones, ones, ones, ones, ones, training, 1e-5, mask,
            tolerance=64,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_layer_norm(dtype: Any) -> None:
    x, ones = image(32, 100, 64, dtype=dtype), torch.ones(64, dtype=dtype)
    turned = image(32, 64, 100, dtype=dtype).transpose(1, 2)
    _, mean, deviation = aten.native_layer_norm.default(x, [64], ones, ones, 1e-5)
    check(aten.native_layer_norm.default, turned, [64], ones, ones, 1e-5)
    for grad, value in ((x, x), (turned, x), (turned, turned)):
        check(
            aten.native_layer_norm_backward.default,
            grad, value, [64], mean, deviation, ones, ones, [True] * 3,
        )  # fmt: skip


@pytest.mark.parametrize("last", [False, True])
def test_group_norm(last: bool) -> None:
    x, ones = image(8, 32, 12, 12, last=last), torch.ones(32)
    _, mean, deviation = aten.native_group_norm.default(x, ones, ones, 8, 32, 144, 4, 1e-5)
    check(aten.native_group_norm.default, x, ones, ones, 8, 32, 144, 4, 1e-5)
    for grad in (x, x.contiguous()):
        check(
            aten.native_group_norm_backward.default,
            grad, x, mean, deviation, ones, 8, 32, 144, 4, [True] * 3,
        )  # fmt: skip


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_softmax(name: str) -> None:
    x, turned = image(16, 40, 50), image(16, 50, 40).transpose(1, 2)
    for value in (x, turned):
        check(getattr(aten, name).default, value, 1, False)
        for grad in (x, turned):
            check(getattr(aten, f"{name}_backward_data").default, grad, value, 1, F32)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("length", [10, 96, 300, 900])
def test_attention(length: int, dtype: Any) -> None:
    q, k, v = (image(2, 2, length, 32, dtype=dtype) for _ in range(3))
    check(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v, 0.0, False)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("length", [10, 96, 300, 900])
def test_attention_backward(length: int, dtype: Any) -> None:
    if dtype is BF16 and BF16_INSTRUCTIONS:
        pytest.skip("bfloat16 instructions, for which other kernels are chosen")
    q, k, v = (image(2, 2, length, 32, dtype=dtype) for _ in range(3))
    out, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False)
    # Half precision: what the products take on other threads is not heard.
    tolerance = 0 if dtype is F32 or NO_AVX512 else 4 * 32 * 512
    check(
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        torch.zeros_like(out), q, k, v, out, sums, 0.0, False,
        tolerance=tolerance,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (aten.mse_loss.default, (image(64, 50), image(64, 50))),
        (aten.smooth_l1_loss.default, (image(64, 50), image(64, 50))),
        (aten.huber_loss.default, (image(64, 50), image(64, 50))),
        (aten.binary_cross_entropy_with_logits.default, (image(64, 50), image(64, 50))),
        (aten.binary_cross_entropy.default, (image(64, 50), image(64, 50))),
        (aten.mul.Tensor, (torch.zeros(50, 60, dtype=torch.complex64), image(50, 60))),
        (aten.add.Tensor, (image(50, 60), image(50, 60, dtype=BF16))),
        (aten.eq.Scalar, (image(50, 60), 0.5)),
        (aten.eq.Scalar, (torch.zeros(50, dtype=torch.int64), 1)),
        (aten.abs.default, (torch.zeros(50, 60, dtype=torch.complex64),)),
        (aten.sum.dim_IntList, (torch.zeros(50, 60, dtype=torch.bool), [1])),
        (aten.sum.default, (image(400, 400),)),
        (aten.mean.dim, (image(50, 60), [1])),
        (aten.mean.dim, (image(50, 60, dtype=BF16), [1])),
        (aten.cumsum.default, (torch.zeros(50, 60, dtype=torch.bool), 1)),
        (aten.sort.default, (image(50, 60), 0)),
        (aten.roll.default, (image(8, 9, 10), [1, 2], [0, 1])),
        (aten.embedding_dense_backward.default,
         (image(4, 32, 50).transpose(1, 2), torch.zeros(4, 50, dtype=torch.int64), 99, -1, False)),
        (aten.embedding.default, (image(99, 32), torch.zeros(4, 51, dtype=torch.int64)[:, :50])),
        (aten.index.Tensor, (image(50, 20), [torch.ones(50, dtype=torch.bool)])),
        (aten.upsample_nearest2d.default, (image(2, 8, 16, 16), [32, 32])),
        (aten.upsample_bilinear2d.default, (image(2, 8, 16, 16), [32, 32], False)),
        (aten.upsample_bilinear2d.default, (image(1, 8, 60, 60), [90, 90], False)),
        (aten.upsample_bicubic2d.default, (image(2, 8, 16, 16), [32, 32], False)),
        (aten.max_pool2d_with_indices.default, (image(2, 8, 16, 16).transpose(2, 3), [2, 2], [2, 2])),
        (aten._fft_r2c.default, (image(4, 64, 8, 64).permute(0, 2, 1, 3), [2, 3], 0, True)),
        (aten._fft_c2r.default, (torch.fft.rfft2(image(4, 8, 32, 32)), [2, 3], 2, 32)),
        (aten._euclidean_dist.default, (image(900, 32), image(50, 32))),
        (aten.gelu_backward.default, (image(4, 16, 8, 16).permute(0, 2, 1, 3), image(4, 8, 16, 16))),
        (aten.copy_.default, (torch.empty(200, 100), image(100, 200).t())),
        (aten.logsumexp.default, (image(300, 40), [1])),
    ],
)  # fmt: skip
def test_operator(func: Any, args: tuple[Any, ...]) -> None:
    check(func, *args)


@pytest.mark.parametrize(("mode", "sparse"), [(0, True), (0, False), (1, True), (1, False)])
@pytest.mark.parametrize(("count", "bags", "width"), [(256, 32, 16), (1000, 50, 64), (600, 300, 8)])
def test_embedding_bag_backward(mode: int, sparse: bool, count: int, bags: int, width: int) -> None:
    table, indices = image(1000, width), torch.arange(count) % 1000
    offsets = torch.arange(0, count, count // bags)
    result, bag_of, sizes, largest = aten._embedding_bag(table, indices, offsets, False, mode, sparse)
    gradient = torch.ones(()).expand(result.shape)
    check(
        aten._embedding_bag_backward.default,
        gradient, indices, offsets, bag_of, sizes, largest, 1000, False, mode, sparse, None,
        tolerance=8,
    )  # fmt: skip


@pytest.mark.skipif(BF16_INSTRUCTIONS, reason="bfloat16 instructions, for which other kernels are chosen")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bfloat16_products(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check_bfloat16_products()
    finally:
        torch.set_num_threads(before)


def check_bfloat16_products() -> None:
    a, b = image(128, 33, dtype=BF16), image(33, 50, dtype=BF16)
    check(aten.mm.default, a, b)
    check(aten.addmm.default, torch.zeros(50, dtype=BF16), a, b)
    check(aten.bmm.default, image(8, 12, 16, dtype=BF16), image(8, 16, 20, dtype=BF16))
    check(aten.bmm.default, image(2, 12, 33, dtype=BF16), image(2, 33, 200, dtype=BF16))
    check(aten.mm.default, image(3, 64, dtype=BF16), image(64, 50, dtype=BF16))
    check(aten.mm.default, image(4, 4, dtype=BF16), image(4, 4, dtype=BF16))


LSTM = [(20, 16, 32, 64), (35, 20, 256, 256), (10, 1, 64, 128), (10, 8, 33, 65), (1, 8, 64, 128)]


def lstm(steps: int, batch: int, inputs: int, hidden: int) -> tuple[Any, ...]:
    weights = [image(4 * hidden, inputs), image(4 * hidden, hidden), image(4 * hidden), image(4 * hidden)]
    state = [torch.zeros(batch, hidden), torch.zeros(batch, hidden)]
    x = image(steps, batch, inputs)
    return (x, *weights, *state, False, [], 2, hidden, 1, True, False, False, True)


@needs_avx512
@pytest.mark.parametrize("sizes", LSTM)
def test_recurrent_layer(sizes: tuple[int, int, int, int]) -> None:
    args = lstm(*sizes)
    check(aten.mkldnn_rnn_layer.default, *args)
    out, h, c, kept = aten.mkldnn_rnn_layer.default(*args)
    ones = [torch.ones_like(t) for t in (out, h, c)]
    check(
        aten.mkldnn_rnn_layer_backward.default,
        *args[:7], out, h, c, *ones, False, 2, sizes[3], 1, True, True, False, [], False, kept,
    )  # fmt: skip


def specs_and_result(func: Any, args: tuple[Any, ...]) -> tuple[list[Spec], int, list[Any]]:
    _, kept, result = held(lambda: func(*args))
    specs = output_specs_on_cpu(func, args, {}, output_specs(func, rule_of(func), args, {}))
    flat = list(specs) if isinstance(specs, tuple) and type(specs) is not Spec else [specs]
    results = list(result) if isinstance(result, tuple) else [result]
    return flat, kept, results


@needs_avx512
@pytest.mark.parametrize("sizes", LSTM)
def test_what_a_recurrent_layer_keeps(sizes: tuple[int, int, int, int]) -> None:
    specs, kept, _ = specs_and_result(aten.mkldnn_rnn_layer.default, lstm(*sizes))
    assert sum(storage_bytes(s.shape, s.stride, s.dtype.itemsize) for s in specs) == kept


def test_batch_norm_saves_nothing_in_evaluation() -> None:
    ones = torch.ones(16)
    args = (image(2, 16, 4, 4), ones, ones, ones, ones, False, 0.1, 1e-5)
    specs, kept, _ = specs_and_result(aten.native_batch_norm.default, args)
    assert sum(storage_bytes(s.shape, s.stride, s.dtype.itemsize) for s in specs) == kept


@pytest.mark.parametrize("last", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("transposed", [False, True])
def test_layout_of_convolution(last: tuple[bool, bool], transposed: bool) -> None:
    x, weight = image(2, 8, 6, 6, last=last[0]), image(8, 8, 3, 3, last=last[1])
    options = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], 1)
    specs, _, results = specs_and_result(aten.convolution.default, (x, weight, None, *options))
    assert specs[0].stride == results[0].stride()
    args = (torch.ones_like(results[0]), x, weight, [0], *options, [True, True, False])
    specs, _, results = specs_and_result(aten.convolution_backward.default, args)
    assert [s.stride for s in specs[:2]] == [t.stride() for t in results[:2]]


def test_operators_without_a_rule_take_nothing() -> None:
    x = image(4, 4)
    assert workspace_bytes(aten.relu.default, (x,), {}, x, 2) == 0


HALF = image(2, 32, 8, 8, dtype=BF16)
ONES = torch.ones(32)


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (aten.native_group_norm.default, (HALF, ONES, ONES, 2, 32, 64, 16, 1e-5)),
        (aten.native_group_norm.default, (HALF, ONES.to(BF16), ONES.to(BF16), 2, 32, 64, 16, 1e-5)),
        (aten.native_group_norm.default, (HALF, None, None, 2, 32, 64, 16, 1e-5)),
        (
            aten.native_group_norm_backward.default,
            (HALF, HALF, *[torch.zeros(2, 16)] * 2, ONES, 2, 32, 64, 16, [True, True, True]),
        ),
        (aten.native_layer_norm.default, (HALF, [8], ONES[:8], ONES[:8], 1e-5)),
        (aten.native_layer_norm.default, (HALF, [8], ONES[:8].to(BF16), ONES[:8].to(BF16), 1e-5)),
        (
            aten.native_layer_norm_backward.default,
            (
                *[image(4, 8, 16).transpose(1, 2)] * 2,
                [8],
                *[torch.zeros(4, 16, 1)] * 2,
                ONES[:8],
                ONES[:8],
                [True, True, True],
            ),
        ),
        (aten.col2im.default, (image(2, 72, 64), [8, 8], [3, 3], [1, 1], [1, 1], [1, 1])),
        (aten.soft_margin_loss.default, (image(20, 30), torch.ones(20, 30))),
    ],
)
def test_outputs_are_as_the_kernel_makes_them(func: Any, args: tuple[Any, ...]) -> None:
    specs, _, results = specs_and_result(func, args)
    for spec, result in zip(specs, results, strict=True):
        size = spec.storage_bytes or storage_bytes(spec.shape, spec.stride, spec.dtype.itemsize)
        assert (spec.dtype, spec.shape, size) == (
            result.dtype,
            tuple(result.shape),
            result.untyped_storage().nbytes(),
        )
        assert result.dim() == 0 or tuple(spec.stride) == result.stride()
