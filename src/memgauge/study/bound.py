"""What a trial takes at least, of which there is no estimate: what is known of it, added up and named.

    baseline of its environment, data loaded + copies of the data that its feed makes + PyTorch's count for the same network

PyTorch's count is no law for TensorFlow, whose own peak was 10 % below it at most (docs/studies: Torres's CNN, AlexNet); what
TensorFlow takes beside it was more than that difference in every trial there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from memgauge.errors import MemgaugeError
from memgauge.study.records import Predicted
from memgauge.training import Training
from memgauge.units import format_bytes


def at_least(
    training: Training, baseline_bytes: int | None, count: Callable[[Training], int | None], reason: str
) -> Predicted:
    """Return the lower bound of a training's resident memory in the place of an estimate.

    Args:
        training: What is trained, not with PyTorch on this device.
        baseline_bytes: Resident with the data loaded, if it was measured.
        count: Returns PyTorch's peak of allocated bytes for a training; None if it has none.
        reason: Why there is no estimate.
    """
    from memgauge.training.feed import copies_of, data_bytes, torch_twin

    parts: list[tuple[str, int]] = []
    if baseline_bytes is not None:
        parts.append(("baseline with its data", baseline_bytes))
    else:
        parts.append(("data", data_bytes(training)))
    copies = copies_of(training)
    parts.append((f"{copies.count} {'copy' if copies.count == 1 else 'copies'} of them", copies.bytes))
    twin = torch_twin(training) if training.options.get("device", "cpu") == "cpu" else None
    if twin is not None:
        with contextlib.suppress(MemgaugeError):  # the network is not PyTorch's with these arguments
            parts.append(("PyTorch's count for this network", count(twin) or 0))
    parts = [(what, held) for what, held in parts if held]
    return Predicted(
        host_low_bytes=sum(held for _, held in parts),
        bound=" + ".join(f"{what} {format_bytes(held)}" for what, held in parts),
        reason=reason,
    )
