"""AlexNet, in the one-tower form of 2014."""

from __future__ import annotations

import torch
from torch import nn

from memgauge.errors import UsageError
from memgauge.workload import Workload
from memgauge.zoo.pictures import picture_workload


class AlexNet(nn.Module):
    """Five convolutions in blocks of their own, three poolings, three dense layers.

    pictures: (batch B, 3, height, width) -> logits: (B, classes)
    """

    def __init__(self, classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        dense = 64 * width
        self.features = nn.Sequential(
            _block(3, width, 11, stride=4, padding=2, pools=True),
            _block(width, 3 * width, 5, padding=2, pools=True),
            _block(3 * width, 6 * width, 3, padding=1),
            _block(6 * width, 4 * width, 3, padding=1),
            _block(4 * width, 4 * width, 3, padding=1, pools=True),
        )
        self.pool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(4 * width * 6 * 6, dense),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(dense, dense),
            nn.ReLU(inplace=True),
            nn.Linear(dense, classes),
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = torch.flatten(self.pool(self.features(pictures)), 1)
        logits: torch.Tensor = self.classifier(x)
        return logits


def _block(
    inputs: int, outputs: int, size: int, *, stride: int = 1, padding: int, pools: bool = False
) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, size, stride, padding), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *[nn.MaxPool2d(3, stride=2)] * pools)


def alexnet(
    batch_size: int = 32,
    image_size: int = 224,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
    classes: int = 1000,
    width: int = 64,
) -> Workload:
    """AlexNet in the form of 2014.

    It has 61,100,840 parameters.

    Args:
        batch_size, optimizer, precision, checkpointing, mode: As in `TargetOptions`. The blocks are the
            convolutions with their ReLU and pooling.
        image_size: Height and width; at least 63.
        classes: How many there are.
        width: Channels of the first convolution; all others, and the dense layers, grow with it.

    Source:
        Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014); layer
        by layer as torchvision/models/alexnet.py.
    """
    if image_size < 63:
        raise UsageError(f"image_size={image_size}: AlexNet's poolings need at least 63")
    return picture_workload(
        "alexnet",
        lambda: AlexNet(classes, width),
        batch_size=batch_size,
        image_size=image_size,
        classes=classes,
        optimizer=optimizer,
        precision=precision,
        checkpointing=checkpointing,
        mode=mode,
    )
