"""Each figure of the page for people is what its command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from memgauge.cli import main

torch = pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs" / "memory-for-humans.md"


def commands() -> list[tuple[str, list[str]]]:
    """Return every command of the page with the lines that stand under it."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ memgauge "):
                found.append((line.removeprefix("$ memgauge "), []))
            elif line.strip():
                found[-1][1].append(" ".join(line.split()))
    return found


def test_the_page_has_figures() -> None:
    assert len(commands()) > 10
    assert all(lines for _, lines in commands())


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the page was written with torch 2.13")
@pytest.mark.parametrize(("command", "lines"), commands(), ids=[c for c, _ in commands()])
def test_a_figure_is_what_its_command_prints(
    command: str, lines: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(shlex.split(command)) == 0
    printed = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    for line in lines:
        assert line in printed
