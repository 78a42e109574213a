"""Llama 3 with 8 and with 70 billion parameters."""

from __future__ import annotations

from torch import nn

from memgauge.errors import UsageError
from memgauge.frameworks.torch.checkpointing import checkpoint_blocks
from memgauge.workload import Workload
from memgauge.zoo.language import next_token_workload
from memgauge.zoo.llama_model import Llama, Shape

LLAMA_8B = Shape(layers=32, width=4096, heads=32, key_value_heads=8, feed_forward=14_336)
LLAMA_70B = Shape(layers=80, width=8192, heads=64, key_value_heads=8, feed_forward=28_672)


def llama_8b(
    batch_size: int = 1,
    sequence_length: int = 2048,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
    layers: int = LLAMA_8B.layers,
    width: int = LLAMA_8B.width,
    heads: int = LLAMA_8B.heads,
    kv_heads: int = LLAMA_8B.key_value_heads,
    feed_forward: int = LLAMA_8B.feed_forward,
    vocabulary: int = LLAMA_8B.vocabulary,
) -> Workload:
    """Llama 3 8B.

    It has 8,030,261,248 parameters.

    Args:
        batch_size, optimizer, precision, checkpointing, mode: As in `TargetOptions`.
        sequence_length: Tokens per sample.
        layers, width, heads: Blocks; features of a token; heads of the queries, which divide the width into
            even sizes.
        kv_heads: Heads of keys and values; they divide the heads.
        feed_forward: Hidden width of the feed-forward network.
        vocabulary: How many tokens there are.

    Source: Grattafiori et al., "The Llama 3 Herd of Models" (2024), table 3;
    https://github.com/meta-llama/llama3/blob/main/llama/model.py.
    """
    shape = Shape(layers, width, heads, kv_heads, feed_forward, vocabulary)
    return _llama(shape, batch_size, sequence_length, optimizer, precision, checkpointing, mode)


def llama_70b(
    batch_size: int = 1,
    sequence_length: int = 2048,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
    layers: int = LLAMA_70B.layers,
    width: int = LLAMA_70B.width,
    heads: int = LLAMA_70B.heads,
    kv_heads: int = LLAMA_70B.key_value_heads,
    feed_forward: int = LLAMA_70B.feed_forward,
    vocabulary: int = LLAMA_70B.vocabulary,
) -> Workload:
    """Llama 3 70B.

    It has 70,553,706,496 parameters.

    Args:
        batch_size, sequence_length, optimizer, precision, checkpointing, mode: As for `llama_8b`.
        layers, width, heads, kv_heads, feed_forward, vocabulary: As for `llama_8b`.

    Source: As for `llama_8b`.
    """
    shape = Shape(layers, width, heads, kv_heads, feed_forward, vocabulary)
    return _llama(shape, batch_size, sequence_length, optimizer, precision, checkpointing, mode)


def _llama(
    shape: Shape,
    batch_size: int,
    sequence_length: int,
    optimizer: str,
    precision: str,
    checkpointing: bool,
    mode: str,
) -> Workload:
    if shape.width % (2 * shape.heads):
        raise UsageError(f"width={shape.width} does not divide into {shape.heads} heads of an even size")
    if shape.heads % shape.key_value_heads:
        raise UsageError(f"heads={shape.heads} do not divide among kv_heads={shape.key_value_heads}")

    def model() -> nn.Module:
        made = Llama(shape, sequence_length)
        if checkpointing:
            checkpoint_blocks(made, "llama")
        return made

    return next_token_workload(
        model,
        vocabulary=shape.vocabulary,
        batch_size=batch_size,
        sequence_length=sequence_length,
        optimizer=optimizer,
        precision=precision,
        mode=mode,
    )
