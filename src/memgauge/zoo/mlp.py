"""A multilayer perceptron of any widths."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from memgauge.errors import UsageError
from memgauge.frameworks.torch.checkpointing import checkpoint_blocks
from memgauge.frameworks.torch.recipe import Recipe
from memgauge.workload import Workload
from memgauge.zoo.activations import activation_of


class MultilayerPerceptron(nn.Module):
    """Linear layers of the given widths with an activation between them, ReLU by default.

    x: (batch B, widths[0]) -> (batch B, widths[-1])
    """

    def __init__(self, widths: list[int], activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        *hidden, last = itertools.pairwise(widths)
        self.hidden = nn.Sequential(*(nn.Sequential(nn.Linear(i, o), activation()) for i, o in hidden))
        self.output = nn.Linear(*last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.output(self.hidden(x))
        return output


def mlp(
    widths: str = "784,512,512,10",
    batch_size: int = 32,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
    activation: str = "relu",
) -> Workload:
    """A multilayer perceptron, trained by cross-entropy.

    Args:
        widths: Input, hidden layers and output (classes), separated by commas; 669,706
            parameters by default.
        batch_size, optimizer, precision, checkpointing, mode: As in `TargetOptions`.
        activation: Between the layers: relu, tanh, sigmoid, gelu, elu, silu or leaky-relu.
    """
    sizes, between = _parse(widths), activation_of(activation)

    def model() -> nn.Module:
        made = MultilayerPerceptron(sizes, between)
        if checkpointing:
            checkpoint_blocks(made, f"zoo:mlp with widths {widths}")
        return made

    return Recipe(
        model=model,
        batch=lambda dtype: (
            torch.randn(batch_size, sizes[0], dtype=dtype),
            torch.randint(0, sizes[-1], (batch_size,)),
        ),
        loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        predict=lambda model, batch: model(batch[0]),
        optimizer=optimizer,
        precision=precision,
        mode=mode,
        description={"widths": sizes, "batch_size": batch_size},
    ).workload()


def _parse(widths: str) -> list[int]:
    try:
        sizes = [int(part) for part in widths.split(",")]
    except ValueError:
        sizes = []
    if len(sizes) < 2 or min(sizes) < 1:
        raise UsageError(f"widths={widths!r}: write input, hidden and output widths, for example 784,512,10")
    return sizes
