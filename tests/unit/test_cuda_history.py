"""The allocator's history, as torch documents its entries, read into a trace."""

from __future__ import annotations

from memgauge.frameworks.torch.cuda_run import in_order, peaks
from memgauge.frameworks.torch.observed import Found


def entry(action: str, address: int, size: int, time_us: int) -> dict[str, object]:
    return {"action": action, "addr": address, "size": size, "time_us": time_us, "stream": 0}


def test_marks_stand_before_what_happens_at_or_after_their_time() -> None:
    history = [
        entry("segment_alloc", 0x1000, 2 << 20, 5),
        entry("alloc", 0x1000, 512, 10),
        entry("free_requested", 0x1000, 512, 20),
        entry("free_completed", 0x1000, 512, 30),
    ]
    items = list(in_order(history, [0, 10, 25, 99]))
    assert [i if isinstance(i, int) else i.size for i in items] == [0, 1, 512, 2, -512, 3]


def test_a_block_is_held_until_its_release_is_complete() -> None:
    history = [entry("alloc", 0x1000, 512, 1), entry("free_requested", 0x1000, 512, 2)]
    assert [i for i in in_order(history, []) if isinstance(i, Found) and i.size < 0] == []


def test_peaks_come_from_the_statistics_and_unknown_ones_stay_unknown() -> None:
    found = peaks({"allocated_bytes.all.peak": 1024, "reserved_bytes.all.peak": 2 << 20})
    assert found == {"requested_bytes": None, "allocated_bytes": 1024, "reserved_bytes": 2 << 20}
