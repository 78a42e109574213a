"""Ground-truth sets: files of others' measurements to cases. Damaged rows are named, never dropped silently.

Each reader takes the folder that holds the set's file. Columns are as in the files' own headers.
"""

from __future__ import annotations

import ast
import csv
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.accuracy import protocols
from benchmarks.accuracy.cases import Case, family_of
from memgauge.devices.stack import Stack
from memgauge.errors import UsageError
from memgauge.units import MIB

# A row contradicts its model's others where the bytes per sample that it implies are this far off.
CONTRADICTS = 0.25


class Skipped(list[str]):
    """Rows that cannot be read, each with its line and the reason."""


def read(name: str, folder: Path, skipped: Skipped) -> list[Case]:
    """Return the cases of a set.

    Raises:
        UsageError: The set is unknown or its file is missing.
    """
    if name not in SETS:
        raise UsageError(f"unknown set {name!r}; it is one of {', '.join(SETS)}")
    file, reader = SETS[name]
    path = folder / file
    if not path.is_file():
        raise UsageError(f"{path} is missing; --path names the folder that holds the sets")
    cases = []
    with path.open(newline="", encoding="utf-8", errors="replace") as text:
        rows = csv.DictReader(text)
        while True:
            try:
                made = reader(next(rows))
            except StopIteration:
                break
            except (KeyError, TypeError, ValueError, OverflowError, SyntaxError, csv.Error) as error:
                skipped.append(f"{path.name}:{rows.line_num}: {type(error).__name__}: {error}")
                continue
            if made is not None:
                cases.append(made)
    return list(_marked(cases)) if name == "timm" else cases


def _positive(text: str, scale: float = 1) -> int:
    value = int(float(text) * scale)
    if value <= 0:
        raise ValueError(f"{text} is not an amount of memory or a count")
    return value


def _timm(row: dict[str, str]) -> Case:
    model, batch = row["model"], _positive(row["batch_size"])
    return Case(
        key=f"{model}/{batch}",
        family=family_of(model),
        workload=functools.partial(protocols.timm_script, model, batch),
        alone=functools.partial(protocols.timm_script, model, batch, alone=True),
        device="nvidia-a100-40gb",
        stack=Stack(torch=(2, 3)),
        measured={"device": _positive(row["measured_device_mib"], MIB)},
        environment="timm on A100-40GB",
        others={"fake-tensor sum (theirs)": _positive(row["faketensor_mib"], MIB)},
        facts={"model": model, "batch_size": batch},
    )


def _marked(cases: list[Case]) -> Iterator[Case]:
    """Mark rows that contradict the same model's other batch sizes or its tensors; the prediction plays no part.

    A model's memory is a + b × batch. A row is damaged if it lies off the line through two others
    by more than a quarter while another pair agrees with each other; with fewer than three rows
    nothing can be said.
    """
    by_model = defaultdict(list)
    for case in cases:
        by_model[case.facts["model"]].append(case)
    for rows in by_model.values():
        off = _off_the_line([(c.facts["batch_size"], c.measured["device"]) for c in rows])
        for number, case in enumerate(rows):
            said = "contradicts the same model's other batch sizes" if number in off else ""
            if case.measured["device"] < case.others["fake-tensor sum (theirs)"]:
                said = "less than its tensors take by the authors' own trace"
            yield replace(case, damaged=said)


def _off_the_line(points: list[tuple[int, int]]) -> set[int]:
    if len(points) < 3:
        # Two rows: memory cannot fall as the batch grows.
        if len(points) == 2:
            (b0, m0), (b1, m1) = points
            if (b1 - b0) * (m1 - m0) < 0:
                return {0, 1}
        return set()
    best: set[int] | None = None
    for i in range(len(points)):
        for j in range(i + 1, len(points)):
            (b0, m0), (b1, m1) = points[i], points[j]
            if b0 == b1 or (b1 - b0) * (m1 - m0) <= 0:
                continue
            slope = (m1 - m0) / (b1 - b0)
            off = {
                k
                for k, (b, m) in enumerate(points)
                if abs(m0 + slope * (b - b0) - m) > CONTRADICTS * m or m0 - slope * b0 < 0
            }
            if best is None or len(off) < len(best):
                best = off
    return best if best is not None else set(range(len(points)))


def _mlp(row: dict[str, str]) -> Case:
    found = re.match(r"input:(\d+)_", row["id"])
    layers = ast.literal_eval(row["layers"])
    if found is None or not layers:
        raise ValueError(f"{row['id']!r} names no input size")
    batch = _positive(row["batch_size"])
    return Case(
        key=row["id"],
        family=re.sub(r"_batch:\d+", "", row["id"]),
        workload=functools.partial(protocols.mlp, int(found[1]), layers, batch),
        device="nvidia-a100-40gb",
        stack=Stack(torch=(2, 3)),
        measured={"device": _positive(row["measured_device_mib"], MIB)},
        environment="MLP on A100-40GB",
    )


def _xmem(row: dict[str, str], *, capped: bool = False) -> Case | None:
    """A free run, or a capped one; the A100's random lengths and out-of-memory runs are left out."""
    if not capped and row["out_of_memory"] == "True":
        return None
    model, optimizer, batch = row["model"], row["optimizer"], _positive(row["batch_size"])
    make: Callable[..., protocols.Workload] = (
        protocols.xmem_vision if model in protocols.VISION else protocols.xmem_language
    )
    zero_grad = int(row["zero_grad"])
    arguments = model, optimizer, batch, zero_grad
    alone = make if model in protocols.VISION else functools.partial(protocols.xmem_language, alone=True)
    device = f"nvidia-{row['gpu']}" if row["gpu"] != "CoLab" else "nvidia-a100-40gb"
    key = f"{model}/{optimizer}/{batch}/{row['gpu']}/{row['generation']}/{zero_grad}"
    facts: dict[str, object] = {
        "model": model,
        "generation": row["generation"],
        "batch_size": batch,
        "optimizer": optimizer,
    }
    measured = _positive(row["measured_bytes_uncapped" if capped else "measured_bytes"])
    if capped:
        facts |= {"cap": _positive(row["cap_on_reserved_bytes"])}
        facts |= {"ran": row["ran_without_out_of_memory"] == "True"}
        key += f"/{facts['cap']}"
    others = {}
    for name in ("xmem", "dnnmem", "schedtune", "llmem"):
        text = row.get(f"{name}_bytes", "")
        if text and float(text) > 0:
            others[name] = int(float(text))
    return Case(
        key=key,
        family=model,
        workload=functools.partial(make, *arguments),
        alone=functools.partial(alone, *arguments),
        device=device,
        stack=Stack(torch=(2, 6), cuda=(12, 4)),
        measured={"reserved": measured},
        environment=f"xMem generation {row['generation']}",
        others=others,
        facts=facts,
    )


def _t4(row: dict[str, str]) -> Case:
    size = int(row["image_size"]) if row["image_size"] else None
    length = int(row["sequence_length"]) if row["sequence_length"] else None
    return Case(
        key=row["model"],
        family=row["model"],
        workload=functools.partial(
            protocols.t4_step, row["model"], _positive(row["batch_size"]), length, size
        ),
        device="nvidia-t4",
        stack=Stack(torch=(2, 11), cuda=(12, 8)),
        measured={
            "allocated": _positive(row["max_allocated_bytes"]),
            "reserved": _positive(row["max_reserved_bytes"]),
        },
        environment="T4",
        facts={"steady": True},
    )


_LADDER = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)


def _largest(row: dict[str, str]) -> Case:
    model, batch, size = row["model"], _positive(row["largest_batch"]), _positive(row["image_size"])
    larger = [b for b in _LADDER if b > batch]
    return Case(
        key=model,
        family=family_of(model),
        workload=functools.partial(protocols.timm_benchmark, model, batch, size),
        device="nvidia-rtx-3090",
        stack=Stack(torch=(1, 12), cuda=(11, 3)),
        measured={},
        environment="timm on RTX 3090",
        facts={
            "model": model,
            "largest": batch,
            "next": larger[-1] if larger else None,
            "image_size": size,
        },
    )


SETS: dict[str, tuple[str, Callable[[dict[str, str]], Case | None]]] = {
    "timm": ("timm_a100_40gb.csv", _timm),
    "mlp": ("mlp_a100_40gb.csv", _mlp),
    "xmem": ("xmem_rtx3060_4060.csv", _xmem),
    "capped": ("xmem_capped_runs.csv", functools.partial(_xmem, capped=True)),
    "t4": ("t4_training_peaks.csv", _t4),
    "largest": ("timm_rtx3090_largest_batch.csv", _largest),
}
