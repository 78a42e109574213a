"""`memgauge devices`: the catalogue of devices that a run can be predicted for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from memgauge.cli import options
from memgauge.cli.output import show, show_json
from memgauge.errors import UsageError

if TYPE_CHECKING:
    from memgauge.cli.documents import DeviceFacts

# What a title says that the name beside it says as well.
_FAMILY = re.compile(r"NVIDIA (GeForce )?|AMD Instinct ")
EPILOG = (
    "Example: memgauge devices nvidia-a100-40gb --torch 2.6\n\n"
    "A card that is not listed can be described in a file: memgauge devices card.toml (docs/devices.md)"
)


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", show_default=False, help="One device, or a device file: what is known of it."
        ),
    ] = None,
    torch_version: options.TorchVersion = None,
    cuda_version: options.CudaVersion = None,
    as_json: options.AsJson = False,
) -> None:
    """List the devices that --device knows, or explain one: each figure with its source and grade."""
    from memgauge import devices
    from memgauge.cli.documents import Devices

    stack = options.stack_of(torch_version, cuda_version) or options.stack_here()
    if name is not None:
        facts = _facts(name, stack)
        if as_json:
            show_json(facts)
        else:
            _explain(facts)
        return
    found = tuple(devices.find(name) for name in devices.catalogue())  # "cuda" as it was calibrated
    if as_json:
        show_json(Devices(devices=found))
        return
    from rich.console import Group
    from rich.text import Text

    from memgauge.devices.context import context
    from memgauge.report.tables import grid, plain
    from memgauge.units import format_bytes

    def amount(count: int, grade: str) -> str:
        return ("≈" if grade == "guessed" else "") + format_bytes(count)

    table = grid("device", "memory", "usable", "context", "title", flexible="title")
    for device in found:
        usable = device.usable_figure
        if usable is None:
            here = "read here" if device.kind == "cpu" else "calibrate"
            table.add_row(plain(device.name), here, "", "", plain(device.title))
            continue
        try:
            beside, figure = context(device, stack.on_card(device.title, device.compute_capability))
            taken = amount(beside.expected, figure.grade)
        except UsageError:  # said in full by memgauge devices NAME
            taken = "no kernels"
        table.add_row(
            plain(device.name),
            format_bytes(device.capacity_bytes),
            amount(usable.bytes, usable.grade),
            taken,
            plain(_FAMILY.sub("", device.title)),
        )
    show(
        Group(
            table, Text("\n≈ guessed; memgauge devices NAME says from what, and how far off it may be", "dim")
        )
    )


def _facts(name: str, stack: object) -> DeviceFacts:
    from memgauge import devices
    from memgauge.cli.documents import DeviceFacts, Fact
    from memgauge.devices import libraries
    from memgauge.devices.context import context
    from memgauge.devices.stack import Stack
    from memgauge.records import Range

    assert isinstance(stack, Stack)
    device = devices.find(name)
    stack = stack.on_card(device.title, device.compute_capability)
    facts: list[Fact] = []

    def add(what: str, figure: Range | int | None, grade: str, source: str) -> None:
        if figure is not None:
            size = figure if isinstance(figure, Range) else Range(low=figure, expected=figure, high=figure)
            facts.append(Fact(what=what, bytes=size, grade=grade, source=source))

    add("capacity", device.capacity_bytes, "vendor", device.source)
    usable = device.usable_figure
    if usable is not None:
        add("usable", usable.bytes, usable.grade, usable.source)
    if device.kind == "cuda":
        beside, figure = context(device, stack)
        add("context", beside, figure.grade, figure.source)
        workspace = device.cublas_workspace
        grade, source = "vendor", libraries.MECHANISMS[libraries.CUBLAS]
        as_known = device
        if workspace is not None:
            grade, source = workspace.grade, workspace.source
        elif device.is_nvidia and device.compute_capability is None:
            as_known = devices.find(
                "nvidia-a100-40gb"
            )  # as estimates take it (frameworks.torch.predict.card_of)
            grade, source = "guessed", "compute capability is not given: as on an A100"
        size = libraries.cublas_bytes_of(as_known, stack)
        add("cuBLAS workspace, each of two threads", size, grade, source)
        add(
            "cuBLASLt workspace" + ("" if libraries.keeps_cublaslt(stack) else ", each product"),
            libraries.cublaslt_bytes(stack, is_nvidia=device.is_nvidia),
            "vendor",
            libraries.MECHANISMS[libraries.CUBLASLT],
        )
    loading = "lazily" if stack.is_lazy else "all at once"
    return DeviceFacts(
        device=device,
        torch=".".join(map(str, stack.torch)),
        cuda=".".join(map(str, stack.cuda_version)) if device.is_nvidia else None,
        loads_modules=loading if device.is_nvidia else None,
        facts=tuple(facts),
        mechanisms=dict(libraries.MECHANISMS) if device.kind == "cuda" else {},
    )


def _explain(facts: DeviceFacts) -> None:
    from rich.console import Group, RenderableType
    from rich.text import Text

    from memgauge.report.tables import format_range, grid, plain
    from memgauge.report.text import bullets, section

    device = facts.device
    head = Text(plain(device.name).plain, style="bold").append(f": {plain(device.title).plain}")
    said = [device.architecture] if device.architecture else []
    if device.compute_capability:
        said.append("compute capability {}.{}".format(*device.compute_capability))
    if device.multiprocessors and device.threads_per_multiprocessor:
        said.append(
            f"{device.multiprocessors} multiprocessors of {device.threads_per_multiprocessor} threads"
        )
    if device.kind == "cuda":
        beside = f"CUDA {facts.cuda}, kernels loaded {facts.loads_modules}" if device.is_nvidia else "ROCm"
        said.append(f"torch {facts.torch}, {beside}")
    parts: list[RenderableType] = [head]
    if said:
        parts.append(Text("; ".join(said), style="dim"))
    if not facts.facts:
        parts.append(Text(f"what it has is {device.source}"))
        show(Group(*parts))
        return
    if device.capacity_bytes is None:
        parts.append(Text(f"its memory is {device.source}", style="bold"))
    table = grid("figure", "amount", "grade")
    for fact in facts.facts:
        table.add_row(fact.what, format_range(fact.bytes), fact.grade)
    sources = [f"{fact.what}: {fact.source or 'no source is given'}" for fact in facts.facts]
    if device.rates is not None:
        by_type = (("half types", "half"), ("TF32", "tf32"), ("float32", "float32"))
        said = [f"{what} {getattr(device.rates, name):g}" for what, name in by_type]
        sources.append(
            f"rates, by which copies for tensor cores are weighed: {', '.join(said)} TFLOPS, "
            f"{device.rates.memory:g} TB/s ({device.rates.source})"
        )
    scratch = [f"{name}: {why}" for name, why in facts.mechanisms.items()]
    parts += [Text(), table, *section("From", *bullets(sources))]
    show(Group(*parts, *section("Taken by libraries while they work", *bullets(scratch))))
