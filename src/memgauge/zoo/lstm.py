"""A word-level language model with an LSTM."""

from __future__ import annotations

import torch
from torch import nn

from memgauge.frameworks.torch.checkpointing import checkpoint_blocks
from memgauge.workload import Workload
from memgauge.zoo.language import next_token_workload


class Layer(nn.Module):
    """One LSTM layer and the dropout behind it, as a block. x: (batch B, sequence L, width W) -> the same."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(x)
        output: torch.Tensor = self.dropout(states)
        return output


class LayeredLanguageModel(nn.Module):
    """The same network with an operator for each layer, so that layers can be checkpointed."""

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(*(Layer(width, dropout) for _ in range(layers)))
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.output(self.layers(self.dropout(self.tokens(tokens))))
        return logits


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
    """A language model over words with a two-layer LSTM.

    It has 13,987,678 parameters.

    Args:
        batch_size, sequence_length, optimizer, precision, mode: As in `TargetOptions`.
        checkpointing: As in `TargetOptions`; the blocks are the layers, at least two, each an operator of its own
            then. Without it one operator runs all layers, as usual.
        layers, width, dropout: Of the LSTM; the embedding has the same width.
        vocabulary: 33,278 words in WikiText-2.

    Source:
        https://github.com/pytorch/examples/tree/main/word_language_model, its defaults; state is
        not carried over from batch to batch.
    """

    def model() -> nn.Module:
        if not checkpointing:
            return LstmLanguageModel(vocabulary, width, layers, dropout)
        made = LayeredLanguageModel(vocabulary, width, layers, dropout)
        checkpoint_blocks(made, "zoo:lstm")
        return made

    return next_token_workload(
        model,
        vocabulary=vocabulary,
        batch_size=batch_size,
        sequence_length=sequence_length,
        optimizer=optimizer,
        precision=precision,
        mode=mode,
    )
