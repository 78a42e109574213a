"""VGG-16."""

from __future__ import annotations

import torch
from torch import nn

from memgauge.errors import UsageError
from memgauge.workload import Workload
from memgauge.zoo.pictures import counts_of, picture_workload

# Channels of the convolutions in each block, and how many there are; a pooling ends each block.
CHANNELS = (64, 128, 256, 512, 512)
BLOCKS = (2, 2, 3, 3, 3)


class VGG16(nn.Module):
    """Thirteen convolutions in five blocks, five poolings, three dense layers.

    pictures: (batch B, 3, height, width) -> logits: (B, classes)
    """

    def __init__(
        self, blocks: tuple[int, ...] = BLOCKS, classes: int = 1000, width: int = CHANNELS[0]
    ) -> None:
        super().__init__()
        stages, inputs, dense = [], 3, 64 * width
        for count, channels in zip(blocks, CHANNELS, strict=True):
            outputs = channels * width // CHANNELS[0]
            layers: list[nn.Module] = []
            for _ in range(count):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = outputs
            stages.append(nn.Sequential(*layers, nn.MaxPool2d(2, stride=2)))
        self.features = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(inputs * 7 * 7, dense),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(dense, dense),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(dense, classes),
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = torch.flatten(self.pool(self.features(pictures)), 1)
        logits: torch.Tensor = self.classifier(x)
        return logits


def vgg16(
    batch_size: int = 32,
    image_size: int = 224,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
    blocks: str = "2,2,3,3,3",
    classes: int = 1000,
    width: int = CHANNELS[0],
) -> Workload:
    """VGG-16.

    It has 138,357,544 parameters.

    Args:
        batch_size, optimizer, precision, checkpointing, mode: As in `TargetOptions`.
        image_size: Height and width; at least 32.
        blocks: Convolutions in each of the five blocks; 1,1,2,2,2 is VGG-11, 2,2,4,4,4 VGG-19.
        classes: How many there are.
        width: Channels of the first convolution; all others, and the dense layers, grow with it.

    Source:
        Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition"
        (2014), configuration D; layer by layer as torchvision/models/vgg.py.
    """
    if image_size < 32:
        raise UsageError(f"image_size={image_size}: VGG-16 halves a picture five times and needs at least 32")
    counts = counts_of("blocks", blocks, len(CHANNELS))
    return picture_workload(
        "vgg16",
        lambda: VGG16(counts, classes, width),
        batch_size=batch_size,
        image_size=image_size,
        classes=classes,
        optimizer=optimizer,
        precision=precision,
        checkpointing=checkpointing,
        mode=mode,
    )
