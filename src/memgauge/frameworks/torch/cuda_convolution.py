"""Convolutions on CUDA: who convolves, in which layout, and what is held meanwhile.

cuDNN wherever it takes the types and layouts; its workspaces are `cuda_libraries`' and `devices.convolutions`'. Else
torch's own kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from memgauge.devices.convolutions import Convolution
from memgauge.frameworks.torch.cuda_attention import capability
from memgauge.frameworks.torch.operators import rule_of
from memgauge.frameworks.torch.shapes import Spec, output_specs

if TYPE_CHECKING:
    from memgauge.frameworks.torch.cuda_phantom import CudaPhantomMode

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_CUDNN_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WITHOUT_CUDNN_NOTE = (
    "convolutions without cuDNN that are grouped, transposed or of three dimensions: the patches, copies and "
    "partial results that torch's own kernels make of them"
)


def convolution(
    mode: CudaPhantomMode, input: torch.Tensor, weight: torch.Tensor, bias: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    """The forward convolution: copies that make its inputs fit, output, workspace.

    Source: native/cudnn/ConvShared.cpp `cudnn_convolution_forward`.
    """
    if mode.is_known(input) and mode.is_known(weight):
        return NotImplemented
    func = aten.convolution.default
    arguments = (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    specs = output_specs(func, rule_of(func), arguments, {})
    kernel = kernel_of(input, weight, groups, stride, dilation, transposed)
    form = layout_of(input, weight) if kernel is Kernel.CUDNN else torch.contiguous_format
    with _fitting(mode, form, input, weight):
        result = mode.make(_laid(specs, form))
        if kernel is Kernel.CUDNN:
            direction = "data" if transposed else "forward"
            call = _call(mode, direction, input, weight, result, groups, stride, dilation, transposed)
            mode.libraries.convolve(call, padding, dilation)
        else:
            _note_what_is_not_modelled(mode, input, weight, groups, transposed)
        if kernel is Kernel.UNFOLDED:
            is_product = max(weight.shape[2:]) == 1 and max(stride) == 1 and max(padding) == 0
            mode.libraries.unfold(0 if is_product else columns_bytes(weight, result))
    return result


def convolution_backward(
    mode: CudaPhantomMode, grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, bias_sizes: Any,
    stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int, mask: Any,
) -> Any:  # fmt: skip
    """Both gradients, one after the other, each with its own workspace; then the bias.

    Source: native/Convolution.cpp `convolution_backward`, native/cudnn/ConvShared.cpp
    `cudnn_convolution_backward`.
    """
    func = aten.convolution_backward.default
    arguments = (
        grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask,
    )  # fmt: skip
    specs = output_specs(func, rule_of(func), arguments, {})
    kernel = kernel_of(input, weight, groups, stride, dilation, transposed)
    form = layout_of(input, weight) if kernel is Kernel.CUDNN else torch.contiguous_format
    results: list[Any] = [None, None, None]
    if kernel is not Kernel.CUDNN:
        _note_what_is_not_modelled(mode, input, weight, groups, transposed)
    with _fitting(mode, form, input, weight, grad):
        for place, direction in ((0, "forward" if transposed else "data"), (1, "filter")):
            if not mask[place]:
                continue
            results[place] = mode.make(_laid(specs[place], form))
            if kernel is Kernel.CUDNN:
                call = _call(mode, direction, input, weight, grad, groups, stride, dilation, transposed)
                mode.libraries.convolve(call, padding, dilation)
            elif kernel is Kernel.UNFOLDED:
                mode.libraries.unfold(columns_bytes(weight, grad))
        if mask[2]:
            results[2] = mode.make(specs[2])
    return tuple(results)


class Kernel(Enum):
    """Who convolves."""

    CUDNN = "cuDNN"
    UNFOLDED = "torch, by a product with one picture's patches at a time"
    OTHER = "torch, in a way that takes nothing beside, or is not modelled"


def kernel_of(
    input: torch.Tensor, weight: torch.Tensor, groups: int, stride: Any, dilation: Any, transposed: bool
) -> Kernel:
    """Return who convolves.

    Source: native/Convolution.cpp `_select_conv_backend`, `use_cudnn`, `use_cudnn_depthwise`: float32
    in the ordinary layout is depthwise convolved by torch itself; half types by cuDNN under
    conditions on the workload (`_depthwise_by_cudnn`). What has one dimension is convolved as a
    picture one point high (`view4d`). bfloat16 is for cuDNN from 8.0 on (CUDAHooks.cpp `supportsBFloat16ConvolutionWithCuDNNv8`).
    """
    if not input.numel():  # `ConvBackend::Empty`: a product of nothing
        return Kernel.OTHER
    depthwise = _is_depthwise(input, weight, groups, transposed)
    if not _cudnn_takes(input):
        plain = input.dim() in (3, 4) and not transposed and not depthwise
        return Kernel.UNFOLDED if plain else Kernel.OTHER
    if not depthwise or layout_of(input, weight) is not torch.contiguous_format:
        return Kernel.CUDNN
    return Kernel.CUDNN if _depthwise_by_cudnn(input, weight, stride, dilation) else Kernel.OTHER


def _is_depthwise(input: torch.Tensor, weight: torch.Tensor, groups: int, transposed: bool) -> bool:
    channels = input.shape[1]
    return not transposed and groups > 1 and groups == channels and weight.shape[0] % channels == 0


def _note_what_is_not_modelled(
    mode: CudaPhantomMode, input: torch.Tensor, weight: torch.Tensor, groups: int, transposed: bool
) -> None:
    """Name convolutions that torch makes itself in a way that is not followed.

    Depthwise kernels take nothing. Groups are convolved one after the other from copies and joined;
    transposed and three-dimensional ones unfold otherwise (native/Convolution.cpp `_convolution`,
    `subtensor`; cuda/NaiveConvolutionTranspose2d.cu, NaiveDilatedConvolution.cu).
    """
    followed = not input.numel() or (groups == 1 and not transposed and input.dim() < 5)
    if not followed and not _is_depthwise(input, weight, groups, transposed):
        mode.unmodelled.setdefault(WITHOUT_CUDNN_NOTE)


def _depthwise_by_cudnn(input: torch.Tensor, weight: torch.Tensor, stride: Any, dilation: Any) -> bool:
    """Return whether cuDNN's depthwise kernels are taken in the ordinary layout.

    Source: native/Convolution.cpp `use_cudnn_depthwise`, `check_cudnn_depthwise_workload_with_filter`.
    """
    channels, width, filter_, step = input.shape[1], input.shape[-1], weight.shape[-1], stride[-1]
    if input.dtype not in _HALF or channels < 32 or any(d != 1 for d in dilation) or input.dim() == 5:
        return False
    if input.dim() == 3 and step == 1:
        return True
    square = input.dim() == 4 and weight.shape[-2] == filter_ and stride[0] == step
    if not square or filter_ not in (1, 3, 5) or width < 7 or step > 2:
        return False
    if step == 1:
        return True
    if input.shape[0] == 1:
        return filter_ > 1 or width <= 28
    if filter_ == 1:
        return input.shape[0] <= 16 and channels >= 128 and width <= 7
    return channels >= 512 or (channels >= 256 and width >= 28)


def _cudnn_takes(input: torch.Tensor) -> bool:
    known = input.dtype in _CUDNN_DTYPES and input.dim() in (3, 4, 5)
    return (
        torch.backends.cudnn.enabled
        and known
        and (input.dtype is not torch.bfloat16 or capability.now >= (8, 0))
    )


def columns_bytes(weight: torch.Tensor, result: torch.Tensor) -> int:
    """Return the patches of one picture side by side, of one group's channels.

    Source: native/cuda/ConvolutionMM2d.cu `slow_conv2d_forward`, `slow_conv2d_backward`: one such
    tensor for the whole batch; for kernels of one point only backward (`requires_columns`).
    """
    places = math.prod(result.shape[2:])
    return weight[0].numel() * places * result.itemsize


def layout_of(input: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Return the layout in which cuDNN convolves: channels last if either side is so.

    Source: native/ConvUtils.h `cudnn_conv_suggest_memory_format`. torch's `meta` rule leaves the
    output contiguous, since that depends on the device (torch/_meta_registrations.py `meta_conv`).
    """
    if torch.float64 in (input.dtype, weight.dtype):
        return torch.contiguous_format
    for tensor in (input, weight):
        form: torch.memory_format = suggest_memory_format(tensor)
        if form is not torch.contiguous_format:
            return form
    return torch.contiguous_format


def _laid(spec: Spec, form: torch.memory_format) -> Spec:
    """Return the spec in that layout."""
    if len(spec.shape) not in (4, 5):
        return spec
    order = (
        (0, *range(2, len(spec.shape)), 1) if form is not torch.contiguous_format else range(len(spec.shape))
    )
    stride, step = [0] * len(spec.shape), 1
    for place in reversed(tuple(order)):
        stride[place] = step
        step *= max(spec.shape[place], 1)
    return spec._replace(stride=tuple(stride))


@contextmanager
def _fitting(mode: CudaPhantomMode, form: torch.memory_format, *tensors: torch.Tensor) -> Iterator[None]:
    """Hold copies of what does not lie in memory as the kernel wants it (`contiguous(memory_format)`)."""
    wanted = (
        t
        for t in tensors
        if not t.is_contiguous(memory_format=form if t.dim() in (4, 5) else torch.contiguous_format)
    )
    copies = [mode.hold(tensor.numel() * tensor.itemsize) for tensor in wanted]
    yield
    for copy in copies:
        mode.give_back(copy)


def _call(
    mode: CudaPhantomMode, direction: str, input: torch.Tensor, weight: torch.Tensor, output: torch.Tensor,
    groups: int, stride: Any, dilation: Any, transposed: bool,
) -> Convolution:  # fmt: skip
    data, result = (output, input) if transposed else (input, output)
    return Convolution(
        direction=direction,
        data=data.numel(),
        weight=weight.numel(),
        result=result.numel(),
        itemsize=input.itemsize,
        kernel=tuple(weight.shape[2:]),
        groups=groups,
        channels=(data.shape[1], result.shape[1]),
        channels_last=layout_of(input, weight) is not torch.contiguous_format,
        is_half=input.dtype in _HALF,
        allows_tf32=input.dtype is torch.float32 and _convolves_in_tf32(),
        strided=any(s != 1 for s in stride),
        image=tuple(data.shape[2:]),
        batch=data.shape[0],
        dilated=any(d != 1 for d in dilation),
    )


def _convolves_in_tf32() -> bool:
    """Return whether convolutions of float32 may use TF32, asked as torch 2.9 and newer want it where they do.

    `allow_tf32` raises there once convolutions and recurrent layers differ (torch/backends/cudnn).
    """
    flags = torch.backends.cudnn
    newer = getattr(flags, "conv", None)
    return bool(flags.allow_tf32 if newer is None else newer.fp32_precision == "tf32")
