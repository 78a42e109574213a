"""Training with Keras on TensorFlow: the same networks, data, optimizers and order of batches as with PyTorch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from memgauge.data import DataSet
from memgauge.data.records import Array
from memgauge.errors import UsageError
from memgauge.monitor.marks import mark, phase
from memgauge.training import Outcome, Training
from memgauge.training import keras_networks as networks
from memgauge.training.inputs import inputs_for, samples, whole
from memgauge.training.keras_optimizers import keras_optimizer
from memgauge.training.preparing import versions_of
from memgauge.training.progress import Progress
from memgauge.training.tensorflow_memory import memory_of, whole_gpu_notes

Step = Callable[[Array, Array], float | None]
_POLICIES = {"amp-bfloat16": "mixed_bfloat16", "amp-float16": "mixed_float16"}


def run(training: Training, data: DataSet) -> Outcome:
    """Build, train and evaluate."""
    if keras.backend.backend() != "tensorflow":
        raise UsageError(
            f"Keras runs on {keras.backend.backend()} here; memgauge trains Keras on TensorFlow: unset KERAS_BACKEND"
        )
    _set_up(training)
    notes = list(whole_gpu_notes())
    with phase("build"):
        models = _models(training)
        step = _step(training, models)
    progress = Progress(training, data.rows)
    last: float | None = None
    with phase("train"):
        if training.options.get("feed") == "arrays":
            last = _fit(training, data, models[0], progress)
            notes.append("the data set was given to fit() as a whole: Keras orders and copies it by itself")
        else:
            inputs = inputs_for(training)
            for chosen in progress.batches():
                last = step(*samples(data, inputs, chosen))
    memory = memory_of()
    with phase("evaluate"):
        accuracy = _accuracy(training, data, models[0])
    return Outcome(
        steps=progress.steps,
        epochs=len(progress.seconds_per_epoch),
        seconds=progress.seconds,
        seconds_per_epoch=tuple(progress.seconds_per_epoch),
        final_loss=last,
        accuracy=accuracy,
        synthetic_data=data.synthetic,
        parameters=sum(int(np.prod(v.shape)) for model in models for v in model.trainable_variables),
        memory=memory,
        versions=versions_of("keras"),
        notes=tuple(notes),
        data_source=data.source,
    )


def _set_up(training: Training) -> None:
    if training.options.get("device", "cpu") == "cpu":
        tf.config.set_visible_devices([], "GPU")
    elif not tf.config.list_physical_devices("GPU"):
        raise UsageError("device 'cuda': TensorFlow sees no GPU here; leave device out or write cpu")
    threads = int(training.options.get("threads") or os.environ.get("OMP_NUM_THREADS") or 0)
    if threads:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        except RuntimeError as error:
            if tf.config.threading.get_intra_op_parallelism_threads() != threads:
                raise UsageError(f"threads {threads}: TensorFlow runs already in this process") from error
    keras.utils.set_random_seed(training.seed)
    keras.config.set_dtype_policy(_POLICIES.get(training.precision, training.precision))


def _models(training: Training) -> tuple[Any, ...]:
    if training.model != "dcgan":
        return (networks.network(training),)
    size, width = inputs_for(training).shape[0], int(training.options.get("width", 64))
    if training.mode == "infer":
        return (networks.generator(size, width),)
    return networks.generator(size, width), networks.discriminator(size, width)


def _optimizer(training: Training) -> Any:
    name, arguments = keras_optimizer(training.optimizer, training.learning_rate)
    return getattr(keras.optimizers, name)(**arguments)


def _step(training: Training, models: tuple[Any, ...]) -> Step:
    """Return what does one step with input and target, and returns the loss if there is one."""
    model = models[0]
    if training.mode == "infer":
        if training.model == "dcgan":
            return lambda x, y: _predict(model, np.random.standard_normal((len(x), 1, 1, networks.NOISE)))
        return lambda x, y: _predict(model, x)
    if training.model == "dcgan":
        return _adversarial_step(training, *models)
    _compile(training, model)

    def step(x: Array, y: Array) -> float:
        model.reset_metrics()  # else the loss is the mean of all steps until now
        return float(model.train_on_batch(x, y))

    return step


def _compile(training: Training, model: Any) -> None:
    compiled = training.options.get("jit_compile")
    model.compile(
        optimizer=_optimizer(training),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile="auto" if compiled is None else compiled,
    )


def _predict(model: Any, x: Array) -> None:
    model.predict_on_batch(x)


def _adversarial_step(training: Training, generator: Any, discriminator: Any) -> Step:
    """Return DCGAN's step: the discriminator on real and made pictures, then the generator to deceive it."""
    generator_optimizer, discriminator_optimizer = _optimizer(training), _optimizer(training)
    generator_optimizer.build(generator.trainable_variables)
    discriminator_optimizer.build(discriminator.trainable_variables)
    entropy = keras.losses.BinaryCrossentropy()

    def judged(pictures: Any, real: float) -> Any:
        seen = discriminator(pictures, training=True)
        return entropy(tf.fill(tf.shape(seen), tf.cast(real, seen.dtype)), seen)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(real: Any) -> None:
        noise = tf.random.normal((tf.shape(real)[0], 1, 1, networks.NOISE), dtype=generator.compute_dtype)
        with tf.GradientTape() as making:
            made = generator(noise, training=True)
            with making.stop_recording():
                with tf.GradientTape() as judging:
                    loss = judged(real, 1.0) + judged(made, 0.0)
                of_judge = judging.gradient(loss, discriminator.trainable_variables)
                discriminator_optimizer.apply(of_judge, discriminator.trainable_variables)
            deceived = judged(made, 1.0)
        of_maker = making.gradient(deceived, generator.trainable_variables)
        generator_optimizer.apply(of_maker, generator.trainable_variables)

    return lambda x, y: step(tf.convert_to_tensor(x, dtype=generator.compute_dtype))


class _Epochs(keras.callbacks.Callback):  # type: ignore[misc]
    """Marks and times the epochs of `fit`, and ends it after the steps that were asked for."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress, self._begin = progress, 0.0
        self.loss: float | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        mark("epoch", epoch)
        self._begin = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._progress.seconds_per_epoch.append(time.perf_counter() - self._begin)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._progress.steps += 1
        self.loss = float(logs["loss"]) if logs and "loss" in logs else self.loss
        if self._progress.is_done():
            self.model.stop_training = True


def _fit(training: Training, data: DataSet, model: Any, progress: Progress) -> float | None:
    """Give the whole data set to `fit`, as most programs do; return the mean loss of the last epoch."""
    x, y = whole(data, inputs_for(training))
    watching = _Epochs(progress)
    model.fit(
        x,
        y,
        batch_size=training.batch_size,
        epochs=training.epochs,
        shuffle=True,
        verbose=0,
        callbacks=[watching],
    )
    return watching.loss


def _accuracy(training: Training, data: DataSet, model: Any) -> float | None:
    """Return the share of the held-out pictures that are classified rightly."""
    inputs = inputs_for(training)
    if data.held_out is None or inputs.takes not in ("vector", "picture"):
        return None
    pictures, labels = data.held_out
    right = 0
    for start in range(0, len(labels), training.batch_size):
        span = slice(start, start + training.batch_size)
        x, y = inputs.make(pictures[span], labels[span])
        right += int((np.argmax(model.predict_on_batch(x), axis=1) == y).sum())
    return right / len(labels)
