"""A recording as a measurement, so that it can be set against an estimate or another recording.

A run file that `memgauge measure` kept holds the whole measurement. Of any other job it knows what
was read from outside, and what torch said at marks; the rest is null, with the reason.
"""

from __future__ import annotations

import msgspec

from memgauge.errors import FileFormatError
from memgauge.explain.recorded import PeakOf, Recording
from memgauge.explain.recording import summarise
from memgauge.records import AtPeak, Measurement, Peak, Phase, Range
from memgauge.storage import RunFile

_NO_MARKS = "only torch knows it: call memgauge.mark in the job, with torch on CUDA"


def account_of(run: RunFile) -> Measurement:
    """Return what a recording measured.

    Raises:
        FileFormatError: It holds a measurement that is damaged.
    """
    kept = run.document("measurement")
    if kept is not None:
        try:
            return msgspec.json.decode(kept, type=Measurement)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FileFormatError(f"{run.path}: the measurement in it is damaged: {error}") from error
    said = summarise(run)
    allocated, reserved = (_highest_mark(run, f"{kind}_peak_bytes") for kind in ("allocated", "reserved"))
    host, device = _host(said), _device(said)
    unknown = {"peak.requested_bytes": "a recording sees no single requests"}
    if allocated is None:
        unknown |= {"peak.allocated_bytes": _NO_MARKS, "peak.reserved_bytes": _NO_MARKS}
    if device is None:
        unknown["peak.device_bytes"] = "no process of the job was seen on a GPU"
    instruments = {"peak.allocated_bytes": "torch's statistics at marks"} if allocated is not None else {}
    for key, peak in (("peak.host_bytes", host), ("peak.device_bytes", device)):
        if peak is not None:
            instruments[key] = f"{peak.instrument} ({peak.kind})"
    name = said.devices[0].name if said.devices else "cpu"
    return Measurement(
        workload={"recording": run.path.name, "command": " ".join(said.command or ())},
        device={"name": name, "title": name, "kind": "cuda" if said.devices else "cpu"},
        peak=Peak(
            requested_bytes=None,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            device_bytes=_range(device),
            host_bytes=_range(host),
        ),
        at_peak=AtPeak(phase="", operator="", layer="", categories={}),
        phases=tuple(
            Phase(name=p.name, requested_bytes=None, allocated_bytes=p.device_peak_bytes)
            for p in said.phases
            if p.device_peak_bytes is not None
        ),
        layers=(),
        steps=sum(p.count for p in said.phases if p.name == "step"),
        elapsed_ns=said.duration_us * 1000,
        unknown=unknown,
        instruments=instruments,
        ended="completed" if said.exit_code == 0 else said.ended,
    )


def recording_of(run: RunFile) -> Recording | None:
    """Return what a recording says, with what frameworks said at marks; None if it holds a measurement."""
    if run.document("measurement") is not None:
        return None
    said = summarise(run)
    highest = ((kind, _highest_mark(run, f"{kind}_peak_bytes")) for kind in ("allocated", "reserved"))
    marked = (
        PeakOf(name=f"framework, {kind}", bytes=count, kind="lower bound", instrument="statistics at marks")
        for kind, count in highest
        if count is not None
    )
    return msgspec.structs.replace(said, peaks=(*said.peaks, *marked))


def _host(said: Recording) -> PeakOf | None:
    """Return the largest process: by its counter, else by what is known of it."""
    found = next((p for p in said.peaks if p.name.startswith("largest process")), None)
    if found is not None:
        return found
    known = [p for p in said.processes if p.peak_bytes is not None]
    largest = max(known, key=lambda p: p.peak_bytes or 0, default=None)
    if largest is None or largest.peak_bytes is None:
        return None
    return PeakOf(name=largest.name, bytes=largest.peak_bytes, kind=largest.peak_kind, instrument="VmHWM")


def _device(said: Recording) -> PeakOf | None:
    """Return the most that one process held on a GPU: by the driver's account, else the highest sample."""
    counted = [p for p in said.peaks if p.name.endswith("on the GPU")]
    if counted:
        return max(counted, key=lambda p: p.bytes)
    sampled = [p.device_peak_bytes for p in said.processes if p.device_peak_bytes]
    if not sampled:
        return None
    return PeakOf(name="process", bytes=max(sampled), kind="lower bound", instrument="NVML, highest sample")


def _highest_mark(run: RunFile, key: str) -> int | None:
    found = [v for mark in run.marks if isinstance(v := mark.facts.get(key), int)]
    return max(found, default=None)


def _range(peak: PeakOf | None) -> Range | None:
    return None if peak is None else Range(peak.bytes, peak.bytes, peak.bytes)
