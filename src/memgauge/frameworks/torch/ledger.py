"""Write down every storage that comes and goes, and who it belongs to.

A storage, not a tensor, is what takes memory: views and aliases share one.
Its release is seen by a weak reference to the storage object, which PyTorch
keeps alive exactly as long as the memory behind it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping

import torch

from memgauge.frameworks.torch.scopes import Scopes
from memgauge.records import Category, MemoryEvent, Scratch


class Ledger:
    """The events of a trace as they happen; categories are settled as roles become known."""

    def __init__(self, scopes: Scopes) -> None:
        self.events: list[MemoryEvent] = []
        self.categories: list[Category] = []
        self.layers: list[str] = []
        self.operator = ""
        self.unknown: set[int] = set()  # addresses of live storages whose content is not known
        self._scopes = scopes
        self._ids: dict[int, int] = {}  # address of a live StorageImpl -> storage
        self._refs: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._settled: set[int] = set()
        self.live: dict[int, int] = {}  # storage -> requested bytes
        self.scratch: dict[int, Scratch] = {}
        self.cache_releases: list[int] = []
        self.stream = 0  # the current one; each has pools of its own
        # Added to the stream's number while a CUDA graph is captured: it has pools of its own again.
        self.graph_pool = 0
        self.memory_fraction = 1.0  # of the card that the program lets torch take
        self.captures = 0  # of CUDA graphs, so far
        self.streams: dict[int, int] = {}  # storage -> stream, where that is not the default one

    def knows(self, address: int) -> bool:
        """Return whether the storage at this address was allocated within the run."""
        return address in self._ids

    def number(self, address: int) -> int | None:
        """Return the number of the storage at this address, None if the run did not make it."""
        return self._ids.get(address)

    def allocate(self, storage: torch.UntypedStorage, category: Category, layer: str) -> None:
        """Note that `storage` was requested now, by whatever operator is running."""
        size = storage.nbytes()
        if size == 0:
            return
        number = self._new(size, category, layer)
        address = storage._cdata

        def released(_: object) -> None:
            self._refs.pop(number, None)
            if self._ids.get(address) == number:
                del self._ids[address]
                self.unknown.discard(address)
            self.release(number)

        self._ids[address] = number
        self._refs[number] = weakref.ref(storage, released)

    def _new(self, size: int, category: Category, layer: str) -> int:
        number = len(self.categories)
        self.categories.append(category)
        self.layers.append(layer)
        self.live[number] = size
        if self.stream or self.graph_pool:
            self.streams[number] = self.stream + self.graph_pool
        self.events.append(MemoryEvent(number, size, self._scopes.phase, layer, self.operator))
        return number

    def release(self, number: int) -> None:
        """Note that storage `number` is given back now."""
        size = self.live.pop(number, 0)
        if size:
            self.events.append(
                MemoryEvent(number, -size, self._scopes.phase, self._scopes.layer, self.operator)
            )

    def hold(self, size: int, category: Category, layer: str) -> int:
        """Note a request that no tensor object stands for; the caller releases it by number."""
        return self._new(size, category, layer)

    def take(self, expected: int, scratch: Scratch, layer: str) -> int:
        """Note what a library takes for itself; it stays `workspace` however long it is kept."""
        number = self._new(max(expected, 1), Category.WORKSPACE, layer)
        self.scratch[number] = scratch
        self._settled.add(number)
        return number

    def release_cache(self) -> None:
        """Note that the allocator gives its cached memory back now."""
        self.cache_releases.append(len(self.events))

    def settle(self, roles: Mapping[int, tuple[Category, str]]) -> None:
        """Give storages their lasting category and layer: parameters, gradients, state.

        Args:
            roles: Address of a StorageImpl -> (category, layer).
        """
        for address, (category, layer) in roles.items():
            number = self._ids.get(address)
            if number is None or number in self._settled:
                continue
            self._settled.add(number)
            self.categories[number] = category
            self.layers[number] = layer

    def keep(self, since: int) -> None:
        """What was made after event `since` and is still here belongs to the user: `other`."""
        for number in {e.storage for e in self.events[since:] if e.requested_bytes > 0}:
            if number in self.live and number not in self._settled:
                self.categories[number] = Category.OTHER

    def addresses(self) -> Iterable[int]:
        """Return the addresses of all live storages."""
        return self._ids.keys()
