"""Read the layer table off the real modules, while the workload runs on phantom tensors.

A layer is a module that is called and calls no other: a convolution, but also a
whole attention block that uses its children's weights itself. Each parameter is
counted in one row: that of the layer which holds it, or of the module it hangs on
if that is no layer. Each call's outputs are noted with the trace's number of their
storage, so that formula and trace can be compared tensor by tensor.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.nn.modules import module as nn_module
from torch.nn.utils.parametrize import ParametrizationList

from memgauge.errors import UsageError
from memgauge.formula.records import (
    How,
    LayerCall,
    LayerTable,
    OptimizerUse,
    OutputTensor,
    ParameterShape,
    bytes_of,
)
from memgauge.frameworks.torch import protocol
from memgauge.frameworks.torch.element_types import bits_of
from memgauge.frameworks.torch.layer_rows import Seen, Shapes, layer_rows
from memgauge.frameworks.torch.ledger import Ledger
from memgauge.frameworks.torch.roles import storages, tensors_in, tensors_of_roles
from memgauge.frameworks.torch.scopes import OPTIMIZER, Scopes, as_tuple, named_modules
from memgauge.records import Category
from memgauge.workload import Workload


@dataclass(slots=True)
class _Running:
    """A module that is running: what it has been given, and whether it has called another."""

    module: torch.nn.Module
    versions: dict[int, int | None]  # storage of an input -> its version counter at the call
    is_hidden: bool  # computes another layer's weight, such as weight norm: no layer of its own
    has_called: bool = False


@dataclass
class LayerTableReader:
    """Looks on while a workload is traced; `table()` is what it saw.

    Args:
        element_bits: Count float32 as if an element had so many bits; None counts what is there.
    """

    element_bits: int | None = None
    _objects: Any = ()
    _paths: dict[torch.nn.Module, str] = field(default_factory=dict)
    _running: list[_Running] = field(default_factory=list)
    _calls: list[LayerCall] = field(default_factory=list)
    _shapes: dict[int, list[tuple[str, Shapes]]] = field(default_factory=dict)
    _seen: dict[torch.nn.Module, Seen] = field(default_factory=dict)
    _callers: set[torch.nn.Module] = field(default_factory=set)
    _input_bytes: int | None = None
    _goes_backward: bool = False
    _step: int = 0
    _backward_before: int = 0
    _state_bytes: dict[int, int] = field(default_factory=dict)

    # -- how it looks on ------------------------------------------------------------------------

    def watched(self, workload: Workload) -> Workload:
        """Return the same workload, with what it builds and its batches shown to this reader."""

        def build(device: torch.device | str = "cpu") -> Any:
            self._objects = protocol.call(workload.build, torch.device(device))
            self._paths = named_modules(self._objects)
            return self._objects

        def batch(device: torch.device | str = "cpu") -> Any:
            made = protocol.call(workload.batch, torch.device(device))
            if self._input_bytes is None:
                self._input_bytes = self._batch_bytes(made)
            return made

        return dataclasses.replace(workload, build=build, batch=batch)

    def hooks(self, ledger: Ledger, scopes: Scopes) -> ExitStack:
        """Return the context in which module calls are noted.

        Args:
            ledger: Knows the number of each storage.
            scopes: Knows the step, and whether a backward pass computes a layer again.
        """

        def leave(module: torch.nn.Module, _: Any, output: Any) -> None:
            self._leave(module, output, ledger, scopes)

        stack = ExitStack()
        for handle in (
            nn_module.register_module_forward_pre_hook(self._enter),
            nn_module.register_module_forward_hook(leave, always_call=True),
        ):
            stack.callback(handle.remove)
        stack.callback(self._note_end, scopes)
        return stack

    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        outer = self._running[-1] if self._running else None
        is_hidden = isinstance(module, ParametrizationList) or (outer is not None and outer.is_hidden)
        if outer is not None and not is_hidden:
            outer.has_called = True
        versions = {t.untyped_storage()._cdata: _version(t) for t in _tensors(inputs)}
        self._running.append(_Running(module, versions, is_hidden))

    def _leave(self, module: torch.nn.Module, output: Any, ledger: Ledger, scopes: Scopes) -> None:
        run = self._running.pop()
        if run.is_hidden or scopes.backward_depth or scopes.step == 0:
            return  # computed again by checkpointing, or a try-out while building
        if scopes.phase.endswith(OPTIMIZER) and self._is_repeated(scopes):
            return  # an optimizer that asks for the loss several times, such as LBFGS
        if run.has_called:
            self._callers.add(module)
            return
        inside = bool(self._running) and self._running[0].module in self._paths
        if module not in self._paths and not inside:
            return  # a loss, or another module that is no part of the model
        tensors = list(_tensors(output))
        outputs = tuple(self._output(t, run, ledger) for t in tensors)
        path = self._paths.get(module, type(module).__name__)
        shapes = tuple(tuple(t.shape) for t in tensors)
        self._shapes.setdefault(scopes.step, []).append((path, shapes))
        if scopes.step == 1:
            seen = self._seen.setdefault(module, Seen(shapes, first=len(self._calls)))
            seen.calls += 1
            seen.map_bytes += sum(t.count_bytes for t in outputs)
        self._calls.append(LayerCall(scopes.step, path, outputs))

    def _is_repeated(self, scopes: Scopes) -> bool:
        """Whether this step has gone backward already: one forward pass of a step is counted."""
        if scopes.step != self._step:
            self._step, self._backward_before = scopes.step, scopes.backward_calls
        return scopes.backward_calls > self._backward_before

    def _output(self, tensor: torch.Tensor, run: _Running, ledger: Ledger) -> OutputTensor:
        address = tensor.untyped_storage()._cdata
        number = ledger.number(address)
        how: How = "new"
        if address in run.versions:
            before, now = run.versions[address], _version(tensor)
            written = getattr(run.module, "inplace", False) if now is None else before != now
            how = "in place" if written else "view"
        elif tensor._is_view():
            how = "view"
        return OutputTensor(self._bytes(tensor), number, how)

    def _note_end(self, scopes: Scopes) -> None:
        """Keep whether it trained, and the size of what each optimizer keeps while that is still there."""
        self._goes_backward = scopes.backward_calls > 0
        for optimizer in _optimizers(self._objects):
            found = {s._cdata: s.nbytes() for t in tensors_in(optimizer.state) for s in storages(t)}
            self._state_bytes[id(optimizer)] = sum(found.values())

    # -- what it saw ------------------------------------------------------------------------------

    def table(self) -> LayerTable:
        """Return the layer table.

        Raises:
            UsageError: There is none: nothing was built, called, or shapes change from step to step.
        """
        self._refuse_what_has_no_table()
        owned = [(t, path) for t, c, path in tensors_of_roles(self._objects) if c is Category.PARAMETER]
        parameters = [p for p, _ in owned]
        trained: dict[str, int] = defaultdict(int)
        for parameter, path in owned:
            if parameter.requires_grad:
                trained[path] += self._bytes(parameter)
        assumptions = [] if self.element_bits is None else [_AS_IF]
        return LayerTable(
            layers=layer_rows(self._paths, self._seen, self._callers, parameters, self._shape),
            calls=tuple(self._calls),
            optimizers=tuple(self._optimizer_use(o) for o in _optimizers(self._objects)),
            parameter_bytes=sum(self._bytes(p) for p in parameters),
            gradient_bytes=sum(trained.values()),
            input_bytes=self._input_bytes or 0,
            trained_bytes=dict(trained),
            goes_backward=self._goes_backward,
            assumptions=tuple(assumptions),
            element_types=tuple(sorted({_name(p.dtype) for p in parameters})),
        )

    def use_of(self, name: str, options: dict[str, object]) -> OptimizerUse:
        """Return the use of an optimizer that the workload does not have, over all trained parameters."""
        parameters = [t for t, c, _ in tensors_of_roles(self._objects) if c is Category.PARAMETER]
        return OptimizerUse((name,), ((options, self._parameter_shapes(parameters)),))

    def _refuse_what_has_no_table(self) -> None:
        if not self._paths:
            raise UsageError(no_table("build() returned no torch.nn.Module, only functions and tensors"))
        if not self._seen:
            raise UsageError(no_table("the step calls none of the modules that build() returned"))
        first = self._shapes.get(1)
        for step, shapes in self._shapes.items():
            if shapes != first:
                layer = next(
                    (b[0] for a, b in zip(first or [], shapes, strict=False) if a != b),
                    "the number of calls",
                )
                raise UsageError(
                    no_table(f"its shapes are dynamic: step {step} differs from step 1 at {layer!r}")
                )

    def _optimizer_use(self, optimizer: torch.optim.Optimizer) -> OptimizerUse:
        groups = tuple(
            ({k: v for k, v in g.items() if k != "params"}, self._parameter_shapes(g["params"]))
            for g in optimizer.param_groups
        )
        names = tuple(c.__name__ for c in type(optimizer).__mro__)
        return OptimizerUse(names, groups, self._state_bytes.get(id(optimizer)))

    def _parameter_shapes(self, parameters: list[Any]) -> tuple[ParameterShape, ...]:
        return tuple(self._shape(p) for p in parameters if p.requires_grad)

    def _shape(self, parameter: torch.Tensor) -> ParameterShape:
        return ParameterShape(tuple(parameter.shape), self._bits(parameter.dtype))

    def _bits(self, dtype: torch.dtype) -> int:
        if self.element_bits is not None and dtype is torch.float32:
            return self.element_bits
        return bits_of(dtype)

    def _bytes(self, tensor: torch.Tensor) -> int:
        return bytes_of(tensor.numel(), self._bits(tensor.dtype))

    def _batch_bytes(self, batch: Any) -> int:
        """Return the bytes of a batch; tensors that share a storage are counted once."""
        found = {t.untyped_storage()._cdata: t for t in tensors_in(batch)}
        return sum(
            bytes_of(t.untyped_storage().nbytes() // t.itemsize, self._bits(t.dtype)) for t in found.values()
        )


_AS_IF = (
    "the element type is counted as if every float32 tensor had it; "
    "the network was read in float32, since most operators run in no such type"
)


def no_table(reason: str) -> str:
    """Return the message for a workload without a layer table."""
    return (
        f"there is no layer table to calculate with: {reason}; "
        "--method trace follows the operators themselves and needs none"
    )


def _optimizers(objects: Any) -> list[torch.optim.Optimizer]:
    return [o for o in as_tuple(objects) if isinstance(o, torch.optim.Optimizer)]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _version(tensor: torch.Tensor) -> int | None:
    """Return how often a tensor's storage was written to; None where torch does not count (inference)."""
    return None if tensor.is_inference() else tensor._version


def _tensors(nest: Any) -> Iterator[torch.Tensor]:
    """Yield the ordinary tensors in what a module takes or returns, dataclasses included."""
    if isinstance(nest, torch.Tensor):
        while is_functorch_wrapped_tensor(nest):  # under vmap and grad: the tensor that is really there
            nest = get_unwrapped(nest)
        if nest.layout is torch.strided:
            yield nest
    elif isinstance(nest, dict):
        for value in nest.values():
            yield from _tensors(value)
    elif isinstance(nest, (tuple, list)):
        for value in nest:
            yield from _tensors(value)
    elif dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        for item in dataclasses.fields(nest):
            yield from _tensors(getattr(nest, item.name, None))
