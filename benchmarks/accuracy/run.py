"""Run the estimator over sets of measured runs: in parallel, resumable, one JSON line for each case."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.accuracy.cases import Case
from memgauge import devices
from memgauge.allocators.settings import CudaSettings
from memgauge.allocators.sized import replay_sized, resized, without
from memgauge.capacity import giving_way, least_reserved, runs_within
from memgauge.devices import libraries
from memgauge.devices.context import context
from memgauge.records import Trace

# What is left out, one after the other, to see what each mechanism does.
ABLATIONS = {
    "no cuBLAS workspace": frozenset({libraries.CUBLAS, libraries.CUBLASLT}),
    "no workspace of convolutions": frozenset({libraries.CONVOLUTION, libraries.SEARCH}),
    "no cache releases of the search": frozenset({"cache releases", libraries.SEARCH}),
    "no scratch of attention": frozenset({libraries.ATTENTION}),
    "no scratch of embedding and sorting": frozenset({libraries.EMBEDDING, libraries.INDEX, libraries.SORT}),
    "one stream for all": frozenset({"streams"}),
    "nothing beside tensors": frozenset({*libraries.MECHANISMS, "cache releases", "streams"}),
}
_SETTINGS = CudaSettings()
_TASKS_PER_WORKER = 40


def run(cases: list[Case], out: Path, *, jobs: int, peer_seconds: int | None = None) -> None:
    """Estimate every case that `out` does not hold yet, and append a line for each.

    Args:
        cases: What to run.
        out: The file of results; lines that are there are kept and not run again.
        jobs: Processes.
        peer_seconds: Ask the other predictors that are installed instead of our own, each for so long.
    """
    done = {row["key"] for row in rows_of(out)}
    left = [case for case in cases if case.key not in done]
    print(f"{out.stem}: {len(done)} done, {len(left)} to go", file=sys.stderr, flush=True)
    if not left:
        return
    begin = time.perf_counter()
    context_ = multiprocessing.get_context("fork")
    with (
        out.open("a", encoding="utf-8") as lines,
        context_.Pool(jobs, _quiet, maxtasksperchild=_TASKS_PER_WORKER) as pool,
    ):
        if out.stat().st_size and not out.read_text(encoding="utf-8").endswith("\n"):
            lines.write("\n")  # a line that was cut off stays alone
        answers = pool.imap_unordered(
            _answer if peer_seconds is None else functools.partial(_ask_peers, seconds=peer_seconds), left
        )
        for number, row in enumerate(answers, start=1):
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            if number % 20 == 0 or number == len(left):
                rate = (time.perf_counter() - begin) / number
                print(f"{out.stem}: {number}/{len(left)}, {rate:.2f} s each", file=sys.stderr, flush=True)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of results; a last line that was cut off is left out."""
    rows = []
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                rows.append(json.loads(line))
    return rows


def _quiet() -> None:
    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")


def _ask_peers(case: Case, seconds: int) -> dict[str, Any]:
    from benchmarks.accuracy.peers import answers

    found, refused = answers(case, seconds)
    return {"key": case.key, "others": found, "refused": refused}


def _answer(case: Case) -> dict[str, Any]:
    row: dict[str, Any] = {
        "key": case.key,
        "family": case.family,
        "half": case.half,
        "environment": case.environment,
        "device": case.device,
        "measured": case.measured,
        "others": case.others,
        "facts": dict(case.facts),
        "damaged": case.damaged,
    }
    begin = time.perf_counter()
    try:
        row |= predict(case)
    except Exception as error:  # a miss is a result
        said = str(error).strip().splitlines() or [""]
        row["error"] = f"{type(error).__name__}: {said[-1][:300]}"
    row["seconds"] = round(time.perf_counter() - begin, 3)
    return row


def predict(case: Case) -> dict[str, Any]:
    """Return what memgauge says of a case: reserved by side, ablations, least capacity, caps, verdicts."""
    begin = time.perf_counter()
    trace = _trace(case)
    place = devices.find(case.device)
    free = replay_sized(trace, _SETTINGS, "expected")
    reserved, allocated = max(free.reserved_bytes or ()), max(free.allocated_bytes)
    sides = {side: max(replay_sized(trace, _SETTINGS, side).reserved_bytes or ()) for side in ("low", "high")}
    said: dict[str, Any] = {
        "estimated_in": round(time.perf_counter() - begin, 3),
        "reserved": reserved,
        "low": sides["low"],
        "high": sides["high"],
        "allocated": allocated,
        "tensor_sum": max(free.requested_bytes),
        "events": len(trace.events),
        "ablations": {
            name: max(replay_sized(without(trace, left_out), _SETTINGS, "expected").reserved_bytes or ())
            for name, left_out in ABLATIONS.items()
        },
    }
    beside, _ = context(place, case.stack)
    said["context"] = [beside.low, beside.expected, beside.high]
    usable = place.usable_figure
    assert usable is not None
    said["usable"] = usable.bytes
    limited = runs_within(trace, _SETTINGS, usable.bytes - beside.expected)
    said["limited"] = None if limited is None else max(limited.reserved_bytes or ())
    if "cap" in case.facts or "largest" in case.facts:
        said["least"] = min(least_reserved(giving_way(trace), _SETTINGS), reserved)
    if case.facts.get("steady"):
        last = [i for i, event in enumerate(trace.events) if event.phase.startswith("step 2")]
        said["allocated"] = max(free.allocated_bytes[i] for i in last)
    if case.facts.get("next"):
        said["next"] = _next(case)
    return said


def _next(case: Case) -> dict[str, int]:
    """Return the same of the next larger batch on the ladder, which did not run."""
    from benchmarks.accuracy import protocols

    facts = case.facts
    workload = protocols.timm_benchmark(facts["model"], facts["next"], facts["image_size"])
    trace = _traced(case, workload)
    free = replay_sized(trace, _SETTINGS, "expected")
    reserved, allocated = max(free.reserved_bytes or ()), max(free.allocated_bytes)
    least = min(least_reserved(giving_way(trace), _SETTINGS), reserved)
    return {"reserved": reserved, "allocated": allocated, "least": least}


def _trace(case: Case) -> Trace:
    return _traced(case, case.workload())


def _traced(case: Case, workload: Any) -> Trace:
    from memgauge.estimate import traced

    return traced(workload, devices.find(case.device), steps=3, threads=1, stack=case.stack)


__all__ = ["ABLATIONS", "Iterator", "predict", "resized", "rows_of", "run"]
