"""Which of oneDNN's float32 convolutions on x86-64 takes a problem, by each one's init_conf."""

from __future__ import annotations

from memgauge.frameworks.torch.cpu_workspace.onednn import (
    Problem,
)


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


def kernel_outside_source(p: Problem) -> bool:
    """Source: oneDNN src/cpu/x64/jit_avx512_common_conv_kernel.cpp, kernel_outside_src."""
    extents = [(k - 1) * (d + 1) + 1 for k, d in zip(p.kernel, p.dilation, strict=True)]
    return any(
        e <= begin or e <= end for e, begin, end in zip(extents, p.padding, p.end_padding, strict=True)
    )


def channel_block(p: Problem) -> int:
    """Source: oneDNN src/cpu/x64/jit_avx512_common_conv_kernel.cpp, init_conf, ok_to_try_lower_zmm."""
    if p.groups == 1:
        return p.vector
    inputs, outputs = p.ic // p.groups, p.oc // p.groups
    blocks = (16, 8, 4) if p.vector == 16 else (8,)
    return next((b for b in blocks if inputs % b == 0 and outputs % b == 0), 0)


def depthwise_fits(p: Problem) -> bool:
    """Source: oneDNN src/cpu/x64/jit_uni_dw_conv_kernel_utils.cpp, init_conf of the forward kernel."""
    if kernel_outside_source(p):
        return False
    width = min(6 if p.vector == 16 else 4, p.output[2])
    tail = p.output[2] % width
    extent = (p.kernel[2] - 1) * (p.dilation[2] + 1) + 1
    right = (p.output[2] - tail - 1) * p.stride[2] + extent - p.source[2] - p.padding[2]
    return p.padding[2] <= width and right <= width


def depthwise_weights_fit(p: Problem) -> bool:
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


def is_first(p: Problem) -> bool:
    """Whether the input channels are too few for a block: the source stays as it is."""
    return p.groups == 1 and p.ic < 16


def wide_weights_fit(p: Problem) -> bool:
    """Source: oneDNN src/cpu/x64/jit_avx512_common_conv_kernel.cpp, init_conf of bwd_weights."""
    if any(d and s != 1 for d, s in zip(p.dilation[:2], p.stride[:2], strict=True)):
        return False
    extents = [(k - 1) * (d + 1) + 1 for k, d in zip(p.kernel, p.dilation, strict=True)]
    if (p.dilation[1] and extents[1] > p.source[1]) or (p.dims == 3 and p.dilation[0]):
        return False
    if not p.channels_last:
        if is_first(p) and p.ic > 3:
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
        and (p.kernel[2] <= 14 or is_transposed_filter(p))
    )


def is_transposed_filter(p: Problem) -> bool:
    """Whether a filter as wide as the source is read row by row."""
    return (
        not p.channels_last
        and p.dims == 2
        and 14 <= p.kernel[2] < 20
        and p.output[2] == 1
        and p.kernel[2] == p.source[2]
        and not (p.is_strided or p.is_dilated or any(p.padding) or any(e > 0 for e in p.end_padding))
    )


def narrow_weights_fit(p: Problem) -> bool:
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
