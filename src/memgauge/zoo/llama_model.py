"""The layers of Llama 3: grouped queries, RMS norms, SwiGLU, rotary positions.

Source: https://github.com/meta-llama/llama3/blob/main/llama/model.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of one Llama."""

    layers: int
    width: int
    heads: int
    key_value_heads: int
    feed_forward: int
    vocabulary: int = 128_256
    rope_base: float = 500_000.0


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Turn pairs of features by angles that grow with the position.

    x: (batch B, heads, sequence L, size D); cosine, sine: (L, D / 2)
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


class Attention(nn.Module):
    """Causal self-attention with fewer heads for keys and values than for queries."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.size = shape.width // shape.heads
        self.query = nn.Linear(shape.width, shape.heads * self.size, bias=False)
        self.key = nn.Linear(shape.width, shape.key_value_heads * self.size, bias=False)
        self.value = nn.Linear(shape.width, shape.key_value_heads * self.size, bias=False)
        self.output = nn.Linear(shape.heads * self.size, shape.width, bias=False)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        # Each (batch B, heads, sequence L, size D)
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        output: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output


class FeedForward(nn.Module):
    """SwiGLU. x: (batch B, sequence L, width W) -> the same."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down(silu(self.gate(x)) * self.up(x))
        return output


class Block(nn.Module):
    """Attention and a feed-forward network, each behind an RMS norm and a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(shape.width, eps=1e-5)
        self.attention = Attention(shape)
        self.norm2 = nn.RMSNorm(shape.width, eps=1e-5)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), cosine, sine)
        output: torch.Tensor = x + self.feed_forward(self.norm2(x))
        return output


class Llama(nn.Module):
    """tokens: (batch B, sequence L) -> logits: (B, L, vocabulary V)."""

    def __init__(self, shape: Shape, sequence_length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.output = nn.Linear(shape.width, shape.vocabulary, bias=False)
        size = shape.width // shape.heads
        frequencies = shape.rope_base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        angles = torch.outer(torch.arange(sequence_length, dtype=torch.float32), frequencies)
        self.register_buffer("cosine", angles.cos().to(torch.get_default_dtype()), persistent=False)
        self.register_buffer("sine", angles.sin().to(torch.get_default_dtype()), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        output: torch.Tensor = self.output(self.norm(x))
        return output
