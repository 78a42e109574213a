"""Functional ANOVA: which share of the variance of memory each parameter explains on its own.

The mean of the prediction over all other parameters, as a function of one, has a variance; its share of the whole is
that parameter's importance (Hutter, Hoos, Leyton-Brown 2014, "An efficient approach for assessing hyperparameter
importance"), and the function itself is its partial dependence. Each bootstrap draw takes trials with replacement,
beside columns of noise that the surrogate was fitted with as well: what these reach is the floor below which nothing
is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from memgauge.study.analysis.surrogate import Feature, Surrogate, feature

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ROUNDS, DRAWS, DUMMIES = 5, 10, 2  # new dummies and scales; draws in each; dummies in each
_MOST_TRIALS, _MOST_LEVELS, _MOST_ROWS = 400, 10, 60  # per draw; more changes nothing but the time


class Shares(NamedTuple):
    """What the draws found.

    Attributes:
        shares: (draws, parameters), each 0 to 1.
        dummies: (draws, dummies).
        places: Per parameter the places of its values at which the curve is known.
        curves: Per parameter (draws, places), bytes.
        explained: (draws,), R² over the trials that a draw left out.
    """

    shares: Floats
    dummies: Floats
    places: list[NDArray[np.int64]]
    curves: list[Floats]
    explained: Floats


def importances(
    features: list[Feature], values: Floats, log: bool, *, seed: int = 0, rounds: int = ROUNDS
) -> Shares:
    """Return importances and curves of the parameters for `values` (trials n,), bytes.

    Args:
        features: The parameters.
        values: The memory of each trial.
        log: Whether the logarithm is fitted, by `surrogate.takes_logarithm`.
        seed: Of draws and dummies.
        rounds: How often the surrogate is fitted with new dummies.
    """
    import numpy as np

    # A number of our own beside the seed: a design made with the same seed must not be one of the dummies.
    source = np.random.default_rng([seed, 0x6D656D])
    n = len(values)
    spread = max(float(values.var()), 1e-12)
    places = [_spread(len(f.levels)) for f in features]
    shares, dummies, explained = [], [], []
    curves: list[list[Floats]] = [[] for _ in features]
    for _ in range(rounds):
        every = [*features, *(_dummy(source, n, place) for place in range(DUMMIES))]
        codes = np.column_stack([f.codes for f in every])
        surrogate = Surrogate(every, values, log, int(source.integers(2**31)))
        every_places = [*places, *(_spread(len(d.levels)) for d in every[len(features) :])]
        weights = [_weights(f, at) for f, at in zip(every, every_places, strict=True)]
        for _ in range(DRAWS):
            rows = source.integers(0, n, min(n, _MOST_TRIALS))
            predict = surrogate.of(rows)
            left_out = np.setdiff1d(np.arange(n), rows)[: 4 * _MOST_ROWS]
            explained.append(
                _r2(predict(surrogate.table[left_out]) if len(left_out) else values[:0], values[left_out])
            )
            base = codes[source.permutation(n)[:_MOST_ROWS]]
            found = []
            for j, at in enumerate(every_places):
                curve = _curve(lambda c, p=predict, s=surrogate: p(s.inputs(c)), base, j, at)
                found.append(_variance(curve, weights[j]))
                if j < len(features):
                    curves[j].append(curve)
            whole = _whole(surrogate, predict, codes, source) + max(0.0, 1 - explained[-1]) * spread
            shares.append(np.array(found[: len(features)]) / max(whole, 1e-12))
            dummies.append(np.array(found[len(features) :]) / max(whole, 1e-12))
    return Shares(
        np.clip(shares, 0, 1),
        np.clip(dummies, 0, 1),
        places,
        [np.array(c) for c in curves],
        np.array(explained),
    )


def _whole(surrogate: Surrogate, predict: Any, codes: NDArray[np.int64], source: Any) -> float:
    """Return the variance of the prediction where all parameters vary independently, as the curves assume."""
    import numpy as np

    rows = np.column_stack([source.choice(column, 5 * _MOST_ROWS) for column in codes.T])
    return float(predict(surrogate.inputs(rows)).var())


def _variance(curve: Floats, weights: Floats) -> float:
    import numpy as np

    mean = np.average(curve, weights=weights)
    return float(np.average((curve - mean) ** 2, weights=weights))


def _dummy(source: Any, n: int, place: int) -> Feature:
    """Return a column that means nothing: a number per trial, or one of four values."""
    values = source.random(n) if place % 2 == 0 else source.integers(0, 4, n) / 4
    return feature(f"dummy {place}", [float(v) for v in values])


def _spread(levels: int) -> NDArray[np.int64]:
    import numpy as np

    return np.unique(np.linspace(0, levels - 1, min(levels, _MOST_LEVELS)).round().astype(np.int64))


def _weights(feature: Feature, at: NDArray[np.int64]) -> Floats:
    """Return how often the values near each place were tried."""
    import numpy as np

    nearest = np.abs(feature.codes[:, None] - at[None, :]).argmin(axis=1)
    return np.bincount(nearest, minlength=len(at)).astype(float)


def _curve(predict: Any, base: NDArray[np.int64], j: int, at: NDArray[np.int64]) -> Floats:
    import numpy as np

    rows = np.repeat(base, len(at), axis=0)
    rows[:, j] = np.tile(at, len(base))
    found: Floats = predict(rows).reshape(len(base), len(at)).mean(axis=0)
    return found


def _r2(found: Floats, values: Floats) -> float:
    if len(values) < 2 or values.var() == 0:
        return 1.0
    return float(1 - ((found - values) ** 2).mean() / values.var())
