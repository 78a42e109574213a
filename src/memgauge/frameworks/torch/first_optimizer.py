"""What torch loads at the first optimizer of a process: part of the environment of a training, not of its network."""

from __future__ import annotations

import torch


def load() -> None:
    """Make an optimizer for one parameter.

    `torch.optim.Optimizer` imports torch._dynamo when the first one is made: 834 modules, 73 MiB resident
    (torch 2.13.0+cpu, Linux, 2026-11-21), whatever is trained.
    """
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
