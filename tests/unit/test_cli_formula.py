"""`estimate --method` and `zoo` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memgauge.cli import main

torch = pytest.importorskip("torch")

Capture = pytest.CaptureFixture[str]

FILE = """
import torch
from torch import nn
import memgauge


def training(batch_size: int = 4):
    def build():
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 5))
        return model, torch.optim.RMSprop(model.parameters(), momentum=0.9)

    def step(model, optimizer, x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return memgauge.Workload(build=build, batch=lambda: torch.randn(batch_size, 3, 14, 14), step=step)


def function():
    def step(weight, x):
        (x @ weight).sum().backward()

    return memgauge.Workload(
        build=lambda: torch.randn(3, 2, requires_grad=True), batch=lambda: torch.randn(4, 3), step=step
    )
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(FILE)
    return path


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def test_the_formula_of_a_users_file_is_a_table(file: Path, capfd: Capture) -> None:
    assert main(["estimate", f"{file}:training", "--method", "formula", "--set", "batch_size=2"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "8 × (3 × 3 × 3) + 8" in out
    assert "5 × 288 + 5" in out
    assert "momentum_buffer" in out
    assert "torch/optim/rmsprop.py" in out
    assert "two largest consecutive feature maps (0 and 1)" in out


def test_the_formula_as_json_adds_up(file: Path, capfd: Capture) -> None:
    assert main(["estimate", f"{file}:training", "--method", "formula", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["schema"] == "memgauge.formula/1"
    training = told["training"]
    parts = [value for key, value in training.items() if key != "total_bytes"]
    assert sum(parts) == training["total_bytes"]
    assert sum(row["parameters"] for row in told["layers"]) == told["parameters"] == 224 + 1445
    assert sum(row["feature_map_bytes"] for row in told["layers"]) == training["activation_bytes"]
    assert sum(row["state_bytes"] for row in told["optimizer_state"]) == training["optimizer_state_bytes"]


def test_both_are_one_document_whose_gap_adds_up(file: Path, tmp_path: Path, capfd: Capture) -> None:
    out = tmp_path / "both.json"
    assert main(["estimate", f"{file}:training", "--method", "both", "--json", "--out", str(out)]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["schema"] == "memgauge.formula-and-trace/1"
    assert (told["formula"]["schema"], told["trace"]["schema"]) == (
        "memgauge.formula/1",
        "memgauge.estimate/1",
    )
    assert sum(item["gap_bytes"] for item in told["gap"]) == told["difference_bytes"]
    assert told["difference_bytes"] == told["trace_bytes"] - told["formula_bytes"]
    assert told["trace_bytes"] == told["trace"]["peak"]["allocated_bytes"]
    assert json.loads(out.read_text()) == told


def test_both_say_what_the_formula_misses(capfd: Capture) -> None:
    assert main(["estimate", "zoo:vgg16", "--method", "both", "--layers", "0"]) == 0
    out = capfd.readouterr().out
    for words in (
        "in-place results counted twice",
        "indices of pooling",
        "trace − formula",
        "by hand: training",
    ):
        assert words in out


def test_layers_can_be_limited(capfd: Capture) -> None:
    assert main(["estimate", "zoo:vgg16", "--method", "formula", "--layers", "3", "--mode", "infer"]) == 0
    out = capfd.readouterr().out
    assert "Layers (3 of 39)" in out
    assert "features.0.2" in out and "features.0.3" not in out
    assert "Training, by hand" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--method", "formulas"],
            "--method 'formulas' is unknown (nearest: formula); it is trace, formula or both",
        ),
        (
            ["--method", "formula", "--precision", "flaot64"],
            "precision 'flaot64' is unknown (nearest: float64",
        ),
        (["--method", "both", "--precision", "float8_e4m3fn"], "precision 'float8_e4m3fn' is unknown"),
        (
            ["--method", "formula", "--optimizer", "adagard"],
            "optimizer 'adagard' is unknown (nearest: adagrad",
        ),
        (["--method", "formula", "--optimizer", "muon,momentun=1"], "optimizer 'muon' takes no momentun"),
        (
            ["--method", "formula", "--device", "nvidia-t4", "--alloc-conf", "expandable_segments:True"],
            "--alloc-conf changes nothing with --method formula",
        ),
        (
            ["--method", "formula", "--device", "nvidia-t4", "--torch", "2.1"],
            "--torch, --cuda, …) changes nothing with --method formula",
        ),
    ],
)
def test_bad_input_is_named_and_ends_with_two(arguments: list[str], said: str, capfd: Capture) -> None:
    assert main(["estimate", "zoo:mlp", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert said in err


@pytest.mark.parametrize("method", ["formula", "both"])
def test_what_has_no_layer_table_is_offered_the_trace(method: str, file: Path, capfd: Capture) -> None:
    assert main(["estimate", f"{file}:function", "--method", method]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "there is no layer table to calculate with" in err
    assert "--method trace" in err
    assert main(["estimate", f"{file}:function", "--method", "trace"]) == 0


def test_the_zoo_is_listed_with_parameters_and_peak(capfd: Capture) -> None:
    assert main(["zoo", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["schema"] == "memgauge.zoo/1"
    assert len(told["targets"]) == len(told["networks"]) == 12
    found = {n["target"]: n for n in told["networks"]}
    assert found["zoo:gpt2"]["parameters"] == 124_439_808
    assert found["zoo:llama-70b"]["parameters"] == 70_553_706_496
    assert found["zoo:dcgan"]["parameters"] == 3_576_704 + 2_765_568
    assert found["zoo:torres-cnn"]["arguments"]["image_size"] == 32
    assert all(n["peak_allocated_bytes"] > 4 * n["parameters"] for n in told["networks"])


def test_the_zoo_as_text_has_a_line_for_each(monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    from memgauge.cli.output import show
    from memgauge.formula.records import ZooNetwork
    from memgauge.report.zoo import zoo_view

    network = ZooNetwork(
        target="zoo:mlp",
        description="A network.",
        arguments={"batch_size": 3, "optimizer": "adam", "widths": "3,3", "classes": 2},
        parameters=1234,
        peak_allocated_bytes=2048,
        training_by_hand_bytes=1024,
    )
    monkeypatch.setenv("COLUMNS", "120")
    show(zoo_view([network], "cpu"))
    words = " ".join(capfd.readouterr().out.split())
    assert "zoo:mlp 1,234 2.00 KiB 1.00 KiB A network. (batch size 3; --set widths, classes)" in words


@pytest.mark.parametrize("argument", ["layers=-1", "width=0", "dropout=1.5"])
def test_a_zoo_argument_out_of_range_ends_with_two(argument: str, capfd: Capture) -> None:
    assert main(["estimate", "zoo:gpt2", "--set", argument]) == 2
    name, _, value = argument.partition("=")
    assert f"{name} is {value}; it must be " in capfd.readouterr().err


def test_both_end_with_one_if_it_does_not_fit(capfd: Capture) -> None:
    command = ["estimate", "zoo:llama-8b", "--method", "both", "--device", "nvidia-t4", "--layers", "0"]
    assert main(command) == 1
    assert "fits by the trace: no" in capfd.readouterr().out
    assert main([*command[:3], "formula", *command[4:]]) == 0


def test_amounts_stay_whole_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["estimate", "zoo:gpt2", "--method", "formula", "--set", "layers=1"]) == 0
    out = capfd.readouterr().out
    assert "38,597,376" in out and "24.00 MiB" in out and "…" not in out.split("Training, by hand")[0]
