"""Sizes of the copies that kernels make of tensors they cannot use as they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

# Elements above which a loop or sum is given to more than one thread.
# Source: torch aten/src/ATen/TensorIterator.h, GRAIN_SIZE.
GRAIN = 32768


def size(tensor: torch.Tensor, itemsize: int = 0) -> int:
    """Bytes of a dense tensor of this shape."""
    return tensor.numel() * (itemsize or tensor.itemsize)


def made_contiguous(
    tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format
) -> int:
    """Bytes of `tensor.contiguous(memory_format=...)`: none where it is so already."""
    if tensor.is_contiguous(memory_format=memory_format):
        return 0
    return size(tensor) + transposing_buffer(tensor)


def transposing_buffer(tensor: torch.Tensor) -> int:
    """Bytes of the tile through which a large transposed matrix is copied.

    Source: torch aten/src/ATen/native/Copy.cpp, copy_transpose_valid and copy_same_type_transpose_.
    """
    if tensor.dim() != 2 or tensor.numel() < 3600 or tensor.is_complex():
        return 0
    transposed = tensor.stride(0) == 1 and tensor.stride(1) == tensor.shape[0]
    return 3600 * tensor.itemsize if transposed else 0


def suggested(tensor: torch.Tensor) -> torch.memory_format:
    """Return what `suggest_memory_format` says of a tensor."""
    if tensor.dim() in (4, 5) and not tensor.is_contiguous():
        last = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
        if tensor.is_contiguous(memory_format=last):
            return last
    return torch.contiguous_format


def argument(args: Sequence[Any], position: int, default: Any = None) -> Any:
    """Return a positional argument that may have been left out."""
    return args[position] if len(args) > position else default
