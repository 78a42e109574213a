"""What sort of thing an operator is, read off its schema.

One `Rule` per operator overload, worked out once and remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch

aten = torch.ops.aten


class Kind(Enum):
    """How the phantom mode treats an operator."""

    VIEW = auto()  # gives back an alias of its input; moves no data
    METADATA = auto()  # looks at shapes and types only
    READ = auto()  # gives a tensor's value to Python
    DYNAMIC = auto()  # output size depends on values
    EMPTY = auto()  # makes memory without content
    COMPOSITE = auto()  # only calls others; autograd unfolds it, except in inference mode
    COMPUTE = auto()  # everything else


@dataclass(frozen=True, slots=True)
class Rule:
    """What the phantom mode needs to know of one operator overload."""

    name: str  # "aten.addmm"
    kind: Kind
    writes: tuple[int | str, ...]  # arguments written to: positions, or names of keyword-only ones
    returns: tuple[int | str | None, ...]  # for each result, the argument that it is, or None if new
    random: bool
    resizes: bool  # an out= variant, whose target takes the size of the result
    takes_scalar: bool  # a Python number may stand where its second tensor is expected
    saves_scalar: bool  # ... and autograd keeps it for backward
    has_device: bool
    float_decides_shape: bool
    ignores_content: bool  # the result depends on its input's shape alone


_DYNAMIC = {
    "aten.nonzero",
    "aten.masked_select",
    "aten.unique_consecutive",
    "aten._unique",
    "aten._unique2",
    "aten.unique_dim",
    "aten.bincount",
    "aten.repeat_interleave",
    "aten.argwhere",
    "aten.nonzero_numpy",
    "torchvision.nms",
}
_READ = {"aten._local_scalar_dense", "aten.equal", "aten.is_nonzero", "aten.item", "aten.allclose"}
_METADATA = {
    "aten._sparse_coo_tensor_with_dims_and_tensors",
    "aten._sparse_coo_tensor_with_dims",
    "aten._sparse_coo_tensor_unsafe",
    "aten._coalesced_",
    "aten._indices",
    "aten._values",
    "aten._fused_sdp_choice",
    "aten._efficientzerotensor",  # tangents that are zero: they have no memory
    "aten.is_same_size",
    "aten.is_pinned",
    "aten._nested_tensor_from_mask_left_aligned",
    "aten._has_compatible_shallow_copy_type",
    "aten._cufft_get_plan_cache_size",
    "aten.is_coalesced",
    "aten.sparse_dim",
    "aten.dense_dim",
    "aten._nnz",
    "aten._dimI",
    "aten._dimV",
    "prim.device",
    "prim.layout",
    "aten.size",
    "aten.sym_size",
    "aten.stride",
    "aten._version",
}
_EMPTY = {
    "aten.empty",
    "aten.empty_like",
    "aten.empty_strided",
    "aten.new_empty",
    "aten.new_empty_strided",
    "aten.empty_permuted",
}
# Aliases that the schema does not admit to.
_UNDECLARED_VIEWS = {
    "aten._unsafe_view",
    "aten.unsafe_split",
    "aten.unsafe_split_with_sizes",
    "aten.unsafe_chunk",
    "aten._reshape_alias",
}
# Draw from a distribution; the content is not worth making.
_RANDOM = {
    "aten.rand",
    "aten.randn",
    "aten.rand_like",
    "aten.randn_like",
    "aten.normal",
    "aten.normal_",
    "aten.uniform_",
    "aten.bernoulli",
    "aten.bernoulli_",
    "aten.exponential_",
    "aten.log_normal_",
    "aten.cauchy_",
    "aten.geometric_",
    "aten.native_dropout",
    "aten.trunc_normal_",
    "aten.uniform",
    "aten.poisson",
    "aten._standard_gamma",
    "aten._sample_dirichlet",
    "aten.binomial",
}
# derivatives.yaml (torch 2.13): formulas of these use `other`, which autograd therefore saves.
_SAVES_SCALAR = {"aten.mul", "aten.div", "aten.mul_", "aten.div_"}
_FLOAT_DECIDES_SHAPE = {"aten.arange", "aten.linspace", "aten.logspace", "aten.range", "aten.full"}

_IGNORES_CONTENT = {
    "aten.ones_like",
    "aten.zeros_like",
    "aten.full_like",
    "aten.new_zeros",
    "aten.new_ones",
    "aten.new_full",
}

_RULES: dict[Any, Rule] = {}


def rule_of(func: Any) -> Rule:
    """Return the rule of an operator overload."""
    rule = _RULES.get(func)
    if rule is None:
        rule = _RULES[func] = _read_schema(func)
    return rule


def is_composite(name: str) -> bool:
    """Return whether an operator (`aten::linear`) only calls others, with no kernel of its own for the CPU.

    Raises:
        RuntimeError: The dispatcher has no operator of that name.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "CPU")


def _takes_others(func: Any) -> bool:
    """Return whether an overload only calls the one that looks at values, as `repeat_interleave(x, 3)` does."""
    return bool(func._overloadname in ("self_int", "self_Tensor"))


def _read_schema(func: Any) -> Rule:
    schema = func._schema
    name = schema.name.replace("::", ".")
    writes: list[int | str] = []
    alias_of: dict[str, int | str] = {}
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None:
            key: int | str = argument.name if argument.kwarg_only else position
            for letter in argument.alias_info.before_set:
                alias_of[letter] = key
            if argument.alias_info.is_write:
                writes.append(key)
    returns: list[int | str | None] = []
    for result in schema.returns:
        letters = result.alias_info.before_set if result.alias_info is not None else ()
        returns.append(next((alias_of[x] for x in letters if x in alias_of), None))
    is_view = bool(schema.returns) and any(r is not None for r in returns) and not writes
    if name in _READ:
        kind = Kind.READ
    elif name in _METADATA or name.startswith("profiler."):
        kind = Kind.METADATA
    elif name in _DYNAMIC and not _takes_others(func):
        kind = Kind.DYNAMIC
    elif name in _EMPTY:
        kind = Kind.EMPTY
    elif is_view or func.is_view or name in _UNDECLARED_VIEWS or torch.Tag.inplace_view in func.tags:
        kind = Kind.VIEW
    elif is_composite(func.name()):
        kind = Kind.COMPOSITE
    else:
        kind = Kind.COMPUTE
    second = schema.arguments[1] if len(schema.arguments) > 1 else None
    return Rule(
        name=name,
        kind=kind,
        writes=tuple(writes),
        returns=tuple(returns),
        random=name in _RANDOM,
        resizes=any(isinstance(w, str) for w in writes),
        takes_scalar=second is not None and str(second.type) == "Tensor",
        saves_scalar=name in _SAVES_SCALAR,
        has_device=any(a.name == "device" for a in schema.arguments),
        float_decides_shape=name in _FLOAT_DECIDES_SHAPE,
        ignores_content=name in _IGNORES_CONTENT,
    )
