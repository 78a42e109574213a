"""Phases of a run by the Hugging Face Trainer."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from memgauge.callbacks import Phases


class MemoryPhases(TrainerCallback):  # type: ignore[misc]
    """Tell a recording of epochs and evaluations.

    Args:
        steps: Also of every training step; each costs some microseconds.
    """

    def __init__(self, *, steps: bool = False) -> None:
        self._phases = Phases()
        self._steps = steps

    # The Trainer tells callbacks of no exception: what one left open ends when it trains again.
    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._phases.end_all()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        epoch = int(state.epoch or 0)
        self._phases.mark("epoch", epoch)
        self._phases.begin("train", epoch)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._phases.end("train")

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self._steps:
            self._phases.begin("step", state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._phases.end("step")

    def on_prediction_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if not self._phases.is_open("evaluate"):
            self._phases.begin("evaluate", state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._phases.end("evaluate")

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **others: Any) -> None:
        self._phases.end("evaluate")
