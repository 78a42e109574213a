"""What a way of feeding holds of the data set beside the data set itself, in bytes. No framework is imported."""

from __future__ import annotations

import math
from dataclasses import dataclass

from memgauge.data import describe
from memgauge.training import Training
from memgauge.training.inputs import inputs_for
from memgauge.training.networks import INCREMENTAL, NETWORKS

# Copies of the array that is given to `fit`, beside it: one of TensorFlow's, one on the way there. Three in all
# were resident for DT1 and for twice as many rows: docs/studies/torres.md, Keras 3.15 on TensorFlow 2.21.
KERAS_FIT_COPIES = 2
_VALUE_BYTES = {"float64": 8, "float16": 2, "bfloat16": 2}  # float32 and mixed precision feed float32


@dataclass(frozen=True, slots=True)
class Copies:
    """Arrays with all samples that live beside the data set while a network is trained.

    Attributes:
        count: How many; 0 if the framework gets batches.
        bytes: All of them together.
    """

    count: int
    bytes: int


def copies_of(training: Training) -> Copies:
    """Return what the framework holds of the whole data set beside the loaded one, at least."""
    what = describe(training.data)
    kind_bytes = _VALUE_BYTES.get(training.precision, 4)
    if training.framework == "sklearn":
        flat = 0 if training.model in INCREMENTAL else what.rows * what.picture_values * kind_bytes
        return Copies(int(flat > 0), flat)
    if training.options.get("feed") != "arrays":
        return Copies(0, 0)
    inputs = inputs_for(training)
    values = what.rows * math.prod(inputs.shape)
    if training.framework == "torch":
        return Copies(1, values * (8 if inputs.takes == "tokens" else kind_bytes))
    # `whole` gives the data set's own array where that is the input already.
    shape = (what.height, what.width, what.channels)
    is_own = what.kind == "synthetic" and inputs.takes == "picture" and inputs.shape == shape
    count = KERAS_FIT_COPIES + (not is_own)
    return Copies(count, count * values * (8 if inputs.takes == "tokens" else 4))


def data_bytes(training: Training) -> int:
    """Return what the loaded data set holds for certain: nothing if it is mapped, whose pages the kernel may drop."""
    return 0 if training.data_access == "mapped" else describe(training.data).pictures_bytes


def torch_twin(training: Training) -> Training | None:
    """Return the same training in PyTorch, None where there is none."""
    from msgspec.structs import replace

    network = NETWORKS.get(training.model)
    if network is None or "torch" not in network.frameworks:
        return None
    options = {n: v for n, v in training.options.items() if n not in ("tf_bfc", "jit_compile", "feed")}
    return replace(training, framework="torch", options=options)
