"""Sparse tensors: two dense tensors, indices and values, under one name.

torch builds and takes them apart without looking at their content, so the parts
are ordinary (phantom or known) tensors. What is listed here are the operations
that sparse gradients and products go through; the values follow the indices.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from memgauge.errors import UnsupportedError
from memgauge.frameworks.torch.operators import Rule
from memgauge.frameworks.torch.shapes import contiguous
from memgauge.frameworks.torch.values import user_line

if TYPE_CHECKING:
    from memgauge.frameworks.torch.phantom import PhantomMode

TURNS = frozenset({"aten.t", "aten.transpose"})
_PRODUCTS = frozenset({"aten.mm", "aten._sparse_mm", "aten.addmm", "aten._sparse_addmm"})
# Give a sparse tensor of the same pattern with new values; indices are copied
# (ATen/native/sparse/SparseTensor.cpp, SparseTensorMath.cpp of torch 2.13).
_NEW_VALUES = {
    "aten.clone",
    "aten.mul",
    "aten.div",
    "aten.neg",
    "aten.pow",
    "aten.sqrt",
    "aten._to_copy",
    "aten.zeros_like",
    "aten.abs",
}


def run_sparse(
    mode: PhantomMode, func: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return the result of an operator with a sparse tensor among its inputs.

    Raises:
        UnsupportedError: There is no rule for it.
    """
    first = args[0]
    if rule.name == "aten.clone" and type(torch._C._current_autograd_node()).__name__ == "AccumulateGrad":
        # Outside a dispatch mode autograd keeps the gradient itself instead of a copy
        # (torch/csrc/autograd/functions/accumulate_grad.h, `accumulateGrad`).
        return _build(first.sparse_dim(), first.dense_dim(), first.shape, first._indices(), first._values())
    if rule.name == "aten._coalesce":
        return _coalesce(mode, first)
    if rule.name == "aten.sparse_mask":
        return _like(mode, args[1], args[1]._indices().shape[1], first.dtype)
    if rule.name in _NEW_VALUES and first.layout is torch.sparse_coo:
        return _like(mode, first, first._nnz(), first.dtype)
    if rule.name == "aten.add" and first.layout is torch.sparse_coo and args[1].layout is torch.sparse_coo:
        return _joined(mode, first, args[1])
    if rule.writes:
        return first
    if rule.name in ("aten.add", "aten._to_dense", "aten.to_dense"):
        dense = next((a for a in args if isinstance(a, torch.Tensor) and a.layout is torch.strided), first)
        return mode.make(contiguous(tuple(dense.shape), dense.dtype))
    if rule.name in _PRODUCTS:
        left, right = args[-2], args[-1]
        result = contiguous((left.shape[0], right.shape[1]), right.dtype)
        # `mm` adds to zeros of its own (ATen/native/sparse/SparseTensorMath.cpp, `_sparse_mm`).
        adds_to_zeros = rule.name in ("aten.mm", "aten._sparse_mm")
        zeros = mode.hold(math.prod(result.shape) * result.dtype.itemsize) if adds_to_zeros else None
        made = mode.make(result)
        if zeros is not None:
            mode.give_back(zeros)
        return made
    if rule.name in ("aten.norm", "aten.sum", "aten._sparse_sum"):
        return mode.make(contiguous((), first.dtype))
    layouts = {str(a.layout).removeprefix("torch.") for a in args if isinstance(a, torch.Tensor)}
    raise UnsupportedError(
        f"{rule.name} on a tensor of layout {' and '.join(sorted(layouts - {'strided'}))} ({user_line()}) has no "
        "memory rule; dense gradients (sparse=False) and products with matrices of layout sparse_coo have one, "
        "and `memgauge measure` really runs it"
    )


def turned(mode: PhantomMode, args: tuple[Any, ...]) -> torch.Tensor | None:
    """Return a sparse tensor with two dimensions changed for each other, None for a dense one.

    It is no view: indices and values are copied, and one row of indices held while two change places
    (ATen/native/TensorShape.cpp, `sparse_transpose_`).
    """
    tensor = args[0]
    if tensor.layout is not torch.sparse_coo:
        return None
    first, second = (d % tensor.dim() for d in (args[1:3] or (0, 1)))
    dimensions, count = tensor._indices().shape
    size = list(tensor.shape)
    size[first], size[second] = size[second], size[first]
    order = list(range(dimensions))
    if max(first, second) < dimensions:
        order[first], order[second] = order[second], order[first]
    values = mode.make(contiguous(tuple(tensor._values().shape), tensor.dtype))
    if mode.is_known(tensor._indices()):
        indices = mode.adopt(tensor._indices()[order])
    else:
        indices = mode.make(contiguous((dimensions, count), torch.int64))
    mode.give_back(mode.hold(8 * count))
    return _build(dimensions, tensor.dense_dim(), size, indices, values)


def sparse_gradient_of_bag(
    mode: PhantomMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The gradient of `EmbeddingBag(sparse=True)`: one row for each index.

    Source: ATen/native/EmbeddingBag.cpp, `_embedding_bag_sparse_backward`.
    """
    gradient, indices = args[0], args[1]
    names = [a.name for a in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if not given.get("sparse"):
        return None
    values = mode.make(contiguous((indices.numel(), gradient.shape[1]), gradient.dtype))
    size = (given["num_weights"], gradient.shape[1])
    return _build(1, 1, size, indices.reshape(1, -1), values)


def _coalesce(mode: PhantomMode, tensor: torch.Tensor) -> torch.Tensor:
    indices = tensor._indices()
    if not mode.is_known(indices):
        return _like(mode, tensor, tensor._nnz(), tensor.dtype)._coalesced_(True)
    unique = mode.adopt(torch.unique(indices, dim=1))
    values = mode.make(contiguous((unique.shape[1], *tensor.shape[tensor.sparse_dim() :]), tensor.dtype))
    return _build(tensor.sparse_dim(), tensor.dense_dim(), tensor.shape, unique, values)._coalesced_(True)


def _joined(mode: PhantomMode, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The sum of two sparse tensors keeps the elements of both, side by side."""
    parts = [first._indices(), second._indices()]
    if not all(mode.is_known(p) for p in parts):
        return _like(mode, first, first._nnz() + second._nnz(), first.dtype)
    indices = mode.adopt(torch.cat(parts, dim=1))
    values = mode.make(contiguous((indices.shape[1], *first.shape[first.sparse_dim() :]), first.dtype))
    return _build(first.sparse_dim(), first.dense_dim(), first.shape, indices, values)


def _like(mode: PhantomMode, pattern: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
    dimensions = pattern.sparse_dim()
    if count == pattern._nnz() and mode.is_known(pattern._indices()):
        indices = mode.adopt(pattern._indices().clone())
    else:
        indices = mode.make(contiguous((dimensions, count), torch.int64))
    values = mode.make(contiguous((count, *pattern.shape[dimensions:]), dtype))
    return _build(dimensions, pattern.dense_dim(), pattern.shape, indices, values)


def _build(
    sparse_dim: int, dense_dim: int, size: Any, indices: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    build = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default
    return build(  # type: ignore[no-any-return]
        sparse_dim, dense_dim, size, indices, values,
        dtype=values.dtype, layout=torch.sparse_coo, device=torch.device("cpu"), pin_memory=False,
    )  # fmt: skip
