"""Estimators of scikit-learn: in steps where they learn in steps, else with all data at once."""

import warnings

import pytest

from memgauge.errors import UsageError
from memgauge.training import Training, train
from memgauge.training.networks import ESTIMATORS, INCREMENTAL


@pytest.mark.parametrize("model", ESTIMATORS)
def test_an_estimator_learns_the_digits(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence
        found = train(Training(framework="sklearn", model=model, epochs=3, learning_rate=0.01))
    assert found.accuracy > 0.7
    assert found.steps == (3 * 47 if model in INCREMENTAL else 1)
    assert bool(found.notes) is (model not in INCREMENTAL)
    assert "scikit-learn" in found.versions


def test_parameters_are_counted():
    linear = train(Training(framework="sklearn", model="sgd-classifier", steps=2))
    assert linear.parameters == 64 * 10 + 10
    network = train(Training(framework="sklearn", model="mlp-classifier", widths=(7,), steps=2))
    assert network.parameters == 64 * 7 + 7 + 7 * 10 + 10
    assert train(Training(framework="sklearn", model="decision-tree")).parameters is None


def test_its_own_arguments_are_given_and_checked():
    small = train(
        Training(framework="sklearn", model="random-forest", options={"n_estimators": 1, "threads": 1})
    )
    large = train(Training(framework="sklearn", model="random-forest", options={"n_estimators": 30}))
    assert large.accuracy > small.accuracy
    with pytest.raises(UsageError, match="nearest: n_estimators"):
        train(Training(framework="sklearn", model="random-forest", options={"n_estimator": 1}))
