"""From what an instrument hears of a real run to a trace.

The instrument (torch's profiler on the CPU, the allocator's history on CUDA)
hears allocations by address. Phase and layer come from marks that the hooks of
this very run leave in its record; roles come from the addresses of parameters,
gradients and optimizer state, looked up at the ends of phases. Nothing comes
from the prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from memgauge.frameworks.torch import protocol
from memgauge.frameworks.torch.roles import storages, tensors_of_roles
from memgauge.frameworks.torch.scopes import BACKWARD, OPTIMIZER, SETUP, Scopes
from memgauge.records import Category, MemoryEvent, Trace
from memgauge.workload import Workload


class Mark(NamedTuple):
    """What the hooks knew at one moment of the run."""

    phase: str
    layer: str
    recomputing: bool
    input_now: bool
    roles: dict[int, tuple[int, Category, str]] | None  # address -> size, category, layer
    step_ended: bool


class Runner:
    """Looks on while the protocol runs, and leaves numbered marks in the record of the run."""

    def __init__(self, workload: Workload, leave: Callable[[int], None]) -> None:
        self.workload = workload
        self._leave = leave
        self.marks: list[Mark] = []
        self.scopes = Scopes(on_change=self._mark, on_phase_end=self._mark_roles)
        self.objects: Any = ()
        self._input_now = False

    def built(self, objects: Any) -> None:
        self.objects = objects
        self.scopes.name_modules(objects)
        self._mark_roles()

    def step_begins(self, number: int) -> None:
        self._input_now = True
        self.scopes.start_step(number)

    def batch_made(self) -> None:
        self._input_now = False
        self._mark()

    def step_ended(self, number: int) -> None:
        self._mark_roles(step_ended=True)

    def _mark_roles(self, step_ended: bool = False) -> None:
        roles: dict[int, tuple[int, Category, str]] = {}
        for tensor, category, layer in tensors_of_roles(self.scopes.and_optimizers(self.objects)):
            for storage in storages(tensor):
                if storage.nbytes():
                    roles.setdefault(storage.data_ptr(), (storage.nbytes(), category, layer))
        self._mark(roles, step_ended)

    def _mark(
        self, roles: dict[int, tuple[int, Category, str]] | None = None, step_ended: bool = False
    ) -> None:
        scopes = self.scopes
        mark = Mark(scopes.phase, scopes.layer, scopes.recomputing, self._input_now, roles, step_ended)
        self.marks.append(mark)
        self._leave(len(self.marks) - 1)


class Found(NamedTuple):
    """One allocation or release in the tree, and where it stands."""

    address: int
    size: int
    operator: str
    operator_id: int | None  # of the call, so that give and take within one call are seen
    sequence: int | None  # of the backward node around it


class Reading:
    """Turns what an instrument found, in the order of time, into a trace."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._mark = Mark(SETUP, "", False, False, None, False)
        self._live: dict[int, int] = {}  # address -> storage
        self._size: list[int] = []
        self._call: list[int | None] = []
        self._settled: set[int] = set()
        self._events: list[MemoryEvent] = []
        self._categories: list[Category] = []
        self._layers: list[str] = []
        self._step_begin = 0
        self._end: int | None = None

    def read(self, items: Iterable[int | Found]) -> Trace:
        """Return the trace of what was found; an int is the number of a mark."""
        for item in items:
            if isinstance(item, int):
                self._see(self._runner.marks[item])
            elif item.size > 0:
                self._allocate(item)
            else:
                self._release(item)
        runner = self._runner
        warning = protocol.never_trained(runner.workload, runner.scopes, runner.objects)
        return Trace(
            events=self._events[: self._end],
            categories=self._categories,
            layers=self._layers,
            modules=self._runner.scopes.modules(),
            assumptions=[warning] if warning else [],
        )

    def _see(self, mark: Mark) -> None:
        self._mark = mark
        if mark.roles is not None:
            for address, (size, category, layer) in mark.roles.items():
                storage = self._live.get(address)
                if storage is None:  # it was there before the run began
                    storage = self._new(size, category, layer, "", None)
                    self._live[address] = storage
                if storage not in self._settled:
                    self._settled.add(storage)
                    self._categories[storage] = category
                    self._layers[storage] = layer
        if mark.step_ended:
            for storage in self._live.values():
                if storage not in self._settled and storage in self._made_in_step():
                    self._categories[storage] = Category.OTHER
            self._step_begin = len(self._size)
            self._end = len(self._events)

    def _made_in_step(self) -> range:
        return range(self._step_begin, len(self._size))

    def _allocate(self, found: Found) -> None:
        layer = self._mark.layer
        if found.sequence is not None and not self._mark.recomputing:
            layer = self._runner.scopes.layer_of_node(found.sequence)
        storage = self._new(found.size, self._category(found), layer, found.operator, found.operator_id)
        self._live[found.address] = storage

    def _new(self, size: int, category: Category, layer: str, operator: str, call: int | None) -> int:
        storage = len(self._size)
        self._size.append(size)
        self._call.append(call)
        self._categories.append(category)
        self._layers.append(layer)
        self._events.append(MemoryEvent(storage, size, self._mark.phase, layer, operator))
        return storage

    def _release(self, found: Found) -> None:
        storage = self._live.pop(found.address, None)
        if storage is None:
            return  # taken before the run began
        if found.operator_id is not None and found.operator_id == self._call[storage]:
            self._categories[storage] = Category.WORKSPACE
        event = MemoryEvent(storage, -self._size[storage], self._mark.phase, self._mark.layer, found.operator)
        self._events.append(event)

    def _category(self, found: Found) -> Category:
        mark = self._mark
        if mark.input_now:
            return Category.INPUT
        if mark.phase == SETUP:
            return Category.OTHER
        if found.operator_id is None and found.sequence is None:
            return Category.UNATTRIBUTED
        if mark.recomputing:
            return Category.ACTIVATION
        return Category.TEMPORARY if mark.phase.endswith((BACKWARD, OPTIMIZER)) else Category.ACTIVATION
