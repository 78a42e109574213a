"""Operators that PyTorch takes apart differently on CUDA than on the CPU.

A composite operator (dropout, softmax with a dtype, a recurrent cell) is made of
others, and which ones depends on the device. Each function here is the CUDA
branch of the one of that name, in terms of operators that torch knows the
derivative of. They are called in place of torch's own at the autograd key while
a trace runs, and by the phantom mode in inference mode.

Sources (torch 2.13, aten/src/ATen/native): Dropout.cpp `is_fused_kernel_acceptable`;
SoftMax.cpp `softmax`, `log_softmax`; layer_norm.cpp `rms_norm_symint`; RNN.cpp
`LSTMCell`, `GRUCell`; Pooling.cpp `max_pool1d`; Normalization.cpp `_batch_norm_impl_index`;
group_norm.cpp `native_group_norm`; Onehot.cpp `one_hot`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from memgauge.frameworks.torch.cuda_attention import scaled_dot_product_attention
from memgauge.frameworks.torch.cuda_placement import Placement
from memgauge.frameworks.torch.cuda_rnn import recurrent

aten = torch.ops.aten

Replacement = Callable[..., Any]  # (placement, the operator, its arguments) -> its result


def composite(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Take an operator apart as torch's own device-independent code does."""
    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def _dropout(placement: Placement, func: Any, input: torch.Tensor, p: float, train: bool) -> Any:
    """One kernel with a mask of one byte per element; the CPU keeps a mask of the input's dtype."""
    if train and 0 < p < 1 and input.numel() > 0:
        return aten.native_dropout.default(input, p, train)[0]
    return composite(func, input, p, train)


def _softmax(kernel: Any) -> Replacement:
    def softmax(placement: Placement, func: Any, self: torch.Tensor, dim: int, dtype: Any = None) -> Any:
        """From float16 to float32 in one kernel, without a float32 copy of the input."""
        if self.dtype is torch.float16 and dtype is torch.float32:
            return kernel(self, dim, True)
        return composite(func, self, dim, dtype)

    return softmax


def _rms_norm(
    placement: Placement,
    func: Any,
    input: torch.Tensor,
    shape: Any,
    weight: Any = None,
    eps: float | None = None,
) -> Any:
    """One kernel that saves the input and one number per row."""
    mixed = weight is not None and weight.dtype != input.dtype
    channels_last = (
        input.dim() == 4
        and not input.is_contiguous()
        and input.is_contiguous(memory_format=torch.channels_last)
    )
    if mixed or channels_last or input.is_complex():
        return composite(func, input, shape, weight, eps)
    return aten._fused_rms_norm.default(input, shape, weight, eps)[0]


def _lstm_cell(
    placement: Placement,
    func: Any,
    input: torch.Tensor,
    hx: Any,
    w_ih: Any,
    w_hh: Any,
    b_ih: Any = None,
    b_hh: Any = None,
) -> Any:
    gates = torch.matmul(input, w_ih.t()), torch.matmul(hx[0], w_hh.t())
    return tuple(aten._thnn_fused_lstm_cell.default(*gates, hx[1], b_ih, b_hh)[:2])


def _gru_cell(
    placement: Placement,
    func: Any,
    input: torch.Tensor,
    hx: Any,
    w_ih: Any,
    w_hh: Any,
    b_ih: Any = None,
    b_hh: Any = None,
) -> Any:
    gates = torch.matmul(input, w_ih.t()), torch.matmul(hx, w_hh.t())
    return aten._thnn_fused_gru_cell.default(*gates, hx, b_ih, b_hh)[0]


def _batch_norm(
    placement: Placement, func: Any, input: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any,
    training: bool, momentum: float, eps: float, cudnn: bool,
) -> Any:  # fmt: skip
    """With cuDNN a copy is given to the kernel, and kept, of an input in neither layout."""
    affine = weight is not None and weight.dtype is torch.float32 and bias is not None
    if cudnn and affine and input.dim() >= 3 and input.dtype in (torch.float32, torch.float16):
        input = input.contiguous(memory_format=suggest_memory_format(input))
    return composite(func, input, weight, bias, mean, variance, training, momentum, eps, cudnn)


class _GroupNorm(torch.autograd.Function):
    """Group norm of an input that is not in the ordinary layout, which only the CPU's kernels keep."""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: Any, bias: Any, groups: int, eps: float
    ) -> torch.Tensor:
        ctx.sizes = (*input.shape[:2], math.prod(input.shape[2:]), groups)
        arguments = (input.contiguous(), weight, bias, *ctx.sizes, eps)
        output, mean, rstd = aten.native_group_norm.default(*arguments)
        ctx.save_for_backward(input, weight, mean, rstd)
        return output  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        input, weight, mean, rstd = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        gradients = aten.native_group_norm_backward.default(
            gradient.contiguous(), input.contiguous(), mean, rstd, weight, *ctx.sizes, wanted
        )
        return *gradients, None, None


def _group_norm(
    placement: Placement, func: Any, input: torch.Tensor, groups: int, weight: Any = None, bias: Any = None,
    eps: float = 1e-5, cudnn: bool = True,
) -> Any:  # fmt: skip
    if input.is_contiguous():
        return composite(func, input, groups, weight, bias, eps, cudnn)
    return _GroupNorm.apply(input, weight, bias, groups, eps)


def _one_hot(placement: Placement, func: Any, self: torch.Tensor, num_classes: int = -1) -> Any:
    """Written into zeros; that the numbers are below the number of classes is for the kernel to find."""
    if num_classes < 1 or self.numel() == 0:
        return composite(func, self, num_classes)
    zeros = aten.new_zeros.default(self, (*self.shape, num_classes))
    return aten.scatter_.value(zeros, -1, self.unsqueeze(-1), 1)


def _max_pool1d(placement: Placement, func: Any, *args: Any, **kwargs: Any) -> Any:
    return aten.max_pool1d_with_indices.default(*args, **kwargs)[0]


REPLACED: dict[Any, Replacement] = {
    aten.dropout.default: _dropout,
    aten.softmax.int: _softmax(aten._softmax.default),
    aten.log_softmax.int: _softmax(aten._log_softmax.default),
    aten.rms_norm.default: _rms_norm,
    aten.lstm_cell.default: _lstm_cell,
    aten.gru_cell.default: _gru_cell,
    aten.batch_norm.default: _batch_norm,
    aten.group_norm.default: _group_norm,
    aten.one_hot.default: _one_hot,
    aten.max_pool1d.default: _max_pool1d,
    aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
    **{
        getattr(getattr(aten, name), overload): recurrent
        for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
        for overload in ("input", "data")
    },
}


def register(library: torch.library.Library, placement: Placement) -> None:
    """Put the CUDA branches in the place of torch's own for tensors on the device."""
    for func, replacement in REPLACED.items():
        library.impl(func, _branch(func, replacement, placement), "AutogradCPU", allow_override=True)
    # With a kernel for the backend, torch uses the derivative of the operator itself, as it does on
    # CUDA; the phantom mode answers before this kernel is reached.
    library.impl(aten._fused_rms_norm.default, _unreachable, "CPU", allow_override=True)


def _branch(func: Any, replacement: Replacement, placement: Placement) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        first = next(a for a in args if isinstance(a, torch.Tensor))
        if placement.on_device(first):
            return replacement(placement, func, *args, **kwargs)
        return composite(func, *args, **kwargs)

    return call


def _unreachable(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("the phantom mode answers for this operator")
