"""The allocator's history, as torch documents its entries, read into a trace."""

from __future__ import annotations

from memgauge.frameworks.torch.cuda_run import in_order, peaks
from memgauge.frameworks.torch.observed import Found


def entry(action: str, address: int, size: int) -> dict[str, object]:
    return {"action": action, "addr": address, "size": size, "time_us": 7, "stream": 0}


def test_marks_stand_between_the_calls_that_they_were_made_between() -> None:
    history = [
        entry("segment_alloc", 0x1000, 2 << 20),
        entry("alloc", 0x1000, 512),
        entry("free_requested", 0x1000, 512),
        entry("free_completed", 0x1000, 512),
        {"action": "oom", "device_free": 0, "size": 1 << 40, "stream": 0},
        entry("segment_alloc", 0x1000, 2 << 20),
        entry("alloc", 0x1000, 1024),
        entry("snapshot", 0, 0),
    ]
    items = list(in_order(history, [0, 1, 2, 2, 3]))
    assert [i if isinstance(i, int) else i.size for i in items] == [0, 512, 1, -512, 2, 3, 1024, 4]


def test_a_release_that_completes_later_stands_where_it_completes() -> None:
    history = [
        entry("alloc", 0x1000, 512),
        entry("free_requested", 0x1000, 512),
        entry("alloc", 0x2000, 1024),
        entry("free_completed", 0x1000, 512),
        entry("alloc", 0x1000, 2048),
    ]
    items = list(in_order(history, [2, 3]))
    assert [i if isinstance(i, int) else i.size for i in items] == [512, 0, 1024, -512, 1, 2048]


def test_a_block_is_held_until_its_release_is_complete() -> None:
    history = [entry("alloc", 0x1000, 512), entry("free_requested", 0x1000, 512)]
    assert [i for i in in_order(history, []) if isinstance(i, Found) and i.size < 0] == []


def test_peaks_come_from_the_statistics_and_unknown_ones_stay_unknown() -> None:
    found = peaks({"allocated_bytes.all.peak": 1024, "reserved_bytes.all.peak": 2 << 20})
    assert found == {"requested_bytes": None, "allocated_bytes": 1024, "reserved_bytes": 2 << 20}
