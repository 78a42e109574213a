"""A trace at any value of an argument, from two: the same events, each size on a line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from memgauge.records import MemoryEvent, Scratch, Trace

# What a library takes need not be a whole number of bytes per sample; so far it may lie off the line.
_SCRATCH_SHARE = 1 / 256


@dataclasses.dataclass(frozen=True, slots=True)
class Affine:
    """A trace whose sizes are affine in a value, from two traces with the same sequence of events."""

    origin: int
    span: int  # from the value of the first trace to that of the second
    base: Trace
    step_bytes: tuple[int, ...]  # for each event: what one more of the value adds
    uneven_bytes: Mapping[int, int]  # for events of scratch without a whole step: what `span` more add
    step_scratch: Mapping[int, tuple[int, int]]

    @classmethod
    def through(cls, x0: int, first: Trace, x1: int, second: Trace) -> Affine | None:
        """Return the line through two traces, None if their events differ or do not divide evenly."""
        if _outline(first) != _outline(second) or first.scratch.keys() != second.scratch.keys():
            return None
        span, steps, uneven = x1 - x0, [], {}
        for index, (a, b) in enumerate(zip(first.events, second.events, strict=True)):
            slope, rest = divmod(b.requested_bytes - a.requested_bytes, span)
            if rest:
                if a.storage not in first.scratch:
                    return None
                slope, uneven[index] = 0, b.requested_bytes - a.requested_bytes
            steps.append(slope)
        scratch = {}
        for storage, one in first.scratch.items():
            two = second.scratch[storage]
            scratch[storage] = (
                (two.low_bytes - one.low_bytes) // span,
                (two.high_bytes - one.high_bytes) // span,
            )
        return cls(x0, span, first, tuple(steps), uneven, scratch)

    def at(self, value: int) -> Trace:
        """Return the trace at a value."""
        more = value - self.origin
        events = [
            MemoryEvent(event[0], event[1] + step * more, event[2], event[3], event[4]) if step else event
            for event, step in zip(self.base.events, self.step_bytes, strict=True)
        ]
        for index, change in self.uneven_bytes.items():
            added = abs(change) * more // self.span  # the same for request and release
            event = events[index]
            events[index] = event._replace(
                requested_bytes=event.requested_bytes + (added if change > 0 else -added)
            )
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
        for a, b in zip(self.at(value).events, trace.events, strict=True):
            off = abs(a.requested_bytes - b.requested_bytes)
            if off and (b.storage not in trace.scratch or off > _SCRATCH_SHARE * abs(b.requested_bytes)):
                return False
        return True


def _outline(trace: Trace) -> tuple[object, ...]:
    """What must not depend on the value: which storage comes or goes when, on which stream, and releases."""
    changes = [(event.storage, event.requested_bytes > 0) for event in trace.events]
    return changes, dict(trace.streams), list(trace.cache_releases)
