"""`memgauge fit`: the largest batch, or other whole-number argument, that fits a card."""

from __future__ import annotations

from typing import Annotated

import typer

from memgauge.arguments import parse_sets
from memgauge.cli import options
from memgauge.cli.output import save_json, show, show_json, warn
from memgauge.cli.running import running
from memgauge.errors import UsageError

EPILOG = (
    "Example: memgauge fit torchvision:resnet50 --device nvidia-rtx-3090\n\n"
    "Example: memgauge fit zoo:gpt2 --device nvidia-t4 --batch-size 4 --vary sequence_length\n\n"
    "Exit code: 0 a value fits, 1 not even 1 does, 2 wrong usage."
)

Device = Annotated[
    str, typer.Option("--device", metavar="NAME", help="A card of 'memgauge devices', or a device file.")
]
Vary = Annotated[
    str, typer.Option("--vary", metavar="NAME", help="The whole-number argument that is searched.")
]


def command(
    target: options.Target,
    device: Device,
    vary: Vary = "batch_size",
    batch_size: options.BatchSize = None,
    image_size: options.ImageSize = None,
    sequence_length: options.SequenceLength = None,
    optimizer: options.Optimizer = None,
    precision: options.Precision = "float32",
    mode: options.Mode = "train",
    checkpointing: options.Checkpointing = False,
    sets: options.Sets = None,
    steps: options.Steps = 3,
    alloc_conf: options.AllocConf = None,
    torch_version: options.TorchVersion = None,
    cuda_version: options.CudaVersion = None,
    cudnn: options.Cudnn = None,
    tf32: options.Tf32 = None,
    cublas_workspace: options.CublasWorkspace = None,
    cublaslt_workspace: options.CublasltWorkspace = None,
    cublaslt_unified: options.CublasltUnified = None,
    as_json: options.AsJson = False,
    out: options.Out = None,
    html: options.Html = None,
) -> None:
    """Find the largest batch (or other argument) that fits a card: surely, and probably."""
    options.check_counts(steps=steps)
    if not vary.isidentifier():
        raise UsageError(f"--vary {vary}: name one argument; memgauge estimate --vary takes values")
    if device == "all":
        raise UsageError(
            "--device all: fit searches on one card, name it (`memgauge devices` lists them); "
            f"memgauge estimate {target} --device all shows where one batch fits"
        )
    out, arguments = options.writable(out), parse_sets(sets or [])
    html = options.writable(html, "--html")
    asked = options.what_is_run(
        target, batch_size, image_size, sequence_length, optimizer, precision, mode, checkpointing
    )
    stack = options.stack_of(
        torch_version, cuda_version, cudnn, tf32, cublas_workspace, cublaslt_workspace, cublaslt_unified
    )
    options.refuse_cuda_without_nvidia(device, cuda_version)
    allocator = options.allocator_of(alloc_conf)
    with running(f"finding the largest {vary} of {target} on {device}") as tell:
        from memgauge.vary import largest

        result = largest(
            target,
            device=device,
            name=vary,
            options=asked,
            sets=arguments,
            steps=steps,
            allocator=allocator,
            stack=stack,
            tell=tell,
        )
    save_json(result, out)
    warn(result.assumptions)
    if as_json:
        show_json(result)
    else:
        from memgauge.report.many import largest_view

        show(largest_view(result))
    if html is not None:
        from memgauge.cli.report import save_page
        from memgauge.report.many_page import largest_page

        save_page(html, largest_page(result))
    if result.probably is None:
        raise typer.Exit(1)
