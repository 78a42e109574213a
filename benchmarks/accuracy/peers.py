"""Other predictors, where they are installed: what each says of the same case, in bytes.

Each is asked as its own documentation asks it, of the same network and batch:

    torchinfo        its total: input, forward and backward, parameters
    accelerate       `accelerate estimate-memory`, "training with Adam": four times the weights
    DeepSpeed        ZeRO-2's model states on one GPU, nothing offloaded (activations are not its subject)
    torch-preflight  its guard's cost model, with the retained activations that it measures on `meta`
    MemTracker       torch's own (torch.distributed._tools): the peak of two steps under FakeTensorMode

What cannot be asked, or takes longer than is allowed, is left out; the file of answers says why. MemTracker
takes minutes for a deep network: ask about few cases and let it finish (`--limit`, `--seconds`).
"""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.accuracy.cases import Case
from memgauge.workload import Workload

SECONDS = 300  # for one answer of one peer
_STEPS = 2  # the optimizer's state is there from the second on


def answers(case: Case, seconds: int = SECONDS) -> tuple[dict[str, int], dict[str, str]]:
    """Return the peers' answers by name, and why others have none; `seconds` for each."""
    found: dict[str, int] = {}
    refused: dict[str, str] = {}
    for name, (module, ask) in PEERS.items():
        if importlib.util.find_spec(module) is None:
            refused[name] = "not installed"
            continue
        try:
            with at_most(seconds):
                found[name] = ask(case)
        except Exception as error:  # a peer that cannot answer has no answer
            refused[name] = f"{type(error).__name__}: {error}"[:200]
    return found, refused


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in this process's main thread when the time is over."""

    def over(*_: object) -> None:
        raise TimeoutError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _alone(case: Case) -> Workload:
    return (case.alone or case.workload)()


def _model_and_input(case: Case) -> tuple[Any, Any]:
    """Return the network and what it is called with, on `meta`; labels are left out."""
    import torch

    workload = _alone(case)
    with torch.device("meta"):
        batch = workload.batch()
        return workload.build()[0], batch if isinstance(batch, dict) else batch[0]


def _torchinfo(case: Case) -> int:
    import torchinfo

    model, inputs = _model_and_input(case)
    said = torchinfo.summary(model, input_data=inputs, device="meta", mode="train", verbose=0)
    return int(said.total_input + said.total_output_bytes + said.total_param_bytes)


def _accelerate(case: Case) -> int:
    from accelerate.utils import calculate_maximum_sizes

    total, _ = calculate_maximum_sizes(_model_and_input(case)[0])
    return int(4 * total)


def _deepspeed(case: Case) -> int:
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    count = sum(p.numel() for p in _model_and_input(case)[0].parameters())
    return int(estimate_zero2_model_states_mem_needs(count, cpu_offload=False)[1])


def _preflight(case: Case) -> int:
    from torch_preflight.vram.costmodel import estimate
    from torch_preflight.vram.guard import VRAMGuard

    model, inputs = _model_and_input(case)
    if isinstance(inputs, dict):
        inputs = inputs["input_ids"]
    optimizer = type(case.facts.get("optimizer", "SGD"), (), {"param_groups": [{"momentum": 0.9}]})()
    guard = VRAMGuard(model, optimizer=optimizer, batch_size=inputs.shape[0], example_input=inputs)
    if guard.activation_source != "measured":
        raise ValueError("activations could not be measured on meta")
    return int(estimate(guard.profile, guard.config, None).total)


def _mem_tracker(case: Case) -> int:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    workload = _alone(case)
    with torch.device("meta"):  # building under FakeTensorMode fails where a constructor reads a value
        objects = workload.build()
    model, optimizer = objects[:2]
    made = dict(model.named_parameters(remove_duplicate=False))
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
        there = dict(model.to_empty(device="cpu").named_parameters(remove_duplicate=False))
        moved = {parameter: there[name] for name, parameter in made.items()}
        for group in optimizer.param_groups:
            group["params"] = [moved[p] for p in group["params"]]
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for _ in range(_STEPS):
                workload.step(*objects, workload.batch())
                tracker.reset_mod_stats()
        return int(max(device["Total"] for device in tracker.get_tracker_snapshot("peak").values()))


PEERS: dict[str, tuple[str, Callable[[Case], int]]] = {
    "torchinfo": ("torchinfo", _torchinfo),
    "accelerate (Adam)": ("accelerate", _accelerate),
    "DeepSpeed ZeRO-2, one GPU": ("deepspeed", _deepspeed),
    "torch-preflight": ("torch_preflight", _preflight),
    "torch MemTracker": ("torch", _mem_tracker),
}
