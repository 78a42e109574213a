"""Workspace of Fourier transforms and of composed products on the CPU."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from memgauge.frameworks.torch.cpu_workspace.layout import size

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def _batched(x: Any, dims: list[int]) -> int:
    """Bytes of the copy that brings all other dimensions into one; none where they lie so already.

    Source: torch aten/src/ATen/native/mkl/SpectralOps.cpp, _exec_fft.
    """
    transformed = {d % x.dim() for d in dims}
    batch = sorted((d for d in range(x.dim()) if d not in transformed), key=lambda d: -x.stride(d))
    batch = [d for d in batch if x.shape[d] != 1]
    fits = all(x.stride(outer) == x.stride(inner) * x.shape[inner] for outer, inner in pairwise(batch))
    return 0 if fits else size(x)


def complex_transform(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """From real or complex numbers to complex ones."""
    return _batched(args[0], args[1])


def to_real(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """All dimensions but the last are done first, into a tensor of their own.

    Source: torch aten/src/ATen/native/mkl/SpectralOps.cpp, _fft_c2r_mkl.
    """
    x, dims = args[0], args[1]
    if len(dims) == 1:
        return _batched(x, dims)
    return 2 * size(x)


def trilinear(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Slice by slice: the product of two of the three, and the slice's part of the result.

    Source: torch aten/src/ATen/native/Linear.cpp, _trilinear.
    """
    first, second = args[0], args[1]
    for tensor_dims, name in ((args[3], 0), (args[4], 1)):
        for dimension in tensor_dims:
            if name == 0:
                first = first.unsqueeze(dimension)
            else:
                second = second.unsqueeze(dimension)
    shape = list(torch.broadcast_shapes(first.shape, second.shape))  # type: ignore[no-untyped-call]
    shape[args[7] if len(args) > 7 else 1] = 1
    return int(torch.Size(shape).numel() * first.itemsize) + size(result)


def euclidean_distance(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Both sets of points with two more columns.

    Source: torch aten/src/ATen/native/Distance.cpp, _euclidean_dist.
    """
    return sum((size(x) // x.shape[-1] * (x.shape[-1] + 2)) for x in args[:2])


def matrix_exponential(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Powers of the matrix for a Taylor polynomial of degree 18, and their scratch.

    Source: torch aten/src/ATen/native/LinearAlgebra.cpp, mexp_impl: the degree, and with it the number
    of powers, depends on the norm. Degree 12 (a norm about 1) is assumed; 18 would hold three more.
    """
    return 9 * size(args[0])


def cholesky_solve(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/BatchLinearAlgebra.cpp, _cholesky_solve_helper_cpu."""
    return size(args[1]) + 6


RULES: dict[str, Any] = {
    "_fft_r2c.default": complex_transform,
    "_fft_c2c.default": complex_transform,
    "_fft_c2r.default": to_real,
    "_trilinear.default": trilinear,
    "_euclidean_dist.default": euclidean_distance,
    "linalg_matrix_exp.default": matrix_exponential,
    "cholesky_solve.default": cholesky_solve,
}
