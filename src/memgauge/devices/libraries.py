"""What NVIDIA's and AMD's libraries take for themselves through torch's allocator: a model for each.

Each returns bytes, exactly where torch's source says so, else within limits. `MECHANISMS`
says what each rests on; the keys are those of `records.Scratch.mechanism`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from memgauge.devices import Device
from memgauge.devices.stack import Stack, workspace_config_bytes
from memgauge.records import Range
from memgauge.units import KIB, MIB

CUBLAS, CUBLASLT, CONVOLUTION, SEARCH = "cublas", "cublaslt", "cudnn convolution", "cudnn search"
EMBEDDING, SORT = "embedding backward", "sorting"

MECHANISMS = {
    CUBLAS: "workspace of each cuBLAS handle and stream, kept from the first product on "
    "(aten/src/ATen/cuda/CublasHandlePool.cpp; 8,519,680 B on an A10G: pytorch issue 95668)",
    CUBLASLT: "workspace of one cuBLASLt product, before torch 2.9 (aten/src/ATen/cuda/CUDABlas.cpp; PR 156495)",
    CONVOLUTION: "workspace of one cuDNN convolution: copies in the layout of tensor cores "
    "(NVIDIA, Convolutional Layers User's Guide, tensor layouts; limits, not sizes)",
    SEARCH: "torch.backends.cudnn.benchmark: the largest workspace of all plans tried at the first call, "
    "then the cache is given back (aten/src/ATen/native/cudnn/Conv_v8.cpp)",
    EMBEDDING: "sorting and partial sums of embedding gradients (aten/src/ATen/native/cuda/Embedding.cu, "
    "EmbeddingBackwardKernel.cu)",
    SORT: "double buffers of a radix sort (CUB, DeviceRadixSort; limits)",
}

_HALF_BYTES = 2


def cublas_bytes(capability: tuple[int, int] | None, stack: Stack, *, is_newest_amd: bool = False) -> int:
    """Return the workspace that torch gives to each cuBLAS handle and stream.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp `parseChosenWorkspaceSize`: 32 MiB on 9.0 in
    every version seen, on 10.x and 12.x since PR 175344 (February 2026, torch 2.12); before torch
    1.13 it was 4 MiB, and before 1.11 cuBLAS took its own from the driver (older copies of the file,
    whose versions are taken from their dates); AMD 32 MiB, 128 MiB on gfx94 and gfx95.

    Args:
        capability: Compute capability; None for AMD's cards.
        is_newest_amd: Whether it is one of gfx94 and gfx95.
        stack: Versions and switches.
    """
    if stack.cublas_workspace_config is not None:
        return workspace_config_bytes(stack.cublas_workspace_config)
    if capability is None:
        return 128 * MIB if is_newest_amd else 32 * MIB
    if capability == (9, 0) or (capability[0] in (10, 12) and stack.torch >= (2, 12)):
        return 32 * MIB
    if stack.torch < (1, 11):
        return 0
    return 4 * MIB if stack.torch < (1, 13) else 2 * 4096 * KIB + 8 * 16 * KIB


def cublas_bytes_of(device: Device, stack: Stack) -> int:
    """Return the same for a card of the catalogue, or as a device file says."""
    if device.cublas_workspace is not None and stack.cublas_workspace_config is None:
        return device.cublas_workspace.bytes
    return cublas_bytes(device.compute_capability, stack, is_newest_amd=device.architecture == "cdna3")


def cublaslt_bytes(stack: Stack) -> int:
    """Return what one product through cuBLASLt takes and gives back; 0 where it shares cuBLAS's workspace.

    Source: aten/src/ATen/cuda/CUDABlas.cpp `_parseChosenWorkspaceSize` (1 MiB); PR 156495 (torch 2.9).
    """
    shared = stack.torch >= (2, 9) if stack.cublaslt_unified is None else stack.cublaslt_unified
    return 0 if shared else MIB


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
    tensor_cores: bool  # float32 with TF32 allowed on 8.0 and up, or a half type on 7.0 and up
    strided: bool
    image: tuple[int, ...]  # height, width of data
    batch: int


def convolution_bytes(call: Convolution) -> Range:
    """Return the workspace of the plan that cuDNN's heuristics choose first.

    Kernels for tensor cores read and write channels last. For tensors that are not, cuDNN copies
    inputs into its workspace before and the result after the kernel, channels padded to 16 bytes;
    whether the heuristics choose such a kernel is not published, so nothing is the lower limit.
    """
    copies = (call.data + call.weight + call.result) * call.itemsize
    if call.channels_last or not call.tensor_cores:
        return Range(low=0, expected=0, high=call.weight * call.itemsize)
    return Range(low=0, expected=0, high=copies)


def search_bytes(call: Convolution) -> Range:
    """Return the largest workspace among all plans, which `cudnn.benchmark` takes at the first call."""
    chosen = convolution_bytes(call)
    return Range(low=chosen.low, expected=max(chosen.expected, 0), high=chosen.high)


def transform_bytes(call: Convolution) -> int:
    """Return what a convolution by Fourier transforms keeps: data, filters and results as complex float32.

    Source: Mathieu, Henaff, LeCun, Fast Training of Convolutional Networks through FFTs (2014),
    section 2: one half-plane of complex numbers for each map of data, filter and result.
    """
    if call.strided or len(call.image) != 2:
        return 0
    height, width = (
        1 << math.ceil(math.log2(i + k - 1)) for i, k in zip(call.image, call.kernel, strict=True)
    )
    maps = call.batch * sum(call.channels) + call.channels[0] * call.channels[1] // call.groups
    return maps * height * (width // 2 + 1) * 8


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


def sort_bytes(elements: int, itemsize: int) -> Range:
    """Return the scratch of a sort of `elements` numbers with their places."""
    pairs = elements * (itemsize + 8)
    return Range(low=0, expected=pairs, high=2 * pairs)
