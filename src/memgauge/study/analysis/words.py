"""What an analysis says in words: each figure's drivers, what does nothing, the mechanism, and what speaks against it."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memgauge.study.analysis.records import AnovaRow, FigureAnalysis, Importance, Mechanism
from memgauge.units import format_bytes

_MOST_VALUES = 8  # of a parameter, for which medians are listed
_CERTAIN = 0.9  # what a regression explains from which it is told where no parameter stands out


def percent(share: float) -> str:
    """Return a share of the variance as people read it.

    >>> percent(0.8281), percent(0.0031), percent(0.00001)
    ('83 %', '0.3 %', '0.00 %')
    """
    found = 100 * share
    return f"{found:.0f} %" if found >= 10 else f"{found:.1f} %" if found >= 0.1 else f"{found:.2f} %"


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, "trial"), count(3, "trial")
    ('1 trial', '3 trials')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def effect(
    name: str, share: float, low: float, high: float, floor: float, verdict: str, effect_bytes: int
) -> str:
    """Return what one parameter does to one figure."""
    about = f"{percent(share)} of the variance ({percent(low)} to {percent(high)}; noise reaches {percent(floor)})"
    if verdict == "driver":
        return f"{name}: drives it, {about}, {format_bytes(effect_bytes)} from end to end"
    if verdict == "little":
        return f"{name}: hardly any effect, {about}, {format_bytes(effect_bytes)} from end to end"
    if verdict == "undecided":
        return f"{name}: cannot be told from noise here, {about}; more trials would tell"
    half = (high - low) / 2
    return f"{name}: no effect beyond noise ({100 * share:.1f} ± {100 * half:.1f} %)"


def of_figure(
    title: str,
    rows: Sequence[Importance],
    floor: float,
    interactions: Sequence[AnovaRow],
    mechanisms: Sequence[Mechanism],
) -> Iterable[str]:
    """Yield the conclusion about one figure, the drivers first."""
    drivers = [r for r in rows if r.verdict == "driver"]
    if drivers:
        named = [
            f"{r.name} ({percent(r.share)}, {format_bytes(r.effect_bytes)} from end to end)" for r in drivers
        ]
        yield f"{title} is driven by {_listed(named)}."
    else:
        alone = " on its own" if interactions else ""
        yield f"{title}: nothing that was varied stands out{alone} from noise, which reaches {percent(floor)}."
    for row in rows:
        if row.verdict != "driver":
            pairs = [r.name for r in interactions if row.name in r.parameters]
            yield f"{row.words}{f' on its own, but see {_listed(pairs)}' if pairs else ''}."
    if interactions:
        together = _listed([f"{r.name} ({percent(r.share)})" for r in interactions])
        yield f"what one does depends on the other: {together} beyond what each does alone (ANOVA)."
    for m in mechanisms:
        # A slope that explains little, where no parameter stands out, is the machine's drift or nothing.
        if drivers or m.explained >= _CERTAIN:
            yield from _of_mechanism(title, m)


def _of_mechanism(title: str, m: Mechanism) -> Iterable[str]:
    """Yield the formula, of the terms whose interval leaves zero out; nothing if there is none."""
    terms = [c for c in m.coefficients if c.name != "fixed" and (c.low > 0 or c.high < 0)]
    fixed = next((c for c in m.coefficients if c.name == "fixed"), None)
    if not terms or fixed is None:
        return
    parts = [f"{c.bytes:,.2f} ({c.low:,.2f} to {c.high:,.2f}) {c.unit}" for c in terms]
    where = "" if m.group == "all trials" else f" with {m.group}"
    explained = math.floor(m.explained * 1000) / 10
    yield (
        f"{title}{where} = {format_bytes(round(fixed.bytes))} + {' + '.join(parts)}; this explains "
        f"{explained:.1f} % of it, ± {format_bytes(m.residual_bytes)}."
    )


def by_value(title: str, columns: Mapping[str, Sequence[Any]], values: Sequence[float]) -> Iterable[str]:
    """Yield the medians of a figure by each parameter's values: what few trials can show without any claim."""
    for name, column in columns.items():
        found: dict[Any, list[float]] = {}
        for key, value in zip(column, values, strict=True):
            found.setdefault("none" if key is None else key, []).append(value)
        if 1 < len(found) <= _MOST_VALUES and len(found) < len(values):
            if all(isinstance(key, (int, float)) for key in found):
                found = dict(sorted(found.items()))
            medians = [f"{key}: {format_bytes(int(statistics.median(v)))}" for key, v in found.items()]
            yield f"{title}, median by {name}; {', '.join(medians)}."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def of_status(status: Counter[str]) -> Iterable[str]:
    """Yield what became of trials that are not done."""
    for name, one, many in (
        (
            "out-of-memory",
            "1 trial ran out of memory: its peak lies above the limit.",
            "{} trials ran out of memory: their peaks lie above the limit.",
        ),
        (
            "time-limit",
            "1 trial was stopped at its limit of time.",
            "{} trials were stopped at their limit of time.",
        ),
        (
            "does-not-fit",
            "1 trial was predicted not to fit and was not run.",
            "{} trials were predicted not to fit and were not run.",
        ),
        (
            "failed",
            "1 trial failed; its error is in the table.",
            "{} trials failed; their errors are in the table.",
        ),
    ):
        if status[name]:
            yield one if status[name] == 1 else many.format(status[name])


def conclusion(figures: Sequence[FigureAnalysis], remarks: Sequence[str]) -> Iterable[str]:
    """Yield all sentences, each of which names its figure."""
    for figure in figures:
        for line in figure.conclusion:
            yield line if line.startswith(figure.title) else f"{figure.title}, {line}"
    yield from remarks


def gathered(figures: Sequence[FigureAnalysis]) -> Iterable[str]:
    """Yield each warning once, with the figures that it is about."""
    about: dict[str, list[str]] = {}
    for figure in figures:
        for text in figure.warnings:
            about.setdefault(text, []).append(figure.title)
    for text, titles in about.items():
        yield f"{'all figures' if len(titles) == len(figures) > 1 else _listed(titles)}: {text}"
