"""`memgauge estimate`: say what a run will take, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from memgauge.arguments import PRECISIONS, check_choice, parse_sets
from memgauge.cli import options
from memgauge.cli.output import save_json, show, show_json, warn
from memgauge.cli.running import running
from memgauge.errors import UsageError

if TYPE_CHECKING:
    from memgauge.allocators.settings import CudaSettings
    from memgauge.devices.stack import Stack
    from memgauge.formula.records import Both, Formula
    from memgauge.records import Estimate

EPILOG = (
    "Example: memgauge estimate torchvision:resnet50 --device nvidia-rtx-3090 --batch-size 64\n\n"
    "Example: memgauge estimate zoo:vgg16 --method both\n\n"
    "Exit code: 0 it fits or may fit, 1 it does not fit (a table: not once), 2 wrong usage, 3 something is missing here."
)


def command(
    target: options.Target,
    device: options.Device = "cpu",
    batch_size: options.BatchSize = None,
    image_size: options.ImageSize = None,
    sequence_length: options.SequenceLength = None,
    optimizer: options.Optimizer = None,
    precision: options.PrecisionOrAny = "float32",
    mode: options.Mode = "train",
    checkpointing: options.Checkpointing = False,
    sets: options.Sets = None,
    steps: options.Steps = 3,
    threads: options.Threads = None,
    alloc_conf: options.AllocConf = None,
    torch_version: options.TorchVersion = None,
    cuda_version: options.CudaVersion = None,
    cudnn: options.Cudnn = None,
    tf32: options.Tf32 = None,
    cublas_workspace: options.CublasWorkspace = None,
    cublaslt_workspace: options.CublasltWorkspace = None,
    cublaslt_unified: options.CublasltUnified = None,
    vary: options.Vary = None,
    method: options.Method = "trace",
    layers: options.LayersIfAsked = None,
    as_json: options.AsJson = False,
    out: options.Out = None,
    html: options.Html = None,
) -> None:
    """Predict the memory of a training or inference run, without running it."""
    options.check_counts(steps=steps, threads=threads)
    check_choice("--method", method, _METHODS)
    count = options.layer_count(layers or ("10" if method == "trace" else "all"))
    out, arguments = options.writable(out), parse_sets(sets or [])
    html = options.writable(html, "--html")
    counted_as = precision if method == "formula" and precision not in PRECISIONS else None
    asked = options.what_is_run(
        target,
        batch_size,
        image_size,
        sequence_length,
        optimizer,
        "float32" if counted_as else precision,
        mode,
        checkpointing,
    )
    stack = options.stack_of(
        torch_version, cuda_version, cudnn, tf32, cublas_workspace, cublaslt_workspace, cublaslt_unified
    )
    allocator = _allocator(alloc_conf, device)
    _refuse_contradictions(device, stack, method, vary, threads)
    options.refuse_cuda_without_nvidia(device, cuda_version)
    if html is not None and method != "trace":
        raise UsageError("--html draws the trace; leave --method out")
    if device == "all" or vary is not None:
        _show_many(
            target, device, vary, asked, arguments, steps, allocator, stack, out, html, as_json=as_json
        )
        return
    if method == "formula":
        _refuse_for_formula(allocator, stack)
        with running(f"calculating {target}"):
            from memgauge.by_hand import by_hand

            formula = by_hand(target, device=device, options=asked, sets=arguments, precision=counted_as)
        _show_formula(formula, count, out, as_json=as_json)
        return
    run: Any
    with running(f"predicting {target} on {device}"):
        if method == "both":
            from memgauge.by_hand import both as run
        else:
            from memgauge.estimate import estimate as run

        facts: dict[str, Any] = {
            "device": device,
            "steps": steps,
            "threads": threads,
            "options": asked,
            "sets": arguments,
        }
        seen: list[Any] = []
        if html is not None:
            facts["followed"] = lambda *both: seen.extend(both)
        result = run(target, allocator=allocator, stack=stack, **facts)
    if method == "both":
        _show_formula(result, count, out, as_json=as_json)
        result = result.trace
    else:
        _show(result, count, out, as_json=as_json)
        if html is not None:
            from memgauge.cli.report import save_page
            from memgauge.report.estimate_page import estimate_page

            save_page(html, estimate_page(result, *seen))
    if result.fits is not None and result.fits.verdict == "no":
        raise typer.Exit(1)


_METHODS = ("trace", "formula", "both")


def _refuse_contradictions(
    device: str, stack: Stack | None, method: str, vary: str | None, threads: int | None
) -> None:
    from memgauge import devices

    if threads is not None and (device == "all" or devices.find(device).kind != "cpu"):
        raise UsageError("--threads changes nothing on a GPU; leave it out")
    if device == "all":
        if method != "trace":
            raise UsageError(f"--device all needs --method trace (given: {method})")
        if vary is not None:
            raise UsageError(
                "--vary goes with one --device; memgauge fit finds the largest value for one card"
            )
    elif stack is not None and devices.find(device).kind == "cpu":
        raise UsageError(
            "--torch, --cuda, --cudnn, --tf32, --cublas-workspace and those of cuBLASLt change nothing on the CPU; "
            "add --device with a GPU's name"
        )
    elif vary is not None and method != "trace":
        raise UsageError(f"--vary needs --method trace (given: {method})")


def _show_many(
    target: str,
    device: str,
    vary: str | None,
    asked: Any,
    arguments: dict[str, str],
    steps: int,
    allocator: CudaSettings | None,
    stack: Stack | None,
    out: Path | None,
    html: Path | None,
    *,
    as_json: bool,
) -> None:
    """Show one table: over the catalogue, or over the values of one argument."""
    from memgauge import vary as many
    from memgauge.report.many import catalogue_view, curve_view

    facts = {"options": asked, "sets": arguments, "steps": steps, "allocator": allocator, "stack": stack}
    result: Any
    if vary is None:
        with running(f"predicting {target} on every card of the catalogue") as tell:
            result = many.over_catalogue(target, tell=tell, **facts)
        view = catalogue_view(result)
    else:
        name, values = many.parse_values(vary)
        with running(f"predicting {target} for {len(values)} values of {name}") as tell:
            result = many.curve(target, device=device, name=name, values=values, tell=tell, **facts)
        view = curve_view(result)
    save_json(result, out)
    warn(result.assumptions)
    if as_json:
        show_json(result)
    else:
        show(view)
    if html is not None:
        from memgauge.cli.report import save_page
        from memgauge.report.many_page import catalogue_page, curve_page

        save_page(html, catalogue_page(result) if vary is None else curve_page(result))
    if all(row.fits.verdict == "no" for row in result.rows):
        raise typer.Exit(1)


def _refuse_for_formula(allocator: CudaSettings | None, stack: Stack | None) -> None:
    given = "--alloc-conf" if allocator is not None else "the software above the card (--torch, --cuda, …)"
    if allocator is not None or stack is not None:
        raise UsageError(f"{given} changes nothing with --method formula; use --method both or trace")


def _show_formula(result: Formula | Both, count: int | None, out: Path | None, *, as_json: bool) -> None:
    save_json(result, out)
    if as_json:
        show_json(result)
        return
    from memgauge.formula.records import Formula
    from memgauge.report.formula import both_view, formula_view

    if isinstance(result, Formula):
        show(formula_view(result, layers=count))
    else:
        show(both_view(result, layers=count))


def _show(result: Estimate, count: int | None, out: Path | None, *, as_json: bool) -> None:
    save_json(result, out)
    warn(result.assumptions)
    if as_json:
        show_json(result)
        return
    from memgauge.report.text import estimate_view

    show(estimate_view(result, layers=count))


def _allocator(text: str | None, device: str) -> CudaSettings | None:
    """Return the settings in `text`; refused where they would change nothing."""
    settings = options.allocator_of(text)
    if settings is None:
        return None
    from memgauge import devices

    if device != "all" and devices.find(device).kind == "cpu":
        raise UsageError("--alloc-conf changes nothing on the CPU; add --device with a GPU's name")
    return settings
