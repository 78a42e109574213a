"""Operators whose real CPU outputs are not what torch's shape rules for `meta` say.

Found by comparing the two over many operators and shapes. A rule takes the nest of
`Spec` and gives back the corrected one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from memgauge.frameworks.torch.cpu_workspace.recurrent import kept_bytes
from memgauge.frameworks.torch.shapes import Spec

Fix = Callable[[tuple[Any, ...], dict[str, Any], Any], Any]

_MEAN = 1


def output_specs_on_cpu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any) -> Any:
    """Return the outputs of `func` as the CPU kernel makes them; unchanged where no rule is known."""
    fix = _FIXES.get(func)
    return fix(args, kwargs, specs) if fix is not None else specs


def _rnn_layer(args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any) -> Any:
    """The fourth output is oneDNN's workspace, as bytes. `meta` says that it is empty.

    Source: torch aten/src/ATen/native/mkldnn/RNN.cpp, mkldnn_rnn_layer; the size: `recurrent`.
    """
    x, hidden = args[0], args[5]
    size = kept_bytes(x.shape[0], x.shape[1], x.shape[2], hidden.shape[-1])
    return (*specs[:3], Spec((size,), (1,), torch.uint8))


def _batch_norm(args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any) -> Any:
    """Without training there are no saved statistics.

    Source: torch aten/src/ATen/native/Normalization.cpp, batch_norm_cpu.
    """
    if args[5]:
        return specs
    empty = tuple(s._replace(shape=(0,), stride=(1,)) for s in specs[1:3])
    return (specs[0], *empty)


def _kept_whole(reduction: int) -> Fix:
    """The sum is put into the memory of every element's loss, which stays as large as it was.

    Source: torch aten/src/ATen/native/Loss.cpp, the meta functions of mse_loss and smooth_l1_loss
    and binary_cross_entropy_out_cpu, which resize a full result to a scalar.
    """

    def fix(args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any) -> Any:
        chosen = args[reduction] if len(args) > reduction else kwargs.get("reduction", _MEAN)
        if chosen == 0 or "storage" not in Spec._fields:
            return specs
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return specs._replace(storage=prod(shape) * specs.dtype.itemsize)

    return fix


def _collect() -> dict[Any, Fix]:
    named: dict[str, Fix] = {
        "mkldnn_rnn_layer.default": _rnn_layer,
        "native_batch_norm.default": _batch_norm,
        "mse_loss.default": _kept_whole(2),
        "smooth_l1_loss.default": _kept_whole(2),
        "binary_cross_entropy.default": _kept_whole(3),
    }
    found = {}
    for name, fix in named.items():
        operator, overload = name.split(".")
        func = getattr(getattr(torch.ops.aten, operator, None), overload, None)
        if func is not None:
            found[func] = fix
    return found


_FIXES = _collect()
