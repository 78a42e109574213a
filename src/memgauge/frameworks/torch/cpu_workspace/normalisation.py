"""Workspace of normalisations and softmax on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from memgauge.frameworks.torch.cpu_workspace.layout import made_contiguous, size, suggested

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def batch_norm(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Scale and shift for each channel; without training also the statistics that are not given back.

    Source: torch aten/src/ATen/native/cpu/batch_norm_kernel.cpp, batch_norm_cpu_contiguous_impl;
    Normalization.cpp, batch_norm_cpu.
    """
    x, training = args[0], args[5]
    last = suggested(x) is not torch.contiguous_format
    if not x.is_contiguous() and not last:
        return 0
    rows = 2 + (threads if last and training else 0)  # channels last: sums of each thread beside the totals
    return rows * int(x.shape[1]) * (8 if x.itemsize == 8 else 4)


def batch_norm_backward(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """The gradient of the input is made a second time before the first is given up.

    Source: torch aten/src/ATen/native/Normalization.cpp, batch_norm_backward_cpu_template.
    """
    grad, x, mask = args[0], args[1], args[9]
    chosen = suggested(x)
    sums = 2 * threads * int(x.shape[1]) * 4 if chosen is not torch.contiguous_format else 0
    alike = x.is_contiguous(memory_format=chosen) and suggested(grad) == chosen
    if alike and grad.is_contiguous(memory_format=chosen):
        return max(size(x), sums) if mask[0] else sums
    return int(x.shape[1]) * 4


def layer_norm(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/layer_norm.cpp, layer_norm_cpu."""
    return made_contiguous(args[0])


def composite_layer_norm(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """As an operator of its own (inference mode) it also drops mean and reciprocal deviation."""
    rows = args[0].numel()
    for length in args[1]:
        rows //= length
    return made_contiguous(args[0]) + int(2 * rows * args[0].itemsize)


def layer_norm_backward(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Sums of weight and bias for each thread.

    Source: torch aten/src/ATen/native/cpu/layer_norm_kernel.cpp, LayerNormBackwardKernelImplInternal.
    """
    grad, x, shape, mask = args[0], args[1], args[2], args[7]
    length = 1
    for dimension in shape:
        length *= dimension
    sums = 2 * threads * length * x.itemsize if mask[1] or mask[2] else 0
    return made_contiguous(grad) + made_contiguous(x) + sums


def group_norm(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/cpu/group_norm_kernel.cpp, GroupNormKernelImplInternal."""
    x, batch, channels = args[0], args[3], args[4]
    chosen = suggested(x)
    sums = 2 * batch * channels * 4 if not x.is_contiguous() else 0
    return made_contiguous(x, chosen) + sums


def group_norm_backward(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Two sums for each image and channel.

    Source: torch aten/src/ATen/native/cpu/group_norm_kernel.cpp, GroupNormBackwardKernelImplInternal.
    """
    x, batch, channels = args[1], args[5], args[6]
    return 2 * int(batch) * int(channels) * (8 if x.itemsize == 8 else 4)


def softmax(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/SoftMax.cpp, softmax_cpu_out."""
    x = args[0]
    return made_contiguous(x, suggested(x))


def softmax_backward(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/SoftMax.cpp, softmax_backward_cpu_out."""
    return made_contiguous(args[0]) + made_contiguous(args[1])


def safe_softmax(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """A mask of what is minus infinity, and of whole rows.

    Source: torch aten/src/ATen/native/transformers/attention.cpp, _safe_softmax.
    """
    x = args[0]
    rows = int(x.numel() // max(1, x.shape[args[1]]))
    return made_contiguous(x) + int(x.numel()) + rows + 4


RULES: dict[str, Any] = {
    "native_batch_norm.default": batch_norm,
    "_native_batch_norm_legit.default": batch_norm,
    "native_batch_norm_backward.default": batch_norm_backward,
    "native_layer_norm.default": layer_norm,
    "layer_norm.default": composite_layer_norm,
    "native_layer_norm_backward.default": layer_norm_backward,
    "native_group_norm.default": group_norm,
    "native_group_norm_backward.default": group_norm_backward,
    "_softmax.default": softmax,
    "_log_softmax.default": softmax,
    "_softmax_backward_data.default": softmax_backward,
    "_log_softmax_backward_data.default": softmax_backward,
    "_safe_softmax.default": safe_softmax,
}
