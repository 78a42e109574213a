"""The networks in Keras: the same as the zoo's, by their parameters, their outputs and their training."""

import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("tensorflow")

from memgauge.training import Outcome, Training, torch_loop, train
from memgauge.training import keras_networks as networks
from memgauge.training.inputs import inputs_for
from memgauge.training.keras_optimizers import NAMES, keras_optimizer
from memgauge.training.tensorflow_memory import takes_whole_gpu

SMALL = "synthetic:24x32x32x3"
CLASSIFIERS = [
    Training(model="mlp", data=SMALL, batch_size=4, widths=(50, 20)),
    Training(model="mlp", data="digits", batch_size=4, widths=(9,), activation="leaky-relu"),
    Training(model="torres-cnn", data=SMALL, batch_size=4, activation="tanh"),
    Training(model="alexnet", data=SMALL, batch_size=4, image_size=64, options={"width": 8}),
    Training(model="alexnet", data=SMALL, batch_size=2, image_size=224, options={"width": 8}),
    Training(model="vgg16", data=SMALL, batch_size=4, image_size=32, options={"width": 8}),
    Training(
        model="vgg16", data=SMALL, batch_size=2, image_size=224, options={"width": 8, "blocks": "1,1,2,2,2"}
    ),
]
named = pytest.mark.parametrize(
    "training", CLASSIFIERS, ids=lambda t: f"{t.model}-{t.image_size}-{t.activation}"
)


def torch_model(training):
    built = torch_loop.torch_workload(training).build("cpu")
    return built[0] if isinstance(built, tuple) else built


def count(model):
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


def copy_weights(source, target, *, after_flattening):
    """Give a Keras model the weights of a torch model: layer by layer, axes in Keras's order.

    A dense layer behind maps has its inputs in the order of channels first in torch, channels last in Keras.
    """
    modules = [m for m in source.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    layers = [layer for layer in target.layers if layer.get_weights()]
    assert len(modules) == len(layers)
    waiting = after_flattening
    for module, layer in zip(modules, layers, strict=True):
        weight, bias = module.weight.detach().numpy(), module.bias.detach().numpy()
        if isinstance(module, nn.Conv2d):
            weight = weight.transpose(2, 3, 1, 0)
        else:
            if waiting is not None:
                channels, height, width = waiting
                weight = weight.reshape(-1, channels, height, width).transpose(0, 2, 3, 1)
                weight = weight.reshape(len(weight), -1)
                waiting = None
            weight = weight.T
        layer.set_weights([weight, bias])


def maps_before_dense(model, training):
    """Return (channels, height, width) of what torch lays flat; None for a network of dense layers only."""
    if training.model == "mlp":
        return None
    seen = []
    place = model.pool if hasattr(model, "pool") else model.features
    hook = place.register_forward_hook(lambda _module, _inputs, output: seen.append(tuple(output.shape[1:])))
    size = inputs_for(training).shape[0]
    model.eval()(torch.zeros(1, 3, size, size))
    hook.remove()
    return seen[0]


def samples(training):
    shape = inputs_for(training).shape
    return np.random.default_rng(0).random((training.batch_size, *shape), np.float32)


def as_torch(x):
    return torch.from_numpy(x.transpose(0, 3, 1, 2).copy() if x.ndim == 4 else x)


@named
def test_parameters_are_as_many_as_in_torch(training):
    assert count(networks.network(training)) == sum(p.numel() for p in torch_model(training).parameters())


@named
def test_equal_weights_give_equal_outputs(training):
    ours = torch_model(training).eval()
    theirs = networks.network(training)
    copy_weights(ours, theirs, after_flattening=maps_before_dense(ours, training))
    x = samples(training)
    with torch.no_grad():
        expected = ours(as_torch(x)).numpy()
    np.testing.assert_allclose(theirs(x, training=False).numpy(), expected, rtol=1e-3, atol=1e-4)


def test_the_known_networks_have_their_known_sizes():
    thousand = "synthetic:24x32x32x3:1000"
    for model, parameters in (("alexnet", 61_100_840), ("vgg16", 138_357_544)):
        assert count(networks.network(Training(model=model, data=thousand))) == parameters
    assert count(networks.network(Training(model="torres-cnn", data=SMALL))) == 89_450
    assert count(networks.generator(64, 64)) == 3_576_704
    assert count(networks.discriminator(64, 64)) == 2_765_568


def test_an_lstm_has_one_bias_less_for_each_gate_than_in_torch():
    training = Training(model="lstm", data=SMALL)
    ours = sum(p.numel() for p in torch_model(training).parameters())
    assert ours - count(networks.network(training)) == 2 * 4 * 200


@pytest.mark.parametrize(
    "optimizer", ["sgd", "sgd,momentum=0.9", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "adamax"]
)
def test_equal_weights_are_trained_alike(optimizer):
    """Five steps with the same batches from the same weights: the losses go the same way in both frameworks."""
    from memgauge.training import keras_loop

    rate = 0.0003 if optimizer == "rmsprop" else 0.003  # its first step is ten rates, whatever the gradient
    training = Training(model="torres-cnn", data="digits", optimizer=optimizer, learning_rate=rate)
    made = torch_loop.torch_workload(training)
    model, torch_optimizer = made.build("cpu")
    theirs = networks.network(training)
    copy_weights(model, theirs, after_flattening=maps_before_dense(model, training))
    step = keras_loop._step(training, (theirs,))
    model.train()
    random = np.random.default_rng(1)
    for _ in range(5):
        x, y = random.random((16, 32, 32, 3), np.float32), random.integers(0, 10, 16)
        ours = float(made.step(model, torch_optimizer, (as_torch(x), torch.from_numpy(y))))
        assert step(x, y) == pytest.approx(ours, rel=2e-3)


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "mlp", "learning_rate": 0.1, "epochs": 8},
        {"model": "torres-cnn", "optimizer": "adam", "learning_rate": 0.003, "epochs": 2},
    ],
)
def test_both_frameworks_learn_the_digits(changed):
    ours, theirs = (train(Training(framework=f, **changed)) for f in ("torch", "keras"))
    assert ours.steps == theirs.steps
    assert ours.parameters == theirs.parameters
    assert ours.accuracy > 0.6 and theirs.accuracy > 0.6
    assert set(theirs.versions) == {"python", "tensorflow", "keras", "numpy"}


def test_steps_end_a_training():
    for options in ({}, {"feed": "arrays"}):
        found = train(Training(framework="keras", epochs=9, steps=50, options=options))
        assert (found.steps, found.epochs) == (50, 2)


@pytest.mark.parametrize(
    "training",
    [
        Training(
            framework="keras", model="dcgan", data=SMALL, batch_size=4, image_size=16, options={"width": 4}
        ),
        Training(
            framework="keras", model="lstm", data=SMALL, batch_size=4, options={"width": 8, "vocabulary": 300}
        ),
        Training(framework="keras", model="torres-cnn", data=SMALL, batch_size=5, mode="infer"),
        Training(framework="keras", model="mlp", data=SMALL, batch_size=5, precision="amp-bfloat16"),
    ],
    ids=lambda t: f"{t.model}-{t.mode}",
)
def test_the_others_run(training):
    found = train(training)
    assert found.steps == -(-24 // training.batch_size)
    assert found.parameters > 0


def in_a_process(training, **environment):
    """Train in a fresh process, where TensorFlow has not begun yet."""
    code = (
        "import sys, msgspec; from memgauge.training import Training, train; "
        "print(msgspec.json.encode(train(msgspec.json.decode(sys.argv[1], type=Training))).decode())"
    )
    text = msgspec.json.encode(training).decode()
    found = subprocess.run(
        [sys.executable, "-c", code, text],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return msgspec.json.decode(found.stdout.splitlines()[-1], type=Outcome)


def test_tensorflows_own_peak_is_complete_and_grows_with_the_batch():
    peaks = []
    for batch_size in (16, 128):
        training = Training(
            framework="keras",
            model="torres-cnn",
            data="digits",
            batch_size=batch_size,
            steps=3,
            optimizer="adam",
        )
        found = in_a_process(training)
        peaks.append(found.memory["tf_cpu_peak_bytes"])
    weights_and_moments = 3 * 4 * 89_450
    first_maps = 4 * 32 * 30 * 30  # of one picture
    assert peaks[0] > weights_and_moments + 16 * first_maps
    assert peaks[1] - peaks[0] > (128 - 16) * first_maps


def test_without_bfc_the_figure_has_another_name():
    training = Training(framework="keras", steps=2, options={"tf_bfc": False})
    # By itself TensorFlow takes oneDNN only on processors with instructions for it (AVX512_VNNI and later ones).
    found = in_a_process(training, TF_ENABLE_ONEDNN_OPTS="1")
    assert list(found.memory) == ["tf_cpu_large_blocks_peak_bytes"]
    assert list(in_a_process(training, TF_ENABLE_ONEDNN_OPTS="0").memory) == []
    # What the user has set comes first.
    assert list(in_a_process(training, TF_CPU_ALLOCATOR_USE_BFC="1").memory) == ["tf_cpu_peak_bytes"]


@pytest.mark.parametrize(
    ("limited", "grows", "forced", "whole"),
    [
        (False, False, None, True),
        (False, True, None, False),
        (True, False, None, False),
        (False, False, "true", False),
        (False, True, "false", True),
        (False, False, "", True),
    ],
)
def test_when_tensorflow_takes_the_whole_gpu(limited, grows, forced, whole):
    assert takes_whole_gpu(limited, grows, forced) is whole


def test_optimizers_have_torchs_defaults():
    import inspect

    for name in NAMES:
        _, arguments = keras_optimizer(name, 0.5)
        theirs = {key: p.default for key, p in inspect.signature(_torch_optimizer(name)).parameters.items()}
        assert arguments["learning_rate"] == 0.5
        if "epsilon" in arguments:
            assert arguments["epsilon"] in (theirs["eps"], theirs["eps"] ** 2)
        if "beta_1" in arguments:
            assert (arguments["beta_1"], arguments["beta_2"]) == theirs["betas"]
    assert keras_optimizer("adam,betas=(0.5,0.9)", 0.1)[1]["beta_1"] == 0.5


def _torch_optimizer(name):
    return next(kind for kind in vars(torch.optim).values() if getattr(kind, "__name__", "").lower() == name)
