"""The vocabulary: what one stage hands to the next.

    Trace      what was asked for and given back, in order      (from a trace or a real run)
    Timeline   where an allocator model put it, over time       (from `allocators`)
    Account    what it means: peaks, phases, categories, layers (an Estimate or a Measurement)

A prediction and a measurement meet in the same records, so that everything
after this point (replay, attribution, comparison, report) is written once.
All quantities are `int` bytes; an unknown one is `None`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import msgspec

# How assumptions begin that are also warnings on stderr.
NEVER_BACKWARD = "the step never called backward"
STEPS_GROW = "memory grows from step to step"
NEVER_STEPPED = "no optimizer made a step"
# How the assumption begins of a program whose run may depend on the very card.
ASKED_CARD = "the program asked which GPU this is"
# and of one that sets the allocator by itself.
OWN_SETTINGS = "allocator settings of the program"
# What an assumption says of a setting that the user exported, maybe for something else.
OF_THE_ENVIRONMENT = " of the environment: "


class Category(StrEnum):
    """What a byte is for. Each allocated byte has exactly one category at one instant."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    INPUT = "input"
    TEMPORARY = "temporary"
    WORKSPACE = "workspace"
    OTHER = "other"
    UNATTRIBUTED = "unattributed"


class MemoryEvent(NamedTuple):
    """One storage is requested (`requested_bytes` > 0) or released (< 0)."""

    storage: int  # index into Trace.categories and Trace.layers
    requested_bytes: int
    phase: str  # "setup", "step 1 forward", "step 1 backward", "step 1 optimizer"
    layer: str  # module path at that moment, "" outside every module
    operator: str  # e.g. "aten.addmm", "" outside every operator


class Scratch(NamedTuple):
    """What a library takes for itself, which is known within limits only.

    The event of its storage has the expected size.
    """

    mechanism: str  # a key of `devices.mechanisms`: "cublas", "cudnn convolution", ...
    low_bytes: int
    high_bytes: int
    call: object | None = None  # where the very card decides the size: a `devices.convolutions.Convolution`


@dataclass(frozen=True, slots=True)
class Module:
    """One module of the workload, as declared."""

    path: str
    type: str
    output_shape: tuple[int, ...] | None  # of its last call; None if it was never called
    parameter_count: int  # its own parameters, children left out


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything that was requested and released, in program order, and for whom.

    `events` is in program order; a storage is requested once and released at
    most once. `categories[s]` and `layers[s]` say what storage `s` was for and
    which module owns it. `scratch` has the storages whose size is a library's choice.
    Before each event in `cache_releases` the allocator gives its cached memory back
    (`torch.cuda.empty_cache()`).
    """

    events: Sequence[MemoryEvent]
    categories: Sequence[Category]
    layers: Sequence[str]
    modules: Sequence[Module] = ()
    assumptions: Sequence[str] = ()
    unmodelled: Sequence[str] = ()
    scratch: Mapping[int, Scratch] = field(default_factory=dict)
    cache_releases: Sequence[int] = ()  # indices of events, ascending
    streams: Mapping[int, int] = field(default_factory=dict)  # storage -> stream; not listed: the default one
    pinned_bytes: int = 0  # highest pinned host memory, as torch's allocator of it rounds and keeps it
    memory_fraction: float = 1.0  # of the card that the program lets torch's allocator take
    alloc_conf: str | None = None  # the allocator's variable, if the program sets it itself
    alloc_calls: Sequence[str] = ()  # settings that it gives to the allocator afterwards, in order
    uses: Sequence[str] = ()  # libraries that the run calls upon beyond its operators: "optimizer"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Occupancy after each event of a trace, as one allocator would have it.

    The three arrays run parallel to the events. `block_bytes[s]` is the size of
    the block that storage `s` received: its request, rounded up.
    `reserved_bytes` is None where the allocator keeps nothing back.
    """

    requested_bytes: array[int]
    allocated_bytes: array[int]
    reserved_bytes: array[int] | None
    block_bytes: Mapping[int, int] = field(default_factory=dict)


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure that is not known to the byte."""

    low: int
    expected: int
    high: int


class Uncertainty(msgspec.Struct, frozen=True, kw_only=True):
    """One source of a range's width: half-widths that cover 95 %, and what they rest on."""

    source: str  # "context", "workspaces" or "placement"
    low_bytes: int
    high_bytes: int
    basis: str


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """Highest value of each kind of memory over the run. The instants differ; they do not add."""

    requested_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None = None
    tensor_bytes: int | None = None  # allocated peak with workspace left out
    device_bytes: Range | None = None
    host_bytes: Range | None = None
    pinned_bytes: int | None = None  # host memory that a CUDA run pins; None where it pins none
    host_baseline_bytes: int | None = None  # resident memory once everything is imported, before the run


class AtPeak(msgspec.Struct, frozen=True, kw_only=True):
    """Who held what at the first instant of peak allocated; the categories add up to it."""

    phase: str
    operator: str
    layer: str
    categories: dict[str, int]


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Highest occupancy within one phase of the run."""

    name: str
    requested_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None = None
    tensor_bytes: int | None = None


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One module: what it is, what it holds at the peak by category, and its own highest."""

    path: str
    type: str
    output_shape: tuple[int, ...] | None
    parameters: int
    at_peak_bytes: dict[str, int]
    peak_bytes: int


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it fits: `yes`, `no` or `uncertain`, and against what."""

    verdict: str
    capacity_bytes: int | None
    free_bytes: int | None
    reason: str = ""
    least_capacity_bytes: Range | None = None  # usable memory below which it does not run, context included


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one run, predicted or measured. Both have this shape."""

    workload: dict[str, object]
    device: dict[str, object]
    peak: Peak
    at_peak: AtPeak
    phases: tuple[Phase, ...]
    layers: tuple[Layer, ...]
    threads: int | None = None
    steps: int = 3
    elapsed_ns: int | None = None
    assumptions: tuple[str, ...] = ()
    unmodelled: tuple[str, ...] = ()
    unknown: dict[str, str] = {}  # why a figure above is null, by its key
    versions: dict[str, str] = {}


class Estimate(Account, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.estimate/1"):
    """What a run will take, said before it runs."""

    fits: Fits | None = None
    uncertainty: tuple[Uncertainty, ...] = ()  # where the width of `peak.device_bytes` comes from, 95 %


class Measurement(Account, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.measurement/1"):
    """What a run took, and by which instrument each figure was read."""

    instruments: dict[str, str] = {}
    step_ns: tuple[int, ...] = ()
    ended: str = "completed"  # or how it died
