"""Training estimators of scikit-learn: in steps where they learn in steps, else with all data at once."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
import sklearn  # noqa: F401  the import phase of a recording is here
from msgspec.structs import replace

from memgauge.data import DataSet
from memgauge.data.records import Array
from memgauge.errors import UsageError, nearest
from memgauge.monitor.marks import phase
from memgauge.training import Outcome, Training
from memgauge.training.networks import COMMON_OPTIONS, DEFAULT_WIDTHS, INCREMENTAL
from memgauge.training.preparing import versions_of
from memgauge.training.progress import Progress

_PLACES = {
    "sgd-classifier": "linear_model.SGDClassifier",
    "mlp-classifier": "neural_network.MLPClassifier",
    "perceptron": "linear_model.Perceptron",
    "gaussian-nb": "naive_bayes.GaussianNB",
    "logistic-regression": "linear_model.LogisticRegression",
    "random-forest": "ensemble.RandomForestClassifier",
    "extra-trees": "ensemble.ExtraTreesClassifier",
    "hist-gradient-boosting": "ensemble.HistGradientBoostingClassifier",
    "k-nearest-neighbors": "neighbors.KNeighborsClassifier",
    "svc": "svm.SVC",
    "decision-tree": "tree.DecisionTreeClassifier",
}


def run(training: Training, data: DataSet) -> Outcome:
    """Build, fit and score."""
    with phase("build"):
        estimator = _estimator(training)
    kind = np.dtype(training.precision)
    in_steps = training.model in INCREMENTAL
    progress = Progress(training if in_steps else replace(training, epochs=1), data.rows)
    notes: list[str] = []
    with phase("train"):
        if in_steps:
            classes = np.arange(data.classes)
            for chosen in progress.batches():
                pictures, labels = data.take(chosen)
                estimator.partial_fit(_vectors(pictures, data.highest, kind), labels, classes=classes)
        else:
            notes.append(
                f"{training.model} is fitted with all data at once: batch size and epochs do not apply"
            )
            for _ in progress.epochs():
                estimator.fit(_vectors(data.all_pictures(), data.highest, kind), data.labels)
                progress.steps += 1
    with phase("evaluate"):
        accuracy = None
        if data.held_out is not None:
            pictures, labels = data.held_out
            accuracy = float(estimator.score(_vectors(pictures, data.highest, kind), labels))
    loss = getattr(estimator, "loss_", None)
    return Outcome(
        steps=progress.steps,
        epochs=len(progress.seconds_per_epoch),
        seconds=progress.seconds,
        seconds_per_epoch=tuple(progress.seconds_per_epoch),
        final_loss=float(loss) if isinstance(loss, (float, np.floating)) else None,
        accuracy=accuracy,
        synthetic_data=data.synthetic,
        parameters=parameters_of(estimator),
        memory={},
        versions=versions_of("sklearn"),
        notes=tuple(notes),
        data_source=data.source,
    )


def kind_of(model: str) -> Any:
    """Return the class of an estimator; imports what it needs."""
    module, _, name = _PLACES[model].partition(".")
    return getattr(importlib.import_module(f"sklearn.{module}"), name)


def _estimator(training: Training) -> Any:
    kind = kind_of(training.model)
    known = inspect.signature(kind).parameters
    arguments: dict[str, Any] = {}
    if "random_state" in known:
        arguments["random_state"] = training.seed
    if training.model == "sgd-classifier":
        arguments |= {"learning_rate": "constant", "eta0": training.learning_rate}
    elif training.model == "perceptron":
        arguments["eta0"] = training.learning_rate
    elif training.model == "mlp-classifier":
        arguments |= {
            "hidden_layer_sizes": training.widths or DEFAULT_WIDTHS,
            "learning_rate_init": training.learning_rate,
            "solver": training.optimizer,
            "batch_size": training.batch_size,
            "activation": "logistic" if training.activation == "sigmoid" else training.activation,
        }
    threads = training.options.get("threads")
    if threads is not None and "n_jobs" in known:
        arguments["n_jobs"] = int(threads)
    for option, value in training.options.items():
        if option in COMMON_OPTIONS["sklearn"]:
            continue
        if option not in known:
            raise UsageError(
                f"option {option!r} is unknown to scikit-learn's {kind.__name__}{nearest(option, known)}; "
                f"it takes {', '.join(known)}"
            )
        arguments[option] = value
    return kind(**arguments)


def _vectors(pictures: Array, highest: float, kind: np.dtype[Any]) -> Array:
    """Return pictures laid flat, from 0 to 1: (rows, values)."""
    flat: Array = pictures.reshape(len(pictures), -1).astype(kind)
    if highest != 1:
        flat /= kind.type(highest)
    return flat


def parameters_of(estimator: Any) -> int | None:
    """Return how many numbers a linear model or a network has learned; None for trees and stored samples."""
    if hasattr(estimator, "coefs_"):
        return sum(int(one.size) for one in (*estimator.coefs_, *estimator.intercepts_))
    weights = getattr(estimator, "coef_", None)
    if isinstance(weights, np.ndarray):
        return int(weights.size + np.size(estimator.intercept_))
    return None
