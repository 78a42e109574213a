"""The range of each number that a network of the zoo takes, checked in one place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

from memgauge.errors import UsageError
from memgauge.workload import Workload

_COUNTS = (
    "batch_size image_size sequence_length layers width heads kv_heads feed_forward units patch classes vocabulary"
).split()
_SHARES = ("dropout",)


def in_range(function: Callable[..., Workload]) -> Callable[..., Workload]:
    """Return `function`, refusing numbers that no network can have.

    Raises:
        UsageError: When called: a count is below 1, or a share outside 0 to 1; names the argument.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*positional: object, **named: object) -> Workload:
        for name, value in signature.bind(*positional, **named).arguments.items():
            _check(name, value)
        return function(*positional, **named)

    return checked


def _check(name: str, value: object) -> None:
    if not isinstance(value, int | float):
        return
    if name in _COUNTS and value < 1:
        raise UsageError(f"{name} is {value}; it must be at least 1")
    if name in _SHARES and not 0 <= value <= 1:  # not a number is outside too
        raise UsageError(f"{name} is {value}; it must be from 0 to 1")
