"""AlexNet, in the one-tower form of 2014."""

from __future__ import annotations

import torch
from torch import nn

from memgauge.errors import UsageError
from memgauge.workload import Workload
from memgauge.zoo.pictures import picture_workload


class AlexNet(nn.Module):
    """Five convolutions, three poolings, three dense layers.

    pictures: (batch B, 3, height, width) -> logits: (B, classes)
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
        )
        self.pool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, classes),
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = torch.flatten(self.pool(self.features(pictures)), 1)
        logits: torch.Tensor = self.classifier(x)
        return logits


def alexnet(
    batch_size: int = 32,
    image_size: int = 224,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
    classes: int = 1000,
) -> Workload:
    """AlexNet, 61,100,840 parameters.

    Args:
        batch_size, optimizer, precision, mode: As in `TargetOptions`.
        checkpointing: Refused: the network is a row of layers without blocks.
        image_size: Height and width; at least 63.
        classes: How many there are.

    Source:
        Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014); layer
        by layer as torchvision/models/alexnet.py.
    """
    if image_size < 63:
        raise UsageError(f"image_size={image_size}: AlexNet's poolings need at least 63")
    return picture_workload(
        "alexnet",
        lambda: AlexNet(classes),
        batch_size=batch_size,
        image_size=image_size,
        classes=classes,
        optimizer=optimizer,
        precision=precision,
        checkpointing=checkpointing,
        mode=mode,
    )
