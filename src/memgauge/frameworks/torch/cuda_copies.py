"""Copies that CUDA's kernels make of inputs whose layout they cannot read, given back when they return.

Autograd saves the input, not the copy. What convolutions copy is in `cuda_convolution`. Sources of torch 2.13,
aten/src/ATen/native: cuda/layer_norm_kernel.cu (`expect_contiguous`),
cuda/SoftMax.cu `host_softmax`, `host_softmax_backward`; cuda/Blas.cpp `prepare_batch_matrix_for_cublas` and
cuda/cuBlasCommonArgs.h `prepare_matrix_for_cublas` for products; transformers/cuda/attention_backward.cu
`_flash_attention_backward`, `_efficient_attention_backward`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from memgauge.frameworks.torch.cuda_phantom import CudaPhantomMode

aten = torch.ops.aten

# Positions of the arguments that a kernel reads in the ordinary layout only.
_ORDINARY: dict[Any, tuple[int, ...]] = {
    aten.native_layer_norm.default: (0,),
    # The gradient's copy is read off a profile of the CPU's kernel of 2.13; both read by address.
    aten.native_layer_norm_backward.default: (0, 1),
    aten._softmax.default: (0,),
    aten._softmax_backward_data.default: (0, 1),
    aten._log_softmax.default: (0,),
    aten._log_softmax_backward_data.default: (0, 1),
}
# Of the arguments, batch x heads x rows x size, that a kernel reads with the heads of a row side by side only: the
# gradient, and flash attention's output.
_ROW_BY_ROW: dict[Any, tuple[int, ...]] = {
    aten._scaled_dot_product_flash_attention_backward.default: (0, 4),
    aten._scaled_dot_product_efficient_attention_backward.default: (0,),
}
# Positions of the two factors of a product.
_FACTORS: dict[Any, tuple[int, int]] = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
}
COPYING = _ORDINARY.keys() | _ROW_BY_ROW.keys() | _FACTORS.keys()


@contextmanager
def copied(mode: CudaPhantomMode, func: Any, args: tuple[Any, ...]) -> Iterator[None]:
    """Hold the copies that a kernel makes of its inputs, as long as it runs."""
    wanted = [args[p] for p in _ORDINARY.get(func, ()) if not args[p].is_contiguous()]
    wanted += [args[p] for p in _ROW_BY_ROW.get(func, ()) if not args[p].transpose(1, 2).is_contiguous()]
    wanted += [args[p] for p in _FACTORS.get(func, ()) if not _is_read_by_cublas(args[p])]
    copies = [mode.hold(tensor.numel() * tensor.itemsize) for tensor in wanted]
    yield
    for copy in copies:
        mode.give_back(copy)


def _is_read_by_cublas(matrix: torch.Tensor) -> bool:
    """Return whether rows or columns lie side by side in memory, none of them twice."""
    (rows, columns), (row_step, column_step) = matrix.shape[-2:], matrix.stride()[-2:]
    return (
        matrix.is_contiguous()
        or (row_step == 1 and column_step >= max(1, rows))
        or (column_step == 1 and row_step >= max(1, columns))
    )
