"""Bars of phases above the curves: a row for each name, and for each process where those of several overlap in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from memgauge.explain.bands import Band
from memgauge.report.style import GREY, label

ABOVE = 16  # pixels: room for a title above the curves, with the bars above it
_BAR, _STEP = 5, 7  # pixels
_NAMED, _APART = 12, 3  # pixels: what a process's name beside its rows takes, and between those of two
_LONGEST_NAME = 10  # letters of it: as many as a window of 700 pixels has room for
_MOST_BLOCKS, _MOST_ROWS = 8, 26  # rows of one process may be 13
_LONGEST_HOVERED = 400  # letters under the pointer
_OTHERS = ""  # stands for names that have no colour of their own


class Bars(NamedTuple):
    """Where the bars are; a block is the rows of one process, or of several that share them."""

    block_of: dict[int, int]  # of each process
    tops: dict[tuple[int, str], int]  # block and name to pixels below the top of all
    blocks: list[tuple[list[int], int]]  # the processes of each, and its middle in pixels below the top
    height: int

    def bar(self, band: Band, ink: str) -> dict[str, Any]:
        """Return a bar above the figure from a band's begin to its end."""
        block = self.block_of[band.pid]
        top = ABOVE + self.height - self.tops.get((block, band.name), self.tops.get((block, _OTHERS), 0))
        place = {"xref": "x", "x0": band.begin_us / 1e6, "x1": band.end_us / 1e6}
        height = {"yref": "paper", "ysizemode": "pixel", "yanchor": 1, "y0": top - _BAR, "y1": top}
        colour = f"rgba({ink},1)"
        return {
            "type": "rect",
            **place,
            **height,
            "fillcolor": colour,
            "line": {"width": 0.5, "color": colour},  # so that the shortest is seen
        }

    def named(self, owners: Mapping[int, str]) -> list[dict[str, Any]]:
        """Return the names of processes beside their rows; none if all share them."""
        place = {"xref": "paper", "x": 0, "xanchor": "right", "yref": "paper", "y": 1, "yanchor": "middle"}
        notes = []
        for pids, middle in self.blocks if len(self.blocks) > 1 else ():
            each = [owners.get(pid, str(pid)) for pid in pids]
            text = label(each[0], _LONGEST_NAME) if len(each) == 1 else f"{len(each)} processes"
            notes.append(
                {
                    **place,
                    "xshift": -4,
                    "yshift": ABOVE + self.height - middle,
                    "showarrow": False,
                    "text": text,
                    "hovertext": "phases of " + label(", ".join(each), _LONGEST_HOVERED),
                    "font": {"size": 9, "color": GREY},
                }
            )
        return notes


def bars_of(spans: Sequence[Band], coloured: Sequence[str]) -> Bars:
    """Return where the bars of phases are.

    Args:
        spans: The phases, in the order of their begins.
        coloured: The names that have a row each, from above; all others share one.
    """
    order = [*coloured, _OTHERS]
    names: dict[int, set[str]] = {}
    for band in spans:
        names.setdefault(band.pid, set()).add(band.name if band.name in coloured else _OTHERS)

    def rows(block: list[int]) -> list[str]:
        has = set().union(*(names[pid] for pid in block))
        return [name for name in order if name in has]

    blocks, pids = [list(names)], list(names)
    for own in range(min(len(pids), _MOST_BLOCKS) if _overlap(spans) else 0, 0, -1):
        rest = pids[own:]
        blocks = [*([pid] for pid in pids[:own]), *([rest] if rest else [])]
        if len(blocks) <= _MOST_BLOCKS and sum(len(rows(block)) for block in blocks) <= _MOST_ROWS:
            break
    tops: dict[tuple[int, str], int] = {}
    placed, top = [], 0
    for number, block in enumerate(blocks):
        tops |= {(number, name): top + _STEP * row for row, name in enumerate(rows(block))}
        taken = _STEP * len(rows(block))
        placed.append((block, top + (taken - _STEP + _BAR) // 2))
        top += max(taken + _APART, _NAMED) if len(blocks) > 1 else taken
    return Bars({pid: number for number, block in enumerate(blocks) for pid in block}, tops, placed, top)


def _overlap(spans: Sequence[Band]) -> bool:
    """Return whether phases of different processes overlap in time."""
    last, until_us = None, 0  # the only process that may have phases open
    for band in spans:
        if band.pid != last and band.begin_us < until_us:
            return True
        until_us = max(until_us, band.end_us)
        last = band.pid
    return False
