"""The accuracy benchmark's own arithmetic: halves, damaged rows, figures, resuming."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.accuracy import figures, sets
from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.cases import Case, family_of, half_of
from benchmarks.accuracy.report import write
from benchmarks.accuracy.run import predict, rows_of, run
from memgauge.errors import UsageError
from memgauge.records import Range
from memgauge.units import MIB

TIMM = "model,batch_size,measured_device_mib,faketensor_mib\n"


def folder(tmp_path: Path, name: str, text: str) -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path


def test_a_family_is_never_in_both_halves() -> None:
    assert family_of("resnetv2_50x1_bit") == "resnetv"
    assert family_of("vit_base_patch16_224") == family_of("vit_tiny_patch16_224") == "vit"
    assert family_of("EleutherAI/gpt-neo-125M") == "gpt"
    assert {half_of(name) for name in ("vit", "swin", "resnetv", "pvt", "vgg", "cs")} == {"build", "report"}
    assert half_of("vit") == half_of("vit")


def test_a_row_that_contradicts_its_models_others_is_marked(tmp_path: Path) -> None:
    rows = (
        TIMM + "".join(f"resnet18,{b},{1000 + 50 * b},1\n" for b in (8, 16, 32, 64)) + "resnet18,128,2000,1\n"
    )
    cases = sets.read("timm", folder(tmp_path, "timm_a100_40gb.csv", rows), sets.Skipped())
    assert [case.facts["batch_size"] for case in cases if case.damaged] == [128]
    assert len(cases) == 5


def test_a_row_below_its_own_tensors_is_marked(tmp_path: Path) -> None:
    rows = TIMM + "vit,8,2800,1100\nvit,16,2810,2200\nvit,32,2820,4400\n"
    cases = sets.read("timm", folder(tmp_path, "timm_a100_40gb.csv", rows), sets.Skipped())
    assert [case.facts["batch_size"] for case in cases if case.damaged] == [32]


def test_unreadable_rows_are_named_and_skipped(tmp_path: Path) -> None:
    rows = TIMM + "resnet18,8,1400,1\nresnet18,sixteen,1800,1\nresnet18,32,-5,1\nresnet18,32,inf,1\n"
    rows += f"resnet18,32\n{'x' * 200_000},32,1,1\nresnet18,64,nan,1\nresnet18,16,1500,1\n"
    skipped = sets.Skipped()
    read = sets.read("timm", folder(tmp_path, "timm_a100_40gb.csv", rows), skipped)
    assert [case.facts["batch_size"] for case in read] == [8, 16]
    assert [line.split(":")[1] for line in skipped] == [
        "3",
        "4",
        "5",
        "6",
        "6",
        "8",
    ]  # unread itself, 7 counts for 6
    assert "sixteen" in skipped[0]


def test_a_set_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"timm_a100_40gb.csv is missing"):
        sets.read("timm", tmp_path, sets.Skipped())
    with pytest.raises(UsageError, match="'tim'"):
        sets.read("tim", tmp_path, sets.Skipped())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "--out", "{empty}"], "holds no results"),
        (["run", "--out", "{file}", "--path", "{empty}"], "is a file"),
        (["run", "--out", "{empty}", "--path", "{empty}"], "timm_a100_40gb.csv is missing"),
        (["run", "--out", "{empty}", "--path", "{empty}", "--jobs", "0"], "--jobs 0"),
        (["run", "--out", "{empty}"], "needs --path"),
    ],
)
def test_wrong_input_is_named(
    tmp_path: Path,
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    places = {name: str(tmp_path / name) for name in ("file", "empty")}
    monkeypatch.setattr("sys.argv", ["accuracy", *(text.format(**places) for text in arguments)])
    try:
        code = main()
    except SystemExit as stopped:
        code = stopped.code  # type: ignore[assignment]
    assert code == 2 and said in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()


def test_figures_of_errors() -> None:
    said = figures.errors([(90, 100), (110, 100), (130, 100), (100, 100)])
    assert said["n"] == 4 and said["worst"] == pytest.approx(30)
    assert said["median"] == pytest.approx(10) and said["p90"] == pytest.approx(30)
    assert said["under"] == 25 and said["failed"] == 25


def test_figures_of_ranges() -> None:
    ranges = [(Range(low=90, expected=100, high=110), m) for m in (95, 105, 120, 100)]
    said = figures.coverage(ranges, ["a", "a", "b", "a"])
    assert said["inside"] == 75 and said["width"] == pytest.approx(20)
    assert said["alike"] == 50  # all of one family, none of the other
    assert said["interval"][0] < 75 < said["interval"][1]
    assert said["score"] > 100 * 20 / 100  # one miss of 10 costs 40 times as much


def test_wilsons_interval() -> None:
    low, high = figures.binomial(95, 100)
    assert (round(low, 3), round(high, 3)) == (0.888, 0.978)


def test_verdicts_count_both_sides_and_the_uncertain_apart() -> None:
    said = figures.verdicts(
        [("yes", True)] * 8 + [("no", False)] + [("yes", False)] + [("uncertain", True)] * 2
    )
    assert said["uncertain"] == pytest.approx(100 * 2 / 12)
    assert said["balanced"] == pytest.approx(75)


def test_results_are_resumed_and_reported(tmp_path: Path) -> None:
    rows = "id,layers,batch_size,measured_device_mib\n"
    for batch in (32, 64):
        layers = "[('linear', 64, 2112), ('ReLU', 64, 0), ('linear', 8, 520)]"
        rows += f'input:32_output:8_depth:1_arch:x_batch:{batch},"{layers}",{batch},1430\n'
    cases = sets.read("mlp", folder(tmp_path, "mlp_a100_40gb.csv", rows), sets.Skipped())
    said = predict(cases[0])
    assert said["reserved"] >= said["allocated"] > 2 * 8_519_680
    assert said["ablations"]["no cuBLAS workspace"] < said["reserved"]
    out = tmp_path / "mlp.jsonl"
    run(cases[:1], out, jobs=1)
    first = out.read_text()
    out.write_text(first + '{"key": "cut o')  # as a kill leaves it
    run(cases, out, jobs=1)
    assert {row["key"] for row in rows_of(out)} == {case.key for case in cases}
    write(tmp_path, tmp_path / "docs")
    page = (tmp_path / "docs" / "accuracy.md").read_text()
    assert "MLPs, A100-40GB" in page and "| everything |" in page
    assert (tmp_path / "docs" / "accuracy.svg").read_text().startswith("<svg")


def test_the_constant_is_from_the_build_halfs_undamaged_rows() -> None:
    def row(half: str, measured: int, damaged: str = "") -> dict[str, object]:
        return {
            "half": half,
            "damaged": damaged,
            "measured": {"device": measured * MIB},
            "reserved": 100 * MIB,
        }

    rows = [
        row("build", 1100),
        row("build", 1200),
        row("build", 1300),
        row("report", 9),
        row("build", 9, "x"),
    ]
    assert figures.constant(json.loads(json.dumps(rows))) == 1100 * MIB


def test_a_case_that_fails_without_a_word_is_a_result_and_can_be_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(case: Case) -> None:
        raise AssertionError

    monkeypatch.setattr("benchmarks.accuracy.run.predict", silent)
    rows = TIMM + "resnet18,8,1400,1\n"
    cases = sets.read("timm", folder(tmp_path, "timm_a100_40gb.csv", rows), sets.Skipped())
    out = tmp_path / "timm.jsonl"
    run(cases, out, jobs=1)
    assert [row["error"] for row in rows_of(out)] == ["AssertionError: "]
    write(tmp_path, tmp_path / "docs")
    assert "1 could not be estimated" in (tmp_path / "docs" / "accuracy.md").read_text()
