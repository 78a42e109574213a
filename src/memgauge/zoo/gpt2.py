"""GPT-2."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from memgauge.errors import UsageError
from memgauge.frameworks.torch.checkpointing import checkpoint_blocks
from memgauge.workload import Workload
from memgauge.zoo.language import next_token_workload

VOCABULARY = 50_257
POSITIONS = 1024


class Attention(nn.Module):
    """Causal self-attention. x: (batch B, sequence L, width W) -> the same."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, length, w = x.shape
        # Each (B, heads, L, W / heads)
        q, k, v = (
            part.view(b, length, self.heads, w // self.heads).transpose(1, 2)
            for part in self.query_key_value(x).split(w, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        output: torch.Tensor = self.projection(mixed.transpose(1, 2).reshape(b, length, w))
        return output


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a layer norm and a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.activation = nn.GELU(approximate="tanh")
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        output: torch.Tensor = x + self.dropout(self.narrow(self.activation(self.widen(self.norm2(x)))))
        return output


class GPT2(nn.Module):
    """tokens: (batch B, sequence L) -> logits: (B, L, vocabulary V), by the weights of the embedding."""

    def __init__(self, layers: int, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(POSITIONS, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, VOCABULARY, bias=False)
        self.output.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        place = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(place))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.output(self.norm(x))
        return logits


def gpt2(
    batch_size: int = 8,
    sequence_length: int = POSITIONS,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    dropout: float = 0.0,
) -> Workload:
    """GPT-2 small; other sizes by layers, width and heads.

    It has 124,439,808 parameters.

    Args:
        batch_size, optimizer, precision, checkpointing, mode: As in `TargetOptions`.
        sequence_length: Tokens per sample, at most 1,024.
        layers, width, heads: 24, 1024, 16 is GPT-2 medium; 36, 1280, 20 large; 48, 1600, 25 XL.
        dropout: 0 as usual today; 0.1 in the paper, which also rules out fused attention on a CPU.

    Source:
        Radford et al., "Language Models are Unsupervised Multitask Learners" (2019);
        https://github.com/openai/gpt-2/blob/master/src/model.py.
    """
    if sequence_length > POSITIONS:
        raise UsageError(f"sequence_length={sequence_length}: GPT-2 has {POSITIONS} positions")
    if heads < 1 or width % heads:
        raise UsageError(f"width={width} does not divide into {heads} heads")

    def model() -> nn.Module:
        made = GPT2(layers, width, heads, dropout)
        if checkpointing:
            checkpoint_blocks(made, "zoo:gpt2")
        return made

    return next_token_workload(
        model,
        vocabulary=VOCABULARY,
        batch_size=batch_size,
        sequence_length=sequence_length,
        optimizer=optimizer,
        precision=precision,
        mode=mode,
    )
