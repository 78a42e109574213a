"""What the classifiers of pictures in the zoo share: pictures in, classes as the target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from memgauge.errors import UsageError
from memgauge.frameworks.torch.checkpointing import checkpoint_blocks
from memgauge.frameworks.torch.recipe import Recipe
from memgauge.workload import Workload

Loss = Callable[[nn.Module, Any], torch.Tensor]


def picture_workload(
    name: str,
    model: Callable[[], nn.Module],
    *,
    batch_size: int,
    image_size: int,
    classes: int,
    optimizer: str,
    precision: str,
    checkpointing: bool,
    mode: str,
    channels: int = 3,
    loss: Loss | None = None,
) -> Workload:
    """Return the workload of a model from pictures (batch B, channels, S, S) to logits (B, classes).

    Args:
        name: In the zoo, for messages.
        model: Makes the model.
        batch_size, optimizer, precision, checkpointing, mode: As in `TargetOptions`.
        image_size: Height and width S, in pixels.
        classes: How many there are.
        channels: Of a picture.
        loss: Takes model and batch; cross-entropy of the logits if None.
    """

    def made() -> nn.Module:
        network = model()
        if checkpointing:
            checkpoint_blocks(network, f"zoo:{name}")
        return network

    def batch(dtype: torch.dtype) -> Any:
        pictures = torch.randn(batch_size, channels, image_size, image_size, dtype=dtype)
        return pictures, torch.randint(0, classes, (batch_size,))

    return Recipe(
        model=made,
        batch=batch,
        loss=loss or (lambda model, batch: cross_entropy(model(batch[0]), batch[1])),
        predict=lambda model, batch: model(batch[0]),
        optimizer=optimizer,
        precision=precision,
        mode=mode,
        description={"batch_size": batch_size, "image_size": [image_size, image_size]},
    ).workload()


def counts_of(name: str, text: str, length: int) -> tuple[int, ...]:
    """Return the whole numbers in an argument such as `blocks=3,4,6,3`.

    Raises:
        UsageError: They are not `length` numbers of at least 1.
    """
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if len(counts) != length or min(counts) < 1:
        raise UsageError(f"{name}={text!r}: write {length} numbers of at least 1, separated by commas")
    return counts
