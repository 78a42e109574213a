"""The classical analysis of variance: sums of squares of type II, with interactions of two (statsmodels).

Numbers enter as they are if more than a few values were tried, else as groups. The logarithm of memory is not taken:
shares are of bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from memgauge.study.analysis.records import TIMES, AnovaRow

_MOST_GROUPS = 6  # values of a parameter up to which each is a group of its own
_MOST_PARAMETERS = 12  # above, pairs would outnumber the trials of any study


def anova(columns: dict[str, list[Any]], values: Sequence[float]) -> tuple[AnovaRow, ...]:
    """Return the table, largest share first; empty where there are too few trials for it.

    Args:
        columns: Values per trial, by parameter.
        values: Bytes per trial.
    """
    import numpy as np
    import pandas as pd

    names = [n for n, column in columns.items() if len({str(v) for v in column}) > 1][:_MOST_PARAMETERS]
    if not names or float(np.var(values)) == 0:
        return ()
    frame = pd.DataFrame({"y": np.asarray(values, dtype=float) / 1e6})
    terms: dict[str, str] = {}
    for place, name in enumerate(names):
        column = columns[name]
        kinds = {str(v) for v in column}
        numeric = all(isinstance(v, (int, float)) for v in column if v is not None)
        if numeric and len(kinds) > _MOST_GROUPS:
            numbers = np.asarray([np.nan if v is None else v for v in column], dtype=float)
            numbers = np.where(np.isnan(numbers), np.nanmean(numbers), numbers)  # absent: as the average
            if numbers.min() > 0 and numbers.max() > 30 * numbers.min():
                numbers = np.log(numbers)
            spread = numbers.std() or 1.0
            frame[f"x{place}"] = (numbers - numbers.mean()) / spread
            terms[name] = f"x{place}"
        else:
            frame[f"x{place}"] = [str(v) for v in column]
            terms[name] = f"C(x{place}, Sum)"
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    for chosen in (pairs, []):
        formula = "y ~ " + " + ".join([*terms.values(), *(f"{terms[a]}:{terms[b]}" for a, b in chosen)])
        table = _table(formula, frame)
        if table is not None:
            return _rows(table, terms, chosen)
    return ()


def pair_name(first: str, second: str) -> str:
    """Return what the interaction of two parameters is called."""
    return f"{first}{TIMES}{second}"


def _table(formula: str, frame: Any) -> Any:
    from statsmodels.formula.api import ols
    from statsmodels.stats.anova import anova_lm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a design that is not full rank: seen by its degrees of freedom
        try:
            model = ols(formula, frame).fit()
            full = model.model.rank if hasattr(model.model, "rank") else model.df_model + 1
            if model.df_resid < max(3, 0.1 * len(frame)) or full < model.model.exog.shape[1]:
                return None
            return anova_lm(model, typ=2)
        except (ValueError, ArithmeticError, ImportError):
            return None


def _rows(table: Any, terms: dict[str, str], pairs: list[tuple[str, str]]) -> tuple[AnovaRow, ...]:
    import math

    names = {term: name for name, term in terms.items()}
    names |= {f"{terms[a]}:{terms[b]}": pair_name(a, b) for a, b in pairs}
    whole = float(table["sum_sq"].sum()) or 1.0
    rows = []
    for term, row in table.iterrows():
        f, p = float(row["F"]), float(row["PR(>F)"])
        rows.append(
            AnovaRow(
                name=names.get(str(term), "residual" if term == "Residual" else str(term)),
                degrees=float(row["df"]),
                share=float(row["sum_sq"]) / whole,
                f=None if math.isnan(f) else f,
                p=None if math.isnan(p) else p,
            )
        )
    return tuple(sorted(rows, key=lambda r: (r.name == "residual", -r.share)))
