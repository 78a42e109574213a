"""Training with PyTorch: it learns, and the estimator gets what is trained."""

import numpy as np
import pytest
import torch

from memgauge.data import load
from memgauge.estimate import estimate
from memgauge.frameworks.torch.trial_run import allocated_peaks
from memgauge.training import Training, torch_loop, train, workload
from memgauge.workload import Workload

SMALL = "synthetic:24x32x32x3"
NETWORKS = [
    Training(model="mlp", data=SMALL, batch_size=6, widths=(50, 20), optimizer="adam"),
    Training(model="mlp", data=SMALL, batch_size=6, precision="float64", activation="gelu"),
    Training(model="torres-cnn", data=SMALL, batch_size=6, optimizer="sgd,momentum=0.9"),
    Training(model="torres-cnn", data="digits", batch_size=6, options={"filters": "4,5,6", "units": 7}),
    Training(model="alexnet", data=SMALL, batch_size=6, image_size=64, options={"width": 4}),
    Training(model="vgg16", data=SMALL, batch_size=6, image_size=32, options={"width": 4}),
    Training(model="dcgan", data=SMALL, batch_size=6, image_size=16, options={"width": 4}, optimizer="adam"),
    Training(model="lstm", data=SMALL, batch_size=6, options={"width": 8, "vocabulary": 300}),
    Training(model="resnet50", data=SMALL, batch_size=6, image_size=32, options={"width": 4}),
    Training(model="torres-cnn", data=SMALL, batch_size=6, mode="infer"),
]
named = pytest.mark.parametrize("training", NETWORKS, ids=lambda t: f"{t.model}-{t.precision}-{t.mode}")


def test_a_network_learns_the_digits():
    found = train(Training(epochs=8, learning_rate=0.1, options={"threads": 1}))
    assert (found.steps, found.epochs, len(found.seconds_per_epoch)) == (8 * 47, 8, 8)
    assert found.accuracy > 0.85 and found.final_loss < 1
    assert not found.synthetic_data and found.versions["torch"].startswith(torch.__version__[:4])


def test_steps_end_a_training_and_the_last_batch_is_smaller():
    assert train(Training(epochs=9, steps=50)).steps == 50
    assert train(Training(data=SMALL, batch_size=10, epochs=2)).steps == 2 * 3
    found = train(Training(data=SMALL, batch_size=10, steps=1))
    assert (found.steps, found.epochs, found.accuracy, found.synthetic_data) == (1, 1, None, True)


def test_the_same_seed_gives_the_same_loss_and_another_another():
    first, second, other = (train(Training(steps=20, seed=seed)).final_loss for seed in (3, 3, 4))
    assert first == second != other


def shapes(batch):
    tensors = batch if isinstance(batch, tuple) else (batch,)
    return [(tuple(t.shape), t.dtype, t.stride()) for t in tensors]


@named
def test_the_estimators_batches_are_those_that_are_trained_on(training):
    made = workload(training)
    data = load(training.data)
    make = torch_loop._batches(training, data, made, torch.device("cpu"))
    assert shapes(make(np.arange(training.batch_size))) == shapes(made.batch("cpu"))


@named
def test_the_estimate_holds_for_the_loop_itself(training):
    """The peak of the loop's own batches and steps under torch's profiler, against the estimate."""
    made = workload(training)
    data = load(training.data)
    make = torch_loop._batches(training, data, made, torch.device("cpu"))
    looped = Workload(
        build=made.build,
        batch=lambda: make(np.arange(training.batch_size)),
        step=made.step,
        mode=training.mode,
    )
    torch.set_num_threads(1)
    measured = allocated_peaks(looped, steps=2)["peak_allocated_bytes"]
    predicted = estimate(made, steps=2, threads=1).peak.allocated_bytes
    assert predicted == pytest.approx(measured, rel=0.01)


def test_data_given_as_a_whole_trains_alike():
    batches, arrays = (train(Training(steps=30, options={"feed": feed})) for feed in ("batches", "arrays"))
    assert batches.final_loss == arrays.final_loss


def test_a_mapped_data_set_trains_alike(mnist_files):
    losses = {
        train(
            Training(data="mnist", data_dir=str(mnist_files), data_access=access, batch_size=7, epochs=2)
        ).final_loss
        for access in ("memory", "mapped")
    }
    assert len(losses) == 1


def test_cuda_that_is_not_here_is_named():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    from memgauge.errors import UsageError

    with pytest.raises(UsageError, match="torch sees no CUDA GPU"):
        train(Training(steps=1, options={"device": "cuda"}))
