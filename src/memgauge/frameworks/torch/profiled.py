"""Measure on the CPU: really run the workload and hear every allocation from torch's profiler.

The profiler gives a tree of operators with each allocation and release at its
place; `observed` makes a trace of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._C._profiler import RecordScope, _EventType, _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from memgauge.frameworks.torch import protocol
from memgauge.frameworks.torch.observed import Found, Reading, Runner
from memgauge.frameworks.torch.operators import is_composite
from memgauge.frameworks.torch.scopes import NO_SEQUENCE
from memgauge.records import Trace
from memgauge.workload import Workload

_MARK = "memgauge:"


def profiled_run(workload: Workload, *, steps: int = 3) -> Trace:
    """Run the workload on the CPU under torch's profiler and return what it allocated.

    Raises:
        Exception: Whatever the user's own functions raise; what was seen until
            then is attached as `error.partial_trace`.
    """
    runner = Runner(workload, _leave_mark)
    config = _ExperimentalConfig(capture_overload_names=True)
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True, experimental_config=config)
    failure: BaseException | None = None
    with profiler:
        try:
            with runner.scopes:
                protocol.run(workload, runner, torch.device("cpu"), steps)
        except (Exception, KeyboardInterrupt) as error:
            failure = error
        runner.objects = ()
    tree = profiler.profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
    trace = Reading(runner).read(_walk(tree))
    if failure is not None:
        failure.partial_trace = trace  # type: ignore[attr-defined]
        raise failure
    return trace


def _leave_mark(number: int) -> None:
    with record_function(f"{_MARK}{number}"):
        pass


def _walk(tree: list[Any]) -> Iterator[int | Found]:
    """Yield marks (their numbers) and allocations of the tree in the order of time."""
    stack: list[tuple[Any, str, int | None, int | None]] = [(e, "", None, None) for e in reversed(tree)]
    while stack:
        event, operator, call, sequence = stack.pop()
        if event.tag == _EventType.Allocation:
            extra = event.extra_fields
            yield Found(extra.ptr, extra.alloc_size, operator, call, sequence)
            continue
        if event.tag == _EventType.TorchOp:
            name = event.name
            if name.startswith(_MARK):
                yield int(name[len(_MARK) :])
                continue
            engine = name.startswith("autograd::engine::evaluate_function")
            if engine or event.extra_fields.scope == RecordScope.BACKWARD_FUNCTION:
                number = event.extra_fields.sequence_number
                sequence = number if number >= 0 else NO_SEQUENCE
                operator, call = ("", None) if engine else (operator, call)
            elif call is None and "::" in name and not _is_composite(name, event.overload_name):
                operator, call = name.replace("::", "."), event.id
        stack.extend((child, operator, call, sequence) for child in reversed(event.children))


_COMPOSITE: dict[tuple[str, str], bool] = {}


def _is_composite(name: str, overload: str) -> bool:
    """Whether the operator only calls others: autograd and dispatch modes see those, not it."""
    key = (name, overload)
    if key not in _COMPOSITE:
        full = f"{name}.{overload}" if overload else name
        try:
            _COMPOSITE[key] = is_composite(full)
        except RuntimeError:  # not an operator of the dispatcher
            _COMPOSITE[key] = True
    return _COMPOSITE[key]
