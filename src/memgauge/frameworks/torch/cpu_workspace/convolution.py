"""Workspace of `aten.convolution` and `aten.convolution_backward` on the CPU.

Source: torch aten/src/ATen/native/mkldnn/Conv.cpp and ideep's conv.hpp and
deconv.hpp: what is copied, in which order, and when it is given back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memgauge.frameworks.torch.cpu_workspace import onednn_bfloat16, onednn_float
from memgauge.frameworks.torch.cpu_workspace.onednn import Plan, Problem, Triple, booked
from memgauge.frameworks.torch.cpu_workspace.slow_convolution import slow_backward, slow_forward

_C: Any = torch._C  # what is asked here has no type stubs
# Source: torch aten/src/ATen/native/ConvUtils.h, enum ConvBackend: MkldnnTranspose, which Python
# has no name for, stands between these two.
_ONEDNN = range(int(_C._ConvBackend.Mkldnn), int(_C._ConvBackend.MkldnnEmpty))
_TRANSPOSED = {
    "forward": "backward_data",
    "backward_data": "forward",
    "backward_weights": "backward_weights",
}
_CACHE: dict[tuple[Any, ...], int] = {}


def convolution(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, threads: int) -> int:
    """Workspace of the forward pass."""
    del kwargs
    x, weight, bias = args[:3]
    key = _key(x, weight, bias is not None, result, args[3:9], threads)
    found = _CACHE.get(key)
    if found is None:
        backend = _C._select_conv_backend(x, weight, bias, *args[3:9])
        if int(backend) in _ONEDNN:
            found = _onednn_forward(x, weight, bias is not None, result, args[3:9], threads)
        else:
            found = slow_forward(backend, x, weight, result, args[3:9])
        _CACHE[key] = found
    return found


def convolution_backward(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, threads: int) -> int:
    """Workspace of the backward pass."""
    del kwargs, result
    grad, x, weight, bias_sizes = args[:4]
    mask = args[10]
    key = _key(x, weight, tuple(mask), grad, args[4:10], threads)
    found = _CACHE.get(key)
    if found is None:
        backend = _C._select_conv_backend(x, weight, None, *args[4:10], bias_sizes)
        if int(backend) in _ONEDNN:
            found = _onednn_backward(grad, x, weight, mask, args[4:10], threads)
        else:
            found = slow_backward(backend, grad, x, weight, mask, args[4:10])
        _CACHE[key] = found
    return found


def _key(x: torch.Tensor, weight: torch.Tensor, extra: Any, y: torch.Tensor, rest: Any, threads: int) -> Any:
    options = tuple(tuple(v) if isinstance(v, (list, tuple)) else v for v in rest)
    layouts = tuple((t.shape, t.stride()) for t in (x, weight, y))
    return (layouts, x.dtype, extra, options, threads)


def vector_width() -> int:
    """Floats in a vector register of the instruction set that oneDNN finds."""
    return 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8


def _as_2d(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.unsqueeze(2) if tensor.dim() == 3 else tensor


def is_channels_last(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether oneDNN is given channels last. Never in one dimension: the input is made contiguous first.

    Source: torch aten/src/ATen/native/Convolution.cpp, _convolution; ConvUtils.h,
    mkldnn_conv_use_channels_last.
    """
    if x.dim() == 3:
        return False
    found = _C._conv_determine_backend_memory_format(x, weight, _C._ConvBackend.Mkldnn)
    return found in (torch.channels_last, torch.channels_last_3d)


def _copy(tensor: torch.Tensor, channels_last: bool) -> int:
    """Bytes of `tensor.contiguous(memory_format)`: none if it is so already."""
    memory_format = torch.contiguous_format
    if channels_last:
        memory_format = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return 0 if tensor.is_contiguous(memory_format=memory_format) else _bytes(tensor)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize


def _triple(values: Any, fill: int) -> Triple:
    return tuple([fill] * (3 - len(values)) + [int(v) for v in values])  # type: ignore[return-value]


def _planner(x: torch.Tensor, direction: str) -> Callable[[Problem], Plan]:
    family = onednn_bfloat16 if x.dtype is torch.bfloat16 else onednn_float
    return getattr(family, direction)  # type: ignore[no-any-return]


def _plan(
    direction: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    bias: bool,
    options: Any,
    threads: int,
    last: bool,
) -> Plan:
    """Plan with `source` as the operator's input and `output` as its result.

    A transposed convolution is the convolution that it transposes, run the other way.

    Source: oneDNN src/cpu/ref_deconvolution.hpp and src/cpu/x64/jit_brgemm_deconv.cpp.
    """
    if not options[3]:
        return _planner(x, direction)(_problem(x, weight, y, bias, options, threads, last))
    problem = _problem(y, weight, x, False, options, threads, last)
    plan = _planner(x, _TRANSPOSED[direction])(problem)
    scratchpad = booked(plan.scratchpad)
    if direction == "forward" and bias and not plan.nxc and not last:
        scratchpad += booked(plan.source or problem.source_bytes())
    return plan._replace(source=plan.output, output=plan.source, scratchpad=scratchpad)


def _problem(
    x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, bias: bool, options: Any, threads: int, last: bool
) -> Problem:
    stride, padding, dilation, _, _, groups = options
    dims = x.dim() - 2
    return Problem(
        dims=max(dims, 2),
        batch=x.shape[0],
        ic=x.shape[1],
        oc=y.shape[1],
        groups=groups,
        source=_triple(x.shape[2:], 1),
        output=_triple(y.shape[2:], 1),
        kernel=_triple(weight.shape[2:], 1),
        stride=_triple(stride, 1),
        padding=_triple(padding, 0),
        dilation=tuple(d - 1 for d in _triple(dilation, 1)),  # type: ignore[arg-type]
        itemsize=x.itemsize,
        bias=bias,
        channels_last=last,
        threads=threads,
        vector=vector_width(),
        with_groups=groups > 1,
    )


def _onednn_forward(
    x: torch.Tensor, weight: torch.Tensor, bias: bool, y: torch.Tensor, options: Any, threads: int
) -> int:
    last = is_channels_last(x, weight)
    copies = _copy(x, last) + _copy(weight, last)
    x, weight, y = _as_2d(x), _as_2d(weight), _as_2d(y)
    plan = _plan("forward", x, weight, y, bias, options, threads, last)
    running = (plan.source or 0) + (plan.weights or 0) + plan.scratchpad
    if last:
        return copies + running
    return copies + max(running + (plan.output or _bytes(y)) - _bytes(y), _to_dense(plan.output, y, plan.nxc))


def is_spread(tensor: torch.Tensor) -> bool:
    """Whether channels last differs from the plain layout: more than one channel and one pixel."""
    return tensor.shape[1] > 1 and any(size > 1 for size in tensor.shape[2:])


def _to_dense(inner: int | None, tensor: torch.Tensor, nxc: bool) -> int:
    """What is held beside the plain result while a result in oneDNN's layout is turned into it.

    With channels last inside, a dense copy is made as it is, and then a contiguous one.

    Source: torch aten/src/ATen/native/mkldnn/MkldnnTensorMath and MKLDNNConversions.cpp, mkldnn_to_dense.
    """
    held = inner if inner is not None else _bytes(tensor)
    return held + (_bytes(tensor) if nxc and is_spread(tensor) else 0)


def _onednn_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mask: Any, options: Any, threads: int
) -> int:
    last = is_channels_last(x, weight)
    copies = _copy(grad, last) + _copy(x, last) + _copy(weight, last)
    grad, x, weight = _as_2d(grad), _as_2d(x), _as_2d(weight)
    bias_bytes = grad.shape[1] * grad.itemsize if mask[2] else 0
    kept = bias_bytes + (_bytes(x) if mask[0] else 0) + (_bytes(weight) if mask[1] or mask[2] else 0)
    peak = 0
    if mask[0]:
        plan = _plan("backward_data", x, weight, grad, False, options, threads, last)
        running = (plan.output or 0) + (plan.weights or 0) + plan.scratchpad
        peak = running + (plan.source or _bytes(x))
        if not last:
            peak = max(peak, _bytes(x) + _to_dense(plan.source, x, plan.nxc))
    if mask[1] or mask[2]:
        plan = _plan("backward_weights", x, weight, grad, bool(mask[2]), options, threads, last)
        held = _bytes(x) if mask[0] else 0
        inner = plan.weights or _bytes(weight)
        running = held + (plan.output or 0) + (plan.source or 0) + inner + plan.scratchpad + bias_bytes
        dense = held + inner + 2 * bias_bytes + _bytes(weight)
        if last or (plan.nxc and is_spread(weight)):
            dense += _bytes(weight)  # the dense weights are turned once more
        peak = max(peak, running, dense)
    return copies + max(0, peak - kept)
