"""Operators that need more than a shape rule, one function each.

Their outputs depend on values (how many rows a mask selects), or their values
decide what a program does next (which expert a token goes to, whether a scaler
saw an infinity). Where the values are known they are used. Where they are not,
the plainest assumption is made and stated, or the caller hears what to declare.

Each function takes the call and the running mode and returns the outputs, or
None to let the ordinary way go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from memgauge.frameworks.torch.operators import rule_of
from memgauge.frameworks.torch.shapes import Spec, contiguous, output_specs
from memgauge.frameworks.torch.sparse import sparse_gradient_of_bag

if TYPE_CHECKING:
    from memgauge.frameworks.torch.phantom import PhantomMode

# Indices and truths that come out of unknown numbers are made up only as long as they are this few.
ASSUMED_ELEMENTS = 2**20

Special = Callable[["PhantomMode", Any, tuple[Any, ...], dict[str, Any]], Any]


def _index(mode: PhantomMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A mask as an index selects as many elements as it has true ones."""
    masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
    if not masks:
        return None
    if func._schema.name.endswith("_"):
        return mode.forget_and_return(func, args)
    indices: list[torch.Tensor | None] = []
    for index in args[1]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            indices.append(index)
        else:
            count = mode.count_true(index, "nonzero")
            indices.extend(torch.empty(count, dtype=torch.int64, device="meta") for _ in range(index.dim()))
    return mode.make(output_specs(func, rule_of(func), (args[0], indices), kwargs))


def _masked_select(mode: PhantomMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source, mask = args[0], args[1]
    shape = torch.broadcast_shapes(source.shape, mask.shape)
    share = math.prod(shape) // max(mask.numel(), 1)
    return mode.make(contiguous((mode.count_true(mask, "masked_select") * share,), source.dtype))


def _nonzero(mode: PhantomMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if mode.is_known(args[0]):
        return None
    count = mode.count_true(args[0], "nonzero")
    return mode.make(Spec((count, args[0].dim()), (1, max(count, 1)), torch.int64))


def _unscale(mode: PhantomMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A gradient scaler that never meets an infinity: `found_inf` keeps its zero."""
    mode.values.assume("gradients are finite, so a gradient scaler never skips a step")
    return mode.NOTHING


def _pack(mode: PhantomMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Packed rows and their batch sizes follow from the lengths."""
    data, lengths, batch_first = args
    if not mode.is_known(lengths):
        raise mode.values.not_known(rule_of(func), "lengths")
    thin = torch.zeros(*data.shape[:2], 1)
    packed, batch_sizes = func(thin, lengths, batch_first)
    rows = mode.make(contiguous((packed.shape[0], *data.shape[2:]), data.dtype))
    return rows, mode.adopt(batch_sizes)


def _nms(mode: PhantomMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Boxes that survive suppression, as positions; how many is declared as `nms`."""
    count = mode.values.count("nms", args[0].shape[0])
    if count is None:
        raise mode.values.not_known(rule_of(func), "nms", args[0].shape[0])
    return mode.make(contiguous((count,), torch.int64))


def _unique(mode: PhantomMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Different values, as many as declared as `unique`; which of them each element is, and how often it occurs."""
    if mode.is_known(args[0]):
        return None
    elements = args[0].numel()
    count = mode.values.count("unique", elements)
    if count is None:
        raise mode.values.not_known(rule_of(func), "unique", elements)
    given = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | kwargs
    inverse = tuple(args[0].shape) if given.get("return_inverse") else (0,)
    counts = (count if given.get("return_counts") else 0,)
    specs = (
        contiguous((count,), args[0].dtype),
        contiguous(inverse, torch.int64),
        contiguous(counts, torch.int64),
    )
    return tuple(mode.make(spec) for spec in specs)


def _bincount(mode: PhantomMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As many counts as `minlength` says, or as declared as `bincount`; with weights, sums of them.

    Floats are summed as they are, all others as float64, of which a copy is made. Source: ATen/native/SummaryOps.cpp.
    """
    given = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | kwargs
    values, weights, minlength = given["self"], given.get("weights"), given.get("minlength", 0)
    if mode.is_known(values):
        if weights is None or mode.is_known(weights):
            return mode.adopt(func(*args, **kwargs))
        length = func(values, None, minlength).numel()
    else:
        length = mode.values.length_of_counts(minlength)
        if length is None:
            raise mode.values.not_known(rule_of(func), "bincount")
    if weights is None:
        return mode.make(contiguous((length,), torch.int64))
    if weights.dtype in (torch.float32, torch.float64):
        return mode.make(contiguous((length,), weights.dtype))
    copy = mode.hold(weights.numel() * torch.float64.itemsize)
    counts = mode.make(contiguous((length,), torch.float64))
    mode.give_back(copy)
    return counts


def _grouped_mm(mode: PhantomMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A product for each group of rows; the meta rule takes bfloat16 only, the CPU kernel any float.

    Source: the shapes that `_grouped_mm` documents in torch/_meta_registrations.py (torch 2.13).
    """
    names = [a.name for a in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    left, right = given["self"], given["mat2"]
    shape: tuple[int, ...]
    if left.dim() == 2 and right.dim() == 2:
        shape = (given["offs"].shape[0], left.shape[0], right.shape[1])  # one product for each group
    elif left.dim() == 2:
        shape = (left.shape[0], right.shape[-1])
    elif right.dim() == 2:
        shape = (left.shape[1], right.shape[1])
    else:
        shape = (left.shape[0], left.shape[1], right.shape[-1])
    return mode.make(contiguous(shape, given.get("out_dtype") or left.dtype))


def _ctc_loss(mode: PhantomMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The table of log-alphas has all steps, and twice the longest target (ATen/native/LossCTC.cpp)."""
    log_probs, targets, _, target_lengths = args[:4]
    if not isinstance(target_lengths, torch.Tensor) or mode.is_known(target_lengths):
        longest_target = max(int(n) for n in target_lengths)
    elif targets.dim() == 2:
        mode.values.assume("the longest target of ctc_loss is as long as the tensor of targets is wide")
        longest_target = targets.shape[1]
    else:
        raise mode.values.not_known(rule_of(func), "target_lengths")
    steps, batch = log_probs.shape[:2]
    alpha = (batch, steps, 2 * longest_target + 1)
    return mode.make(contiguous((batch,), log_probs.dtype)), mode.make(contiguous(alpha, log_probs.dtype))


def _truth(value: bool, of_torch: bool = False) -> Special:
    """`all` of unknown conditions holds and `any` does not, unless declared: checks of input data pass."""

    def special(mode: PhantomMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) != 1 or mode.is_known(args[0]) or not mode.values.check_passes(of_torch):
            return None
        return mode.adopt(torch.full((), value))

    return special


def _of_finite(mode: PhantomMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A comparison that comes out alike for all finite numbers: with itself, an infinity, not a number."""
    specs = output_specs(func, rule_of(func), args, kwargs)
    unknown = [a for a in args if isinstance(a, torch.Tensor) and not mode.is_known(a)]
    if not unknown or type(specs) is not Spec or specs.alias is not None:
        return None
    known = [a for a in args if not any(a is u for u in unknown)]
    alike = _is_same(*unknown) if len(unknown) == 2 else not any(_has_finite(a) for a in known)
    if not alike or math.prod(specs.shape) > ASSUMED_ELEMENTS:
        return None
    mode.values.assume("computed numbers are finite")
    zero = torch.zeros((), dtype=torch.float64)  # as good as any other
    truth = func(*(zero if isinstance(a, torch.Tensor) and not mode.is_known(a) else a for a in args))
    return mode.adopt(torch.empty_strided(specs.shape, specs.stride, dtype=torch.bool).copy_(truth))


def _is_same(left: torch.Tensor, right: torch.Tensor) -> bool:
    places = [
        (t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride(), t.dtype) for t in (left, right)
    ]
    return places[0] == places[1]


def _has_finite(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() > ASSUMED_ELEMENTS or bool(torch.isfinite(value).any())
    return not isinstance(value, float) or math.isfinite(value)


def _chosen(dimension_at: int, index_result: int | None) -> Special:
    """Positions chosen by unknown numbers (top-k, arg-max, sort, sampling) are spread evenly."""

    def special(mode: PhantomMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = args[0]
        if mode.is_known(source):
            return None
        specs = output_specs(func, rule_of(func), args, kwargs)
        place = specs if index_result is None else specs[index_result]
        if math.prod(place.shape) > ASSUMED_ELEMENTS:
            return None
        dimension = _dimension(func, args, kwargs, dimension_at)
        mode.values.assume("positions chosen by computed numbers (top-k, arg-max, routing) are spread evenly")
        indices = mode.adopt(_spread(source.shape, place, dimension))
        if index_result is None:
            return indices
        return tuple(indices if i == index_result else mode.make(s) for i, s in enumerate(specs))

    return special


def _dimension(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], position: int) -> int | None:
    if position < 0:
        return -1
    value = args[position] if len(args) > position else kwargs.get("dim")
    if value is None and len(args) <= position:
        value = func._schema.arguments[position].default_value
    return value if type(value) is int else None


def _spread(shape: torch.Size, place: Spec, dimension: int | None) -> torch.Tensor:
    """Return indices below the size of `dimension`, each row starting one further than the last."""
    choices = max(shape[dimension] if dimension is not None and shape else math.prod(shape), 1)
    if dimension is None or not place.shape:
        return torch.zeros(place.shape, dtype=torch.int64)
    chosen = place.shape[dimension] if len(place.shape) == len(shape) else 1
    rows = math.prod(place.shape) // max(chosen, 1)
    table = (torch.arange(rows)[:, None] * chosen + torch.arange(chosen)) % choices
    if len(place.shape) != len(shape):
        return table.reshape(place.shape)
    moved = [n for i, n in enumerate(place.shape) if i != dimension % len(shape)]
    return table.reshape(*moved, chosen).movedim(-1, dimension).contiguous()


SPECIAL: dict[str, Special] = {
    "aten.index": _index,
    "aten.index_put_": _index,
    "aten._index_put_impl_": _index,
    "aten.masked_select": _masked_select,
    "aten.nonzero": _nonzero,
    "aten._amp_foreach_non_finite_check_and_unscale_": _unscale,
    "aten._pack_padded_sequence": _pack,
    "aten._ctc_loss": _ctc_loss,
    "aten._grouped_mm": _grouped_mm,
    "torchvision.nms": _nms,
    "aten._unique2": _unique,
    "aten.bincount": _bincount,
    "aten._embedding_bag_backward": sparse_gradient_of_bag,
    "aten.all": _truth(True),
    "aten._is_all_true": _truth(True, of_torch=True),
    "aten.any": _truth(False),
    "aten._is_any_true": _truth(False, of_torch=True),
    **dict.fromkeys(
        (
            f"aten.{name}"
            for name in ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isposinf", "isneginf")
        ),
        _of_finite,
    ),
    "aten.topk": _chosen(2, 1),
    "aten.sort": _chosen(1, 1),
    "aten.argsort": _chosen(1, None),
    "aten.argmax": _chosen(1, None),
    "aten.argmin": _chosen(1, None),
    "aten.multinomial": _chosen(-1, None),
}
