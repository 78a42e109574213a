"""The allocator's settings of one run: those of options or of the environment, and the program's own over them."""

from __future__ import annotations

import dataclasses

from memgauge import environment
from memgauge.allocators.settings import CudaSettings, parse_cuda_settings, settings_after_call
from memgauge.errors import UnsupportedError, UsageError
from memgauge.records import OF_THE_ENVIRONMENT, Trace


def settings_of(trace: Trace, given: CudaSettings | None) -> CudaSettings:
    """Return the settings of the allocator in a run: those given, over which the program's own go.

    Raises:
        UsageError, UnsupportedError: Those of the environment, where none are given, are refused.
    """
    if trace.alloc_conf is not None:
        given = parse_cuda_settings(trace.alloc_conf)
    settings = given or _exported()
    for text in trace.alloc_calls:
        settings = settings_after_call(settings, text)
    if trace.memory_fraction < 1:
        settings = dataclasses.replace(settings, per_process_memory_fraction=trace.memory_fraction)
    return settings


def _exported() -> CudaSettings:
    text = environment.allocator_text(environment.variables()) or ""
    try:
        return parse_cuda_settings(text)
    except (UsageError, UnsupportedError) as error:
        raise type(error)(f"allocator settings{OF_THE_ENVIRONMENT}{error}") from error


def of_the_environment(trace: Trace, given: CudaSettings | None) -> tuple[str, ...]:
    """Return the line on settings that are those of the environment, if they are."""
    text = environment.allocator_text(environment.variables())
    if not text or given is not None or trace.alloc_conf is not None:
        return ()
    return (f"allocator settings{OF_THE_ENVIRONMENT}{text}",)
