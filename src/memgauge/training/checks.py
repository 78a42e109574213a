"""What can be wrong with a training, found before anything runs and without any framework."""

from __future__ import annotations

import importlib.util
import math

from memgauge.arguments import MODES, PRECISIONS, check_choice, check_positive
from memgauge.data import catalogue, files
from memgauge.data.loading import ACCESS
from memgauge.errors import UsageError, missing_extra, nearest
from memgauge.training import FRAMEWORKS, Training, keras_optimizers
from memgauge.training.networks import (
    ACTIVATIONS,
    COMMON_OPTIONS,
    ESTIMATORS,
    FEEDS,
    INCREMENTAL,
    NETWORKS,
    PIXEL_VALUES,
    WITH_ACTIVATION,
    Network,
    models_of,
)

# The optimizers of torch.optim 2.13 that train any network, and those of them that Keras has too.
TORCH_OPTIMIZERS = (
    "adadelta adafactor adagrad adam adamax adamw asgd lbfgs nadam radam rmsprop rprop sgd".split()
)
SKLEARN_OPTIMIZERS = {"mlp-classifier": ("sgd", "adam")}
_SKLEARN_ACTIVATIONS = ("relu", "tanh", "sigmoid")
_PACKAGES = {
    "torch": ("torch", "torch"),
    "keras": ("tensorflow", "tensorflow"),
    "sklearn": ("sklearn", "data"),
}


def check_training(training: Training) -> None:
    """Raise what `memgauge.training.check` says."""
    check_choice("framework", training.framework, FRAMEWORKS)
    _check_model(training)
    for name in ("batch_size", "epochs", "steps", "image_size"):
        check_positive(name, getattr(training, name))
    check_choice("mode", training.mode, MODES)
    check_choice("precision", training.precision, PRECISIONS)
    check_choice("data_access", training.data_access, ACCESS)
    if not (math.isfinite(training.learning_rate) and training.learning_rate > 0):
        raise UsageError(f"learning_rate is {training.learning_rate}; it must be above 0")
    if training.seed < 0:
        raise UsageError(f"seed is {training.seed}; it must be at least 0")
    what = catalogue.describe(training.data)
    if training.batch_size > what.rows:
        raise UsageError(
            f"batch_size is {training.batch_size:,}, but {training.data} has {what.rows:,} pictures to train on"
        )
    _check_optimizer(training)
    _check_widths(training)
    _check_activation(training)
    _check_options(training)
    if training.framework == "sklearn":
        _check_estimator(training)
    else:
        _check_pictures(training, what, NETWORKS[training.model])
    files.check_files(what, training.data_dir)
    _check_installed(training)


def _check_model(training: Training) -> None:
    known = models_of(training.framework)
    if training.model in known:
        return
    elsewhere = [f for f in FRAMEWORKS if training.model in models_of(f)]
    if elsewhere:
        raise UsageError(
            f"model {training.model!r} is for {' and '.join(elsewhere)}, not for {training.framework}; "
            f"{training.framework} has {', '.join(known)}"
        )
    raise UsageError(
        f"model {training.model!r} is unknown{nearest(training.model, known)}; it is {', '.join(known)}"
    )


def _check_optimizer(training: Training) -> None:
    name, _, arguments = training.optimizer.partition(",")
    known: tuple[str, ...] = tuple(
        TORCH_OPTIMIZERS if training.framework == "torch" else keras_optimizers.NAMES
    )
    if training.framework == "sklearn":
        known = SKLEARN_OPTIMIZERS.get(training.model, ("sgd",))
        if arguments:
            raise UsageError(f"optimizer {training.optimizer!r}: scikit-learn's take no arguments here")
    check_choice(f"optimizer of {training.framework}", name, known)
    if any(part.strip().startswith("lr=") for part in arguments.split(",")):
        raise UsageError(f"optimizer {training.optimizer!r}: write the rate as learning_rate")
    if training.framework == "keras":
        keras_optimizers.keras_optimizer(training.optimizer, training.learning_rate)


def _check_widths(training: Training) -> None:
    if training.widths is None:
        return
    if training.model not in ("mlp", "mlp-classifier"):
        raise UsageError(f"widths are for mlp and mlp-classifier; {training.model} has none")
    if not training.widths or min(training.widths) < 1:
        raise UsageError(
            f"widths are {list(training.widths)}; give at least one hidden layer, each of at least 1"
        )


def _check_activation(training: Training) -> None:
    if training.framework == "sklearn":
        known = _SKLEARN_ACTIVATIONS if training.model == "mlp-classifier" else ("relu",)
        check_choice(f"activation of {training.model}", training.activation, known)
        return
    check_choice("activation", training.activation, ACTIVATIONS)
    if training.activation != "relu" and training.model not in WITH_ACTIVATION:
        raise UsageError(
            f"activation {training.activation!r}: {training.model} has its own; it can be chosen for "
            f"{' and '.join(WITH_ACTIVATION)}"
        )


def _check_options(training: Training) -> None:
    known = dict(COMMON_OPTIONS[training.framework])
    if training.framework == "sklearn":  # its own arguments are known when it is imported
        values = {name: training.options[name] for name in known if name in training.options}
    else:
        known |= NETWORKS[training.model].options
        values = dict(training.options)
    for name, value in values.items():
        if name not in known:
            raise UsageError(
                f"option {name!r} is unknown to {training.framework}'s {training.model}{nearest(name, known)}; "
                f"it takes {', '.join(known)}"
            )
        kind = known[name]
        fits = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise UsageError(f"option {name} is {value!r}; it must be of type {kind.__name__}")
        if kind is int and int(value) < 1:
            raise UsageError(f"option {name} is {value}; it must be at least 1")
    if "device" in values:
        check_choice("device", str(values["device"]), ("cpu", "cuda"))
    if "feed" in values:
        check_choice("feed", str(values["feed"]), FEEDS)
        if values["feed"] == "arrays" and (training.model == "dcgan" or training.mode == "infer"):
            raise UsageError("feed 'arrays' is for training a network that classifies or reads tokens")


def _check_estimator(training: Training) -> None:
    if training.mode != "train":
        raise UsageError("mode 'infer' is for torch and keras; an estimator of scikit-learn is fitted")
    if training.precision not in ("float32", "float64"):
        raise UsageError(f"precision {training.precision!r}: scikit-learn has float32 and float64")
    if training.image_size is not None:
        raise UsageError("image_size is for networks; an estimator takes the pictures as they are")
    if training.steps is not None and training.model not in INCREMENTAL:
        raise UsageError(
            f"steps: {training.model} takes all data at once; those that learn in steps are {', '.join(INCREMENTAL)}"
        )
    assert training.model in ESTIMATORS


def _check_pictures(training: Training, what: catalogue.Description, network: Network) -> None:
    size = image_size(training, what, network)
    if network.takes == "tokens":
        _check_tokens(training, what)
        return
    if size is not None and size < network.least_size:
        raise UsageError(f"image_size is {size}; {training.model} needs at least {network.least_size}")
    if training.model == "dcgan" and size is not None and size & (size - 1):
        raise UsageError(
            f"image_size is {size}; dcgan halves a picture down to 4: write 8, 16, 32, 64, 128, …"
        )
    if network.takes in ("picture", "reals") and what.channels not in (1, 3):
        raise UsageError(
            f"{training.model} takes grey pictures or three colours; {what.name} has {what.channels} channels"
        )
    classes = int(training.options.get("classes", what.classes))
    if classes < what.classes:
        raise UsageError(f"classes is {classes}, but {what.name} has {what.classes}")


def _check_tokens(training: Training, what: catalogue.Description) -> None:
    length = int(training.options.get("sequence_length", SEQUENCE_LENGTH))
    if what.picture_values <= length:
        raise UsageError(
            f"sequence_length is {length}, but a picture of {what.name} has {what.picture_values} values, "
            "and the last one is a target only"
        )
    if int(training.options.get("vocabulary", PIXEL_VALUES)) < PIXEL_VALUES:
        raise UsageError(f"vocabulary must be at least {PIXEL_VALUES}: a token is one byte of a picture")


SEQUENCE_LENGTH = 35  # the zoo's default


def image_size(training: Training, what: catalogue.Description, network: Network) -> int | None:
    """Return the height and width that a network gets, or None if it takes pictures as they are."""
    if training.image_size is not None:
        if network.takes == "tokens":
            raise UsageError(f"image_size: {training.model} reads a picture's values as they are")
        return training.image_size
    if network.image_size is not None:
        return network.image_size
    if network.takes == "picture":  # any size will do; square, and no smaller than it can be
        return max(
            what.height, what.width, _USUAL_SIZE if min(what.height, what.width) < network.least_size else 0
        )
    return None


_USUAL_SIZE = 32


def _check_installed(training: Training) -> None:
    package, extra = _PACKAGES[training.framework]
    if importlib.util.find_spec(package) is None:
        raise missing_extra(package, extra)
