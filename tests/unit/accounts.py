"""Hand-made accounts whose sums a reader can do in the head."""

from __future__ import annotations

from typing import Any

from memgauge.records import AtPeak, Estimate, Fits, Layer, Measurement, Peak, Phase, Range
from memgauge.units import GIB, MIB

HELD = {"parameter": 4 * MIB, "gradient": 4 * MIB, "activation": 8 * MIB}


def layer(path: str, kind: str = "Linear", *, peak_mib: int = 8, **held_mib: int) -> Layer:
    """Return a layer that holds `held_mib` MiB by category at the peak."""
    return Layer(
        path=path,
        type=kind,
        output_shape=(8, 64),
        parameters=4160,
        at_peak_bytes={category: count * MIB for category, count in held_mib.items()},
        peak_bytes=peak_mib * MIB,
    )


def phase(name: str, mib: int | None) -> Phase:
    """Return a phase whose highest occupancy is `mib` MiB of each kind."""
    count = None if mib is None else mib * MIB
    return Phase(name=name, requested_bytes=count, allocated_bytes=count, tensor_bytes=count)


LAYERS = (
    layer("encoder", parameter=2, gradient=2, activation=6, peak_mib=12),
    layer("decoder", parameter=2, gradient=2, activation=2, peak_mib=6),
)
PHASES = (
    phase("setup", 4),
    phase("step 1 forward", 12),
    phase("step 1 backward", 16),
    phase("step 2 forward", 13),
    phase("step 2 backward", 16),
    phase("step 3 forward", 13),
    phase("step 3 backward", 16),
    phase("steady step", 16),
)


def _account(**changes: Any) -> dict[str, Any]:
    allocated = changes.pop("allocated_bytes", 16 * MIB)
    held = changes.pop("held", HELD)
    facts: dict[str, Any] = {
        "workload": {"target": "train.py:my_training", "batch_size": 32, "image_size": (32, 32)},
        "device": {"name": "cpu", "title": "this machine", "kind": "cpu"},
        "peak": Peak(
            requested_bytes=15 * MIB,
            allocated_bytes=allocated,
            tensor_bytes=16 * MIB,
            host_bytes=Range(low=310 * MIB, expected=353 * MIB, high=401 * MIB),
            host_baseline_bytes=220 * MIB,
        ),
        "at_peak": AtPeak(
            phase="step 1 backward", operator="aten.mm", layer="encoder", categories=dict(held)
        ),
        "phases": PHASES,
        "layers": LAYERS,
        "threads": 2,
        "unknown": {"peak.reserved_bytes": "torch keeps no reserve on the CPU"},
        "versions": {"torch": "2.13.0"},
    }
    return {**facts, **changes}


def estimate(**changes: Any) -> Estimate:
    """Return an estimate of 16 MiB at the peak, with `changes` to its fields."""
    fits = Fits(verdict="yes", capacity_bytes=16 * GIB, free_bytes=15 * GIB)
    return Estimate(**{"fits": fits, "elapsed_ns": 1_500_000_000, **_account(**changes)})


def measurement(**changes: Any) -> Measurement:
    """Return a measurement of 16 MiB at the peak, with `changes` to its fields."""
    host = 350 * MIB
    peak = Peak(
        requested_bytes=15 * MIB,
        allocated_bytes=changes.pop("allocated_bytes", 16 * MIB),
        tensor_bytes=16 * MIB,
        host_bytes=Range(low=host, expected=host, high=host),
    )
    facts = {
        "peak": peak,
        "instruments": {"peak.host_bytes": "VmHWM, reset after import"},
        "step_ns": (9_000_000, 2_000_000, 3_000_000),
    }
    return Measurement(**{**_account(), **facts, **_only_account(changes)})


def _only_account(changes: dict[str, Any]) -> dict[str, Any]:
    if "held" not in changes:
        return changes
    held = changes.pop("held")
    return {"at_peak": _account(held=held)["at_peak"], **changes}
