"""oneDNN's fallback convolution: im2col and a matrix product, in the user's plain layout.

Source: oneDNN src/cpu/gemm_convolution_utils.cpp, init_conf.
"""

from __future__ import annotations

from math import prod

from memgauge.frameworks.torch.cpu_workspace.onednn import Plan, Problem, booked, cache_bytes, ceil_div, up

_THRESHOLD = 64 * 1024


def _is_direct(p: Problem) -> bool:
    return p.kernel_size == 1 and p.source == p.output and not p.is_strided


def _columns(p: Problem) -> int:
    """Elements of im2col for one image (one slice of depth)."""
    return 0 if _is_direct(p) else p.ic // p.groups * p.kernel_size * p.output[1] * p.output[2]


def _outer(p: Problem, inner: int) -> bool:
    """Whether whole images are given to threads, by the two efficiencies that init_conf compares."""
    outer = p.groups * p.batch
    outer_share = outer / up(outer, p.threads)
    inner_share = inner / up(inner, p.threads)
    return outer_share / inner_share >= 1


def gemm_forward(p: Problem) -> Plan:
    """Plan of the forward pass."""
    columns = _columns(p)
    area = p.output[1] * p.output[2]
    spatial = p.batch * p.groups * p.output[0] * area
    if columns and p.dims == 2 and spatial >= p.threads * p.vector:
        block = min(area, ceil_div(spatial, p.threads))
        # Blocks are cut to the cache by a search (calc_max_icb); this is the most.
        columns = min(columns, p.ic // p.groups * p.kernel_size * block, cache_bytes(2) // 4)
        threads = p.threads
    else:
        threads = p.threads if area // p.threads < 512 and p.batch * p.groups > 1 else 1
    return Plan(None, None, None, booked(threads * columns * 4))


def gemm_backward_data(p: Problem) -> Plan:
    """Plan of the gradient of the source."""
    ic, oc = p.ic // p.groups, p.oc // p.groups
    area, source = p.output[1] * p.output[2], p.source[1] * p.source[2]
    inner = ceil_div(source, p.vector) * ceil_div(ic, p.vector)
    outer = (area // p.threads < 512 or prod(p.kernel) < 64) and (p.batch != 1 or p.groups > 2)
    outer = outer and (_outer(p, inner) or source * ic * oc // p.threads < _THRESHOLD)
    threads = p.threads if outer else 1
    return Plan(None, None, None, booked(threads * _columns(p) * 4))


def gemm_backward_weights(p: Problem) -> Plan:
    """Plan of the gradients of weights and bias."""
    area = p.output[1] * p.output[2]
    outer = area // p.threads < 256 and (p.batch != 1 or p.groups > 2)
    threads = p.threads if outer else 1
    # The library books bytes where it means elements, so each thread has four times the weights.
    scratch = booked(threads * p.weight_bytes() * 4) + booked(threads * _columns(p) * 4)
    return Plan(None, None, None, scratch)
