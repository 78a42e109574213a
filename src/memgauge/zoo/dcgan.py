"""DCGAN: two networks, two optimizers, one step."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy

from memgauge.arguments import MODES, check_choice
from memgauge.errors import UnsupportedError
from memgauge.frameworks.torch.recipe import DTYPES, default_dtype, optimizer_of
from memgauge.workload import Workload

NOISE = 100


class Generator(nn.Sequential):
    """noise: (batch B, 100, 1, 1) -> pictures: (B, 3, 64, 64)."""

    def __init__(self, width: int = 64) -> None:
        channels = [NOISE, 8 * width, 4 * width, 2 * width, width]
        layers: list[nn.Module] = []
        for i, (inputs, outputs) in enumerate(itertools.pairwise(channels)):
            stride, padding = (1, 0) if i == 0 else (2, 1)
            layers.append(nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False))
            layers += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        super().__init__(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())


class Discriminator(nn.Sequential):
    """pictures: (batch B, 3, 64, 64) -> how real they look: (B, 1, 1, 1)."""

    def __init__(self, width: int = 64) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
        for factor in (1, 2, 4):
            layers.append(nn.Conv2d(factor * width, 2 * factor * width, 4, 2, 1, bias=False))
            layers += [nn.BatchNorm2d(2 * factor * width), nn.LeakyReLU(0.2, inplace=True)]
        super().__init__(*layers, nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False), nn.Sigmoid())


def dcgan(
    batch_size: int = 128,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
    width: int = 64,
) -> Workload:
    """DCGAN on 64 x 64 pictures, 3,576,704 parameters in the generator, 2,765,568 in the discriminator.

    Args:
        batch_size, optimizer: As in `TargetOptions`; both networks have their own optimizer.
        precision: As in `TargetOptions`, but no autocast: torch refuses this loss under it.
        checkpointing: Refused: both networks are rows of layers without blocks.
        mode: `train` trains both; `infer` makes pictures with the generator alone.
        width: Channels of the thinnest hidden layer.

    Source:
        Radford et al., "Unsupervised Representation Learning with Deep Convolutional Generative
        Adversarial Networks" (2015); https://github.com/pytorch/examples/tree/main/dcgan.
    """
    check_choice("mode", mode, MODES)
    check_choice("precision", precision, tuple(DTYPES))
    if checkpointing:
        raise UnsupportedError("zoo:dcgan is two rows of layers: there is nothing to checkpoint")
    make_optimizer, dtype = optimizer_of(optimizer), DTYPES[precision]

    def build(device: torch.device | str = "cpu") -> Any:
        with default_dtype(dtype), torch.device(device):
            if mode == "infer":
                return Generator(width).eval()
            generator, discriminator = Generator(width), Discriminator(width)
        optimizers = (make_optimizer(list(m.parameters())) for m in (generator, discriminator))
        return generator, discriminator, *optimizers

    def batch(device: torch.device | str = "cpu") -> torch.Tensor:
        shape = (batch_size, NOISE, 1, 1) if mode == "infer" else (batch_size, 3, 64, 64)
        return torch.randn(shape, device=device, dtype=dtype)

    facts = {"batch_size": batch_size, "precision": precision, "mode": mode}
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
