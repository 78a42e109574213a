"""Where the program is: which phase, which layer, and which layer a backward node belongs to.

Used by the trace and by the real run alike: the same hooks on the same
program, so that a phase or a layer means the same on both sides.

A backward node is matched with the layer that made it by autograd's sequence
number: numbers grow with the forward pass, so the layer that was running when
the number was taken is found by bisection.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as torch_optimizer

from memgauge.records import Module

SETUP, FORWARD, BACKWARD, OPTIMIZER = "setup", "forward", "backward", "optimizer"
_RAISED_IN = "__memgauge_phase__"  # kept with the error: by the time it is told, its phase is over

# The number autograd gives to nodes without a place in the order (AccumulateGrad): 2^64 - 1.
NO_SEQUENCE = 2**64 - 1


def named_modules(objects: object) -> dict[torch.nn.Module, str]:
    """Return every module of the built objects with its path.

    A single root has the paths of `named_modules`. Several roots are told apart
    by their class name in front (`Generator.conv1`), counted if it repeats.
    """
    roots = [o for o in as_tuple(objects) if isinstance(o, torch.nn.Module)]
    paths: dict[torch.nn.Module, str] = {}
    seen: dict[str, int] = {}
    for root in roots:
        prefix = ""
        if len(roots) > 1:
            name = type(root).__name__
            seen[name] = seen.get(name, 0) + 1
            prefix = name if seen[name] == 1 else f"{name}#{seen[name]}"
        for path, module in root.named_modules(prefix=prefix):
            paths.setdefault(module, path)
    return paths


def as_tuple(objects: object) -> tuple[object, ...]:
    """Return what `build` returned as a tuple: itself, or one object alone."""
    return tuple(objects) if isinstance(objects, (tuple, list)) else (objects,)


class Scopes:
    """Follows phase and layer of a running program through hooks.

    Attributes:
        phase: `"setup"`, or `"step 2 backward"`.
        layer: Path of the innermost module that is running, `""` outside.
    """

    def __init__(
        self, on_change: Callable[[], None] = lambda: None, on_phase_end: Callable[[], None] = lambda: None
    ) -> None:
        self.phase = SETUP
        self.layer = ""
        self.step = 0
        self.backward_depth = 0
        self.backward_calls = 0
        self._on_change = on_change
        self._on_phase_end = on_phase_end
        self._kind = SETUP
        self._paths: dict[torch.nn.Module, str] = {}
        self._stack: list[str] = []
        self._depth_at_backward: list[int] = []
        self._sequence: list[int] = [0]
        self._layer_of_sequence: list[str] = [""]
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._stepped: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._exit = ExitStack()

    # -- what is asked of it ------------------------------------------------------------------

    def name_modules(self, objects: object) -> None:
        """Take the names of all modules in `objects`; a module never named goes by its class."""
        self._paths = named_modules(objects)

    def modules(self) -> tuple[Module, ...]:
        """Return the modules that were named, with the shape each gave back last."""
        return tuple(
            Module(
                path=path,
                type=type(module).__name__,
                output_shape=self._shapes.get(path),
                parameter_count=sum(p.numel() for p in module.parameters(recurse=False)),
            )
            for module, path in self._paths.items()
        )

    def layer_of_node(self, sequence: int) -> str:
        """Return the layer whose forward made the autograd node with this sequence number."""
        if sequence == NO_SEQUENCE:
            return ""
        return self._layer_of_sequence[bisect_right(self._sequence, sequence) - 1]

    def phase_of(self, error: BaseException) -> str:
        """Return the phase in which an error was raised."""
        return str(vars(error).get(_RAISED_IN, self.phase))

    @property
    def recomputing(self) -> bool:
        """Whether a module's forward runs inside a backward pass, as checkpointing does."""
        return bool(self._depth_at_backward) and len(self._stack) > self._depth_at_backward[-1]

    # -- how it learns --------------------------------------------------------------------------

    def start_step(self, number: int) -> None:
        """Enter step `number`, counted from 1."""
        self.step = number
        self._switch(FORWARD)

    def _switch(self, kind: str) -> str:
        before, self._kind = self._kind, kind
        self.phase = kind if self.step == 0 else f"step {self.step} {kind}"
        self._on_change()
        return before

    def _mark_layer(self) -> None:
        self.layer = self._stack[-1] if self._stack else ""
        number = torch._C._autograd._get_sequence_nr()
        if number == self._sequence[-1]:
            self._layer_of_sequence[-1] = self.layer
        else:
            self._sequence.append(number)
            self._layer_of_sequence.append(self.layer)
        self._on_change()

    def _enter(self, module: torch.nn.Module, _inputs: object) -> None:
        # What torch.compile makes of a module must hold nothing of ours: its layers are not told apart.
        if torch.compiler.is_compiling():
            return
        self._stack.append(
            self._paths.get(module) or (type(module).__name__ if module not in self._paths else "")
        )
        self._mark_layer()

    def _leave(self, module: torch.nn.Module, _inputs: object, output: object) -> None:
        if torch.compiler.is_compiling():
            return
        if self._stack:
            path = self._stack.pop()
            shape = _first_shape(output)
            if shape is not None:
                self._shapes[path] = shape
        self._mark_layer()

    def and_optimizers(self, objects: Any) -> tuple[Any, ...]:
        """Return the built objects, and the optimizers that have stepped: some are made within a step."""
        objects = as_tuple(objects)
        stepped = (reference() for reference in self._stepped.values())
        return (*objects, *(o for o in stepped if o is not None and not any(o is known for known in objects)))

    def has_stepped(self) -> bool:
        """Return whether any optimizer has."""
        return bool(self._stepped)

    def _step_begins(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._stepped[id(optimizer)] = weakref.ref(optimizer)
        self._before_optimizer.append(self._switch(OPTIMIZER))

    def _step_ends(self, *_: object) -> None:
        if self._before_optimizer:
            self._on_phase_end()
            self._switch(self._before_optimizer.pop())

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Everything inside is a backward pass; passes may nest, as reentrant checkpoints do."""
        before = self._switch(BACKWARD)
        self.backward_depth += 1
        self.backward_calls += 1
        self._depth_at_backward.append(len(self._stack))
        try:
            yield
        except BaseException as error:
            vars(error).setdefault(_RAISED_IN, self.phase)
            raise
        finally:
            self._depth_at_backward.pop()
            self.backward_depth -= 1
            if self.backward_depth == 0:
                self._on_phase_end()
            self._switch(before)

    def __enter__(self) -> Scopes:
        self._before_optimizer: list[str] = []
        run_backward = torch.autograd.graph._engine_run_backward

        def with_phase(*args: Any, **kwargs: Any) -> Any:
            with self.backward():
                return run_backward(*args, **kwargs)

        places: tuple[Any, ...] = (torch.autograd, torch.autograd.graph)
        for place in places:
            self._exit.callback(setattr, place, "_engine_run_backward", run_backward)
            place._engine_run_backward = with_phase
        for handle in (
            nn_module.register_module_forward_pre_hook(self._enter),
            nn_module.register_module_forward_hook(self._leave, always_call=True),
            torch_optimizer.register_optimizer_step_pre_hook(self._step_begins),
            torch_optimizer.register_optimizer_step_post_hook(self._step_ends),
        ):
            self._exit.callback(handle.remove)
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()


def _first_shape(output: object) -> tuple[int, ...] | None:
    """Return the shape of the first tensor in what a module returned, None if there is none."""
    if isinstance(output, torch.Tensor):
        # A jagged tensor's shape has a symbol for its uneven lengths; that of what it wraps has their sum.
        # Source: torch/nested/_internal/nested_tensor.py.
        wrapped: Any = output._values if output.layout is torch.jagged else output
        return tuple(wrapped.shape)
    values = list(output.values()) if isinstance(output, dict) else output
    if isinstance(values, (tuple, list)):
        for value in values:
            shape = _first_shape(value)
            if shape is not None:
                return shape
    return None
