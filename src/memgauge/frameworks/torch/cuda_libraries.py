"""Where libraries take memory for themselves in a trace: at which operator, for how long.

How much it is says `devices.libraries`. A workspace of cuBLAS is kept from the first product
of a thread on: the program's thread, and the engine's, which runs backward. cuDNN's are given
back when the convolution returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from memgauge.devices import libraries
from memgauge.devices.libraries import Convolution, Rate
from memgauge.frameworks.torch.cuda_attention import capability
from memgauge.frameworks.torch.operators import rule_of
from memgauge.frameworks.torch.shapes import Spec, output_specs
from memgauge.records import Range, Scratch
from memgauge.units import format_bytes

if TYPE_CHECKING:
    from memgauge.frameworks.torch.cuda_devices import Card
    from memgauge.frameworks.torch.cuda_phantom import CudaPhantomMode

aten = torch.ops.aten

PRODUCTS = frozenset(
    getattr(operator, overload)
    for operator in (
        aten.mm, aten.addmm, aten.addmm_, aten.bmm, aten.baddbmm, aten.baddbmm_, aten.mv, aten.addmv, aten.addmv_,
        aten.dot, aten._addmm_activation, aten.addbmm, aten.addbmm_, aten._scaled_mm,
    )
    for overload in operator.overloads()
)  # fmt: skip
_HALF = (torch.float16, torch.bfloat16)
_CUDNN_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WITHOUT_CUDNN_NOTE = (
    "convolutions without cuDNN that are grouped, transposed or of three dimensions: the patches, copies and "
    "partial results that torch's own kernels make of them"
)
TRANSFORM_NOTE = (
    "cudnn.benchmark may try a plan by Fourier transforms: up to {} for a moment of the first step (seldom)"
)


class Libraries:
    """The libraries of one traced run: what they hold, and what they have seen."""

    def __init__(self, mode: CudaPhantomMode, card: Card) -> None:
        self._mode = mode
        self._card = card
        # Owners: a thread, the engine's or not, and a stream.
        self._has_workspace: set[tuple[bool, int]] = set()
        self._has_light_workspace: set[tuple[bool, int]] = set()
        self._searched: set[tuple[Convolution, str]] = set()
        self._transform_bytes = 0

    def before(self, func: Any, args: tuple[Any, ...]) -> None:
        """Note what is taken before the outputs of an operator: the handle's workspace at the first product."""
        if func not in PRODUCTS:
            return
        owner = self._mode.in_backward, self._mode.stream
        if owner not in self._has_workspace:
            self._has_workspace.add(owner)
            size = self._card.cublas_bytes
            if size:
                self._mode.take(size, Scratch(libraries.CUBLAS, size, size), layer="")

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what an operator takes once its outputs are there, and gives back before it returns."""
        if func is aten.addmm.default and args[0].dim() == 1:
            self._product_with_bias()
        elif func is aten.embedding_dense_backward.default:
            grad, indices, rows = args[:3]
            size = libraries.embedding_backward_bytes(
                indices.numel(), int(rows), grad.shape[-1], indices.itemsize
            )
            self.pass_by(libraries.EMBEDDING, Range(low=size, expected=size, high=size))
        elif func is aten._scaled_dot_product_efficient_attention_backward.default:
            self._attention_backward(args[1], args[3])
        elif func in (aten.sort.default, aten.sort.stable):
            dim = kwargs.get("dim", args[1] if func is aten.sort.default and len(args) > 1 else -1)
            length = args[0].shape[dim] if args[0].dim() else 1
            self.pass_by(libraries.SORT, libraries.sort_bytes(args[0].numel(), args[0].itemsize, length))

    def _product_with_bias(self) -> None:
        """Note cuBLASLt's workspace: for this product, or kept from it on."""
        stack = self._card.stack
        size = libraries.cublaslt_bytes(stack, is_nvidia=self._card.is_nvidia)
        owner = self._mode.in_backward, self._mode.stream
        if not libraries.keeps_cublaslt(stack):
            self.pass_by(libraries.CUBLASLT, Range(low=size, expected=size, high=size))
        elif size and owner not in self._has_light_workspace:
            self._has_light_workspace.add(owner)
            self._mode.take(size, Scratch(libraries.CUBLASLT, size, size), layer="")

    def _attention_backward(self, query: torch.Tensor, value: torch.Tensor) -> None:
        batch, heads, rows, size = query.shape
        before, delta, accumulated = libraries.efficient_attention_scratch(
            batch, heads, rows, size, value.shape[-1],
            is_half=query.dtype in _HALF, capability=self._card.capability,
        )  # fmt: skip
        first = [self._exactly(libraries.ATTENTION, part) for part in before]
        second = self._exactly(libraries.ATTENTION, delta)
        for number in first:
            self._mode.give_back(number)
        if accumulated:
            self._mode.give_back(self._exactly(libraries.ATTENTION, accumulated))
        self._mode.give_back(second)

    def _exactly(self, mechanism: str, size: int) -> int:
        return self._mode.take(size, Scratch(mechanism, size, size))

    def pass_by(self, mechanism: str, size: Range) -> None:
        """Note what is taken and given back at once."""
        if size.high > 0:
            self._mode.give_back(self._taken(mechanism, size))

    def _taken(self, mechanism: str, size: Range) -> int:
        return self._mode.take(size.expected, Scratch(mechanism, size.low, size.high))

    # -- convolution ---------------------------------------------------------------------------------

    def convolve(self, call: Convolution, padding: Any, dilation: Any) -> None:
        """Note the workspace of one call of cuDNN, and of the search before the first of its kind.

        Kinds differ by padding and dilation as well (cudnn/ConvShared.h `ConvolutionParams`).
        """
        kind = call, f"{tuple(padding)} {tuple(dilation)}"
        size = libraries.convolution_bytes(call, self._card.multiprocessors)
        if torch.backends.cudnn.benchmark and kind not in self._searched:
            self._searched.add(kind)
            self.pass_by(libraries.SEARCH, size)
            self._mode.release_cache()
            self._warn_of_transforms(call)
        self.pass_by(libraries.CONVOLUTION, size)

    def _warn_of_transforms(self, call: Convolution) -> None:
        """Keep a line on the largest plan by Fourier transforms that the search may try."""
        size = libraries.transform_bytes(call)
        if self._transform_bytes < size <= self._card.total_bytes:
            self._mode.unmodelled.pop(TRANSFORM_NOTE.format(format_bytes(self._transform_bytes)), None)
            self._mode.unmodelled.setdefault(TRANSFORM_NOTE.format(format_bytes(size)))
            self._transform_bytes = size

    def tensor_cores(self, dtype: torch.dtype) -> Rate:
        """Return what tensor cores give for convolutions of this type; of MIOpen nothing is expected."""
        if not self._card.is_nvidia:
            return Rate.EQUAL
        allows = dtype is torch.float32 and _convolves_in_tf32()
        return libraries.tensor_core_rate(self._card.capability, is_half=dtype in _HALF, allows_tf32=allows)

    def unfold(self, columns: int) -> None:
        """Note the patches that torch's own convolution multiplies, and the handle of its products."""
        self.before(aten.mm.default, ())
        self.pass_by(libraries.COLUMNS, Range(low=columns, expected=columns, high=columns))


def _convolves_in_tf32() -> bool:
    """Return whether convolutions of float32 may use TF32, asked as torch 2.9 and newer want it where they do.

    `allow_tf32` raises there once convolutions and recurrent layers differ (torch/backends/cudnn).
    """
    flags = torch.backends.cudnn
    newer = getattr(flags, "conv", None)
    return bool(flags.allow_tf32 if newer is None else newer.fp32_precision == "tf32")


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
            call = _call(mode, direction, input, weight, result, groups, stride, transposed)
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
                call = _call(mode, direction, input, weight, grad, groups, stride, transposed)
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
    followed = groups == 1 and not transposed and input.dim() < 5
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
    groups: int, stride: Any, transposed: bool,
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
        tensor_cores=mode.libraries.tensor_cores(input.dtype),
        strided=any(s != 1 for s in stride),
        image=tuple(data.shape[2:]),
        batch=data.shape[0],
    )
