"""What the ledger keeps of a trial, and of a study. Plain data; bytes are `int`, unknown is `None`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Value = int | float | str | bool | tuple[int, ...]
Params = dict[str, Value]

Status = Literal[
    "waiting",  # planned
    "running",
    "done",
    "failed",  # the model raised; `error` has its words
    "out-of-memory",  # the peak lies above `censored_at_bytes`
    "time-limit",  # stopped at its limit of time: the peak is at least what was seen
    "does-not-fit",  # predicted above the limit, and so not run
]
STATUSES: tuple[Status, ...] = Status.__args__  # type: ignore[attr-defined]
FINISHED: tuple[Status, ...] = ("done", "failed", "out-of-memory", "time-limit", "does-not-fit")


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """What the estimator said of a trial before it ran."""

    allocated_bytes: int | None = None
    host_low_bytes: int | None = None
    host_expected_bytes: int | None = None
    host_high_bytes: int | None = None
    device_low_bytes: int | None = None
    device_expected_bytes: int | None = None
    device_high_bytes: int | None = None
    parameters: int | None = None  # count, not bytes
    activations: int | None = None  # elements of all layers' outputs for one batch
    bound: str | None = None  # what `host_low_bytes` consists of, where it is a lower bound and no estimate
    reason: str | None = None  # why there is none


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where a trial ran."""

    name: str
    system: str = ""
    processor: str = ""
    cores: int = 0
    memory_bytes: int | None = None
    gpus: tuple[str, ...] = ()
    python: str = ""
    boot: str = ""


class Background(msgspec.Struct, frozen=True, kw_only=True):
    """What everything else on the machine did while a trial ran."""

    mean_cores: float | None = None  # cores that others kept busy, on average
    used_before_bytes: int | None = None  # used on the whole machine before the trial, and after it
    used_after_bytes: int | None = None
    reasons: tuple[str, ...] = ()  # why the trial counts as disturbed; empty if it does not


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """Resident memory of an environment before anything is built, median of fresh processes."""

    interpreter_bytes: int
    imported_bytes: int  # the framework and the user's file imported
    loaded_bytes: int  # and the data loaded
    spread_bytes: int  # highest − lowest of `loaded_bytes`
    repeats: int
    has_dynamo: bool = False  # whether its imports load torch._dynamo
    with_optimizer_bytes: int | None = None  # and what torch loads at the first optimizer; None if not torch

    def environment_bytes(self, made_optimizer: bool) -> int:
        """Return what is not the network's, in a trial that made an optimizer or did not."""
        if made_optimizer and self.with_optimizer_bytes is not None:
            return self.with_optimizer_bytes
        return self.loaded_bytes


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trial, from its plan to its end."""

    number: int
    params: Params
    repeat: int = 0
    status: Status = msgspec.field(default_factory=lambda: "waiting")  # a factory's value is always written
    predicted: Predicted | None = None
    figures: dict[str, int] = {}  # bytes, by the name of the figure
    seconds: float | None = None  # of the training or the steps
    cpu_seconds: float | None = None
    error: str | None = None
    censored_at_bytes: int | None = None
    cause: str | None = None  # what ended it, if it was not its own end
    background: Background | None = None
    machine: Machine | None = None
    baseline: str | None = None  # key of its environment's baseline
    outcome: dict[str, Any] | None = None
    versions: dict[str, str] = {}
    run_file: str | None = None  # relative to the study's folder
    attempts: int = 0
    repeats_trial: int | None = None  # the disturbed trial that this one repeats
    began_unix_ns: int | None = None
    ended_unix_ns: int | None = None
    claim: str | None = None  # who runs it: host, folder
    source: str | None = None  # the study that it was merged from

    @property
    def machine_name(self) -> str:
        return "?" if self.machine is None else self.machine.name

    @property
    def is_disturbed(self) -> bool:
        return bool(self.background and self.background.reasons)


class StudyRecord(msgspec.Struct, kw_only=True):
    """A study as it is read back: its file, its trials, its baselines."""

    name: str
    file: dict[str, Any]  # the study file, as plain data
    trials: list[Trial]
    baselines: dict[str, Baseline] = {}
    folder: str | None = None
    notes: list[str] = []


# The figures that a trial can have: what they are, how exact, by which instrument.
FIGURES: dict[str, tuple[str, str]] = {
    "peak_resident_bytes": (
        "resident, largest process",
        "exact: the kernel's VmHWM over the whole life of the trial's process",
    ),
    "peak_network_bytes": (
        "resident above baseline",
        "peak_resident_bytes less the baseline of the same environment: imports, data, and what torch's first optimizer loads",
    ),
    "peak_train_bytes": ("resident, phase train", "exact: VmHWM between the phase's boundaries"),
    "peak_tree_rss_bytes": ("resident, all processes", "highest sample of the sum of RSS: a lower bound"),
    "peak_pss_bytes": ("PSS, all processes", "highest sample of smaps_rollup: a lower bound"),
    "average_system_used_bytes": (
        "system used, average",
        "mean of the samples of total − free − buffers − cached: the whole machine, not the trial",
    ),
    "peak_system_used_bytes": ("system used, highest", "highest sample, the whole machine"),
    "peak_allocated_bytes": (
        "allocated",
        "exact: torch.profiler (CPU) in a second fresh process, or the caching allocator's peak (CUDA)",
    ),
    "peak_requested_bytes": ("requested", "exact: torch.profiler in a second fresh process"),
    "peak_reserved_bytes": ("reserved", "the caching allocator's peak"),
    "peak_device_bytes": ("device, all processes", "highest sample of NVML: a lower bound"),
    "peak_process_device_bytes": ("device, the trial's processes", "highest sample of NVML: a lower bound"),
}
WHOLE_MACHINE = ("average_system_used_bytes", "peak_system_used_bytes", "peak_device_bytes")
