"""Accounts as text: the answer first, readable at 80 columns, and no user string read as markup."""

from __future__ import annotations

import io

import pytest
from accounts import HELD, estimate, layer, measurement, phase
from rich.console import Console, RenderableType

from memgauge.explain.compare import compare
from memgauge.records import AtPeak, Fits, Peak, Range
from memgauge.report.tables import format_range, merge_steps, span_name
from memgauge.report.text import comparison_view, estimate_view, measurement_view
from memgauge.units import GIB, MIB


def render(
    view: RenderableType, width: int = 80, *, is_terminal: bool = False, ascii_only: bool = False
) -> str:
    target = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if ascii_only else "utf-8", errors="replace")
    console = Console(file=target, width=width, highlight=False, markup=False, force_terminal=is_terminal)
    console.print(view)
    target.seek(0)
    return target.read()


def words(text: str) -> str:
    return " ".join(text.split())


def test_an_estimate_begins_with_the_answer() -> None:
    assert words(render(estimate_view(estimate()))).startswith(
        "train.py:my_training on cpu: peak allocated 16.00 MiB, resident 353.0 MiB (310.0–401.0), fits: yes"
    )


def test_a_measurement_begins_with_the_answer() -> None:
    assert words(render(measurement_view(measurement()))).startswith(
        "train.py:my_training on cpu, measured: peak allocated 16.00 MiB, resident 350.0 MiB"
    )


def test_a_gpu_shows_what_is_reserved_and_what_the_process_takes() -> None:
    peak = Peak(
        requested_bytes=GIB,
        allocated_bytes=GIB,
        reserved_bytes=2 * GIB,
        device_bytes=Range(low=2 * GIB, expected=3 * GIB, high=4 * GIB),
    )
    fits = Fits(verdict="no", capacity_bytes=2 * GIB, free_bytes=-GIB, reason="too large")
    text = words(render(estimate_view(estimate(peak=peak, fits=fits))))
    assert "reserved 2.00 GiB, device 3.00 GiB (2.00–4.00), fits: no" in text
    assert "capacity 2.00 GiB; 1.00 GiB too little; too large" in text


def test_what_is_unknown_says_why() -> None:
    lines = render(estimate_view(estimate())).splitlines()
    reserved = next(line for line in lines if line.startswith("reserved"))
    assert words(reserved) == "reserved — torch keeps no reserve on the CPU"


def test_a_measured_figure_names_its_instrument() -> None:
    assert "VmHWM, reset after import" in render(measurement_view(measurement()))


def test_the_instant_of_the_peak_is_named() -> None:
    assert "in step 1 backward, operator aten.mm, layer encoder (Linear)" in render(estimate_view(estimate()))


def test_bars_are_as_long_as_their_shares() -> None:
    lines = render(estimate_view(estimate())).splitlines()
    bars = {line.split()[0]: line.count("█") for line in lines if "█" in line}
    assert bars == {"activation": 14, "parameter": 7, "gradient": 7}


def test_only_the_asked_number_of_layers_is_listed() -> None:
    layers = tuple(layer(f"block.{n}", activation=n) for n in range(1, 21))
    account = estimate(layers=layers)
    assert "(10 of 20)" in render(estimate_view(account))
    assert render(estimate_view(account)).count("block.") == 10
    assert render(estimate_view(account, layers=None)).count("block.") == 20
    assert "block.20" in render(estimate_view(account, layers=1))
    assert "Layers" not in render(estimate_view(account, layers=0))


def test_a_wide_terminal_shows_more_of_a_layer() -> None:
    narrow, wide = (render(estimate_view(estimate()), width) for width in (60, 160))
    assert "parameters" not in narrow
    assert "8×64" in wide
    assert "4,160" in wide


def test_like_steps_are_one_line() -> None:
    text = render(estimate_view(estimate()))
    assert "step 2–3 forward" in text
    assert "step 3" not in text


def test_the_phase_of_the_peak_is_marked_once() -> None:
    phases = render(estimate_view(estimate())).partition("Highest of each phase")[2]
    marked = [line for line in phases.splitlines() if line.rstrip().endswith(" peak")]
    assert [line.split("  ")[0] for line in marked] == ["step 1 backward"]


def test_very_many_different_phases_are_cut() -> None:
    phases = tuple(phase(f"step {n} forward", n) for n in range(1, 200))
    text = render(estimate_view(estimate(phases=phases)))
    assert "and 175 more" in text


def test_what_the_figures_rest_on_is_listed() -> None:
    text = words(
        render(
            estimate_view(
                estimate(
                    assumptions=("the loss is finite",),
                    unmodelled=("data loader workers",),
                    unknown={"threads": "not asked"},
                )
            )
        )
    )
    assert "Assumed - the loss is finite" in text
    assert "Not modelled - data loader workers" in text
    assert "Unknown - threads: not asked" in text
    assert "3 steps, 2 threads, torch 2.13.0, predicted in 1.5 s" in text


def test_a_run_that_died_says_so_first_and_keeps_the_lines_of_its_traceback() -> None:
    account = measurement(
        ended='File "train.py", line 3\nRuntimeError: boom',
        peak=Peak(requested_bytes=None, allocated_bytes=None),
        at_peak=AtPeak(phase="", operator="", layer="", categories={}),
        phases=(),
        layers=(),
        unknown={"peak.allocated_bytes": "the observed run died"},
    )
    lines = render(measurement_view(account)).splitlines()
    assert lines[1] == "the run did not complete; figures are what was seen until then"
    assert lines[2:4] == ['File "train.py", line 3', "RuntimeError: boom"]
    assert "the observed run died" in "\n".join(lines)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    long = "model.decoder.layers.31.self_attention.query_key_value_projection.linear"
    layers = (layer(long, "ParallelColumnLinearWithBias", activation=8),)
    views = [
        estimate_view(estimate(layers=layers)),
        measurement_view(measurement(layers=layers)),
        comparison_view(compare(estimate(layers=layers), measurement(held={**HELD, "other": MIB}))),
    ]
    for view in views:
        text = render(view, width)
        assert max(len(line) for line in text.splitlines()) <= width


def test_strings_of_the_user_are_data_not_markup() -> None:
    name = "[bold red]x[/bold red] [link=http://a]:smile:"
    account = estimate(
        workload={"target": name}, assumptions=("[/] [red]",), layers=(layer("[i]", activation=8),)
    )
    text = render(estimate_view(account))
    assert text.startswith(name)
    assert "- [/] [red]" in text
    assert "[i]" in text


def test_control_characters_of_the_user_are_made_visible() -> None:
    account = measurement(
        workload={"target": "a\x1b[31mb\x07"}, layers=(layer("c\x1b]0;d", activation=8),), ended="e\x1b[2J\nf"
    )
    for view in (measurement_view(account), comparison_view(compare(account, estimate()))):
        text = render(view)
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "\\x1b[31mb\\x07" in text


def test_colour_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" not in render(estimate_view(estimate()))
    assert "\x1b[" in render(estimate_view(estimate()), is_terminal=True)


def test_a_terminal_that_knows_only_ascii_gets_ascii_bars() -> None:
    assert "#######" in render(estimate_view(estimate()), ascii_only=True)


def test_a_comparison_begins_with_what_explains_the_gap() -> None:
    held = {**HELD, "activation": 12 * MIB}
    result = compare(estimate(held=held, allocated_bytes=20 * MIB), measurement(threads=1))
    text = render(comparison_view(result))
    assert words(text).startswith("Peak allocated of the estimate is +4.00 MiB (+25.0 %)")
    assert "threads: 2 against 1" in text
    activation = next(line for line in text.splitlines() if line.startswith("activation  "))
    assert words(activation) == "activation 12.00 MiB 8.00 MiB +4.00 MiB (+50.0 %)"


def test_a_comparison_says_whether_the_measured_lies_in_the_predicted_range() -> None:
    def host_line(mib: int) -> str:
        host = Range(low=mib * MIB, expected=mib * MIB, high=mib * MIB)
        b = measurement(peak=Peak(requested_bytes=MIB, allocated_bytes=MIB, host_bytes=host))
        return next(
            line
            for line in render(comparison_view(compare(estimate(), b))).splitlines()
            if line.startswith("host")
        )

    assert host_line(350).rstrip().endswith("yes")
    assert host_line(500).rstrip().endswith("above")
    assert host_line(100).rstrip().endswith("below")


def test_equal_layers_are_left_out_unless_all_are_asked_for() -> None:
    result = compare(estimate(), measurement())
    assert "no difference in any of 2" in render(comparison_view(result))
    assert "encoder" in render(comparison_view(result, layers=None))


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (None, "—"),
        (Range(low=MIB, expected=MIB, high=MIB), "1.00 MiB"),
        (Range(low=310 * MIB, expected=353 * MIB, high=401 * MIB), "353.0 MiB (310.0–401.0)"),
        (Range(low=900 * MIB, expected=GIB, high=2 * GIB), "1.00 GiB (900.0 MiB – 2.00 GiB)"),
    ],
)
def test_a_range_shows_its_unit_once_if_it_has_one(figure: Range | None, text: str) -> None:
    assert format_range(figure) == text


def test_steps_are_joined_whole_or_not_at_all() -> None:
    rows = [
        ("setup", 1),
        ("step 1 forward", 2),
        ("step 1 backward", 3),
        ("step 2 forward", 2),
        ("step 2 backward", 4),
        ("step 3 forward", 2),
        ("step 3 backward", 4),
        ("steady step", 4),
    ]
    assert [(span_name(names), value) for names, value in merge_steps(rows)] == [
        ("setup", 1),
        ("step 1 forward", 2),
        ("step 1 backward", 3),
        ("step 2–3 forward", 2),
        ("step 2–3 backward", 4),
        ("steady step", 4),
    ]
