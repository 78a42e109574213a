"""`memgauge estimate`: say what a run will take, without running it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from memgauge.arguments import parse_sets
from memgauge.cli import options
from memgauge.cli.output import save_json, show, show_json
from memgauge.cli.running import running
from memgauge.errors import UsageError

if TYPE_CHECKING:
    from memgauge.allocators.settings import CudaSettings
    from memgauge.records import Estimate

EPILOG = (
    "Example: memgauge estimate torchvision:resnet50 --device nvidia-rtx-3090 --batch-size 64\n\n"
    "Exit code: 0 it fits or may fit, 1 it does not fit, 2 wrong usage, 3 something is missing here."
)


def command(
    target: options.Target,
    device: options.Device = "cpu",
    batch_size: options.BatchSize = None,
    image_size: options.ImageSize = None,
    sequence_length: options.SequenceLength = None,
    optimizer: options.Optimizer = None,
    precision: options.Precision = "float32",
    mode: options.Mode = "train",
    checkpointing: options.Checkpointing = False,
    sets: options.Sets = None,
    steps: options.Steps = 3,
    threads: options.Threads = None,
    alloc_conf: options.AllocConf = None,
    layers: options.Layers = "10",
    as_json: options.AsJson = False,
    out: options.Out = None,
) -> None:
    """Predict the memory of a training or inference run, without running it."""
    options.check_counts(steps=steps, threads=threads)
    count, out, arguments = options.layer_count(layers), options.writable(out), parse_sets(sets or [])
    asked = options.what_is_run(
        target, batch_size, image_size, sequence_length, optimizer, precision, mode, checkpointing
    )
    allocator = _allocator(alloc_conf, device)
    with running(f"predicting {target} on {device}"):
        from memgauge.estimate import estimate

        run = partial(estimate, device=device, steps=steps, threads=threads, options=asked, sets=arguments)
        result = run(target, allocator=allocator)
    _show(result, count, out, as_json=as_json)
    if result.fits is not None and result.fits.verdict == "no":
        raise typer.Exit(1)


def _show(result: Estimate, count: int | None, out: Path | None, *, as_json: bool) -> None:
    save_json(result, out)
    if as_json:
        show_json(result)
        return
    from memgauge.report.text import estimate_view

    show(estimate_view(result, layers=count))


def _allocator(text: str | None, device: str) -> CudaSettings | None:
    """Return the settings in `text`; refused where they would change nothing."""
    if text is None:
        return None
    from memgauge import devices
    from memgauge.allocators.settings import parse_cuda_settings

    settings = parse_cuda_settings(text)
    if devices.find(device).kind == "cpu":
        raise UsageError("--alloc-conf changes nothing on the CPU; add --device with a GPU's name")
    return settings
