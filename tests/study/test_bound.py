"""What has no estimate has a lower bound, of which every part is named, and is not run where that does not fit."""

from __future__ import annotations

import json

import numpy as np
import pytest
from places import Place

from memgauge.data import load
from memgauge.study.plan import Subject
from memgauge.study.predictor import Question, answer
from memgauge.training import Training
from memgauge.training.feed import KERAS_FIT_COPIES, copies_of
from memgauge.training.inputs import inputs_for, whole

HEAD = '[study]\nname = "try"\nthreads = 1\nbaselines = 1\n'
MIB = 2**20


def asked(training: Training, baseline_bytes: int | None = 500 * MIB) -> Question:
    return Question(subject=Subject(training=training, threads=1), baseline_bytes=baseline_bytes)


@pytest.mark.parametrize("data", ["digits", "synthetic:100x32x32x3", "synthetic:100x20x20x1"])
@pytest.mark.parametrize("model", ["torres-cnn", "mlp", "lstm"])
def test_copies_are_as_large_as_the_arrays_that_are_made(data: str, model: str) -> None:
    keras = Training(framework="keras", model=model, data=data, options={"feed": "arrays"}, image_size=None)
    if model == "torres-cnn" and data == "digits":
        keras = Training(framework="keras", model=model, data=data, options={"feed": "arrays"}, image_size=32)
    loaded = load(data)
    x, _ = whole(loaded, inputs_for(keras))
    own = np.shares_memory(x, loaded.parts[0])
    assert copies_of(keras).bytes == x.nbytes * (KERAS_FIT_COPIES + (not own))
    batches = Training(framework="keras", model=model, data=data)
    assert copies_of(batches).bytes == 0


def test_the_bound_of_keras_is_baseline_copies_and_pytorchs_count() -> None:
    pytest.importorskip("tensorflow")
    common = {"model": "torres-cnn", "data": "synthetic:1000x32x32x3", "batch_size": 256, "optimizer": "adam"}
    same = answer(asked(Training(framework="torch", **common))).predicted
    found = answer(
        asked(Training(framework="keras", options={"feed": "arrays", "tf_bfc": True}, **common))
    ).predicted
    copies = 2 * 1000 * 32 * 32 * 3 * 4
    assert same.allocated_bytes is not None and same.allocated_bytes > 80 * MIB
    assert found.host_low_bytes == 500 * MIB + copies + same.allocated_bytes
    assert found.host_expected_bytes is None and found.allocated_bytes is None  # it is no estimate
    assert found.bound is not None and "PyTorch's count" in found.bound and "2 copies" in found.bound


def test_without_a_baseline_the_data_are_counted() -> None:
    training = Training(framework="sklearn", model="svc", data="synthetic:1000x32x32x3")
    found = answer(asked(training, None)).predicted
    assert found.host_low_bytes == 2 * 1000 * 32 * 32 * 3 * 4  # the data, and all of it laid flat


def test_a_tensor_of_all_data_is_in_the_range_of_pytorch() -> None:
    common = {"model": "torres-cnn", "data": "synthetic:1000x32x32x3"}
    batches = answer(asked(Training(**common))).predicted
    arrays = answer(asked(Training(options={"feed": "arrays"}, **common))).predicted
    assert batches.host_low_bytes is not None and arrays.host_low_bytes is not None
    assert arrays.host_low_bytes - batches.host_low_bytes == 1000 * 32 * 32 * 3 * 4
    assert arrays.allocated_bytes == batches.allocated_bytes


def test_what_cannot_fit_even_by_its_bound_is_not_run_and_the_table_says_at_least(place: Place) -> None:
    place.study(
        "[limits]\nsteps = 1\ntrial_memory = '350MiB'\n"
        "[fixed]\nframework = 'sklearn'\nmodel = 'gaussian-nb'\n"
        "[space.data]\nvalues = ['digits', 'synthetic:40000x32x32x3']\n",
        HEAD,
    )
    shown = place.memgauge("study", "run", "study.toml", "--plan", code=1)
    assert shown.count("at least") >= 3 and "lower bound" in shown
    place.memgauge("study", "run", "study.toml")
    trials = json.loads(place.memgauge("study", "show", "try.study", "--json"))["trials"]
    assert [t["status"] for t in trials] == ["done", "does-not-fit"]
    assert trials[0]["predicted"]["host_low_bytes"] <= trials[0]["figures"]["peak_resident_bytes"]
    assert "takes at least" in trials[1]["cause"] and "baseline with its data" in trials[1]["cause"]
