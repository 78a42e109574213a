"""Workspace of sums, means and norms on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from memgauge.frameworks.torch.cpu_workspace.layout import GRAIN, size

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def _two_passes(x: torch.Tensor, result: Any, threads: int) -> int:
    """A sum of everything is first made for each thread.

    Source: torch aten/src/ATen/native/TensorIteratorReduce.cpp, two_pass_reduction.
    """
    return threads * result.itemsize if x.numel() >= GRAIN and result.numel() == 1 and threads > 1 else 0


def total(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Truth values and short integers are summed as long ones, from a copy.

    Source: torch aten/src/ATen/native/ReduceOpsUtils.h, make_reduction.
    """
    x = args[0]
    held = _two_passes(x, result, threads)
    if x.dtype is not result.dtype:
        held += size(x, result.itemsize)
    return held


def mean(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """A sum, then a division by the count; half precision is summed in single.

    Source: torch aten/src/ATen/native/ReduceOps.cpp, mean_out.
    """
    x = args[0]
    if x.dtype in (torch.bfloat16, torch.float16):
        return size(x, 4) + int(result.numel()) * 4
    divisor = 8 + (0 if result.itemsize == 8 and not result.is_complex() else result.itemsize)
    return max(divisor, total(args, kwargs, result, threads))


def logarithm_of_sum(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/ReduceOps.cpp, logsumexp_out_impl."""
    return size(args[0]) + size(result)


RULES: dict[str, Any] = {
    "sum.default": total,
    "sum.dim_IntList": total,
    "amax.default": total,
    "amin.default": total,
    "mean.default": mean,
    "mean.dim": mean,
    "logsumexp.default": logarithm_of_sum,
}
