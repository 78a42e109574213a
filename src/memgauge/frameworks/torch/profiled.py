"""Measure on the CPU: really run the workload and hear every allocation from torch's profiler.

The profiler gives a tree of operators with each allocation and release at its
place. Phase and layer come from marks that the hooks of this very run leave in
that tree; roles come from the addresses of parameters, gradients and optimizer
state, looked up at the ends of phases. Nothing comes from the trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch._C._profiler import RecordScope, _EventType, _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from memgauge.frameworks.torch import protocol
from memgauge.frameworks.torch.operators import is_composite
from memgauge.frameworks.torch.roles import storages, tensors_of_roles
from memgauge.frameworks.torch.scopes import BACKWARD, OPTIMIZER, SETUP, Scopes
from memgauge.records import Category, MemoryEvent, Trace
from memgauge.workload import Workload

_MARK = "memgauge:"


class _Mark(NamedTuple):
    """What the hooks knew at one moment of the run."""

    phase: str
    layer: str
    recomputing: bool
    input_now: bool
    roles: dict[int, tuple[int, Category, str]] | None  # address -> size, category, layer
    step_ended: bool


def profiled_run(workload: Workload, *, steps: int = 3) -> Trace:
    """Run the workload on the CPU under torch's profiler and return what it allocated.

    Raises:
        Exception: Whatever the user's own functions raise; what was seen until
            then is attached as `error.partial_trace`.
    """
    runner = _Runner(workload)
    config = _ExperimentalConfig(capture_overload_names=True)
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True, experimental_config=config)
    failure: BaseException | None = None
    with profiler:
        try:
            with runner.scopes:
                protocol.run(workload, runner, torch.device("cpu"), steps)
        except (Exception, KeyboardInterrupt) as error:
            failure = error
        runner.objects = ()
    tree = profiler.profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
    trace = _Reading(runner).read(tree)
    if failure is not None:
        failure.partial_trace = trace  # type: ignore[attr-defined]
        raise failure
    return trace


class _Runner:
    """Looks on while the protocol runs, and leaves marks in the profiler's tree."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.marks: list[_Mark] = []
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

    def step_ended(self, number: int) -> bool:
        self._mark_roles(step_ended=True)
        return False

    def _mark_roles(self, step_ended: bool = False) -> None:
        roles: dict[int, tuple[int, Category, str]] = {}
        for tensor, category, layer in tensors_of_roles(self.objects):
            for storage in storages(tensor):
                if storage.nbytes():
                    roles.setdefault(storage.data_ptr(), (storage.nbytes(), category, layer))
        self._mark(roles, step_ended)

    def _mark(
        self, roles: dict[int, tuple[int, Category, str]] | None = None, step_ended: bool = False
    ) -> None:
        scopes = self.scopes
        mark = _Mark(scopes.phase, scopes.layer, scopes.recomputing, self._input_now, roles, step_ended)
        self.marks.append(mark)
        with record_function(f"{_MARK}{len(self.marks) - 1}"):
            pass


class _Found(NamedTuple):
    """One allocation or release in the tree, and where it stands."""

    address: int
    size: int
    operator: str
    operator_id: int | None  # of the call, so that give and take within one call are seen
    sequence: int | None  # of the backward node around it


class _Reading:
    """Turns the profiler's tree into a trace."""

    def __init__(self, runner: _Runner) -> None:
        self._runner = runner
        self._mark = _Mark(SETUP, "", False, False, None, False)
        self._live: dict[int, int] = {}  # address -> storage
        self._size: list[int] = []
        self._call: list[int | None] = []
        self._settled: set[int] = set()
        self._events: list[MemoryEvent] = []
        self._categories: list[Category] = []
        self._layers: list[str] = []
        self._step_begin = 0
        self._end: int | None = None

    def read(self, tree: list[Any]) -> Trace:
        for item in _walk(tree):
            if isinstance(item, int):
                self._see(self._runner.marks[item])
            elif item.size > 0:
                self._allocate(item)
            else:
                self._release(item)
        warning = protocol.never_trained(self._runner.workload, self._runner.scopes)
        return Trace(
            events=self._events[: self._end],
            categories=self._categories,
            layers=self._layers,
            modules=self._runner.scopes.modules(),
            assumptions=[warning] if warning else [],
        )

    def _see(self, mark: _Mark) -> None:
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

    def _allocate(self, found: _Found) -> None:
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

    def _release(self, found: _Found) -> None:
        storage = self._live.pop(found.address, None)
        if storage is None:
            return  # taken before the run began
        if found.operator_id is not None and found.operator_id == self._call[storage]:
            self._categories[storage] = Category.WORKSPACE
        event = MemoryEvent(storage, -self._size[storage], self._mark.phase, self._mark.layer, found.operator)
        self._events.append(event)

    def _category(self, found: _Found) -> Category:
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


def _walk(tree: list[Any]) -> Iterator[int | _Found]:
    """Yield marks (their numbers) and allocations of the tree in the order of time."""
    stack: list[tuple[Any, str, int | None, int | None]] = [(e, "", None, None) for e in reversed(tree)]
    while stack:
        event, operator, call, sequence = stack.pop()
        if event.tag == _EventType.Allocation:
            extra = event.extra_fields
            yield _Found(extra.ptr, extra.alloc_size, operator, call, sequence)
            continue
        if event.tag == _EventType.TorchOp:
            name = event.name
            if name.startswith(_MARK):
                yield int(name[len(_MARK) :])
                continue
            if event.extra_fields.scope == RecordScope.BACKWARD_FUNCTION:
                number = event.extra_fields.sequence_number
                sequence = number if number >= 0 else 2**64 - 1
            elif name.startswith("autograd::engine::evaluate_function"):
                number = event.extra_fields.sequence_number
                sequence = number if number >= 0 else 2**64 - 1
                operator, call = "", None
            elif call is None and "::" in name and not _is_composite(name, event.overload_name):
                operator, call = name.replace("::", "."), event.id
        stack.extend((child, operator, call, sequence) for child in reversed(event.children))


_COMPOSITE: dict[tuple[str, str], bool] = {}


def _is_composite(name: str, overload: str) -> bool:
    """Whether the operator only calls others: autograd and dispatch modes see those, not it."""
    key = (name, overload)
    if key not in _COMPOSITE:
        full = f"{name}.{overload}" if overload else name
        try:
            _COMPOSITE[key] = is_composite(full)
        except RuntimeError:  # not an operator of the dispatcher
            _COMPOSITE[key] = True
    return _COMPOSITE[key]
