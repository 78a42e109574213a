"""What a table of phases tells of each beyond the peak of its process; what nobody knows has no column."""

from __future__ import annotations

from collections.abc import Callable

from memgauge.explain.recorded import PhaseOf, Recording, SpanOf
from memgauge.units import format_bytes

Column = tuple[str, Callable[[PhaseOf | SpanOf], str]]


def phase_columns(recording: Recording) -> tuple[list[Column], list[Column]]:
    """Return title and content of the columns on the tree's sums, and of those on what is counted elsewhere."""
    phases = recording.phases
    tree: list[Column] = [("tree's RSS", lambda p: format_bytes(p.tree_peak_bytes))]
    # Of one process alone, PSS says little that RSS does not.
    if len(recording.processes) > 1 and any(p.tree_pss_peak_bytes is not None for p in phases):
        tree.append(("tree's PSS", lambda p: format_bytes(p.tree_pss_peak_bytes)))
    elsewhere: list[Column] = []
    if recording.group_is_shown() and any(p.group_peak_bytes is not None for p in phases):
        elsewhere += [("control group", _group), ("kind", _kind_of_group)]
    if any(p.gpu_peak_bytes is not None for p in phases):
        elsewhere.append(("GPUs, used", lambda p: format_bytes(p.gpu_peak_bytes)))
    if any(p.device_peak_bytes is not None for p in phases):
        elsewhere.append(("framework's peak", _framework))
    return tree, elsewhere


def _group(found: PhaseOf | SpanOf) -> str:
    return format_bytes(found.group_peak_bytes) if isinstance(found, PhaseOf) else ""


def _kind_of_group(found: PhaseOf | SpanOf) -> str:
    return found.group_peak_kind if isinstance(found, PhaseOf) else ""


def _framework(found: PhaseOf | SpanOf) -> str:
    before = " (or before)" if found.device_peak_kind == "upper bound" else ""
    return format_bytes(found.device_peak_bytes) + before
