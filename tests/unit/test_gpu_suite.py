"""The GPU suite as far as a machine without a GPU can test it: names, estimates, replays, exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import estimated
from benchmarks.gpu.measured import compact
from benchmarks.gpu.replayed import replayed
from benchmarks.gpu.workloads import SUITE
from memgauge.allocators.settings import parse_cuda_settings
from memgauge.units import MIB

MACHINE = {
    "gpu": "NVIDIA H100 80GB HBM3",
    "total_bytes": 84_943_714_058,
    "capability": [9, 0],
    "multiprocessors": 132,
    "torch": "2.13.0",
    "cuda": "13.0",
}


def test_there_are_about_sixty_and_their_settings_are_torchs_own() -> None:
    assert 55 <= len(SUITE) <= 70
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


def test_a_recorded_history_gives_its_reserved_bytes() -> None:
    # Two tensors that share a segment of 20 MiB, one of its own, the cache given back, one more.
    history = [
        ["s", 0, 20 * MIB], ["a", 0, 2 * MIB], ["a", 1, 3 * MIB], ["f", 1, 3 * MIB],
        ["s", 2, 30 * MIB], ["a", 2, 30 * MIB], ["f", 2, 30 * MIB], ["g", 2, 30 * MIB],
        ["s", 3, 40 * MIB], ["a", 3, 40 * MIB],
    ]  # fmt: skip
    assert replayed(history) == (60 * MIB, 60 * MIB)
    kept = [row for row in history if row[0] != "g"]
    assert replayed(kept) == (90 * MIB, 90 * MIB)


def test_a_history_of_two_streams_gives_its_reserved_bytes() -> None:
    recorded = [
        {"action": "segment_alloc", "addr": 1, "size": 30 * MIB, "stream": 0},
        {"action": "alloc", "addr": 1, "size": 30 * MIB, "stream": 0},
        {"action": "free_completed", "addr": 1, "size": 30 * MIB, "stream": 0},
        {"action": "segment_alloc", "addr": 2, "size": 30 * MIB, "stream": 94_000},
        {"action": "alloc", "addr": 2, "size": 30 * MIB, "stream": 94_000},
    ]
    assert compact(recorded)[-1] == ["a", 1, 30 * MIB, 1]
    assert replayed(compact(recorded)) == (60 * MIB, 60 * MIB)


def test_addresses_of_a_history_are_numbered_as_they_appear() -> None:
    trace = [
        {"action": "segment_alloc", "addr": 700, "size": 2 * MIB},
        {"action": "alloc", "addr": 700, "size": 512},
        {"action": "free_requested", "addr": 700, "size": 512},
        {"action": "free_completed", "addr": 700, "size": 512},
        {"action": "alloc", "addr": 900, "size": 512},
    ]
    assert compact(trace) == [["s", 0, 2 * MIB], ["a", 0, 512], ["f", 0, 512], ["a", 1, 512]]


def test_without_a_gpu_it_measures_nothing_and_ends_with_three(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    out = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(out)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 3 and "no CUDA device" in done.stderr
    assert not out.exists()
