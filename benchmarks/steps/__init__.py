"""The accuracy set "training steps of all kinds": what users write, in the ways they write it.

Every entry of `STEPS` builds one small workload in plain torch, from its own corner
and in its own style. `memgauge` predicts it, the profiler measures it, and the two
are compared. Each takes a few seconds on two cores.
"""

from __future__ import annotations

from collections.abc import Callable

from memgauge.workload import Workload

from . import generative, habits, language, loops, odd, vision

STEPS: dict[str, Callable[[], Workload]] = {
    step.__name__: step
    for field in (vision, language, generative, loops, odd, habits)
    for step in field.STEPS
}

__all__ = ["STEPS"]
