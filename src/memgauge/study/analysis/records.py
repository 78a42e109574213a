"""The records of an analysis. Shares are of the variance, 0 to 1; memory is in bytes."""

from __future__ import annotations

from typing import Any

import msgspec

TIMES = " × "  # between the names of two parameters that interact


class Importance(msgspec.Struct, frozen=True, kw_only=True):
    """What one parameter does to one figure of memory.

    Attributes:
        share: Of the variance, by fANOVA; `low` and `high` hold 95 % of the bootstrap draws.
        verdict: `driver`, `little` (above the floor, but below half a percent), `none` (not above the floor) or `undecided` (the design is too small to say).
        effect_bytes: Highest less lowest point of its partial dependence.
        values, curve_bytes, curve_low_bytes, curve_high_bytes: The partial dependence, with 95 % bands.
    """

    name: str
    share: float
    low: float
    high: float
    verdict: str
    words: str
    effect_bytes: int
    values: tuple[Any, ...] = ()
    curve_bytes: tuple[int, ...] = ()
    curve_low_bytes: tuple[int, ...] = ()
    curve_high_bytes: tuple[int, ...] = ()


class AnovaRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the ANOVA table; `name` is a parameter or two joined by ×."""

    name: str
    degrees: float
    share: float  # eta squared: its sum of squares by the whole
    f: float | None
    p: float | None

    @property
    def parameters(self) -> list[str]:
        """The parameter, or both of an interaction."""
        return self.name.split(TIMES)


class Coefficient(msgspec.Struct, frozen=True, kw_only=True):
    """One coefficient of the mechanistic regression, in bytes per unit, with its 95 % interval."""

    name: str
    unit: str
    bytes: float
    low: float
    high: float


class Mechanism(msgspec.Struct, frozen=True, kw_only=True):
    """Memory = fixed + a × parameters + b × activations of the batch, within trials of one kind."""

    group: str  # what these trials have in common: optimizer=adam
    trials: int
    censored: int
    coefficients: tuple[Coefficient, ...]
    explained: float  # R²
    residual_bytes: int  # root mean square


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted against measured, over the trials that have both."""

    figure: str
    trials: int
    median_error: float  # relative, absolute value
    highest_error: float
    inside_range: float | None  # share of trials within the predicted range


class FigureAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of memory, explained."""

    figure: str
    title: str
    how: str
    trials: int
    censored: int
    low_bytes: int
    high_bytes: int
    repeat_spread: float | None  # median over repeated points of (highest − lowest) by their mean
    explained: float | None  # R² over left-out trials
    floor: float | None  # share that dummies stay below in 95 % of the draws
    importances: tuple[Importance, ...] = ()
    anova: tuple[AnovaRow, ...] = ()
    mechanisms: tuple[Mechanism, ...] = ()
    warnings: tuple[str, ...] = ()
    conclusion: tuple[str, ...] = ()


class Analysis(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.analysis/1"):
    """What a study says."""

    study: str
    trials: int
    by_status: dict[str, int]
    machines: tuple[str, ...]
    disturbed: int
    figures: tuple[FigureAnalysis, ...]
    agreement: tuple[Agreement, ...]
    conclusion: tuple[str, ...]  # of all figures, and the remarks
    remarks: tuple[str, ...]  # what became of trials that are not done
    warnings: tuple[str, ...]
