"""What the language models of the zoo share: tokens in, the next tokens as the target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from memgauge.frameworks.torch.recipe import Recipe
from memgauge.workload import Workload


def next_token_workload(
    model: Callable[[], nn.Module],
    *,
    vocabulary: int,
    batch_size: int,
    sequence_length: int,
    optimizer: str,
    precision: str,
    mode: str,
) -> Workload:
    """Return the workload of a model from tokens (batch B, sequence L) to logits (B, L, vocabulary V)."""

    def batch(_: torch.dtype) -> Any:
        shape = (batch_size, sequence_length)
        return torch.randint(0, vocabulary, shape), torch.randint(0, vocabulary, shape)

    return Recipe(
        model=model,
        batch=batch,
        loss=next_token_loss,
        predict=lambda model, batch: model(batch[0]),
        optimizer=optimizer,
        precision=precision,
        mode=mode,
        description={"batch_size": batch_size, "sequence_length": sequence_length},
    ).workload()


def next_token_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the cross-entropy of the next tokens, computed in float32."""
    tokens, following = batch
    return cross_entropy(model(tokens).flatten(0, 1).float(), following.flatten())
