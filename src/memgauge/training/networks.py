"""What can be trained: each network with its input, its frameworks and its own arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Input = Literal["vector", "picture", "reals", "tokens"]
PIXEL_VALUES = 256  # a picture read as text: one token for each value


@dataclass(frozen=True, slots=True)
class Network:
    """One network of the zoo as a training uses it.

    Attributes:
        frameworks: Those that have it.
        takes: `vector` (a picture laid flat), `picture` (and its class), `reals` (pictures without a class),
            `tokens` (a picture's values one after the other, the next one as the target).
        options: Its own arguments with their types; the zoo has their meaning.
        image_size: Its usual height and width; None if it takes the data set's own.
        least_size: The smallest height and width that it takes.
        has_classes: Its output has as many classes as the data set, if `classes` is not given.
    """

    frameworks: tuple[str, ...]
    takes: Input
    options: dict[str, type]
    image_size: int | None = None
    least_size: int = 1
    has_classes: bool = True


_BOTH = ("torch", "keras")
NETWORKS: dict[str, Network] = {
    "mlp": Network(_BOTH, "vector", {}),
    "torres-cnn": Network(_BOTH, "picture", {"filters": str, "units": int, "classes": int}, least_size=18),
    "alexnet": Network(_BOTH, "picture", {"classes": int, "width": int}, 224, 63),
    "vgg16": Network(_BOTH, "picture", {"blocks": str, "classes": int, "width": int}, 224, 32),
    "dcgan": Network(_BOTH, "reals", {"width": int}, 64, 8, has_classes=False),
    "lstm": Network(
        _BOTH,
        "tokens",
        {"sequence_length": int, "layers": int, "width": int, "vocabulary": int, "dropout": float},
        has_classes=False,
    ),
    "googlenet": Network(("torch",), "picture", {"classes": int}, 224, 32),
    "resnet50": Network(("torch",), "picture", {"classes": int, "blocks": str, "width": int}, 224, 32),
}
# Estimators of scikit-learn: which learn batch by batch (`partial_fit`), and which take all data at once.
INCREMENTAL = ("sgd-classifier", "mlp-classifier", "perceptron", "gaussian-nb")
WHOLE = (
    "logistic-regression",
    "random-forest",
    "extra-trees",
    "hist-gradient-boosting",
    "k-nearest-neighbors",
    "svc",
    "decision-tree",
)
ESTIMATORS = (*INCREMENTAL, *WHOLE)
# Arguments of a training that are no network's own.
COMMON_OPTIONS: dict[str, dict[str, type]] = {
    "torch": {"threads": int, "device": str, "feed": str, "checkpointing": bool},
    "keras": {"threads": int, "device": str, "feed": str, "tf_bfc": bool, "jit_compile": bool},
    "sklearn": {"threads": int},
}
FEEDS = ("batches", "arrays")
ACTIVATIONS = ("relu", "tanh", "sigmoid", "gelu", "elu", "silu", "leaky-relu")
WITH_ACTIVATION = ("mlp", "torres-cnn")
DEFAULT_WIDTHS = (128, 64)


def models_of(framework: str) -> tuple[str, ...]:
    """Return the names of the models that a framework has."""
    if framework == "sklearn":
        return ESTIMATORS
    return tuple(name for name, network in NETWORKS.items() if framework in network.frameworks)
