"""The convolutional network of Torres 2021."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from memgauge.errors import UsageError, missing_extra
from memgauge.frameworks.torch.checkpointing import checkpoint_blocks
from memgauge.frameworks.torch.recipe import Recipe
from memgauge.workload import Workload
from memgauge.zoo.activations import FUNCTIONS, activation_of
from memgauge.zoo.pictures import counts_of

CLASSES = 10
PICTURE = 32


class TorresNetwork(nn.Module):
    """Three convolutions, two max-poolings, two dense layers.

    x: (batch B, 3, height, width) -> (batch B, classes)
    """

    def __init__(
        self,
        image_size: int = PICTURE,
        filters: tuple[int, ...] = (32, 64, 64),
        units: int = 32,
        classes: int = CLASSES,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        kind = activation_of(activation)
        self.activation = FUNCTIONS[activation]
        first, second, third = filters
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, first, 3), kind(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(first, second, 3), kind(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(second, third, 3), kind()),
        )
        side = ((image_size - 2) // 2 - 2) // 2 - 2  # each convolution takes 2 off, each pooling halves
        self.dense = nn.Linear(third * side * side, units)
        self.output = nn.Linear(units, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.flatten(self.features(x), 1)
        output: torch.Tensor = self.output(self.activation(self.dense(x)))
        return output


def torres_cnn(
    batch_size: int = 32,
    image_size: int = PICTURE,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
    data: Literal["random", "digits"] = "random",
    filters: str = "32,64,64",
    units: int = 32,
    classes: int = CLASSES,
    activation: str = "relu",
) -> Workload:
    """The CNN of Torres 2021.

    It has 89,450 parameters on pictures of 32 x 32.

    Args:
        batch_size, optimizer, precision, checkpointing, mode: As in `TargetOptions`.
        image_size: Height and width; at least 18.
        data: `random` numbers, or `digits`: the 1,797 handwritten digits that come with
            scikit-learn (8 x 8, grey), enlarged and in three equal channels.
        filters, units: Channels of the three convolutions; width of the first dense layer.
        classes: How many there are.
        activation: As in `mlp`.

    Source:
        Torres et al., "Computational Resource Consumption in Convolutional Neural Network
        Training" (2021), table 1. Convolutions without padding, stride 1, as is the default in
        Keras and PyTorch; ReLU after each; Adam and cross-entropy.
    """
    if image_size < 18:
        raise UsageError(f"image_size={image_size}: three convolutions and two poolings need at least 18")
    if data not in ("random", "digits"):
        raise UsageError(f"data={data!r}: it is random or digits")
    if classes < CLASSES and data == "digits":
        raise UsageError(f"classes={classes}: the digits have {CLASSES}")
    activation_of(activation)
    channels = counts_of("filters", filters, 3)
    digits = _digits() if data == "digits" else None

    def model() -> nn.Module:
        made = TorresNetwork(image_size, channels, units, classes, activation)
        if checkpointing:
            checkpoint_blocks(made, "zoo:torres-cnn")
        return made

    def batch(dtype: torch.dtype) -> Any:
        if digits is not None:
            return _sample(digits, batch_size, image_size, dtype)
        pictures = torch.randn(batch_size, 3, image_size, image_size, dtype=dtype)
        return pictures, torch.randint(0, classes, (batch_size,))

    return Recipe(
        model=model,
        batch=batch,
        loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        predict=lambda model, batch: model(batch[0]),
        optimizer=optimizer,
        precision=precision,
        mode=mode,
        description={"batch_size": batch_size, "image_size": [image_size, image_size], "data": data},
    ).workload()


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures (1797, 8, 8) from 0 to 1 and their classes (1797,)."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise missing_extra("scikit-learn", "data") from error
    found = load_digits()
    return torch.from_numpy(found.images).float() / 16, torch.from_numpy(found.target).long()


def _sample(
    digits: tuple[torch.Tensor, torch.Tensor], count: int, size: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a batch on the host: (B, 3, size, size) and (B,)."""
    pictures, classes = digits
    chosen = torch.randint(0, len(classes), (count,), device="cpu")
    enlarged = nn.functional.interpolate(pictures[chosen][:, None], size=(size, size))
    return enlarged.expand(-1, 3, -1, -1).to(dtype).contiguous(), classes[chosen]
