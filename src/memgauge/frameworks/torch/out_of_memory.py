"""Programs that go on after an out-of-memory error: none is ever raised in a trace, and the result says so."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

from memgauge.frameworks.torch.not_eager import named_by

NEVER_RAISED = (
    "out-of-memory errors: memory has no end in a prediction, so that what the program does after one is not "
    "followed; `memgauge fit` finds the largest batch"
)
_NAME = "OutOfMemoryError"  # torch.cuda.OutOfMemoryError, torch.OutOfMemoryError
_MESSAGES = ("out of memory", "cuda out of memory")  # looked for in a RuntimeError's text


def note_handlers(functions: Iterable[Callable[..., Any]], unmodelled: dict[str, None]) -> None:
    """Say it if one of the functions, or what they name in their own files, knows of such an error."""
    if any(_speaks_of_it(code) for function in functions for code in _reached(function)):
        unmodelled.setdefault(NEVER_RAISED)


def _speaks_of_it(code: CodeType) -> bool:
    texts = (constant.lower().rstrip(".") for constant in code.co_consts if isinstance(constant, str))
    return _NAME in code.co_names or any(text in _MESSAGES for text in texts)


def _reached(function: Callable[..., Any]) -> Iterator[CodeType]:
    """Yield the code of a function, and of the functions and classes of its file that it names."""
    seen: set[CodeType] = set()
    waiting: list[Any] = [function]
    while waiting:
        item = waiting.pop()
        item = inspect.unwrap(getattr(item, "__func__", item)) if callable(item) else item
        code = getattr(item, "__code__", None)
        if not isinstance(code, CodeType) or code in seen:
            continue
        seen.add(code)
        yield from _with_inner(code)
        for _, value in named_by(item):
            members = vars(value).values() if isinstance(value, type) else (value,)
            waiting += [m for m in members if _file(m) == code.co_filename]


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _file(item: Any) -> str | None:
    code = getattr(getattr(item, "__func__", item), "__code__", None)
    return getattr(code, "co_filename", None)
