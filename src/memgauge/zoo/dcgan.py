"""DCGAN: two networks, two optimizers, one step."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy

from memgauge.frameworks.torch.recipe import optimizer_of
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


def dcgan(batch_size: int = 128, optimizer: str = "adam", width: int = 64) -> Workload:
    """DCGAN on 64 x 64 pictures, 3,576,704 parameters in the generator, 2,765,568 in the discriminator.

    Args:
        batch_size, optimizer: As in `TargetOptions`; both networks have their own optimizer.
        width: Channels of the thinnest hidden layer.

    Source:
        Radford et al., "Unsupervised Representation Learning with Deep Convolutional Generative
        Adversarial Networks" (2015); https://github.com/pytorch/examples/tree/main/dcgan.
    """
    make_optimizer = optimizer_of(optimizer)

    def build(device: torch.device | str = "cpu") -> tuple[Any, ...]:
        with torch.device(device):
            generator, discriminator = Generator(width), Discriminator(width)
        optimizers = (make_optimizer(list(m.parameters())) for m in (generator, discriminator))
        return generator, discriminator, *optimizers

    def batch(device: torch.device | str = "cpu") -> torch.Tensor:
        return torch.randn(batch_size, 3, 64, 64, device=device)

    return Workload(
        build=build,
        batch=batch,
        step=adversarial_step,
        description={"batch_size": batch_size, "optimizer": optimizer},
    )


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
    made = generator(torch.randn(len(real), NOISE, 1, 1, device=real.device))
    seen = discriminator(made.detach()).flatten()
    binary_cross_entropy(seen, torch.zeros_like(seen)).backward()  # type: ignore[no-untyped-call]
    discriminator_optimizer.step()

    generator.zero_grad()
    seen = discriminator(made).flatten()
    binary_cross_entropy(seen, torch.ones_like(seen)).backward()  # type: ignore[no-untyped-call]
    generator_optimizer.step()
