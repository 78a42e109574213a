"""The usual step around any model: optimizer, precision, training or inference.

A library model comes without a training loop; this is the one it gets, written
as people write it:

    train   optimizer.zero_grad(); loss = loss_of(model, batch); loss.backward(); optimizer.step()
            and the loss is returned, a number that a loop may print
    infer   with torch.no_grad(): model(batch)

with `torch.autocast` around the loss for `amp-…` precisions. The optimizer is
Adam with torch's own defaults if none is named.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from memgauge.arguments import MODES, PRECISIONS, TargetOptions, arguments_for, check_choice, parse_sets
from memgauge.errors import UnsupportedError, UsageError, nearest
from memgauge.workload import Workload

DEFAULT_OPTIMIZER = "adam"
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# They take no parameters of an ordinary network: sparse gradients, matrices only.
OTHER_PARAMETERS = {"sparseadam": "needs sparse gradients", "muon": "takes matrices only"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is run.

    Args:
        model: Makes the model. Called with the default dtype and device set, so that
            nothing is made twice; the result is put into train or eval mode.
        batch: Makes a batch whose floating-point tensors have the dtype given to it.
        loss: Takes model and batch, returns the scalar to go backward from.
        predict: Takes model and batch, returns what inference returns.
        optimizer, precision, mode: As in `TargetOptions`.
        values: As in `Workload`.
        description: What the workload is, for the record.

    Raises:
        UsageError: Optimizer, precision or mode is unknown.
    """

    model: Callable[[], nn.Module]
    batch: Callable[[torch.dtype], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    predict: Callable[[nn.Module, Any], Any]
    optimizer: str | None = None
    precision: str = "float32"
    mode: str = "train"
    values: Mapping[str, float] = field(default_factory=dict)
    description: Mapping[str, object] = field(default_factory=dict)

    def workload(self) -> Workload:
        """Return the workload of this recipe."""
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("mode", self.mode, MODES)
        infer = self.mode == "infer"
        facts: dict[str, object] = {**self.description, "precision": self.precision, "mode": self.mode}
        if not infer:
            facts["optimizer"] = self.optimizer or DEFAULT_OPTIMIZER
        return Workload(
            build=self._build_model if infer else self._training_build(),
            batch=self._batch,
            step=self._infer if infer else self._train,
            values=self.values,
            mode=self.mode,
            description=facts,
        )

    def _training_build(self) -> Callable[..., Any]:
        make_optimizer = optimizer_of(self.optimizer or DEFAULT_OPTIMIZER)

        def build(device: torch.device | str = "cpu") -> tuple[Any, ...]:
            model = self._build_model(device)
            optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])
            if self.precision == "amp-float16" and torch.device(device).type == "cuda":
                return model, optimizer, torch.amp.GradScaler("cuda")
            return model, optimizer

        return build

    def _build_model(self, device: torch.device | str = "cpu") -> nn.Module:
        dtype = DTYPES.get(self.precision, torch.float32)
        with default_dtype(dtype), torch.device(device):
            model = self.model()
        return model.train(self.mode == "train")

    def _batch(self, device: torch.device | str = "cpu") -> Any:
        with torch.device(device):
            return self.batch(DTYPES.get(self.precision, torch.float32))

    def _train(self, model: nn.Module, optimizer: torch.optim.Optimizer, *rest: Any) -> torch.Tensor:
        scaler, batch = rest if len(rest) == 2 else (None, rest[0])
        if isinstance(optimizer, torch.optim.LBFGS):
            first: Any = optimizer.step(lambda: self._closure(model, optimizer, batch))
            return torch.as_tensor(first).detach()
        optimizer.zero_grad()
        with self._autocast(model):
            loss = self.loss(model, batch)
        if scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return loss.detach()

    def _closure(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> Any:
        """Do what LBFGS asks for several times in one step: the loss and its gradients."""
        optimizer.zero_grad()
        with self._autocast(model):
            loss = self.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def _infer(self, model: nn.Module, batch: Any) -> Any:
        with torch.no_grad(), self._autocast(model):
            return self.predict(model, batch)

    def _autocast(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        kind, _, dtype = self.precision.rpartition("-")
        if kind != "amp":
            return contextlib.nullcontext()
        device = next((p.device.type for p in model.parameters()), "cpu")
        return torch.autocast(device, dtype=DTYPES[dtype])


def recipe_options(options: TargetOptions) -> dict[str, Any]:
    """Return the part of the options that a recipe takes."""
    return {"optimizer": options.optimizer, "precision": options.precision, "mode": options.mode}


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make new floating-point tensors of this type within the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """Return every optimizer of torch that takes any network's parameters, by lower-case name."""
    return {name: kind for name, kind in _all_optimizers().items() if name not in OTHER_PARAMETERS}


def _all_optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    return {
        name.lower(): value
        for name, value in vars(torch.optim).items()
        if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer"
    }


def optimizer_of(text: str) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """Return what makes the optimizer for parameters: `adam`, `sgd,momentum=0.9`, `adam,betas=(0.5,0.9)`.

    Raises:
        UsageError: There is no such optimizer, or it takes no such argument.
    """
    name = text.partition(",")[0].strip()
    if name.lower() in OTHER_PARAMETERS:
        reason = OTHER_PARAMETERS[name.lower()]
        raise UsageError(f"optimizer {name!r} {reason}; write its step in a function of your own")
    kind, arguments = optimizer_arguments(text)

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if not parameters:
            raise UnsupportedError("the model has no parameters to train; use --mode infer")
        return kind(parameters, **arguments)

    return make


def optimizer_arguments(text: str) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Return the class that `sgd,momentum=0.9` names, and the arguments given to it.

    Raises:
        UsageError: There is no such optimizer, or it takes no such argument.
    """
    name, *pairs = (part.strip() for part in re.split(r",(?![^(]*\))", text))  # commas outside brackets
    known = _all_optimizers()
    if name.lower() not in known:
        raise UsageError(
            f"optimizer {name!r} is unknown{nearest(name.lower(), known)}; it is {', '.join(known)}"
        )
    if wrong := [pair for pair in pairs if "=" not in pair]:
        raise UsageError(f"optimizer {text!r}: write {wrong[0]}=VALUE")
    kind = known[name.lower()]
    # Bound to no parameters, its signature shows what else it takes.
    arguments = arguments_for(
        functools.partial(kind, ()), f"optimizer {name!r}", TargetOptions(), parse_sets(pairs)
    )
    return kind, arguments
