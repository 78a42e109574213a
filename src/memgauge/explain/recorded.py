"""What a recording says, as records: peaks with their kind, phases, processes, devices, lanes, notes."""

from __future__ import annotations

import msgspec


class PeakOf(msgspec.Struct, frozen=True, kw_only=True):
    """One highest value: of what, how much, and how much that can be trusted."""

    name: str
    bytes: int
    kind: str  # exact, lower bound, upper bound, sampled
    instrument: str
    reason: str = ""
    at_us: int | None = None


GROUP = "control group"  # name of its peak
LARGEST, TREE_PSS = "largest process, resident", "tree, sum of PSS"
ON_GPU = "on the GPU"  # ends the name of a process's peak there
WITHOUT_LOOPBACK = (
    "without loopback"  # so the network is counted: what processes here say to each other is no traffic
)
NO_PSS = "tree_pss_bytes"  # among what is unknown: why PSS is
_HELD = (LARGEST, TREE_PSS)
_NEAR = 2  # times what the tree held: a group whose peak lies below holds little else than the job


def still_open(unfinished: int, count: int) -> str:
    """Return how many of some phases have no end; "" if all have one."""
    if not unfinished:
        return ""
    return "not ended" if unfinished == count else f"{unfinished:,} not ended"


class SpanOf(msgspec.Struct, frozen=True, kw_only=True):
    """One phase as it was: `epoch` of the value 3."""

    value: str | None
    pid: int
    begin_us: int
    end_us: int
    peak_bytes: int | None  # highest resident size of the process that declared it
    peak_kind: str
    tree_peak_bytes: int | None  # highest sum over the tree, sampled
    tree_pss_peak_bytes: int | None = None  # likewise, of PSS; read less often
    gpu_peak_bytes: int | None = None  # highest use of all GPUs together, sampled
    device_peak_bytes: int | None = None  # torch's own peak of allocated bytes, if it says
    device_peak_kind: str = ""
    is_finished: bool = True  # else it was open when its process or the recording ended, or is


class PhaseOf(msgspec.Struct, frozen=True, kw_only=True):
    """All phases of one name."""

    name: str
    count: int
    total_us: int
    peak_bytes: int | None  # highest resident size of the process that declared it
    peak_kind: str
    tree_peak_bytes: int | None  # highest sum over the tree, sampled
    tree_pss_peak_bytes: int | None = None  # likewise, of PSS; read less often
    gpu_peak_bytes: int | None = None  # highest use of all GPUs together, sampled
    group_peak_bytes: int | None = None  # of the whole control group, where its counter could be reset
    group_peak_kind: str = ""
    device_peak_bytes: int | None = None  # torch's own peak of allocated bytes, if it says
    device_peak_kind: str = ""
    unfinished: int = 0
    each: tuple[SpanOf, ...] = ()  # in the order in which they began

    def still_open(self) -> str:
        """Return how many of them have no end, for one that reads their times; "" if all have one."""
        return still_open(self.unfinished, self.count)

    def told_apart(self, most: int) -> tuple[tuple[str, SpanOf], ...]:
        """Return each of them with what tells it apart, its value or its process or both; none beyond `most`."""
        keys = [(span.value, span.pid) for span in self.each]
        if not 1 < len(keys) <= most or len(set(keys)) < len(keys):
            return ()
        shares = len({value for value, _ in keys}) < len(keys)

        def named(span: SpanOf) -> str:
            value = [] if span.value is None else [span.value]
            return ", ".join(value + ([f"process {span.pid}"] if shares else []))

        return tuple((named(span), span) for span in self.each)

    def by_value(self) -> dict[str, SpanOf]:
        """Return each of them by its value; none if some have the same value, or have no value."""
        found = {span.value: span for span in self.each if span.value is not None}
        return found if len(found) == len(self.each) else {}


class ProcessOf(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the tree."""

    pid: int
    name: str
    command: str  # the name, of one that was gone before it could be read
    began_us: int
    gone_us: int | None
    ended: str | None
    cpu_ns: int | None
    peak_bytes: int | None
    peak_kind: str
    peak_reason: str = ""
    pss_peak_bytes: int | None = None
    device_peak_bytes: int | None = None


class LaneOf(msgspec.Struct, frozen=True, kw_only=True):
    """How one lane really ran."""

    name: str
    asked_us: int
    ticks: int
    median_us: int | None
    longest_us: int | None


class RecordingNote(msgspec.Struct, frozen=True, kw_only=True):
    """Something that could not be read or was missed."""

    time_us: int
    topic: str
    text: str
    remedy: str


class DeviceOf(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU over the run."""

    name: str
    identity: str
    total_bytes: int | None
    peak_used_bytes: int | None
    energy_mj: int | None
    pcie_received_bytes: int | None
    pcie_sent_bytes: int | None
    mean_utilisation_percent: float | None


class Recording(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.recording/1"):
    """What one run file says."""

    file: str
    command: list[str] | None
    title: str | None
    host: str
    started_unix_ns: int | None
    duration_us: int
    state: str  # ended, recording, lost
    ended: str
    exit_code: int | None
    signal: str | None
    out_of_memory: bool
    peaks: tuple[PeakOf, ...]
    group_is_own: bool = False  # the control group was made for this job
    average_used_bytes: int | None  # of the system, as Mahendran (2021) gives it
    cpu_ns: int | None
    mean_cores: float | None
    phases: tuple[PhaseOf, ...]
    processes: tuple[ProcessOf, ...]
    devices: tuple[DeviceOf, ...]
    cpu_energy_uj: int | None
    disk_read_bytes: int | None
    disk_written_bytes: int | None
    network_received_bytes: int | None
    network_sent_bytes: int | None
    lanes: tuple[LaneOf, ...]
    unseen_processes: int
    unseen_is_exact: bool
    marks: int
    marks_lost: int
    sampler_share_of_core: float | None
    sampler_peak_bytes: int | None
    notes: tuple[RecordingNote, ...]
    damage: tuple[str, ...]
    unknown: dict[str, str] = {}

    def group_is_shown(self) -> bool:
        """Return whether the control group tells of this job: it was made for it, or held little else.

        A group that the job just happened to be in, as a whole machine's or a login's, is in `peaks` all the
        same, but a reader of the summary would take it for the job's.
        """
        group = max((p.bytes for p in self.peaks if p.name == GROUP), default=None)
        held = max((p.bytes for p in self.peaks if p.name in _HELD), default=0)
        return group is not None and (self.group_is_own or group <= _NEAR * held)

    def shown_peaks(self) -> list[PeakOf]:
        """Return the peaks that a summary shows."""
        return [p for p in self.peaks if p.name != GROUP or self.group_is_shown()]
