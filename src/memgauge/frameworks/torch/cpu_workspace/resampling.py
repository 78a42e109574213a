"""Workspace of resizing, pooling and sampling on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from memgauge.frameworks.torch.cpu_workspace.layout import made_contiguous, size, suggested

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_LAST = torch.channels_last


def _tables(result: Any, taps: int) -> int:
    """For each place of the output: where to read, and with what weight.

    Source: torch aten/src/ATen/native/cpu/UpSampleKernel.cpp, compute_indices_weights.
    """
    return int(sum(result.shape[2:]) * taps * (8 + result.itemsize))


def _resized(args: Args, result: Any, taps: int) -> int:
    """Small images are resized with channels last, and turned back.

    Source: torch aten/src/ATen/native/cpu/UpSampleKernel.cpp, _use_vectorized_kernel_cond_2d.
    """
    x = args[0]
    if x.dim() == 4 and taps < 4:
        last = x.is_contiguous(memory_format=_LAST)
        if (last and x.shape[1] > 3) or result.shape[-2] + result.shape[-1] <= 128:
            turned = 0 if result.is_contiguous(memory_format=_LAST) else size(result)
            return made_contiguous(x, _LAST) + turned
    return _tables(result, taps)


def nearest(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Nearest neighbour."""
    return _resized(args, result, 1)


def linear(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Linear in each direction."""
    return _resized(args, result, 2)


def cubic(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Cubic in each direction."""
    return _resized(args, result, 4)


def antialiased(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """One direction after the other.

    Source: torch aten/src/ATen/native/cpu/UpSampleKernel.cpp, separable_upsample_generic_Nd_kernel_impl.
    """
    x = args[0]
    return int(x.shape[0] * x.shape[1] * x.shape[2] * result.shape[3] * x.itemsize)


def resized_backward(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/cpu/UpSampleMoreKernel.cpp."""
    grad = args[0]
    return made_contiguous(grad, suggested(grad))


def pooled(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/cpu/MaxPoolKernel.cpp and AvgPoolKernel.cpp."""
    x = args[0]
    return made_contiguous(x, suggested(x))


def pooled_backward(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """The layout of the incoming gradient decides; the other tensors are turned to it.

    Source: torch aten/src/ATen/native/cpu/MaxPoolKernel.cpp, max_pool_backward_kernel_impl;
    AvgPoolKernel.cpp, avg_pool2d_backward_kernel_impl.
    """
    grad = args[0]
    chosen = suggested(grad)
    held = made_contiguous(grad, chosen) + made_contiguous(result, chosen)
    indices = args[-1]
    if isinstance(indices, torch.Tensor) and indices.dtype is torch.int64:
        held += made_contiguous(indices, chosen)
    return held


def affine_grid(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """The grid of the identity, in homogeneous coordinates.

    Source: torch aten/src/ATen/native/AffineGridGenerator.cpp, make_base_grid_4D.
    """
    shape = args[1]
    theta = args[0]
    return int(shape[0] * torch.Size(shape[2:]).numel() * (len(shape) - 1) * theta.itemsize)


def folded(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/Col2Im.cpp and Im2Col.cpp."""
    return made_contiguous(args[0])


RULES: dict[str, Any] = {
    **{
        f"{name}.default": nearest
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
        for name in (f"{kind}1d", f"{kind}2d", f"{kind}3d")
    },
    **{f"upsample_{kind}.default": linear for kind in ("linear1d", "bilinear2d", "trilinear3d")},
    "upsample_bicubic2d.default": cubic,
    "_upsample_bilinear2d_aa.default": antialiased,
    "_upsample_bicubic2d_aa.default": antialiased,
    **{
        f"{name}_backward.default": resized_backward
        for name in (
            "upsample_nearest1d",
            "upsample_nearest2d",
            "upsample_nearest3d",
            "_upsample_nearest_exact2d",
            "upsample_linear1d",
            "upsample_bilinear2d",
            "upsample_trilinear3d",
        )
    },
    **{
        f"{name}.default": pooled
        for name in (
            "max_pool2d_with_indices",
            "max_pool3d_with_indices",
            "avg_pool2d",
            "avg_pool3d",
            "_adaptive_avg_pool2d",
            "_adaptive_avg_pool3d",
            "adaptive_max_pool2d",
        )
    },
    "max_pool2d_with_indices_backward.default": pooled_backward,
    "avg_pool2d_backward.default": pooled_backward,
    "affine_grid_generator.default": affine_grid,
    "im2col.default": folded,
    "col2im.default": folded,
}
