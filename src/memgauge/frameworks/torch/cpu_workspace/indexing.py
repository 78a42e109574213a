"""Workspace of lookups, sorting and scans on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from memgauge.frameworks.torch.cpu_workspace.layout import (
    argument,
    made_contiguous,
    size,
    transposing_buffer,
)

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def embedding(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/Embedding.cpp, embedding_symint: the indices are made flat."""
    return made_contiguous(args[1]) if args[1].dim() != 1 else 0


def embedding_backward(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/Embedding.cpp, embedding_dense_backward_cpu."""
    return made_contiguous(args[0]) + made_contiguous(args[1])


def embedding_bag_backward(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Which bag each index is in, if forward did not say; then sorted indices, or sizes of bags.

    Source: torch aten/src/ATen/native/EmbeddingBag.cpp, _embedding_bag_backward_symint and the
    functions for sparse and dense gradients that it calls.
    """
    gradient, indices, bag_of, sizes, mode, sparse = args[0], args[1], args[3], args[4], args[8], args[9]
    made = (indices.numel() + 1) * 8 if mode == _SUM and not bag_of.numel() else 0
    if sparse:  # for a mean: sizes of bags as floats, ones, and for each index the size of its bag
        scale = (2 * sizes.numel() + indices.numel()) * gradient.itemsize if mode == _MEAN else 0
        return made + int(scale)
    if mode == _MAX:
        return made_contiguous(gradient)
    return made + made_contiguous(gradient) + 3 * size(indices)


_SUM, _MEAN, _MAX = 0, 1, 2  # aten's modes of a bag


def indexed(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/TensorAdvancedIndexing.cpp, index_select_out_cpu_."""
    return made_contiguous(args[2])


def index_copy(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/TensorAdvancedIndexing.cpp, index_add_cpu_out."""
    return made_contiguous(args[2])


def _found(mask: torch.Tensor, chosen: torch.Tensor, position: int) -> int:
    """Bytes of the list of places that a mask turns into; its length shows in what was chosen by it.

    Source: torch aten/src/ATen/native/IndexingUtils.h, expandTensors.
    """
    count = chosen.shape[position] if chosen.dim() > position else mask.numel()
    return int(count) * mask.dim() * 8


def looked_up(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Masks among the indices become lists of indices."""
    return sum(
        _found(index, result, position)
        for position, index in enumerate(args[1])
        if index is not None and index.dtype in (torch.bool, torch.uint8)
    )


def put(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """As `looked_up`; one number behind masks is filled in without lists.

    Source: torch aten/src/ATen/native/TensorAdvancedIndexing.cpp, canDispatchToMaskedFill.
    """
    masks = [(i, m) for i, m in enumerate(args[1]) if m is not None and m.dtype in (torch.bool, torch.uint8)]
    values = args[2]
    if values.numel() == 1 and len(masks) == sum(m is not None for m in args[1]):
        return 0
    return sum(_found(mask, values, position) for position, mask in masks)


def copied(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/Copy.cpp, copy_transpose_valid."""
    target, source = args[0], args[1]
    if target.dtype is not source.dtype or not target.is_contiguous():
        return 0
    return transposing_buffer(source)


def sort(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Places along the sorted dimension.

    Source: torch aten/src/ATen/native/Sorting.cpp, sort_stable_out; cpu/SortingKernel.cpp.
    """
    x = args[0]
    return int(x.shape[argument(args, 1, -1)]) * 8 if x.dim() else 0


def stable_sort(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """As `sort`."""
    x = args[0]
    return int(x.shape[kwargs.get("dim", -1)]) * 8 if x.dim() else 0


def scan(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/ReduceOps.cpp, impl_func_cum_ops: the input as the result's type."""
    return size(args[0], result.itemsize) if args[0].dtype is not result.dtype else 0


def roll(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/TensorTransformations.h, roll_common, dimension by dimension."""
    return size(args[0]) if len(args[1]) > 1 else 0


def draw(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/Distributions.cpp, multinomial_out: one random number for each."""
    return size(args[0]) + 10


RULES: dict[str, Any] = {
    "embedding.default": embedding,
    "embedding_dense_backward.default": embedding_backward,
    "_embedding_bag_backward.default": embedding_bag_backward,
    "index_select.default": indexed,
    "index_add.default": index_copy,
    "index_add_.default": index_copy,
    "index.Tensor": looked_up,
    "copy_.default": copied,
    "index_put.default": put,
    "index_put_.default": put,
    "_index_put_impl_.default": put,
    "_unsafe_index_put.default": put,
    "sort.default": sort,
    "sort.stable": stable_sort,
    "cumsum.default": scan,
    "cumprod.default": scan,
    "roll.default": roll,
    "multinomial.default": draw,
}
