"""The page of an estimate: what it shows is what the estimate says."""

from __future__ import annotations

import base64
import json
import re
from array import array
from pathlib import Path
from typing import Any

import pytest

from memgauge.cli import main
from memgauge.records import Category, MemoryEvent, Timeline, Trace
from memgauge.report.estimate_page import category_timeline
from memgauge.units import format_bytes

pytest.importorskip("torch")
pytest.importorskip("plotly")

_TYPES = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "f8": "d"}


def numbers(values: Any) -> list[float]:
    """Return the numbers of an array as Plotly's JSON holds it."""
    if isinstance(values, dict):
        return list(array(_TYPES[values["dtype"]], base64.b64decode(values["bdata"])))
    return list(values)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, list[dict[str, Any]]]:
    """The estimate as JSON, the page's text without its figures, and the figures."""
    folder: Path = tmp_path_factory.mktemp("page")
    page, out = folder / "page.html", folder / "estimate.json"
    asked = ["estimate", "zoo:resnet50", "--batch-size", "512", "--device", "nvidia-rtx-4060"]
    assert main([*asked, "--html", str(page), "--out", str(out)]) == 1  # it does not fit
    html = page.read_text(encoding="utf-8")
    figures = [
        json.loads(f) for f in re.findall(r'<script type="application/json">(.*?)</script>', html, re.S)
    ]
    text = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    return json.loads(out.read_text()), text, figures


def test_it_says_first_whether_the_run_fits_and_why(
    made: tuple[dict[str, Any], str, list[dict[str, Any]]],
) -> None:
    estimate, text, _ = made
    above, _, _ = text.partition("<table>")
    fits = estimate["fits"]
    assert fits["verdict"] == "no"
    assert "fits: no" in above
    assert f"{format_bytes(-fits['free_bytes'])} too little" in above
    assert f"runs where {format_bytes(fits['least_capacity_bytes']['expected'])} (" in above
    assert format_bytes(estimate["peak"]["allocated_bytes"]) in above


def test_categories_of_the_time_line_add_up_to_the_peak(
    made: tuple[dict[str, Any], str, list[dict[str, Any]]],
) -> None:
    estimate, _, (timeline, _) = made
    drawn = [curve for curve in timeline["data"] if curve["name"] != "reserved"]
    stacked = [numbers(curve["y"]) for curve in drawn]
    heights = [sum(values) for values in zip(*stacked, strict=True)]
    assert max(heights) == estimate["peak"]["allocated_bytes"]
    assert heights[-1] < max(heights)
    at_peak = {c["name"]: v[heights.index(max(heights))] for c, v in zip(drawn, stacked, strict=True)}
    assert {c: b for c, b in at_peak.items() if b} == estimate["at_peak"]["categories"]
    assert any(
        f"peak {format_bytes(int(max(heights)))}" in a["text"] for a in timeline["layout"]["annotations"]
    )


def test_the_reserve_is_drawn_above_them_and_the_room_that_the_card_has(
    made: tuple[dict[str, Any], str, list[dict[str, Any]]],
) -> None:
    estimate, text, (timeline, _) = made
    (reserved,) = (curve for curve in timeline["data"] if curve["name"] == "reserved")
    assert max(numbers(reserved["y"])) == estimate["peak"]["reserved_bytes"]
    context = estimate["peak"]["device_bytes"]["expected"] - estimate["peak"]["reserved_bytes"]
    room = estimate["fits"]["capacity_bytes"] - context
    (line,) = (shape for shape in timeline["layout"]["shapes"] if shape["type"] == "line")
    assert line["y0"] == line["y1"] == room
    assert any(
        f"room on the card {format_bytes(room)}" in a["text"] for a in timeline["layout"]["annotations"]
    )
    _, _, parts = text.partition("<h2>On the card</h2>")
    assert format_bytes(context) in parts.partition("</table>")[0]
    for part in estimate["uncertainty"]:
        assert f'{part["source"]}</td><td class="number">−{format_bytes(part["low_bytes"])}<' in parts


@pytest.mark.parametrize(("width", "share"), [(1400, 0.6), (700, 0.8)])
def test_names_of_phases_do_not_lie_over_each_other(
    made: tuple[dict[str, Any], str, list[dict[str, Any]]], width: int, share: float
) -> None:
    _, _, (timeline, _) = made
    names = [a for a in timeline["layout"]["annotations"] if re.match("setup|step", a["text"])]
    assert len(names) > 6
    events = max(max(numbers(curve["x"])) for curve in timeline["data"])
    letter = 5.3 * events / (width * share)  # 10 pixels high; `share` of the page's width is the figure's own
    places = []
    for name in names:
        size = letter * len(name["text"])
        begin = name["x"] - size if name["xanchor"] == "right" else name["x"]
        assert begin + size <= events * 1.01
        places.append((begin, begin + size, name.get("yshift", 0)))
        assert not name.get("textangle")
        assert places[-1][2] + 14 <= timeline["layout"]["margin"]["t"]
    for number, (begin, end, row) in enumerate(places):
        assert all(b >= end or e <= begin or r != row for b, e, r in places[:number])


def test_the_reserve_keeps_its_lows_and_highs_where_there_are_many_events() -> None:
    count = 40_000
    storages = [n // 2 for n in range(count)]  # each is given back at once
    sizes = [512 if n % 2 == 0 else -512 for n in range(count)]
    reserved = array("q", [2**21] * count)
    reserved[11_111], reserved[22_222] = 2**25, 2**20
    trace = Trace(
        [MemoryEvent(s, size, "step", "", "") for s, size in zip(storages, sizes, strict=True)],
        [Category.TEMPORARY] * (count // 2),
        [""] * (count // 2),
    )
    allocated = array("q", [512, 0] * (count // 2))
    timeline = Timeline(allocated, allocated, reserved, dict.fromkeys(range(count // 2), 512))
    drawn = category_timeline(trace, timeline)
    (curve,) = (t for t in drawn.data if t.name == "reserved")
    assert len(curve.y) < count
    assert (max(curve.y), min(curve.y)) == (2**25, 2**20)


def test_the_map_holds_each_layers_bytes_at_the_peak(
    made: tuple[dict[str, Any], str, list[dict[str, Any]]],
) -> None:
    estimate, _, (_, tree) = made
    held = {(y["path"], c): b for y in estimate["layers"] for c, b in y["at_peak_bytes"].items() if b}
    (drawn,) = tree["data"]
    sizes = dict(zip(drawn["ids"], numbers(drawn["values"]), strict=True))
    shown = {i: size for i, size in sizes.items() if "#" in i}
    assert sum(shown.values()) == sum(sizes.values()) == sum(held.values())
    widen = sum(b for (path, _), b in held.items() if path == "stages.0.0.widen")
    assert sum(b for i, b in shown.items() if i.startswith("all/stages/0/0/widen#")) == widen > 0


def test_every_other_phase_that_can_be_seen_is_shaded() -> None:
    lengths = {
        "setup": 1000,
        "step 1 forward": 1000,
        "step 1": 1,
        "step 1 backward": 1000,
        "step 1 optimizer": 999,
    }
    phases = [phase for phase, length in lengths.items() for _ in range(length)]
    count = len(phases)
    events = [
        MemoryEvent(n // 2, 512 if n % 2 == 0 else -512, phase, "", "") for n, phase in enumerate(phases)
    ]
    trace = Trace(events, [Category.TEMPORARY] * (count // 2), [""] * (count // 2))
    allocated = array("q", [512, 0] * (count // 2))
    drawn = category_timeline(
        trace, Timeline(allocated, allocated, None, dict.fromkeys(range(count // 2), 512))
    )
    shaded = [(s.x0, s.x1) for s in drawn.layout.shapes if s.fillcolor == "rgba(128,128,128,.10)"]
    # The one of a single event has no width, and changes nothing for those after it.
    assert shaded == [(1000, 2000), (2000, 2001), (3001, 4000)]
