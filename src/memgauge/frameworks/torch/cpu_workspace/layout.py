"""Sizes of the copies that kernels make of tensors they cannot use as they lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Elements above which a loop or sum is given to more than one thread.
# Source: torch aten/src/ATen/TensorIterator.h, GRAIN_SIZE.
GRAIN = 32768


def size(tensor: torch.Tensor, itemsize: int = 0) -> int:
    """Bytes of a dense tensor of this shape."""
    return tensor.numel() * (itemsize or tensor.itemsize)


def made_contiguous(tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> int:
    """Bytes of `tensor.contiguous(memory_format=...)`: none where it is so already."""
    return 0 if tensor.is_contiguous(memory_format=memory_format) else size(tensor)


def suggested(tensor: torch.Tensor) -> torch.memory_format:
    """Return what `suggest_memory_format` says of a tensor."""
    if tensor.dim() in (4, 5) and not tensor.is_contiguous():
        last = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
        if tensor.is_contiguous(memory_format=last):
            return last
    return torch.contiguous_format


def argument(args: Sequence[object], position: int, default: object = None) -> object:
    """Return a positional argument that may have been left out."""
    return args[position] if len(args) > position else default
