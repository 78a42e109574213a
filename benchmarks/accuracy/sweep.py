"""Architectures that are in no set, in the settings people use: whether an estimate comes, how fast, how wide.

Nothing is measured, so nothing is right or wrong by it. Settings are drawn for each network from its name: every
run draws the same.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.accuracy.cases import family_of
from benchmarks.accuracy.peers import at_most
from benchmarks.accuracy.run import rows_of
from memgauge.errors import UnsupportedError
from memgauge.records import Range
from memgauge.workload import Workload

DEVICES = ("nvidia-a100-40gb", "nvidia-rtx-3090", "nvidia-t4", "nvidia-h100-80gb", "nvidia-rtx-4060")
PRECISIONS = ("float32", "float32", "amp-float16", "amp-bfloat16", "bfloat16")
OPTIMIZERS = ("sgd", "sgd,momentum=0.9", "adam", "adamw", "adamw,fused=True", "adafactor", "rmsprop")
BATCHES = {"timm": (8, 16, 32, 64), "torchvision": (2, 4, 8, 16), "transformers": (1, 2, 4, 8)}
PER_FAMILY = 2  # members of one family of timm's names, and of torchvision's builders
INFER_SHARE, CHECKPOINT_SHARE, CHANNELS_LAST_SHARE = 0.15, 0.15, 0.25


@dataclass(frozen=True, slots=True)
class Draw:
    """A network and the setting that it is run in."""

    target: str
    device: str
    batch_size: int
    precision: str
    optimizer: str
    mode: str
    checkpointing: bool
    channels_last: bool
    cudnn_benchmark: bool


def draws(left_out: frozenset[str] = frozenset()) -> list[Draw]:
    """Return every case; of timm's networks those of families that are not in `left_out`."""
    return [_draw(name) for name in [*_timm(left_out), *_torchvision(), *_transformers()]]


def _draw(target: str) -> Draw:
    dice = random.Random(target)
    library = target.partition(":")[0]
    mode = "infer" if dice.random() < INFER_SHARE else "train"
    return Draw(
        target=target,
        device=dice.choice(DEVICES),
        batch_size=dice.choice(BATCHES[library]),
        precision=dice.choice(PRECISIONS),
        optimizer=dice.choice(OPTIMIZERS),
        mode=mode,
        checkpointing=mode == "train" and dice.random() < CHECKPOINT_SHARE,
        channels_last=library == "timm" and dice.random() < CHANNELS_LAST_SHARE,
        cudnn_benchmark=dice.random() < 0.5,
    )


def _timm(left_out: frozenset[str]) -> Iterator[str]:
    from memgauge.frameworks.torch.timm_models import _import_timm

    names = [n for n in _import_timm().list_models() if family_of(n) not in left_out]
    yield from (f"timm:{name}" for name in _some(names, family_of))


def _torchvision() -> Iterator[str]:
    from memgauge.frameworks.torch.torchvision_compat import import_torchvision

    names = [n for n in import_torchvision().models.list_models() if "quantized" not in n]
    yield from (f"torchvision:{name}" for name in names)


def _transformers() -> Iterator[str]:
    from memgauge.frameworks.torch.transformers_models import _import_transformers

    _import_transformers()
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    yield from (f"transformers:{name}" for name in _some(list(MODEL_MAPPING_NAMES), family_of))


def _some(names: list[str], family: Callable[[str], str]) -> Iterator[str]:
    for _, group in itertools.groupby(sorted(names, key=lambda n: (family(n), _hash(n))), key=family):
        yield from itertools.islice(group, PER_FAMILY)


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


# -- running ---------------------------------------------------------------------------------------------


def sweep(cases: list[Draw], out: Path, *, limit: int | None, seconds: int) -> None:
    """Estimate the first cases by the hash of their names that `out` does not hold yet; append a line for each."""
    done = {row["target"] for row in rows_of(out)}
    asked = sorted(cases, key=lambda c: _hash(c.target))[:limit]
    left = [case for case in asked if case.target not in done]
    row_of(_draw("timm:test_vit"), seconds)  # imports, which are no part of an estimate
    with out.open("a", encoding="utf-8") as lines:
        for number, case in enumerate(left, start=1):
            lines.write(json.dumps(in_a_fork(case, seconds)) + "\n")
            lines.flush()
            if number % 20 == 0 or number == len(left):
                print(f"{out.stem}: {number}/{len(left)}", file=sys.stderr, flush=True)


def in_a_fork(case: Draw, seconds: int) -> dict[str, Any]:
    """Return the row of a case from a process of its own, so that what one breaks harms no other."""
    reader, writer = os.pipe()
    begin = time.perf_counter()
    child = os.fork()
    if not child:
        os.close(reader)
        with os.fdopen(writer, "w") as pipe:
            pipe.write(json.dumps(row_of(case, seconds)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    row: dict[str, Any] = (
        json.loads(text) if text else asdict(case) | {"error": f"the process ended: {status}"}
    )
    return row | {"seconds": round(time.perf_counter() - begin, 3)}


def row_of(case: Draw, seconds: int) -> dict[str, Any]:
    """Return what is said of one case, or why nothing is."""
    row: dict[str, Any] = asdict(case)
    begin = time.perf_counter()
    try:
        with at_most(seconds):
            try:
                row |= _estimated(case)
            except UnsupportedError as error:
                if "no checkpointing of its own" not in str(error):
                    raise
                row |= _estimated(replace(case, checkpointing=False)) | {"checkpointing": False}
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1][:300]}"
        row["traceback"] = "".join(traceback.format_exception(error))[-6000:]
    row["estimated_in"] = round(time.perf_counter() - begin, 3)
    return row


def _estimated(case: Draw) -> dict[str, Any]:
    import memgauge
    from memgauge.frameworks.torch.predict import installed_stack
    from memgauge.targets import TargetOptions, resolve

    options = TargetOptions(
        batch_size=case.batch_size,
        optimizer=case.optimizer,
        precision=case.precision,
        mode=case.mode,
        checkpointing=case.checkpointing,
    )
    workload = resolve(case.target, options)
    if case.channels_last:
        workload = channels_last(workload)
    stack = msgspec.structs.replace(installed_stack(), cuda=(12, 6), cudnn_benchmark=case.cudnn_benchmark)
    said = memgauge.estimate(workload, device=case.device, stack=stack)
    assert said.peak.device_bytes is not None
    return {
        "allocated": said.peak.allocated_bytes,
        "reserved": said.peak.reserved_bytes,
        "tensors": said.peak.tensor_bytes,
        "range": msgspec.structs.asdict(said.peak.device_bytes),
        "unmodelled": said.unmodelled,
        "assumptions": said.assumptions,
    }


def channels_last(workload: Workload) -> Workload:
    """Return the workload with network and pictures laid out so, as their users write it."""
    import torch

    def build(device: Any) -> Any:
        made = workload.build(device)
        model = made[0] if isinstance(made, tuple) else made
        model.to(memory_format=torch.channels_last)
        return made

    def batch(device: Any) -> Any:
        pictures, labels = workload.batch(device)
        return pictures.contiguous(memory_format=torch.channels_last), labels

    return replace(workload, build=build, batch=batch)


# -- the page --------------------------------------------------------------------------------------------


def section(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the page: what failed, how long it took, how wide ranges are."""
    lines = [
        "| library | networks | no estimate | median s | slowest s | range, median width |",
        "|---|---|---|---|---|---|",
    ]
    for library in (*BATCHES, ""):
        mine = [r for r in rows if r["target"].startswith(f"{library}:" if library else "")]
        good = [r for r in mine if "error" not in r]
        if not good:
            continue
        times = [r["estimated_in"] for r in good]
        ranges = [msgspec.convert(r["range"], Range) for r in good]
        widths = [100 * (r.high - r.low) / r.expected for r in ranges]
        lines.append(
            f"| {library or 'all'} | {len(mine)} | {100 * (1 - len(good) / len(mine)):.1f} % | "
            f"{statistics.median(times):.2f} | {max(times):.1f} | {statistics.median(widths):.1f} % |"
        )
    failed = Counter(_reason(r["error"]) for r in rows if "error" in r)
    return [*lines, "", *(f"- {count} × {why}" for why, count in failed.most_common()), ""]


# Parts of messages that stand for one cause, with what the page says.
_REASONS = {
    "does not suit": "the batch that memgauge makes does not suit the network",
    "cannot be made": "the default configuration makes no network",
    "only a real run would know": "the step depends on values that have to be declared",
    "not installed": "a package is not installed",
    "longer than": "longer than was allowed",
    "WorkloadError": "the network itself refuses the batch",
}


def _reason(error: str) -> str:
    return next((why for part, why in _REASONS.items() if part in error), error.partition(":")[0])
