"""Memory as it should be: fixed + a × parameters + b × activations of a batch, coefficients in bytes.

a says how many copies of the parameters live at the peak (4 bytes each in float32: weights, gradients, optimizer state),
b how much is kept per element of the layers' outputs. A trial that ran out of memory counts as "above its limit":
its value is the one expected above that bound, found in turns with the coefficients (Tobin 1958).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memgauge.study.analysis.records import Coefficient, Mechanism

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEAST_TRIALS = 6
_TURNS = 50


def mechanism(
    group: str,
    parameters: Sequence[float],
    activations: Sequence[float],
    values: Sequence[float],
    is_censored: Sequence[bool],
) -> Mechanism | None:
    """Return the regression over trials of one kind; None if there are too few, or nothing varies.

    Args:
        group: What they have in common.
        parameters: Count of parameters.
        activations: Elements of all layers' outputs for one batch.
        values: Bytes; the bound for a censored trial.
        is_censored: Whether the memory lies above the value.
    """
    import numpy as np
    from scipy import stats

    y = np.asarray(values, dtype=float)
    censored = np.asarray(is_censored, dtype=bool)
    sources = [
        ("parameters", "bytes per parameter", parameters),
        ("activations", "bytes per activation", activations),
    ]
    kept = [
        (n, u, np.asarray(x, dtype=float)) for n, u, x in sources if np.ptp(np.asarray(x, dtype=float)) > 0
    ]
    if (~censored).sum() < LEAST_TRIALS or not kept:
        return None
    design = np.column_stack([np.ones(len(y)), *(x for _, _, x in kept)])
    if np.linalg.matrix_rank(design / design.max(axis=0)) < design.shape[1]:
        kept = kept[:1]
        design = design[:, :2]
    found, residual = _fit(design, y, censored)
    seen = ~censored
    freedom = max(int(seen.sum()) - design.shape[1], 1)
    deviation = np.sqrt(float((residual[seen] ** 2).sum()) / freedom)
    errors = deviation * np.sqrt(np.diag(np.linalg.pinv(design.T @ design)))
    reach = float(stats.t.ppf(0.975, freedom))
    names = [("fixed", "bytes"), *((n, u) for n, u, _ in kept)]
    spread = float(((y[seen] - y[seen].mean()) ** 2).sum())
    return Mechanism(
        group=group,
        trials=int(seen.sum()),
        censored=int(censored.sum()),
        coefficients=tuple(
            Coefficient(name=n, unit=u, bytes=float(b), low=float(b - reach * e), high=float(b + reach * e))
            for (n, u), b, e in zip(names, found, errors, strict=True)
        ),
        explained=1 - float((residual[seen] ** 2).sum()) / spread if spread else 1.0,
        residual_bytes=round(float(np.sqrt((residual[seen] ** 2).mean()))),
    )


def _fit(design: Floats, y: Floats, censored: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return coefficients and residuals by least squares, censored values filled in until they stand still."""
    import numpy as np

    scale = np.abs(design).max(axis=0)
    filled = y.copy()
    for _ in range(_TURNS if censored.any() else 1):
        found = np.linalg.lstsq(design / scale, filled, rcond=None)[0] / scale
        if not censored.any():
            break
        mean = design @ found
        filled = np.where(censored, expected_above(y, mean, float((filled - mean)[~censored].std())), y)
    return found, filled - design @ found


def expected_above(bound: Floats, mean: Floats, deviation: float) -> Floats:
    """Return what a normal value is on average, given that it lies above a bound."""
    import numpy as np
    from scipy import stats

    if deviation <= 0:
        return np.maximum(bound, mean)
    z = (bound - mean) / deviation
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        found = mean + deviation * np.exp(stats.norm.logpdf(z) - stats.norm.logsf(z))
    return np.where(np.isfinite(found), np.maximum(found, bound), np.maximum(bound, mean))
