"""The GPU suite as far as a machine without a GPU can test it: names, estimates, replays, exit code."""

from __future__ import annotations

import inspect
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.__main__ import estimated
from benchmarks.gpu.measured import compact
from benchmarks.gpu.replayed import replayed
from benchmarks.gpu.workloads import SUITE
from memgauge.allocators.blocks import Driver
from memgauge.allocators.cuda_caching import CudaCachingAllocator
from memgauge.allocators.settings import parse_cuda_settings
from memgauge.units import MIB

ROOT = Path(__file__).parents[2]

MACHINE: dict[str, Any] = {
    "gpu": "NVIDIA H100 80GB HBM3",
    "total_bytes": 84_943_714_058,
    "capability": [9, 0],
    "multiprocessors": 132,
    "torch": "2.13.0",
    "cuda": "13.0",
}


def test_there_are_about_sixty_and_their_settings_are_torchs_own() -> None:
    assert 55 <= len(SUITE) <= 70
    docs = ROOT / "docs" / "devices.md"
    assert f"\n{len(SUITE)} workloads, each in a process of its own" in docs.read_text(encoding="utf-8")
    for setting in SUITE.values():
        parse_cuda_settings(setting.alloc_conf)
    assert {s.optimizer for s in SUITE.values()} >= {"adam", "adamw", "sgd", "rmsprop"}
    assert any(s.infer for s in SUITE.values()) and any(s.checkpointing for s in SUITE.values())


@pytest.mark.parametrize("name", ["mlp", "decoder checkpointing", "residual cudnn.benchmark", "lstm infer"])
def test_each_can_be_estimated_without_a_gpu(name: str) -> None:
    said = estimated(name, MACHINE)
    assert "error" not in said, said
    low, expected, high = said["device"]
    assert low < expected < high and said["allocated"] <= said["reserved"][1]


# Two tensors that share a segment of 20 MiB, one of its own, the cache given back, one more.
HISTORY: list[list[Any]] = [
    ["s", 0, 20 * MIB], ["a", 0, 2 * MIB], ["a", 1, 3 * MIB], ["f", 1, 3 * MIB],
    ["s", 2, 30 * MIB], ["a", 2, 30 * MIB], ["f", 2, 30 * MIB], ["g", 2, 30 * MIB],
    ["s", 3, 40 * MIB], ["a", 3, 40 * MIB],
]  # fmt: skip


def exact(history: list[list[Any]], alloc_conf: str = "") -> int:
    """Return the peak of a history that the model gives exactly."""
    found = replayed(history, alloc_conf)
    assert found["peak"] == found["recorded_peak"] and found["differing"] == 0, found
    return int(found["peak"])


def test_a_recorded_history_gives_its_reserved_bytes() -> None:
    assert exact(HISTORY) == 60 * MIB
    kept = [row for row in HISTORY if row[0] != "g"]
    found = replayed(kept)
    assert found["peak"] == found["recorded_peak"] == 90 * MIB


def test_a_history_that_is_not_the_models_is_told() -> None:
    larger = [[*row[:2], row[2] + 2 * MIB] if row[0] == "s" and row[1] == 3 else row for row in HISTORY]
    found = replayed(larger)
    assert (found["peak"], found["recorded_peak"]) == (60 * MIB, 62 * MIB) and found["differing"] == 1


def test_a_history_of_two_streams_gives_its_reserved_bytes() -> None:
    recorded = [
        {"action": "segment_alloc", "addr": 1, "size": 30 * MIB, "stream": 0},
        {"action": "alloc", "addr": 1, "size": 30 * MIB, "stream": 0},
        {"action": "free_completed", "addr": 1, "size": 30 * MIB, "stream": 0},
        {"action": "segment_alloc", "addr": 2, "size": 30 * MIB, "stream": 94_000},
        {"action": "alloc", "addr": 2, "size": 30 * MIB, "stream": 94_000},
    ]
    assert compact(recorded)[-1] == ["a", 1, 30 * MIB, 1]
    assert exact(compact(recorded)) == 60 * MIB


@pytest.mark.parametrize("tells", [True, False])
def test_a_history_with_a_graphs_pool_gives_its_reserved_bytes(tells: bool) -> None:
    # The graph's segment lies where one of the default pool lay before, which was given back for it.
    rows = [
        ("segment_alloc", 1 << 30, 30 * MIB), ("alloc", 1 << 30, 30 * MIB), ("free_completed", 1 << 30, 30 * MIB),
        ("segment_free", 1 << 30, 30 * MIB), ("segment_alloc", 1 << 30, 30 * MIB), ("alloc", 1 << 30, 30 * MIB),
        ("free_completed", 1 << 30, 30 * MIB), ("segment_alloc", 3 << 30, 30 * MIB), ("alloc", 3 << 30, 30 * MIB),
    ]  # fmt: skip
    segments = [
        {"address": 1 << 30, "total_size": 30 * MIB, "segment_pool_id": (1, 0)},
        {"address": 3 << 30, "total_size": 30 * MIB, "segment_pool_id": (0, 0)},
    ]
    recorded = entries(*rows)
    if tells:
        recorded = [{**entry, "pool_id": (int(4 <= i <= 6), 0)} for i, entry in enumerate(recorded)]
    history = compact(recorded, () if tells else segments)
    assert [row[3:] for row in history] == [[]] * 4 + [[0, 1]] * 3 + [[]] * 2
    assert exact(history) == 60 * MIB
    assert replayed(compact(entries(*rows)))["differing"]  # without the pool the last needs no new segment


def entries(*rows: tuple[str, int, int]) -> list[dict[str, Any]]:
    """Return entries as torch documents them, of the default stream."""
    return [{"action": action, "addr": address, "size": size, "stream": 0} for action, address, size in rows]


def test_a_block_that_another_stream_still_uses_is_not_given_out_again() -> None:
    # `record_stream`: the release is requested, and completes when that stream is done.
    before = [
        ("segment_alloc", 1 << 30, 30 * MIB),
        ("alloc", 1 << 30, 30 * MIB),
        ("free_requested", 1 << 30, 30 * MIB),
    ]
    after = [
        ("segment_alloc", 2 << 30, 30 * MIB),
        ("alloc", 2 << 30, 30 * MIB),
        ("free_completed", 1 << 30, 30 * MIB),
    ]
    assert exact(compact(entries(*before, *after))) == 60 * MIB
    reused = [("free_completed", 1 << 30, 30 * MIB), ("alloc", 1 << 30, 30 * MIB)]
    assert exact(compact(entries(*before, *reused))) == 30 * MIB


def test_pages_of_a_growing_segment_are_counted() -> None:
    rows = [
        ("segment_map", 4 << 30, 20 * MIB), ("alloc", 4 << 30, 18 * MIB), ("segment_map", (4 << 30) + 20 * MIB, 20 * MIB),
        ("alloc", (4 << 30) + 18 * MIB, 18 * MIB), ("free_requested", 4 << 30, 18 * MIB),
        ("free_completed", 4 << 30, 18 * MIB), ("snapshot", 0, 0), ("alloc", 4 << 30, 10 * MIB),
    ]  # fmt: skip
    assert exact(compact(entries(*rows)), "expandable_segments:True") == 40 * MIB


@pytest.mark.parametrize(
    ("first", "second", "takes_first", "ties"),
    [(1, 2, True, "obtained first"), (2, 1, True, "obtained first"), (2, 1, False, "lower address")],
)
def test_of_equal_blocks_the_one_is_taken_that_the_recording_torch_takes(
    first: int, second: int, takes_first: bool, ties: str
) -> None:
    # Two segments of two halves; one half of each is free, and a request takes one of the two. Then the
    # other half of the first is given back: whether the first is whole again, the next request tells.
    half = 12 * MIB
    one, two = first << 30, second << 30
    rows = []
    for segment in (one, two):
        rows += [("segment_alloc", segment, 2 * half), ("alloc", segment, 2 * half)]
        rows += [
            ("free_completed", segment, 2 * half),
            ("alloc", segment, half),
            ("alloc", segment + half, half),
        ]
    rows += [("free_completed", one + half, half), ("free_completed", two, half)]
    rows += [("alloc", one + half if takes_first else two, half), ("free_completed", one, half)]
    if takes_first:
        rows.append(("segment_alloc", 3 << 30, 2 * half))
    rows.append(("alloc", 3 << 30 if takes_first else one, 2 * half))
    found = replayed(compact(entries(*rows)))
    assert (found["differing"], found["ties"]) == (0, ties)
    assert found["peak"] == (6 if takes_first else 4) * half


def test_addresses_of_a_history_count_from_its_lowest() -> None:
    trace = [
        {"action": "segment_alloc", "addr": 700, "size": 2 * MIB},
        {"action": "alloc", "addr": 700, "size": 512},
        {"action": "free_requested", "addr": 700, "size": 512},
        {"action": "free_completed", "addr": 700, "size": 512},
        {"action": "alloc", "addr": 900, "size": 512},
    ]
    assert compact(trace) == [["s", 0, 2 * MIB], ["a", 0, 512], ["f", 0, 512], ["a", 200, 512]]


def test_without_a_gpu_it_measures_nothing_and_ends_with_three(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    out = tmp_path / "gpu.json"
    done = suite("--out", str(out))
    assert done.returncode == 3 and "no CUDA device" in done.stderr
    assert not out.exists()


def suite(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


# As on a machine that has only torch, with what it needs, numpy, psutil and NVML's binding.
ONLY_TORCH = """
import importlib.machinery, importlib.metadata, json, re, sys

# torch imports optree where pip's records name it, so what is installed must stay importable.
there, new = set(), {"torch", "numpy", "psutil", "nvidia-ml-py", "optree"}
while new:
    name = new.pop()
    there.add(name)
    try:
        needs = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        continue
    plain = (re.match(r"[\\w.-]+", n).group() for n in needs if "extra ==" not in n)
    new |= {n.lower().replace("_", "-") for n in plain} - there
top = importlib.metadata.packages_distributions()
known = {"memgauge", "benchmarks"}
blocked = {m for m, d in top.items() if not there & {n.lower().replace("_", "-") for n in d}} - known
assert {"msgspec", "rich", "typer", "cloudpickle"} <= blocked, blocked

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in blocked else super().find_spec(name, path, target)

sys.meta_path[:] = [Finder if f is importlib.machinery.PathFinder else f for f in sys.meta_path]
from benchmarks.gpu import measured, plain_records
from benchmarks.gpu.__main__ import estimated
"""


def test_it_estimates_the_same_on_a_machine_that_has_only_torch() -> None:
    names = ["decoder adam,fused", "residual channels_last amp", "gru infer"]
    code = ONLY_TORCH + (
        "assert plain_records.install() and not plain_records.install()\n"
        "from benchmarks.gpu.replayed import replayed\n"
        f"print(json.dumps([estimated(name, {MACHINE!r}) for name in {names!r}]))\n"
        f"print(json.dumps(replayed({HISTORY!r})))\n"
        "assert not blocked & {name.partition('.')[0] for name in sys.modules} - {'msgspec'}\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    said, again = map(json.loads, done.stdout.splitlines())
    for name, there in zip(names, said, strict=True):
        here = estimated(name, MACHINE)
        assert "error" not in here, here
        assert {k: v for k, v in there.items() if k != "seconds"} == {
            k: v for k, v in here.items() if k != "seconds"
        }
    assert again["peak"] == 60 * MIB and again["differing"] == 0


@pytest.mark.parametrize("setting", ["", *sorted({s.alloc_conf for s in SUITE.values()} - {""})])
def test_whatever_the_allocator_records_replays_to_its_reserved_bytes(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The history of a run of the model itself, in torch's format: what `compact` and `replayed` leave
    # out or misplace (releases of the cache, streams, sizes) gives other reserved bytes.
    entries: list[dict[str, Any]] = []

    def record(action: str, address: int, size: int, stream: int = 0) -> None:
        entries.append({"action": action, "addr": address, "size": size, "stream": stream})

    take, give_back = Driver.take, Driver.give_back

    def taken(driver: Driver, size: int) -> bool:
        record("segment_alloc", -1, size)
        return take(driver, size)

    def given_back(driver: Driver, size: int) -> None:
        record("segment_free", -1, size)
        give_back(driver, size)

    monkeypatch.setattr(Driver, "take", taken)
    monkeypatch.setattr(Driver, "give_back", given_back)
    draw = random.Random(7)
    allocator = CudaCachingAllocator(parse_cuda_settings(setting))
    held: list[Any] = []
    highest = 0
    for _ in range(3000):
        chance = draw.random()
        if chance < 0.004:
            allocator.release_cached()
        elif held and chance < 0.49:
            block, address, stream = held.pop(draw.randrange(len(held)))
            record("free_requested", address, block.requested_bytes, stream)
            record("free_completed", address, block.requested_bytes, stream)
            allocator.free(block)
        else:
            stream = draw.choice((0, 0, 0, 140_001))
            size = int(2 ** draw.uniform(4, 26))
            block = allocator.allocate(size, stream)
            assert block is not None
            address = len(entries)
            record("alloc", address, size, stream)
            held.append((block, address, stream))
        highest = max(highest, allocator.reserved_bytes)
    monkeypatch.undo()
    assert any(entry["action"] == "segment_free" for entry in entries)
    assert exact(compact(entries), setting) == highest


def test_what_it_calls_of_torch_exists_as_it_calls_it() -> None:
    # On a machine without a GPU these cannot be called; a changed signature would show on a GPU only.
    recording = inspect.signature(torch.cuda.memory._record_memory_history)
    recording.bind(max_entries=1, context=None, stacks="python")
    recording.bind(enabled=None)
    inspect.signature(torch.cuda.memory._snapshot).bind()
    inspect.signature(torch.cuda.mem_get_info).bind(torch.device("cuda", 0))
    documented = torch.cuda.memory._snapshot.__doc__ or ""
    for word in (
        "device_traces",
        '"alloc"',
        '"free_completed"',
        '"segment_alloc"',
        '"segment_free"',
        "addr:",
    ):
        assert word in documented, word
    statistics = torch.cuda.memory_stats.__doc__ or ""
    for word in ("allocated_bytes.{all", "reserved_bytes.{all", "requested_bytes.{all", "num_alloc_retries"):
        assert word in statistics, word


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "decoder sgd,momentum;nothing"), "'nothing': no such workload"),
        (("--estimate", "nowhere.json"), "nowhere.json cannot be read"),
        (("--estimate", "README.md"), "README.md is not a file of this suite"),
    ],
)
def test_wrong_input_is_named(arguments: tuple[str, ...], said: str) -> None:
    done = suite(*arguments)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_measurements_from_elsewhere_are_estimated_and_shown(tmp_path: Path) -> None:
    row = {"allocated": 100 * MIB, "reserved": 60 * MIB, "cuda_used": 600 * MIB, "history": HISTORY}
    failed = {"name": "encoder flash", "error": "RuntimeError: No available kernel."}
    damaged = {**row, "history": None}
    document = {"machine": MACHINE, "rows": {"mlp": row, "mlp infer": damaged, "encoder flash": failed}}
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps(document))
    done = suite("--estimate", str(file))
    assert done.returncode == 0, done.stderr
    shown = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert "exact" in shown["mlp"] and "No available kernel" in shown["encoder flash"]
    assert "Error" in shown["mlp infer"]  # its history cannot be replayed
    kept = json.loads(file.read_text())["rows"]
    assert kept["mlp"]["estimate"]["allocated"] > 0 and kept["encoder flash"] == failed
