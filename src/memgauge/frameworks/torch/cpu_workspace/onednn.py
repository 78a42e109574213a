"""What oneDNN's convolutions have in common: the problem, the plan, the scratchpad's arithmetic.

oneDNN asks each of its implementations in turn whether it takes a problem. The
first that does fixes the layouts (any that the user left open) and the size of
the scratchpad. Both are functions of shapes, thread count and instruction set,
and of nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import NamedTuple

PAGE = 4096
# Source: oneDNN src/common/memory_tracking.hpp, default_alignment.
ALIGNMENT = 128
# Source: oneDNN src/cpu/x64/brgemm/brgemm_types.hpp, sizeof(brgemm_batch_element_t).
BATCH_ELEMENT = 40
# Source: oneDNN src/cpu/x64/cpu_barrier.hpp, sizeof(simple_barrier::ctx_t), which is also its alignment.
BARRIER = PAGE

Triple = tuple[int, int, int]


def up(value: int, block: int) -> int:
    """Return `value` rounded up to a multiple of `block`."""
    return -(-value // block) * block


def ceil_div(value: int, by: int) -> int:
    """Return the quotient rounded up."""
    return -(-value // by)


def booked(size: int, alignment: int = ALIGNMENT) -> int:
    """Return what an entry of the scratchpad takes: itself, and room to align it.

    Source: oneDNN src/common/memory_tracking.hpp, registry_t::book.
    """
    return size + max(alignment, ALIGNMENT) if size else 0


def batch_booked(elements: int, threads: int) -> int:
    """Return the entry of brgemm's lists of addresses: whole pages for each thread.

    Source: oneDNN src/cpu/x64/jit_brgemm_conv_utils.cpp, adjusted_batch_size and init_scratchpad.
    """
    per_thread = ceil_div(up(elements * BATCH_ELEMENT, PAGE), BATCH_ELEMENT)
    return booked(threads * per_thread * BATCH_ELEMENT, PAGE)


def shared_sum(threads: int, job: int, jobs: int, terms: int) -> int:
    """Return the entries of a sum that groups of threads share: a part for each thread but the first.

    Args:
        threads: Threads there are.
        job: Elements of one job (a block of weights or of bias).
        jobs: Number of jobs.
        terms: Length of the sum (images).

    Source: oneDNN src/cpu/x64/cpu_reducer.cpp, reduce_balancer_t::balance and init_scratchpad.
    """
    most = max(1, 2**21 // (threads * job))
    least = max(1, jobs // threads)
    groups = min(jobs // least, threads)
    per_group, longest = min(threads // groups, terms), ceil_div(jobs, groups)
    cost = jobs * job * terms
    for count in range(least, jobs):
        now = min(jobs // count, threads)
        members, length = min(threads // now, terms), ceil_div(jobs, now)
        if members > 1 and length > most:
            continue
        work = job * length * (ceil_div(terms, members) + (members != 1))
        if work < cost:
            groups, per_group, longest, cost = now, members, length, work
    if per_group == 1:
        return 0
    space = groups * (per_group - 1) * longest * job * 4
    return booked(space, PAGE) + booked(groups * BARRIER, BARRIER)


@lru_cache
def cache_bytes(level: int) -> int:
    """Return the bytes of one core's cache of level 1 (data) or 2, by which oneDNN cuts its blocks."""
    index, usual = {1: (0, 32 * 2**10), 2: (2, 2**20)}[level]
    try:
        text = Path(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size").read_text().strip()
        return int(text.rstrip("KM")) * (2**20 if text.endswith("M") else 2**10)
    except (OSError, ValueError):
        return usual


@dataclass(frozen=True)
class Problem:
    """One convolution as oneDNN sees it. Channels are of all groups together; dilation 0 is none."""

    dims: int  # spatial dimensions, 2 or 3 (torch gives 1-D ones as 2-D)
    batch: int
    ic: int
    oc: int
    groups: int
    source: Triple
    output: Triple
    kernel: Triple
    stride: Triple
    padding: Triple
    dilation: Triple
    itemsize: int
    bias: bool
    channels_last: bool  # the user's layout of activations is fixed to it; otherwise it is open
    threads: int
    vector: int  # floats in a register: 16 with AVX-512, 8 with AVX2
    with_groups: bool = False

    @cached_property
    def end_padding(self) -> Triple:
        """Padding at the far end, as far as the output needs it; it may be negative.

        Source: oneDNN src/cpu/x64/jit_primitive_conf.hpp, calculate_end_padding.
        """
        return tuple(
            (o - 1) * s + (k - 1) * (d + 1) + 1 - i - p
            for i, o, k, s, p, d in zip(
                self.source,
                self.output,
                self.kernel,
                self.stride,
                self.padding,
                self.dilation,
                strict=True,
            )
        )

    @property
    def kernel_size(self) -> int:
        """Elements of the filter's window."""
        return prod(self.kernel)

    @property
    def is_depthwise(self) -> bool:
        """Whether each group has one input and one output channel."""
        return self.with_groups and self.ic == self.oc == self.groups

    @property
    def is_dilated(self) -> bool:
        """Whether the filter has holes."""
        return any(self.dilation)

    @property
    def is_strided(self) -> bool:
        """Whether any stride is above one."""
        return any(s != 1 for s in self.stride)

    def source_bytes(self, block: int = 1) -> int:
        """Bytes of the source with channels in blocks."""
        return self.batch * up(self.ic, block) * prod(self.source) * self.itemsize

    def output_bytes(self, block: int = 1) -> int:
        """Bytes of the destination with channels in blocks."""
        return self.batch * up(self.oc, block) * prod(self.output) * self.itemsize

    def weight_bytes(self, oc_block: int = 1, ic_block: int = 1) -> int:
        """Bytes of the weights with output and input channels in blocks."""
        per_group = up(self.oc // self.groups, oc_block) * up(self.ic // self.groups, ic_block)
        return self.groups * per_group * self.kernel_size * self.itemsize


class Plan(NamedTuple):
    """What the chosen implementation wants: bytes of each tensor in its layout; None is the user's own."""

    source: int | None
    weights: int | None
    output: int | None
    scratchpad: int = 0
    nxc: bool = False  # the layouts that were open have channels last
