"""Recurrent layers on CUDA: one cuDNN call for all layers and steps.

Weights live in one flat buffer of which the parameters are views, and so do
their gradients. What cuDNN keeps for backward (its reserve space) is opaque;
it is taken as the gates, the cell state and the layers' outputs of every step.

Source: aten/src/ATen/native/cudnn/RNN.cpp of torch 2.13 (`_cudnn_impl`, `_cudnn_rnn`,
`_cudnn_rnn_backward`, `copy_weights_to_flat_buf_views`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memgauge.frameworks.torch.cuda_placement import Placement

aten = torch.ops.aten
RELU, TANH, LSTM, GRU = 0, 1, 2, 3  # cudnnRNNMode_t
_MODES = {"aten::rnn_relu": RELU, "aten::rnn_tanh": TANH, "aten::lstm": LSTM, "aten::gru": GRU}
RNN_MODES = {"RNN_RELU": RELU, "RNN_TANH": TANH, "LSTM": LSTM, "GRU": GRU}
_GATES = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}
# Numbers kept for backward per step, layer, direction and hidden unit: gates, cell state, output.
_KEPT = {RELU: 1, TANH: 1, LSTM: 6, GRU: 5}
_ON_CUDNN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

RESERVE_NOTE = "cuDNN's recurrent kernels: workspace, and a reserve space that is only estimated"


def recurrent(placement: Placement, func: Any, *args: Any) -> Any:
    """Run a recurrent layer on cuDNN where torch would."""
    from memgauge.frameworks.torch.cuda_operators import composite

    first = args[0]
    if not torch.backends.cudnn.enabled or first.dtype not in _ON_CUDNN:
        return composite(func, *args)
    packed = func._overloadname == "data"
    data, rest = first, args[2:] if packed else args[1:]
    batch_sizes = args[1].tolist() if packed else []
    hidden, params, has_biases, layers, dropout, train, bidirectional = rest[:7]
    batch_first = False if packed else rest[7]
    mode = _MODES[func._schema.name]
    hx, cx = hidden if mode == LSTM else (hidden, None)
    size, projection = hx.shape[2], 0
    if cx is not None and cx.shape[2] != size:
        size, projection = cx.shape[2], size
    result = aten._cudnn_rnn.default(
        data, list(params), (4 if has_biases else 2) + (1 if projection else 0), flat_buffer(params),
        hx.contiguous(), None if cx is None else cx.contiguous(), mode, size, projection, layers,
        batch_first, dropout, train, bidirectional, batch_sizes, None,
    )  # fmt: skip
    return tuple(result[:3]) if mode == LSTM else tuple(result[:2])


def flat_buffer(params: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the one buffer that all parameters are views of, None if they are not (`try_get_weight_buf`)."""
    storage = params[0].untyped_storage()
    if any(p.untyped_storage()._cdata != storage._cdata for p in params[1:]):
        return None
    count = storage.nbytes() // params[0].itemsize
    if len(params) > 1 and count < sum(p.numel() for p in params):
        return None
    return _view(storage, 0, (count,), params[0].dtype)


def _view(
    storage: torch.UntypedStorage, offset: int, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    with torch.no_grad():
        empty = torch.empty(0, dtype=dtype, device=torch.device("cpu"))
        return empty.set_(storage, offset, tuple(shape))  # type: ignore[call-overload,no-any-return]


def flat_count(weights: Sequence[torch.Tensor], stride0: int, mode: int, hidden: int) -> int:
    """Return the elements of the flat buffer; cuDNN's has places for biases even without any."""
    count = sum(w.numel() for w in weights)
    if stride0 in (2, 3):
        count += len(weights) // stride0 * 2 * _GATES[mode] * hidden
    return count


def views_of(buffer: torch.Tensor, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return places for all weights in a flat buffer."""
    views, offset = [], 0
    for weight in weights:
        views.append(_view(buffer.untyped_storage(), offset, weight.shape, buffer.dtype))
        offset += weight.numel()
    return views


def flatten(placement: Placement) -> Any:
    """Return the stand-in for `torch._cudnn_rnn_flatten_weight`."""

    def flatten_weight(
        weights: list[torch.Tensor], stride0: int, input_size: int, mode: int, hidden: int, *_: Any
    ) -> torch.Tensor:
        with placement.at(True):
            buffer = torch.zeros(flat_count(weights, stride0, mode, hidden), dtype=weights[0].dtype)
        for weight, view in zip(weights, views_of(buffer, weights), strict=True):
            weight.set_(view)  # type: ignore[call-overload]
        return buffer

    return flatten_weight


def reserve_bytes(mode: int, hidden: int, layers: int, bidirectional: bool, rows: int, itemsize: int) -> int:
    """Return what cuDNN is taken to keep for backward; rows are steps times batch."""
    return _KEPT[mode] * hidden * layers * (2 if bidirectional else 1) * rows * itemsize
