"""What the real CPU kernels take from torch's allocator and give back before they return.

`workspace_bytes` answers, for one operator with known shapes, how much its
highest instant lies above what stays after it. Each rule is read off the
kernel's source, and cites it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memgauge.frameworks.torch.cpu_workspace import (
    attention,
    indexing,
    losses,
    matmul,
    normalisation,
    pointwise,
    recurrent,
    reductions,
    resampling,
    transforms,
)
from memgauge.frameworks.torch.cpu_workspace.convolution import convolution, convolution_backward

Rule = Callable[[tuple[Any, ...], dict[str, Any], Any, int], int]


def _collect() -> dict[Any, Rule]:
    """Return the rules by operator overload; those that this torch does not have are left out."""
    named: dict[str, Rule] = {
        "convolution.default": convolution,
        "convolution_backward.default": convolution_backward,
    }
    modules = (
        pointwise,
        reductions,
        indexing,
        normalisation,
        attention,
        matmul,
        losses,
        resampling,
        transforms,
        recurrent,
    )
    for module in modules:
        named.update(module.RULES)
    found = {}
    for name, rule in named.items():
        operator, overload = name.split(".")
        func = getattr(getattr(torch.ops.aten, operator, None), overload, None)
        if func is not None:
            found[func] = rule
    return found


_RULES = _collect()


def workspace_bytes(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, threads: int
) -> int:
    """Return what the operator holds at its highest instant beyond its own outputs.

    Args:
        func: The operator overload as a dispatch mode sees it.
        args: Its positional arguments; tensors are looked at for shape, stride and type only.
        kwargs: Its named arguments.
        result: What it gave back.
        threads: Threads that torch uses within an operator.
    """
    rule = _RULES.get(func)
    return rule(args, kwargs, result, threads) if rule is not None else 0
