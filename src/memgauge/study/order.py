"""What an executor is told of one trial: what it runs, at which limits it ends, what room it takes."""

from __future__ import annotations

import msgspec

from memgauge.study.file import StudyFile
from memgauge.study.forecast import said
from memgauge.study.plan import Subject, most_bytes
from memgauge.study.records import Trial

_OBSERVED = {"peak_allocated_bytes", "peak_requested_bytes"}  # which on the CPU only a profiler sees


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """At what a trial is ended."""

    memory_bytes: int | None = None
    seconds: float | None = None


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One trial to start: what it runs, with which limits."""

    number: int
    subject: Subject
    limits: Limits
    interval: str = "100ms"
    observe: bool = False  # also a second process, under the profiler
    estimate: str | None = None
    title: str = ""
    memory_bytes: int = 0  # what the estimate says that it takes at most, or its lower bound
    cores: int = 1


def order_of(file: StudyFile, trial: Trial, subject: Subject, estimate: str | None) -> Order:
    """Return the order for a trial of a study; `estimate` is its whole estimate as JSON, if there is one."""
    is_cpu = subject.device == "cpu"
    is_torch = subject.training is None or subject.training.framework == "torch"
    return Order(
        number=trial.number,
        subject=subject,
        limits=Limits(
            memory_bytes=file.limits.memory_bytes if is_cpu else None, seconds=file.limits.trial_seconds
        ),
        interval=file.study.interval,
        observe=is_cpu and is_torch and bool(_OBSERVED & set(file.study.record)),
        estimate=estimate,
        title=f"{file.study.name}, trial {trial.number}: {said(trial)}",
        memory_bytes=most_bytes(trial.predicted) or 0,
        cores=subject.threads or 1,
    )
