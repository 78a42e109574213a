"""Outputs of CUDA kernels that torch's shape rules do not know, or know otherwise.

Each takes the running phantom mode and the operator's arguments and returns its
outputs, or NotImplemented to let the shape rules go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from memgauge.frameworks.torch.cuda_convolution import convolution, convolution_backward
from memgauge.frameworks.torch.cuda_operators import REPLACED
from memgauge.frameworks.torch.cuda_rnn import RESERVE_NOTE, flat_count, reserve_bytes, views_of
from memgauge.frameworks.torch.shapes import Spec, contiguous

if TYPE_CHECKING:
    from memgauge.frameworks.torch.cuda_phantom import CudaPhantomMode

aten = torch.ops.aten

# In inference mode composite operators reach the phantom mode whole.
REPLACED_IN_INFERENCE = REPLACED


def _rms_norm(mode: CudaPhantomMode, input: torch.Tensor, shape: Sequence[int], weight: Any, eps: Any) -> Any:
    """The normalized input, and 1/rms in float32 for each row (layer_norm_kernel.cu `_fused_rms_norm_cuda`)."""
    rows = (*input.shape[: input.dim() - len(shape)], *(1 for _ in shape))
    statistics = torch.float64 if input.dtype is torch.float64 else torch.float32
    return mode.make(contiguous(tuple(input.shape), input.dtype)), mode.make(contiguous(rows, statistics))


def _rms_norm_backward(
    mode: CudaPhantomMode, grad: Any, input: torch.Tensor, shape: Any, rstd: Any, weight: Any, mask: Any
) -> Any:
    return (
        mode.make(contiguous(tuple(input.shape), input.dtype)) if mask[0] else None,
        mode.make(contiguous(tuple(weight.shape), weight.dtype)) if mask[1] and weight is not None else None,
    )


def _efficient_attention(
    mode: CudaPhantomMode,
    query: torch.Tensor,
    key: Any,
    value: torch.Tensor,
    bias: Any,
    logsumexp: bool,
    *more: Any,
    **scale: Any,
) -> Any:
    """Output and, for training, one float32 per row, rows rounded up to 32; the seeds stay on the host.

    Source: transformers/cuda/attention.cu `_efficient_attention_forward`.
    """
    batch, heads, rows = query.shape[:3]
    size = value.shape[-1]
    output = Spec((batch, heads, rows, size), (heads * rows * size, size, heads * size, 1), query.dtype)
    per_row = contiguous((batch, heads, -(-rows // 32) * 32 if logsumexp else 0), torch.float32)
    results = mode.make(output), mode.make(per_row)
    with mode.placement.at(False):
        return *results, *(mode.make(contiguous((), torch.int64)) for _ in range(2))


def _gru_cell(mode: CudaPhantomMode, input_gates: Any, hidden_gates: Any, hx: torch.Tensor, *_: Any) -> Any:
    """The new state and five numbers per unit for backward (native/cuda/RNN.cu `_thnn_fused_gru_cell_cuda`)."""
    return mode.make(contiguous(tuple(hx.shape), hx.dtype)), mode.make(
        contiguous((hx.shape[0], hx.shape[1] * 5), hx.dtype)
    )


def _gru_cell_backward(mode: CudaPhantomMode, grad: torch.Tensor, workspace: Any, has_bias: bool) -> Any:
    rows, size = grad.shape
    gates = [mode.make(contiguous((rows, 3 * size), grad.dtype)) for _ in range(2)]
    state = mode.make(contiguous((rows, size), grad.dtype))
    biases = [mode.make(contiguous((3 * size,), grad.dtype)) if has_bias else None for _ in range(2)]
    return *gates, state, *biases


def _cudnn_rnn(
    mode: CudaPhantomMode, input: torch.Tensor, weight: Any, stride0: int, buffer: Any, hx: torch.Tensor, cx: Any,
    kind: int, hidden: int, projection: int, layers: int, batch_first: bool, dropout: float, train: bool,
    bidirectional: bool, batch_sizes: Sequence[int], dropout_state: Any,
) -> Any:  # fmt: skip
    mode.unmodelled.setdefault(RESERVE_NOTE)
    width = (projection or hidden) * (2 if bidirectional else 1)
    shape = (*input.shape[:-1], width)
    spec = contiguous(shape, input.dtype)
    copy = None
    if batch_first and not batch_sizes:
        batch = shape[0]
        spec = Spec(shape, (width, batch * width, 1), input.dtype)  # made steps first, then transposed
        copy = mode.make(contiguous(tuple(input.shape), input.dtype))
    output = mode.make(spec)
    hy = mode.make(contiguous(tuple(hx.shape), hx.dtype))
    cy = mode.make(contiguous(tuple(cx.shape) if cx is not None else (0,), hx.dtype))
    if buffer is None:
        buffer = mode.make(contiguous((flat_count(weight, stride0, kind, hidden),), input.dtype))
    else:
        buffer = buffer.view_as(buffer)
    rows = input.numel() // max(input.shape[-1], 1)
    kept = reserve_bytes(kind, hidden, layers, bidirectional, rows, input.itemsize) if train else 0
    reserve = mode.make(contiguous((kept,), torch.uint8))
    del copy
    return output, hy, cy, reserve, buffer


def _cudnn_rnn_backward(
    mode: CudaPhantomMode, input: torch.Tensor, weight: Any, stride0: int, buffer: torch.Tensor, hx: torch.Tensor,
    cx: Any, *rest: Any,
) -> Any:  # fmt: skip
    mask = rest[-1]
    like = [input, hx, cx]
    gradients = [
        mode.make(contiguous(tuple(t.shape), t.dtype)) if wanted and t is not None else None
        for t, wanted in zip(like, mask[:3], strict=True)
    ]
    if not mask[3]:
        return *gradients, []
    flat = mode.make(contiguous(tuple(buffer.shape), buffer.dtype))
    return *gradients, views_of(flat, weight)


def _safe_softmax(mode: CudaPhantomMode, self: torch.Tensor, dim: int, dtype: Any = None) -> Any:
    """Probabilities and where -inf stood, beside the result that `where` makes of them (transformers/attention.cpp).

    A plain softmax before torch 2.5 (PR 131844; issue 141128: rows of nothing but -inf were NaN in 2.4).
    """
    result = contiguous(tuple(self.shape), dtype or self.dtype)
    if mode.libraries.card.stack.torch < (2, 5):
        return mode.make(result)
    meanwhile = mode.hold(self.numel() * result.dtype.itemsize), mode.hold(self.numel())
    made = mode.make(result)
    for number in meanwhile:
        mode.give_back(number)
    return made


def _log_sigmoid(mode: CudaPhantomMode, input: torch.Tensor) -> Any:
    """The result; the buffer is the CPU's only (cuda/Activation.cpp `log_sigmoid_forward_cuda`)."""
    return mode.make(contiguous(tuple(input.shape), input.dtype)), mode.make(contiguous((0,), input.dtype))


def _pack(mode: CudaPhantomMode, data: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
    """The rows are on the device, the batch sizes stay on the host (native/PackedSequence.cpp)."""
    if not mode.is_known(lengths):
        return NotImplemented
    with mode.placement.at(False):
        thin = torch.zeros(*data.shape[:2], 1)
        packed, batch_sizes = aten._pack_padded_sequence.default(thin, lengths, batch_first)
        mode.adopt(batch_sizes)
    return mode.make(contiguous((packed.shape[0], *data.shape[2:]), data.dtype)), batch_sizes


KERNELS: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten._fused_rms_norm.default: _rms_norm,
    aten._fused_rms_norm_backward.default: _rms_norm_backward,
    aten._scaled_dot_product_efficient_attention.default: _efficient_attention,
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    aten._safe_softmax.default: _safe_softmax,
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten._pack_padded_sequence.default: _pack,
    aten._cudnn_rnn.default: _cudnn_rnn,
    aten._cudnn_rnn_backward.default: _cudnn_rnn_backward,
}
