"""Where a tensor is: on the GPU under study, or in the host's memory.

Phantom tensors are CPU tensors whatever the target. For a CUDA target this
table says which of their storages stand for device memory; what is not in it
(made before the run, by NumPy, by a data loader) is in the host's.

    torch.zeros(3), device="cpu", .cpu()            host
    device="cuda", .cuda(), .to("cuda")             device
    an operator with an input on the device         device (host scalars may join in)
    an operator with inputs on the host only        host
    made by torch's own C++ without any input       device: it stands beside tensors that are there
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.nn.parameter import is_lazy

from memgauge.allocators.cuda_host import CudaHostAllocator


class _Results(threading.local):
    """Where results go in this thread: a loader's own thread makes some on the host while the step runs."""

    asked: bool | None = None  # what a call names explicitly
    on_device: bool = True


class Placement:
    """Which storages of the run are device memory; storages go from the table when they die."""

    def __init__(self, unknown: set[int]) -> None:
        self._unknown = unknown  # addresses of storages without real values; they leave with the storage
        self._places: dict[int, tuple[weakref.ref[torch.UntypedStorage], bool]] = {}
        self.pinned = CudaHostAllocator()
        self._pinned: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._results = _Results()
        self.moved_in_vain = False  # whether the program moved to the device what was there already
        self.active = False  # while the trace runs; a name that a program kept does nothing afterwards

    @property
    def now(self) -> bool:
        """Return whether results of the running operator go to the device."""
        return self._results.on_device

    @contextmanager
    def at(self, on_device: bool) -> Iterator[None]:
        """Everything made inside is on the device, or is not."""
        here = self._results
        before = here.asked, here.on_device
        here.asked = here.on_device = on_device
        try:
            yield
        finally:
            here.asked, here.on_device = before

    @contextmanager
    def beside(self, inputs: Iterable[torch.Tensor]) -> Iterator[None]:
        """Results of an operator go where its inputs are, unless the caller said where."""
        here = self._results
        before = here.on_device
        if here.asked is not None:
            here.on_device = here.asked
        else:
            places = [self.on_device(t) for t in inputs]
            here.on_device = any(places) or not places
        try:
            yield
        finally:
            here.on_device = before

    def put(self, storage: torch.UntypedStorage) -> None:
        """Note a new storage where results go now."""
        address = storage._cdata

        def gone(reference: weakref.ref[torch.UntypedStorage]) -> None:
            found = self._places.get(address)
            if found is not None and found[0] is reference:
                del self._places[address]
                self._unknown.discard(address)

        self._places[address] = (weakref.ref(storage, gone), self.now)

    def pin(self, tensor: torch.Tensor, size: int | None = None) -> torch.Tensor:
        """Note that a new tensor lies in pinned memory; returns it.

        Args:
            tensor: One of the host's; a sparse one is passed by.
            size: Bytes of its storage in torch, where they are others than here.
        """
        if tensor.layout is not torch.strided:
            return tensor
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes() if size is None else size
        if size and address not in self._pinned:
            block = self.pinned.allocate(size)

            def gone(_: object) -> None:
                del self._pinned[address]
                self.pinned.free(block)

            self._pinned[address] = weakref.ref(storage, gone)
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor lies in pinned memory of the run's."""
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._pinned

    def made_here(self, storage: torch.UntypedStorage) -> bool:
        """Return whether the run made this storage."""
        return storage._cdata in self._places

    def on_device(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor is in device memory."""
        tensor = values_of(tensor)
        try:
            found = self._places.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):  # a wrapper without a storage
            return False
        return found is not None and found[1]


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return what holds the values of a tensor: itself, or of a sparse one its values.

    A parameter that a lazy module has not made yet has a storage of no bytes, and refuses to be asked for it.
    """
    if is_lazy(tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return tensor.data
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    return tensor if tensor.layout is torch.strided else tensor.values()
