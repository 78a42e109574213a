"""Run a PyTorch program on tensors that have a shape but no memory.

A phantom tensor is an ordinary CPU tensor whose storage points into address
space that is reserved and never touched. A dispatch mode stands between the
program and the kernels, and decides for each operator:

    view         really done: it moves no data, and so aliasing is torch's own
    small, known really done: shapes, masks, indices and counters that a program
                 reads back are computed, as long as they do not depend on
                 phantom values and stay small
    everything   the output's size comes from torch's own shape rules on the
    else         `meta` device (remembered by shapes), its memory is a phantom

No kernel runs on anything large, so a 70-billion-parameter model takes no more
room than its Python objects. Because phantom tensors are plain CPU tensors,
everything that looks at type, device or layout decides as in a real CPU run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from memgauge.frameworks.torch.address_space import address_space, storage_bytes
from memgauge.frameworks.torch.autograd_cures import SavedScalars, done_in_place, scalar_bytes
from memgauge.frameworks.torch.ledger import Ledger
from memgauge.frameworks.torch.not_eager import hard_coded, refuse_higher_order
from memgauge.frameworks.torch.operators import Kind, Rule, rule_of
from memgauge.frameworks.torch.roles import storages
from memgauge.frameworks.torch.scopes import BACKWARD, NO_SEQUENCE, OPTIMIZER, SETUP, Scopes
from memgauge.frameworks.torch.shapes import Spec, output_specs
from memgauge.frameworks.torch.sparse import TURNS, run_sparse, turned
from memgauge.frameworks.torch.special import SPECIAL
from memgauge.frameworks.torch.values import ValueReader
from memgauge.records import Category

# Largest tensor (elements) that is computed for real when all its inputs are known.
KNOWN_ELEMENTS = 2**17
# The same for whole numbers and truths, by which programs route, count and select: a million tokens.
KNOWN_INTEGERS = 2**20
# Largest constant made in the shape of an unknown tensor.
CONSTANT_ELEMENTS = 2**14
# Tensors without content of so few elements are really made: a draw in place often follows.
EMPTY_ELEMENTS = 64
# Random floats are made for real only as single draws (layer drop, mixup).
RANDOM_ELEMENTS = 64

FOREIGN_MEMORY = "memory of NumPy and others under tensors that share it: torch's allocator never sees it"

_CPU = torch.device("cpu")
_EMPTY: dict[torch.dtype, torch.Tensor] = {}

WorkspaceModel = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], int]


class PhantomMode(TorchDispatchMode):
    """The dispatch mode; use as a context manager around the program."""

    lists_what_it_meets = True  # tensors that were made before the run are memory of the target
    supports_higher_order_operators = True  # to name them; see not_eager
    frames_to_caller = 3  # from `_called_by_engine` to whoever called the operator

    def __init__(
        self,
        ledger: Ledger,
        scopes: Scopes,
        values: ValueReader,
        workspace: WorkspaceModel | None = None,
    ) -> None:
        super().__init__()
        self._ledger = ledger
        self._scopes = scopes
        self.values = values
        self._workspace = workspace
        self._space = address_space()
        self._unknown = ledger.unknown
        self._kept_alive: list[torch.UntypedStorage] = []
        self._found: WeakKeyDictionary[torch.UntypedStorage, int] = (
            WeakKeyDictionary()
        )  # true elements of masks
        self.input_now = False
        self.failed_in: tuple[str, str] | None = None  # operator and layer of the first error
        self.unmodelled: dict[str, None] = {}  # ordered, each once
        self._saved_scalars = SavedScalars(ledger.release)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch wraps the method below and imports all of torch._dynamo at the first call.
        return False

    # -- the one entry ---------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            return NotImplemented  # a wrapper (nested tensors, DTensor) comes again with what it wraps
        if not isinstance(func, torch._ops.OpOverload):
            refuse_higher_order(func)
        rule = rule_of(func)
        ledger = self._ledger
        if self._scopes.backward_depth:
            self._saved_scalars.release_used()
        outer = ledger.operator
        ledger.operator = rule.name
        try:
            if rule.kind is Kind.VIEW:
                return self._view(func, rule, args, kwargs)
            if rule.kind is Kind.METADATA:
                return func(*args, **kwargs)
            if rule.kind is Kind.COMPOSITE:
                with self:
                    return func.decompose(*args, **kwargs)
            if rule.kind is Kind.READ:
                return self.values.read(func, rule, args, self.is_known)
            return self._compute(func, rule, args, kwargs)
        except Exception:
            self.failed_in = self.failed_in or (rule.name, self._layer())
            raise
        finally:
            ledger.operator = outer

    def _compute(self, func: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = list(_tensors(args, kwargs))
        if rule.has_device and getattr(kwargs.get("device"), "type", "cpu") == "cuda":
            raise hard_coded()
        by_engine = self._scopes.backward_depth > 0 and self._called_by_engine()
        if by_engine and done_in_place(rule, inputs):
            self._pass_by(func, args, kwargs, inputs[0])
            return inputs[0]
        if any(t.layout is not torch.strided for t in inputs):
            return run_sparse(self, func, rule, args, kwargs)
        # In a formula of autograd a number is part of the operator's workspace.
        scalar = None if by_engine else self._wrapped_scalar(rule, args, inputs)
        result = self._result(func, rule, args, kwargs, inputs)
        self._pass_by(func, args, kwargs, result)
        if scalar is not None:
            self._ledger.release(scalar)
        return result

    def _pass_by(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """List what an operator takes for itself, and gives back before it returns."""
        extra = 0 if self._workspace is None else self._workspace(func, args, kwargs, result)
        if extra:
            self.give_back(self.hold(extra))

    # -- what each kind of operator does -----------------------------------------------------------

    def _view(self, func: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if rule.name in TURNS and (result := turned(self, args)) is not None:
            return result
        result = func(*args, **kwargs)
        if func is torch.ops.aten.lift_fresh.default and not self._is_listed(result):
            # Made outside the dispatcher, seen here first: torch.tensor([...]) is torch's own memory,
            # that of torch.from_numpy(...) is not.
            if result.untyped_storage().resizable() or not self.lists_what_it_meets:
                self.adopt(result)
            else:
                self.unmodelled.setdefault(FOREIGN_MEMORY)
        return result

    def _result(
        self, func: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[torch.Tensor]
    ) -> Any:
        """The outputs: computed if everything is known and small, else phantoms of the right size."""
        special = SPECIAL.get(rule.name)
        if special is not None:
            result = special(self, func, args, kwargs)
            if result is not None:
                return None if result is self.NOTHING else result
        known = all(self.is_known(t) for t in inputs)
        if rule.kind is Kind.DYNAMIC:
            if known and sum(t.numel() for t in inputs) <= 16 * KNOWN_ELEMENTS:
                return self.adopt(func(*args, **kwargs))
            raise self.values.not_known(rule, rule.name.split(".")[-1])
        specs = output_specs(func, rule, args, kwargs)
        if known and self._worth_computing(rule, specs, inputs) and self.runs_here(func, args):
            return self.adopt(self.computed(func, args, kwargs, specs))
        self._forget(rule, args, kwargs)
        return self._make(specs, rule, args, kwargs) if rule.returns else None

    # -- for the special operators ---------------------------------------------------------------------

    NOTHING = object()  # the operator is done and gives nothing back

    def make(self, spec: Spec) -> torch.Tensor:
        """Return a phantom of that spec."""
        return self.phantom(spec)

    def hold(self, size: int) -> int:
        """List a workspace of known size; returns its number for `give_back`."""
        return self._ledger.hold(size, Category.WORKSPACE, self._layer())

    def give_back(self, number: int) -> None:
        """List that it is given back."""
        self._ledger.release(number)

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor's values are really there."""
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata not in self._unknown

    def never_write(self, storage: torch.UntypedStorage) -> None:
        """Treat a storage that belongs to the user as one whose values are not known."""
        self._unknown.add(storage._cdata)
        self._kept_alive.append(storage)

    def runs_here(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Return whether this machine has the kernel that the target would run."""
        return True

    def computed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any) -> Any:
        """Return the real result, which has these specs."""
        return func(*args, **kwargs)

    def count_true(self, mask: torch.Tensor, name: str) -> int:
        """Return how many elements are not zero, known or as declared under `name`."""
        if self.is_known(mask):
            return int(torch.count_nonzero(mask))
        storage = mask.untyped_storage()
        if self._scopes.backward_depth and storage in self._found:
            return self._found[storage]  # autograd takes the mask of forward
        count = self.values.count(name, mask.numel())
        if count is None:
            raise self.values.not_known(rule_of(torch.ops.aten.nonzero.default), name, mask.numel())
        self._found[storage] = count
        return count

    def forget_and_return(self, func: Any, args: tuple[Any, ...]) -> Any:
        """Treat an in-place operator as a write of unknown values."""
        self._forget(rule_of(func), args, {})
        return args[0]

    def _make(self, specs: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Turn a template of output specs into phantom tensors; aliases give back their input."""
        if type(specs) is Spec:
            if specs.alias is not None:
                result = args[specs.alias] if isinstance(specs.alias, int) else kwargs[specs.alias]
                if isinstance(result, torch.Tensor) and tuple(result.shape) != specs.shape and rule.resizes:
                    self._resize(result, specs)
                return result
            return self.phantom(specs)
        if isinstance(specs, (tuple, list)):
            return type(specs)([self._make(s, rule, args, kwargs) for s in specs])
        return specs

    def phantom(self, spec: Spec) -> torch.Tensor:
        """Return a new tensor with a storage of its own, noted in the ledger and never touched."""
        size = spec.storage_bytes
        if size is None:
            size = storage_bytes(spec.shape, spec.stride, spec.dtype.itemsize)
        storage = torch._C._construct_storage_from_data_pointer(self._space.place(size), _CPU, size)
        self._list(storage)  # type: ignore[arg-type]
        if size:
            self._unknown.add(storage._cdata)
        return torch.empty(0, dtype=spec.dtype).set_(storage, 0, spec.shape, spec.stride)

    def _resize(self, tensor: torch.Tensor, spec: Spec) -> None:
        fresh = self.phantom(spec)
        tensor.set_(fresh.untyped_storage(), 0, spec.shape, spec.stride)

    def adopt(self, result: Any) -> Any:
        """List the storages of really computed results."""
        for tensor in _tensors((result,), {}):
            for storage in storages(tensor):
                if not self._is_made_here(storage):
                    self._unknown.discard(storage._cdata)
                    self._list(storage)
        return result

    def _list(self, storage: torch.UntypedStorage) -> None:
        self._ledger.allocate(storage, self._category(), self._layer())

    def _is_made_here(self, storage: torch.UntypedStorage) -> bool:
        return self._ledger.knows(storage._cdata)

    # -- what is known -------------------------------------------------------------------------------

    def _is_listed(self, tensor: torch.Tensor) -> bool:
        return self._is_made_here(tensor.untyped_storage())

    def _worth_computing(self, rule: Rule, specs: Any, inputs: list[torch.Tensor]) -> bool:
        limit = KNOWN_ELEMENTS if _is_floating(specs) else KNOWN_INTEGERS
        if rule.random and _is_floating(specs):
            limit = RANDOM_ELEMENTS
        if rule.kind is Kind.EMPTY:
            limit = EMPTY_ELEMENTS
        if _elements(specs) > limit or sum(t.numel() for t in inputs) > 16 * min(limit, KNOWN_ELEMENTS):
            return False
        # What lives outside the run (a model that was there before) is never written to.
        return not rule.writes or all(self._is_listed(t) for t in inputs)

    def _forget(self, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A write of unknown values makes its target unknown."""
        for key in rule.writes:
            target = args[key] if isinstance(key, int) and key < len(args) else kwargs.get(key)  # type: ignore[arg-type]
            for tensor in _tensors((target,), {}):
                if tensor.layout is torch.strided:
                    storage = tensor.untyped_storage()
                    if storage._cdata not in self._unknown:
                        self._unknown.add(storage._cdata)
                        if not self._is_made_here(storage):
                            self._kept_alive.append(storage)  # so that its address is not used again

    # -- what the ledger is told ---------------------------------------------------------------------

    def _category(self) -> Category:
        scopes = self._scopes
        if self.input_now:
            return Category.INPUT
        if scopes.phase == SETUP:
            return Category.OTHER
        if scopes.recomputing:
            return Category.ACTIVATION
        if scopes.phase.endswith((BACKWARD, OPTIMIZER)):
            return Category.TEMPORARY
        return Category.ACTIVATION

    def _layer(self) -> str:
        scopes = self._scopes
        if scopes.backward_depth and not scopes.recomputing:
            node = torch._C._current_autograd_node()
            if node is not None:
                number = node._sequence_nr()
                return scopes.layer_of_node(number) if number != NO_SEQUENCE else ""
        return scopes.layer

    # -- where a dispatch mode changes what autograd does, and the cure (see autograd_cures) ---------------

    def _called_by_engine(self) -> bool:
        return sys._getframe(self.frames_to_caller).f_code.co_name == "_engine_run_backward"

    def _wrapped_scalar(self, rule: Rule, args: tuple[Any, ...], inputs: list[torch.Tensor]) -> int | None:
        """Hold the tensor that stands for a Python number; returns it if it goes when the operator does."""
        size = scalar_bytes(rule, args, inputs)
        if not size:
            return None
        number = self._ledger.hold(size, self._category(), self._layer())
        if rule.saves_scalar and torch.is_grad_enabled() and inputs[0].requires_grad:
            self._saved_scalars.save(number)
            return None
        return number

    def end_of_step(self) -> None:
        """Drop what only the graph of this step held."""
        self._saved_scalars.release_all()


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    for value in args:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for item in value:
                if isinstance(item, torch.Tensor):
                    yield item
    for value in kwargs.values():
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for item in value:
                if isinstance(item, torch.Tensor):
                    yield item


def _leaves(specs: Any) -> Iterator[Spec]:
    if type(specs) is Spec:
        yield specs
    elif isinstance(specs, (tuple, list)):
        for item in specs:
            yield from _leaves(item)


def _elements(specs: Any) -> int:
    total = 0
    for spec in _leaves(specs):
        count = 1
        for size in spec.shape:
            count *= size
        total += count
    return total


def _is_floating(specs: Any) -> bool:
    return any(s.dtype.is_floating_point or s.dtype.is_complex for s in _leaves(specs))
