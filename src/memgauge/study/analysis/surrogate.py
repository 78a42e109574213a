"""What memory looks like as a function of the parameters: a Gaussian process.

Each parameter has a length scale of its own, found by maximum likelihood, and there is noise; so what does not matter
gets a scale so long that it does nothing, and a hundred trials are enough to see an effect of a thousandth. A forest
on the same trials sees none below some percents, and names a learning rate now and then (docs/studies.md has both).
From scikit-learn.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Places = NDArray[np.int64]

_MOST_FITTED = 120  # trials from which the scales are found; the work grows with their cube
_STARTS = (2.0,)  # length scales at which the search begins; parameters go from −1 to 1


class Feature(NamedTuple):
    """One parameter over the trials.

    Attributes:
        name: Its name.
        levels: The values tried, in order; None first, where it does not exist.
        codes: (trials n,), places in `levels`.
        columns: (levels, columns) numbers that stand for each value: one, scaled to −1 … 1, or one per name.
    """

    name: str
    levels: tuple[Any, ...]
    codes: Places
    columns: Floats


def feature(name: str, values: list[Any]) -> Feature:
    """Return a column of values as a feature; None means that the parameter does not exist in a trial.

    Where it does not exist it counts as its middle: that something is absent is the doing of the parameter that its
    condition names.
    """
    import numpy as np

    known = [v for v in dict.fromkeys(values) if v is not None]
    numeric = all(isinstance(v, (int, float)) for v in known)
    ordered: list[Any] = sorted(known) if numeric else sorted(known, key=str)
    levels = ([None] if any(v is None for v in values) else []) + ordered
    places = {level: place for place, level in enumerate(levels)}
    codes = np.array([places[v] for v in values], dtype=np.int64)
    columns = _scaled(levels, codes) if numeric and known else _named(levels)
    return Feature(name, tuple(levels), codes, columns)


def _scaled(levels: list[Any], codes: Places) -> Floats:
    """Return values from −1 to 1, by their logarithm if that spreads the trials more evenly."""
    import numpy as np

    numbers = np.array([np.nan if v is None else float(v) for v in levels])
    known = ~np.isnan(numbers)
    tried = numbers[codes][known[codes]]
    if tried.min() > 0 and _unevenness(np.log(tried)) < _unevenness(tried):
        numbers = np.log(numbers)
    low, high = np.nanmin(numbers), np.nanmax(numbers)
    scaled = np.where(known, (numbers - low) / ((high - low) or 1.0) * 2 - 1, 0.0)
    return scaled[:, None]


def _named(levels: list[Any]) -> Floats:
    """Return one column per name."""
    import numpy as np

    absent = int(levels[0] is None)
    count = len(levels) - absent
    known = np.eye(count)[:, 1:] if count > 1 else np.zeros((count, 1))
    return np.vstack([known.mean(axis=0)] * absent + [known])


def _unevenness(values: Floats) -> float:
    import numpy as np

    span = values.max() - values.min()
    return abs(float((np.median(values) - values.min()) / span) - 0.5) if span > 0 else 0.5


class Surrogate:
    """A Gaussian process over some features: predicts bytes for any combination of values.

    Args:
        features: The parameters, dummies with them.
        values: (trials n,), bytes.
        log: Whether the logarithm of memory is fitted.
        seed: Which trials the scales are found from, if there are very many.
    """

    def __init__(self, features: list[Feature], values: Floats, log: bool, seed: int = 0) -> None:
        import numpy as np

        self._features, self._log, self._values = features, log, values
        self.table = self.inputs(np.column_stack([f.codes for f in features]))
        rows = np.arange(len(values))
        if len(rows) > _MOST_FITTED:
            rows = np.random.default_rng(seed).permutation(rows)[:_MOST_FITTED]
        self.kernel = _found_scales(self.table[rows], self._target()[rows])

    def inputs(self, codes: Places) -> Floats:
        """Return the numbers that stand for rows of places."""
        import numpy as np

        return np.column_stack([f.columns[codes[:, j]] for j, f in enumerate(self._features)])

    def _target(self) -> Floats:
        import numpy as np

        found: Floats = np.log(self._values) if self._log else self._values
        return found

    def of(self, rows: Places) -> Any:
        """Return the process given these trials only, its scales as found from all: a function of inputs."""
        import numpy as np

        model = _fitted(self.kernel, self.table[rows], self._target()[rows], False)

        def predict(inputs: Floats) -> Floats:
            found: Floats = model.predict(inputs)
            return np.exp(np.clip(found, None, 60)) if self._log else found

        return predict


def _kernel(columns: int, scale: float = 2.0) -> Any:
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    scales = RBF([scale] * columns, (0.4, 1e3))
    return ConstantKernel(4.0, (0.1, 1e3)) * scales + WhiteKernel(1e-2, (1e-8, 1.0))


def _found_scales(table: Floats, target: Floats) -> Any:
    """Return the kernel of the highest likelihood; the search is started from several scales."""
    models = [_fitted(_kernel(table.shape[1], scale), table, target, True) for scale in _STARTS]
    return max(models, key=lambda m: m.log_marginal_likelihood_value_).kernel_


def _fitted(kernel: Any, table: Floats, target: Floats, search: bool) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor

    optimizer = "fmin_l_bfgs_b" if search else None
    model = GaussianProcessRegressor(kernel, normalize_y=True, optimizer=optimizer, alpha=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a scale at its bound means: does not matter
        return model.fit(table, target)


def takes_logarithm(features: list[Feature], values: Floats) -> bool:
    """Return whether the logarithm of memory predicts left-out trials better than memory itself."""
    import numpy as np

    if values.min() <= 0:
        return False
    n = len(values)
    held = np.arange(n) % 5 == 0 if n >= 10 else np.zeros(n, dtype=bool)
    if not held.any() or values[held].var() == 0:
        return False
    errors = {}
    for log in (False, True):
        kept = [f._replace(codes=f.codes[~held]) for f in features]
        surrogate = Surrogate(kept, values[~held], log)
        inputs = surrogate.inputs(np.column_stack([f.codes[held] for f in features]))
        found = surrogate.of(np.arange(int((~held).sum())))(inputs)
        errors[log] = float(((found - values[held]) ** 2).mean())
    return errors[True] < errors[False]
