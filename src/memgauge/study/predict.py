"""Ask for estimates: the runner's end of the process that makes them."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import msgspec

from memgauge.study.isolation import environment
from memgauge.study.plan import Subject
from memgauge.study.predictor import Answer, Question
from memgauge.study.records import Baseline, Predicted

_DIED = "the process that makes estimates died ({}); this trial has no estimate"


class Predictor:
    """The process that makes estimates, started when it is first asked and again if it died."""

    def __init__(self, threads: int | None) -> None:
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, subject: Subject, baseline: Baseline | None) -> tuple[Predicted, str | None, str | None]:
        """Return the estimate in short, as JSON, and what is wrong with the study, if something is."""
        question = Question(
            subject=subject,
            baseline_bytes=None if baseline is None else baseline.loaded_bytes,
            has_dynamo=baseline is not None and baseline.has_dynamo,
        )
        found = self._answer(question)
        return found.predicted, found.estimate, found.misuse

    def check(self, subject: Subject) -> str | None:
        """Return what is wrong with the names of a trial's TARGET and arguments, if something is."""
        return self._answer(Question(subject=subject, check_only=True)).misuse

    def _answer(self, question: Question) -> Answer:
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        line = b""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(msgspec.json.encode(question) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line.endswith(b"\n"):
            how = process.wait()
            self._process = None
            return Answer(predicted=Predicted(reason=_DIED.format(f"exit code {how}")))
        return msgspec.json.decode(line, type=Answer)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "memgauge.study.predictor"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment(self._threads),
            )
        return self._process

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
