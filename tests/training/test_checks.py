"""What is wrong with a training is said before anything runs, without loading a framework."""

import subprocess
import sys

import msgspec
import pytest

from memgauge.errors import UsageError
from memgauge.training import FIELDS, Outcome, Training, check, no_estimate_reason
from memgauge.training.checks import TORCH_OPTIMIZERS
from memgauge.training.networks import ESTIMATORS, NETWORKS


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"framework": "tensorflow"}, "framework 'tensorflow' is unknown"),
        ({"model": "alexnte"}, "nearest: alexnet"),
        ({"model": "resnet50", "framework": "keras"}, "is for torch, not for keras"),
        ({"model": "svc"}, "is for sklearn, not for torch"),
        ({"data": "cifar"}, "nearest: cifar10"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 1501}, "digits has 1,500 pictures"),
        ({"epochs": 0}, "epochs is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"optimizer": "adamm"}, "nearest: adam"),
        ({"optimizer": "sgd,lr=0.1"}, "write the rate as learning_rate"),
        ({"optimizer": "lbfgs", "framework": "keras"}, "optimizer of keras 'lbfgs'"),
        ({"optimizer": "sgd,dampening=1", "framework": "keras"}, "dampening is not the same in Keras"),
        ({"widths": ()}, "at least one hidden layer"),
        ({"widths": (10, 0)}, r"widths are \[10, 0\]"),
        ({"widths": (10,), "model": "alexnet"}, "alexnet has none"),
        ({"activation": "rellu"}, "nearest: relu"),
        ({"activation": "tanh", "model": "vgg16"}, "vgg16 has its own"),
        ({"precision": "int8"}, "precision 'int8'"),
        ({"mode": "test"}, "mode 'test'"),
        ({"data_access": "disk"}, "data_access 'disk'"),
        ({"model": "alexnet", "image_size": 32}, "needs at least 63"),
        ({"model": "dcgan", "image_size": 48}, "write 8, 16, 32"),
        ({"model": "torres-cnn", "data": "synthetic:100x32x32x2"}, "has 2 channels"),
        ({"model": "torres-cnn", "options": {"classes": 5}}, "digits has 10"),
        ({"model": "torres-cnn", "options": {"unit": 5}}, "nearest: units"),
        ({"model": "torres-cnn", "options": {"units": "many"}}, "must be of type int"),
        ({"model": "torres-cnn", "options": {"units": 0}}, "at least 1"),
        ({"model": "lstm", "options": {"sequence_length": 64}}, "has 64 values"),
        ({"model": "lstm", "options": {"vocabulary": 100}}, "at least 256"),
        ({"options": {"feed": "batch"}}, "nearest: batches"),
        ({"options": {"feed": "arrays"}, "mode": "infer"}, "feed 'arrays' is for training"),
        ({"options": {"device": "gpu"}}, "device 'gpu'"),
        ({"framework": "sklearn", "model": "svc", "steps": 3}, "takes all data at once"),
        ({"framework": "sklearn", "model": "svc", "mode": "infer"}, "is fitted"),
        ({"framework": "sklearn", "model": "svc", "precision": "bfloat16"}, "float32 and float64"),
        ({"data_dir": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"data": "mnist", "data_dir": "/nowhere/at/all"}, "is no folder"),
    ],
)
def test_a_wrong_training_is_refused_with_the_value_and_the_next_step(wrong, says):
    with pytest.raises(UsageError, match=says):
        check(Training(**wrong))


def test_checking_loads_no_framework():
    code = (
        "import sys\n"
        "from memgauge.training import Training, check\n"
        "for framework in ('torch', 'keras'): check(Training(framework=framework, model='torres-cnn', optimizer='adam'))\n"
        "check(Training(framework='sklearn', model='svc'))\n"
        "print(sorted({'torch', 'tensorflow', 'keras', 'sklearn'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_importing_memgauge_loads_no_numpy():
    code = "import sys, memgauge, memgauge.training; print('numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_the_optimizers_are_those_of_torch():
    from memgauge.frameworks.torch.recipe import optimizers

    assert sorted(TORCH_OPTIMIZERS) == sorted(optimizers())


def test_trainings_and_outcomes_are_plain_data():
    training = Training(widths=(3, 4), options={"threads": 1})
    assert msgspec.json.decode(msgspec.json.encode(training), type=Training) == training
    assert set(FIELDS) == {field.name for field in msgspec.structs.fields(Training)}
    assert "notes" in {field.name for field in msgspec.structs.fields(Outcome)}


def test_only_torch_is_predicted():
    assert no_estimate_reason(Training()) is None
    assert "TensorFlow" in str(no_estimate_reason(Training(framework="keras")))
    assert "scikit-learn" in str(no_estimate_reason(Training(framework="sklearn", model="svc")))


def test_models_have_one_meaning():
    assert not set(NETWORKS) & set(ESTIMATORS)
