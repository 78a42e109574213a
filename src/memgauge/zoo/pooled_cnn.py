"""Three convolutions, each with a pooling, and two dense layers: for sums with a given outcome."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, relu

from memgauge.frameworks.torch.recipe import Recipe
from memgauge.workload import Workload

WIDTH, HEIGHT = 180, 50


class PooledNetwork(nn.Module):
    """pictures: (batch B, 1, 50, 180) -> logits: (B, classes). ReLU is a function, done in place.

    So the layers are exactly those that are counted by hand: convolutions, poolings, dense layers.
    """

    def __init__(self, channels: tuple[int, int, int], units: int, classes: int) -> None:
        super().__init__()
        first, second, third = channels
        self.convolution1 = nn.Conv2d(1, first, 3, padding=1)
        self.convolution2 = nn.Conv2d(first, second, 3, padding=1)
        self.convolution3 = nn.Conv2d(second, third, 3, padding=1)
        self.pool1, self.pool2, self.pool3 = nn.MaxPool2d(2), nn.MaxPool2d(2), nn.MaxPool2d(2)
        self.dense = nn.Linear(third * (HEIGHT // 8) * (WIDTH // 8), units)
        self.output = nn.Linear(units, classes)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.pool1(relu(self.convolution1(pictures), inplace=True))
        x = self.pool2(relu(self.convolution2(x), inplace=True))
        x = self.pool3(relu(self.convolution3(x), inplace=True))
        x = relu(self.dense(torch.flatten(x, 1)), inplace=True)
        logits: torch.Tensor = self.output(x)
        return logits


def pooled_cnn(
    batch_size: int = 128,
    optimizer: str = "sgd,momentum=0.9",
    mode: str = "train",
    channels: tuple[int, int, int] = (17, 43, 329),
    units: int = 436,
    classes: int = 8,
) -> Workload:
    """A network with exactly 532,752 activations and 19,072,984 parameters for a picture of 180 x 50 x 1.

    Of all widths with fewer than 48 and 192 channels in the first two convolutions, seventeen
    give both numbers exactly; these have the fewest classes. Three halvings leave 22 x 6 of 180 x 50.
    """

    def batch(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        pictures = torch.randn(batch_size, 1, HEIGHT, WIDTH, dtype=dtype)
        return pictures, torch.randint(0, classes, (batch_size,))

    return Recipe(
        model=lambda: PooledNetwork(channels, units, classes),
        batch=batch,
        loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        predict=lambda model, batch: model(batch[0]),
        optimizer=optimizer,
        mode=mode,
        description={"batch_size": batch_size, "channels": channels, "units": units, "classes": classes},
    ).workload()
