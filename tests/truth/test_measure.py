"""Real runs in real processes, those that die included."""

from __future__ import annotations

import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from memgauge.arguments import TargetOptions
from memgauge.errors import MissingError, UsageError, WorkloadError
from memgauge.estimate import estimate
from memgauge.explain.compare import compare
from memgauge.measure import measure
from memgauge.units import MIB

HEADER = """
import os, signal, torch, memgauge

def job(batch_size: int = 16):
    def build():
        model = torch.nn.Linear(256, 256)
        return model, torch.optim.Adam(model.parameters())
    def batch():
        return torch.randn(batch_size, 256)
    count = []
"""
FOOTER = """
    return memgauge.Workload(build=build, batch=batch, step=step)
"""
TRAIN = """
    def step(model, optimizer, x):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
"""


def target(folder: Path, step: str) -> str:
    path = folder / "job.py"
    path.write_text(HEADER + step + FOOTER)
    return f"{path}:job"


def test_a_run_is_measured_and_compares_exactly_with_its_estimate(tmp_path: Path) -> None:
    name = target(tmp_path, TRAIN)
    seen = measure(name, sets={"batch_size": "64"})
    said = estimate(name, sets={"batch_size": "64"})
    assert seen.ended == "completed"
    assert len(seen.step_ns) == 3
    assert seen.peak.tensor_bytes == said.peak.tensor_bytes
    assert seen.at_peak.categories["optimizer_state"] == said.at_peak.categories["optimizer_state"]
    assert sum(seen.at_peak.categories.values()) == seen.peak.allocated_bytes
    assert compare(said, seen) is not None


COMPILED = """
import torch, memgauge

def job(backend: str = ""):
    def build():
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
        optimizer = torch.optim.Adam(model.parameters())
        return torch.compile(model, backend=backend) if backend else model, optimizer
    def batch():
        return torch.randn(32, 64)
"""


def test_a_compiled_module_runs_and_takes_what_its_operators_take(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(COMPILED + TRAIN + FOOTER)
    plain = measure(f"{path}:job")
    compiled = measure(f"{path}:job", sets={"backend": "eager"})
    assert compiled.ended == "completed"
    assert compiled.peak.allocated_bytes == plain.peak.allocated_bytes
    assert compiled.at_peak.categories == plain.at_peak.categories
    assert [p.name for p in compiled.phases] == [p.name for p in plain.phases]


def test_layers_that_return_jagged_tensors_have_a_shape_that_can_be_written(tmp_path: Path) -> None:
    step = """
    def step(model, optimizer, x):
        rows = torch.nested.nested_tensor([x, x[:3]], layout=torch.jagged)
        optimizer.zero_grad()
        model(rows).values().sum().backward()
        optimizer.step()
"""
    name = target(tmp_path, step)
    found, said = measure(name, steps=1), estimate(name, steps=1)
    assert found.peak.tensor_bytes == pytest.approx(said.peak.tensor_bytes, abs=128)  # offsets
    assert [layer.output_shape for layer in found.layers] == [layer.output_shape for layer in said.layers]
    assert (16 + 3, 256) in [layer.output_shape for layer in found.layers]


def test_resident_memory_is_the_exact_peak_of_the_bare_run(tmp_path: Path) -> None:
    step = """
    def step(model, optimizer, x):
        torch.ones(64 * 2**20, dtype=torch.uint8)  # 64 MiB, there and gone between two polls
    """
    seen = measure(target(tmp_path, textwrap.dedent(step).replace("\n", "\n    ")), steps=1)
    host, base = seen.peak.host_bytes, seen.peak.host_baseline_bytes
    assert host is not None
    assert base is not None
    assert host.expected - base >= 64 * MIB


def test_an_exception_in_the_third_step_keeps_what_was_seen(tmp_path: Path) -> None:
    step = TRAIN + "        count.append(1)\n        if len(count) == 3: raise ValueError('no more data')\n"
    seen = measure(target(tmp_path, step), steps=5)
    assert "no more data" in seen.ended
    assert "job.py" in seen.ended
    assert "memgauge/child.py" not in seen.ended
    assert seen.peak.allocated_bytes
    assert len(seen.step_ns) == 2
    assert "steady step" not in {phase.name for phase in seen.phases}


KILLED = (
    TRAIN + "        count.append(1)\n        if len(count) == {}: os.kill(os.getpid(), signal.SIGKILL)\n"
)


def test_a_killed_run_is_reported_with_its_signal_and_the_steps_before(tmp_path: Path) -> None:
    seen = measure(target(tmp_path, KILLED.format(3)), steps=5)
    assert "SIGKILL" in seen.ended
    assert seen.peak.host_bytes is not None
    assert seen.peak.allocated_bytes == measure(target(tmp_path, TRAIN), steps=2).peak.allocated_bytes
    assert "the 2 steps that completed" in seen.instruments["peak.allocated_bytes"]


def test_a_run_killed_in_its_first_step_says_what_it_could_not_see(tmp_path: Path) -> None:
    seen = measure(target(tmp_path, KILLED.format(1)), steps=5)
    assert seen.peak.host_bytes is not None
    assert seen.peak.allocated_bytes is None
    assert "peak.allocated_bytes" in seen.unknown


def test_running_out_of_memory_is_named_as_such(tmp_path: Path) -> None:
    seen = measure(target(tmp_path, "    def step(model, optimizer, x):\n        torch.empty(2**60)\n"))
    assert seen.ended.startswith("out of memory")


def test_a_build_that_raises_gives_the_users_own_frames(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("def job():\n    return undefined_name\n")
    with pytest.raises(WorkloadError, match=r"bad\.py"):
        measure(f"{path}:job")


def test_endless_steps_stop_after_the_number_asked_for(tmp_path: Path) -> None:
    assert len(measure(target(tmp_path, TRAIN), steps=1).step_ns) == 1


def test_a_workload_made_here_is_sent_to_a_fresh_process() -> None:
    import torch

    import memgauge

    width = 128

    def step(model: torch.nn.Module, x: torch.Tensor) -> None:
        model(x).sum().backward()

    workload = memgauge.Workload(
        build=lambda: torch.nn.Linear(width, width), batch=lambda: torch.randn(8, width), step=step
    )
    assert (
        measure(workload, steps=1).peak.tensor_bytes
        == estimate(workload, steps=1, host=False).peak.tensor_bytes
    )


def test_threads_are_set_and_recorded(tmp_path: Path) -> None:
    assert measure(target(tmp_path, TRAIN), steps=1, threads=1).threads == 1


def test_a_gpu_that_is_not_here_is_missing_not_wrong(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(MissingError, match="CUDA"):
        measure(target(tmp_path, TRAIN), device="cuda")


def test_a_device_of_the_catalogue_cannot_be_measured() -> None:
    with pytest.raises(UsageError, match="nvidia-t4"):
        measure("zoo:mlp", device="nvidia-t4")


@pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
def test_a_detector_that_really_runs_takes_in_each_phase_what_was_predicted() -> None:
    target = "torchvision:retinanet_resnet50_fpn"
    options, sets = TargetOptions(batch_size=1), {"min_size": "128", "max_size": "160"}
    predicted = estimate(target, options=options, sets=sets, steps=1, host=False)
    measured = measure(target, options=options, sets=sets, steps=1)
    for said, seen in zip(predicted.phases, measured.phases, strict=True):
        assert (said.name, said.allocated_bytes) == (
            seen.name,
            pytest.approx(seen.allocated_bytes, rel=0.01),
        )
