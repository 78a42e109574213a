"""The command line: exit codes, what goes to stdout and what to stderr, and every bad input."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accounts import HELD, estimate, measurement

from memgauge.cli import checks, main
from memgauge.cli.documents import Check
from memgauge.errors import MissingError, WorkloadError
from memgauge.records import NEVER_BACKWARD, Fits
from memgauge.report.json import read_account, to_json
from memgauge.units import GIB, MIB

Capture = pytest.CaptureFixture[str]


def run_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, its output piped."""
    plain = {k: v for k, v in os.environ.items() if k not in ("GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS")}
    command = [sys.executable, "-m", "memgauge", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**plain, **environment}, check=False)


@pytest.fixture
def replace(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Put a function that returns or raises `answer` in the place of estimate or measure."""

    def put(name: str, answer: object, says: str = "") -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def stand_in(target: str, **options: Any) -> object:
            calls.append({"target": target, **options})
            if says:
                print(says)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        monkeypatch.setattr(importlib.import_module(f"memgauge.{name}"), name, stand_in)
        return calls

    return put


Replace = Callable[..., list[dict[str, Any]]]


def test_an_estimate_is_text_on_stdout_and_ends_with_zero(replace: Replace, capfd: Capture) -> None:
    replace("estimate", estimate())
    assert main(["estimate", "zoo:mlp"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("train.py:my_training on cpu: peak allocated 16.00 MiB")
    assert err == ""


def test_options_arrive_where_they_are_used(replace: Replace) -> None:
    calls = replace("estimate", estimate())
    options = (
        "--batch-size 64 --image-size 32 --sequence-length 128 --optimizer sgd,momentum=0.9 --precision "
        "bfloat16 --mode infer --checkpointing --steps 5 --device nvidia-t4 --set a=1 --set "
        "b=x=y --alloc-conf expandable_segments:True"
    )
    assert main(["estimate", "zoo:mlp", *options.split()]) == 0
    call = calls[0]
    assert (call["target"], call["device"], call["steps"]) == ("zoo:mlp", "nvidia-t4", 5)
    assert call["sets"] == {"a": "1", "b": "x=y"}
    assert call["allocator"].expandable_segments
    asked = call["options"]
    assert (asked.batch_size, asked.image_size, asked.sequence_length) == (64, 32, 128)
    assert (asked.optimizer, asked.precision, asked.mode) == ("sgd,momentum=0.9", "bfloat16", "infer")
    assert asked.checkpointing
    assert main(["estimate", "zoo:mlp", "--threads", "2"]) == 0
    assert calls[1]["threads"] == 2


def test_json_is_one_document_whatever_the_user_prints(replace: Replace, capfd: Capture) -> None:
    replace("estimate", estimate(), says="hello from the user's code")
    assert main(["estimate", "zoo:mlp", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["schema"] == "memgauge.estimate/1"
    assert err == "hello from the user's code\n"


def test_what_does_not_fit_ends_with_one(replace: Replace, capfd: Capture) -> None:
    replace("estimate", estimate(fits=Fits(verdict="no", capacity_bytes=GIB, free_bytes=-GIB)))
    assert main(["estimate", "zoo:mlp"]) == 1
    assert "fits: no" in " ".join(capfd.readouterr().out.split())


def test_out_saves_what_compare_reads(replace: Replace, tmp_path: Path, capfd: Capture) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    replace("estimate", estimate(held={**HELD, "temporary": MIB}, allocated_bytes=17 * MIB))
    replace("measure", measurement())
    assert main(["estimate", "zoo:mlp", "--out", str(a)]) == 0
    assert main(["measure", "zoo:mlp", "--out", str(b), "--json"]) == 0
    assert read_account(b).peak == measurement().peak
    assert f"saved to {a}" in capfd.readouterr().err
    assert main(["compare", str(a), str(b), "--json"]) == 0
    compared = json.loads(capfd.readouterr().out)
    assert compared["schema"] == "memgauge.compare/1"
    assert compared["categories"][0]["name"] == "temporary"


def test_a_measurement_is_told_its_progress(replace: Replace) -> None:
    calls = replace("measure", measurement())
    assert main(["measure", "zoo:mlp", "--threads", "1"]) == 0
    calls[0]["progress"]("a stage")
    assert calls[0]["threads"] == 1


def test_a_step_without_backward_is_a_warning_and_no_error(replace: Replace, capfd: Capture) -> None:
    replace("estimate", estimate(assumptions=(f"{NEVER_BACKWARD}: so",)))
    assert main(["estimate", "zoo:mlp"]) == 0
    assert f"memgauge: warning: {NEVER_BACKWARD}: so\n" in capfd.readouterr().err


@pytest.mark.parametrize("ended", ["killed by SIGKILL", "out of memory: RuntimeError: 4 TiB"])
def test_a_run_that_died_is_shown_and_ends_with_one(replace: Replace, capfd: Capture, ended: str) -> None:
    replace("measure", measurement(ended=ended))
    assert main(["measure", "zoo:mlp"]) == 1
    out, err = capfd.readouterr()
    assert "figures are what was seen until then" in out
    assert err == f"memgauge: the run did not complete: {ended}\n"


def test_an_error_of_many_lines_is_named_by_its_first_and_its_place(replace: Replace, capfd: Capture) -> None:
    ended = (
        '  File "train.py", line 7, in step\n    draw(x)\nValueError: no scale:\ntensor([1.,\n        2.])'
    )
    replace("measure", measurement(ended=ended))
    assert main(["measure", "zoo:mlp"]) == 2
    err = capfd.readouterr().err
    assert err == "memgauge: the run did not complete: ValueError: no scale: (train.py:7)\n"


def test_a_run_whose_code_raised_is_shown_and_ends_with_two(replace: Replace, capfd: Capture) -> None:
    replace("measure", measurement(ended="Traceback\nRuntimeError: boom"))
    assert main(["measure", "zoo:mlp"]) == 2
    out, err = capfd.readouterr()
    assert "figures are what was seen until then" in out
    assert err == "memgauge: the run did not complete: RuntimeError: boom\n"


def test_a_measurement_is_set_against_a_prediction_of_the_same_run(replace: Replace, capfd: Capture) -> None:
    calls = replace("estimate", estimate())
    replace("measure", measurement(threads=7, steps=4))
    assert main(["measure", "zoo:mlp", "--compare"]) == 0
    assert (calls[0]["threads"], calls[0]["steps"]) == (7, 4)
    out = capfd.readouterr().out
    assert out.index("measured: peak allocated") < out.index("Peak allocated is equal to the byte")
    assert main(["measure", "zoo:mlp", "--compare", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["schema"] == "memgauge.compare/1"


def test_compare_reads_one_side_from_stdin(tmp_path: Path) -> None:
    a = tmp_path / "a.json"
    a.write_text(to_json(estimate()))
    command = [sys.executable, "-m", "memgauge", "compare", str(a), "-"]
    done = subprocess.run(
        command, input=to_json(measurement()), capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert done.stdout.startswith("Peak allocated is equal to the byte")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["estimate", "zoo:mlp", "--device", "nvidia-t5"], "unknown device 'nvidia-t5' (nearest: nvidia-t4"),
        (
            ["estimate", "zoo:mlp", "--device", "RTX 3090 Super"],
            "unknown device 'RTX 3090 Super' (nearest: nvidia-rtx-3090, nvidia-rtx-3090-ti",
        ),
        (["estimate", "zoo:mlp", "--device", "nvidia-a100"], "could be nvidia-a100-40gb or nvidia-a100-80gb"),
        (["measure", "zoo:mlp", "--device", "gpu"], "unknown device 'gpu'"),
        (["measure", "zoo:mlp", "--device", "nvidia-t4"], "cannot be measured here"),
        (["estimate", "nonsense"], "'nonsense' is not a TARGET; it is zoo:NAME"),
        (["estimate", "mlp"], "did you mean zoo:mlp?"),
        (["measure", "train.py"], "'train.py' names no function"),
        (["estimate", "zoo:mlp", "--batch-size", "0"], "--batch-size 0: it must be at least 1"),
        (["estimate", "zoo:mlp", "--steps", "0"], "--steps 0: it must be at least 1"),
        (["measure", "zoo:mlp", "--steps", "-1"], "--steps -1: it must be at least 1"),
        (["estimate", "zoo:mlp", "--threads", "0"], "--threads 0: it must be at least 1"),
        (["estimate", "zoo:mlp", "--steps", "many"], "Invalid value for '--steps'"),
        (["monitor", "--pid", "abc"], "'abc'"),
        (["watch", "none.mg", "--wait", "nan"], "--wait nan is out of range"),
        (["watch", "none.mg", "--wait", "-1"], "--wait -1 is out of range"),
        (["estimate", "zoo:mlp", "--precision", "fp16"], "precision 'fp16' is unknown (nearest: float16"),
        (["estimate", "zoo:mlp", "--mode", "training"], "mode 'training' is unknown (nearest: train)"),
        (["estimate", "zoo:mlp", "--set", "width"], "--set width: write --set name=value"),
        (
            ["estimate", "zoo:mlp", "--batch-size", "8", "--set", "batch_size=9"],
            "--batch-size 8 and --set batch_size=9 both say batch_size",
        ),
        (["estimate", "zoo:mlp", "--layers", "some"], "--layers some: write a whole number, or all"),
        (["estimate", "zoo:mlp", "--out", "/nowhere/x.json"], "there is no directory /nowhere"),
        (["estimate", "zoo:mlp", "--out", "/"], "is a directory"),
        (
            ["estimate", "zoo:mlp", "--alloc-conf", "max_split:3"],
            "Unrecognized key 'max_split' in CUDA allocator config.",
        ),
        (["estimate", "zoo:mlp", "--alloc-conf", "backend:native"], "changes nothing on the CPU"),
        (["estimate", "zoo:mlp", "--device", "all", "--threads", "4"], "--threads changes nothing on a GPU"),
        (
            ["estimate", "zoo:mlp", "--device", "nvidia-t4", "--threads", "4"],
            "--threads changes nothing on a GPU",
        ),
        (["estimate", "zoo:mlp", "--bach-size", "3"], "No such option: --bach-size"),
        (["estimat", "zoo:mlp"], "No such command 'estimat'"),
        (["compare", "a.json"], "Missing argument 'B'"),
        (["compare", "-", "-"], "only one of A and B can be standard input"),
        (["compare", "nowhere.json", "nowhere.json"], "nowhere.json: there is no such file"),
    ],
)
def test_bad_input_is_named_and_ends_with_two(arguments: list[str], said: str, capfd: Capture) -> None:
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("memgauge: ")
    assert said in err
    assert "Traceback" not in err


def test_a_damaged_file_is_named_and_ends_with_two(tmp_path: Path, capfd: Capture) -> None:
    whole, cut = tmp_path / "whole.json", tmp_path / "cut.json"
    whole.write_text(to_json(estimate()))
    cut.write_text(to_json(estimate())[:300])
    assert main(["compare", str(whole), str(cut)]) == 2
    assert f"memgauge: {cut} is damaged, or not JSON" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (WorkloadError("train.py raised:\n  line 3"), 2, "memgauge: train.py raised:\n  line 3\n"),
        (MissingError('run: pip install "memgauge[torch]"'), 3, 'pip install "memgauge[torch]"'),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(0), 2, "memgauge: the workload called sys.exit(0)"),
        (ValueError("an [odd] one\nmore"), 70, "please report it (ValueError: an [odd] one)"),
        (AssertionError(), 70, "please report it (AssertionError)"),
    ],
)
def test_every_error_ends_at_one_boundary(
    error: BaseException, code: int, said: str, replace: Replace, capfd: Capture
) -> None:
    replace("estimate", error)
    assert main(["estimate", "zoo:mlp", "--json"]) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert said in err
    assert bool(err) == bool(said)
    assert "Traceback" not in err


def test_a_traceback_is_shown_when_asked_for(
    replace: Replace, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace("estimate", ValueError("odd"))
    monkeypatch.setenv("MEMGAUGE_DEBUG", "1")
    assert main(["estimate", "zoo:mlp"]) == 70
    assert "Traceback" in capfd.readouterr().err


def test_devices_are_listed(capfd: Capture) -> None:
    assert main(["devices"]) == 0
    table = capfd.readouterr().out
    assert "nvidia-a100-80gb" in table and max(map(len, table.splitlines())) <= 80 and "…" not in table
    assert main(["devices", "--json"]) == 0
    listed = json.loads(capfd.readouterr().out)
    assert listed["schema"] == "memgauge.devices/1"
    by_name = {d["name"]: d["capacity_bytes"] for d in listed["devices"]}
    assert (by_name["cpu"], by_name["nvidia-a100-80gb"]) == (None, 80 * GIB)


def _check(state: str, **facts: Any) -> Callable[[], Check]:
    def check() -> Check:
        return Check(name="a thing", state=state, detail="found", remedy="do this", **facts)

    return check


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([_check("ok", is_needed=True), _check("no")], 0),
        ([_check("no", is_needed=True), _check("ok")], 3),
    ],
    ids=["only optional things are missing", "a needed thing is missing"],
)
def test_the_doctor_ends_with_three_only_if_the_main_job_fails(
    found: list[Callable[[], Check]], code: int, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    monkeypatch.setattr(checks, "ALL", found)
    assert main(["doctor"]) == code
    assert "do this" in capfd.readouterr().out
    assert main(["doctor", "--json"]) == code
    told = json.loads(capfd.readouterr().out)
    assert (told["schema"], told["works"]) == ("memgauge.doctor/1", code == 0)
    assert told["versions"]["python"].startswith("3.")


@pytest.mark.parametrize(
    ("answer", "state", "remedy"),
    [
        ((0, '{"peak": {"allocated_bytes": 1024}}', ""), "ok", ""),
        ((1, '{"peak": {"allocated_bytes": null}}', "killed"), "no", "memgauge estimate zoo:mlp says why"),
        ((3, "", "torch is not installed; run: pip install torch"), "no", "pip install torch"),
        ((-11, "", ""), "no", "MEMGAUGE_DEBUG=1 memgauge estimate zoo:mlp shows more"),
    ],
    ids=["works", "died", "torch is missing", "crashed"],
)
def test_the_doctor_tries_a_prediction(
    answer: tuple[int, str, str], state: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "run_python", lambda *_: answer)
    check = checks.prediction()
    assert (check.state, check.remedy, check.is_needed) == (state, remedy, True)


@pytest.mark.parametrize(
    ("answer", "state", "detail"),
    [
        ((1, "", "ModuleNotFoundError: No module named 'torch'"), "no", "No module named 'torch'"),
        ((0, '{"built": null, "version": "2", "devices": [], "error": "x"}', ""), "no", "without CUDA"),
        ((0, '{"built": "13", "version": "2", "devices": [], "error": "no driver"}', ""), "no", "no driver"),
        (
            (0, '{"built": "13", "version": "2", "devices": [["T4", 1024]], "error": ""}', ""),
            "ok",
            "T4 (1.00 KiB)",
        ),
    ],
    ids=["no torch", "no CUDA build", "no driver", "works"],
)
def test_the_doctor_says_why_there_is_no_cuda(
    answer: tuple[int, str, str], state: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "run_python", lambda *_: answer)
    check = checks.cuda()
    assert check.state == state
    assert detail in check.detail
    assert bool(check.remedy) == (state == "no")


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ((0, '{"installed": false}', ""), "no"),
        ((0, '{"installed": true, "error": "Driver Not Loaded", "driver": "", "count": 0}', ""), "no"),
        ((0, '{"installed": true, "error": "", "driver": "580.1", "count": 2}', ""), "ok"),
        ((-6, "", "aborted"), "no"),
    ],
)
def test_the_doctor_says_why_there_is_no_nvml(
    answer: tuple[int, str, str], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "run_python", lambda *_: answer)
    assert checks.nvml().state == state


def test_the_lowest_limit_of_all_control_groups_counts(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/job/task"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:cpu:/x\n0::/job/task\n")
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text(f"{GIB}\n")
    (group.parent.parent / "memory.max").write_text(f"{2 * GIB}\n")
    assert min(checks.cgroup_limits(tmp_path)) == (GIB, str(group.parent / "memory.max"))


def test_strict_overcommit_is_a_limit(tmp_path: Path) -> None:
    setting = tmp_path / "overcommit_memory"
    setting.write_text("2\n")
    assert checks.overcommit(setting).state == "limited"
    setting.write_text("0\n")
    assert checks.overcommit(setting).state == "ok"
    assert checks.overcommit(tmp_path / "nowhere").state == "ok"


@pytest.mark.parametrize("command", [[], ["estimate"], ["measure"], ["compare"]])
def test_nothing_said_shows_help_and_ends_with_two(command: list[str], capfd: Capture) -> None:
    assert main(command) == 2
    out, err = capfd.readouterr()
    assert "Usage: memgauge" in out
    assert err == ""


@pytest.mark.parametrize(
    "command", ["estimate", "measure", "compare", "devices", "zoo", "reproduce", "doctor"]
)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_has_help_with_an_example(command: str, flag: str, capfd: Capture) -> None:
    assert main([command, flag]) == 0
    assert "Example: memgauge" in capfd.readouterr().out


def test_a_piped_process_writes_no_colour_and_ends_with_the_code(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(to_json(estimate()))
    for arguments in (["--version"], ["--help"], ["devices"], ["compare", str(file), str(file)]):
        done = run_process(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
        assert "\x1b" not in done.stdout
    done = run_process("compare", str(file), "nowhere.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "\x1b" not in done.stderr


def test_an_ascii_terminal_is_written_to_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(to_json(estimate(workload={"target": "modèle.py:f"})), encoding="utf-8")
    done = run_process("compare", str(file), str(file), PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "mod?le.py:f" in done.stdout


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = [sys.executable, "-m", "memgauge", "devices", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), said) == (141, b"")


# --- cards, values, the largest that fits


def test_devices_explains_one_with_sources(capfd: Capture) -> None:
    assert main(["devices", "nvidia-a100-40gb", "--torch", "2.6", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["schema"] == "memgauge.device/1"
    facts = {fact["what"]: fact for fact in said["facts"]}
    assert facts["cuBLAS workspace, each of two threads"]["bytes"]["expected"] == 8_519_680
    assert facts["usable"]["grade"] == "others" and "bottlerocket" in facts["usable"]["source"]
    assert facts["context"]["bytes"]["low"] < facts["context"]["bytes"]["high"]
    assert (said["cuda"], said["loads_modules"]) == ("12.4", "lazily")


@pytest.mark.parametrize("option", ["--html", "--out"])
def test_no_output_is_written_over_a_program(tmp_path: Path, capfd: Capture, option: str) -> None:
    program = tmp_path / "train.py"
    program.write_text("print()")
    assert main(["estimate", "zoo:mlp", option, str(program)]) == 2
    assert f"{option} {program} is a program, so it is not overwritten" in capfd.readouterr().err
    assert program.read_text() == "print()"


def test_a_card_that_runs_rocm_has_no_cuda(capfd: Capture) -> None:
    assert main(["devices", "amd-mi250", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["cuda"], said["loads_modules"]) == (None, None)


def test_devices_explains_one_in_words(capfd: Capture) -> None:
    assert main(["devices", "nvidia-t4"]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "turing" in out and "compute capability 7.5" in out and "torch-preflight" in out.replace(" ", "")


def test_an_estimate_for_a_card_has_a_range_a_verdict_and_its_reasons(capfd: Capture) -> None:
    assert main(["estimate", "zoo:mlp", "--device", "nvidia-t4", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    device = said["peak"]["device_bytes"]
    assert device["low"] < device["expected"] < device["high"]
    assert said["fits"]["verdict"] == "yes"
    assert said["fits"]["least_capacity_bytes"]["expected"] <= device["expected"]
    assert {part["source"] for part in said["uncertainty"]} == {"context", "workspaces", "placement"}
    assert any("NCCL" in line for line in said["unmodelled"])


def test_what_is_too_large_for_a_card_ends_with_one(capfd: Capture) -> None:
    arguments = ("estimate", "zoo:vgg16", "--device", "nvidia-rtx-4060", "--batch-size", "512", "--json")
    assert main(list(arguments)) == 1
    said = json.loads(capfd.readouterr().out)
    assert said["fits"]["verdict"] == "no" and said["fits"]["free_bytes"] < 0


def test_a_described_card_is_a_device(tmp_path: Path, capfd: Capture) -> None:
    card = tmp_path / "card.toml"
    card.write_text('[[device]]\nname = "tiny"\ncapacity_bytes = 300_000_000\ncompute_capability = [8, 6]\n')
    assert main(["estimate", "zoo:mlp", "--device", str(card), "--json"]) in (0, 1)
    assert json.loads(capfd.readouterr().out)["device"]["name"] == "tiny"


def test_the_workspace_of_cublaslt_can_be_given(capfd: Capture) -> None:
    def allocated(*more: str) -> int:
        assert main(["estimate", "zoo:mlp", "--device", "nvidia-t4", "--json", *more]) == 0
        return int(json.loads(capfd.readouterr().out)["peak"]["allocated_bytes"])

    shared = allocated()
    own = allocated("--no-cublaslt-unified", "--cublaslt-workspace", "65536")
    assert own == shared + 64 * 2**20
    assert allocated("--cublaslt-workspace", "65536", "--cublaslt-unified") == shared


def test_the_whole_catalogue_in_one_table(capfd: Capture) -> None:
    assert main(["estimate", "zoo:mlp", "--device", "all", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["schema"] == "memgauge.catalogue/1" and len(said["rows"]) >= 85
    assert [line.partition(":")[0] for line in said["left_out"]] == [
        "nvidia-k80"
    ]  # no torch of today has kernels for it
    assert main(["estimate", "zoo:mlp", "--device", "all"]) == 0
    table = capfd.readouterr().out
    assert "\nh200 " in table and "\nrtx-4070-ti-super " in table
    assert max(map(len, table.splitlines())) <= 80 and "…" not in table


def test_cards_without_kernels_are_left_out_of_the_table_and_said(capfd: Capture) -> None:
    assert main(["estimate", "zoo:mlp", "--device", "all", "--torch", "2.6", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    left_out = {line.partition(":")[0] for line in said["left_out"]}
    blackwell = {"b200", "b300", "gb200", "rtx-pro-6000"}
    blackwell |= {f"rtx-50{rest}" for rest in ("60-ti-8gb", "60-ti-16gb", "70", "70-ti", "80", "90", "90-d")}
    assert left_out == {f"nvidia-{name}" for name in blackwell}
    assert not left_out & {row["device"] for row in said["rows"]}
    assert main(["estimate", "zoo:mlp", "--device", "all", "--torch", "2.6"]) == 0
    assert "left out: nvidia-b200" in capfd.readouterr().out
    assert main(["devices", "--torch", "2.6"]) == 0
    assert capfd.readouterr().out.count("no kernels") == len(blackwell)


def test_values_of_an_argument_in_one_table(capfd: Capture) -> None:
    arguments = ["estimate", "zoo:torres-cnn", "--device", "nvidia-t4", "--vary", "batch_size=16,32"]
    assert main([*arguments, "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert [row["value"] for row in said["rows"]] == [16, 32]
    assert main(arguments) == 0
    assert "affine in it:" in capfd.readouterr().out
    assert main([*arguments[:-1], "batch_size=4,16,32"]) == 0
    assert "affine in it from 8 on: traced 4, 8, 16, 32, 40, " in capfd.readouterr().out


def test_fit_says_surely_and_probably(capfd: Capture) -> None:
    assert main(["fit", "zoo:torres-cnn", "--device", "nvidia-rtx-4060", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["schema"] == "memgauge.fit/1"
    assert 1 <= said["surely"] <= said["probably"]


@pytest.mark.parametrize(
    "many",
    ["--device all --set widths=784,400000,400000,10", "--device nvidia-t4 --vary batch_size=99999999"],
)
def test_a_table_in_which_nothing_fits_says_so_by_its_exit_code(many: str, capfd: Capture) -> None:
    assert main(["estimate", "zoo:mlp", "--json", *many.split()]) == 1
    assert {row["fits"]["verdict"] for row in json.loads(capfd.readouterr().out)["rows"]} == {"no"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("estimate zoo:mlp --device nvidia-t5", "nvidia-t4"),
        ("estimate zoo:mlp --device all --method both", "--method trace"),
        ("estimate zoo:mlp --device all --vary batch_size=8", "one --device"),
        ("estimate zoo:mlp --cudnn benchmark", "change nothing on the CPU"),
        ("estimate zoo:mlp --device nvidia-t4 --cudnn off,benchmark", "cuDNN is off"),
        ("estimate zoo:mlp --device nvidia-t4 --cudnn benchmark,no-benchmark", "contradicts"),
        ("estimate zoo:mlp --device nvidia-t4 --cudnn fast", "'fast'"),
        ("estimate zoo:mlp --device nvidia-t4 --torch two", "'two'"),
        ("estimate zoo:mlp --device nvidia-rtx-5090 --cuda 11.8", "CUDA 11.8"),
        ("estimate zoo:mlp --device nvidia-b200 --torch 1.9 --method both", "torch 1.9"),
        ("estimate zoo:mlp --device nvidia-b200 --torch 1.9 --vary batch_size=8,16", "torch 1.9"),
        ("fit zoo:mlp --device nvidia-b200 --torch 1.9", "torch 1.9"),
        ("devices nvidia-b200 --torch 1.9", "torch 1.9"),
        ("estimate zoo:mlp --device nvidia-t4 --torch 2.6 --cuda 10.2", "CUDA 10.2"),
        ("estimate zoo:mlp --device all --torch 2.6 --cuda 10.2", "CUDA 10.2"),
        ("estimate zoo:mlp --device amd-mi250 --torch 2.6 --cuda 12.4", "amd-mi250 runs ROCm"),
        ("estimate zoo:mlp --device nvidia-h100-80gb --torch 1.13", "write --torch 2.0 or newer"),
        ("estimate zoo:mlp --device nvidia-t4 --torch 1.13 --cuda 11.8", "never released with CUDA 11.8"),
        ("fit zoo:mlp --device amd-mi250 --torch 2.6 --cuda 12.4", "amd-mi250 runs ROCm"),
        ("estimate zoo:mlp --device nvidia-t4 --torch 1.4", "--torch 1.4: the oldest that is known is 1.7"),
        ("devices nvidia-t4 --torch 1.7 --cuda 9.2", "--cuda 9.2: the oldest that is known is 10.1"),
        ("estimate zoo:mlp --device nvidia-t4 --cublas-workspace 4096", ":SIZE:COUNT"),
        ("estimate zoo:mlp --device nvidia-t4 --cublaslt-workspace=-1", "--cublaslt-workspace -1"),
        ("fit zoo:mlp --device nvidia-t4 --cublaslt-workspace much", "--cublaslt-workspace much"),
        (
            "fit zoo:mlp --device nvidia-t4 --cublaslt-workspace 9999999999",
            "CUBLASLT_WORKSPACE_SIZE 9999999999",
        ),
        ("estimate zoo:mlp --no-cublaslt-unified", "change nothing on the CPU"),
        ("estimate zoo:mlp --device nvidia-t4 --alloc-conf max_split_size_mb:1", "max_split_size_mb:1"),
        ("estimate zoo:mlp --device cpu --vary batch_size=8", "--device cpu"),
        ("estimate zoo:mlp --device nvidia-t4 --vary batch_size=x", "'x'"),
        ("fit zoo:mlp --device cuda", "--device cuda"),
        ("fit zoo:mlp --device nvidia-t4 --batch-size 8", "both given and varied"),
        ("fit zoo:mlp --device nvidia-t4 --vary batch_size=8", "name one argument"),
        ("fit zoo:mlp --device nvidia-t4 --vary precision", "--vary precision: that is no whole number"),
        ("estimate zoo:mlp --device nvidia-t4 --vary mode=1,2", "--vary mode: that is no whole number"),
        ("fit zoo:mlp --device all", "memgauge estimate zoo:mlp --device all"),
    ],
)
def test_bad_input_about_cards_is_named(arguments: str, said: str, capfd: Capture) -> None:
    assert main(arguments.split()) == 2
    captured = capfd.readouterr()
    assert said in captured.err and "Traceback" not in captured.err and captured.out == ""


def test_versions_newer_than_any_that_is_known_are_said(capfd: Capture) -> None:
    def assumed(versions: str) -> list[str]:
        arguments = f"estimate zoo:mlp --device nvidia-t4 --json {versions}"
        assert main(arguments.split()) == 0
        captured = capfd.readouterr()
        found = [t for t in json.loads(captured.out)["assumptions"] if "is newer than" in t]
        assert all(f"warning: {text}" in captured.err for text in found)  # tables show no assumptions
        return found

    torch, cuda = assumed("--torch 9.9 --cuda 14.0")
    assert "torch 9.9 is newer than 2.13" in torch and "CUDA 14.0 is newer than 13.0" in cuda
    assert not assumed("--torch 2.13 --cuda 13.0")


@pytest.mark.parametrize(
    "command",
    ["estimate", "fit --device nvidia-t4 --vary width", "measure"],
    ids=["estimate", "fit", "measure"],
)
def test_the_users_own_arguments_are_not_those_of_memgauge(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        """
import argparse, sys
import torch
from memgauge import Workload

def asked():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    assert sys.argv[0].endswith("train.py")
    return parser.parse_args().lr

asked()

def training(width: int = 2):
    asked()
    def build():
        asked()
        return torch.nn.Linear(2, width)
    def step(model, x):
        asked()
        model(x).sum().backward()
    return Workload(build=build, batch=lambda: torch.zeros(len([asked()]), 2), step=step)
"""
    )
    verb, *rest = command.split()
    arguments = [verb, f"{file}:training", *rest, "--steps", "1", "--json"]
    monkeypatch.setattr(sys, "argv", ["memgauge", *arguments])
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = sys.argv
    assert main() == 0, capfd.readouterr().err
    assert sys.argv is before


def test_what_the_users_code_warns_of_is_shown_once_however_often_it_is_traced(tmp_path: Path) -> None:
    (tmp_path / "warns.py").write_text(
        "import warnings, torch, memgauge\n"
        "def run(batch_size: int = 8):\n"
        "    def build():\n"
        "        warnings.warn('of old age')\n"
        "        return torch.nn.Linear(4, 4)\n"
        "    batch = lambda: torch.zeros(batch_size, 4)\n"
        "    step = lambda model, x: model(x).sum().backward()\n"
        "    return memgauge.Workload(build=build, batch=batch, step=step)\n"
    )
    once = run_process(
        "estimate", f"{tmp_path}/warns.py:run", "--device", "nvidia-t4", "--vary", "batch_size=1,3,5"
    )
    assert once.returncode == 0
    assert once.stderr.count("UserWarning: of old age") == 1
