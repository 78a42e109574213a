"""What NVIDIA's and AMD's libraries take for themselves through torch's allocator: a model for each.

Each returns bytes, exactly where torch's source says so, else within limits. `MECHANISMS`
says what each rests on; the keys are those of `records.Scratch.mechanism`. cuDNN's convolutions
are a matter of their own: `memgauge.devices.convolutions`.
"""

from __future__ import annotations

import math

from memgauge.devices import Device
from memgauge.devices.stack import Stack, workspace_config_bytes
from memgauge.records import Range
from memgauge.units import KIB, MIB

CUBLAS, CUBLASLT, CONVOLUTION, SEARCH = "cublas", "cublaslt", "cudnn convolution", "cudnn search"
COLUMNS = "convolution without cudnn"
EMBEDDING, SORT, ATTENTION = "embedding backward", "sorting", "attention backward"
INDEX, SPARSE = "indices and masks", "sparse matrices"

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
    SPARSE: "sorted places of a sparse matrix that is not coalesced; rows and places in int32 and the result by columns "
    "of its product (aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu `_coalesce_sparse_cuda`, "
    "SparseCUDATensorMath.cu `s_addmm_out_sparse_dense_cuda`)",
    SORT: "double buffers of a radix sort of rows above 4,096 (CUB, DeviceRadixSort; limits; "
    "aten/src/ATen/native/cuda/Sort.h)",
}


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


def coalescing_bytes(count: int) -> int:
    """Return what sorts the places of a sparse tensor while the coalesced one is made.

    Three int64 for each element: its place as one number, its order, where its like begins. The sort's own
    buffers are gone by then, which were no more.

    Source: sparse/cuda/SparseCUDATensor.cu `_coalesce_sparse_cuda`.
    """
    return 24 * count


def coalesced_bytes(count: int, dimensions: int, value_bytes: int) -> int:
    """Return a coalesced copy where nothing was there twice: int64 for each dimension of an element, and the values."""
    return 8 * count * dimensions + value_bytes


def sparse_product_bytes(count: int, rows: int, result_bytes: int) -> int:
    """Return what a product of a sparse matrix with a dense one takes beside its result.

    Where rows begin and the columns of elements in int32, and the result by columns, as cuSPARSE gives it;
    cuSPARSE's own buffer is not known.

    Source: sparse/cuda/SparseCUDATensorMath.cu `s_addmm_out_sparse_dense_cuda`, `_to_csr_int`.
    """
    return 4 * (rows + 1) + 4 * count + result_bytes
