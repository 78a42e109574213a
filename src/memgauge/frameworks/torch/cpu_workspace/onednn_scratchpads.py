"""Scratchpads of oneDNN's float32 convolutions, and how threads share the work."""

from __future__ import annotations

from memgauge.frameworks.torch.cpu_workspace.onednn import (
    BARRIER,
    Problem,
    booked,
    ceil_div,
    shared_sum,
    up,
)
from memgauge.frameworks.torch.cpu_workspace.onednn_fits import (
    is_first,
)


def padded_bias(p: Problem) -> int:
    """Source: oneDNN src/cpu/x64/jit_avx512_common_conv_kernel.cpp, init_scratchpad."""
    if p.bias and p.groups == 1 and p.oc % p.vector and not p.channels_last:
        return booked(up(p.oc, p.vector) * 4)
    return 0


def unit_stride_space(p: Problem, blocks: int) -> int:
    """A strided pointwise convolution first gathers its source, one image for each thread.

    Source: oneDNN src/cpu/x64/jit_uni_1x1_conv_utils.hpp, rtus_prepare_space_info.
    """
    if not p.is_strided:
        return 0
    image = p.output[1] * p.output[2]
    return booked(p.threads * blocks * image * p.vector * p.itemsize)


def reduction(p: Problem) -> int:
    """Each thread after the first that shares the batch has its own sum of weights and bias.

    Source: oneDNN src/cpu/x64/jit_avx512_common_conv_kernel.cpp, init_scratchpad of bwd_weights.
    """
    images, used = threads_over_batch(p)
    oc = up(p.oc // p.groups, 16)
    scratch = shared_sum(used, 16, p.groups * oc // 16, p.batch) if p.bias else 0
    if images > 1:
        ic = p.ic // p.groups if is_first(p) else up(p.ic // p.groups, 16)
        elements = p.groups * (oc * ic * p.kernel_size + oc)
        scratch += booked(elements * (images - 1) * 4) + booked(BARRIER, BARRIER)
    return scratch


def threads_over_batch(p: Problem) -> tuple[int, int]:
    """How many threads the batch is cut for, and how many are used in all.

    Source: oneDNN src/cpu/x64/jit_avx512_common_conv_kernel.cpp, balance.
    """
    if p.threads < p.groups:
        return 1, p.threads
    threads = p.threads // p.groups
    rows = not p.dilation[1] and p.dims == 2 and p.output[1] > 9 and not p.channels_last
    in_rows, out_rows = (p.source[1], p.output[1]) if rows else (1, 1)
    in_rest = (1 if rows else p.source[1]) * p.source[2] * p.source[0]
    out_rest = (1 if rows else p.output[1]) * p.output[2] * p.output[0]
    nb_oc = ceil_div(p.oc // p.groups, 16)
    ic_block = p.ic if is_first(p) else 16
    nb_ic = ceil_div(p.ic // p.groups, ic_block)

    def memory(mb: int, oc: int, ic: int) -> int:
        source = ceil_div(p.batch * in_rows, mb) * ceil_div(nb_ic, ic) * ic_block * in_rest
        for stride in p.stride:
            source //= stride
        output = ceil_div(p.batch * out_rows, mb) * ceil_div(nb_oc, oc) * 16 * out_rest
        weights = 8 * ceil_div(nb_oc, oc) * ceil_div(nb_ic, ic) * p.kernel_size * ic_block * 16
        return source + output + weights

    def compute(mb: int, oc: int, ic: int) -> int:
        return ceil_div(p.batch * out_rows, mb) * ceil_div(nb_oc, oc) * ceil_div(nb_ic, ic)

    cuts = p.batch * p.output[0] * max(1, out_rows // 9)
    ways = [
        (mb, oc, min(threads // mb // oc, nb_ic))
        for mb in range(1, min(threads, cuts) + 1)
        for oc in range(1, min(threads // mb, nb_oc) + 1)
    ]
    best, lowest = (1, 1, 1), memory(1, 1, 1)
    for way in ways:
        if memory(*way) <= lowest:
            best, lowest = way, memory(*way)
    quickest = compute(*best)
    for way in ways:
        work = compute(*way)
        if (work <= quickest and memory(*way) < 1.1 * lowest) or 4 * work <= 3 * quickest:
            best, quickest = way, work
    images = best[0]
    if p.threads // 2 < images < p.threads:
        images = min(cuts, p.threads)
    return images, images * p.groups * best[1] * best[2]


def narrow_reduction(p: Problem) -> int:
    """Source: oneDNN src/cpu/x64/jit_avx2_convolution.hpp, init_balancers of bwd_weights."""
    inputs, outputs = p.ic // p.groups, p.oc // p.groups
    ic_block = 3 if inputs == 3 else 8
    jobs = p.groups * ceil_div(outputs, 8)
    weights = shared_sum(p.threads, p.kernel_size * ic_block * 8, jobs * ceil_div(inputs, ic_block), p.batch)
    bias = shared_sum(p.threads, 8, jobs, p.batch) if p.bias else 0
    padded = booked(p.groups * up(outputs, 8) * 4) if p.bias and outputs % 8 else 0
    return weights + bias + padded


def pointwise_reduction(p: Problem) -> int:
    """Source: oneDNN src/cpu/x64/jit_avx512_common_1x1_conv_kernel.cpp, init_scratchpad."""
    images, used = pointwise_threads(p)
    scratch = shared_sum(used, p.vector, ceil_div(p.oc, p.vector), p.batch) if p.bias else 0
    if images > 1:
        scratch += booked(p.weight_bytes(p.vector, p.vector) * (images - 1)) + booked(BARRIER, BARRIER)
    return scratch + unit_stride_space(p, pointwise_blocks(p))


def pointwise_blocks(p: Problem) -> int:
    """Blocks of input channels that a strided pointwise convolution gathers at a time."""
    blocks = ceil_div(p.ic, p.vector)
    return best_divider(blocks, 5, blocks, largest=False)


def pointwise_threads(p: Problem) -> tuple[int, int]:
    """How many threads the batch is cut for, and how many are used in all.

    Source: oneDNN src/cpu/x64/jit_avx512_common_1x1_conv_kernel.cpp, init_conf and balance.
    """
    nb_ic, nb_oc = ceil_div(p.ic, p.vector), ceil_div(p.oc, p.vector)
    area = p.output[0] * p.output[1] * p.output[2]
    step = best_divider(area, 7, 16)
    if area % step:
        step = best_divider(p.output[2], 4, p.output[2], largest=False)
    if step > 256:
        step = 1
    nb_area = ceil_div(area, step)

    def memory(mb: int, oc: int, ic: int) -> int:
        taken = ceil_div(p.batch * nb_area, mb) * step * p.vector
        blocks = ceil_div(nb_ic, ic), ceil_div(nb_oc, oc)
        return taken * sum(blocks) + 12 * blocks[0] * blocks[1] * p.vector * p.vector

    best, lowest = (1, 1, 1), memory(1, 1, 1)
    for mb in range(1, min(p.threads, p.batch * nb_area) + 1):
        for oc in range(1, min(p.threads // mb, nb_oc) + 1):
            way = (mb, oc, min(p.threads // mb // oc, nb_ic))
            if memory(*way) <= lowest:
                best, lowest = way, memory(*way)
    images = best[0]
    if p.threads // 2 < images < p.threads:
        images = min(p.batch, p.threads)
    return images, images * best[1] * best[2]


def best_divider(value: int, low: int, high: int, largest: bool = True) -> int:
    """Source: oneDNN src/cpu/x64/jit_avx512_common_1x1_conv_kernel.cpp and jit_utils, best_divider."""
    high = max(1, min(high, value))
    best, loss = high, 2.0
    for divider in range(high, max(1, min(low, high)) - 1, -1):
        current = 1 - value / up(value, divider)
        if current < loss or (not largest and current == loss):
            best, loss = divider, current
    return best


def depthwise_reduction(p: Problem) -> int:
    """Source: oneDNN src/cpu/x64/jit_uni_dw_conv_kernel_utils.cpp, balance and init_scratchpad."""
    channels = up(p.groups, p.vector)
    if p.channels_last:
        images = p.threads
    else:
        over_groups = min(channels // p.vector, p.threads)
        images = min(max(1, p.threads // over_groups), p.batch)
    if images < 2:
        return 0
    scratch = booked(channels * p.kernel_size * (images - 1) * 4)
    return scratch + (booked(channels * (images - 1) * 4) if p.bias else 0)
