"""Every number of the four texts is there, beside ours, and ours is right."""

from __future__ import annotations

import itertools
import json
import re
from functools import cache
from pathlib import Path

import pytest

from memgauge.cli import main
from memgauge.errors import UsageError
from memgauge.reproduce import NAMES, reproduce
from memgauge.reproduce.architectures import alexnet_2012_parameters
from memgauge.reproduce.denneman import vgg16_maps
from memgauge.reproduce.mahendran_answers import rank_correlation
from memgauge.reproduce.mahendran_trials import EXPERIMENTS
from memgauge.reproduce.records import (
    GB,
    KB,
    MB,
    MB_BINARY,
    MB_MIXED,
    PARAMETERS,
    VERDICTS,
    Claim,
    Reproduction,
    Reproductions,
    Section,
    Table,
    claim,
)
from memgauge.units import MIB

torch = pytest.importorskip("torch")

Capture = pytest.CaptureFixture[str]
PAGE = Path(__file__).parents[2] / "docs" / "reproductions.md"
EQUAL, CUT, DIFFERS, READING, OURS = "equal", "equal, cut off", "differs", "our reading", "ours only"


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
    ("question-and-answers", "224.69 MB", 532_752 * 4 + 19_072_984 * 12 + 128 * 9000 * 4, DIFFERS),
    ("question-and-answers", "260.13 MB", 532_752 * 128 * 4, EQUAL),
    ("question-and-answers", "4.06 MB", 532_752 * 8, EQUAL),
    ("question-and-answers", "742.34 MB", 532_752 * 8 * 128 + 19_072_984 * 12 + 128 * 9000 * 4, DIFFERS),
    ("question-and-answers", "3 ×", 3, EQUAL),
    ("question-and-answers", "3 ×", 4, DIFFERS),
    ("denneman", "1", 1, EQUAL),
    ("question-and-answers", "532,752", 532_752, EQUAL),
    ("question-and-answers", "19,072,984", 19_072_984, EQUAL),
    ("denneman", "265 MB", 7680 * 4320 * 8, READING),
    ("denneman", "8 GB", 32 * 7680 * 4320 * 8, READING),
    ("denneman", "896 MB", 896_000_000, READING),
    ("denneman", "19 KB", 224 * 224 * 3 // 8, READING),
    ("denneman", "602 KB", 32 * 224 * 224 * 3 // 8, READING),
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
    ("mahendran", "-8.12 MB", 1_361_464, DIFFERS),
    ("mahendran", "-335.57 MB", 17_749_224, DIFFERS),
    ("torres", "703 MB", 60_000 * 32 * 32 * 3 * 4, EQUAL),
    ("torres", "6,867 MB", 600_000 * 32 * 32 * 3 * 4, DIFFERS),
    ("torres", "6,867 MB", 600_000 * 32 * 32 * 3 * 4 + 600_000, READING),
    ("torres", "25,437 MB", 2 * 540_000 * 12_288, DIFFERS),
    ("torres", "25,402 MB", 2 * 540_000 * 12_288, DIFFERS),
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


@pytest.mark.parametrize("name", NAMES)
def test_each_text_has_a_gap_that_is_itemised_with_reasons(name: str) -> None:
    *items, total = table(name, "Where formula and trace differ").rows
    assert len(items) > 3
    assert sum(row[2] for row in items if isinstance(row[2], int)) == total[2]
    assert all(isinstance(row[3], str) and len(row[3]) > 12 for row in items)
    if name in ("question-and-answers", "denneman"):
        assert any("indices of pooling" in row for row in items)


def test_the_gaps_are_of_the_networks_in_the_tables() -> None:
    def gap(name: str) -> object:
        return table(name, "Where formula and trace differ").rows[-1][2]

    sgd = next(
        r for r in table("denneman", "Training against inference").rows if r[0] == "training, SGD, batch 32"
    )
    assert gap("denneman") == sgd[2] - sgd[1]  # type: ignore[operator]
    largest = table("torres", "The network by batch size").rows[-1]
    assert largest[0] == 512 and gap("torres") == largest[3] - largest[1]  # type: ignore[operator]
    network = table("mahendran", "Tables 4 and 5").rows[-1]
    assert gap("mahendran") - (network[7] - network[6]) in range(64)  # type: ignore[operator]  # workspace


def test_backward_is_set_against_forward_without_optimizer_state() -> None:
    ratio = next(c for c in claims("question-and-answers") if c.what.startswith("the backward pass against"))
    assert (ratio.theirs, ratio.verdict) == ("3 ×", DIFFERS)
    assert 1 < ratio.exact < 2
    assert not any("upper bound" in c.why for c in claims("question-and-answers"))


def test_the_answers_rule_for_activations_holds_for_one_kind_of_convolution_only() -> None:
    rows = table("question-and-answers", "The answer's rule for the activations").rows
    found = {row[0]: (row[1], row[2]) for row in rows}
    assert found["zoo:vgg16"] == (224 * 224 * 64, 224 * 224 * 64)
    assert found["zoo:alexnet"] == (224 * 224 * 64, 55 * 55 * 64)
    assert found["zoo:torres-cnn"] == (32 * 32 * 32, 30 * 30 * 32)


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


def answers() -> dict[str, Section]:
    return {s.title: s for s in text("mahendran").sections}


def test_the_machines_memory_is_named_as_the_decisive_reason_first() -> None:
    first = text("mahendran").sections[0]
    assert "total − (free + buffers + cached)" in first.notes[0] and "whole machine" in first.notes[0]
    assert any("CPU" in note and "workspaces" in note for note in first.notes)


def test_every_statement_of_the_paper_is_answered() -> None:
    said = [title for title in answers() if title.startswith("Statement")]
    for word in ("200 nodes", "learning rate", "batch size", "more nodes", "CIFAR-10"):
        assert sum(word in title for title in said) == 1
    second = next(c for c in claims("mahendran") if c.what.startswith("second least"))
    assert "number 11 of 11" in second.why


def test_batch_and_depth_do_contribute() -> None:
    rows = {row[0]: row for row in table("mahendran", "Statement: depth").rows}
    for column in (3, 4):
        small, large = rows["batch 1"][column], rows["batch 1,000"][column]
        shallow, deep = rows["the first five of its layers"][column], rows["as in trial 5"][column]
        assert small < large and shallow < deep  # type: ignore[operator]


def test_why_a_trace_is_above_or_below_its_formula_holds_for_every_network() -> None:
    (gap,) = (s for s in text("mahendran").sections if s.title.startswith("Where formula"))
    assert "optimizer phase" in gap.notes[0]
    assert "21 of 21" in gap.notes[1] and "(14 networks" in gap.notes[1]


def test_the_memory_of_a_process_adds_up() -> None:
    rows = {row[0]: row[1:4] for row in table("mahendran", "Host memory of such a process").rows}
    for i in range(3):
        parts = [rows[name][i] for name in ("imports", "first use", "data", "network")]
        assert sum(parts) == rows["process"][i]  # type: ignore[arg-type]
        assert rows["theirs"][i] - rows["process"][i] == rows["rest"][i] > 0  # type: ignore[operator]
    assert rows["data"] == (60_000 * 784 * 4, 60_000 * 784 * 4, 50_000 * 3072 * 4)


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


def test_what_is_read_off_the_measurements_is_no_prediction() -> None:
    titles = {s.title: s for s in text("torres").sections}
    apart = next(s for title, s in titles.items() if "taken apart (no prediction)" in title)
    assert not apart.claims
    assert [row[3] for row in apart.table.rows] == [4, 4, 2, 2]  # type: ignore[union-attr]
    predicted = next(s for title, s in titles.items() if title.startswith("Host memory, as far"))
    for found in predicted.claims:
        assert found.exact in [2 * n * 12_288 for n in (60_000, 600_000, 540_000)]


def test_the_papers_contradiction_on_batch_size_is_named() -> None:
    notes = next(s.notes for s in text("torres").sections if s.title == "The network by batch size")
    assert any("section 4.2" in note and "conclusions" in note for note in notes)
    assert all("nominal" in c.why for c in claims("torres") if "memory of the GPU" in c.what)


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


def test_a_number_that_was_inferred_from_theirs_is_our_reading() -> None:
    assert claim("a number", "19", 18_816, KB, is_reading=True).verdict == READING
    assert claim("a number", "20", 18_816, KB, is_reading=True).verdict == DIFFERS
    assert claim("a number", "18", 18_816, KB, is_cut=False).verdict == DIFFERS
    assert {c.verdict for name in NAMES for c in claims(name)} <= set(VERDICTS)


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


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("name", NAMES)
def test_the_text_view_is_whole_and_readable(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    import memgauge.reproduce
    from memgauge.report.reproductions import cell_text

    monkeypatch.setattr(memgauge.reproduce, "reproduce", lambda name, tell: text(name))
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["reproduce", name]) == 0
    out = capfd.readouterr().out
    lines = [line.rstrip() for line in out.splitlines()]
    assert max(map(len, lines)) <= columns
    words = " ".join(out.split())
    for found in claims(name):
        assert (found.theirs or "—") in words and found.ours in words and found.verdict in words
        assert " ".join(found.why.split()[:3]) in words
    for part in text(name).sections:
        if part.table is not None:
            for row in part.table.rows:
                for column, cell in zip(part.table.columns, row, strict=True):
                    if not isinstance(cell, str):
                        assert cell_text(column, cell) in words
    for is_reason, run in itertools.groupby(
        lines, key=lambda line: re.match(r" {4}[A-Za-z]", line) is not None
    ):
        *full, _ = run
        assert not is_reason or all(len(line) > 0.6 * columns for line in full)  # no narrow column of text


@pytest.mark.parametrize("name", NAMES)
def test_no_text_is_squeezed_at_80_columns(
    name: str, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import memgauge.reproduce

    monkeypatch.setattr(memgauge.reproduce, "reproduce", lambda name, tell: text(name))
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["reproduce", name]) == 0
    out = capfd.readouterr().out
    for part in text(name).sections:
        for row in part.table.rows if part.table is not None else ():
            first = str(row[0]).split(" ")[0]
            assert first in out  # no word of a row's name is broken


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
