"""DCGAN: two networks, two optimizers, one step."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy

from memgauge.arguments import MODES, check_choice
from memgauge.errors import UsageError
from memgauge.frameworks.torch.checkpointing import checkpoint_blocks
from memgauge.frameworks.torch.recipe import DTYPES, default_dtype, optimizer_of
from memgauge.workload import Workload

NOISE = 100


class Generator(nn.Module):
    """noise: (batch B, 100, 1, 1) -> pictures: (B, 3, S, S); each stage but the first doubles S, from 4."""

    def __init__(self, width: int = 64, image_size: int = 64) -> None:
        super().__init__()
        channels = [NOISE, *_channels(width, image_size)[::-1]]
        stages = [
            nn.Sequential(
                nn.ConvTranspose2d(inputs, outputs, 4, *((1, 0) if i == 0 else (2, 1)), bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            )
            for i, (inputs, outputs) in enumerate(itertools.pairwise(channels))
        ]
        last = nn.Sequential(nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())
        self.stages = nn.Sequential(*stages, last)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        pictures: torch.Tensor = self.stages(noise)
        return pictures


class Discriminator(nn.Module):
    """pictures: (batch B, 3, S, S) -> how real they look: (B, 1, 1, 1); each stage but the last halves S."""

    def __init__(self, width: int = 64, image_size: int = 64) -> None:
        super().__init__()
        channels = _channels(width, image_size)
        first = nn.Sequential(nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True))
        stages = [
            nn.Sequential(
                nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.LeakyReLU(0.2, inplace=True),
            )
            for inputs, outputs in itertools.pairwise(channels)
        ]
        last = nn.Sequential(nn.Conv2d(channels[-1], 1, 4, 1, 0, bias=False), nn.Sigmoid())
        self.stages = nn.Sequential(first, *stages, last)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        seen: torch.Tensor = self.stages(pictures)
        return seen


def _channels(width: int, image_size: int) -> list[int]:
    """Return the channels of the hidden layers, from pictures to the 4 × 4 maps."""
    return [width * 2**i for i in range((image_size // 4).bit_length() - 1)]


def dcgan(
    batch_size: int = 128,
    image_size: int = 64,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
    width: int = 64,
) -> Workload:
    """DCGAN: a generator and a discriminator of pictures, trained together.

    It has 3,576,704 parameters in the generator and 2,765,568 in the discriminator.

    Args:
        batch_size, optimizer: As in `TargetOptions`; both networks have their own optimizer.
        precision: As in `TargetOptions`, but no autocast: torch refuses this loss under it.
        image_size: Height and width S, a power of two of at least 8: it sets the depth, log2(S / 4) stages
            with hidden channels in each network.
        checkpointing: As in `TargetOptions`; the blocks are the stages of both networks.
        mode: `train` trains both; `infer` makes pictures with the generator alone.
        width: Channels of the thinnest hidden layer.

    Source:
        Radford et al., "Unsupervised Representation Learning with Deep Convolutional Generative
        Adversarial Networks" (2015); https://github.com/pytorch/examples/tree/main/dcgan.
    """
    check_choice("mode", mode, MODES)
    check_choice("precision", precision, tuple(DTYPES))
    if image_size < 8 or image_size & (image_size - 1):
        raise UsageError(
            f"image_size={image_size}: DCGAN halves a picture down to 4; write 8, 16, 32, 64, 128, …"
        )
    make_optimizer, dtype = optimizer_of(optimizer), DTYPES[precision]

    def build(device: torch.device | str = "cpu") -> Any:
        with default_dtype(dtype), torch.device(device):
            if mode == "infer":
                return Generator(width, image_size).eval()
            networks = Generator(width, image_size), Discriminator(width, image_size)
        if checkpointing:
            for network in networks:
                checkpoint_blocks(network, "zoo:dcgan")
        optimizers = (make_optimizer(list(m.parameters())) for m in networks)
        return *networks, *optimizers

    def batch(device: torch.device | str = "cpu") -> torch.Tensor:
        shape = (batch_size, NOISE, 1, 1) if mode == "infer" else (batch_size, 3, image_size, image_size)
        return torch.randn(shape, device=device, dtype=dtype)

    facts = {
        "batch_size": batch_size,
        "image_size": [image_size, image_size],
        "precision": precision,
        "mode": mode,
    }
    return Workload(
        build=build,
        batch=batch,
        step=make_pictures if mode == "infer" else adversarial_step,
        mode=mode,
        description=facts if mode == "infer" else {**facts, "optimizer": optimizer},
    )


def make_pictures(generator: nn.Module, noise: torch.Tensor) -> torch.Tensor:
    """Return the generator's pictures."""
    with torch.no_grad():
        pictures: torch.Tensor = generator(noise)
    return pictures


def adversarial_step(
    generator: nn.Module,
    discriminator: nn.Module,
    generator_optimizer: torch.optim.Optimizer,
    discriminator_optimizer: torch.optim.Optimizer,
    real: torch.Tensor,
) -> None:
    """Train the discriminator on real and made pictures, then the generator to deceive it."""
    discriminator.zero_grad()
    seen = discriminator(real).flatten()
    binary_cross_entropy(seen, torch.ones_like(seen)).backward()  # type: ignore[no-untyped-call]
    made = generator(torch.randn(len(real), NOISE, 1, 1, device=real.device, dtype=real.dtype))
    seen = discriminator(made.detach()).flatten()
    binary_cross_entropy(seen, torch.zeros_like(seen)).backward()  # type: ignore[no-untyped-call]
    discriminator_optimizer.step()

    generator.zero_grad()
    seen = discriminator(made).flatten()
    binary_cross_entropy(seen, torch.ones_like(seen)).backward()  # type: ignore[no-untyped-call]
    generator_optimizer.step()
