"""Torres 2021: two synthetic data sets, a small CNN, TensorFlow and PyTorch on two GPUs.

Computed here: the data sets, the network by batch size on host and device, and what the
measured maxima say when one data set is taken from the other. The CUDA context is a wide range, and
TensorFlow's habit of taking the whole GPU follows its rule.
"""

from __future__ import annotations

from functools import cache

from memgauge import devices
from memgauge.arguments import TargetOptions
from memgauge.by_hand import by_hand
from memgauge.devices import Device
from memgauge.devices.context import context
from memgauge.devices.stack import Stack
from memgauge.estimate import estimate
from memgauge.records import Peak
from memgauge.reproduce.records import (
    MB_BINARY,
    TIMES,
    Cell,
    Claim,
    Reproduction,
    Section,
    Table,
    Unit,
    claim,
    ours_only,
    totals_of,
)
from memgauge.units import GIB, MIB

PICTURE, FLOAT_BYTES = 32 * 32 * 3, 4
SETS = {"DT1": 60_000, "DT2": 600_000}
BATCHES = (32, 64, 128, 256, 512)
GPUS = {"FELIX": "nvidia-gtx-titan-x", "Chifflot": "nvidia-p100-16gb"}
# Maxima in MB at batch 32: host with DT1, host with DT2, device (equal for both). Table 4.
MEASURED = {
    ("TensorFlow", "FELIX"): ("4446", "29883", "11743"),
    ("TensorFlow", "Chifflot"): ("4880", "30282", "15621"),
    ("PyTorch", "FELIX"): ("2749", "15439", "497"),
    ("PyTorch", "Chifflot"): ("3256", "15945", "849"),
}
_THOUSAND_GIB = Unit("MB", GIB, "MB = GiB / 1000", per=1000)


def reproduction() -> Reproduction:
    """Return the paper's numbers beside ours."""
    return Reproduction(
        name="torres",
        title="Computational Resource Consumption in Convolutional Neural Network Training - A Focus on Memory",
        author="Luis A. Torres, Carlos J. Barrios, Yves Denneulin",
        year=2021,
        source="Supercomputing Frontiers and Innovations, https://superfri.org",
        sections=(_data(), _network(), _by_batch(), _host(), _device()),
    )


def _bytes_of(name: str) -> int:
    return SETS[name] * PICTURE * FLOAT_BYTES


def _data() -> Section:
    first, second = _bytes_of("DT1"), _bytes_of("DT2")
    return Section(
        title="The synthetic data sets",
        claims=(
            claim("DT1: 60,000 pictures of 32 × 32 × 3, float32", "703", first, MB_BINARY),
            claim(
                "DT2: 600,000 pictures, in the unit of DT1",
                "6,867",
                second,
                MB_BINARY,
                f"ten times DT1 is {second / MIB:,.2f} MiB",
            ),
            claim(
                "DT2, in the unit that gives their number",
                "6,867",
                second,
                _THOUSAND_GIB,
                f"{second / GIB:.4f} GiB multiplied by 1000 instead of 1024: nearly their number",
            ),
            claim(
                "the same with a label of one byte for each picture",
                "6,867",
                second + SETS["DT2"],
                _THOUSAND_GIB,
                "a guess that gives their number; DT1 stays 703 with labels",
            ),
        ),
    )


def _network() -> Section:
    formula = by_hand("zoo:torres-cnn")
    columns = ("layer", "kind", "output", "formula", "parameters", "parameter_bytes", "feature_map_bytes")
    rows: list[tuple[Cell, ...]] = [
        (
            row.path,
            row.kind,
            "×".join(map(str, row.output_shapes[0])),
            row.parameter_formula or "none",
            row.parameters,
            row.parameter_bytes,
            row.feature_map_bytes,
        )
        for row in formula.layers
    ]
    rows.append(("all", "", "", "", *totals_of(rows, 4, 5, 6)))
    return Section(
        title="The network of table 1 at batch 32",
        table=Table(columns=columns, rows=tuple(rows)),
        notes=(
            "Assumed: no padding, stride 1, ReLU after each hidden layer, Adam, float32. The paper gives filters, "
            "kernels, pools and units only.",
        ),
    )


_STACK = Stack(torch=(1, 4), cuda=(10, 1))  # "PyTorch 1.4.0"; its standard build


def _stack_for(device: str) -> Stack | None:
    return None if device == "cpu" else _STACK


@cache
def _peak(device: str, batch_size: int) -> Peak:
    options = TargetOptions(batch_size=batch_size)
    return estimate(
        "zoo:torres-cnn", device=device, options=options, threads=1, stack=_stack_for(device), host=False
    ).peak


def _by_batch() -> Section:
    rows = []
    for batch_size in BATCHES:
        formula = by_hand("zoo:torres-cnn", options=TargetOptions(batch_size=batch_size))
        gpus = [_peak(device, batch_size) for device in GPUS.values()]
        reserved = {peak.reserved_bytes for peak in gpus}
        assert len(reserved) == 1  # the allocator does not know one GPU from the other
        rows.append(
            (
                batch_size,
                formula.total_bytes,
                _peak("cpu", batch_size).tensor_bytes,
                gpus[0].allocated_bytes,
                gpus[0].reserved_bytes,
            )
        )
    columns = (
        "batch",
        "formula_bytes",
        "host_tensors_bytes",
        "device_allocated_bytes",
        "device_reserved_bytes",
    )
    return Section(
        title="The network by batch size",
        table=Table(columns=columns, rows=tuple(rows)),
        notes=(
            "Host: the tensors of three training steps on a CPU, kernels' workspaces left out. Device: the same on "
            f"{' and '.join(GPUS.values())}, which do not differ in this: allocated, and reserved by PyTorch's "
            "caching allocator. The CUDA context comes on top; with PyTorch 1.4, cuBLAS's workspace too.",
            "The paper finds that the batch size does not change memory: of its 497 MB and more the network is "
            "the small part at every batch, and TensorFlow takes the whole GPU at once.",
        ),
    )


def _host() -> Section:
    step = _bytes_of("DT2") - _bytes_of("DT1")
    claims: list[Claim] = []
    for (framework, server), (small, large, _) in MEASURED.items():
        difference = int(large) - int(small)
        copies = round(difference * MIB / step)
        claims.append(
            claim(
                f"{framework} on {server}: host memory from DT1 to DT2",
                f"{difference:,}",
                copies * step,
                MB_BINARY,
                f"{copies} copies of the data as float32, {difference * MIB / step:.2f} by their maxima",
            )
        )
    for (framework, server), (small, _, _) in MEASURED.items():
        copies = round((int(MEASURED[framework, server][1]) - int(small)) * MIB / step)
        known = copies * _bytes_of("DT1")
        claims.append(
            claim(
                f"{framework} on {server}: host maximum with DT1, as far as it is data",
                small,
                known,
                MB_BINARY,
                f"{copies} copies of DT1; the other {int(small) - known / MIB:,.0f} MB are interpreter, framework, "
                "CUDA's libraries and what the monitor counts with them",
            )
        )
        large = MEASURED[framework, server][1]
        known = copies * _bytes_of("DT2")
        claims.append(
            claim(
                f"{framework} on {server}: host maximum with DT2, as far as it is data",
                large,
                known,
                MB_BINARY,
                f"{copies} copies of DT2; the other {int(large) - known / MIB:,.0f} MB as above",
            )
        )
    return Section(title="Host memory", claims=tuple(claims))


def _region_bytes(card: Device) -> int:
    """Return the least that TensorFlow 2.2 preallocates on an idle card.

    Free memory less max(300 MiB, a share of it): 5 % in TensorFlow 2.2's gpu_device.cc (from memory),
    6 % in the copy of the rule that was read (pluggable_device_factory.cc `MinSystemMemory`).
    """
    usable = card.usable_figure
    assert usable is not None
    free = usable.bytes - context(card, _STACK)[0].high
    return free - max(300 * MIB, int(0.06 * free))


def _device() -> Section:
    claims: list[Claim] = []
    for (framework, server), (_, _, device) in MEASURED.items():
        card = devices.find(GPUS[server])
        capacity = card.capacity_bytes or 0
        if framework == "TensorFlow":
            claims.append(
                claim(
                    f"TensorFlow on {server}: device maximum against the memory of the GPU",
                    device,
                    capacity,
                    MB_BINARY,
                    f"TensorFlow takes {100 * int(device) * MIB / capacity:.1f} % of the GPU at its start, whatever the "
                    "network: one region of all that is free less 5 to 6 % of it (MinSystemMemory), and kernels beside "
                    f"it; between {_region_bytes(card) / MIB:,.0f} MB and the whole card. This says nothing about the model",
                )
            )
            continue
        peak = _peak(GPUS[server], 32)
        reserved, total = peak.reserved_bytes or 0, peak.device_bytes
        assert total is not None
        inside = "inside" if total.low <= int(device) * MIB <= total.high else "outside"
        claims.append(
            claim(
                f"PyTorch on {server}: device maximum at batch 32",
                device,
                total.expected,
                MB_BINARY,
                f"{inside} the range of {total.low / MIB:,.0f} to {total.high / MIB:,.0f} MB; {reserved / MIB:,.0f} MB are "
                "reserved for the network, the rest is the CUDA context with all of PyTorch 1.4's kernels",
            )
        )
    measured = int(MEASURED["TensorFlow", "FELIX"][2]) / int(MEASURED["PyTorch", "FELIX"][2])
    claims.append(
        ours_only(
            "TensorFlow's device maximum over PyTorch's on FELIX",
            round(measured, 2),
            TIMES,
            "not a difference of the frameworks' need: one takes everything, the other what it uses",
        )
    )
    return Section(title="Device memory", claims=tuple(claims))
