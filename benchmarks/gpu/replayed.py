"""The allocator model fed with a recorded history must give that history's reserved bytes exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memgauge.allocators.blocks import Block, Driver
from memgauge.allocators.cuda_caching import GRAPH_POOL, CudaCachingAllocator
from memgauge.allocators.settings import CudaSettings, parse_cuda_settings

Rows = Sequence[Sequence[Any]]


class _Recorded(Driver):
    """The driver of a recording: a segment lies where it lay then."""

    __slots__ = ("upcoming",)

    def __init__(self) -> None:
        super().__init__(None)
        self.upcoming: list[tuple[int, int]] = []  # address and size of what the history obtains next

    def address(self, count_bytes: int, alignment_bytes: int = 1) -> int:
        for place, (address, size) in enumerate(self.upcoming):
            if size == count_bytes:
                del self.upcoming[place]
                return address
        return (1 << 62) + super().address(count_bytes, alignment_bytes)


def replayed(history: Rows, alloc_conf: str = "") -> dict[str, Any]:
    """Return the model's and the recorded peak of reserved bytes of a history, and at how many moments they differ.

    Args:
        history: Rows of [action, address, size], and stream and a CUDA graph's pool if need be, as
            `measured.compact` writes them; it begins with an allocator that holds nothing.
        alloc_conf: Settings that the run had.

    Sizes of allocations are as requested (`a`, and `f` when the block may be used again); segments are
    obtained (`s`, `m`) and given back (`g`, `u`). A run of segments given back between two requests is a
    release of the whole cache (`torch.cuda.empty_cache()`, cuDNN's search, or memory that ran out).

    Of free blocks of equal size, torch takes the one whose segment was obtained first since its
    `registration_counter` is set for every pool (pytorch/pytorch#183591), before that the one at the lower
    address, which is the driver's choice: the history is replayed by both rules, and the better is named.
    """
    settings = parse_cuda_settings(alloc_conf)
    by_order = _replay(history, settings, Driver(None))
    if not by_order["differing"]:
        return {**by_order, "ties": "obtained first"}
    by_address = _replay(history, settings, _Recorded())
    if by_address["differing"] < by_order["differing"]:
        return {**by_address, "ties": "lower address"}
    return {**by_order, "ties": "obtained first"}


def _replay(history: Rows, settings: CudaSettings, driver: Driver) -> dict[str, int]:
    allocator = CudaCachingAllocator(settings, driver=driver)
    live: dict[int, Block] = {}
    reserved = recorded_peak = differing = 0
    releasing = False
    for action, address, size, *place in history:
        if action in ("g", "u"):
            reserved -= size
            if not releasing:
                allocator.release_cached()
            releasing = True
            continue
        releasing = False
        if action in ("s", "m"):
            reserved += size
            if isinstance(driver, _Recorded):
                driver.upcoming.append((address, size))
        elif action == "a":
            stream, pool = (*place, 0, 0)[:2]
            block = allocator.allocate(size, pool * GRAPH_POOL + stream)
            assert block is not None  # the driver never refuses
            live[address] = block
        elif address in live:
            allocator.free(live.pop(address))
        if action == "a":
            recorded_peak = max(recorded_peak, reserved)
            differing += allocator.reserved_bytes != reserved
    return {"peak": allocator.peak_reserved_bytes, "recorded_peak": recorded_peak, "differing": differing}
