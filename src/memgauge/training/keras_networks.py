"""The zoo's networks in Keras, layer by layer; pictures with channels last.

Each has as many trainable parameters as the zoo's form, with one exception: an LSTM has one bias for
each gate in Keras and two, which are only ever added, in torch: 4 × width less for each layer.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from memgauge.data import describe
from memgauge.training import Training
from memgauge.training.inputs import COLOURS, inputs_for
from memgauge.training.networks import DEFAULT_WIDTHS

NOISE = 100
_VGG_CHANNELS = (1, 2, 4, 8, 8)  # of a block, in widths


def network(training: Training) -> Any:
    """Return the Keras model of a training that predicts classes or tokens; logits, not probabilities."""
    shape = inputs_for(training).shape
    options = training.options
    classes = int(options.get("classes", describe(training.data).classes))
    if training.model == "mlp":
        return mlp(shape, training.widths or DEFAULT_WIDTHS, classes, training.activation)
    if training.model == "torres-cnn":
        filters = _counts(options.get("filters", "32,64,64"))
        return torres_cnn(shape, filters, int(options.get("units", 32)), classes, training.activation)
    if training.model == "alexnet":
        return alexnet(shape, classes, int(options.get("width", 64)))
    if training.model == "vgg16":
        blocks = _counts(options.get("blocks", "2,2,3,3,3"))
        return vgg16(shape, blocks, classes, int(options.get("width", 64)))
    return lstm(
        shape[0],
        layer_count=int(options.get("layers", 2)),
        width=int(options.get("width", 200)),
        vocabulary=int(options.get("vocabulary", 33_278)),
        dropout=float(options.get("dropout", 0.2)),
    )


def mlp(shape: tuple[int, ...], widths: tuple[int, ...], classes: int, activation: str) -> Any:
    """Return dense layers. x: (batch B, inputs) -> (B, classes)."""
    hidden = [layers.Dense(width, activation=_activation(activation)) for width in widths]
    return keras.Sequential([keras.Input(shape), *hidden, layers.Dense(classes)])


def torres_cnn(
    shape: tuple[int, ...], filters: tuple[int, ...], units: int, classes: int, activation: str
) -> Any:
    """Return table 1 of Torres 2021. x: (B, S, S, 3) -> (B, classes)."""
    first, second, third = (layers.Conv2D(f, 3, activation=_activation(activation)) for f in filters)
    return keras.Sequential(
        [
            keras.Input(shape),
            first,
            layers.MaxPooling2D(2),
            second,
            layers.MaxPooling2D(2),
            third,
            layers.Flatten(),
            layers.Dense(units, activation=_activation(activation)),
            layers.Dense(classes),
        ]
    )


def alexnet(shape: tuple[int, ...], classes: int, width: int) -> Any:
    """Return AlexNet of 2014. x: (B, S, S, 3) -> (B, classes)."""
    stages = [
        keras.Input(shape),
        layers.ZeroPadding2D(2),
        layers.Conv2D(width, 11, strides=4, activation="relu"),
        layers.MaxPooling2D(3, 2),
        layers.Conv2D(3 * width, 5, padding="same", activation="relu"),
        layers.MaxPooling2D(3, 2),
        layers.Conv2D(6 * width, 3, padding="same", activation="relu"),
        layers.Conv2D(4 * width, 3, padding="same", activation="relu"),
        layers.Conv2D(4 * width, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(3, 2),
    ]
    dense = 64 * width
    classifier = [
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(dense, activation="relu"),
        layers.Dropout(0.5),
        layers.Dense(dense, activation="relu"),
        layers.Dense(classes),
    ]
    return keras.Sequential([*stages, *_pooled_to(stages, 6), *classifier])


def vgg16(shape: tuple[int, ...], blocks: tuple[int, ...], classes: int, width: int) -> Any:
    """Return VGG-16. x: (B, S, S, 3) -> (B, classes)."""
    stages: list[Any] = [keras.Input(shape)]
    for count, times in zip(blocks, _VGG_CHANNELS, strict=True):
        stages += [layers.Conv2D(times * width, 3, padding="same", activation="relu") for _ in range(count)]
        stages.append(layers.MaxPooling2D(2))
    dense = 64 * width
    classifier = [
        layers.Flatten(),
        layers.Dense(dense, activation="relu"),
        layers.Dropout(0.5),
        layers.Dense(dense, activation="relu"),
        layers.Dropout(0.5),
        layers.Dense(classes),
    ]
    return keras.Sequential([*stages, *_pooled_to(stages, 7), *classifier])


def lstm(length: int, *, layer_count: int, width: int, vocabulary: int, dropout: float) -> Any:
    """Return the language model. tokens: (batch B, sequence L) -> (B, L, vocabulary)."""
    stages: list[Any] = [keras.Input((length,), dtype="int64"), layers.Embedding(vocabulary, width)]
    stages.append(layers.Dropout(dropout))
    for _ in range(layer_count):
        stages += [layers.LSTM(width, return_sequences=True), layers.Dropout(dropout)]
    return keras.Sequential([*stages, layers.Dense(vocabulary)])


def generator(image_size: int, width: int) -> Any:
    """Return DCGAN's generator. noise: (B, 1, 1, 100) -> pictures (B, S, S, 3) from −1 to 1."""
    stages: list[Any] = [keras.Input((1, 1, NOISE))]
    for i, channels in enumerate(_gan_channels(width, image_size)[::-1]):
        place = {"padding": "valid"} if i == 0 else {"padding": "same", "strides": 2}
        stages += [layers.Conv2DTranspose(channels, 4, use_bias=False, **place), _normalised(), layers.ReLU()]
    last = layers.Conv2DTranspose(COLOURS, 4, strides=2, padding="same", use_bias=False, activation="tanh")
    return keras.Sequential([*stages, last])


def discriminator(image_size: int, width: int) -> Any:
    """Return DCGAN's discriminator. pictures: (B, S, S, 3) -> how real they look: (B, 1)."""
    stages: list[Any] = [keras.Input((image_size, image_size, COLOURS))]
    for i, channels in enumerate(_gan_channels(width, image_size)):
        stages.append(layers.Conv2D(channels, 4, strides=2, padding="same", use_bias=False))
        stages += [_normalised()] * (i > 0)
        stages.append(layers.LeakyReLU(0.2))
    last = layers.Conv2D(1, 4, use_bias=False, activation="sigmoid")
    return keras.Sequential([*stages, last, layers.Flatten()])


def _pooled_to(stages: list[Any], size: int) -> list[Any]:
    """Return torch's adaptive pooling where it does something: the maps are not of that size already."""
    maps = keras.Sequential(list(stages)).output_shape[1:3]
    return [] if maps == (size, size) else [AdaptivePooling(size)]


class AdaptivePooling(layers.Layer):  # type: ignore[misc]
    """torch's adaptive average pooling to (S, S), for maps of any size; Keras's own refuses smaller ones.

    Output i is the mean of the inputs from floor(i · H / S) to ceil((i + 1) · H / S): one matrix for each side.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def build(self, input_shape: tuple[int, ...]) -> None:
        self._sides = tuple(self._matrix(length) for length in input_shape[1:3])

    def call(self, maps: Any) -> Any:
        rows, columns = (ops.cast(side, maps.dtype) for side in self._sides)
        return ops.einsum("ih,bhwc,jw->bijc", rows, maps, columns)

    def _matrix(self, length: int) -> Any:
        weights = np.zeros((self._size, length), np.float32)
        for i in range(self._size):
            first, last = i * length // self._size, -(-(i + 1) * length // self._size)
            weights[i, first:last] = 1 / (last - first)
        return weights


def _gan_channels(width: int, image_size: int) -> list[int]:
    return [width * 2**i for i in range((image_size // 4).bit_length() - 1)]


def _normalised() -> Any:
    """Return batch normalisation with torch's constants."""
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)


def _activation(name: str) -> Any:
    """Return an activation with torch's constants."""
    return layers.LeakyReLU(0.01) if name == "leaky-relu" else name


def _counts(text: object) -> tuple[int, ...]:
    return tuple(int(part) for part in str(text).split(","))
