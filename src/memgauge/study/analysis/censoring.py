"""Trials of which a bound is known, and the regression over all of them.

A trial that ran out of memory or of time has no peak; what it had reached until then is a bound, and the value that
the regression expects above that bound stands for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from memgauge.study.analysis.mechanism import mechanism
from memgauge.study.analysis.records import Mechanism
from memgauge.study.records import Trial

_GROUPED_BY = ("framework", "optimizer", "precision", "mode", "machine")


def bound_of(trial: Trial, figure: str) -> int | None:
    """Return what a figure of a trial that was ended lies above; None if it was not ended, or nothing is known.

    A limit of memory is one of resident memory: it says nothing of bytes allocated, which were not seen.
    """
    if trial.status not in ("out-of-memory", "time-limit") or not figure.startswith("peak_"):
        return None
    seen = trial.figures.get(figure)
    if seen is None and figure == "peak_resident_bytes":
        return trial.censored_at_bytes
    return seen


def mechanisms_of(measured: list[Trial], censored: list[Trial], figure: str) -> Iterable[Mechanism]:
    """Yield the regression of a figure over the trials of each kind that the bytes per number depend on."""
    groups: dict[str, list[Trial]] = {}
    names = [n for n in _GROUPED_BY if len({str(_grouping(t, n)) for t in measured}) > 1]
    for trial in [*measured, *censored]:
        if trial.predicted is not None and trial.predicted.parameters is not None:
            groups.setdefault(_group_of(trial, names), []).append(trial)
    for key, group in groups.items():
        found = mechanism(
            key,
            [float(t.predicted.parameters or 0) for t in group if t.predicted],
            [float(t.predicted.activations or 0) for t in group if t.predicted],
            [float(t.figures[figure] if t.status == "done" else bound_of(t, figure) or 0) for t in group],
            [t.status != "done" for t in group],
        )
        if found is not None:
            yield found


def filled(censored: list[Trial], figure: str, mechanisms: tuple[Mechanism, ...]) -> list[float]:
    """Return a value for each censored trial: what the regression expects of it, its bound if that is more."""
    return [
        max(float(bound_of(trial, figure) or 0), *(_expected(trial, m) for m in mechanisms), 0.0)
        for trial in censored
    ]


def _expected(trial: Trial, found: Mechanism) -> float:
    """Return what a regression expects of a trial, 0 if it is not about trials of this kind."""
    names = [part.partition("=")[0] for part in found.group.split(", ")] if "=" in found.group else []
    if trial.predicted is None or _group_of(trial, names) != found.group:
        return 0.0
    facts = {
        "fixed": 1,
        "parameters": trial.predicted.parameters,
        "activations": trial.predicted.activations,
    }
    return sum(c.bytes * float(facts.get(c.name) or 0) for c in found.coefficients)


def _group_of(trial: Trial, names: list[str]) -> str:
    return ", ".join(f"{n}={_grouping(trial, n)}" for n in names) or "all trials"


def _grouping(trial: Trial, name: str) -> object:
    return trial.machine_name if name == "machine" else trial.params.get(name, "none")
