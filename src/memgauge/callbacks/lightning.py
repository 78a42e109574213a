"""Phases of a PyTorch Lightning run."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError:  # the older name of the same library
    from pytorch_lightning.callbacks import Callback  # type: ignore[no-redef,assignment]

from memgauge.callbacks import Phases


class MemoryPhases(Callback):  # type: ignore[misc]
    """Tell a recording of epochs, validation, test and prediction.

    Args:
        steps: Also of every training step; each costs some microseconds.
    """

    def __init__(self, *, steps: bool = False) -> None:
        self._phases = Phases()
        self._steps = steps

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._phases.mark("epoch", trainer.current_epoch)
        self._phases.begin("train", trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._phases.end("train")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._steps:
            self._phases.begin("step", trainer.global_step)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._phases.end("step")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._phases.begin("validate", trainer.current_epoch)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._phases.end("validate")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self._phases.begin("test")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._phases.end("test")

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        self._phases.begin("predict")

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        self._phases.end("predict")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._phases.mark("exception", type(exception).__name__)
        # No other hook is called after it: neither the end of the step nor that of the epoch.
        self._phases.end_all()
