"""`memgauge estimate`: say what a run will take, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from memgauge.arguments import TargetOptions, parse_sets
from memgauge.cli import options
from memgauge.cli.output import save_json, show, show_json
from memgauge.cli.running import running
from memgauge.errors import UsageError

if TYPE_CHECKING:
    from memgauge.allocators.settings import CudaSettings

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
    alloc_conf: Annotated[
        str | None,
        typer.Option(
            "--alloc-conf",
            metavar="TEXT",
            show_default=False,
            help="Settings of torch's CUDA allocator, as PYTORCH_CUDA_ALLOC_CONF spells them.",
            rich_help_panel="How it is run",
        ),
    ] = None,
    layers: options.Layers = "10",
    as_json: options.AsJson = False,
    out: options.Out = None,
) -> None:
    """Predict the memory of a training or inference run, without running it."""
    options.check_counts(
        steps=steps,
        threads=threads,
        batch_size=batch_size,
        image_size=image_size,
        sequence_length=sequence_length,
    )
    count, out = options.layer_count(layers), options.writable(out)
    asked = TargetOptions(batch_size, image_size, sequence_length, optimizer, precision, mode, checkpointing)
    arguments = parse_sets(sets or [])
    allocator = _allocator(alloc_conf, device)
    with running(f"predicting {target} on {device}"):
        from memgauge.estimate import estimate

        result = estimate(
            target,
            device=device,
            steps=steps,
            threads=threads,
            options=asked,
            sets=arguments,
            allocator=allocator,
        )
    save_json(result, out)
    if as_json:
        show_json(result)
    else:
        from memgauge.report.text import estimate_view

        show(estimate_view(result, layers=count))
    if result.fits is not None and result.fits.verdict == "no":
        raise typer.Exit(1)


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
