"""The activations that some networks of the zoo let one choose."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from memgauge.errors import UsageError, nearest

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": functional.gelu,
    "elu": functional.elu,
    "silu": functional.silu,
    "leaky-relu": functional.leaky_relu,
}
_MODULES: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "leaky-relu": nn.LeakyReLU,
}


def activation_of(name: str) -> type[nn.Module]:
    """Return the module of an activation.

    Raises:
        UsageError: There is none of that name.
    """
    if name not in _MODULES:
        raise UsageError(
            f"activation {name!r} is unknown{nearest(name, _MODULES)}; it is {', '.join(_MODULES)}"
        )
    return _MODULES[name]
