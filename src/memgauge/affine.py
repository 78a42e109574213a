"""A trace at any value of an argument, from two: the same events, each size on a line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from memgauge.records import MemoryEvent, Scratch, Trace


@dataclasses.dataclass(frozen=True, slots=True)
class Affine:
    """A trace whose sizes are affine in a value, from two traces with the same sequence of events."""

    origin: int
    base: Trace
    step_bytes: tuple[int, ...]  # for each event: what one more of the value adds
    step_scratch: Mapping[int, tuple[int, int]]

    @classmethod
    def through(cls, x0: int, first: Trace, x1: int, second: Trace) -> Affine | None:
        """Return the line through two traces, None if their events differ or do not divide evenly."""
        if _outline(first) != _outline(second) or first.scratch.keys() != second.scratch.keys():
            return None
        steps = []
        for a, b in zip(first.events, second.events, strict=True):
            slope, rest = divmod(b.requested_bytes - a.requested_bytes, x1 - x0)
            if rest:
                return None
            steps.append(slope)
        scratch = {}
        for storage, one in first.scratch.items():
            two = second.scratch[storage]
            scratch[storage] = (
                (two.low_bytes - one.low_bytes) // (x1 - x0),
                (two.high_bytes - one.high_bytes) // (x1 - x0),
            )
        return cls(x0, first, tuple(steps), scratch)

    def at(self, value: int) -> Trace:
        """Return the trace at a value."""
        more = value - self.origin
        events = [
            MemoryEvent(event[0], event[1] + step * more, event[2], event[3], event[4]) if step else event
            for event, step in zip(self.base.events, self.step_bytes, strict=True)
        ]
        scratch = {
            storage: Scratch(s.mechanism, s.low_bytes + low * more, s.high_bytes + high * more)
            for storage, s in self.base.scratch.items()
            for low, high in (self.step_scratch[storage],)
        }
        return dataclasses.replace(self.base, events=events, scratch=scratch)

    def gives(self, value: int, trace: Trace) -> bool:
        """Return whether every event of a real trace lies on the line."""
        if _outline(trace) != _outline(self.base):
            return False
        sizes = zip(self.at(value).events, trace.events, strict=True)
        return all(a.requested_bytes == b.requested_bytes for a, b in sizes)


def _outline(trace: Trace) -> tuple[object, ...]:
    """What must not depend on the value: which storage comes or goes when, on which stream, and releases."""
    changes = [(event.storage, event.requested_bytes > 0) for event in trace.events]
    return changes, dict(trace.streams), list(trace.cache_releases)
