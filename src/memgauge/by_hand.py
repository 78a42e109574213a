"""The calculation by hand for any workload, and the same beside a traced prediction.

workload --one look at its real modules--> layer table --arithmetic--> Formula
Formula + Estimate --storage by storage--> Both, the gap itemised
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memgauge import devices
from memgauge.allocators.settings import CudaSettings
from memgauge.arguments import PRECISIONS, TargetOptions
from memgauge.devices import Device
from memgauge.devices.stack import Stack
from memgauge.errors import TraceError, UsageError, missing_extra
from memgauge.estimate import estimate_of, replay, traced
from memgauge.explain.peak import first_peak
from memgauge.formula import gap, totals
from memgauge.formula.optimizers import class_of, state_rows
from memgauge.formula.records import Both, Formula, LayerTable, OptimizerUse, StateRow
from memgauge.records import Category
from memgauge.targets import resolve
from memgauge.workload import Workload

if TYPE_CHECKING:
    from memgauge.frameworks.torch.layer_table import LayerTableReader

# Two, so that shapes which change from step to step are seen.
_STEPS = 2


def by_hand(
    workload: Workload | str,
    *,
    device: str = "cpu",
    options: TargetOptions | None = None,
    sets: Mapping[str, str] | None = None,
    precision: str | None = None,
) -> Formula:
    """Return what a workload takes by the formulas of lectures, layer by layer.

    Args:
        workload: A `Workload`, or a TARGET.
        device: A name of the catalogue; on a GPU, what stays on the host is left out.
        options: Batch size and the like, for TARGETs that take them. The optimizer may be
            any of torch's, also one that the workload's own step could not use.
        sets: Arguments of a TARGET's function, as text.
        precision: An element type of torch by name. One that no network runs in, such as
            `float8_e4m3fn`, is counted as if; None leaves it to `options`.

    Raises:
        UsageError: There is no layer table to calculate with, or a name is unknown.
        WorkloadError: The workload's own code raised.
        MissingError: torch is not installed.
    """
    place = devices.find(device)
    reader, run_options = _reader(options or TargetOptions(), precision)
    run_options, asked = _optimizer_asked(workload, run_options)
    if isinstance(workload, str):
        workload = resolve(workload, run_options, sets or {})
    _predict(workload, place, reader, steps=_STEPS, threads=1)
    table = reader.table()
    if asked is not None and workload.mode == "train":
        table = dataclasses.replace(
            table,
            optimizers=(reader.use_of(*asked),),
            assumptions=(*table.assumptions, _OTHER_OPTIMIZER.format(asked[0])),
        )
        workload = workload.described(optimizer=(options or TargetOptions()).optimizer)
    if precision is not None:
        workload = workload.described(precision=precision)
    return formula_of(table, workload, place, precision)


def both(
    workload: Workload | str,
    *,
    device: str = "cpu",
    steps: int = 3,
    threads: int | None = None,
    options: TargetOptions | None = None,
    sets: Mapping[str, str] | None = None,
    allocator: CudaSettings | None = None,
    stack: Stack | None = None,
) -> Both:
    """Return formula and trace of the same workload side by side, and the gap with every byte named.

    Args:
        workload: A `Workload`, or a TARGET.
        device: A name of the catalogue.
        steps: Steps of the trace.
        threads: CPU threads of the run; torch's own number if None.
        options: Batch size and the like, for TARGETs that take them.
        sets: Arguments of a TARGET's function, as text.
        allocator: Settings of the CUDA caching allocator.
        stack: Versions and switches of the software on a card.

    Raises:
        UsageError: There is no layer table to calculate with, or a name is unknown.
    """
    if steps < 1:
        raise UsageError(f"steps={steps}: a run has at least one step")
    place = devices.find(device)
    begin_ns = time.perf_counter_ns()
    reader, run_options = _reader(options or TargetOptions(), None)
    if isinstance(workload, str):
        workload = resolve(workload, run_options, sets or {})
    from memgauge.frameworks.torch import predict

    threads = predict.threads_of_run(threads)
    if place.kind == "cuda":
        stack = predict.stack_on(place, stack)
    trace = _predict(workload, place, reader, steps=steps, threads=threads, stack=stack)
    timeline = replay(trace, place, allocator)
    traced = estimate_of(
        workload,
        trace,
        place,
        allocator=allocator,
        stack=stack,
        threads=threads,
        steps=steps,
        begin_ns=begin_ns,
    )
    table = reader.table()
    formula = formula_of(table, workload, place, None)
    instant = first_peak(timeline)
    step = gap.peak_step(trace, instant)
    calls = tuple(call for call in table.calls if call.step == step)
    counted = gap.Counted(
        categories=_by_category(formula),
        calls=calls if formula.training is not None else totals.largest_pair(calls),
        all_calls=calls,
        trained_bytes=table.trained_bytes if formula.training is not None else {},
    )
    rows = gap.categories(counted, traced.at_peak.categories)
    trace_bytes = sum(traced.at_peak.categories.values())
    return Both(
        formula=formula,
        trace=traced,
        formula_bytes=formula.total_bytes,
        trace_bytes=trace_bytes,
        difference_bytes=trace_bytes - formula.total_bytes,
        categories=rows,
        gap=gap.itemise(counted, rows, trace, timeline, instant),
    )


def formula_of(table: LayerTable, workload: Workload, place: Device, precision: str | None) -> Formula:
    """Return the formula's totals for a layer table."""
    from memgauge.frameworks.torch import predict

    state: tuple[StateRow, ...] = ()
    is_training = table.goes_backward
    if is_training:
        state = tuple(row for use in table.optimizers for row in state_rows(use, on_gpu=place.kind == "cuda"))
    element_type = precision or ", ".join(table.element_types)
    assumptions = list(table.assumptions)
    if workload.mode == "train" and not is_training:
        assumptions.append("the step never called backward: inference only")
    elif is_training and not table.optimizers:
        assumptions.append("build() returned no optimizer: no state is counted")
    return Formula(
        workload=dict(workload.description),
        device={"name": place.name, "title": place.title, "kind": place.kind},
        mode="train" if is_training else "infer",
        element_type=element_type,
        parameters=sum(row.parameters for row in table.layers),
        layers=table.layers,
        optimizer_state=state,
        training=totals.training(table, state) if is_training else None,
        inference=totals.inference(table),
        assumptions=tuple(assumptions),
        versions=predict.versions(),
    )


_OTHER_OPTIMIZER = "{} is counted over all trained parameters; the network's own step does not run with it"


def _by_category(formula: Formula) -> dict[Category, int]:
    training, inference = formula.training, formula.inference
    if training is None:
        return {
            Category.PARAMETER: inference.parameter_bytes,
            Category.ACTIVATION: inference.two_largest_bytes,
            Category.INPUT: inference.input_bytes,
        }
    return {
        Category.PARAMETER: training.parameter_bytes,
        Category.GRADIENT: training.gradient_bytes,
        Category.OPTIMIZER_STATE: training.optimizer_state_bytes,
        Category.ACTIVATION: training.activation_bytes,
        Category.TEMPORARY: training.activation_gradient_bytes,
        Category.INPUT: training.input_bytes,
    }


def _reader(options: TargetOptions, precision: str | None) -> tuple[LayerTableReader, TargetOptions]:
    """Return a reader, and the options to run with: what no network runs in is read in float32."""
    try:
        from memgauge.frameworks.torch.element_types import bits_named
        from memgauge.frameworks.torch.layer_table import LayerTableReader
    except ModuleNotFoundError as error:
        raise missing_extra("torch", "torch") from error
    if precision is None or precision in PRECISIONS:
        asked = options if precision is None else dataclasses.replace(options, precision=precision)
        return LayerTableReader(), asked
    return LayerTableReader(bits_named(precision)), options


def _optimizer_asked(
    workload: Workload | str, options: TargetOptions
) -> tuple[TargetOptions, tuple[str, dict[str, Any]] | None]:
    """Take out an optimizer that the plain step of zoo and libraries cannot run; it is only counted."""
    from memgauge.frameworks.torch.recipe import OTHER_PARAMETERS, optimizer_arguments

    text = options.optimizer
    is_ours = isinstance(workload, str) and workload.split(":")[0] in _WITH_RECIPE
    if text is None or not is_ours or text.partition(",")[0].strip().lower() not in OTHER_PARAMETERS:
        return options, None
    kind, arguments = optimizer_arguments(text)
    return dataclasses.replace(options, optimizer="sgd"), (class_of(kind.__name__), arguments)


_WITH_RECIPE = ("zoo", "torchvision", "timm", "transformers")


def _predict(
    workload: Workload,
    place: Device,
    reader: LayerTableReader,
    *,
    steps: int,
    threads: int,
    stack: Stack | None = None,
) -> Any:
    """Trace with the reader looking on; what cannot be followed has no layer table either."""
    from memgauge.frameworks.torch.layer_table import no_table

    try:
        return traced(workload, place, steps=steps, threads=threads, onlooker=reader, stack=stack)
    except TraceError as error:
        raise UsageError(no_table(str(error))) from error


__all__ = ["OptimizerUse", "both", "by_hand", "formula_of"]
