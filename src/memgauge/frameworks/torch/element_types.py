"""Every element type of torch by name, and the bits that one element takes."""

from __future__ import annotations

import torch

from memgauge.arguments import PRECISIONS
from memgauge.errors import UsageError, nearest

# Types that pack several elements into a byte: bits of one element.
# Source: torch/headeronly/core/ScalarType.h, torch 2.13.
_PACKED = {"float4_e2m1fn_x2": 4, "quint4x2": 4, "quint2x4": 2, "bits1x8": 1, "bits2x4": 2, "bits4x2": 4}


def element_types() -> dict[str, torch.dtype]:
    """Return torch's element types by name, aliases such as `half` included."""
    return {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}


def bits_of(dtype: torch.dtype) -> int:
    """Return the bits of one element; sub-byte types count as packed."""
    name = str(dtype).removeprefix("torch.")
    if name in _PACKED:
        return _PACKED[name]
    small = name.removeprefix("u").removeprefix("int")
    if small.isdecimal() and int(small) < 8 and name.endswith(f"int{small}"):
        return int(small)
    return dtype.itemsize * 8


def bits_named(name: str) -> int:
    """Return the bits of one element of the type with this name.

    Raises:
        UsageError: torch has no such type; the message has the nearest names.
    """
    known = element_types()
    if name not in known:
        choices = dict.fromkeys((*PRECISIONS, *known))
        raise UsageError(
            f"precision {name!r} is unknown{nearest(name, choices)}; for --method formula it is "
            "any element type of torch, such as float64, bfloat16 or float8_e4m3fn"
        )
    return bits_of(known[name])
