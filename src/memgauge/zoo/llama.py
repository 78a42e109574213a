"""Llama 3 with 8 and with 70 billion parameters."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

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
) -> Workload:
    """Llama 3 8B, 8,030,261,248 parameters.

    Args:
        batch_size, optimizer, precision, checkpointing, mode: As in `TargetOptions`.
        sequence_length: Tokens per sample.
        layers: Blocks; 32 in the 8B.

    Source: Grattafiori et al., "The Llama 3 Herd of Models" (2024), table 3;
    https://github.com/meta-llama/llama3/blob/main/llama/model.py.
    """
    shape = replace(LLAMA_8B, layers=layers)
    return _llama(shape, batch_size, sequence_length, optimizer, precision, checkpointing, mode)


def llama_70b(
    batch_size: int = 1,
    sequence_length: int = 2048,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
    layers: int = LLAMA_70B.layers,
) -> Workload:
    """Llama 3 70B, 70,553,706,496 parameters. Arguments and source: as for `llama_8b`, 80 blocks."""
    shape = replace(LLAMA_70B, layers=layers)
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
