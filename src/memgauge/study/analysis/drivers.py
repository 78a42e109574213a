"""All of the analysis together: what drives each figure of memory, what does not, and in words why."""

from __future__ import annotations

import importlib.util
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from memgauge.errors import missing_extra
from memgauge.study.analysis.anova import anova
from memgauge.study.analysis.censoring import bound_of, filled, mechanisms_of
from memgauge.study.analysis.records import (
    Agreement,
    Analysis,
    AnovaRow,
    FigureAnalysis,
    Importance,
    Mechanism,
)
from memgauge.study.analysis.words import (
    by_value,
    conclusion,
    count,
    effect,
    gathered,
    of_figure,
    of_status,
    percent,
)
from memgauge.study.design import key_of
from memgauge.study.records import FIGURES, WHOLE_MACHINE, StudyRecord, Trial
from memgauge.units import format_bytes

if TYPE_CHECKING:
    from memgauge.study.analysis.fanova import Shares
    from memgauge.study.analysis.surrogate import Feature

# Figures that are explained if a study has them, the most telling first; the rest are in the tables.
EXPLAINED = (
    "peak_allocated_bytes",
    "peak_network_bytes",
    "peak_resident_bytes",
    "peak_reserved_bytes",
    "peak_process_device_bytes",
    "peak_device_bytes",
    "average_system_used_bytes",
)
LEAST_TRIALS = 8  # below this nothing is fitted
TRIALS_PER_PARAMETER = 10  # below this a design counts as small: the usual rule for computer experiments
# (Loeppky, Sacks, Welch 2009, "Choosing the sample size of a computer experiment").
# Of the variance. What explains less is not called a driver, though it may be real: a dummy among a hundred passes
# the floor of the others now and then, by some tenths of a percent at most (benchmarks/studies/drivers.py).
LEAST_SHARE = 5e-3
CERTAIN = 5e-4  # p of the ANOVA below which it names a driver: one in two thousand that do nothing
COULD_MATTER = 0.05  # a parameter that may explain so much and is not above the floor stays undecided


def usable(study: StudyRecord) -> list[Trial]:
    """Return the trials that count: the latest of each that was repeated for a disturbance."""
    replaced = {
        (t.source, t.repeats_trial)
        for t in study.trials
        if t.repeats_trial is not None and t.status == "done"
    }
    return [t for t in study.trials if (t.source, t.number) not in replaced]


def analyse(study: StudyRecord, figures: Sequence[str] | None = None, *, seed: int = 0) -> Analysis:
    """Return what a study says.

    Args:
        study: The study.
        figures: Those to explain; by default all of `EXPLAINED` that it has.
        seed: Of the draws.

    Raises:
        MissingError: scikit-learn or statsmodels is not installed.
    """
    # Imported where there is enough to fit only, since that takes seconds.
    for package in ("sklearn", "statsmodels"):
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, "study")
    trials = usable(study)
    machines = tuple(dict.fromkeys(t.machine_name for t in trials if t.machine is not None))
    wanted = figures if figures is not None else _wanted(study, trials)
    explained = tuple(_figure(study, trials, name, len(machines) > 1, seed) for name in wanted)
    status: Counter[str] = Counter(t.status for t in study.trials)
    remarks = tuple(of_status(status))
    return Analysis(
        study=study.name,
        trials=len(study.trials),
        by_status=dict(status),
        machines=machines,
        disturbed=sum(t.is_disturbed for t in trials),
        figures=explained,
        agreement=tuple(_agreements(trials)),
        conclusion=tuple(conclusion(explained, remarks)),
        remarks=remarks,
        warnings=tuple(gathered(explained)),
    )


def _wanted(study: StudyRecord, trials: list[Trial]) -> list[str]:
    there = {name for t in trials for name in t.figures}
    asked = [n for n in study.file.get("study", {}).get("record", ()) if n in there]
    return [n for n in EXPLAINED if n in there and (n in asked or n in EXPLAINED[:5] or not asked)] + [
        n for n in asked if n not in EXPLAINED
    ]


def columns_of(trials: Iterable[Trial], by_machine: bool = False) -> dict[str, list[Any]]:
    """Return the parameters that vary, a value per trial; None where a parameter does not exist."""
    rows = list(trials)
    names = dict.fromkeys(name for t in rows for name in t.params)
    found: dict[str, list[Any]] = {}
    for name in names:
        column = [t.params.get(name) for t in rows]
        plain = [",".join(map(str, v)) if isinstance(v, (tuple, list)) else v for v in column]
        if len({repr(v) for v in plain}) > 1:
            found[name] = plain
    if by_machine:
        found["machine"] = [t.machine_name for t in rows]
    return found


def _figure(
    study: StudyRecord, trials: list[Trial], name: str, by_machine: bool, seed: int
) -> FigureAnalysis:
    import numpy as np

    measured = [t for t in trials if t.status == "done" and name in t.figures]
    censored = [t for t in trials if bound_of(t, name) is not None]
    title, how = FIGURES.get(name, (name, "as the framework reports it"))
    values = [float(t.figures[name]) for t in measured]
    base: dict[str, Any] = {
        "figure": name,
        "title": title,
        "how": how,
        "trials": len(measured),
        "censored": len(censored),
        "low_bytes": int(min(values, default=0)),
        "high_bytes": int(max(values, default=0)),
        "repeat_spread": _repeat_spread(measured, name),
        "explained": None,
        "floor": None,
    }
    columns = columns_of([*measured, *censored], by_machine)
    why_not = _too_few(measured, columns)
    if why_not is not None:
        medians = by_value(title, columns_of(measured, by_machine), values)
        return FigureAnalysis(**base, conclusion=(f"{title}: {why_not}", *medians))
    disturbed = sum(t.is_disturbed for t in measured)
    is_theirs = disturbed and name in WHOLE_MACHINE  # what others did is no bytes per parameter
    mechanisms = () if is_theirs else tuple(mechanisms_of(measured, censored, name))
    if not np.ptp(values) > 0 and not censored:
        said = f"{title} is {format_bytes(int(values[0]))} in every trial: nothing that was varied moves it"
        return FigureAnalysis(**base, conclusion=(said,))
    every = np.array([*values, *filled(censored, name, mechanisms)])
    found = _explained(base, columns, every, mechanisms, seed)
    against = _warnings(found, len(columns), disturbed)
    return msgspec.structs.replace(found, warnings=tuple(against))


def _too_few(measured: list[Trial], columns: dict[str, list[Any]]) -> str | None:
    """Return why these trials cannot say what drives a figure; None if they can."""
    if len(measured) < LEAST_TRIALS:
        few = f"{count(len(measured), 'trial')} {'is' if len(measured) == 1 else 'are'}"
        return f"{few} too few to say what drives it; {LEAST_TRIALS} are the least"
    if not columns:
        return "nothing was varied, so nothing drives it"
    # With as many different points as parameters and one, any of them explains all there is.
    points = len(set(zip(*(map(repr, column) for column in columns.values()), strict=True)))
    least = len(columns) + 2
    if len(columns) > 1 and points < least:
        return (
            f"{count(points, 'different point')} are too few to tell {count(len(columns), 'parameter')} apart; "
            f"{least} are the least"
        )
    return None


def _explained(
    base: dict[str, Any],
    columns: dict[str, list[Any]],
    values: Any,
    mechanisms: tuple[Mechanism, ...],
    seed: int,
) -> FigureAnalysis:
    import numpy as np

    from memgauge.study.analysis.fanova import importances
    from memgauge.study.analysis.surrogate import feature, takes_logarithm

    features = [feature(name, column) for name, column in columns.items()]
    found = importances(features, values, takes_logarithm(features, values), seed=seed)
    floor = float(np.quantile(found.dummies, 0.95))
    explained = float(np.nanmedian(found.explained))
    table = anova(columns, [float(v) for v in values])
    tests = {r.name: r.p for r in table if r.p is not None}
    rows = [_importance(f, found, j, floor, tests.get(f.name, 1.0)) for j, f in enumerate(features)]
    rows.sort(key=lambda r: -r.share)
    is_small = len(values) < TRIALS_PER_PARAMETER * len(features)
    title = base["title"]
    together = tuple(_interactions(rows, table, is_small))
    return FigureAnalysis(
        **{**base, "explained": explained, "floor": floor},
        importances=tuple(rows),
        anova=table,
        mechanisms=mechanisms,
        conclusion=(
            *of_figure(title, rows, floor, together, mechanisms),
            *(by_value(title, columns, values) if is_small else ()),
        ),
    )


def _importance(feature: Feature, found: Shares, place: int, floor: float, p: float) -> Importance:
    """Return what the draws say of one parameter, `p` what the ANOVA says of it."""
    import numpy as np

    shares, curves = found.shares[:, place], found.curves[place]
    low, high = (float(q) for q in np.quantile(shares, [0.025, 0.975]))
    share, mean = float(shares.mean()), curves.mean(axis=0)
    band = np.quantile(curves, [0.025, 0.975], axis=0)
    effect_bytes = int(np.ptp(mean))
    # One in twenty draws may fall to the level that one in twenty draws of a dummy reaches: for something
    # that has no effect both at once are rare, which benchmarks/studies counts.
    # A small design has wide intervals; there the classical test may speak, for what lies above the floor.
    if np.quantile(shares, 0.05) > floor or (share > floor and p < CERTAIN):
        verdict = "driver" if share >= LEAST_SHARE else "little"
    else:
        verdict = "undecided" if high > COULD_MATTER else "none"
    return Importance(
        name=feature.name,
        share=share,
        low=low,
        high=high,
        verdict=verdict,
        words=effect(feature.name, share, low, high, floor, verdict, effect_bytes),
        effect_bytes=effect_bytes,
        values=tuple(feature.levels[i] for i in found.places[place]),
        curve_bytes=tuple(int(v) for v in mean),
        curve_low_bytes=tuple(int(v) for v in band[0]),
        curve_high_bytes=tuple(int(v) for v in band[1]),
    )


def _interactions(rows: list[Importance], table: tuple[AnovaRow, ...], is_small: bool) -> Iterable[AnovaRow]:
    """Yield the pairs that do more together than each alone, the largest share first.

    Of a pair of drivers that is likely; of others, which do nothing alone, it is said only where it is much, certain
    among all pairs, and the design large enough.
    """
    drivers = {r.name for r in rows if r.verdict == "driver"}
    pairs = [row for row in table if len(row.parameters) > 1]
    for row in pairs:
        if row.p is None:
            continue
        if drivers.issuperset(row.parameters):
            is_told = row.share >= LEAST_SHARE and row.p < CERTAIN
        else:
            is_told = not is_small and row.share >= COULD_MATTER and row.p < CERTAIN / len(pairs)
        if is_told:
            yield row


def _warnings(found: FigureAnalysis, parameters: int, disturbed: int) -> Iterable[str]:
    """Yield what speaks against the answer."""
    trials, wanted = found.trials + found.censored, TRIALS_PER_PARAMETER * parameters
    if trials < wanted:
        yield (
            f"{trials} trials for {count(parameters, 'parameter')} are a small design; {wanted} would be enough to "
            "trust what is not named"
        )
    if found.explained is not None and found.explained < 0.5:
        yield (
            f"the parameters explain {percent(max(found.explained, 0))} of what differs between left-out trials; "
            "the rest is noise, or something that was not varied"
        )
    if found.censored:
        yield (
            f"{found.censored} trials are only known to lie above their limit; they enter with the value expected "
            "above it, so shares of what drives memory up are rather too low"
        )
    if disturbed and found.figure in WHOLE_MACHINE:
        yield (
            f"it is of the whole machine, and {disturbed} of {found.trials} trials were disturbed by other work: "
            "what is named may be what others did meanwhile; --repeat-disturbed runs them again, and "
            'order = "random" keeps what drifts from following the size of the trials'
        )


def _repeat_spread(trials: list[Trial], name: str) -> float | None:
    points: dict[str, list[int]] = {}
    for trial in trials:
        points.setdefault(f"{trial.machine_name} {key_of(trial.params)}", []).append(trial.figures[name])
    spreads = [(max(v) - min(v)) / statistics.mean(v) for v in points.values() if len(v) > 1 and max(v)]
    return statistics.median(spreads) if spreads else None


def _agreements(trials: list[Trial]) -> Iterable[Agreement]:
    done = [t for t in trials if t.status == "done" and t.predicted is not None]
    for figure, of in (
        ("peak_allocated_bytes", lambda p: (p.allocated_bytes, None, None)),
        ("peak_resident_bytes", lambda p: (p.host_expected_bytes, p.host_low_bytes, p.host_high_bytes)),
        (
            "peak_process_device_bytes",
            lambda p: (p.device_expected_bytes, p.device_low_bytes, p.device_high_bytes),
        ),
    ):
        errors, inside = [], []
        for trial in done:
            expected, low, high = of(trial.predicted)
            measured = trial.figures.get(figure)
            if expected is not None and measured:
                errors.append(abs(expected - measured) / measured)
                if low is not None and high is not None:
                    inside.append(low <= measured <= high)
        if errors:
            yield Agreement(
                figure=figure,
                trials=len(errors),
                median_error=statistics.median(errors),
                highest_error=max(errors),
                inside_range=sum(inside) / len(inside) if inside else None,
            )
