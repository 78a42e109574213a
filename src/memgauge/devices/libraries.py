"""What NVIDIA's and AMD's libraries take for themselves through torch's allocator: a model for each.

Each returns bytes, exactly where torch's source says so, else within limits. `MECHANISMS`
says what each rests on; the keys are those of `records.Scratch.mechanism`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from memgauge.devices import Device, PublishedRates
from memgauge.devices.stack import Stack, workspace_config_bytes
from memgauge.records import Range
from memgauge.units import KIB, MIB

CUBLAS, CUBLASLT, CONVOLUTION, SEARCH = "cublas", "cublaslt", "cudnn convolution", "cudnn search"
COLUMNS = "convolution without cudnn"
EMBEDDING, SORT, ATTENTION = "embedding backward", "sorting", "attention backward"
INDEX = "indices and masks"

MECHANISMS = {
    CUBLAS: "workspace of each cuBLAS handle and stream, kept from the first product on "
    "(aten/src/ATen/cuda/CublasHandlePool.cpp; 8,519,680 B on an A10G: pytorch issue 95668)",
    CUBLASLT: "workspace of one cuBLASLt product, before torch 2.9; since then shared with cuBLAS's, or where it is "
    "not, kept from the first such product on (aten/src/ATen/cuda/CUDABlas.cpp, CublasHandlePool.cpp; PR 156495); "
    "of hipBLASLt, which never shares, likewise (PR 139300)",
    CONVOLUTION: "workspace of one cuDNN convolution: copies in the layout of tensor cores, and partial sums "
    "of the filter's gradient (NVIDIA, Convolutional Layers User's Guide, tensor layouts; "
    "CUTLASS, Efficient GEMM, parallelized reductions)",
    SEARCH: "torch.backends.cudnn.benchmark: the largest workspace of all plans tried at the first call, taken "
    "to be the chosen one's; then the cache is given back (aten/src/ATen/native/cudnn/Conv_v8.cpp)",
    COLUMNS: "patches of one picture where cuDNN is off or takes no such type: bfloat16 below 8.0 "
    "(aten/src/ATen/native/cuda/ConvolutionMM2d.cu)",
    EMBEDDING: "sorting and partial sums of embedding gradients (aten/src/ATen/native/cuda/Embedding.cu, "
    "EmbeddingBackwardKernel.cu)",
    ATTENTION: "sums and the query's gradient of efficient attention's backward kernel "
    "(aten/src/ATen/native/transformers/cuda/attention_backward.cu, mem_eff_attention/kernel_backward.h)",
    INDEX: "places that a mask finds, and sorted places of an index's gradient (aten/src/ATen/native/cuda/Indexing.cu "
    "`index_put_with_sort_kernel`, IndexKernel.cpp `masked_select_out_cuda_impl`, `masked_scatter__cuda`)",
    SORT: "double buffers of a radix sort of rows above 4,096 (CUB, DeviceRadixSort; limits; "
    "aten/src/ATen/native/cuda/Sort.h)",
}

_FLOAT_BYTES = 4
_TILE, _NARROWEST_TILE = 128, 64
_WINOGRAD_SAVING = 2.25
_TRANSFORM_TILE = 32


def cublas_bytes(capability: tuple[int, int] | None, stack: Stack, *, is_newest_amd: bool = False) -> int:
    """Return the workspace that torch gives to each cuBLAS handle and stream.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp `parseChosenWorkspaceSize`: 32 MiB on 9.0 in
    every version since 2.0, on 10.x and 12.x since PR 175344 (February 2026, torch 2.12). These sizes
    came with PR 89027 (November 2022, torch 2.0), after PR 83461 and its re-openings (August to October
    2022), which took 4 MiB, first asked for a workspace at all: before, cuBLAS took its own from the
    driver. AMD 32 MiB, 128 MiB on gfx94 and gfx95.

    Args:
        capability: Compute capability; None for AMD's cards.
        is_newest_amd: Whether it is one of gfx94 and gfx95.
        stack: Versions and switches.
    """
    if stack.cublas_workspace_config is not None:
        return workspace_config_bytes(stack.cublas_workspace_config)
    if capability is None:
        return 128 * MIB if is_newest_amd else 32 * MIB
    if stack.torch < (2, 0):
        return 0 if stack.torch < (1, 13) else 4 * MIB
    if capability == (9, 0) or (capability[0] in (10, 12) and stack.torch >= (2, 12)):
        return 32 * MIB
    return 2 * 4096 * KIB + 8 * 16 * KIB


def cublas_bytes_of(device: Device, stack: Stack) -> int:
    """Return the same for a card of the catalogue, or as a device file says."""
    if device.cublas_workspace is not None and stack.cublas_workspace_config is None:
        return device.cublas_workspace.bytes
    return cublas_bytes(device.compute_capability, stack, is_newest_amd=device.is_newest_amd)


def cublaslt_bytes(stack: Stack, *, is_nvidia: bool = True) -> int:
    """Return the workspace of products through cuBLASLt (AMD: hipBLASLt); 0 where they share cuBLAS's.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp `parseCUDABlasLtWorkspaceSize` (1 MiB; AMD 76 MiB
    since PR 139300, torch 2.6, which says 8 MiB for before), `getCUDABlasLtWorkspace` (never shared on
    AMD); before torch 2.9 in CUDABlas.cpp.

    Args:
        stack: Versions and switches.
        is_nvidia: Whether the card is NVIDIA's; else AMD's.
    """
    shared = stack.torch >= (2, 9) if stack.cublaslt_unified is None else stack.cublaslt_unified
    if shared and is_nvidia:
        return 0
    if stack.cublaslt_workspace_kib is not None:
        return stack.cublaslt_workspace_kib * KIB
    if is_nvidia:
        return MIB
    return 76 * MIB if stack.torch >= (2, 6) else 8 * MIB


def keeps_cublaslt(stack: Stack) -> bool:
    """Return whether that workspace is kept for each handle and stream, as cuBLAS's is, or for one product only.

    Source: PR 156495 (torch 2.9).
    """
    return stack.torch >= (2, 9)


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
    rates: Rates
    strided: bool
    image: tuple[int, ...]  # height, width of data
    batch: int
    dilated: bool = False

    @property
    def is_winograds(self) -> bool:
        """Return whether Winograd's algorithm applies: 3 × 3 neighbouring points at stride 1, not by groups."""
        return self.kernel == (3, 3) and not self.strided and not self.dilated and self.groups == 1


def convolution_bytes(call: Convolution, multiprocessors: int) -> Range:
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
        multiprocessors: Of the card.
    """
    high = max(call.weight * call.itemsize, winograd_bytes(call))
    if not call.rates.tensor:
        return Range(low=0, expected=0, high=high)
    copies = 0 if call.channels_last else (call.data + call.weight + call.result) * call.itemsize
    expected = 0
    is_product = max(call.kernel) == 1 and not call.strided
    if not is_product:
        copied = copies
        if call.direction == "forward" and not call.channels_last:
            copied = 0 if call.groups > 1 else (call.data + call.weight) * call.itemsize
        if pays(call, copied):
            expected = copied
            if call.direction == "filter" and call.groups == 1:
                expected += split_bytes(call, multiprocessors)
    return Range(low=0, expected=expected, high=max(expected, copies, high))


def pays(call: Convolution, copied: int) -> bool:
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
        return call.rates.tensor > call.rates.plain
    data_channels, result_channels = call.channels
    depth = data_channels * math.prod(call.kernel)
    flops = 2 * call.result * depth
    whole = {
        "forward": _in_tiles(result_channels),
        "data": _in_tiles(data_channels),
        "filter": _in_tiles(result_channels) * _in_tiles(depth),
    }[call.direction]
    moving = (call.data + call.weight + call.result) * call.itemsize / call.rates.memory
    copying = 2 * copied / call.rates.memory
    is_fused = call.is_winograds and call.direction != "filter" and call.itemsize == _FLOAT_BYTES
    fewer = _WINOGRAD_SAVING if is_fused else 1
    with_copies = max(flops * whole / call.rates.tensor, moving) + copying
    return with_copies < max(flops / fewer / call.rates.plain, moving)


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


def efficient_attention_scratch(
    batch: int,
    heads: int,
    rows: int,
    size: int,
    value_size: int,
    *,
    is_half: bool,
    capability: tuple[int, int],
) -> tuple[tuple[int, ...], int, int]:
    """Return what the backward kernel of efficient attention takes, in three parts.

    First what is there while `delta` (one float32 per row) is worked out, for float32 and on 7.0 by
    other kernels: the product of gradient and output, and its sums. Then `delta`; then the gradient
    of the query in tiles of 64 with 16 B of locks each, since keys are split among blocks from 7.0 on.

    Source: native/transformers/cuda/attention_backward.cu `_efficient_attention_backward`;
    mem_eff_attention/kernel_backward.h `kKernelComputesDelta`, `kEnableSplitKeys`, `workspace_elements_gq`.
    """
    count = batch * heads * rows
    delta = count * 4
    by_kernel = is_half and capability != (7, 0)
    before = () if by_kernel else (count * value_size * 4, delta)
    if is_half and not by_kernel:
        before = (count * value_size * 4, *before)  # the gradient in float32 as well
    tiles = math.ceil(rows / 64) * math.ceil(size / 64)
    accumulated = tiles * (64 * 64 * 4 + 16) if capability >= (7, 0) or is_half else 0
    return before, delta, batch * heads * accumulated


def embedding_backward_bytes(indices: int, rows: int, width: int, index_bytes: int) -> int:
    """Return the scratch of an embedding's gradient; 0 up to 3,072 indices, which are added up directly.

    Sorted and original places, then float32 sums for each ten indices of one row and for each row.

    Source: Embedding.cu `embedding_dense_backward_cuda`, EmbeddingBackwardKernel.cu
    `embedding_backward_cuda_kernel` (NROWS_PER_THREAD = 10).
    """
    if indices <= 3072:
        return 0
    segments = min(indices, rows)
    partial = indices // 10 + segments
    return 2 * indices * index_bytes + (3 * segments + partial) * index_bytes + partial * width * 4


def sort_bytes(elements: int, itemsize: int, length: int) -> Range:
    """Return the scratch of a sort of `elements` numbers with their places, in rows of `length`.

    Rows of up to 4,096 are sorted where they lie, in the outputs (cuda/Sort.h `should_use_small_sort`).
    """
    if length <= 4096:
        return Range(low=0, expected=0, high=0)
    pairs = elements * (itemsize + 8)
    return Range(low=0, expected=pairs, high=2 * pairs)


def positions_bytes(count: int, dimensions: int) -> int:
    """Return the places that a mask finds, one int64 for each dimension of each (`nonzero`)."""
    return count * dimensions * 8


def prefix_sum_bytes(elements: int, *, copies_mask: bool) -> int:
    """Return what `masked_scatter` counts: one int64 for each element, and the mask where it was expanded.

    Source: cuda/IndexKernel.cpp `masked_scatter__cuda`, IndexKernel.cu `launch_masked_scatter_kernel`.
    """
    return elements * (9 if copies_mask else 8)


def index_gradient_bytes(count: int, rows: int) -> int:
    """Return the scratch of the gradient of `x[indices]`: places, sorted, their order and its beginning.

    Four int64 for each index, and two for the sort's other buffers where it takes more than one pass of 8 bits.

    Source: cuda/Indexing.cu `index_put_with_sort_kernel`; CUB, DeviceRadixSort (`SortPairs`).
    """
    return count * 8 * (6 if rows > 256 else 4)
