"""A word-level language model with an LSTM."""

from __future__ import annotations

import torch
from torch import nn

from memgauge.errors import UnsupportedError
from memgauge.workload import Workload
from memgauge.zoo.language import next_token_workload


class LstmLanguageModel(nn.Module):
    """tokens: (batch B, sequence L) -> logits: (B, L, vocabulary V)."""

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.tokens = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, dropout=dropout if layers > 1 else 0.0, batch_first=True)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.dropout(self.tokens(tokens)))
        logits: torch.Tensor = self.output(self.dropout(states))
        return logits


def lstm(
    batch_size: int = 20,
    sequence_length: int = 35,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
    layers: int = 2,
    width: int = 200,
    vocabulary: int = 33_278,
    dropout: float = 0.2,
) -> Workload:
    """A two-layer LSTM over words, 13,987,678 parameters.

    Args:
        batch_size, sequence_length, optimizer, precision, mode: As in `TargetOptions`.
        checkpointing: Not supported; the layers run inside one operator.
        layers, width, dropout: Of the LSTM; the embedding has the same width.
        vocabulary: 33,278 words in WikiText-2.

    Source:
        https://github.com/pytorch/examples/tree/main/word_language_model, its defaults; state is
        not carried over from batch to batch.
    """
    if checkpointing:
        raise UnsupportedError("zoo:lstm runs its layers inside one operator: there is nothing to checkpoint")
    return next_token_workload(
        lambda: LstmLanguageModel(vocabulary, width, layers, dropout),
        vocabulary=vocabulary,
        batch_size=batch_size,
        sequence_length=sequence_length,
        optimizer=optimizer,
        precision=precision,
        mode=mode,
    )
