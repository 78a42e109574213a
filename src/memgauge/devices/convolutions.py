"""What cuDNN takes for one convolution: by what a layout costs where tensor cores pay, within limits.

Which plan it runs is not published. What is: the layouts that kernels read and write, what a card computes
and moves in a second, and how much each known algorithm keeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from memgauge.devices import Device, PublishedRates, rates_of_architecture
from memgauge.records import Range

_FLOAT_BYTES = 4
_TILE, _NARROWEST_TILE = 128, 64
_WINOGRAD_SAVING = 2.25
_TRANSFORM_TILE = 32


class Rates(NamedTuple):
    """What a card computes and moves in a second, for one type, as its vendor says."""

    tensor: float  # TFLOPS of tensor cores with float32 sums; 0 where there are none, or they are not allowed
    plain: float  # TFLOPS of the ordinary units in float32
    memory: float  # TB/s


# No faster than the ordinary units: nothing is worth copying for them.
NO_FASTER = Rates(tensor=1, plain=1, memory=1)


def rates(published: PublishedRates | None, *, is_half: bool, allows_tf32: bool) -> Rates:
    """Return the rates for half types, or for float32 where TF32 is allowed.

    Args:
        published: The card's; None for one without tensor cores.
        is_half: Whether for float16 and bfloat16.
        allows_tf32: Whether for float32 with TF32 allowed.
    """
    if published is None:
        return Rates(tensor=0, plain=1, memory=1)
    tensor = published.half if is_half else published.tf32 if allows_tf32 else 0
    return Rates(tensor=tensor, plain=published.float32, memory=published.memory)


@dataclass(frozen=True, slots=True)
class Convolution:
    """One call of cuDNN: forward, or backward with respect to data or filter.

    Sizes are elements of the whole tensors; `data` is the input or its gradient, `result` the
    output or its gradient.
    """

    direction: str  # "forward", "data", "filter"
    data: int
    weight: int
    result: int
    itemsize: int
    kernel: tuple[int, ...]
    groups: int
    channels: tuple[int, int]  # of data and of result
    channels_last: bool
    is_half: bool
    allows_tf32: bool  # for float32
    strided: bool
    image: tuple[int, ...]  # height, width of data
    batch: int
    dilated: bool = False

    @property
    def is_winograds(self) -> bool:
        """Return whether Winograd's algorithm applies: 3 × 3 neighbouring points at stride 1, not by groups."""
        return self.kernel == (3, 3) and not self.strided and not self.dilated and self.groups == 1


@dataclass(frozen=True, slots=True)
class Convolver:
    """What a card has to convolve with."""

    published: PublishedRates | None  # None: no tensor cores
    multiprocessors: int
    is_nvidia: bool = True  # of MIOpen's plans nothing is expected

    @classmethod
    def of(cls, place: Device) -> Convolver:
        """Return that of a card of the catalogue."""
        capability = place.compute_capability
        published = place.rates or (None if capability is None else rates_of_architecture(capability))
        return cls(published, place.multiprocessors or 0, place.is_nvidia)

    def workspace(self, call: Convolution) -> Range:
        """Return what one call takes on this card."""
        speed = NO_FASTER
        if self.is_nvidia:
            speed = rates(self.published, is_half=call.is_half, allows_tf32=call.allows_tf32)
        return convolution_bytes(call, speed, self.multiprocessors)


def convolution_bytes(call: Convolution, speed: Rates, multiprocessors: int) -> Range:
    """Return the workspace of the plan that cuDNN runs.

    Kernels for tensor cores read channels last. Tensors that are not so are copied into the workspace
    before the kernel (NVIDIA, Deep Learning Performance, Convolutional Layers User's Guide, "Tensor
    Layouts"; Conv_v8.cpp passes the strides on). What kernels write is in their names: forward ones
    that read NHWC and write NCHW exist (`fprop…nhwckrsc_nchw`), those of both gradients write NHWC
    (`dgrad…`, `wgrad…nhwckrsc_nhwc`; Nsight's list of kernels of an AlexNet's training in the GPU
    profiling chapter of the Kempner Institute's computing handbook). A convolution of one point that
    skips none is a matrix product in either layout. So what is expected is:

        where copying does not pay (`pays`)    nothing
        kernels of one point, stride 1         nothing
        forward                                copies of the data and of the filter; none by groups
        gradient of the data                   copies of both gradients and of the filter
        gradient of the filter                 the same, and the partial sums of `split_bytes`
        tensors in channels last               no copies, the partial sums

    Which plan is chosen is not published: nothing at all is the lower limit. The upper one are
    copies of everything in every direction, or Winograd's transform where it applies.

    Args:
        call: The convolution.
        speed: The card's, for the call's type.
        multiprocessors: Of the card.
    """
    high = max(call.weight * call.itemsize, winograd_bytes(call))
    if not speed.tensor:
        return Range(low=0, expected=0, high=high)
    copies = 0 if call.channels_last else (call.data + call.weight + call.result) * call.itemsize
    expected = 0
    is_product = max(call.kernel) == 1 and not call.strided
    if not is_product:
        copied = copies
        if call.direction == "forward" and not call.channels_last:
            copied = 0 if call.groups > 1 else (call.data + call.weight) * call.itemsize
        if pays(call, speed, copied):
            expected = copied
            if call.direction == "filter" and call.groups == 1:
                expected += split_bytes(call, multiprocessors)
    return Range(low=0, expected=expected, high=max(expected, copies, high))


def pays(call: Convolution, speed: Rates, copied: int) -> bool:
    """Return whether tensor cores are the faster although so many bytes are copied for them.

    Either plan takes the longer of computing and of moving each tensor once (NVIDIA, Matrix Multiplication
    Background User's Guide, 2, "Math and Memory Bounds"); what is copied is read and written on top of that. Tensor
    cores compute whole tiles, the narrowest of 64 (the same, 2.3, "Typical Tile Dimensions"). The ordinary units
    convolve 3 × 3 neighbouring points at stride 1, but for the filter's gradient, by Winograd's
    F(2 × 2, 3 × 3) with 2.25 times fewer multiplications, in any layout and without a workspace (Lavin,
    Gray, 2015, section 4.1 and 5); counted for float32 only, since no fused kernel of it for half types is
    known to beat tensor cores.

    Convolutions by groups are left out of that: there it pays wherever tensor cores are the faster.
    """
    if call.groups > 1:
        return speed.tensor > speed.plain
    data_channels, result_channels = call.channels
    depth = data_channels * math.prod(call.kernel)
    flops = 2 * call.result * depth
    whole = {
        "forward": _in_tiles(result_channels),
        "data": _in_tiles(data_channels),
        "filter": _in_tiles(result_channels) * _in_tiles(depth),
    }[call.direction]
    moving = (call.data + call.weight + call.result) * call.itemsize / speed.memory
    copying = 2 * copied / speed.memory
    is_fused = call.is_winograds and call.direction != "filter" and call.itemsize == _FLOAT_BYTES
    fewer = _WINOGRAD_SAVING if is_fused else 1
    with_copies = max(flops * whole / speed.tensor, moving) + copying
    return with_copies < max(flops / fewer / speed.plain, moving)


def _in_tiles(size: int) -> float:
    """Return how much larger it becomes in whole tiles."""
    return math.ceil(size / _NARROWEST_TILE) * _NARROWEST_TILE / size


def split_bytes(call: Convolution, multiprocessors: int) -> int:
    """Return the partial sums of a filter's gradient whose reduction is divided among multiprocessors.

    The gradient is a matrix of few entries (result channels by data channels × kernel), each a sum over
    all places of all pictures. Where its tiles are fewer than the multiprocessors, the sum is divided
    ("split-K": cuDNN's CUDNN_KNOB_TYPE_SPLIT_K_BUF; CUTLASS, Efficient GEMM, "Parallelized
    reductions": one float32 partial result for each part; tiles of 128 × 128).
    """
    rows, columns = call.channels[1], call.weight // max(call.channels[1], 1)
    tiles = math.ceil(rows / _TILE) * math.ceil(columns / _TILE)
    parts = multiprocessors // max(tiles, 1)
    return parts * call.weight * 4 if parts > 1 else 0


def winograd_bytes(call: Convolution) -> int:
    """Return what a 3 × 3 convolution of stride 1 keeps by Winograd's F(4 × 4, 3 × 3), not fused; else 0.

    Source: Lavin, Gray, Fast Algorithms for Convolutional Neural Networks (2015): 36 numbers stand
    for each tile of 16 of data and result, and for each filter of 9.
    """
    if not call.is_winograds:
        return 0
    tiles = call.batch * math.ceil(call.image[0] / 4) * math.ceil(call.image[1] / 4)
    return 36 * 4 * (tiles * sum(call.channels) + call.channels[0] * call.channels[1])


def transform_bytes(call: Convolution) -> int:
    """Return what a convolution by Fourier transforms in tiles keeps: data, filters, results as complex float32.

    Such a plan is no part of the range, since it is rarely among those that cuDNN offers; where it is,
    `cudnn.benchmark` takes this much once, mostly at batches of 8 or 16.

    Sources: cuDNN API, CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING (kernels `fft2d_r2c_32x32` in published
    profiles: tiles of 32 × 32); Mathieu, Henaff, LeCun, Fast Training of Convolutional Networks through
    FFTs (2014), section 2: a half-plane of complex numbers for each map of data, filter and result.
    """
    if call.strided or call.dilated or len(call.image) != 2 or call.groups > 1:
        return 0
    tiles = math.prod(
        math.ceil(i / (_TRANSFORM_TILE - k + 1)) if k <= _TRANSFORM_TILE else 0
        for i, k in zip(call.image, call.kernel, strict=True)
    )
    maps = call.batch * tiles * sum(call.channels) + call.channels[0] * call.channels[1]
    return maps * _TRANSFORM_TILE * (_TRANSFORM_TILE // 2 + 1) * 8 if tiles else 0
