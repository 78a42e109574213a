"""Workspace of matrix products on the CPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from memgauge.frameworks.torch.cpu_workspace.layout import size
from memgauge.frameworks.torch.cpu_workspace.onednn import booked, ceil_div, up

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@lru_cache(maxsize=1)
def onednn_sums_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 matrices with a buffer of sums.

    It is asked on processors with AVX-512 (torch aten/src/ATen/native/mkldnn/Utils.h, mkldnn_bf16_device_check), and
    needs none on those that multiply bfloat16 themselves.
    """
    is_asked = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    by_processor = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return bool(is_asked and not by_processor)


def _is_fit(matrix: torch.Tensor) -> bool:
    """Whether BLAS takes the matrix as it lies: one stride is 1, the other spans it.

    Source: torch aten/src/ATen/native/LinearAlgebra.cpp, addmm_impl_cpu_.
    """
    rows, columns = matrix.shape[-2:]
    down, across = matrix.stride()[-2:]
    return (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))


def _half(left: torch.Tensor, result: Any, threads: int) -> int:
    """OneDNN's product of bfloat16 matrices keeps sums in float32, for each thread those of its share of rows.

    A share is of one matrix at most, of whole rows unless there is less than a row for each thread, in steps of 64
    sums; together they have room for one matrix at least.

    Source: torch aten/src/ATen/native/mkldnn/Matmul.cpp, checksize; oneDNN src/cpu/matmul/gemm_bf16_matmul.cpp,
    init_scratchpad. The shares: our measurement, 1 to 4 threads, Xeon with AVX-512 and without
    bfloat16 instructions, torch 2.13, 2026-11-22.
    """
    if result.dtype is not torch.bfloat16 or not onednn_sums_bfloat16():
        return 0
    if result.numel() * left.shape[-1] <= 4096:
        return 0  # too small to be worth asking oneDNN
    rows, columns = result.shape[-2:]
    share = ceil_div(result.numel(), threads)
    if share >= columns:
        share = min(rows, share // columns) * columns
    return booked(max(threads * up(share, 64), up(rows * columns, 64)) * 4)


def product(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Two matrices."""
    held = _half(args[0], result, threads)
    return held + sum(0 if _is_fit(m) or m.numel() == 0 else size(m) for m in args[:2])


def sum_and_product(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """A matrix added to the product of two."""
    return product(args[1:3], kwargs, result, threads)


def batched_product(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Two batches of matrices; what does not fit is copied one matrix at a time.

    Source: torch aten/src/ATen/native/LinearAlgebra.cpp, bmm_out_or_baddbmm_.
    """
    held = _half(args[0], result, threads)
    for batch in args[:2]:
        if batch.numel() and not _is_fit(batch):
            held += size(batch) // batch.shape[0]
    return held


def batched_sum_and_product(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """A batch added to the product of two."""
    return batched_product(args[1:3], kwargs, result, threads)


RULES: dict[str, Any] = {
    "mm.default": product,
    "addmm.default": sum_and_product,
    "bmm.default": batched_product,
    "baddbmm.default": batched_sum_and_product,
}
