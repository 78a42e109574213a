"""Workspace of losses on the CPU: the loss of every element, before it is summed."""

from __future__ import annotations

from typing import Any

import torch

from memgauge.frameworks.torch.cpu_workspace.layout import argument, made_contiguous, size

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_MEAN = 1


def _elements(args: Args) -> int:
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)  # type: ignore[no-untyped-call]
    return int(shape.numel() * max(args[0].itemsize, args[1].itemsize))


def _divisor(itemsize: int) -> int:
    """The count by which a mean divides: a number as a tensor, and as one of the right type."""
    return 8 + (itemsize if itemsize != 8 else 0)


def kept_whole(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """The result keeps the memory of every element's loss; the sum is made from a second copy.

    Source: torch aten/src/ATen/native/Loss.cpp, mse_loss and smooth_l1_loss.
    """
    if argument(args, 2, _MEAN) == 0:
        return 0
    return _elements(args) + _divisor(args[0].itemsize)


def huber(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/Loss.cpp, huber_loss."""
    if argument(args, 2, _MEAN) == 0:
        return 0
    return _elements(args) + _divisor(args[0].itemsize)


def cross_entropy_with_logits(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Logarithm of the sigmoid, its buffer, and the loss of every element.

    Source: torch aten/src/ATen/native/Loss.cpp, binary_cross_entropy_with_logits; Activation.cpp,
    log_sigmoid_forward_out_cpu.
    """
    elements = size(args[0])
    copied = made_contiguous(args[0])
    weights = sum(elements for value in (argument(args, 2), argument(args, 3)) if value is not None)
    if argument(args, 4, _MEAN) == 0:
        return elements + max(copied, weights)
    return 2 * elements + max(copied, weights + _divisor(args[0].itemsize))


def cross_entropy(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/Loss.cpp, binary_cross_entropy_out_cpu."""
    reduction = argument(args, 3, _MEAN)
    return 0 if reduction == 0 else args[0].itemsize + 8 + (args[0].itemsize if reduction == _MEAN else 0)


def log_likelihood(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/LossNLL.cpp and LossNLL2d.cpp."""
    return made_contiguous(args[0]) + made_contiguous(args[1])


def ctc_backward(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """The backward variables, as large as the forward ones.

    Source: torch aten/src/ATen/native/LossCTC.cpp, ctc_loss_backward_cpu_template.
    """
    return size(args[6])


RULES: dict[str, Any] = {
    "mse_loss.default": kept_whole,
    "smooth_l1_loss.default": kept_whole,
    "huber_loss.default": huber,
    "binary_cross_entropy_with_logits.default": cross_entropy_with_logits,
    "binary_cross_entropy.default": cross_entropy,
    "nll_loss_forward.default": log_likelihood,
    "nll_loss2d_forward.default": log_likelihood,
    "_ctc_loss_backward.default": ctc_backward,
    "_ctc_loss_backward.Tensor": ctc_backward,
}
