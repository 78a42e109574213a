"""ViT-B/16, and other vision transformers by their sizes."""

from __future__ import annotations

import torch
from torch import nn

from memgauge.errors import UsageError
from memgauge.workload import Workload
from memgauge.zoo.pictures import picture_workload


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a layer norm and beside a shortcut.

    x: (batch B, patches L, width W) -> the same
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm1(x)
        mixed, _ = self.attention(normed, normed, normed, need_weights=False)
        x = self.dropout(mixed) + x
        result: torch.Tensor = x + self.feed_forward(self.norm2(x))
        return result


class Encoder(nn.Module):
    """Positions, a dropout, the blocks, a last norm."""

    def __init__(self, length: int, layers: int, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.empty(1, length, width).normal_(std=0.02))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, hidden, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(self.blocks(self.dropout(x + self.positions)))
        return result


class VisionTransformer(nn.Module):
    """pictures: (batch B, 3, S, S) -> logits: (B, classes), by the class token."""

    def __init__(
        self,
        image_size: int,
        *,
        patch: int = 16,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        classes: int = 1000,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        length = (image_size // patch) ** 2 + 1
        self.encoder = Encoder(length, layers, width, heads, 4 * width, dropout)
        self.output = nn.Linear(width, classes)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.patches(pictures).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1)
        logits: torch.Tensor = self.output(self.encoder(x)[:, 0])
        return logits


def vit_b16(
    batch_size: int = 32,
    image_size: int = 224,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    patch: int = 16,
    classes: int = 1000,
    dropout: float = 0.0,
) -> Workload:
    """ViT-B/16, a vision transformer.

    It has 86,567,656 parameters at 224 x 224.

    Args:
        batch_size, optimizer, precision, checkpointing, mode: As in `TargetOptions`.
        image_size: Height and width, a multiple of the patch.
        layers, width, heads: 24, 1024, 16 is ViT-L.
        patch: Height and width of a patch.
        classes, dropout: Of the last layer; of every sublayer.

    Source:
        Dosovitskiy et al., "An Image is Worth 16x16 Words" (2020), table 1; layer by layer as
        torchvision/models/vision_transformer.py.
    """
    if patch < 1 or image_size % patch:
        raise UsageError(f"image_size={image_size} does not divide into patches of {patch}")
    if heads < 1 or width % heads:
        raise UsageError(f"width={width} does not divide into {heads} heads")
    return picture_workload(
        "vit-b16",
        lambda: VisionTransformer(
            image_size,
            patch=patch,
            layers=layers,
            width=width,
            heads=heads,
            classes=classes,
            dropout=dropout,
        ),
        batch_size=batch_size,
        image_size=image_size,
        classes=classes,
        optimizer=optimizer,
        precision=precision,
        checkpointing=checkpointing,
        mode=mode,
    )
