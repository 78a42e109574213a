"""The pages over many values and cards: what they draw is what the JSON says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_estimate_page import numbers

from memgauge.cli import main
from memgauge.units import format_bytes

pytest.importorskip("torch")
pytest.importorskip("plotly")


def drawn(folder: Path, *asked: str) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Return the result as JSON, the page's text, and its figure."""
    page, out = folder / "page.html", folder / "result.json"
    assert main([*asked, "--html", str(page), "--out", str(out)]) == 0
    html = page.read_text(encoding="utf-8")
    (figure,) = re.findall(r'<script type="application/json">(.*?)</script>', html, re.S)
    return (
        json.loads(out.read_text()),
        re.sub(r"<script.*?</script>", "", html, flags=re.S),
        json.loads(figure),
    )


def of(figure: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (trace for trace in figure["data"] if trace.get("name") == name)
    return found


def check_curve(curve: dict[str, Any], figure: dict[str, Any]) -> None:
    rows = curve["rows"]
    expected = of(figure, "on the device")
    assert numbers(expected["x"]) == [row["value"] for row in rows]
    assert numbers(expected["y"]) == [row["device_bytes"]["expected"] for row in rows]
    assert expected["customdata"] == [row["fits"]["verdict"] for row in rows]
    assert numbers(of(figure, "range, 95 %")["y"]) == [row["device_bytes"]["high"] for row in rows]
    least = [row["fits"]["least_capacity_bytes"]["expected"] for row in rows]
    assert numbers(of(figure, "least that is enough")["y"]) == least
    (line,) = figure["layout"]["shapes"]
    assert line["y0"] == line["y1"] == rows[0]["fits"]["capacity_bytes"]


def test_values_are_drawn_with_their_range_and_what_the_card_has(tmp_path: Path) -> None:
    curve, text, figure = drawn(
        tmp_path, "estimate", "zoo:torres-cnn", "--device", "nvidia-t4", "--vary", "batch_size=16,32,64"
    )
    check_curve(curve, figure)
    assert "zoo:torres-cnn on nvidia-t4 by batch_size" in text


def test_the_search_is_drawn_with_what_it_found(tmp_path: Path) -> None:
    found, text, figure = drawn(tmp_path, "fit", "zoo:torres-cnn", "--device", "nvidia-t4")
    check_curve(found["curve"], figure)
    assert f"batch_size={found['surely']} surely, batch_size={found['probably']} probably" in text
    assert f"what binds: {found['binds']['phase']}" in text
    assert sorted(set(of(figure, "on the device")["customdata"])) == ["no", "uncertain", "yes"]


def test_each_card_has_a_bar_of_its_verdict_beside_what_is_usable(tmp_path: Path) -> None:
    found, text, figure = drawn(
        tmp_path, "estimate", "zoo:gpt2", "--device", "all", "--batch-size", "8", "--steps", "1"
    )
    rows = found["rows"]
    usable = of(figure, "usable")
    capacities = dict(zip(usable["y"], numbers(usable["x"]), strict=True))
    assert list(reversed(capacities.values())) == [row["fits"]["capacity_bytes"] for row in rows]
    taken = {}
    for verdict in ("yes", "uncertain", "no"):
        for bar in (t for t in figure["data"] if t["name"] == f"on the device, fits: {verdict}"):
            shown = zip(bar["y"], numbers(bar["x"]), strict=True)
            taken |= {card: (verdict, count) for card, count in shown if count is not None}
    assert len(taken) == len(rows) == len(capacities)
    said = [(row["fits"]["verdict"], row["device_bytes"]["expected"]) for row in rows]
    assert sorted(taken.values()) == sorted(said)
    assert f"of {len(rows)} cards" in text
    edge = figure["layout"]["xaxis"]["range"][1]
    cut = {card: count for card, count in capacities.items() if count > edge}
    assert cut  # the largest cards have many times what it takes
    said_of = {a["y"]: a["text"] for a in figure["layout"]["annotations"]}
    assert said_of == {card: f"to {format_bytes(int(count))} →" for card, count in cut.items()}
