"""Activation checkpointing for models that bring none of their own.

The blocks of a network are the composite children of its sequences: the
bottlenecks in a ResNet's stages, the encoder blocks of a vision transformer.
Each gets a forward that runs under `torch.utils.checkpoint`, so that between
forward and backward only its input stays.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from torch import nn
from torch.utils.checkpoint import checkpoint

from memgauge.errors import UnsupportedError


def checkpoint_blocks(model: nn.Module, name: str) -> int:
    """Checkpoint every block of `model` in place and return how many there are.

    Raises:
        UnsupportedError: The model has no blocks: nothing but single layers in a row.
    """
    blocks = list(_blocks_in_sequences(model))
    if not blocks:  # Inception has its blocks one by one
        blocks = [c for c in model.children() if _is_composite(c) and type(c) is not nn.Sequential]
    if len(blocks) < 2:
        raise UnsupportedError(
            f"{name}: there are no blocks to checkpoint, only layers in a row; leave out --checkpointing"
        )
    for block in blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return len(blocks)


def _blocks_in_sequences(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if _holds_blocks(child):
            for item in child.children():
                if _holds_blocks(item):
                    yield from _blocks_in_sequences(nn.ModuleList([item]))
                elif _is_composite(item):
                    yield item
        elif type(child) is not nn.Sequential:
            yield from _blocks_in_sequences(child)


def _holds_blocks(module: nn.Module) -> bool:
    return type(module) in (nn.Sequential, nn.ModuleList) and any(map(_is_composite, module.children()))


def _is_composite(module: nn.Module) -> bool:
    return next(module.children(), None) is not None
