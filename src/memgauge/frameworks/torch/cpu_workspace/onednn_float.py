"""Which convolution oneDNN picks for float32 on x86-64, and what it takes.

Source of the order of implementations: oneDNN src/cpu/cpu_convolution_list.cpp.
"""

from __future__ import annotations

from memgauge.frameworks.torch.cpu_workspace.onednn import (
    BARRIER,
    PAGE,
    Plan,
    Problem,
    batch_booked,
    booked,
    ceil_div,
    shared_sum,
    up,
)
from memgauge.frameworks.torch.cpu_workspace.onednn_gemm import (
    gemm_backward_data,
    gemm_backward_weights,
    gemm_forward,
)


def forward(p: Problem) -> Plan:
    """Plan of the forward pass."""
    if is_inner_product(p):
        return _inner_product(p)
    if p.channels_last:
        return _brgemm(p)
    if p.is_depthwise and p.dims == 2 and _depthwise_fits(p):
        return _depthwise(p, padded_bias=p.bias)
    if is_pointwise(p):
        scratch = _padded_bias(p) + unit_stride_space(p, ceil_div(p.ic, p.vector))
        return _blocked(p, p.vector, scratch)
    if not _kernel_outside_source(p) and p.padding[2] <= min(p.output[2], 28):
        if p.ic < 16 and p.groups == 1 and (p.vector == 16 or p.ic in (1, 2, 3)):
            return _first_layer(p, _padded_bias(p))
        block = _channel_block(p)
        if block:
            return _blocked(p, block, _padded_bias(p))
    return gemm_forward(p)


def backward_data(p: Problem) -> Plan:
    """Plan of the gradient of the source."""
    if is_inner_product(p):
        return _inner_product(p)
    if p.channels_last:
        strided = p.is_strided and _brgemm_strided_fits(p)
        return _brgemm_strided(p) if strided else _brgemm(p, nested=not p.is_strided)
    if p.is_strided and _brgemm_strided_fits(p):
        return _brgemm_strided(p)
    if p.is_depthwise and p.dims == 2 and not p.is_dilated:
        return _depthwise(p)
    if is_pointwise(p) and not p.is_strided:
        return _blocked(p, p.vector, 0)
    if not _kernel_outside_source(p) and not (p.is_dilated and p.is_strided):
        block = _channel_block(p)
        if block:
            return _blocked(p, block, 0)
    return gemm_backward_data(p)


def backward_weights(p: Problem) -> Plan:
    """Plan of the gradients of weights and bias."""
    if is_inner_product(p):
        return _inner_product(p)
    if p.is_depthwise and p.dims == 2 and _depthwise_weights_fit(p):
        return _depthwise(p, scratch=_depthwise_reduction(p))
    if is_pointwise(p):
        return _blocked(p, p.vector, _padded_bias(p) + _pointwise_reduction(p))
    if p.vector == 16 and _wide_weights_fit(p):
        scratch = _reduction(p) + _padded_bias(p)
        return _first_layer(p, scratch) if _is_first(p) else _blocked(p, 16, scratch)
    if _narrow_weights_fit(p):
        scratch = _narrow_reduction(p)
        return _blocked(p, 8, scratch) if p.ic // p.groups != 3 else _first_layer(p, scratch, block=8)
    return gemm_backward_weights(p)


# -- layouts -----------------------------------------------------------------------------------------


def _blocked(p: Problem, block: int, scratch: int) -> Plan:
    """Activations in blocks of channels, weights in squares."""
    if p.channels_last:
        return Plan(None, p.weight_bytes(block, block), None, scratch)
    return Plan(p.source_bytes(block), p.weight_bytes(block, block), p.output_bytes(block), scratch)


def _first_layer(p: Problem, scratch: int, block: int = 0) -> Plan:
    """Few input channels: the source stays as it is."""
    block = block or p.vector
    output = None if p.channels_last else p.output_bytes(block)
    return Plan(None, p.weight_bytes(block), output, scratch)


def _depthwise(p: Problem, padded_bias: bool = False, scratch: int = 0) -> Plan:
    """Groups in blocks.

    Source: oneDNN src/cpu/x64/jit_uni_dw_conv_kernel_utils.cpp, init_conf and init_scratchpad.
    """
    channels = up(p.groups, p.vector)
    if padded_bias and channels != p.oc:
        scratch += booked(channels * 4)
    weights = channels * p.kernel_size * p.itemsize
    if p.channels_last:
        return Plan(None, weights, None, scratch)
    return Plan(p.source_bytes(p.vector), weights, p.output_bytes(p.vector), scratch)


def _nxc(p: Problem, weights: int | None, scratch: int) -> Plan:
    """Channels last inside; with one channel or one pixel that is the plain layout."""
    if p.channels_last:
        return Plan(None, weights, None, scratch)
    source = p.source_bytes() if p.ic > 1 and p.source != (1, 1, 1) else None
    output = p.output_bytes() if p.oc > 1 and p.output != (1, 1, 1) else None
    return Plan(source, weights, output, scratch, nxc=True)


def _inner_product(p: Problem) -> Plan:
    return _nxc(p, p.weight_bytes(), 0)


# -- who takes what ----------------------------------------------------------------------------------


def is_inner_product(p: Problem) -> bool:
    """Whether the filter covers the whole source, and is large.

    Source: oneDNN src/cpu/x64/ip_convolution.hpp, check_conv_ip.
    """
    return (
        p.vector == 16
        and p.groups == 1
        and p.batch > 1
        and p.kernel_size > 27
        and p.output == (1, 1, 1)
        and not (p.is_dilated or p.is_strided or any(p.padding) or any(p.end_padding))
    )


def is_pointwise(p: Problem) -> bool:
    """Source: oneDNN src/cpu/x64/jit_avx512_common_1x1_conv_kernel.cpp, init_conf, and rtus_prepare."""
    if p.kernel != (1, 1, 1) or p.groups != 1 or any(p.padding) or any(e > 0 for e in p.end_padding):
        return False
    even = all(o * s == i for o, s, i in zip(p.output, p.stride, p.source, strict=True))
    return even and (not p.is_strided or p.dims == 2)


def _kernel_outside_source(p: Problem) -> bool:
    """Source: oneDNN src/cpu/x64/jit_avx512_common_conv_kernel.cpp, kernel_outside_src."""
    extents = [(k - 1) * (d + 1) + 1 for k, d in zip(p.kernel, p.dilation, strict=True)]
    return any(
        e <= begin or e <= end for e, begin, end in zip(extents, p.padding, p.end_padding, strict=True)
    )


def _channel_block(p: Problem) -> int:
    """Source: oneDNN src/cpu/x64/jit_avx512_common_conv_kernel.cpp, init_conf, ok_to_try_lower_zmm."""
    if p.groups == 1:
        return p.vector
    inputs, outputs = p.ic // p.groups, p.oc // p.groups
    blocks = (16, 8, 4) if p.vector == 16 else (8,)
    return next((b for b in blocks if inputs % b == 0 and outputs % b == 0), 0)


def _depthwise_fits(p: Problem) -> bool:
    """Source: oneDNN src/cpu/x64/jit_uni_dw_conv_kernel_utils.cpp, init_conf of the forward kernel."""
    if _kernel_outside_source(p):
        return False
    width = min(6 if p.vector == 16 else 4, p.output[2])
    tail = p.output[2] % width
    extent = (p.kernel[2] - 1) * (p.dilation[2] + 1) + 1
    right = (p.output[2] - tail - 1) * p.stride[2] + extent - p.source[2] - p.padding[2]
    return p.padding[2] <= width and right <= width


def _depthwise_weights_fit(p: Problem) -> bool:
    """Source: oneDNN src/cpu/x64/jit_uni_dw_conv_kernel_utils.cpp, init_conf of bwd_weights."""
    if p.is_dilated or p.kernel[2] > 3 or p.stride[2] > p.kernel[2]:
        return False
    _, kh, kw = p.kernel
    top, bottom = p.padding[1], max(0, p.end_padding[1])
    left, right = p.padding[2], max(0, p.end_padding[2])
    return (
        max(top, bottom) <= kh // 2
        and max(left, right) <= kw // 2
        and p.source[1] >= kh + (-top) % p.stride[1]
        and all(pad <= 1 or pad % p.stride[1] == 0 for pad in (top, bottom))
    )


def _is_first(p: Problem) -> bool:
    return p.groups == 1 and p.ic < 16


def _wide_weights_fit(p: Problem) -> bool:
    """Source: oneDNN src/cpu/x64/jit_avx512_common_conv_kernel.cpp, init_conf of bwd_weights."""
    if any(d and s != 1 for d, s in zip(p.dilation[:2], p.stride[:2], strict=True)):
        return False
    extents = [(k - 1) * (d + 1) + 1 for k, d in zip(p.kernel, p.dilation, strict=True)]
    if (p.dilation[1] and extents[1] > p.source[1]) or (p.dims == 3 and p.dilation[0]):
        return False
    if not p.channels_last:
        if _is_first(p) and p.ic > 3:
            return False
        if p.groups > 1 and ((p.oc // p.groups) % 16 or (p.ic // p.groups) % 16):
            return False
    depth, height, width = zip(p.padding, (max(0, e) for e in p.end_padding), extents, strict=True)
    return (
        max(width[:2]) < width[2]
        and max(width[:2]) <= 28
        and max(height[:2]) <= extents[1] // 2
        and max(depth[:2]) < depth[2]
        and (depth[0] == 0 or p.kernel[0] < p.source[0] + depth[0])
        and (p.kernel[2] <= 14 or _is_transposed_filter(p))
    )


def _is_transposed_filter(p: Problem) -> bool:
    return (
        not p.channels_last
        and p.dims == 2
        and 14 <= p.kernel[2] < 20
        and p.output[2] == 1
        and p.kernel[2] == p.source[2]
        and not (p.is_strided or p.is_dilated or any(p.padding) or any(e > 0 for e in p.end_padding))
    )


def _narrow_weights_fit(p: Problem) -> bool:
    """Source: oneDNN src/cpu/x64/jit_avx2_conv_kernel_f32.cpp, init_conf of bwd_weights."""
    inputs, outputs = p.ic // p.groups, p.oc // p.groups
    if p.is_dilated or (p.groups > 1 and (inputs % 8 or outputs % 8)):
        return False
    ends = [max(0, e) for e in p.end_padding]
    return (
        p.padding[0] == ends[0] == 0
        and all(max(p.padding[i], ends[i]) < p.kernel[i] for i in (1, 2))
        and p.kernel[2] < 14
        and p.kernel[1] <= p.source[1]
        and p.kernel[0] <= p.source[0]
    )


# -- brgemm ------------------------------------------------------------------------------------------


def _brgemm(p: Problem, nested: bool = False) -> Plan:
    """Channels last, unit stride or forward: the activations stay as they are.

    Source: oneDNN src/cpu/x64/jit_brgemm_conv_utils.cpp, init_scratchpad.
    """
    if p.is_depthwise:
        return _depthwise(p)
    block = _channel_block(p)
    if p.with_groups and 0 < block and max(p.ic, p.oc) // p.groups <= p.vector:
        return Plan(None, p.weight_bytes(block, block), None)  # groups too small for matrix products
    scratch = batch_booked(p.kernel_size, p.threads)
    if nested:
        scratch = booked(scratch)
    return Plan(None, p.weight_bytes(p.vector), None, scratch)


def _brgemm_strided_fits(p: Problem) -> bool:
    """Source: oneDNN src/cpu/x64/jit_brgemm_conv_bwd_utils.cpp, init_jcp."""
    return not (p.is_dilated or (p.with_groups and p.oc // p.groups <= p.vector))


def _brgemm_strided(p: Problem) -> Plan:
    """Channels last inside, whatever the user has.

    Source: oneDNN src/cpu/x64/jit_brgemm_conv_bwd_utils.cpp, init_conf and init_scratchpad.
    """
    if p.is_depthwise:
        return _depthwise(p)
    extents = [(k - 1) * (d + 1) for k, d in zip(p.kernel, p.dilation, strict=True)]
    padded = 1
    for i in range(3):
        before = max(0, extents[i] - p.padding[i]) // p.stride[i]
        after = max(0, extents[i] - p.end_padding[i]) // p.stride[i]
        padded *= p.output[i] + before + after
    buffer = up(padded * p.groups * p.oc // p.groups, PAGE)
    scratch = batch_booked(p.kernel_size, p.threads) + booked(p.threads * buffer * p.itemsize, PAGE)
    scratch += booked(p.threads * PAGE, PAGE)
    if p.source[2] % p.stride[2]:
        row = up(p.source[2] * p.stride[2] * p.ic, PAGE)
        scratch += booked(p.threads * row * p.itemsize, PAGE)
    return _nxc(p, p.weight_bytes(1, _strided_block(p)), scratch)


def _strided_block(p: Problem) -> int:
    """Input channels in a block of weights; of the blocks that are equal in padding the size does not matter.

    Source: oneDNN src/cpu/x64/jit_brgemm_conv_bwd_utils.cpp, fast_check_ic_block.
    """
    channels = p.ic // p.groups
    if channels <= p.vector or up(channels, p.vector) % (4 * p.vector) == 0:
        return p.vector
    if channels >= 0.95 * up(channels, 3 * p.vector):
        return 3 * p.vector
    return 2 * p.vector


# -- scratchpads -------------------------------------------------------------------------------------


def _padded_bias(p: Problem) -> int:
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


def _reduction(p: Problem) -> int:
    """Each thread after the first that shares the batch has its own sum of weights and bias.

    Source: oneDNN src/cpu/x64/jit_avx512_common_conv_kernel.cpp, init_scratchpad of bwd_weights.
    """
    images, used = _threads_over_batch(p)
    oc = up(p.oc // p.groups, 16)
    scratch = shared_sum(used, 16, p.groups * oc // 16, p.batch) if p.bias else 0
    if images > 1:
        ic = p.ic // p.groups if _is_first(p) else up(p.ic // p.groups, 16)
        elements = p.groups * (oc * ic * p.kernel_size + oc)
        scratch += booked(elements * (images - 1) * 4) + booked(BARRIER, BARRIER)
    return scratch


def _threads_over_batch(p: Problem) -> tuple[int, int]:
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
    ic_block = p.ic if _is_first(p) else 16
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


def _narrow_reduction(p: Problem) -> int:
    """Source: oneDNN src/cpu/x64/jit_avx2_convolution.hpp, init_balancers of bwd_weights."""
    inputs, outputs = p.ic // p.groups, p.oc // p.groups
    ic_block = 3 if inputs == 3 else 8
    jobs = p.groups * ceil_div(outputs, 8)
    weights = shared_sum(
        p.threads, p.kernel_size * ic_block * 8, jobs * ceil_div(inputs, ic_block), p.batch
    )
    bias = shared_sum(p.threads, 8, jobs, p.batch) if p.bias else 0
    padded = booked(p.groups * up(outputs, 8) * 4) if p.bias and outputs % 8 else 0
    return weights + bias + padded


def _pointwise_reduction(p: Problem) -> int:
    """Source: oneDNN src/cpu/x64/jit_avx512_common_1x1_conv_kernel.cpp, init_scratchpad."""
    images, used = pointwise_threads(p)
    scratch = shared_sum(used, p.vector, ceil_div(p.oc, p.vector), p.batch) if p.bias else 0
    if images > 1:
        scratch += booked(p.weight_bytes(p.vector, p.vector) * (images - 1)) + booked(BARRIER, BARRIER)
    return scratch + unit_stride_space(p, pointwise_blocks(p))


def pointwise_blocks(p: Problem) -> int:
    """Blocks of input channels that a strided pointwise convolution gathers at a time."""
    blocks = ceil_div(p.ic, p.vector)
    return _best_divider(blocks, 5, blocks, largest=False)


def pointwise_threads(p: Problem) -> tuple[int, int]:
    """How many threads the batch is cut for, and how many are used in all.

    Source: oneDNN src/cpu/x64/jit_avx512_common_1x1_conv_kernel.cpp, init_conf and balance.
    """
    nb_ic, nb_oc = ceil_div(p.ic, p.vector), ceil_div(p.oc, p.vector)
    area = p.output[0] * p.output[1] * p.output[2]
    step = _best_divider(area, 7, 16)
    if area % step:
        step = _best_divider(p.output[2], 4, p.output[2], largest=False)
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


def _best_divider(value: int, low: int, high: int, largest: bool = True) -> int:
    """Source: oneDNN src/cpu/x64/jit_avx512_common_1x1_conv_kernel.cpp and jit_utils, best_divider."""
    high = max(1, min(high, value))
    best, loss = high, 2.0
    for divider in range(high, max(1, min(low, high)) - 1, -1):
        current = 1 - value / up(value, divider)
        if current < loss or (not largest and current == loss):
            best, loss = divider, current
    return best


def _depthwise_reduction(p: Problem) -> int:
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
