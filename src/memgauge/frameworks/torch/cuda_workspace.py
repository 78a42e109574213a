"""What the backward kernels of flash and cuDNN attention take and give back on CUDA.

Source: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp `mha_bwd` of torch 2.13; cudnn-frontend,
node/scaled_dot_product_flash_attention.h `SDPABackwardNodeBase` (`dQ_accum_size`, `softmax_sum_size`; what the library
behind it takes for grouped heads is not published).
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
_FLOAT_BYTES = 4


def workspace_bytes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Return the bytes that an operator takes beside its inputs and outputs; 0 where none are known."""
    if func is aten._scaled_dot_product_flash_attention_backward.default:
        return _flash(args[1], args[2])
    if func is aten._scaled_dot_product_cudnn_attention_backward.default:
        return _cudnn(args[1])
    return 0


def _cudnn(query: torch.Tensor) -> int:
    """The gradient of the query in float32, and one number per row."""
    return query.numel() // query.shape[-1] * (query.shape[-1] + 1) * _FLOAT_BYTES


def _flash(query: torch.Tensor, key: torch.Tensor) -> int:
    """The gradient of the query in float32, one number per row, and unshared key and value gradients."""
    batch, heads, rows, size = query.shape
    rows, width = _up(rows, 128), _up(size, 32 if size <= 128 else 64)
    accumulated = batch * heads * rows * (width + 1) * _FLOAT_BYTES
    if key.shape[1] == heads:
        return accumulated
    return accumulated + 2 * batch * key.shape[2] * heads * size * query.itemsize


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
