"""GoogLeNet (Inception v1) with batch norms, as it is trained today."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from memgauge.errors import UsageError
from memgauge.workload import Workload
from memgauge.zoo.pictures import picture_workload

AUXILIARY_WEIGHT = 0.3

WIDTH = 64  # channels of the first convolution

# Outputs: 1x1; 1x1 before 3x3, 3x3; 1x1 before 5x5, 5x5; 1x1 after pooling.
# The first inception has 3 × WIDTH inputs, each other the concatenated outputs of the one before it.
# Source: Szegedy et al. (2014), table 1.
INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


class Convolution(nn.Module):
    """A convolution, a batch norm, ReLU as a function."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, size, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.norm(self.convolution(x)), inplace=True)


class Inception(nn.Module):
    """Four branches side by side, their channels concatenated."""

    def __init__(self, inputs: int, *outputs: int) -> None:
        super().__init__()
        one, before_three, three, before_five, five, pooled = outputs
        self.one = Convolution(inputs, one, 1)
        self.three = nn.Sequential(
            Convolution(inputs, before_three, 1), Convolution(before_three, three, 3, padding=1)
        )
        # 3x3 where the paper has 5x5: a known difference of torchvision, whose weights have it.
        self.five = nn.Sequential(
            Convolution(inputs, before_five, 1), Convolution(before_five, five, 3, padding=1)
        )
        self.pooled = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True), Convolution(inputs, pooled, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


class Auxiliary(nn.Module):
    """A classifier in the middle of the network, for training only."""

    def __init__(self, inputs: int, classes: int, width: int) -> None:
        super().__init__()
        self.convolution = Convolution(inputs, 2 * width, 1)
        self.dense = nn.Linear(2 * width * 4 * 4, 16 * width)
        self.output = nn.Linear(16 * width, classes)
        self.dropout = nn.Dropout(0.7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.flatten(self.convolution(nn.functional.adaptive_avg_pool2d(x, (4, 4))), 1)
        x = self.dropout(nn.functional.relu(self.dense(x), inplace=True))
        logits: torch.Tensor = self.output(x)
        return logits


class GoogLeNet(nn.Module):
    """pictures: (batch B, 3, height, width) -> logits: (B, classes), and two auxiliary ones in training."""

    def __init__(self, classes: int = 1000, *, auxiliary: bool = True, width: int = WIDTH) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            Convolution(3, width, 7, stride=2, padding=3),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            Convolution(width, width, 1),
            Convolution(width, 3 * width, 3, padding=1),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
        )
        inceptions, inputs, found = [], 3 * width, {}
        for name, counts in INCEPTIONS.items():
            one, before_three, three, before_five, five, pooled = (max(1, n * width // WIDTH) for n in counts)
            inceptions.append(Inception(inputs, one, before_three, three, before_five, five, pooled))
            inputs = found[name] = one + three + five + pooled
        self.inceptions = nn.ModuleList(inceptions)
        self.pool3 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.pool4 = nn.MaxPool2d(2, stride=2, ceil_mode=True)
        self.auxiliary1 = Auxiliary(found["4a"], classes, width) if auxiliary else None
        self.auxiliary2 = Auxiliary(found["4d"], classes, width) if auxiliary else None
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.2)
        self.output = nn.Linear(inputs, classes)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        logits = []
        x = self.stem(pictures)
        for name, inception in zip(INCEPTIONS, self.inceptions, strict=True):
            x = inception(x)
            if name == "3b":
                x = self.pool3(x)
            elif name == "4a" and self.training and self.auxiliary1 is not None:
                logits.append(self.auxiliary1(x))
            elif name == "4d" and self.training and self.auxiliary2 is not None:
                logits.append(self.auxiliary2(x))
            elif name == "4e":
                x = self.pool4(x)
        last: torch.Tensor = self.output(self.dropout(torch.flatten(self.pool(x), 1)))
        return (last, *reversed(logits)) if logits else last


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the cross-entropy of the last classifier, and 0.3 of that of the auxiliary ones."""
    pictures, labels = batch
    output = model(pictures)
    if isinstance(output, torch.Tensor):
        return cross_entropy(output, labels)
    loss = cross_entropy(output[0], labels)
    for other in output[1:]:
        loss = loss + AUXILIARY_WEIGHT * cross_entropy(other, labels)
    return loss


def googlenet(
    batch_size: int = 32,
    image_size: int = 224,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
    classes: int = 1000,
    auxiliary: bool = True,
    width: int = WIDTH,
) -> Workload:
    """GoogLeNet with its two auxiliary classifiers.

    It has 13,004,888 parameters.

    Args:
        batch_size, optimizer, precision, checkpointing, mode: As in `TargetOptions`.
        image_size: Height and width; at least 32.
        classes: How many there are.
        auxiliary: Whether it has the two classifiers for training; 6,624,904 parameters without.
        width: Channels of the first convolution; all others grow with it, rounded down.

    Source:
        Szegedy et al., "Going Deeper with Convolutions" (2014), with batch norms; layer by layer as
        torchvision/models/googlenet.py, 3x3 in the place of 5x5 included.
    """
    if image_size < 32:
        raise UsageError(
            f"image_size={image_size}: GoogLeNet halves a picture five times and needs at least 32"
        )
    return picture_workload(
        "googlenet",
        lambda: GoogLeNet(classes, auxiliary=auxiliary, width=width),
        batch_size=batch_size,
        image_size=image_size,
        classes=classes,
        optimizer=optimizer,
        precision=precision,
        checkpointing=checkpointing,
        mode=mode,
        loss=loss_of,
    )
