"""memgauge monitor -o run.mg -- python examples/with_keras.py; KERAS_BACKEND chooses the backend."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

from memgauge.callbacks.keras import MemoryPhases

model = keras.Sequential([keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
inputs, targets = np.random.rand(1024, 64).astype("float32"), np.random.randint(0, 10, 1024)
model.fit(inputs, targets, epochs=2, validation_split=0.2, verbose=0, callbacks=[MemoryPhases(steps=True)])
