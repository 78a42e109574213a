"""The torch side of an estimate: a trace with the kernels' workspace of the device in it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import torch

from memgauge.devices import Device
from memgauge.devices.context import context
from memgauge.devices.libraries import cublas_bytes_of
from memgauge.devices.stack import Stack, parse_version
from memgauge.errors import UsageError
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


def card_of(place: Device, stack: Stack | None = None) -> Card:
    """Return the GPU as a program sees it; an A100 where a fact is not known."""
    stack = stack or installed_stack()
    usable = place.usable_figure
    known: dict[str, Any] = {
        "capability": place.compute_capability,
        "total_bytes": None if usable is None else usable.bytes,
        "multiprocessors": place.multiprocessors,
    }
    given = {key: value for key, value in known.items() if value is not None}
    card = Card(name=place.title, stack=stack, is_nvidia=place.is_nvidia, rates=place.rates, **given)
    if (
        place.compute_capability is None and place.is_nvidia
    ):  # "cuda": what is here, taken for the default card
        place = msgspec.structs.replace(place, compute_capability=card.capability)
    beside = context(place, stack)[0].expected if place.kind == "cuda" else 0
    return replace(card, context_bytes=beside, cublas_bytes=cublas_bytes_of(place, stack))


def installed_stack() -> Stack:
    """Return the versions that are installed here, with torch's own defaults."""
    cuda = torch.version.cuda
    return Stack(
        torch=parse_version(str(torch.__version__), "torch"),
        cuda=None if cuda is None else parse_version(cuda, "CUDA"),
    )


def stack_on(place: Device, stack: Stack | None = None) -> Stack:
    """Return the software on a card's machine, with a CUDA that has kernels for the card.

    Args:
        place: The card.
        stack: What is given; else what is installed here, of which CUDA may differ there.

    Raises:
        UsageError: There are no such kernels.
    """
    if stack is None:
        stack = installed_stack()
        try:
            return stack.on_card(place.title, place.compute_capability)
        except UsageError:
            stack = msgspec.structs.replace(stack, cuda=None)
    return stack.on_card(place.title, place.compute_capability)


def threads_of_run(asked: int | None) -> int:
    """Return the number of CPU threads that a run would use."""
    return asked if asked is not None else torch.get_num_threads()


def versions() -> dict[str, str]:
    """Return the versions that the result depends on."""
    return {"torch": str(torch.__version__)}
