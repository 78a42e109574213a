"""Which convolution oneDNN picks for float32 on x86-64, and what it takes.

Source of the order of implementations: oneDNN src/cpu/cpu_convolution_list.cpp.
"""

from __future__ import annotations

from memgauge.frameworks.torch.cpu_workspace.onednn import (
    PAGE,
    Plan,
    Problem,
    batch_booked,
    booked,
    ceil_div,
    up,
)
from memgauge.frameworks.torch.cpu_workspace.onednn_fits import (
    channel_block,
    depthwise_fits,
    depthwise_weights_fit,
    is_first,
    is_inner_product,
    is_pointwise,
    kernel_outside_source,
    narrow_weights_fit,
    wide_weights_fit,
)
from memgauge.frameworks.torch.cpu_workspace.onednn_gemm import (
    gemm_backward_data,
    gemm_backward_weights,
    gemm_forward,
)
from memgauge.frameworks.torch.cpu_workspace.onednn_scratchpads import (
    depthwise_reduction,
    narrow_reduction,
    padded_bias,
    pointwise_reduction,
    reduction,
    unit_stride_space,
)
from memgauge.frameworks.torch.cpu_workspace.onednn_unroll import row_fits_backward_data, row_fits_forward


def forward(p: Problem) -> Plan:
    """Plan of the forward pass."""
    if is_inner_product(p):
        return _inner_product(p)
    if p.channels_last:
        return _brgemm(p)
    if p.is_depthwise and p.dims == 2 and depthwise_fits(p):
        return _depthwise(p, padded_bias=p.bias)
    if is_pointwise(p):
        scratch = padded_bias(p) + unit_stride_space(p, ceil_div(p.ic, p.vector))
        return _blocked(p, p.vector, scratch)
    if not kernel_outside_source(p) and row_fits_forward(p):
        if p.ic < 16 and p.groups == 1 and (p.vector == 16 or p.ic in (1, 2, 3)):
            return _first_layer(p, padded_bias(p))
        block = channel_block(p)
        if block:
            return _blocked(p, block, padded_bias(p))
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
    reached = not kernel_outside_source(p) and not (p.is_dilated and p.is_strided)
    if reached and row_fits_backward_data(p):
        block = channel_block(p)
        if block:
            return _blocked(p, block, 0)
    return gemm_backward_data(p)


def backward_weights(p: Problem) -> Plan:
    """Plan of the gradients of weights and bias."""
    if is_inner_product(p):
        return _inner_product(p)
    if p.is_depthwise and p.dims == 2 and depthwise_weights_fit(p):
        return _depthwise(p, scratch=depthwise_reduction(p))
    if is_pointwise(p):
        return _blocked(p, p.vector, padded_bias(p) + pointwise_reduction(p))
    if p.vector == 16 and wide_weights_fit(p):
        scratch = reduction(p) + padded_bias(p)
        return _first_layer(p, scratch) if is_first(p) else _blocked(p, 16, scratch)
    if narrow_weights_fit(p):
        scratch = narrow_reduction(p)
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


# -- brgemm ------------------------------------------------------------------------------------------


def _brgemm(p: Problem, nested: bool = False) -> Plan:
    """Channels last, unit stride or forward: the activations stay as they are.

    Source: oneDNN src/cpu/x64/jit_brgemm_conv_utils.cpp, init_scratchpad.
    """
    if p.is_depthwise:
        return _depthwise(p)
    block = channel_block(p)
    if p.with_groups and block > 0 and max(p.ic, p.oc) // p.groups <= p.vector:
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
