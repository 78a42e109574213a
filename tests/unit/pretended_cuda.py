"""A CUDA device that is not there: `torch.cuda` and NVML answer as documented, of a run on phantom tensors.

Tensors come from the phantom mode of a trace. Each request of theirs goes at once to the model of the
allocator, and what that does is told in the shapes of torch 2.13 (torch/cuda/memory.py: `_snapshot`,
`memory_stats`) and of NVML (nvml.h: `used` of version 1 has the driver's own reserve in it, which
`cudaMemGetInfo` leaves out of its total).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace as Answer
from typing import Any

import torch
from tests.monitor.replayed_nvml import Nvml

from memgauge.allocators.blocks import Block, Driver
from memgauge.allocators.cuda_caching import CudaCachingAllocator
from memgauge.allocators.settings import CudaSettings, parse_cuda_settings
from memgauge.frameworks.torch.cuda_devices import Card
from memgauge.frameworks.torch.cuda_phantom import CudaPhantomMode
from memgauge.frameworks.torch.cuda_semantics import cuda_semantics
from memgauge.frameworks.torch.ledger import Ledger
from memgauge.frameworks.torch.patches import Patches
from memgauge.frameworks.torch.scopes import Scopes
from memgauge.frameworks.torch.values import ValueReader
from memgauge.records import Category
from memgauge.units import GIB, MIB

UUID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"


class Device:
    """One GPU, its driver, and torch's allocator on it.

    Args:
        total_bytes: What `cudaMemGetInfo` calls the total.
        others_bytes: What other processes hold.
        alloc_conf: PYTORCH_CUDA_ALLOC_CONF.
    """

    CONTEXT = 430 * MIB
    RESERVE = 620 * MIB  # the driver's own, in NVML's figures only
    SEGMENTS_AT = 0x7F0000000000

    def __init__(self, *, total_bytes: int = 80 * GIB, others_bytes: int = 0, alloc_conf: str = "") -> None:
        self.total_bytes, self.others_bytes = total_bytes, others_bytes
        self.has_context = False
        self.entries: list[dict[str, Any]] | None = None
        settings = parse_cuda_settings(alloc_conf)
        room = total_bytes - others_bytes - self.CONTEXT
        self.allocator = CudaCachingAllocator(settings, driver=_Telling(self, settings, room))
        self._held: dict[int, tuple[Block, int, int, int]] = {}
        self._calls = {"allocated": 0, "freed": 0}
        self._requested = 0
        self._peaks = dict.fromkeys(("allocated_bytes", "requested_bytes"), 0)

    def record(self, action: str, address: int, size: int, stream: int = 0) -> None:
        if self.entries is not None:
            entry = {"action": action, "addr": address, "size": size, "stream": stream, "time_us": 1}
            self.entries.append(entry)

    def request(self, number: int, size: int, stream: int, address: int) -> None:
        self.has_context = True
        block = self.allocator.allocate(size, stream)
        if block is None:
            if self.entries is not None:  # it has no address
                self.entries.append({"action": "oom", "device_free": 0, "size": size, "stream": stream})
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate much.\nSecond line.")
        self._held[number] = block, size, stream, address
        self._calls["allocated"] += 1
        self._requested += size
        self.record("alloc", address, size, stream)
        for name, now in self._now().items():
            self._peaks[name] = max(self._peaks[name], now)

    def release(self, number: int) -> None:
        block, size, stream, address = self._held.pop(number)
        self.allocator.free(block)
        self._calls["freed"] += 1
        self._requested -= size
        self.record("free_requested", address, size, stream)
        self.record("free_completed", address, size, stream)

    def _now(self) -> dict[str, int]:
        return {"allocated_bytes": self.allocator.allocated_bytes, "requested_bytes": self._requested}

    def statistics(self, device: Any = None) -> dict[str, Any]:
        now = {**self._now(), "reserved_bytes": self.allocator.reserved_bytes}
        peaks = {**self._peaks, "reserved_bytes": self.allocator.peak_reserved_bytes}
        bytes_of = {name: {"all": {"current": now[name], "peak": peaks[name]}} for name in now}
        return {"allocation": {"all": self._calls}, "num_alloc_retries": 0, **bytes_of}

    @property
    def process_bytes(self) -> int:
        return self.CONTEXT + self.allocator.reserved_bytes if self.has_context else 0

    def memory_info(self, device: Any = None) -> tuple[int, int]:
        self.has_context = True
        return self.total_bytes - self.others_bytes - self.process_bytes, self.total_bytes

    def torchs_answers(self) -> dict[Any, dict[str, Any]]:
        """Return what replaces which attributes."""
        properties = Answer(
            name="NVIDIA H100 80GB HBM3", major=9, minor=0, total_memory=self.total_bytes, uuid=UUID,
            multi_processor_count=132, max_threads_per_multi_processor=2048, gcnArchName="",
        )  # fmt: skip

        signature = inspect.signature(torch.cuda.memory._record_memory_history)

        def recording(*arguments: Any, **named: Any) -> None:
            enabled = signature.bind(*arguments, **named).arguments.get("enabled", "all")
            self.entries = None if enabled is None else []

        def synchronize(device: Any = None) -> None:
            self.has_context = True

        memory = {
            "memory_stats": _memory_stats,
            "memory_stats_as_nested_dict": self.statistics,
            "mem_get_info": self.memory_info,
            "memory_allocated": lambda device=None: self.allocator.allocated_bytes,
            "memory_reserved": lambda device=None: self.allocator.reserved_bytes,
        }
        about = {
            "get_device_properties": lambda device=None: properties,
            "get_device_capability": lambda device=None: (9, 0),
            "synchronize": synchronize,
        }
        history = {
            "_record_memory_history": recording,
            "_snapshot": lambda device=None: {
                "segments": [],
                "device_traces": [[*(self.entries or ()), {"action": "snapshot", "addr": 0, "size": 0}]],
            },
        }
        return {
            torch.cuda: {**memory, **about},
            torch.cuda.memory: {**memory, **history},
            torch.version: {"cuda": "13.0"},
        }


_memory_stats = torch.cuda.memory.memory_stats  # torch's own, of the nested dictionary


class _Telling(Driver):
    """A driver that tells the history what it gives."""

    __slots__ = ("_device", "_grows")

    def __init__(self, device: Device, settings: CudaSettings, room: int) -> None:
        super().__init__(room)
        self._device, self._grows = device, settings.expandable_segments

    def take(self, count_bytes: int) -> bool:
        taken = super().take(count_bytes)
        if taken and self._grows:
            self._device.record("segment_map", Device.SEGMENTS_AT, count_bytes)
        return taken

    def address(self, count_bytes: int, alignment_bytes: int = 1) -> int:
        found = super().address(count_bytes, alignment_bytes)
        if not self._grows:
            self._device.record("segment_alloc", Device.SEGMENTS_AT + found, count_bytes)
        return found

    def give_back(self, count_bytes: int) -> None:
        super().give_back(count_bytes)
        self._device.record(
            "segment_unmap" if self._grows else "segment_free", Device.SEGMENTS_AT, count_bytes
        )


class _Ledger(Ledger):
    """Sends what tensors and libraries take to the device."""

    def __init__(self, scopes: Scopes, device: Device) -> None:
        super().__init__(scopes)
        self._device = device
        self._address: int | None = None

    def allocate(self, storage: torch.UntypedStorage, category: Category, layer: str) -> None:
        self._address = storage.data_ptr()
        try:
            super().allocate(storage, category, layer)
        finally:
            self._address = None

    def _new(self, size: int, category: Category, layer: str) -> int:
        number = super()._new(size, category, layer)
        address = (1 << 50) + number if self._address is None else self._address
        try:
            self._device.request(number, size, self.stream, address)
        except torch.OutOfMemoryError:
            del self.live[number]
            raise
        return number

    def release(self, number: int) -> None:
        is_held = number in self.live
        super().release(number)
        if is_held:
            self._device.release(number)

    def release_cache(self) -> None:
        super().release_cache()
        self._device.allocator.release_cached()


class PretendedNvml(Nvml):
    """NVML where torch's device has index `place`; the others belong to others, whose use grows with each look."""

    def __init__(self, device: Device, *, count: int = 1, place: int = 0, is_slice: bool = False) -> None:
        super().__init__()
        self._device, self._count, self._is_slice = device, count, is_slice
        self._own = f"gpu{place}/0" if is_slice else f"gpu{place}"
        self.slices = int(is_slice)
        self._looks = 0
        self.pids_are_the_hosts = False

    def nvmlDeviceGetCount(self) -> int:
        return self._count

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return ("MIG-" if "/" in handle else "GPU-") + (UUID if handle == self._own else handle)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        self._looks += 1
        device = self._device
        own = device.RESERVE + device.others_bytes + device.process_bytes
        return Answer(used=own if handle == self._own else self._looks * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        import os

        pid = 4_000_000 if self.pids_are_the_hosts else os.getpid()
        theirs = [Answer(pid=pid + 1, usedGpuMemory=GIB)]
        if handle != self._own or not self._device.has_context:
            return theirs
        return [*theirs, Answer(pid=pid, usedGpuMemory=self._device.process_bytes)]


@contextmanager
def pretended(device: Device, nvml: PretendedNvml | None = None) -> Iterator[Device]:
    """Everything inside runs on the device; without `nvml` its binding is not installed."""
    scopes = Scopes()
    ledger = _Ledger(scopes, device)
    mode = CudaPhantomMode(ledger, scopes, ValueReader({}))
    card = Card(name="NVIDIA H100 80GB HBM3", capability=(9, 0), multiprocessors=132, cublas_bytes=32 * MIB)
    before = sys.modules.get("pynvml", _MISSING)
    with ExitStack() as stack:
        stack.callback(_restore, before)
        sys.modules["pynvml"] = nvml  # type: ignore[assignment]
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(mode)
        stack.enter_context(scopes)  # so that backward is known as such: its thread has handles of its own
        stack.enter_context(cuda_semantics(mode, card))
        patches = stack.enter_context(Patches())
        for module, answers in device.torchs_answers().items():
            for name, answer in answers.items():
                patches.set(module, name, answer)
        yield device


_MISSING: Any = object()


def _restore(before: Any) -> None:
    if before is _MISSING:
        del sys.modules["pynvml"]
    else:
        sys.modules["pynvml"] = before
