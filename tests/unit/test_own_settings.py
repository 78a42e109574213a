"""What a program sets for CUDA by itself is followed, said, and not there for the next."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import memgauge
from memgauge import Workload, environment
from memgauge.allocators.settings import CudaSettings, parse_cuda_settings, settings_after_call
from memgauge.arguments import TargetOptions
from memgauge.child import load_workload
from memgauge.cli import main
from memgauge.devices.stack import Stack
from memgauge.errors import UsageError
from memgauge.measure import make_job
from memgauge.records import Estimate
from memgauge.units import MIB
from memgauge.vary import curve, over_catalogue

CUDA_CONF, NEWER_CONF = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
EXPANDABLE, OTHER = "expandable_segments:True", "max_split_size_mb:64"
WORKLOAD = """
def run(batch_size: int = 1):
    return memgauge.Workload(
        build=lambda: torch.nn.Linear(1, 1),
        batch=lambda: torch.zeros(batch_size, 17, 1024, 1024, dtype=torch.uint8),
        step=lambda model, x: None,
        mode="infer",
    )
"""


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in (*environment.ALLOCATOR, environment.CUBLAS, environment.CUBLASLT):
        monkeypatch.delenv(name, raising=False)
    yield
    assert not environment.variables()


def program(folder: Path, *lines: str) -> str:
    """Return the target of a file that begins with these lines."""
    file = folder / f"train{len(list(folder.iterdir()))}.py"
    file.write_text("\n".join(("import os, torch, memgauge", *lines, WORKLOAD)))
    return f"{file}:run"


def sets(name: str, text: str) -> str:
    return f"os.environ[{name!r}] = {text!r}"


def estimated(workload: Workload | str, **options: Any) -> Estimate:
    return memgauge.estimate(workload, device="nvidia-t4", steps=1, **options)


def built(build: Callable[[], Any]) -> Workload:
    return Workload(
        build=lambda: build() or nn.Linear(1, 1),
        batch=lambda: torch.zeros(17 * MIB, dtype=torch.uint8),
        step=lambda model, x: None,
        mode="infer",
    )


def reserved(found: Estimate) -> int:
    assert found.peak.reserved_bytes is not None
    return found.peak.reserved_bytes


def said(found: Any) -> list[str]:
    return [text for text in found.assumptions if text.startswith("allocator settings")]


def plain(folder: Path, **options: Any) -> Estimate:
    return estimated(program(folder), **options)


@pytest.mark.parametrize(
    "line",
    [
        sets(CUDA_CONF, EXPANDABLE),
        sets(NEWER_CONF, EXPANDABLE),
        f"torch._C._accelerator_setAllocatorSettings({EXPANDABLE!r})",
        f"torch.cuda.memory._set_allocator_settings({EXPANDABLE!r})",
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_a_file_sets_is_followed_each_time_and_only_there(tmp_path: Path, line: str) -> None:
    target = program(tmp_path, line)
    asked = plain(tmp_path, allocator=parse_cuda_settings(EXPANDABLE))
    assert reserved(asked) != reserved(plain(tmp_path))
    for _ in range(2):
        found = estimated(target)
        assert reserved(found) == reserved(asked)
        assert said(found) == [f"allocator settings of the program: {EXPANDABLE}"]
        assert not said(plain(tmp_path))


def test_what_an_imported_module_sets_is_followed_the_second_time_too(tmp_path: Path) -> None:
    (tmp_path / "own_config.py").write_text(f"import os\n{sets(CUDA_CONF, EXPANDABLE)}\n")
    target = program(tmp_path, "import own_config")
    assert [said(estimated(target)) for _ in range(2)] == [
        [f"allocator settings of the program: {EXPANDABLE}"]
    ] * 2


def test_an_edited_file_sets_what_it_says_now(tmp_path: Path) -> None:
    target = program(tmp_path, sets(CUDA_CONF, EXPANDABLE))
    assert said(estimated(target))
    file = Path(target.removesuffix(":run"))
    file.write_text(file.read_text().replace(sets(CUDA_CONF, EXPANDABLE), ""))
    os.utime(file, ns=(1, 1))
    assert not said(estimated(target))


def test_the_variable_counts_until_cuda_begins() -> None:
    def early() -> None:
        os.environ[CUDA_CONF] = OTHER

    def late() -> nn.Module:
        model = nn.Linear(1, 1)
        os.environ[CUDA_CONF] = OTHER
        return model

    assert said(estimated(built(early))) == [f"allocator settings of the program: {OTHER}"]
    assert not said(estimated(built(late)))


def test_calls_of_the_allocator_come_after_its_variable() -> None:
    def build() -> None:
        os.environ[CUDA_CONF] = f"{EXPANDABLE},{OTHER}"
        torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:40")

    found = estimated(built(build))
    assert said(found) == [
        f"allocator settings of the program: {EXPANDABLE},{OTHER}, then large_segment_size_mb:40"
    ]


def test_a_call_resets_three_keys_and_leaves_the_others() -> None:
    before = parse_cuda_settings(f"{EXPANDABLE},{OTHER},garbage_collection_threshold:0.5")
    after = settings_after_call(before, "large_segment_size_mb:40")
    assert after == CudaSettings(expandable_segments=True, large_segment_bytes=40 * MIB)
    assert settings_after_call(before, "max_split_size_mb:32").max_split_bytes == 32 * MIB


def test_what_torch_refuses_is_refused_in_its_words(tmp_path: Path) -> None:
    wrong = "expandable_segments:true"
    for line in (sets(CUDA_CONF, wrong), f"torch.cuda.memory._set_allocator_settings({wrong!r})"):
        target = program(tmp_path, f"def wrong():\n    {line}\n")
        file = Path(target.removesuffix(":run"))
        file.write_text(file.read_text().replace("build=lambda:", "build=lambda: wrong() or"))
        with pytest.raises(UsageError, match="Expected 'True' or 'False' at index 2"):
            estimated(target)


def test_what_the_program_sets_comes_after_what_is_given(tmp_path: Path) -> None:
    given = parse_cuda_settings(OTHER)
    assert reserved(estimated(program(tmp_path, sets(CUDA_CONF, EXPANDABLE)), allocator=given)) == reserved(
        plain(tmp_path, allocator=parse_cuda_settings(EXPANDABLE))
    )


def test_a_default_of_the_program_gives_way_to_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = program(tmp_path, f"os.environ.setdefault({CUDA_CONF!r}, {EXPANDABLE!r})")
    for options, followed in (((), True), (("--alloc-conf", OTHER), False)):
        assert main(["estimate", target, "--device", "nvidia-t4", "--layers", "0", *options]) == 0
        assert ("settings of the program" in capsys.readouterr().out) is followed


def test_the_environment_counts_where_nothing_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expandable = reserved(plain(tmp_path, allocator=parse_cuda_settings(EXPANDABLE)))
    with monkeypatch.context() as patch:
        patch.setenv(CUDA_CONF, EXPANDABLE)
        found = plain(tmp_path)
        assert reserved(found) == expandable
        assert said(found) == [f"allocator settings of the environment: {EXPANDABLE}"]
        assert not said(plain(tmp_path, allocator=CudaSettings()))
        assert said(estimated(program(tmp_path, sets(CUDA_CONF, OTHER)))) == [
            f"allocator settings of the program: {OTHER}"
        ]


def test_what_the_shell_exports_is_noted_and_named_where_it_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["estimate", program(tmp_path), "--device", "nvidia-t4", "--vary", "batch_size=1,2"]
    for text, code in ((EXPANDABLE, 0), ("foo:1", 2)):
        with monkeypatch.context() as patch:
            patch.setenv(CUDA_CONF, text)
            assert main(command) == code
        assert "memgauge: allocator settings of the environment: " in capsys.readouterr().err


def test_tables_say_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, facts = program(tmp_path, sets(CUDA_CONF, EXPANDABLE)), {"options": TargetOptions(), "sets": {}}
    own = [f"allocator settings of the program: {EXPANDABLE}"]
    assert said(over_catalogue(target, steps=1, **facts)) == own  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setenv(CUDA_CONF, OTHER)
        table = curve(
            program(tmp_path), device="nvidia-t4", name="batch_size", values=(1, 2), steps=1, **facts
        )  # type: ignore[arg-type]
        assert said(table) == [f"allocator settings of the environment: {OTHER}"]


def test_a_real_run_finds_what_its_file_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(program(tmp_path, sets(CUDA_CONF, EXPANDABLE)), None, None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_workload(job).own.variables == {CUDA_CONF: EXPANDABLE}
    assert os.environ[CUDA_CONF] == EXPANDABLE
    environment.put({CUDA_CONF: None})


def workspaces(folder: Path, *lines: str, **options: Any) -> tuple[int, list[str]]:
    target = program(folder, *lines)
    file = Path(target.removesuffix(":run"))
    file.write_text(
        file.read_text().replace(
            "step=lambda model, x: None", "step=lambda model, x: model(x[0, 0, 0, :1].float())"
        )
    )
    found = estimated(target, **options)
    return found.peak.allocated_bytes or 0, [
        t for t in found.assumptions if t.startswith(("CUBLAS", "TORCH"))
    ]


def test_workspaces_of_cublas_that_a_program_asks_for_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, _ = workspaces(tmp_path)
    default, wanted = 2 * 4096 * 1024 + 8 * 16 * 1024, 32 * MIB
    by_program = f"{environment.CUBLAS} of the program: :4096:8"
    assert workspaces(tmp_path, sets(environment.CUBLAS, ":4096:8")) == (
        usual - default + wanted,
        [by_program],
    )
    assert workspaces(tmp_path) == (usual, [])
    given = Stack(cublas_workspace_config=":16:8")
    assert workspaces(tmp_path, stack=given)[1] == []
    assert workspaces(tmp_path, sets(environment.CUBLAS, ":4096:8"), stack=given)[1] == [by_program]
    with monkeypatch.context() as patch:
        patch.setenv(environment.CUBLAS, ":4096:8")
        line = f"{environment.CUBLAS} of the environment: :4096:8"
        assert workspaces(tmp_path) == (usual - default + wanted, [line])
        assert workspaces(tmp_path, stack=given)[1] == []


def test_workspaces_of_cublaslt_that_a_program_asks_for_are_followed(tmp_path: Path) -> None:
    own = sets(environment.CUBLASLT_UNIFIED, "0"), sets(environment.CUBLASLT, "4096")
    assert workspaces(tmp_path, *own)[0] == workspaces(tmp_path)[0] + 4 * MIB
