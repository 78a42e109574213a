"""ResNet-50, and its deeper relatives by their blocks."""

from __future__ import annotations

import torch
from torch import nn

from memgauge.errors import UsageError
from memgauge.workload import Workload
from memgauge.zoo.pictures import counts_of, picture_workload

WIDENING = 4  # a bottleneck's last convolution has four times the channels of its others


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a shortcut. x: (batch B, inputs, H, W) -> (B, 4 × width, …)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = WIDENING * width
        self.narrow = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.middle = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.widen = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.norm1(self.narrow(x)))
        out = self.relu(self.norm2(self.middle(out)))
        out = self.norm3(self.widen(out))
        out += x if self.shortcut is None else self.shortcut(x)
        result: torch.Tensor = self.relu(out)
        return result


class ResNet(nn.Module):
    """pictures: (batch B, 3, height, width) -> logits: (B, classes)."""

    def __init__(self, blocks: tuple[int, ...], classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages = []
        inputs = width
        for number, count in enumerate(blocks):
            narrow, stride = width * 2**number, 1 if number == 0 else 2
            stage = [Bottleneck(inputs, narrow, stride)]
            inputs = WIDENING * narrow
            stage += [Bottleneck(inputs, narrow, 1) for _ in range(count - 1)]
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.output = nn.Linear(inputs, classes)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.stages(self.stem(pictures)))
        logits: torch.Tensor = self.output(torch.flatten(x, 1))
        return logits


def resnet50(
    batch_size: int = 32,
    image_size: int = 224,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
    blocks: str = "3,4,6,3",
    classes: int = 1000,
    width: int = 64,
) -> Workload:
    """ResNet-50 v1.5.

    It has 25,557,032 parameters.

    Args:
        batch_size, optimizer, precision, checkpointing, mode: As in `TargetOptions`.
        image_size: Height and width; at least 32.
        blocks: Bottlenecks in each of the four stages; 3,4,23,3 is ResNet-101, 3,8,36,3 ResNet-152.
        classes: How many there are.
        width: Channels of the first convolution; all others grow with it.

    Source:
        He et al., "Deep Residual Learning for Image Recognition" (2015), table 1; the stride is in the
        3x3 convolution, layer by layer as torchvision/models/resnet.py.
    """
    if image_size < 32:
        raise UsageError(f"image_size={image_size}: ResNet halves a picture five times and needs at least 32")
    counts = counts_of("blocks", blocks, 4)
    return picture_workload(
        "resnet50",
        lambda: ResNet(counts, classes, width),
        batch_size=batch_size,
        image_size=image_size,
        classes=classes,
        optimizer=optimizer,
        precision=precision,
        checkpointing=checkpointing,
        mode=mode,
    )
