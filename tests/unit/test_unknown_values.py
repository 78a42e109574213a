"""The advice of an error is one that works."""

from __future__ import annotations

import pytest
import torch

from memgauge.errors import UnsupportedError
from memgauge.frameworks.torch.trace import trace
from memgauge.workload import Workload


def workload(step: object, **values: float) -> Workload:
    return Workload(
        build=lambda: torch.nn.Linear(8, 8), batch=lambda: torch.randn(32, 8), step=step, values=values
    )


def selecting(model: torch.nn.Module, x: torch.Tensor) -> None:
    model(x)[x[:, 0] > 0].sum().backward()


def test_a_mask_that_only_a_run_would_know_is_named_with_what_to_declare() -> None:
    with pytest.raises(UnsupportedError, match=r'test_unknown_values\.py:\d+ .*values=\{"nonzero": 1\}'):
        trace(workload(selecting))


def test_what_the_error_says_to_declare_is_read() -> None:
    assert trace(workload(selecting, nonzero=16)).events


def test_what_cannot_be_declared_is_not_offered() -> None:
    def unique(model: torch.nn.Module, x: torch.Tensor) -> None:
        torch.unique(model(x))

    with pytest.raises(UnsupportedError, match="measure"):
        trace(workload(unique))
