"""oneDNN's LSTM: what it keeps for backward, and what it takes while it runs.

Source: oneDNN src/cpu/rnn/rnn_utils.hpp, init_conf and set_workspace_sizes; rnn_utils.cpp,
set_offsets; torch aten/src/ATen/native/mkldnn/RNN.cpp.
"""

from __future__ import annotations

from typing import Any

from memgauge.frameworks.torch.cpu_workspace.onednn import PAGE, up

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_GATES = 4
# Tables of pointers to weights and bias, and room to align the scratchpad's one large entry.
_TABLES = 4664


def good_row(length: int, itemsize: int = 4) -> int:
    """Elements of a row that starts on a cache line, and not every row on the same cache set.

    Source: oneDNN src/cpu/rnn/rnn_utils.cpp, get_good_ld.
    """
    row = up(length, 64 // itemsize)
    return row + 64 // itemsize if row % 256 == 0 else row


def kept_bytes(steps: int, batch: int, inputs: int, hidden: int) -> int:
    """Bytes of the fourth output: gates, states and their gradients of one layer in one direction."""

    def paged(size: int) -> int:
        return up(size, PAGE)

    states = 2 * (steps + 1) * batch * 4
    row = good_row(max(inputs, hidden))
    gates = paged(steps * batch * good_row(_GATES * hidden) * 4)
    hidden_states = paged(steps * batch * good_row(hidden) * 4)
    layer, cell = paged(states * row), paged(states * hidden)
    return gates + hidden_states + 3 * layer + 2 * cell


def _scratchpad(steps: int, batch: int, hidden: int) -> int:
    gates = up(steps * batch * good_row(_GATES * hidden) * 4, PAGE)
    hidden_states = 2 * up(batch * good_row(hidden) * 4, PAGE)
    return gates + hidden_states + _GATES * hidden * 4 + _TABLES


def _sizes(args: Args) -> tuple[int, int, int, int]:
    x, hidden = args[0], args[5]
    steps, batch, inputs = x.shape
    return steps, batch, inputs, hidden.shape[-1]


def layer(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Weights in rows of a good length, the gates of all steps."""
    steps, batch, inputs, hidden = _sizes(args)
    weights = (inputs + hidden) * good_row(_GATES * hidden) * 4
    return weights + _scratchpad(steps if batch < 128 else 1, batch, hidden)


def layer_backward(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Gradients of weights in rows of a good length; the weights too where theirs is not."""
    steps, batch, inputs, hidden = _sizes(args)
    held = (inputs + hidden) * good_row(_GATES * hidden) * 4
    for length in (inputs, hidden):
        if good_row(length) != length:
            held += _GATES * hidden * good_row(length) * 4
    return held + _scratchpad(steps, batch, hidden)


RULES: dict[str, Any] = {
    "mkldnn_rnn_layer.default": layer,
    "mkldnn_rnn_layer_backward.default": layer_backward,
}
