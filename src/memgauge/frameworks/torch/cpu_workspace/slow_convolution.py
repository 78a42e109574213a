"""torch's own convolutions, for what oneDNN is not asked to do: im2col and a matrix product.

Source: torch aten/src/ATen/native/ConvolutionMM2d.cpp, ConvolutionMM3d.cpp,
NaiveDilatedConvolution.cpp, NaiveConvolutionTranspose2d.cpp,
NaiveConvolutionTranspose3d.cpp; groups one by one in Convolution.cpp.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from memgauge.frameworks.torch.cpu_workspace.layout import made_contiguous

_C: Any = torch._C  # what is asked here has no type stubs
_Backend = _C._ConvBackend


def slow_forward(backend: Any, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, options: Any) -> int:
    """Workspace of the forward pass."""
    stride, padding, _, _, _, groups = options
    columns = _columns(backend, x, weight, y, stride, padding, groups, forward=True)
    if backend == _Backend.Slow3d:
        columns += made_contiguous(x) + made_contiguous(weight)
    if groups == 1:
        return columns
    part = _part(x, groups)
    return max(part + columns, y.numel() * y.itemsize)


def slow_backward(
    backend: Any, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mask: Any, options: Any
) -> int:
    """Workspace of the backward pass."""
    stride, padding, _, _, _, groups = options
    columns = 0
    if mask[1] or backend != _Backend.Slow2d:
        columns = _columns(backend, x, weight, grad, stride, padding, groups, forward=False)
        if backend == _Backend.Slow3d:
            columns += made_contiguous(x)
    if backend in (_Backend.SlowDilated2d, _Backend.SlowDilated3d) and mask[2]:
        columns += grad.shape[1] // groups * grad.itemsize  # one image's sum
    if groups == 1:
        return columns
    outputs = (mask[0] * x.numel() + mask[1] * weight.numel() + mask[2] * grad.shape[1]) * x.itemsize
    return int(max(_part(x, groups) + _part(grad, groups) + columns, outputs))


def _part(tensor: torch.Tensor, groups: int) -> int:
    """Bytes of the copy of one group's channels; of one image they are in one piece already."""
    return tensor.numel() // groups * tensor.itemsize if tensor.shape[0] > 1 else 0


def _columns(
    backend: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    stride: Any,
    padding: Any,
    groups: int,
    forward: bool,
) -> int:
    kernel = prod(weight.shape[2:])
    images = x.shape[0]
    if backend in (_Backend.SlowTranspose2d, _Backend.SlowTranspose3d):
        columns = int(weight.shape[1]) * kernel * prod(x.shape[2:])
        if backend == _Backend.SlowTranspose2d:
            return columns * x.itemsize * (images if forward else 1)
        ones = prod(y.shape[2:]) if forward else 0
        return (columns + ones) * x.itemsize
    columns = x.shape[1] // groups * kernel * prod(y.shape[2:]) * x.itemsize
    if backend in (_Backend.SlowDilated2d, _Backend.SlowDilated3d):
        return columns
    plain = kernel == 1 and all(s == 1 for s in stride) and not any(padding)
    if not plain:
        return columns * images
    if backend == _Backend.Slow2d or forward:
        return 0  # the image is its own im2col
    # In 3-D only the gradient of the input has a buffer, before that of the weights is there.
    return max(0, columns * images - weight.numel() * x.itemsize)
