"""The CUDA context of a process: what it takes on a device outside torch's allocator.

Three parts, of which two follow from published facts:

    local memory     1 KiB of stack for every thread that can be resident at once
                     (NVIDIA, CUDA C++ Programming Guide, cudaLimitStackSize and local memory;
                     contexts.toml: taking it off leaves 845 and 809 MiB on the two cards of CUDA 10.1
                     whose contexts are 1,005 and 877 MiB)
    loaded code      all kernels of torch's libraries before lazy loading, else those called so far
    driver           its own structures

The last two are what is left of the observations in contexts.toml once local memory is taken off.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

import msgspec

from memgauge.devices import Device, Figure, Ladder, catalogue
from memgauge.devices.stack import Stack, parse_version
from memgauge.records import Range
from memgauge.units import KIB, MIB

STACK_BYTES = 1 * KIB  # cudaLimitStackSize by default: CUDA C++ Programming Guide
# Libraries after init: 31 MB on a T4 (contexts.toml: 110,100,480 to 141,426,688).
LIBRARIES_BYTES = 30 * MIB
# Half-widths of a context as a share of it, 95 %, by how it is known. Those of `others` span what
# drivers change (contexts.toml has the same card within 2 % on one machine, pytorch issue 107667
# speaks of 300 MB where 109888 speaks of 400 MB); those of `guessed` span the observations.
SPREAD = {"measured": 0.02, "others": 0.2, "vendor": 0.3, "guessed": 0.6}
# Beyond local memory and libraries, once kernels are loaded lazily: 65, 133 and 213 MiB on the three
# cards seen. Before: 809 and 845 MiB with CUDA 10.1, 1,363 MiB with CUDA 11.0. MiB.
LAZY, EAGER_CUDA_10, EAGER_CUDA_11 = 140 * MIB, 830 * MIB, 1360 * MIB
# One architecture's code of a library is a part of it; a card before Volta takes less of it.
# Torres 2021 reports 497 MB for all of a small network's run on a TITAN X.
EAGER_LOW = 350 * MIB


class Observation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One context that somebody saw."""

    device: str
    torch: str
    cuda: str
    bytes: int
    instrument: str
    grade: str
    source: str
    ladder: Ladder | None = None

    def matches(self, device: Device, stack: Stack) -> bool:
        """Return whether it is of this card, and of software that loads kernels in the same way."""
        seen = Stack(torch=parse_version(self.torch, "torch"), cuda=parse_version(self.cuda, "CUDA"))
        same = seen.is_lazy == stack.is_lazy
        return (
            same
            and self.device == device.name
            and (seen.is_lazy or seen.cuda_version[0] == stack.cuda_version[0])
        )


@cache
def observations() -> tuple[Observation, ...]:
    """Return what contexts.toml lists."""
    text = resources.files("memgauge.devices").joinpath("contexts.toml").read_text()
    return tuple(msgspec.convert(tomllib.loads(text)["context"], list[Observation]))


def context(device: Device, stack: Stack) -> tuple[Range, Figure]:
    """Return what a process takes beside torch's allocator, 95 % range, and what that rests on.

    Args:
        device: A card; a figure of its own (from a device file) comes first.
        stack: The software.
    """
    figure = device.context or _observed(device, stack) or _derived(device, stack)
    half = int(figure.bytes * SPREAD[figure.grade])
    low, high = figure.bytes - half, figure.bytes + half
    if figure.grade == "guessed" and not stack.is_lazy:
        low = min(low, EAGER_LOW)
    return Range(low=low, expected=figure.bytes, high=high), figure


def _observed(device: Device, stack: Stack) -> Figure | None:
    for seen in observations():
        if seen.matches(device, stack):
            total = seen.bytes if seen.ladder is not None else seen.bytes + LIBRARIES_BYTES
            return Figure(bytes=total, grade=seen.grade, source=f"{seen.source} ({seen.instrument})")
    return None


def _derived(device: Device, stack: Stack) -> Figure:
    local = local_memory_bytes(device)
    code = LAZY if stack.is_lazy else EAGER_CUDA_11 if stack.cuda_version >= (11, 0) else EAGER_CUDA_10
    return Figure(
        bytes=local + code + LIBRARIES_BYTES,
        grade="guessed",
        source=f"local memory of all resident threads, {local // MIB} MiB, and code as on other cards (contexts.toml)",
    )


def local_memory_bytes(device: Device) -> int:
    """Return the stack of every thread that can be resident; that of an A100 where the card is not known."""
    known = device.multiprocessors and device.threads_per_multiprocessor
    card = device if known else catalogue()["nvidia-a100-40gb"]
    return (card.multiprocessors or 0) * (card.threads_per_multiprocessor or 0) * STACK_BYTES
