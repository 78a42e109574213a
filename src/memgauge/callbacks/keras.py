"""Phases of a Keras run, on whatever backend."""

from __future__ import annotations

from typing import Any

from keras.callbacks import Callback

from memgauge.callbacks import Phases


class MemoryPhases(Callback):  # type: ignore[misc]
    """Tell a recording of epochs, validation and prediction.

    Args:
        steps: Also of every training step; each costs some microseconds.
    """

    def __init__(self, *, steps: bool = False) -> None:
        super().__init__()
        self._phases = Phases()
        self._with_steps = steps

    # Keras tells callbacks of no exception, so what one left open ends with the next beginning. Each fit, evaluate
    # and predict hands its callbacks the model first; the validation within a fit does not.
    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._phases.end_all()

    # A loop of one's own may keep its callbacks with their model from one training to the next.
    def on_train_begin(self, logs: Any = None) -> None:
        self._phases.end_all()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._phases.mark("epoch", epoch)
        self._phases.begin("train", epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._phases.end("train")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._with_steps:
            self._phases.begin("step", batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._phases.end("step")

    def on_test_begin(self, logs: Any = None) -> None:
        self._phases.begin("validate")

    def on_test_end(self, logs: Any = None) -> None:
        self._phases.end("validate")

    def on_predict_begin(self, logs: Any = None) -> None:
        self._phases.begin("predict")

    def on_predict_end(self, logs: Any = None) -> None:
        self._phases.end("predict")
