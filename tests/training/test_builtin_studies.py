"""The built-in studies: each can be run as it stands, and Mahendran's is that of his tables."""

import pytest

from memgauge.reproduce.mahendran_trials import EXPERIMENTS
from memgauge.study.file import builtin_names, read
from memgauge.study.plan import points_of, subject_of
from memgauge.training import check

NAMES = ("denneman", "frameworks", "mahendran", "mahendran-random", "torres", "torres-alexnet")


def test_the_studies_of_the_four_texts_are_there():
    assert set(NAMES) <= set(builtin_names())


@pytest.mark.parametrize("name", builtin_names())
def test_every_trial_can_be_trained(name):
    study = read(name)
    for point in points_of(study):
        check(subject_of(study, point, threads=1).training)


def test_mahendrans_networks_are_those_of_his_tables():
    ours = [
        (p["data"], tuple(p["widths"]), p["batch_size"], p["learning_rate"])
        for p in points_of(read("mahendran"))
    ]
    theirs = [
        (data, trial.widths, trial.batch_size, float(trial.rate))
        for data, experiment in zip(("mnist", "fashion-mnist", "cifar10"), EXPERIMENTS, strict=True)
        for trial in experiment.trials
    ]
    assert ours == theirs
    assert len(ours) == 11 + 5 + 5


def test_torres_varies_what_he_varied():
    points = points_of(read("torres"))
    assert {(p["framework"], p["data"]) for p in points} == {
        (f, d) for f in ("torch", "keras") for d in ("dt1", "dt2")
    }
    assert {p["batch_size"] for p in points} == {32, 64, 128, 256, 512}
    assert read("torres").limits.epochs == 10
