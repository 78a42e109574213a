"""Which convolution oneDNN picks for bfloat16 on AVX-512 without bfloat16 instructions, and what it takes.

The layouts are those of float32; what differs is that sums are kept in float32 and
that the gradient of the weights reads its operands from transposed copies.

Source: oneDNN src/cpu/cpu_convolution_list.cpp, src/cpu/x64/jit_avx512_core_bf16_conv_kernel.cpp.
"""

from __future__ import annotations

from memgauge.frameworks.torch.cpu_workspace import onednn_fits, onednn_float, onednn_scratchpads
from memgauge.frameworks.torch.cpu_workspace.onednn import BARRIER, Plan, Problem, booked, ceil_div, up


def forward(p: Problem) -> Plan:
    """Plan of the forward pass; a depthwise one first turns its bias into float32."""
    plan = _without_channels_last_products(p, "forward")
    if p.is_depthwise and p.bias:
        plan = plan._replace(scratchpad=booked(up(p.groups, p.vector) * 4))
    return plan


def backward_data(p: Problem) -> Plan:
    """Plan of the gradient of the source: blocked, strided or not."""
    return _without_channels_last_products(p, "backward_data")


def backward_weights(p: Problem) -> Plan:
    """Plan of the gradients of weights and bias."""
    if p.is_depthwise:
        plan = onednn_float.backward_weights(p)
        return plan._replace(scratchpad=_depthwise_sums(p)) if plan.weights is not None else plan
    plan = onednn_float.backward_weights(p)
    if plan.nxc or (p.groups > 1 and (p.ic // p.groups) % 16):
        return plan
    scratch = _pointwise_sums(p) if onednn_fits.is_pointwise(p) else _transposed_and_sums(p)
    if p.channels_last:
        return Plan(None, p.weight_bytes(16, 16), None, scratch)
    return Plan(p.source_bytes(16), p.weight_bytes(16, 16), p.output_bytes(16), scratch)


def _without_channels_last_products(p: Problem, direction: str) -> Plan:
    """The strided product with channels last inside needs bfloat16 instructions; blocks are used instead."""
    plan: Plan = getattr(onednn_float, direction)(p)
    if p.is_depthwise:
        return plan
    if onednn_fits.is_pointwise(p):
        return _pointwise(p, direction)
    if plan.nxc and not onednn_fits.is_inner_product(p):
        if p.is_dilated or (p.groups > 1 and (p.ic // p.groups) % 16):
            return plan
        return Plan(p.source_bytes(16), p.weight_bytes(16, 16), p.output_bytes(16))
    if direction == "backward_data" and p.channels_last:
        return Plan(None, p.weight_bytes(16, 16), None)
    return plan


def _pointwise(p: Problem, direction: str) -> Plan:
    """Each thread has room for the sums of one image, in steps of six pixels.

    Source: oneDNN src/cpu/x64/jit_avx512_core_bf16_1x1_conv_kernel.cpp, init_scratchpad.
    """
    channels = up(p.oc if direction == "forward" else p.ic, 16)
    area = p.output[0] * p.output[1] * p.output[2]
    scratch = booked(p.threads * up(area, 6) * channels * 4)
    scratch += onednn_scratchpads.unit_stride_space(p, ceil_div(p.ic, 16))
    if p.channels_last:
        return Plan(None, p.weight_bytes(16, 16), None, scratch)
    return Plan(p.source_bytes(16), p.weight_bytes(16, 16), p.output_bytes(16), scratch)


def _pointwise_sums(p: Problem) -> int:
    """Source: oneDNN src/cpu/x64/jit_avx512_core_bf16_1x1_conv_kernel.cpp, init_scratchpad."""
    images, _ = onednn_scratchpads.pointwise_threads(p)
    sums = up(p.oc, 16) * (up(p.ic, 16) + (1 if p.bias else 0)) * images
    gathered = onednn_scratchpads.unit_stride_space(p, onednn_scratchpads.pointwise_blocks(p))
    return booked(sums * 4) + booked(BARRIER, BARRIER) + gathered


def _depthwise_sums(p: Problem) -> int:
    """Source: oneDNN src/cpu/x64/jit_uni_dw_conv_kernel_utils.cpp, init_scratchpad of bwd_weights."""
    channels = up(p.groups, p.vector)
    images = p.threads
    if not p.channels_last:
        over_groups = min(channels // p.vector, p.threads)
        images = min(max(1, p.threads // over_groups), p.batch)
    scratch = booked(channels * p.kernel_size * images * 4)
    if p.bias:
        scratch += booked(channels * (images - 1) * 4) + booked(channels * 4)
    return scratch


def _transposed_and_sums(p: Problem) -> int:
    """Source: jit_avx512_core_bf16_conv_kernel.cpp, init_conf and init_scratchpad of bwd_weights."""
    ic, oc = up(p.ic // p.groups, 16), up(p.oc // p.groups, 16)
    nb_ic, nb_oc = ic // 16, oc // 16
    pad = up(max(p.padding[2], p.end_padding[2] + 1), 2)
    width = up(ceil_div(p.source[2], p.stride[2]) + pad, 2) * p.stride[2]
    out_width = up(p.output[2], 2)
    images, over_oc, over_ic = _threads(p, nb_ic, nb_oc, width, out_width)
    used = images * over_oc * over_ic * min(p.groups, p.threads)
    source = images * nb_ic * p.groups * width * 16 * p.source[1] * p.source[0] + pad
    output = images * nb_oc * p.groups * out_width * 16 * p.output[1] * p.output[0]
    scratch = booked(source * 2) + booked(output * 2)
    for over in (over_oc, over_ic):
        if over > 1:
            scratch += booked(used // over * BARRIER, BARRIER)
    sums = p.groups * oc * (ic * p.kernel_size + (1 if p.bias else 0)) * images
    return scratch + booked(sums * 4) + booked(BARRIER, BARRIER)


def _threads(p: Problem, nb_ic: int, nb_oc: int, width: int, out_width: int) -> tuple[int, int, int]:
    """How threads share images, output and input channels.

    Source: jit_avx512_core_bf16_conv_kernel.cpp, balance.
    """
    if p.threads < p.groups:
        return 1, 1, 1
    threads = p.threads // p.groups
    work = p.batch * (p.output[0] if p.dims == 3 else p.output[1])
    area, out_area = p.source[0] * p.source[1] * width, p.output[0] * p.output[1] * out_width
    source, output = p.batch * nb_ic * 16 * area * 2, p.batch * nb_oc * 16 * out_area * 2
    ratio = 0.5 * (source + output) / (nb_ic * nb_oc * 256 * p.kernel_size * 4)
    balance = nb_oc / nb_ic
    source_weight = max(int(1 / balance), 1) * (4.0 if ratio < 1 else 1.0)
    output_weight, weight_weight = max(int(balance), 1), max(int(ratio), 1)

    def cost(images: int, over_oc: int, over_ic: int) -> float:
        share = ceil_div(work, images) * p.batch / work
        read = source_weight * share * ceil_div(nb_ic, over_ic) * 16 * area
        for stride in p.stride:
            read /= stride
        written = output_weight * share * ceil_div(nb_oc, over_oc) * 16 * out_area
        sums = weight_weight * ceil_div(nb_oc, over_oc) * ceil_div(nb_ic, over_ic) * p.kernel_size * 256
        return read + sums + written

    best, lowest = (1, 1, 1), cost(1, 1, 1)
    for images in range(1, min(threads, work) + 1):
        for over_oc in range(1, min(threads // images, nb_oc) + 1):
            way = (images, over_oc, min(threads // images // over_oc, nb_ic))
            if cost(*way) <= lowest:
                best, lowest = way, cost(*way)
    images = best[0]
    if p.threads // 2 < images < p.threads:
        images = min(work, p.threads)
    return (images, *best[1:])
