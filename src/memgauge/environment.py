"""What a program sets before CUDA begins: variables of its environment, and settings of torch's allocator.

It is kept apart from the process that follows the program, so that what one sets is not there for the next.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

# torch obeys the first that is set (c10/core/AllocatorConfig.cpp of torch 2.13.0, `instance`).
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
CUBLASLT = "CUBLASLT_WORKSPACE_SIZE"
CUBLASLT_UNIFIED = "TORCH_CUBLASLT_UNIFIED_WORKSPACE"
_VARIABLES = (*ALLOCATOR, CUBLAS, CUBLASLT, CUBLASLT_UNIFIED)
_SETTER = "_accelerator_setAllocatorSettings"


@dataclass(slots=True)
class Own:
    """What a program has set by itself.

    Attributes:
        variables: Those that it changed; None where it took one away.
        calls: What it gave to `torch._C._accelerator_setAllocatorSettings`, in order.
    """

    variables: dict[str, str | None] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)


def variables() -> dict[str, str]:
    """Return those variables that are set, of the ones that memory depends on."""
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def allocator_text(of: Mapping[str, str]) -> str | None:
    """Return the settings of the allocator that torch reads of these variables, None if there are none."""
    return next((of[name] for name in ALLOCATOR if name in of), None)


def put(changes: Mapping[str, str | None]) -> None:
    """Set variables; None takes one away."""
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def apart(earlier: Own | None = None) -> Iterator[Own]:
    """Note what a program sets within, and take its variables back at the end.

    Args:
        earlier: What it set when it was loaded before: modules that stay imported do not set it again.
    """
    before, own = variables(), Own()
    if earlier is not None:
        put(earlier.variables)
    try:
        with _calls_noted(own.calls):
            yield own
    finally:
        now = variables()
        own.variables.update({n: now.get(n) for n in _VARIABLES if now.get(n) != before.get(n)})
        if earlier is not None and not own.calls:
            own.calls.extend(earlier.calls)
        put({name: before.get(name) for name in _VARIABLES})


@contextmanager
def _calls_noted(calls: list[str]) -> Iterator[None]:
    """Note what is given to torch's allocator, where torch is there already."""
    c = getattr(sys.modules.get("torch"), "_C", None)
    real = getattr(c, _SETTER, None)
    if real is None:
        yield
        return

    def noted(text: str) -> None:
        real(text)
        calls.append(text)

    setattr(c, _SETTER, noted)
    try:
        yield
    finally:
        setattr(c, _SETTER, real)
