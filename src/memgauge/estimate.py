"""Say what a run will take, before it runs.

    workload --trace--> events --replay--> timeline --account--> Estimate

Read this file first: it is the whole product in one function.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from memgauge import devices
from memgauge.allocators import cpu, cuda_caching
from memgauge.allocators.settings import CudaSettings
from memgauge.device_memory import DeviceMemory, device_memory
from memgauge.devices import Device
from memgauge.devices.stack import Stack
from memgauge.errors import UsageError, missing_extra
from memgauge.explain.peak import account
from memgauge.host import Baseline, Host, host_memory, memory_total_bytes
from memgauge.records import Estimate, Fits, Peak, Range, Timeline, Trace
from memgauge.run_settings import settings_of
from memgauge.targets import TargetOptions, resolve
from memgauge.workload import Workload

if TYPE_CHECKING:
    from memgauge.frameworks.torch.trace import Onlooker


def estimate(
    workload: Workload | str,
    *,
    device: str = "cpu",
    steps: int = 3,
    threads: int | None = None,
    options: TargetOptions | None = None,
    sets: Mapping[str, str] | None = None,
    allocator: CudaSettings | None = None,
    stack: Stack | None = None,
    host: bool = True,
    followed: Callable[[Trace, Timeline], None] | None = None,
) -> Estimate:
    """Return the predicted memory of `steps` steps of a workload on `device`.

    Args:
        workload: A `Workload`, or a TARGET such as `"zoo:gpt2"` or `"train.py:my_training"`.
        device: A name of the catalogue (`"cpu"`, `"nvidia-a100-80gb"`).
        steps: Steps of the run, at least 1.
        threads: CPU threads of the run; torch's own number if None.
        options: Batch size and the like, for TARGETs that take them.
        sets: Arguments of a TARGET's function, as text.
        allocator: Settings of the CUDA caching allocator; those of the environment if None.
        stack: Versions of torch and CUDA and switches of their libraries; what is installed here if None.
        host: Also predict the resident memory of the process (CPU only). Its import
            baseline is measured in a fresh process, which takes a second or two.
        followed: Is shown the trace and the timeline that the estimate comes from.

    Raises:
        UsageError: The device, target or an option is unknown or out of range.
        WorkloadError: The workload's own code raised.
        UnsupportedError: An operator cannot be followed without running it.
        MissingError: torch is not installed.
    """
    if steps < 1:
        raise UsageError(f"steps={steps}: a run has at least one step")
    place = devices.find(device)
    begin_ns = time.perf_counter_ns()
    # Its imports, in another process, take as long as ours: it starts first.
    baseline = Host(workload, options, sets, threads) if host and place.kind == "cpu" else None
    try:
        from memgauge.frameworks.torch import predict
    except ModuleNotFoundError as error:
        raise missing_extra("torch", "torch") from error

    if isinstance(workload, str):
        workload = resolve(workload, options or TargetOptions(), sets or {})
    threads = predict.threads_of_run(threads)
    if place.kind == "cuda":
        stack = predict.stack_on(place, stack)
    trace = traced(workload, place, steps=steps, threads=threads, stack=stack)
    return estimate_of(
        workload,
        trace,
        place,
        allocator=allocator,
        stack=stack,
        baseline=baseline,
        threads=threads,
        steps=steps,
        begin_ns=begin_ns,
        followed=followed,
    )


def traced(
    workload: Workload,
    place: Device,
    *,
    steps: int,
    threads: int,
    onlooker: Onlooker | None = None,
    stack: Stack | None = None,
) -> Trace:
    """Return the trace of a run on `place`; `onlooker` is shown what is built and called."""
    from memgauge.frameworks.torch import predict

    card = predict.card_of(place, stack)
    return predict.predict(
        workload, kind=place.kind, steps=steps, threads=threads, card=card, onlooker=onlooker
    )


def estimate_of(
    workload: Workload,
    trace: Trace,
    place: Device,
    *,
    allocator: CudaSettings | None = None,
    stack: Stack | None = None,
    baseline: Baseline | None = None,
    threads: int = 1,
    steps: int,
    begin_ns: int,
    followed: Callable[[Trace, Timeline], None] | None = None,
) -> Estimate:
    """Return the estimate that a trace amounts to.

    Args:
        workload: What was traced; its description is kept.
        trace: What was asked for.
        place: The device.
        allocator: Settings of the CUDA caching allocator.
        stack: Versions and switches, for a card; what is installed here if None.
        baseline: Resident memory before the run; None leaves host memory unknown.
        threads: CPU threads of the run.
        steps: Steps of the run.
        begin_ns: When the work began, on `time.perf_counter_ns`.
        followed: Is shown the trace and the timeline that the estimate comes from.
    """
    from memgauge.frameworks.torch import predict

    on_card: DeviceMemory | None = None
    if place.kind == "cuda":
        on_card = device_memory(trace, place, stack or predict.installed_stack(), allocator)
    timeline = replay(trace, place) if on_card is None else on_card.timeline
    if followed is not None:
        followed(trace, timeline)
    peak, at_peak, phases, layers = account(trace, timeline)
    if on_card is None:
        peak, unknown = _host(peak, trace, baseline)
        verdict = _fits_memory(peak, memory_total_bytes())
    else:
        peak = msgspec.structs.replace(
            peak, device_bytes=on_card.device, pinned_bytes=trace.pinned_bytes or None
        )
        unknown = {"peak.host_bytes": _NO_HOST}
        verdict = on_card.fits
    return Estimate(
        workload=dict(workload.description),
        device={"name": place.name, "title": place.title, "kind": place.kind},
        peak=peak,
        at_peak=at_peak,
        phases=phases,
        layers=layers,
        threads=threads if place.kind == "cpu" else None,
        steps=steps,
        elapsed_ns=time.perf_counter_ns() - begin_ns,
        assumptions=(*trace.assumptions, *(on_card.assumptions if on_card else ())),
        unmodelled=(*trace.unmodelled, *(on_card.unmodelled if on_card else ())),
        unknown=unknown,
        versions=predict.versions(),
        fits=verdict,
        uncertainty=on_card.uncertainty if on_card else (),
    )


_NO_HOST = "resident memory of a CUDA process is not known until this machine is calibrated"


def replay(trace: Trace, device: Device, allocator: CudaSettings | None = None) -> Timeline:
    """Place the trace's events as the device's allocator would."""
    if device.kind == "cpu":
        return cpu.replay(trace.events)
    return cuda_caching.replay(
        trace.events, settings_of(trace, allocator), releases=trace.cache_releases, streams=trace.streams
    )


def _host(peak: Peak, trace: Trace, baseline: Baseline | None) -> tuple[Peak, dict[str, str]]:
    """Add the resident memory of a CPU run, or say why that is not known."""
    unknown = {
        "peak.device_bytes": "a CPU run takes no device memory",
        "peak.reserved_bytes": "torch keeps no reserve on the CPU",
    }
    if baseline is None:
        return peak, {**unknown, "peak.host_bytes": "not asked for (host=False)"}
    baseline_bytes = baseline.baseline_bytes()
    if baseline_bytes is None:
        return peak, {**unknown, "peak.host_bytes": baseline.reason}
    resident = host_memory(trace, baseline_bytes, baseline.has_dynamo)
    return msgspec.structs.replace(peak, host_bytes=resident, host_baseline_bytes=baseline_bytes), unknown


def _fits_memory(peak: Peak, capacity: int | None) -> Fits:
    need = peak.host_bytes or Range(*(peak.allocated_bytes or 0,) * 3)
    if capacity is None:
        reason = "the size of this machine's memory is not known"
        return Fits(verdict="uncertain", capacity_bytes=None, free_bytes=None, reason=reason)
    verdict = "yes" if need.high <= capacity else "no" if need.low > capacity else "uncertain"
    return Fits(verdict=verdict, capacity_bytes=capacity, free_bytes=capacity - need.expected)
