"""The process that makes the estimates of a study: one for all trials, apart from the runner.

    python -P -m memgauge.study.predictor

It reads one JSON line per trial and answers with one. User code runs here, so what it leaks, prints or
breaks is not the runner's.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from typing import Any

import msgspec

from memgauge.errors import MemgaugeError, UsageError
from memgauge.records import Range
from memgauge.study.plan import Subject
from memgauge.study.records import Predicted
from memgauge.study.trial import workload_of
from memgauge.training import Training

STEPS = 3  # a peak is reached in the first or second step; more only take longer


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What to estimate."""

    subject: Subject
    baseline_bytes: int | None = None  # resident before anything is built, if it was measured
    has_dynamo: bool = False  # whether what was imported by then loads torch._dynamo
    device: str | None = None  # a name of the catalogue, to estimate for another
    check_only: bool = False  # whether the TARGET is there and takes its arguments; no estimate


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The estimate, in short and whole, or why there is none."""

    predicted: Predicted
    estimate: str | None = None  # JSON of the whole estimate
    misuse: str | None = None  # the user's study is wrong: nothing should run


class KnownBaseline:
    """A resident baseline that was measured before, in the place of `host.Host`."""

    def __init__(self, baseline_bytes: int | None, has_dynamo: bool) -> None:
        self._bytes = baseline_bytes
        self.reason = "the baseline of this environment was not measured"
        self.has_dynamo = has_dynamo

    def baseline_bytes(self) -> int | None:
        return self._bytes


def answer(question: Question) -> Answer:
    """Return the estimate of one trial."""
    subject = question.subject
    if subject.folder is not None and os.path.isdir(subject.folder):
        os.chdir(subject.folder)
    try:
        if subject.training is not None:
            from memgauge import training

            training.check(subject.training)
            reason = training.no_estimate_reason(subject.training)
            if reason is not None:
                from memgauge.study.bound import at_least

                return Answer(
                    predicted=at_least(
                        subject.training, question.baseline_bytes, lambda t: _count(question, t), reason
                    )
                )
        if question.check_only:
            workload_of(subject)
            return Answer(predicted=Predicted())
        return _estimated(question)
    except MemgaugeError as error:
        misuse = str(error) if type(error) is UsageError else None
        return Answer(predicted=Predicted(reason=str(error)), misuse=misuse)
    except Exception as error:
        return Answer(predicted=Predicted(reason=f"{type(error).__name__}: {error}"))


def _count(question: Question, twin: Training) -> int | None:
    """Return PyTorch's peak of allocated bytes for a training on the CPU."""
    from memgauge import training

    training.check(twin)
    subject = msgspec.structs.replace(question.subject, training=twin)
    return _estimated(Question(subject=subject)).predicted.allocated_bytes


def _estimated(question: Question) -> Answer:
    import time

    from memgauge import devices
    from memgauge.estimate import estimate_of, traced
    from memgauge.frameworks.torch import predict

    subject = question.subject
    begin_ns = time.perf_counter_ns()
    place = devices.find(question.device or subject.device)
    workload = workload_of(subject)
    if workload is None:
        return Answer(predicted=Predicted(reason="there is nothing to estimate for this framework"))
    threads = predict.threads_of_run(subject.threads)
    steps = min(STEPS, subject.steps) if subject.training is None else STEPS
    stack = predict.installed_stack() if place.kind == "cuda" else None
    trace = traced(workload, place, steps=steps, threads=threads, stack=stack)
    found = estimate_of(
        workload,
        trace,
        place,
        stack=stack,
        baseline=KnownBaseline(question.baseline_bytes, question.has_dynamo) if place.kind == "cpu" else None,
        threads=threads,
        steps=steps,
        begin_ns=begin_ns,
    )
    host, device = found.peak.host_bytes, found.peak.device_bytes
    if host is not None and subject.training is not None:
        host = _with_copies(host, subject.training)
    predicted = Predicted(
        allocated_bytes=found.peak.allocated_bytes,
        host_low_bytes=host.low if host else None,
        host_expected_bytes=host.expected if host else None,
        host_high_bytes=host.high if host else None,
        device_low_bytes=device.low if device else None,
        device_expected_bytes=device.expected if device else None,
        device_high_bytes=device.high if device else None,
        parameters=sum(y.parameters for y in found.layers),
        activations=sum(
            math.prod(y.output_shape)
            for y in found.layers
            if y.output_shape is not None and _is_leaf(y, found)
        ),
    )
    return Answer(
        predicted=predicted,
        estimate=msgspec.json.encode(found, enc_hook=str).decode(),
    )


def _with_copies(host: Range, wanted: Training) -> Range:
    """Return resident memory with what the loop's feed holds of the data, which no step of the network shows."""
    from memgauge.training.feed import copies_of

    held = copies_of(wanted).bytes
    return Range(host.low + held, host.expected + held, host.high + held)


def _is_leaf(layer: Any, found: Any) -> bool:
    """Return whether no other layer lies below this one; a container's output is its last layer's."""
    prefix = f"{layer.path}." if layer.path else ""
    return bool(layer.path) and not any(y.path.startswith(prefix) for y in found.layers if y is not layer)


def main() -> int:
    """Answer questions until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what user code prints does not get between the answers
    with contextlib.redirect_stdout(sys.stderr):
        for line in sys.stdin.buffer:
            found = answer(msgspec.json.decode(line, type=Question))
            answers.write(msgspec.json.encode(found) + b"\n")
            answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
