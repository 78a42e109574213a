"""Workspace of element-by-element operators on the CPU: operands brought to a common type.

Source: torch aten/src/ATen/TensorIterator.cpp, compute_types: on the CPU an operand of
another type than the common one is copied whole before the loop begins.
"""

from __future__ import annotations

from typing import Any

import torch

from memgauge.frameworks.torch.cpu_workspace.layout import size

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_ARITHMETIC = (
    *("add", "sub", "rsub", "mul", "div", "true_divide", "divide", "multiply", "subtract", "remainder"),
    *("fmod", "maximum", "minimum", "atan2", "hypot", "eq", "ne", "lt", "le", "gt", "ge", "fmax", "fmin"),
    *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "copysign"),
    *("floor_divide", "xlogy", "logaddexp", "nextafter"),
)
_OVERLOADS = ("Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor", "default", "Tensor_mode")


def _number(value: Any) -> int:
    """A Python number becomes a tensor of 8 bytes, 16 for a complex one, 1 for a truth value."""
    return 16 if isinstance(value, complex) else 1 if isinstance(value, bool) else 8


def binary(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Two operands, either of which may be a Python number."""
    first, second = args[0], args[1]
    if not (isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor)):
        return 0
    common = torch.result_type(first, second)
    held = 0
    if isinstance(result, torch.Tensor) and result.dtype.is_floating_point and not common.is_floating_point:
        common = result.dtype if not common.is_complex else common  # a true division of whole numbers
    for operand in (first, second):
        if isinstance(operand, torch.Tensor):
            if operand.dtype is not common and operand.device.type == "cpu":
                held += size(operand, common.itemsize)
        else:
            number = _number(operand)
            kind = (torch.float64, torch.complex128, torch.int64, torch.bool)[
                0 if isinstance(operand, float) else 1 if number == 16 else 3 if number == 1 else 2
            ]
            held += number + (common.itemsize if kind is not common else 0)
    if isinstance(result, torch.Tensor) and result is first and result.dtype is not common:
        held += size(result, common.itemsize)
    return held


def mode_sees_number(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """As `binary`, but outside backward the number itself is counted by whoever sees the call."""
    held = binary(args, kwargs, result, threads)
    if isinstance(args[1], torch.Tensor) or torch._C._current_autograd_node() is not None:
        return held
    return held - _number(args[1])


def gelu_backward(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """OneDNN turns the gradient to the layout of the input, and the result back.

    Source: torch aten/src/ATen/native/mkldnn/Gelu.cpp, mkldnn_gelu_backward; ideep eltwise_backward.
    """
    grad, x = args[0], args[1]
    exact = kwargs.get("approximate", "none") == "none"
    return 2 * size(grad) if exact and x.is_contiguous() and not grad.is_contiguous() else 0


def of_complex(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """A real result of complex numbers is first written as complex numbers.

    Source: torch aten/src/ATen/native/UnaryOps.cpp, unary_op_impl_with_complex_to_float_out.
    """
    return size(args[0]) if args[0].is_complex() else 0


def selected(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Source: torch aten/src/ATen/native/TensorCompare.cpp, where_self_out."""
    held = 0
    for operand in args[1:3]:
        if isinstance(operand, torch.Tensor) and operand.dtype is not result.dtype:
            held += size(operand, result.itemsize)
    return held


RULES: dict[str, Any] = {
    **{
        f"{name}{place}.{overload}": binary
        for name in _ARITHMETIC
        for place in ("", "_")
        for overload in _OVERLOADS
    },
    **{
        f"{name}{place}.{overload}": mode_sees_number
        for name in _ARITHMETIC
        for place in ("", "_")
        for overload in ("Tensor", "Tensor_Tensor", "Tensor_mode")
    },
    "gelu_backward.default": gelu_backward,
    "abs.default": of_complex,
    "angle.default": of_complex,
    "where.self": selected,
}
