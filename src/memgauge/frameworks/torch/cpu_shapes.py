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
_C: Any = torch._C  # what is asked here has no type stubs


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


def _norm_with_statistics(weight_at: int) -> Fix:
    """Mean and inverse deviation have the type of the parameters where that is wider, else the input's.

    Source: torch aten/src/ATen/native/layer_norm.cpp and group_norm.cpp, is_mixed_type and
    param_scalar_type (aten/src/ATen/native/cpu/mixed_data_type.h).
    """

    def fix(args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any) -> Any:
        weight = args[weight_at]
        kind = args[0].dtype if weight is None else weight.dtype
        return (specs[0]._replace(dtype=args[0].dtype), *(s._replace(dtype=kind) for s in specs[1:]))

    return fix


def _layer_norm_backward(args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any) -> Any:
    """The gradient of the input is contiguous, whatever the input is.

    Source: torch aten/src/ATen/native/layer_norm.cpp, layer_norm_backward_cpu.
    """
    source = specs[0]
    if not isinstance(source, Spec):
        return specs
    return (source._replace(stride=_in_format(source.shape, torch.contiguous_format)), *specs[1:])


def _col2im(args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any) -> Any:
    """The image is put into memory that was made for the columns.

    Source: torch aten/src/ATen/native/Col2Im.cpp, col2im_cpu: empty_like(input), then resized.
    """
    return specs._replace(storage_bytes=max(args[0].numel(), prod(specs.shape)) * specs.dtype.itemsize)


def _group_norm_backward(args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any) -> Any:
    """The gradient of the input has the input's type; those of the parameters have theirs.

    Source: torch aten/src/ATen/native/group_norm.cpp, native_group_norm_backward.
    """
    x, weight = args[1], args[4]
    kinds = (x.dtype, *(2 * (x.dtype if weight is None else weight.dtype,)))
    return tuple(
        s._replace(dtype=kind) if isinstance(s, Spec) else s for s, kind in zip(specs, kinds, strict=True)
    )


def _in_format(shape: tuple[int, ...], memory_format: torch.memory_format) -> tuple[int, ...]:
    """Return the strides of a new tensor in a memory format."""
    return torch.empty(shape, device="meta", memory_format=memory_format).stride()


def _turned(shape: tuple[int, ...], memory_format: torch.memory_format) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor turned to a memory format: unchanged where it fits both."""
    plain = torch.empty(shape, device="meta")
    return plain.contiguous(memory_format=memory_format).stride()


def _convolution_format(args: tuple[Any, ...], grad: int) -> torch.memory_format:
    """Return the layout that the CPU's convolution gives its results.

    Source: torch aten/src/ATen/native/ConvUtils.h, mkldnn_conv_use_channels_last and
    thnn_conv_use_channels_last: either operand with channels last is enough for oneDNN.
    """
    x, weight = args[grad], args[grad + 1]
    bias = () if not grad else (args[3],)
    rest = args[grad + 3 : grad + 9]
    backend = _C._select_conv_backend(x, weight, None if grad else args[2], *rest, *bias)
    return _C._conv_determine_backend_memory_format(x, weight, backend)  # type: ignore[no-any-return]


def _convolution(args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any) -> Any:
    """Layout of the result; `meta` looks at the input's alone, or at none."""
    if args[0].dim() not in (4, 5) or args[0].numel() == 0:
        return specs
    return specs._replace(stride=_in_format(specs.shape, _convolution_format(args, 0)))


def _convolution_backward(args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any) -> Any:
    """Layout of the gradients of input and weight."""
    if args[1].dim() not in (4, 5) or args[1].numel() == 0:
        return specs
    memory_format = _convolution_format(args, 1)
    source, weight, bias = specs
    if isinstance(source, Spec):
        source = source._replace(stride=_in_format(source.shape, memory_format))
    if isinstance(weight, Spec):
        weight = weight._replace(stride=_turned(weight.shape, memory_format))
    return (source, weight, bias)


def _kept_whole(reduction: int) -> Fix:
    """The sum is put into the memory of every element's loss, which stays as large as it was.

    Source: torch aten/src/ATen/native/Loss.cpp, the meta functions of mse_loss and smooth_l1_loss
    and binary_cross_entropy_out_cpu, which resize a full result to a scalar.
    """

    def fix(args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any) -> Any:
        chosen = args[reduction] if len(args) > reduction else kwargs.get("reduction", _MEAN)
        if chosen == 0:
            return specs
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)  # type: ignore[no-untyped-call]
        return specs._replace(storage_bytes=prod(shape) * specs.dtype.itemsize)

    return fix


def _embedding_bag(args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any) -> Any:
    """The map of offsets to bags is made one element longer than it is in the end.

    Source: torch aten/src/ATen/native/EmbeddingBag.cpp, make_offset2bag_out.
    """
    output, offset2bag, *rest = specs
    if offset2bag.shape != (args[1].shape[0],):
        return specs
    whole = (args[1].shape[0] + 1) * offset2bag.dtype.itemsize
    return (output, offset2bag._replace(storage_bytes=whole), *rest)


def _collect() -> dict[Any, Fix]:
    named: dict[str, Fix] = {
        "convolution.default": _convolution,
        "convolution_backward.default": _convolution_backward,
        "mkldnn_rnn_layer.default": _rnn_layer,
        "native_batch_norm.default": _batch_norm,
        "native_layer_norm.default": _norm_with_statistics(2),
        "native_layer_norm_backward.default": _layer_norm_backward,
        "col2im.default": _col2im,
        "soft_margin_loss.default": _kept_whole(2),
        "native_group_norm.default": _norm_with_statistics(1),
        "native_group_norm_backward.default": _group_norm_backward,
        "_embedding_bag.default": _embedding_bag,
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
