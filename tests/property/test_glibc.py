"""What must hold of the heap model for any program."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memgauge.allocators import glibc
from memgauge.records import MemoryEvent
from memgauge.units import MIB


@st.composite
def programs(draw: st.DrawFn) -> list[MemoryEvent]:
    """Return requests and releases, everything given back in the end."""
    events: list[MemoryEvent] = []
    live: dict[int, int] = {}
    for number, size in enumerate(draw(st.lists(st.integers(1, 40 * MIB), max_size=60))):
        live[number] = size
        events.append(MemoryEvent(number, size, "setup", "", ""))
        while live and draw(st.booleans()):
            gone = draw(st.sampled_from(sorted(live)))
            events.append(MemoryEvent(gone, -live.pop(gone), "setup", "", ""))
    events += [MemoryEvent(n, -s, "setup", "", "") for n, s in live.items()]
    return events


@given(programs(), st.booleans(), st.sampled_from([0.0, 0.15, 0.5]))
def test_resident_is_never_less_than_what_is_held(
    events: list[MemoryEvent], trims: bool, pinned_share: float
) -> None:
    held = 0
    for event, resident in zip(events, glibc.replay(events, trims, pinned_share), strict=True):
        held += event.requested_bytes
        assert resident >= held


@given(programs())
def test_mappings_are_gone_when_everything_is_given_back(events: list[MemoryEvent]) -> None:
    heap = glibc.Heap()
    held = {}
    for event in events:
        if event.requested_bytes > 0:
            held[event.storage] = heap.allocate(event.requested_bytes)
        else:
            heap.free(held.pop(event.storage))
    assert heap.mapped_bytes == 0
    assert len(heap._free) == 0  # all free memory has merged into the top


def events(*sizes: int) -> list[MemoryEvent]:
    """Return hand-made events; a negative number releases the latest storage of that size."""
    made: list[MemoryEvent] = []
    live: list[tuple[int, int]] = []
    for size in sizes:
        if size > 0:
            live.append((len(made), size))
            made.append(MemoryEvent(len(made), size, "setup", "", ""))
        else:
            number = next(n for n, s in reversed(live) if s == -size)
            live.remove((number, -size))
            made.append(MemoryEvent(number, size, "setup", "", ""))
    return made


def test_a_large_request_is_a_mapping_that_goes_back_at_once() -> None:
    resident = glibc.replay(events(64 * MIB, -64 * MIB))
    assert resident[0] >= 64 * MIB
    assert resident[1] == 0


def test_freed_mappings_raise_the_border_so_that_the_next_comes_from_the_heap_and_stays() -> None:
    small = 4 * MIB
    resident = glibc.replay(events(small, -small, small, small, -small), trims=False)
    assert resident[1] == 0
    assert resident[-1] >= 2 * small  # freed, and still resident


def test_above_32_mib_the_border_no_longer_moves() -> None:
    large = 33 * MIB
    assert glibc.replay(events(large, -large, large, -large))[-1] == 0


def test_a_hole_between_pinned_blocks_does_not_serve_an_equal_request() -> None:
    size = 1 * MIB
    program = events(size, -size, size, size, size, -size, size)
    free = max(glibc.replay(program, trims=False))
    pinned = max(glibc.replay(program, trims=False, pinned_share=1.0))
    assert pinned >= free
