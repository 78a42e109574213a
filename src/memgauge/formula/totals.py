"""From a layer table to what training and inference take, as one adds it up by hand.

    training    parameters + gradients + optimizer state + activations + their gradients + input
    inference   parameters + the two largest consecutive feature maps + input

Source: the rules of Karpathy's CS231n notes, "Addressing the memory usage", and of
Denneman 2022. What is wrong with them is named by `gap`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from memgauge.formula.records import Inference, LayerCall, LayerTable, StateRow, Training

FIRST_STEP = 1


def training(table: LayerTable, state: Sequence[StateRow]) -> Training:
    """Return what one training step takes if everything is alive at once."""
    activations = sum(call.count_bytes for call in table.calls_of(FIRST_STEP))
    optimizer_state = sum(row.state_bytes for row in state)
    parts = {
        "parameter_bytes": table.parameter_bytes,
        "gradient_bytes": table.gradient_bytes,
        "optimizer_state_bytes": optimizer_state,
        "activation_bytes": activations,
        "activation_gradient_bytes": activations,
        "input_bytes": table.input_bytes,
    }
    return Training(**parts, total_bytes=sum(parts.values()))


def inference(table: LayerTable) -> Inference:
    """Return what one forward pass takes if only one layer's input and output are alive."""
    pair = largest_pair(table.calls_of(FIRST_STEP))
    maps = sum(call.count_bytes for call in pair)
    return Inference(
        parameter_bytes=table.parameter_bytes,
        two_largest_bytes=maps,
        layers=tuple(call.path for call in pair),
        input_bytes=table.input_bytes,
        total_bytes=table.parameter_bytes + maps + table.input_bytes,
    )


def largest_pair(calls: Sequence[LayerCall]) -> tuple[LayerCall, ...]:
    """Return the two consecutive calls with the largest outputs, the first such pair; one if there is one."""
    if len(calls) < 2:
        return tuple(calls)
    return max(itertools.pairwise(calls), key=lambda pair: pair[0].count_bytes + pair[1].count_bytes)
