"""The options that commands share, each defined once, and their values in our own types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memgauge.arguments import TargetOptions
from memgauge.errors import UsageError
from memgauge.targets import parse_target

_WHAT, _HOW, _OUTPUT = "What is run", "How it is run", "Output"

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        show_default=False,
        help="zoo:NAME, torchvision:NAME, timm:NAME, transformers:TYPE, path/to/file.py:function "
        "or package.module:function.",
    ),
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="'memgauge devices' lists all.")]
Steps = Annotated[int, typer.Option("--steps", metavar="N", help="Steps of the run.", rich_help_panel=_HOW)]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", metavar="N", help="CPU threads; torch's own number by default.", rich_help_panel=_HOW
    ),
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", metavar="N", help="Samples per step.", rich_help_panel=_WHAT)
]
ImageSize = Annotated[
    int | None,
    typer.Option("--image-size", metavar="N", help="Height and width in pixels.", rich_help_panel=_WHAT),
]
SequenceLength = Annotated[
    int | None,
    typer.Option("--sequence-length", metavar="N", help="Tokens per sample.", rich_help_panel=_WHAT),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        metavar="NAME",
        help="A class of torch.optim in lower case, with arguments: sgd,momentum=0.9.",
        rich_help_panel=_WHAT,
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="NAME",
        help="float32, float64, bfloat16 or float16 for everything; amp-bfloat16 or amp-float16 for autocast.",
        rich_help_panel=_WHAT,
    ),
]
PrecisionOrAny = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="NAME",
        help="float32, float64, bfloat16 or float16 for everything; amp-bfloat16 or amp-float16 for autocast; "
        "with --method formula any element type of torch, such as float8_e4m3fn.",
        rich_help_panel=_WHAT,
    ),
]
Mode = Annotated[str, typer.Option("--mode", metavar="NAME", help="train or infer.", rich_help_panel=_WHAT)]
Checkpointing = Annotated[
    bool,
    typer.Option("--checkpointing", help="Compute activations again in backward.", rich_help_panel=_WHAT),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        show_default=False,
        help="Argument of the TARGET's function; may be repeated.",
        rich_help_panel=_WHAT,
    ),
]
AllocConf = Annotated[
    str | None,
    typer.Option(
        "--alloc-conf",
        metavar="TEXT",
        show_default=False,
        help="Settings of torch's CUDA allocator, as PYTORCH_CUDA_ALLOC_CONF spells them.",
        rich_help_panel=_HOW,
    ),
]
Compare = Annotated[
    bool,
    typer.Option("--compare", help="Also predict, and set both side by side.", rich_help_panel=_OUTPUT),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="One JSON document, bytes as integers.", rich_help_panel=_OUTPUT),
]
Layers = Annotated[
    str,
    typer.Option("--layers", metavar="N|all", help="How many layers to list.", rich_help_panel=_OUTPUT),
]
LayersIfAsked = Annotated[
    str | None,
    typer.Option(
        "--layers",
        metavar="N|all",
        show_default=False,
        help="How many layers to list; 10 by default, all with --method formula.",
        rich_help_panel=_OUTPUT,
    ),
]
Method = Annotated[
    str,
    typer.Option(
        "--method",
        metavar="NAME",
        help="trace follows every operator; formula is the calculation by hand, layer by layer; both sets "
        "them side by side and names every byte of the difference.",
        rich_help_panel=_HOW,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", show_default=False, help="Also save the JSON here.", rich_help_panel=_OUTPUT
    ),
]


def what_is_run(
    target: str,
    batch_size: int | None,
    image_size: int | None,
    sequence_length: int | None,
    optimizer: str | None,
    precision: str,
    mode: str,
    checkpointing: bool,
) -> TargetOptions:
    """Return what the options say of the target; nothing heavy is imported for it.

    Raises:
        UsageError: The target has no known form, a size is below 1, a choice is unknown.
    """
    check_counts(batch_size=batch_size, image_size=image_size, sequence_length=sequence_length)
    parse_target(target)
    return TargetOptions(
        batch_size=batch_size,
        image_size=image_size,
        sequence_length=sequence_length,
        optimizer=optimizer,
        precision=precision,
        mode=mode,
        checkpointing=checkpointing,
    )


def check_counts(**counts: int | None) -> None:
    """Raise `UsageError` if a count that is given is below 1; its name is that of the option."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UsageError(f"--{name.replace('_', '-')} {count}: it must be at least 1")


def layer_count(text: str) -> int | None:
    """Return the number of layers that `--layers` asks for, None for all.

    Raises:
        UsageError: The text is neither a whole number nor `all`.
    """
    if text == "all":
        return None
    if not text.isdecimal():
        raise UsageError(f"--layers {text}: write a whole number, or all")
    return int(text)


def writable(out: Path | None, option: str = "--out") -> Path | None:
    """Return the path of `--out`, or of another option, if it can be written, before a run is spent on it.

    Raises:
        UsageError: It is a directory, or its directory is not there.
    """
    if out is None:
        return None
    out = out.expanduser()
    if out.is_dir():
        raise UsageError(f"{option} {out} is a directory; name a file in it")
    if not out.parent.is_dir():
        raise UsageError(f"{option} {out}: there is no directory {out.parent}")
    return out
