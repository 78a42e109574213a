"""Torres 2021: two synthetic data sets, a small CNN, TensorFlow and PyTorch on two GPUs.

Computed here: the data sets, the copies of them that a program of that kind must have, the
network by batch size on host and device. The measured host maxima are also taken apart, which
is no prediction and stands in a table of its own. The CUDA context is a wide range, and
TensorFlow's habit of taking the whole GPU follows its rule. Not computable: interpreter and
libraries of those years.
"""

from __future__ import annotations

from functools import cache

from memgauge import devices
from memgauge.arguments import TargetOptions
from memgauge.by_hand import both, by_hand
from memgauge.devices import Device
from memgauge.devices.context import context
from memgauge.devices.stack import Stack
from memgauge.estimate import estimate
from memgauge.records import Peak
from memgauge.reproduce.gaps import gap_section
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
# The NumPy array and the tensors made of it.
COPIES = 2
OTHER_COPIES = ", and further copies of the data: the paper does not say how its program feeds them"
_THOUSAND_GIB = Unit("MB", GIB, "MB = GiB / 1000", per=1000)


def reproduction() -> Reproduction:
    """Return the paper's numbers beside ours."""
    return Reproduction(
        name="torres",
        title="Computational Resource Consumption in Convolutional Neural Network Training - A Focus on Memory",
        author="Luis A. Torres, Carlos J. Barrios, Yves Denneulin",
        year=2021,
        source="Supercomputing Frontiers and Innovations, https://superfri.org",
        sections=(_data(), _network(), _by_batch(), _gap(), _host(), _taken_apart(), _device()),
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
                "the label is our guess, chosen because it gives their number; DT1 stays 703 with labels",
                is_reading=True,
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
    rows: list[tuple[int | None, ...]] = []
    for batch_size in BATCHES:
        options = TargetOptions(batch_size=batch_size)
        formula = by_hand("zoo:torres-cnn", device=GPUS["FELIX"], options=options)
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
    growth = (rows[-1][-1] or 0) - (rows[0][-1] or 0)
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
            "The paper says both: in section 4.2 that with PyTorch the device memory varies with the batch, in its "
            "conclusions that the batch has no influence on the memory of host or device. The first holds for PyTorch: "
            f"from batch {BATCHES[0]} to {BATCHES[-1]} the network reserves {growth / MIB:,.0f} MiB more, of which table "
            f"4, at batch {BATCHES[0]} only, shows nothing. The second holds for TensorFlow's device memory, which is "
            "the whole GPU at any batch, and nearly for the host, where the data set outweighs a batch.",
        ),
    )


def _gap() -> Section:
    largest = BATCHES[-1]
    found = both(
        "zoo:torres-cnn", device=GPUS["FELIX"], options=TargetOptions(batch_size=largest), stack=_STACK
    )
    return gap_section(f"the network at batch {largest} on {GPUS['FELIX']}", found)


def _host() -> Section:
    """The copies that the program must have; known before anything is measured."""
    claims: list[Claim] = []
    for (framework, server), (small, large, _) in MEASURED.items():
        for name, theirs in zip(SETS, (small, large), strict=True):
            one = _bytes_of(name)
            claims.append(
                claim(
                    f"{framework} on {server}, {name}: the array and its copy as tensors",
                    theirs,
                    COPIES * one,
                    MB_BINARY,
                    f"{one / MIB:,.0f} MiB for each. The other {int(theirs) - COPIES * one / MIB:,.0f} MB are interpreter, "
                    "framework and CUDA's libraries" + (OTHER_COPIES if framework == "TensorFlow" else ""),
                )
            )
    step = _bytes_of("DT2") - _bytes_of("DT1")
    for (framework, server), (small, large, _) in MEASURED.items():
        claims.append(
            claim(
                f"{framework} on {server}: from DT1 to DT2",
                f"{int(large) - int(small):,}",
                COPIES * step,
                MB_BINARY,
                "what does not depend on the data falls out"
                + (", so the rest is data: the copies are not two" if framework == "TensorFlow" else ""),
            )
        )
    network = _peak("cpu", BATCHES[0]).tensor_bytes or 0
    return Section(
        title="Host memory, as far as it can be predicted",
        claims=tuple(claims),
        notes=(
            "Predicted: the pictures once as the NumPy array in float32, whose size the paper gives, and once more as "
            "tensors of the framework. A program that shares the array's memory (torch.from_numpy) has the first alone. "
            "Not predicted: interpreter, framework and CUDA's libraries of those versions. "
            f"The network's tensors take {network / MIB:,.0f} MiB at batch {BATCHES[0]}.",
        ),
    )


def _taken_apart() -> Section:
    step = _bytes_of("DT2") - _bytes_of("DT1")
    rows: list[tuple[Cell, ...]] = []
    for (framework, server), (small, large, _) in MEASURED.items():
        copies = (int(large) - int(small)) * MIB / step
        whole = round(copies)
        rests = [
            int(text) * MIB - whole * _bytes_of(name) for name, text in zip(SETS, (small, large), strict=True)
        ]
        rows.append((framework, server, round(copies, 2), whole, *rests))
    return Section(
        title="The measured host memory taken apart (no prediction)",
        table=Table(
            columns=("framework", "server", "copies", "rounded", "rest_DT1_bytes", "rest_DT2_bytes"),
            rows=tuple(rows),
        ),
        notes=(
            "Copies: what the maxima grow by from DT1 to DT2, in sizes of what the data grow by. Rest: the maximum less "
            "that many whole copies. Both are read off the paper's own numbers, so that they add up proves nothing; that "
            "the copies come out near whole numbers and the rests nearly equal is the finding.",
        ),
    )


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
                    f"TensorFlow takes {100 * int(device) * MIB / capacity:.1f} % of the GPU's nominal "
                    f"{capacity / GIB:.0f} GiB at its start, whatever the network: one region of all that is free less "
                    f"5 to 6 % of it (MinSystemMemory), and kernels beside it; between {_region_bytes(card) / MIB:,.0f} "
                    "MB and the whole card. This says nothing about the model",
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
