"""Copies that CUDA's kernels make of inputs whose layout they cannot read, given back when they return.

Autograd saves the input, not the copy. What convolutions copy is in `cuda_convolution`. Sources of torch 2.13,
aten/src/ATen/native: cuda/layer_norm_kernel.cu (`expect_contiguous`),
cuda/SoftMax.cu `host_softmax`, `host_softmax_backward`; cuda/Blas.cpp `prepare_batch_matrix_for_cublas` and
cuda/cuBlasCommonArgs.h `prepare_matrix_for_cublas` for products; transformers/cuda/attention_backward.cu
`_flash_attention_backward`, `_efficient_attention_backward`; cudnn/MHA.cpp `run_cudnn_SDP_bprop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from memgauge.frameworks.torch.cuda_phantom import CudaPhantomMode

aten = torch.ops.aten


def _is_ordinary(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous()


def _lies_row_by_row(heads: torch.Tensor) -> bool:
    """Whether the heads of a row, of batch x heads x rows x size, lie side by side."""
    return heads.transpose(1, 2).is_contiguous()


def _has_neighbours(tensor: torch.Tensor) -> bool:
    return tensor.stride(-1) == 1


def _is_read_by_cublas(matrix: torch.Tensor) -> bool:
    """Whether rows or columns lie side by side in memory, none of them twice."""
    (rows, columns), (row_step, column_step) = matrix.shape[-2:], matrix.stride()[-2:]
    return (
        matrix.is_contiguous()
        or (row_step == 1 and column_step >= max(1, rows))
        or (column_step == 1 and row_step >= max(1, columns))
    )


# Operator -> positions of arguments, and whether its kernel reads one as it lies.
_READS: dict[Any, tuple[tuple[int, ...], Callable[[torch.Tensor], bool]]] = {
    aten.native_layer_norm.default: ((0,), _is_ordinary),
    # The gradient's copy is read off a profile of the CPU's kernel of 2.13; both read by address.
    aten.native_layer_norm_backward.default: ((0, 1), _is_ordinary),
    aten._softmax.default: ((0,), _is_ordinary),
    aten._softmax_backward_data.default: ((0, 1), _is_ordinary),
    aten._log_softmax.default: ((0,), _is_ordinary),
    aten._log_softmax_backward_data.default: ((0, 1), _is_ordinary),
    aten._scaled_dot_product_flash_attention_backward.default: ((0, 4), _lies_row_by_row),  # gradient, output
    aten._scaled_dot_product_efficient_attention_backward.default: ((0,), _lies_row_by_row),
    aten._scaled_dot_product_cudnn_attention_backward.default: ((0,), _has_neighbours),  # from cuDNN 9.5.1 on
    aten.mm.default: ((0, 1), _is_read_by_cublas),
    aten.bmm.default: ((0, 1), _is_read_by_cublas),
    aten.addmm.default: ((1, 2), _is_read_by_cublas),
    aten.baddbmm.default: ((1, 2), _is_read_by_cublas),
}
COPYING = _READS.keys()


@contextmanager
def copied(mode: CudaPhantomMode, func: Any, args: tuple[Any, ...]) -> Iterator[None]:
    """Hold the copies that a kernel makes of its inputs, as long as it runs."""
    positions, is_read = _READS[func]
    read = [args[p] for p in positions]
    if any(tensor.layout is not torch.strided for tensor in read):
        read = []  # by cuSPARSE, from indices and values
    wanted = [tensor for tensor in read if not is_read(tensor)]
    copies = [mode.hold(tensor.numel() * tensor.itemsize) for tensor in wanted]
    yield
    for copy in copies:
        mode.give_back(copy)
