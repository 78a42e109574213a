"""Every number of the four texts is there, beside ours, and ours is right."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path

import pytest

from memgauge.cli import main
from memgauge.errors import UsageError
from memgauge.reproduce import NAMES, reproduce
from memgauge.reproduce.architectures import alexnet_2012_parameters
from memgauge.reproduce.denneman import vgg16_maps
from memgauge.reproduce.mahendran import EXPERIMENTS, rank_correlation
from memgauge.reproduce.records import (
    GB,
    MB,
    MB_BINARY,
    MB_MIXED,
    PARAMETERS,
    Claim,
    Reproduction,
    Reproductions,
    Table,
    claim,
)
from memgauge.units import MIB

torch = pytest.importorskip("torch")

Capture = pytest.CaptureFixture[str]
PAGE = Path(__file__).parents[2] / "docs" / "reproductions.md"
EQUAL, CUT, DIFFERS = "equal", "equal, cut off", "differs"


@cache
def text(name: str) -> Reproduction:
    return reproduce(name)


def claims(name: str) -> list[Claim]:
    return [c for section in text(name).sections for c in section.claims]


def table(name: str, title: str) -> Table:
    found = next(s.table for s in text(name).sections if s.title.startswith(title))
    assert found is not None
    return found


# Text, number as printed, ours exactly, verdict.
NUMBERS = [
    ("question-and-answers", "9,000", 180 * 50, EQUAL),
    ("question-and-answers", "2.03 MB", 532_752 * 4, EQUAL),
    ("question-and-answers", "218.27 MB", 19_072_984 * 12, EQUAL),
    ("question-and-answers", "4.39 MB", 128 * 9000 * 4, EQUAL),
    ("question-and-answers", "224.69 MB", 532_752 * 4 + 19_072_984 * 12 + 128 * 9000 * 4, CUT),
    ("question-and-answers", "260.13 MB", 532_752 * 128 * 4, EQUAL),
    ("question-and-answers", "4.06 MB", 532_752 * 8, EQUAL),
    ("question-and-answers", "742.34 MB", 532_752 * 8 * 128 + 19_072_984 * 12 + 128 * 9000 * 4, DIFFERS),
    ("question-and-answers", "3 ×", 3, EQUAL),
    ("question-and-answers", "3 ×", 4, DIFFERS),
    ("question-and-answers", "532,752", 532_752, EQUAL),
    ("question-and-answers", "19,072,984", 19_072_984, EQUAL),
    ("denneman", "265 MB", 7680 * 4320 * 8, EQUAL),
    ("denneman", "8 GB", 32 * 7680 * 4320 * 8, EQUAL),
    ("denneman", "896 MB", 896_000_000, EQUAL),
    ("denneman", "19 KB", 224 * 224 * 3 // 8, EQUAL),
    ("denneman", "602 KB", 32 * 224 * 224 * 3 // 8, EQUAL),
    ("denneman", "1,728", 1728, EQUAL),
    ("denneman", "1,792", 1792, EQUAL),
    ("denneman", "7 KB", 7168, EQUAL),
    ("denneman", "36,864", 36_864, EQUAL),
    ("denneman", "36,928", 36_928, EQUAL),
    ("denneman", "147 KB", 147_712, CUT),
    ("denneman", "25,088", 25_088, EQUAL),
    ("denneman", "13", 13, EQUAL),
    ("denneman", "5", 5, EQUAL),
    ("denneman", "3", 3, EQUAL),
    ("denneman", "21", 21, EQUAL),
    ("denneman", "16", 16, EQUAL),
    ("denneman", "540 MB", 553_430_176, EQUAL),
    ("denneman", "700 GB", 700 * 10**9, EQUAL),
    ("denneman", "61 million", 61_100_840, EQUAL),
    ("denneman", "21", 57, DIFFERS),
    ("denneman", "40 million", 6_624_904, DIFFERS),
    ("denneman", "49", 53, DIFFERS),
    ("denneman", "50 million", 25_557_032, DIFFERS),
    ("denneman", "138 million", 138_357_544, EQUAL),
    ("denneman", "102,760,448", 102_760_448, EQUAL),
    ("denneman", "401.40 MB", 411_041_792, CUT),
    ("denneman", "1.88 GB", 1_929_969_664, EQUAL),
    ("denneman", "9.6 GB", 9_969_745_920, DIFFERS),
    ("denneman", "307.2 GB", 32 * 9_969_745_920, DIFFERS),
    ("denneman", "2 ×", 2, EQUAL),
    ("denneman", "3 ×", 4, DIFFERS),
    ("mahendran", "601.51 MB", 0, DIFFERS),
    ("torres", "703 MB", 60_000 * 32 * 32 * 3 * 4, EQUAL),
    ("torres", "6,867 MB", 600_000 * 32 * 32 * 3 * 4, DIFFERS),
    ("torres", "6,867 MB", 600_000 * 32 * 32 * 3 * 4 + 600_000, EQUAL),
    ("torres", "25,437 MB", 4 * 540_000 * 12_288, DIFFERS),
    ("torres", "25,402 MB", 4 * 540_000 * 12_288, DIFFERS),
    ("torres", "12,690 MB", 2 * 540_000 * 12_288, DIFFERS),
    ("torres", "12,689 MB", 2 * 540_000 * 12_288, DIFFERS),
    ("torres", "11743 MB", 12 * 1024 * MIB, DIFFERS),
    ("torres", "15621 MB", 16 * 1024 * MIB, DIFFERS),
]


@pytest.mark.parametrize(("name", "printed", "exact", "verdict"), NUMBERS)
def test_a_number_of_the_text_is_beside_ours(name: str, printed: str, exact: int, verdict: str) -> None:
    found = [c for c in claims(name) if c.theirs == printed and c.exact == exact]
    assert found
    assert {c.verdict for c in found} == {verdict}


@pytest.mark.parametrize("name", NAMES)
def test_every_difference_has_a_reason(name: str) -> None:
    for found in claims(name):
        if found.verdict != EQUAL:
            assert len(found.why) > 12 or found.verdict == "ours only", found.what


@pytest.mark.parametrize(
    "printed", ["497", "849", "2749", "3256", "15439", "15945", "4446", "4880", "29883", "30282"]
)
def test_every_maximum_of_torres_is_there(printed: str) -> None:
    assert any(c.theirs == f"{printed} MB" for c in claims("torres"))


# -- question and answers ----------------------------------------------------------------------------


def test_the_answers_formula_is_that_of_a_real_network_of_that_size() -> None:
    labels = 128 * 8
    formula = next(c for c in claims("question-and-answers") if c.what.endswith("by formula"))
    assert formula.exact == 532_752 * 8 * 128 + 19_072_984 * 12 + 128 * 9000 * 4 + labels


def test_the_gap_of_that_network_is_itemised() -> None:
    rows = table("question-and-answers", "Where formula and trace differ").rows
    *items, total = rows
    assert sum(row[2] for row in items if isinstance(row[2], int)) == total[2]
    assert any("indices of pooling" in row for row in items)


# -- Denneman ----------------------------------------------------------------------------------------


def test_the_table_of_vgg16_is_read_off_a_real_one() -> None:
    rows = table("denneman", "VGG-16 layer by layer").rows
    assert len(rows) == 13 + 5 + 3 + 1
    assert rows[0] == ("Conv2d", "64×224×224", "64 × (3 × 3 × 3) + 64", 1792, 7168, 411_041_792)
    assert rows[-1][3:] == (138_357_544, 553_430_176, 1_931_146_240)
    assert sum(vgg16_maps(224, 224)) * 32 * 4 == 1_929_969_664


def test_architectures_are_counted_on_real_definitions() -> None:
    rows = {row[0]: row[1:4] for row in table("denneman", "The table of architectures").rows}
    assert rows["GoogLeNet"] == (57, 1, 6_624_904)
    assert rows["GoogLeNet with auxiliary classifiers"] == (59, 5, 13_004_888)
    assert rows["ResNet-50"] == (53, 1, 25_557_032)
    assert rows["AlexNet (2012, two halves)"] == (5, 3, 60_965_224)
    assert alexnet_2012_parameters() == 60_965_224


def test_training_takes_more_than_inference_by_both_methods() -> None:
    rows = {row[0]: row[1:] for row in table("denneman", "Training against inference").rows}
    for column in (0, 1):
        assert rows["training, Adam, batch 32"][column] > rows["training, SGD, batch 32"][column]  # type: ignore[operator]
        assert rows["training, SGD, batch 32"][column] > rows["inference, batch 32"][column]  # type: ignore[operator]
        assert rows["inference, batch 32"][column] > rows["inference, batch 1"][column]  # type: ignore[operator]
    two_maps = 2 * 224 * 224 * 64 * 4
    assert rows["inference, batch 1"][0] == 553_430_176 + two_maps + 3 * 224 * 224 * 4 + 8


# -- Mahendran ---------------------------------------------------------------------------------------


def dense_parameters(widths: tuple[int, ...]) -> int:
    return sum(i * o + o for i, o in itertools.pairwise(widths))


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.title)
def test_every_network_of_the_tables_is_there(experiment) -> None:  # type: ignore[no-untyped-def]
    rows = table("mahendran", experiment.title).rows
    assert len(rows) == {"Table 1: MNIST": 11}.get(experiment.title, 5)
    for row, trial in zip(rows, experiment.trials, strict=True):
        _, widths, batch, rate, parameters, parameter_bytes, formula, peak, measured, share = row
        assert widths == ", ".join(map(str, trial.widths))
        assert (batch, rate, measured) == (trial.batch_size, trial.rate, trial.measured)
        assert parameters == dense_parameters((experiment.inputs, *trial.widths, 10))
        assert parameter_bytes == 4 * parameters
        assert isinstance(formula, int) and isinstance(peak, int) and isinstance(share, float)
        assert 4 * parameter_bytes < formula < 6 * parameter_bytes
        assert 4 * parameter_bytes < peak < 50 * MIB
        assert share < 2


def test_the_measured_columns_are_those_of_the_paper() -> None:
    sums = [sum(float(t.measured) for t in e.trials) for e in EXPERIMENTS]
    assert sums == pytest.approx([30651.284268, 13322.971642, 20044.300804], abs=1e-6)


def test_ranks_are_compared() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == 1
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == -1
    assert rank_correlation([1, 1, 2], [5, 5, 9]) == 1


# -- Torres ------------------------------------------------------------------------------------------


def test_the_network_is_predicted_for_every_batch_size() -> None:
    rows = table("torres", "The network by batch size").rows
    assert [row[0] for row in rows] == [32, 64, 128, 256, 512]
    for row in rows:
        _, formula, host, allocated, reserved = row
        assert isinstance(host, int) and isinstance(allocated, int) and isinstance(reserved, int)
        assert host <= allocated <= reserved
        assert isinstance(formula, int) and formula > host
    assert table("torres", "The network of table 1").rows[-1][4] == 89_450


# -- claims --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours", "unit", "verdict"),
    [
        ("224.69", 235_620_000, MB_BINARY, DIFFERS),
        ("1.50", 1_500_000, MB, EQUAL),
        ("1.49", 1_499_999, MB, CUT),
        ("401.40", 411_041_792, MB_MIXED, CUT),
        ("700", 700 * 10**9, GB, EQUAL),
        ("1,792", 1792, PARAMETERS, EQUAL),
        ("1,792", 1793, PARAMETERS, DIFFERS),
    ],
)
def test_agreement_is_computed_to_their_decimals(theirs, ours, unit, verdict) -> None:  # type: ignore[no-untyped-def]
    assert claim("a number", theirs, ours, unit).verdict == verdict


def test_an_unknown_text_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no text 'dennemann' \(nearest: denneman\)"):
        reproduce("dennemann")


# -- the command ---------------------------------------------------------------------------------------


def test_the_page_is_what_the_command_writes(tmp_path: Path) -> None:
    if not torch.__version__.startswith("2.13."):
        pytest.skip("the page was written with torch 2.13")
    from memgauge.report.reproductions import markdown_page

    assert PAGE.read_text(encoding="utf-8") == markdown_page(Reproductions(tuple(text(n) for n in NAMES)))


def test_the_command_prints_theirs_and_ours(monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    import memgauge.reproduce

    monkeypatch.setattr(memgauge.reproduce, "reproduce", lambda name, tell: text(name))
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["reproduce", "torres"]) == 0
    out = capfd.readouterr().out
    assert "6,867 MB" in out and "7,031 MB" in out and "differs" in out
    assert main(["reproduce", "torres", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["schema"] == "memgauge.reproductions/1"
    first = told["texts"][0]["sections"][0]["claims"][0]
    assert (first["theirs"], first["exact"], first["exact_unit"]) == ("703 MB", 737_280_000, "bytes")


def test_the_command_writes_its_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Capture) -> None:
    import memgauge.reproduce

    monkeypatch.setattr(memgauge.reproduce, "reproduce", lambda name, tell: text(name))
    page = tmp_path / "page.md"
    assert main(["reproduce", "denneman", "--write", str(page)]) == 0
    out, err = capfd.readouterr()
    assert (out, err) == ("", f"memgauge: wrote {page}\n")
    assert "| 401.40 MB | 401.41 MB |" in page.read_text(encoding="utf-8")
    assert main(["reproduce", "denneman", "--markdown"]) == 0
    assert capfd.readouterr().out == page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mahendra"], "there is no text 'mahendra' (nearest: mahendran)"),
        (["--json", "--markdown"], "choose one"),
        (["--write", "/nowhere/x.md"], "--write /nowhere/x.md: there is no directory /nowhere"),
    ],
)
def test_bad_input_is_named(arguments: list[str], said: str, capfd: Capture) -> None:
    assert main(["reproduce", *arguments]) == 2
    assert said in capfd.readouterr().err
