"""The run itself: build, then N times batch and step. One place for both sides.

A trace and a real run differ in what happens below the program; the program
is driven by the same few lines.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import torch

from memgauge.frameworks.torch.roles import tensors_in
from memgauge.frameworks.torch.scopes import Scopes, as_tuple
from memgauge.records import NEVER_BACKWARD, NEVER_STEPPED
from memgauge.usercode import as_script
from memgauge.workload import Workload

CANNOT_PIN = "only dense CPU tensors can be pinned"  # torch's words, ATen/native/Memory.cpp


class Observer(Protocol):
    """Who looks on while the protocol runs."""

    def built(self, objects: Any) -> None:
        """Build is done."""

    def step_begins(self, number: int) -> None:
        """Step `number`, from 1, is about to ask for its batch."""

    def batch_made(self) -> None:
        """The batch is there; the user's step is next."""

    def step_ended(self, number: int) -> None:
        """Step `number` is over, its batch and result dropped."""


def run(workload: Workload, observer: Observer, device: torch.device, steps: int) -> None:
    """Run the workload's protocol on `device`; raises what the user's code raises.

    `device` is torch's default device while building and while making a batch, not in the step.
    """
    with as_script(workload.description.get("target")):
        _run(workload, observer, device, steps)


def _run(workload: Workload, observer: Observer, device: torch.device, steps: int) -> None:
    objects = made(workload.build, device)
    with torch.device(device):
        place(objects, device)
    observer.built(objects)
    arguments = as_tuple(objects)
    for number in range(1, steps + 1):
        observer.step_begins(number)
        made_batch = made(workload.batch, device)
        with torch.device(device):
            batch = move(made_batch, device)
        del made_batch
        observer.batch_made()
        result = workload.step(*arguments, batch)
        del batch, result
        if device.type == "cuda":
            torch.cuda.synchronize()  # kernels run behind the program: a step ends when its last one does
        observer.step_ended(number)


def made(function: Callable[..., Any], device: torch.device) -> Any:
    """Return what a user's function makes with `device` as the default; on the host if it pins what it has made."""
    try:
        with torch.device(device):
            return call(function, device)
    except RuntimeError as error:
        if device.type == "cpu" or CANNOT_PIN not in str(error):
            raise
    with torch.device("cpu"):
        return call(function, device)


def call(function: Callable[..., Any], device: torch.device) -> Any:
    """Call a user's function, with `device` if it takes one."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return function()
    return function(device=device) if "device" in parameters else function()


def place(objects: Any, device: torch.device) -> None:
    """Move modules, and the state of optimizers, that are not on the device yet."""
    for item in as_tuple(objects):
        if isinstance(item, torch.nn.Module):
            places = {t.device.type for t in (*item.parameters(), *item.buffers())}
            if places - {device.type} and "meta" not in places:  # a skeleton, for torch.func.functional_call
                item.to(device)
        elif isinstance(item, torch.optim.Optimizer):
            for state in item.state.values():
                for key, value in list(state.items()):
                    if (
                        isinstance(value, torch.Tensor)
                        and value.dim() > 0
                        and value.device.type != device.type
                    ):
                        state[key] = value.to(device)


def move(batch: Any, device: torch.device) -> Any:
    """Move the tensors of a batch that are elsewhere; containers keep their types."""
    if all(t.device.type == device.type for t in tensors_in(batch)):
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return type(batch)({k: move(v, device) for k, v in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(v, device) for v in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move(v, device) for v in batch)
    return batch


def never_trained(workload: Workload, scopes: Scopes, objects: Any) -> str | None:
    """Return the warning for a training workload whose steps never called backward, or no optimizer."""
    if workload.mode == "train" and scopes.backward_calls == 0:
        return f"{NEVER_BACKWARD}: this is the memory of inference (mode='infer' says so)"
    has_optimizer = any(isinstance(item, torch.optim.Optimizer) for item in as_tuple(objects))
    if workload.mode == "train" and has_optimizer and not scopes.has_stepped():
        return (
            f"{NEVER_STEPPED}: its state is not in the figures (where gradients are accumulated: --steps N)"
        )
    return None
