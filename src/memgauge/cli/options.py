"""The options that commands share, each defined once, and their values in our own types."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memgauge import environment
from memgauge.arguments import TargetOptions, check_choice
from memgauge.cli.output import note
from memgauge.devices.stack import Stack, check_known, check_release, parse_version
from memgauge.errors import UsageError
from memgauge.targets import parse_target

if TYPE_CHECKING:
    from memgauge.allocators.settings import CudaSettings

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
Device = Annotated[
    str, typer.Option("--device", metavar="NAME", help="'memgauge devices' lists them; or a device file.")
]
DeviceHere = Annotated[
    str, typer.Option("--device", metavar="cpu|cuda", help="cuda is the GPU that is in this machine.")
]
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
        help="Settings of torch's CUDA allocator, as PYTORCH_CUDA_ALLOC_CONF spells them; what the program sets itself "
        "comes later and wins.",
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

Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        show_default=False,
        help="Also draw it: one page that works offline.",
        rich_help_panel=_OUTPUT,
    ),
]


Vary = Annotated[
    str | None,
    typer.Option(
        "--vary",
        metavar="NAME=A,B,C",
        show_default=False,
        help="One table over values of a whole-number argument, such as batch_size=8,16,32.",
        rich_help_panel=_HOW,
    ),
]
TorchVersion = Annotated[
    str | None,
    typer.Option(
        "--torch",
        metavar="VERSION",
        show_default=False,
        help="Version of torch on the card's machine; the one installed here by default.",
        rich_help_panel=_HOW,
    ),
]
CudaVersion = Annotated[
    str | None,
    typer.Option(
        "--cuda",
        metavar="VERSION",
        show_default=False,
        help="Version of CUDA that this torch is built with; its usual one by default.",
        rich_help_panel=_HOW,
    ),
]
Cudnn = Annotated[
    str | None,
    typer.Option(
        "--cudnn",
        metavar="FLAGS",
        show_default=False,
        help="Switches of torch.backends.cudnn: on, off, benchmark, deterministic, joined by commas, each with "
        "no- in front to turn it off; what the program sets itself comes later and wins.",
        rich_help_panel=_HOW,
    ),
]
Tf32 = Annotated[
    bool | None,
    typer.Option("--tf32/--no-tf32", show_default=False, help="TF32 in convolutions.", rich_help_panel=_HOW),
]
CublasWorkspace = Annotated[
    str | None,
    typer.Option(
        "--cublas-workspace",
        metavar="TEXT",
        show_default=False,
        help="As CUBLAS_WORKSPACE_CONFIG spells it, such as :4096:8; :0:0 for none.",
        rich_help_panel=_HOW,
    ),
]
CublasltWorkspace = Annotated[
    str | None,
    typer.Option(
        "--cublaslt-workspace",
        metavar="KIB",
        show_default=False,
        help="As CUBLASLT_WORKSPACE_SIZE, such as 4096; of no effect where it is shared with cuBLAS's.",
        rich_help_panel=_HOW,
    ),
]
CublasltUnified = Annotated[
    bool | None,
    typer.Option(
        "--cublaslt-unified/--no-cublaslt-unified",
        show_default=False,
        help="As TORCH_CUBLASLT_UNIFIED_WORKSPACE: cuBLASLt shares cuBLAS's workspace; since torch 2.9 by default.",
        rich_help_panel=_HOW,
    ),
]


def allocator_of(text: str | None) -> CudaSettings | None:
    """Return the settings that `--alloc-conf` gives, if it is given; the program finds them in its environment.

    Raises:
        UsageError, UnsupportedError: torch refuses them, or they are not modelled.
    """
    if text is None:
        return None
    from memgauge.allocators.settings import parse_cuda_settings

    settings = parse_cuda_settings(text)
    environment.put({**dict.fromkeys(environment.ALLOCATOR), environment.ALLOCATOR[0]: text})
    return settings


def stack_of(
    torch_version: str | None,
    cuda_version: str | None,
    cudnn: str | None = None,
    tf32: bool | None = None,
    cublas_workspace: str | None = None,
    cublaslt_workspace: str | None = None,
    cublaslt_unified: bool | None = None,
) -> Stack | None:
    """Return the software that the options describe; None if none is given.

    Raises:
        UsageError: A version or switch is unknown, or two contradict each other.
    """
    given: dict[str, Any] = {}
    if torch_version is not None:
        given["torch"] = parse_version(torch_version, "--torch")
    if cuda_version is not None:
        given["cuda"] = parse_version(cuda_version, "--cuda")
    check_known(given.get("torch"), given.get("cuda"))
    if cudnn is not None:
        given |= _cudnn_switches(cudnn)
    if tf32 is not None:
        given["tf32"] = tf32
    if cublas_workspace is not None:
        given["cublas_workspace_config"] = cublas_workspace
    if cublaslt_workspace is not None:
        if not cublaslt_workspace.isdecimal():
            raise UsageError(f"--cublaslt-workspace {cublaslt_workspace}: write KiB, such as 4096")
        given["cublaslt_workspace_kib"] = int(cublaslt_workspace)
    if cublaslt_unified is not None:
        given["cublaslt_unified"] = cublaslt_unified
    if not given:
        return None
    stack = stack_here(**given)
    if stack.cuda is not None:
        check_release(stack.torch, stack.cuda)
    environment.put(dict(stack.variables()))
    for text in stack.beyond_known():
        note(f"warning: {text}")
    return stack


def refuse_cuda_without_nvidia(device: str, cuda_version: str | None) -> None:
    """Refuse a version of CUDA for one card that has none.

    Raises:
        UsageError: It is AMD's.
    """
    from memgauge import devices

    if cuda_version is None or device == "all":
        return
    place = devices.find(device)
    if place.kind == "cuda" and not place.is_nvidia:
        raise UsageError(f"--cuda {cuda_version}: {place.name} runs ROCm, not CUDA; leave it out")


def stack_here(**given: Any) -> Stack:
    """Return the software that is installed here where it is not given otherwise."""
    installed = _installed_torch()
    if installed is not None:
        given.setdefault("torch", installed)
    return Stack(**given)


def _installed_torch() -> tuple[int, int] | None:
    import importlib.metadata

    try:
        return parse_version(importlib.metadata.version("torch"), "torch")
    except importlib.metadata.PackageNotFoundError:
        return None


_CUDNN_FIELDS = {
    "on": ("cudnn", True),
    "off": ("cudnn", False),
    "benchmark": ("cudnn_benchmark", True),
    "no-benchmark": ("cudnn_benchmark", False),
    "deterministic": ("cudnn_deterministic", True),
    "no-deterministic": ("cudnn_deterministic", False),
}


def _cudnn_switches(text: str) -> dict[str, bool]:
    switches: dict[str, bool] = {}
    for flag in text.split(","):
        check_choice("--cudnn", flag.strip(), tuple(_CUDNN_FIELDS))
        field, value = _CUDNN_FIELDS[flag.strip()]
        if switches.get(field, value) != value:
            raise UsageError(f"--cudnn {text}: {flag.strip()} contradicts what stands before it")
        switches[field] = value
    return switches


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
        UsageError: It is a directory, a recording or a program, or its directory is not there.
    """
    from memgauge.cli.output import refuse_program
    from memgauge.storage import refuse_recorded

    if out is None:
        return None
    out = out.expanduser()
    if out.is_dir():
        raise UsageError(f"{option} {out} is a directory; name a file in it")
    if not out.parent.is_dir():
        raise UsageError(f"{option} {out}: there is no directory {out.parent}")
    refuse_program(out, option)
    refuse_recorded(out)
    return out
