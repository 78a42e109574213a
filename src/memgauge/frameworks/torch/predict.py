"""The torch side of an estimate: a trace with the kernels' workspace of the device in it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from memgauge.frameworks.torch.cuda_devices import Card
from memgauge.frameworks.torch.trace import Onlooker, trace
from memgauge.records import Trace
from memgauge.workload import Workload


def predict(
    workload: Workload,
    *,
    kind: str,
    steps: int,
    threads: int,
    card: Card | None = None,
    onlooker: Onlooker | None = None,
) -> Trace:
    """Return the predicted trace of a run on a `"cpu"` or `"cuda"` device.

    Args:
        workload: What is run.
        kind: Of the device.
        steps: Steps of the run.
        threads: CPU threads of the run.
        card: The GPU, for `"cuda"`.
        onlooker: Is shown the built objects, the batches and the calls of modules.

    Raises:
        WorkloadError: The workload's own code raised; the message has its traceback.
        UnsupportedError: An operator cannot be followed without running it.
    """
    if kind == "cuda":
        return trace(workload, device="cuda", steps=steps, card=card, onlooker=onlooker)
    from memgauge.frameworks.torch.cpu_workspace import workspace_bytes

    workspace = partial(workspace_bytes, threads=threads)
    return trace(workload, device="cpu", steps=steps, workspace=workspace, onlooker=onlooker)


def card_of(title: str, capability: tuple[int, int] | None, capacity_bytes: int | None) -> Card:
    """Return the GPU as a program sees it; an A100 where a fact is not known."""
    known: dict[str, Any] = {"capability": capability, "total_bytes": capacity_bytes}
    return replace(Card(name=title), **{key: value for key, value in known.items() if value is not None})


def threads_of_run(asked: int | None) -> int:
    """Return the number of CPU threads that a run would use."""
    return asked if asked is not None else torch.get_num_threads()


def versions() -> dict[str, str]:
    """Return the versions that the result depends on."""
    return {"torch": str(torch.__version__)}
