"""Attention on CUDA: which kernel runs, what it saves, what it needs in backward.

    cuDNN       preferred on compute capability 9.0 and 10.x
    flash       float16 or bfloat16, no mask, head size up to 256, capability 8.0 and up
    efficient   also float32 and masks
    math        what is left: keeps the S x S probabilities

Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (order and constraints) and
transformers/attention.cpp `scaled_dot_product_attention` (padding, masks) of torch 2.13.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from memgauge.frameworks.torch.cuda_placement import Placement

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
MATH, FLASH, EFFICIENT, CUDNN = 0, 1, 2, 3  # at::SDPBackend


@dataclass
class Capability:
    """Compute capability of the GPU under study; set for the length of a trace."""

    now: tuple[int, int] = (8, 0)


capability = Capability()


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments that the choice depends on."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    grouped: bool

    @property
    def trains(self) -> bool:
        inputs = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(t.requires_grad for t in inputs)


def scaled_dot_product_attention(
    placement: Placement,
    func: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Run the kernel that CUDA would choose."""
    call = Call(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    backend = choose(call)
    if backend == FLASH:
        return _flash(call, scale)
    mask = _additive(attn_mask, query.dtype, placement)
    if backend == EFFICIENT:
        mask = None if mask is None else _aligned(mask, query, key)
        arguments = (query, key, value, mask, call.trains, dropout_p, is_causal)
        return aten._scaled_dot_product_efficient_attention.default(*arguments, scale=scale)[0]  # type: ignore[no-any-return]
    if backend == CUDNN:
        arguments = (query, key, value, mask, call.trains, dropout_p, is_causal)
        return aten._scaled_dot_product_cudnn_attention.default(*arguments, False, scale=scale)[0]  # type: ignore[no-any-return]
    return aten._scaled_dot_product_attention_math.default(  # type: ignore[no-any-return]
        query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def choose(call: Call) -> int:
    """Return the first backend of the order of preference whose constraints hold (`select_sdp_backend`)."""
    tests = {FLASH: _fits_flash, EFFICIENT: _fits_efficient, CUDNN: _fits_cudnn}
    order = list(torch._C._get_sdp_priority_order())
    if capability.now[0] in (9, 10) and order[0] == FLASH and torch._C._get_cudnn_sdp_enabled():
        order = [CUDNN, *(b for b in order if b != CUDNN)]  # check_prefer_cudnn_attention
    for backend in order:
        if backend == MATH and torch._C._get_math_sdp_enabled():
            return MATH
        if backend in tests and tests[backend](call):
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


def _fits_flash(call: Call) -> bool:
    query, size = call.query, call.query.shape[-1]
    return (
        torch._C._get_flash_sdp_enabled()
        and capability.now >= (8, 0)
        and call.mask is None
        and query.dtype in HALF
        and _dense(call, grouped=True)
        and call.key.shape[-1] == size == call.value.shape[-1]
        and size <= 256
        and not (
            _small_shared_memory() and call.trains and not (size <= 192 or (call.dropout == 0 and size > 224))
        )
        and not (call.causal and query.shape[-2] != call.key.shape[-2])
        and (_last_strides_are_one(call) or size == 1)
    )


def _small_shared_memory() -> bool:
    return (8, 6) <= capability.now <= (8, 9) or (12, 0) <= capability.now <= (12, 1)


def _fits_efficient(call: Call) -> bool:
    alignment = _gemm_alignment(call.query.dtype)
    size = call.query.shape[-1]
    dtypes = (torch.float16, torch.float32, *((torch.bfloat16,) if capability.now >= (8, 0) else ()))
    return (
        torch._C._get_mem_efficient_sdp_enabled()
        and capability.now >= (5, 0)
        and call.query.dtype in dtypes
        and _dense(call, grouped=False)
        and call.key.shape[-1] == size > 0
        and size % alignment == 0
        and call.value.shape[-1] > 0
        and call.value.shape[-1] % alignment == 0
        and _last_strides_are_one(call)
        and (call.mask is None or call.mask.stride(-1) == 1)
    )


def _fits_cudnn(call: Call) -> bool:
    sizes = (call.query.shape[-1], call.value.shape[-1])
    return (
        torch._C._get_cudnn_sdp_enabled()
        and capability.now >= (8, 0)
        and call.query.dtype in HALF
        and _dense(call, grouped=True)
        and all(s <= 128 and s % 8 == 0 for s in sizes)
        and call.key.shape[-2] > 1
        and (call.dropout == 0 or (call.query.shape[-2] > 1 and (call.dropout * 16).is_integer()))
        and not torch.are_deterministic_algorithms_enabled()
        and (_last_strides_are_one(call) or sizes[0] == 1)
    )


def _gemm_alignment(dtype: torch.dtype) -> int:
    """Return the multiple that head sizes must be of (`minimum_gemm_alignment`)."""
    half = dtype in HALF
    major = capability.now[0]
    alignment = 4 if major >= 8 else 1
    if major >= 8 or (major == 7 and half):
        alignment = max(alignment, 128 // (16 if half else 32))
    return alignment


def _dense(call: Call, *, grouped: bool) -> bool:
    query, key, value = call.query, call.key, call.value
    if not query.dim() == key.dim() == value.dim() == 4 or not query.dtype == key.dtype == value.dtype:
        return False
    if not query.shape[0] == key.shape[0] == value.shape[0] or 0 in (query.shape[-2], key.shape[-2]):
        return False
    if call.grouped and grouped:
        return key.shape[1] == value.shape[1] and query.shape[1] % key.shape[1] == 0
    return query.shape[1] == key.shape[1] == value.shape[1]


def _last_strides_are_one(call: Call) -> bool:
    return all(t.stride(-1) == 1 for t in (call.query, call.key, call.value))


def _flash(call: Call, scale: float | None) -> torch.Tensor:
    size = call.query.shape[-1]
    inputs = [call.query, call.key, call.value]
    if size % 8:
        inputs = [torch.nn.functional.pad(t, (0, 8 - size % 8)) for t in inputs]
    scale = 1 / math.sqrt(size) if scale is None else scale
    output: torch.Tensor = aten._scaled_dot_product_flash_attention.default(
        *inputs, call.dropout, call.causal, False, scale=scale
    )[0]
    return output[..., :size] if size % 8 else output


def _additive(mask: torch.Tensor | None, dtype: torch.dtype, placement: Placement) -> torch.Tensor | None:
    """A boolean mask becomes one of numbers, in the query's dtype (`convert_boolean_attn_mask`, `…_cudnn`)."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    with placement.at(True):
        lowest = torch.ops.aten.scalar_tensor.default(-math.inf, dtype=dtype, device=torch.device("cpu"))
    return torch.where(mask, 0.0, lowest)


def _aligned(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Rows of the mask begin at multiples of 8 elements (`preprocess_mask`, `pad_bias`)."""
    if any(s % 8 for s in mask.stride()[:-1]):
        size = mask.shape[-1]
        mask = torch.nn.functional.pad(mask, (0, 8 - size % 8))[..., :size]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
