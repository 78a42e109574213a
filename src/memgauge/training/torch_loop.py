"""Training with PyTorch: the zoo's networks and steps, fed with a data set."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from memgauge import zoo
from memgauge.data import DataSet, describe
from memgauge.data.records import Array
from memgauge.errors import UsageError
from memgauge.frameworks.torch.recipe import DTYPES
from memgauge.monitor.marks import phase
from memgauge.training import Outcome, Training
from memgauge.training.checks import image_size
from memgauge.training.inputs import Inputs, inputs_for, samples, whole
from memgauge.training.networks import COMMON_OPTIONS, DEFAULT_WIDTHS, NETWORKS, WITH_ACTIVATION
from memgauge.training.preparing import versions_of
from memgauge.training.progress import Progress
from memgauge.workload import Workload

Batches = Callable[[Array], Any]


def torch_workload(training: Training) -> Workload:
    """Return the zoo's workload with this training's arguments: its build and its step are those that are trained."""
    arguments = zoo_arguments(training)
    workload = zoo.find(training.model)(**arguments)
    return workload.described(target=f"zoo:{training.model}", arguments=arguments)


def zoo_arguments(training: Training) -> dict[str, Any]:
    """Return the arguments of the zoo's function for this training."""
    what, network = describe(training.data), NETWORKS[training.model]
    arguments: dict[str, Any] = {
        "batch_size": training.batch_size,
        "optimizer": f"{training.optimizer},lr={training.learning_rate!r}",
        "precision": training.precision,
        "mode": training.mode,
    }
    if network.takes == "vector":
        widths = (*inputs_for(training).shape, *(training.widths or DEFAULT_WIDTHS), what.classes)
        arguments["widths"] = ",".join(map(str, widths))
    elif network.takes != "tokens":
        arguments["image_size"] = image_size(training, what, network)
    if network.has_classes and network.takes == "picture":
        arguments["classes"] = what.classes
    if training.model in WITH_ACTIVATION:
        arguments["activation"] = training.activation
    loop_only = set(COMMON_OPTIONS["torch"]) - {"checkpointing"}
    return arguments | {name: value for name, value in training.options.items() if name not in loop_only}


def run(training: Training, data: DataSet) -> Outcome:
    """Build, train and evaluate."""
    if threads := training.options.get("threads"):
        torch.set_num_threads(int(threads))
    torch.manual_seed(training.seed)
    device = _device(training)
    with phase("build"):
        workload = torch_workload(training)
        built = workload.build(device)
        objects = built if isinstance(built, tuple) else (built,)
        batches = _batches(training, data, workload, device)
    progress = Progress(training, data.rows, _wait_for(device))
    last: Any = None
    with phase("train"):
        for chosen in progress.batches():
            batch = batches(chosen)
            last = workload.step(*objects, batch)
            del batch
    with phase("evaluate"):
        accuracy = _accuracy(training, data, objects[0], device)
    return Outcome(
        steps=progress.steps,
        epochs=len(progress.seconds_per_epoch),
        seconds=progress.seconds,
        seconds_per_epoch=tuple(progress.seconds_per_epoch),
        final_loss=float(last) if training.mode == "train" and last is not None else None,
        accuracy=accuracy,
        synthetic_data=data.synthetic,
        parameters=_parameters(objects),
        memory=_memory(device),
        versions=versions_of("torch"),
        data_source=data.source,
    )


def _device(training: Training) -> torch.device:
    name = str(training.options.get("device", "cpu"))
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device {name!r} is unknown to torch; write cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {name!r}: torch sees no CUDA GPU here; leave device out or write cpu")
    return device


def _batches(training: Training, data: DataSet, workload: Workload, device: torch.device) -> Batches:
    """Return what makes a step's batch of tensors on the device from the chosen samples."""
    if training.model == "dcgan" and training.mode == "infer":
        return lambda chosen: workload.batch(device)  # noise; the data set is not used
    inputs, dtype = inputs_for(training), DTYPES.get(training.precision, torch.float32)
    if training.options.get("feed") == "arrays":
        whole, targets = _as_tensors(data, inputs, dtype)

        def from_tensors(chosen: Array) -> Any:
            which = torch.from_numpy(chosen)
            return _batch(inputs, whole[which].to(device), targets[which].to(device))

        return from_tensors

    def from_data(chosen: Array) -> Any:
        x, y = samples(data, inputs, chosen)
        return _batch(inputs, _tensor(x, dtype, device), torch.from_numpy(y).to(device))

    return from_data


def _batch(inputs: Inputs, x: torch.Tensor, y: torch.Tensor) -> Any:
    return x if inputs.takes == "reals" else (x, y)


def _as_tensors(data: DataSet, inputs: Inputs, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the whole data set as tensors, as a `TensorDataset` holds it: a copy in the network's type."""
    x, y = whole(data, inputs)
    return _tensor(x, dtype, torch.device("cpu")), torch.from_numpy(y)


def _tensor(x: Array, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor of its own with x: (B, height, width, channels) becomes (B, channels, height, width)."""
    turned = x.transpose(0, 3, 1, 2) if x.ndim == 4 else x
    kind = dtype if np.issubdtype(x.dtype, np.floating) else torch.int64
    tensor = torch.empty(turned.shape, dtype=kind, device=device)
    return tensor.copy_(torch.from_numpy(turned))


def _accuracy(training: Training, data: DataSet, model: nn.Module, device: torch.device) -> float | None:
    """Return the share of the held-out pictures that are classified rightly."""
    inputs = inputs_for(training)
    if data.held_out is None or inputs.takes not in ("vector", "picture"):
        return None
    dtype = DTYPES.get(training.precision, torch.float32)
    cast: Any = contextlib.nullcontext()
    if training.precision.startswith("amp-"):
        cast = torch.autocast(device.type, dtype=DTYPES[training.precision.removeprefix("amp-")])
    pictures, labels = data.held_out
    model.eval()
    right = 0
    with torch.no_grad(), cast:
        for start in range(0, len(labels), training.batch_size):
            span = slice(start, start + training.batch_size)
            x, y = inputs.make(pictures[span], labels[span])
            found = model(_tensor(x, dtype, device)).argmax(1)
            right += int((found.cpu() == torch.from_numpy(y)).sum())
    return right / len(labels)


def _parameters(objects: tuple[Any, ...]) -> int:
    modules = [one for one in objects if isinstance(one, nn.Module)]
    return sum(p.numel() for module in modules for p in module.parameters() if p.requires_grad)


def _wait_for(device: torch.device) -> Callable[[], None]:
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


def _memory(device: torch.device) -> dict[str, int]:
    if device.type != "cuda":
        return {}
    return {
        "cuda_peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
        "cuda_peak_reserved_bytes": torch.cuda.max_memory_reserved(device),
    }
