"""Phases of a run by the Hugging Face Trainer."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any

from transformers import Trainer, TrainerCallback

from memgauge.callbacks import Phases

_PHASES: dict[str, CodeType] = {
    "evaluate": inspect.unwrap(Trainer.evaluate).__code__,
    "predict": inspect.unwrap(Trainer.predict).__code__,
}


class MemoryPhases(TrainerCallback):  # type: ignore[misc]
    """Tell a recording of epochs, evaluations and predictions.

    The Trainer tells callbacks when a batch was evaluated, not when it begins. While it trains, the model's first
    forward pass in evaluation mode begins the phase; elsewhere, and under `torch_compile`, the first batch is left out.
    Nor does it tell which of the two it is before all is over: that is known by who called.

    Args:
        steps: Also of every training step; each costs some microseconds.
    """

    def __init__(self, *, steps: bool = False) -> None:
        self._phases = Phases()
        self._steps = steps
        self._hook: Any = None

    # The Trainer tells callbacks of no exception: what one left open ends when it trains again.
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        self._phases.end_all()
        self._remove_hook()
        if model is not None and not args.torch_compile:
            self._hook = model.register_forward_pre_hook(_Forward(partial(self._evaluation_begins, state)))

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._remove_hook()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        epoch = int(state.epoch or 0)
        self._phases.mark("epoch", epoch)
        self._phases.begin("train", epoch)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._phases.end("train")

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._end_evaluation()  # one that was not the Trainer's
        if self._steps:
            self._phases.begin("step", state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._phases.end("step")

    def on_prediction_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._evaluation_begins(state)

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._end_evaluation()

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **others: Any) -> None:
        self._end_evaluation()

    def _evaluation_begins(self, state: Any) -> None:
        name = _what_runs()
        if not self._phases.is_open(name):
            self._end_evaluation()  # one that an exception left
            self._phases.begin(name, state.global_step)

    def _end_evaluation(self) -> None:
        for name in _PHASES:
            self._phases.end(name)

    def _remove_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _what_runs() -> str:
    """Return which of the Trainer's methods the caller runs in, `evaluate` if in neither."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        name = frame.f_code.co_name
        if _PHASES.get(name) is frame.f_code:
            return name
        frame = frame.f_back
    return "evaluate"


class _Forward:
    """A model's hook: tells of a forward pass in evaluation mode. In copies of the model, and saved ones, it is deaf."""

    def __init__(self, tell: Callable[[], None] | None = None) -> None:
        self._tell = tell

    def __call__(self, model: Any, inputs: Any) -> None:
        if self._tell is not None and not model.training:
            self._tell()

    def __reduce__(self) -> tuple[type[_Forward], tuple[()]]:
        return _Forward, ()
