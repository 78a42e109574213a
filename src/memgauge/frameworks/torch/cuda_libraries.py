"""Where libraries take memory for themselves in a trace: at which operator, for how long.

How much it is say `devices.libraries` and `devices.convolutions`. A workspace of cuBLAS is kept from the first product
of a thread on: the program's thread, and the engine's, which runs backward. cuDNN's are given
back when the convolution returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from memgauge import environment
from memgauge.devices import convolutions, libraries, rates_of_architecture
from memgauge.devices.convolutions import Convolution, Convolver
from memgauge.devices.stack import Stack, workspace_config_bytes
from memgauge.records import Range, Scratch
from memgauge.units import format_bytes

if TYPE_CHECKING:
    from memgauge.frameworks.torch.cuda_devices import Card
    from memgauge.frameworks.torch.cuda_phantom import CudaPhantomMode

aten = torch.ops.aten

PRODUCTS = frozenset(
    getattr(operator, overload)
    for operator in (
        aten.mm, aten.addmm, aten.addmm_, aten.bmm, aten.baddbmm, aten.baddbmm_, aten.mv, aten.addmv, aten.addmv_,
        aten.dot, aten._addmm_activation, aten.addbmm, aten.addbmm_, aten._scaled_mm,
    )
    for overload in operator.overloads()
)  # fmt: skip
_HALF = (torch.float16, torch.bfloat16)
TRANSFORM_NOTE = (
    "cudnn.benchmark may try a plan by Fourier transforms: up to {} for a moment of the first step (seldom)"
)
# What takes a workspace through torch's allocator by a library's own rule (cuda/SpectralOps.cpp `_exec_fft`,
# cuda/linalg/BatchLinearAlgebraLib.cpp).
_NOT_FOLLOWED = {
    "workspaces of Fourier transforms (cuFFT)": (aten._fft_r2c, aten._fft_c2c, aten._fft_c2r),
    "workspaces of matrix decompositions (cuSOLVER, MAGMA)": (
        aten._linalg_svd, aten._linalg_eigh, aten._linalg_eigvals, aten.linalg_eig, aten.linalg_qr, aten.linalg_lstsq,
        aten.linalg_cholesky_ex, aten.linalg_lu_factor_ex, aten._linalg_solve_ex, aten.linalg_inv_ex, aten._linalg_det,
    ),
}  # fmt: skip
_CUSPARSE_NOTE = "workspaces of products with sparse matrices (cuSPARSE)"
_SPARSE_PRODUCTS = frozenset({aten.mm.default, aten.addmm.default, aten._sparse_addmm.default})
_NOTES: dict[Any, str] = {
    getattr(operator, overload): note
    for note, operators in _NOT_FOLLOWED.items()
    for operator in operators
    for overload in operator.overloads()
}


class Libraries:
    """The libraries of one traced run: what they hold, and what they have seen."""

    def __init__(self, mode: CudaPhantomMode, card: Card) -> None:
        self._mode = mode
        self.card = card
        published = card.rates or rates_of_architecture(card.capability)
        self._convolver = Convolver(published, card.multiprocessors, card.is_nvidia)
        # Owners: a thread, the engine's or not, and a stream.
        self._has_workspace: set[tuple[bool, int]] = set()
        self._has_light_workspace: set[tuple[bool, int]] = set()
        self._searched: set[tuple[Convolution, str]] = set()
        self._transform_bytes = 0

    def before(self, func: Any, args: tuple[Any, ...]) -> None:
        """Note what is taken before the outputs of an operator: the handle's workspace at the first product."""
        if func in PRODUCTS and not _is_sparse_product(func, args):
            self._take_handles_workspace()

    def _take_handles_workspace(self) -> None:
        owner = self._mode.in_backward, self._mode.stream
        if owner not in self._has_workspace:
            self._has_workspace.add(owner)
            config = self._mode.own.variable(environment.CUBLAS)
            size = self.card.cublas_bytes if config is None else workspace_config_bytes(config)
            if size:
                self._mode.take(size, Scratch(libraries.CUBLAS, size, size), layer="")

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Note what an operator takes once its outputs are there, and gives back before it returns."""
        if func is aten.addmm.default and args[0].dim() == 1:
            self._product_with_bias()
        elif func is aten.embedding_dense_backward.default:
            grad, indices, rows = args[:3]
            size = libraries.embedding_backward_bytes(
                indices.numel(), int(rows), grad.shape[-1], indices.itemsize
            )
            self._passes_by(libraries.EMBEDDING, size)
        elif func is aten._scaled_dot_product_efficient_attention_backward.default:
            self._attention_backward(args[1], args[3])
        elif func in (aten.sort.default, aten.sort.stable):
            dim = kwargs.get("dim", args[1] if func is aten.sort.default and len(args) > 1 else -1)
            length = args[0].shape[dim] if args[0].dim() else 1
            self.pass_by(libraries.SORT, libraries.sort_bytes(args[0].numel(), args[0].itemsize, length))
        elif func is aten._coalesce.default or _is_sparse_product(func, args):
            self._sparse(func, args)
        elif func in _NOTES:
            self._mode.unmodelled.setdefault(_NOTES[func])
        elif func in _INDEXED:
            size = _INDEXED[func](args, result)
            self._passes_by(libraries.INDEX, size)

    def _product_with_bias(self) -> None:
        """Note cuBLASLt's workspace: for this product, or kept from it on."""
        stack = self._stack
        size = libraries.cublaslt_bytes(stack, is_nvidia=self.card.is_nvidia)
        owner = self._mode.in_backward, self._mode.stream
        if not libraries.keeps_cublaslt(stack):
            self._passes_by(libraries.CUBLASLT, size)
        elif size and owner not in self._has_light_workspace:
            self._has_light_workspace.add(owner)
            self._mode.take(size, Scratch(libraries.CUBLASLT, size, size), layer="")

    @cached_property
    def _stack(self) -> Stack:
        """The software with what the environment says of cuBLASLt, which torch reads once."""
        own = self._mode.own
        size, unified = own.variable(environment.CUBLASLT), own.variable(environment.CUBLASLT_UNIFIED)
        return msgspec.structs.replace(
            self.card.stack,
            cublaslt_workspace_kib=int(size) if size is not None and size.isdecimal() else None,
            cublaslt_unified=unified == "1" if unified in ("0", "1") else None,
        )

    def _sparse(self, func: Any, args: tuple[Any, ...]) -> None:
        """Note what sorts a sparse matrix, and what its product with a dense one takes."""
        if func is aten._coalesce.default:  # the sorted tensor is its result
            self._passes_by(libraries.SPARSE, libraries.coalescing_bytes(args[0]._nnz()))
            return
        matrix, dense = args[-2:]
        values, count = matrix._values(), matrix._nnz()
        result_bytes = matrix.shape[0] * dense.shape[1] * dense.itemsize
        held = result_bytes if func is aten.mm.default else 0  # the zeros that it adds to
        if not matrix.is_coalesced():
            coalesced = libraries.coalesced_bytes(
                count, matrix.sparse_dim(), values.numel() * values.itemsize
            )
            self._passes_by(libraries.SPARSE, held + coalesced + libraries.coalescing_bytes(count))
            held += coalesced
        product = libraries.sparse_product_bytes(count, matrix.shape[0], result_bytes)
        self._passes_by(libraries.SPARSE, held + product)
        self._mode.unmodelled.setdefault(_CUSPARSE_NOTE)

    def _attention_backward(self, query: torch.Tensor, value: torch.Tensor) -> None:
        batch, heads, rows, size = query.shape
        before, delta, accumulated = libraries.efficient_attention_scratch(
            batch, heads, rows, size, value.shape[-1],
            is_half=query.dtype in _HALF, capability=self.card.capability,
        )  # fmt: skip
        first = [self._exactly(libraries.ATTENTION, part) for part in before]
        second = self._exactly(libraries.ATTENTION, delta)
        for number in first:
            self._mode.give_back(number)
        if accumulated:
            self._mode.give_back(self._exactly(libraries.ATTENTION, accumulated))
        self._mode.give_back(second)

    def _exactly(self, mechanism: str, size: int) -> int:
        return self._mode.take(size, Scratch(mechanism, size, size))

    def pass_by(self, mechanism: str, size: Range, call: Convolution | None = None) -> None:
        """Note what is taken and given back at once."""
        if size.high > 0:
            self._mode.give_back(self._taken(mechanism, size, call))

    def _passes_by(self, mechanism: str, size: int) -> None:
        self.pass_by(mechanism, Range(low=size, expected=size, high=size))

    def _taken(self, mechanism: str, size: Range, call: Convolution | None = None) -> int:
        return self._mode.take(size.expected, Scratch(mechanism, size.low, size.high, call))

    # -- convolution ---------------------------------------------------------------------------------

    def convolve(self, call: Convolution, padding: Any, dilation: Any) -> None:
        """Note the workspace of one call of cuDNN, and of the search before the first of its kind.

        Kinds differ by padding and dilation as well (cudnn/ConvShared.h `ConvolutionParams`).
        """
        kind = call, f"{tuple(padding)} {tuple(dilation)}"
        size = self._convolver.workspace(call)
        if torch.backends.cudnn.benchmark and kind not in self._searched:
            self._searched.add(kind)
            self.pass_by(libraries.SEARCH, size)
            self._mode.release_cache()
            self._warn_of_transforms(call)
        self.pass_by(libraries.CONVOLUTION, size, call)

    def _warn_of_transforms(self, call: Convolution) -> None:
        """Keep a line on the largest plan by Fourier transforms that the search may try."""
        size = convolutions.transform_bytes(call)
        if self._transform_bytes < size <= self.card.total_bytes:
            self._mode.unmodelled.pop(TRANSFORM_NOTE.format(format_bytes(self._transform_bytes)), None)
            self._mode.unmodelled.setdefault(TRANSFORM_NOTE.format(format_bytes(size)))
            self._transform_bytes = size

    def unfold(self, columns: int) -> None:
        """Note the patches that torch's own convolution multiplies, and the handle of its products."""
        self._take_handles_workspace()
        self._passes_by(libraries.COLUMNS, columns)


def _is_sparse_product(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether cuSPARSE multiplies, and not cuBLAS."""
    return func in _SPARSE_PRODUCTS and args[-2].layout is torch.sparse_coo


def _masked_select(args: tuple[Any, ...], result: torch.Tensor) -> int:
    return libraries.positions_bytes(result.numel(), max(args[0].dim(), args[1].dim()))


def _masked_scatter(args: tuple[Any, ...], result: torch.Tensor) -> int:
    return libraries.prefix_sum_bytes(
        result.numel(), copies_mask=not args[1].expand_as(result).is_contiguous()
    )


def _index(args: tuple[Any, ...], result: torch.Tensor) -> int:
    """Count what masks among the indices find: elements of the result by those of one place."""
    masked, count, _ = _places(args[0], args[1], result)
    return libraries.positions_bytes(count, masked)


def _index_put(args: tuple[Any, ...], result: torch.Tensor) -> int:
    """Only gradients of indices are added up (`accumulate`); masks among them become places first."""
    if len(args) < 4 or not args[3]:
        return 0
    masked, count, rows = _places(args[0], args[1], args[2])
    return libraries.positions_bytes(count, masked) + libraries.index_gradient_bytes(count, rows)


def _places(
    tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], chosen: torch.Tensor
) -> tuple[int, int, int]:
    """Return how many dimensions masks cover, how many places the indices name, and of how many.

    What masks find shows in what is chosen; how much the rest names is known from its shapes.
    """
    covered = [1 if i is None or not _is_mask(i) else i.dim() for i in indices]
    sizes = _sizes_under(tensor.shape, covered)
    masked = sum(n for i, n in zip(indices, covered, strict=True) if i is not None and _is_mask(i))
    rows = math.prod(n for n, i in zip(sizes, indices, strict=True) if i is not None)
    if not masked:
        shapes = (i.shape for i in indices if i is not None)
        return 0, math.prod(torch.broadcast_shapes(*shapes)), rows
    kept = math.prod(n for n, i in zip(sizes, indices, strict=True) if i is None)
    place = kept * math.prod(tensor.shape[sum(covered) :])
    return masked, chosen.numel() // max(place, 1), rows


def _is_mask(index: torch.Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _sizes_under(shape: Sequence[int], covered: Sequence[int]) -> list[int]:
    """Return, for each index, how many places the dimensions have that it stands for."""
    begins = [0, *accumulate(covered)]
    return [math.prod(shape[b:e]) for b, e in pairwise(begins)]


_INDEXED: dict[Any, Callable[[tuple[Any, ...], torch.Tensor], int]] = {
    aten.masked_select.default: _masked_select,
    aten.masked_scatter.default: _masked_scatter,
    aten.masked_scatter_.default: _masked_scatter,
    aten.index.Tensor: _index,
    aten.index_put.default: _index_put,
    aten.index_put_.default: _index_put,
    aten._index_put_impl_.default: _index_put,
}
