"""Workspace of fused attention on the CPU.

Source: torch aten/src/ATen/native/cpu/FlashAttentionKernel.cpp, cpu_flash_attention and
cpu_flash_attention_backward: the blocks are chosen by the length of the query.
"""

from __future__ import annotations

from typing import Any

import torch

from memgauge.frameworks.torch.cpu_workspace.layout import made_contiguous
from memgauge.frameworks.torch.cpu_workspace.matmul import onednn_sums_bfloat16

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def _blocks(query: Any, key: Any) -> tuple[int, int]:
    length = query.shape[2]
    block = 256 if length >= 768 else 64 if length >= 192 else 32
    return min(block, length), min(512, key.shape[2])


def flash_attention(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Scores, their maximum and sum, and the output's block, for each thread."""
    query, key = args[0], args[1]
    rows, columns = _blocks(query, key)
    accumulator = 8 if query.itemsize == 8 else 4
    held = threads * (rows * columns + 2 * rows + rows * query.shape[3]) * accumulator
    return int(held + (threads * rows * columns * 2 if query.itemsize == 2 else 0))


def flash_attention_backward(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """Scores and their gradient for each thread, the gradient of the output as the kernel reads it."""
    grad, query, key = args[0], args[1], args[2]
    rows, columns = _blocks(query, key)
    accumulator = 8 if query.itemsize == 8 else 4
    held = threads * 2 * rows * columns * accumulator + rows * accumulator
    if query.itemsize == 2:
        held += threads * 2 * rows * columns * 2
        if query.dtype is not torch.bfloat16 or onednn_sums_bfloat16():
            held += query.shape[3] * max(rows, columns) * 4 + 132
    return int(held) + made_contiguous(grad.transpose(1, 2))


def scaled_dot_product_attention(args: Args, kwargs: Kwargs, result: Any, threads: int) -> int:
    """As an operator of its own (inference mode) it also drops the logarithms of the sums."""
    query = args[0]
    held = flash_attention(args, kwargs, result, threads)
    rows = int(query.numel() // query.shape[-1])
    return held + rows * max(4, int(query.itemsize))


RULES: dict[str, Any] = {
    "_scaled_dot_product_flash_attention_for_cpu.default": flash_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": flash_attention_backward,
    "scaled_dot_product_attention.default": scaled_dot_product_attention,
}
