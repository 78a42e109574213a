"""Predict: run the workload on phantom tensors and write down what it would allocate.

Steps are traced until one leaves memory as it found it; further ones repeat it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate
from typing import Any, Protocol

import torch

from memgauge import environment
from memgauge.errors import MemgaugeError, WorkloadError
from memgauge.frameworks.torch import protocol
from memgauge.frameworks.torch.beyond_operators import seen_by
from memgauge.frameworks.torch.cuda_devices import Card
from memgauge.frameworks.torch.cuda_phantom import CudaPhantomMode
from memgauge.frameworks.torch.cuda_semantics import cuda_semantics
from memgauge.frameworks.torch.ledger import Ledger
from memgauge.frameworks.torch.not_eager import inspect, refusing_cuda, watching
from memgauge.frameworks.torch.out_of_memory import note_handlers
from memgauge.frameworks.torch.phantom import PhantomMode, WorkspaceModel
from memgauge.frameworks.torch.roles import storages, tensors_of_roles
from memgauge.frameworks.torch.scopes import SETUP, Scopes, as_tuple
from memgauge.frameworks.torch.values import ValueReader
from memgauge.records import STEPS_GROW, Category, MemoryEvent, Trace
from memgauge.units import format_bytes
from memgauge.usercode import user_traceback
from memgauge.workload import Workload

_SEED = 0
# What comes and goes with some steps only (gradients that are accumulated), and is as large as the parameters.
_BOUNDED = {Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE}
_LONG_RUN = 10_000  # steps in which what a run holds shall not double
_BUILT_THERE = (
    "build() ran with the card as torch's default device, so that what it made counts there even before .cuda() "
    "or .to(), and that is the peak; `with torch.device('cpu'):` around it makes it on the host first"
)


class Onlooker(Protocol):
    """Who looks on at a trace beside the tracer itself, such as the reader of the layer table."""

    def watched(self, workload: Workload) -> Workload:
        """Return the same workload, with what it builds shown to the onlooker."""

    def hooks(self, ledger: Ledger, scopes: Scopes) -> AbstractContextManager[Any]:
        """Return the context in which the onlooker is told of module calls."""


def trace(
    workload: Workload,
    *,
    device: str = "cpu",
    steps: int = 3,
    workspace: WorkspaceModel | None = None,
    card: Card | None = None,
    onlooker: Onlooker | None = None,
) -> Trace:
    """Return every allocation and release that `steps` steps of the workload would make.

    Args:
        workload: What is run.
        device: `"cpu"`, or `"cuda"` for device memory only (the host's is left out).
        steps: Steps of the run.
        workspace: What kernels take and give back.
        card: What a program on `"cuda"` is told of its GPU.
        onlooker: Is shown the built objects, the batches and the calls of modules.

    Raises:
        UnsupportedError: An operator has no shape rule, or a value is read that
            only a real run would know, or something is not eager PyTorch.
        WorkloadError: The user's own code raised; the message has their frames.
    """
    observer = _Tracer(workload, steps, workspace, device)
    watched = workload if onlooker is None else onlooker.watched(workload)
    hooks = nullcontext() if onlooker is None else onlooker.hooks(observer.ledger, observer.scopes)
    try:
        with same_chance(), environment.apart():
            with (
                observer.mode,
                observer.scopes,
                observer.semantics(card),
                seen_by(observer.mode),
                watching(observer.unmodelled),
                hooks,
            ):
                protocol.run(watched, observer, torch.device(device), steps)
            return observer.result()
    except MemgaugeError:
        raise
    except Exception as error:
        raise WorkloadError(_where(observer, error)) from error
    finally:
        observer.give_back()


@contextmanager
def same_chance() -> Iterator[None]:
    """Let a program draw the same random numbers in each trace, and its own process go on with its own.

    The type of numbers that a program chooses for all that comes (`set_default_dtype`), and the precision of its
    products, are its own as well.
    """
    numpy = sys.modules.get("numpy")
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    of_python, of_numpy = random.getstate(), numpy.random.get_state() if numpy else None
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_SEED)
        random.seed(_SEED)
        if numpy:
            numpy.random.seed(_SEED)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_float32_matmul_precision(precision)
            random.setstate(of_python)
            if numpy:
                numpy.random.set_state(of_numpy)


def _where(observer: _Tracer, error: Exception) -> str:
    """Say where the user's code raised: phase, operator and layer, then their own frames."""
    place = observer.scopes.phase_of(error)
    if observer.mode.failed_in is not None:
        operator, layer = observer.mode.failed_in
        place += f', layer "{layer}", {operator}' if layer else f", {operator}"
    return f"the workload raised in {place}\n{user_traceback(error)}"


@contextmanager
def _cpu_semantics(mode: PhantomMode) -> Iterator[None]:
    with refusing_cuda():
        yield


def _mode_for(device: str) -> type[PhantomMode]:
    return CudaPhantomMode if device == "cuda" else PhantomMode


class _Tracer:
    """Looks on while the protocol runs under the phantom mode."""

    def __init__(self, workload: Workload, steps: int, workspace: WorkspaceModel | None, device: str) -> None:
        self.workload = workload
        self.steps = steps
        self.scopes = Scopes(on_phase_end=self._settle)
        self.ledger = Ledger(self.scopes)
        self.values = ValueReader(workload.values)
        self.unmodelled: dict[str, None] = {}  # ordered, each once
        self.mode = _mode_for(device)(self.ledger, self.scopes, self.values, workspace)
        self.mode.unmodelled = self.unmodelled
        self._objects: Any = ()
        self._uses: tuple[str, ...] = ()
        self._moved_in_vain = False
        # Objects that existed before the run: gradients and state are given back as they were.
        self._lent: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._lent_state: list[tuple[torch.optim.Optimizer, Any]] = []
        self._step_begin = 0
        self._held_bytes: list[int] = []  # at the end of each step, without what is bounded

    def semantics(self, card: Card | None) -> AbstractContextManager[None]:
        """Return the context that gives the program the meaning it has on the target."""
        if not isinstance(self.mode, CudaPhantomMode):
            return _cpu_semantics(self.mode)
        card = card or Card()
        self.mode.own.start(self.workload.own, card.stack)
        return cuda_semantics(self.mode, card)

    def built(self, objects: Any) -> None:
        self._objects = objects
        mode = self.mode
        self._moved_in_vain = isinstance(mode, CudaPhantomMode) and mode.placement.moved_in_vain
        self.scopes.name_modules(objects)
        functions = self.workload.build, self.workload.batch, self.workload.step
        inspect(objects, functions, self.unmodelled)
        note_handlers(functions, self.unmodelled)
        for tensor, category, layer in tensors_of_roles(objects):
            for storage in storages(tensor):
                if self.mode.lists_what_it_meets and not self.ledger.knows(storage._cdata):
                    self.ledger.allocate(storage, category, layer)
                    self.mode.never_write(storage)
                    self._lent.append((tensor, tensor.grad if tensor.is_leaf else None))
        optimizers = [o for o in as_tuple(objects) if isinstance(o, torch.optim.Optimizer)]
        self._uses = ("optimizer",) if optimizers else ()
        if self._lent:
            self._lent_state = [(o, o.state.copy()) for o in optimizers]
        self._settle()
        self._step_begin = len(self.ledger.events)

    def step_begins(self, number: int) -> None:
        self.scopes.start_step(number)
        self.mode.input_now = True

    def batch_made(self) -> None:
        self.mode.input_now = False

    def step_ended(self, number: int) -> None:
        self.mode.end_of_step()
        self._settle()
        begin, self._step_begin = self._step_begin, len(self.ledger.events)
        self.ledger.keep(since=begin)
        categories = self.ledger.categories
        self._held_bytes.append(sum(n for s, n in self.ledger.live.items() if categories[s] not in _BOUNDED))

    def _pinned_bytes(self) -> int:
        return self.mode.placement.pinned.peak_reserved_bytes if isinstance(self.mode, CudaPhantomMode) else 0

    def give_back(self) -> None:
        """Leave what the user lent as it was before the trace."""
        for tensor, gradient in self._lent:
            if tensor.is_leaf:
                tensor.grad = gradient
        for optimizer, state in self._lent_state:
            optimizer.state = state

    def _settle(self) -> None:
        roles: dict[int, tuple[Category, str]] = {}
        for tensor, category, layer in tensors_of_roles(self.scopes.and_optimizers(self._objects)):
            for storage in storages(tensor):
                roles.setdefault(storage._cdata, (category, layer))
        self.ledger.settle(roles)

    def result(self) -> Trace:
        ledger = self.ledger
        end = self._step_begin
        events = ledger.events[:end]
        if self._moved_in_vain and _is_highest_in_setup(events):
            self.values.assume(_BUILT_THERE)
        own = self.mode.own if isinstance(self.mode, CudaPhantomMode) else None
        if own is not None:
            own.assume()
        assumptions = list(self.values.assumptions)
        warning = protocol.never_trained(self.workload, self.scopes, self._objects)
        warnings = [w for w in (warning, _growth(self._held_bytes, sum(ledger.live.values()))) if w]
        return Trace(
            events=events,
            categories=list(ledger.categories),
            layers=list(ledger.layers),
            modules=self.scopes.modules(),
            assumptions=assumptions + warnings,
            unmodelled=list(self.unmodelled),
            scratch=dict(ledger.scratch),
            cache_releases=[r for r in ledger.cache_releases if r <= end],
            streams=dict(ledger.streams),
            pinned_bytes=self._pinned_bytes(),
            uses=self._uses,
            memory_fraction=ledger.memory_fraction,
            alloc_conf=None if own is None else own.conf,
            alloc_calls=own.calls if own is not None else (),
        )


def _growth(held_bytes: Sequence[int], all_bytes: int) -> str | None:
    """Return the warning for a run that holds more after its last step than after the one before.

    The first step is passed by, which makes what the others keep; so is what would not add up in a long run.

    Args:
        held_bytes: At the end of each step, without what is bounded.
        all_bytes: At the end of the run, of everything.
    """
    if len(held_bytes) < 3:
        return None
    grown = held_bytes[-1] - held_bytes[-2]
    if grown * _LONG_RUN <= all_bytes:
        return None
    return (
        f"{STEPS_GROW}, by {format_bytes(grown)} at the last: a longer run takes more than said here "
        "(--steps N tells how much)"
    )


def _is_highest_in_setup(events: Sequence[MemoryEvent]) -> bool:
    """Return whether more is requested at one moment of the set-up than at any later one."""
    held = list(accumulate(event.requested_bytes for event in events))
    steps = next((i for i, event in enumerate(events) if event.phase != SETUP), len(events))
    return max(held[:steps], default=0) > max(held[steps:], default=0)
