"""How wide a row oneDNN's AVX-512 convolutions keep in registers; wider padding is left to others.

Source: oneDNN src/cpu/x64/jit_avx512_common_conv_kernel.cpp, init_conf. Its search for the division
of work that balances threads best is cut short here: the widest blocking of channels is taken.
"""

from __future__ import annotations

from memgauge.frameworks.torch.cpu_workspace.onednn import Problem, cache_bytes, ceil_div

_BLOCK = 16  # channels in a register
_FLOAT = 4


def row_fits_forward(p: Problem) -> bool:
    """Whether padding at both ends of a row is within what one pass over it covers."""
    if p.vector != 16:
        return p.padding[2] <= min(p.output[2], 28)
    width = _forward_width(p)
    whole = p.output[2] - p.output[2] % width
    right = (whole - 1) * p.stride[2] + _extent(p) - p.source[2] - p.padding[2]
    return p.padding[2] <= width and right <= width


def row_fits_backward_data(p: Problem) -> bool:
    """Whether what a filter reaches beyond both ends of a row is within one pass over it."""
    if p.vector != 16:
        return True
    width, stride, source = _backward_width(p), p.stride[2], p.source[2]
    reach, tail = _extent(p) - 1, p.source[2] % width
    left = max(0, (reach - p.padding[2]) // stride)
    right = max(0, (reach - max(0, p.end_padding[2] + tail)) // stride)
    if max(left, right) * stride > width:
        return False
    return source <= width or (width % stride == 0 and p.end_padding[2] + tail >= 0)


def _extent(p: Problem) -> int:
    return (p.kernel[2] - 1) * (p.dilation[2] + 1) + 1


def _largest_divisor(value: int, at_most: int) -> int:
    return next(i for i in range(min(value, at_most), 0, -1) if value % i == 0)


def _forward_width(p: Problem) -> int:
    depth, height, width = p.kernel
    inputs, outputs, row = p.ic // p.groups, p.oc // p.groups, p.output[2]
    blocks = ceil_div(outputs, _BLOCK)
    source = ceil_div(p.source[2], p.stride[2]) * _BLOCK * height * depth
    held = _FLOAT * (source + row * _BLOCK * 2 + depth * height * width * _BLOCK * _BLOCK * 2)
    small = width == 3 and row <= 28 and held < cache_bytes(1)
    small = small and not (row == 13 and inputs >= 192) and not (row == 28 and inputs >= 512)
    if p.stride[1] != 1 or p.stride[2] != 1:
        small = small and p.batch <= 16 and (outputs <= 192 or p.output[1] <= 10)
    first = p.groups == 1 and p.ic < _BLOCK
    single = p.batch == 1 and (row <= 28 or first or (row <= 147 and outputs <= 96))
    if width > 3 or small or single:
        paired = held < cache_bytes(1) and row <= 8 and height <= 3 and width <= 3 and blocks % 2 == 0
        return min(row, 10 if paired and p.batch > 1 else 28)
    return min(row, 31 // (_largest_divisor(blocks, 5) + 1))


def _backward_width(p: Problem) -> int:
    _, height, width = p.kernel
    source, row = p.source[2], p.output[2]
    blocks = ceil_div(p.ic // p.groups, _BLOCK)
    held = _FLOAT * _BLOCK * (source * 2 * height + row + height * width * _BLOCK * 2)
    fits = held <= cache_bytes(1)
    down = p.stride[0] > 1 or p.stride[1] > 1
    narrow = width == 1 or (width == 5 and source < 8)
    narrow = narrow or (width < 5 and (source <= 5 or 8 < source <= 13 or not fits))
    if narrow and not down:
        return min(source, 31 // (_largest_divisor(blocks, 4) + 1))
    wide = width > 3 or (width == 3 and held < cache_bytes(1) and row > 8)
    paired = not wide and not down and blocks % 2 == 0
    return min(source, 10 if paired else 28)
