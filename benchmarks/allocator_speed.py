"""How fast traces are replayed through the CUDA caching allocator.

    python benchmarks/allocator_speed.py [--steps 200] [--json]

The trace is made up, in the shape of a training run: parameters, then per step
a forward pass that keeps activations and drops temporaries, a backward pass
that frees them in reverse, and an optimizer; sizes from 4 bytes to tens of MiB.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time

from memgauge.allocators.cuda_caching import replay
from memgauge.allocators.settings import parse_cuda_settings
from memgauge.records import MemoryEvent
from memgauge.units import KIB, MIB, format_bytes

LAYERS = 48
GOAL_EVENTS_PER_S = 300_000
CONFIGURATIONS = ("", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:8")


class TraceBuilder:
    """Collects requests and releases in order."""

    def __init__(self) -> None:
        """Start with an empty trace."""
        self.events: list[MemoryEvent] = []
        self._sizes: list[int] = []

    def request(self, size_bytes: int) -> int:
        """Request a new storage and return it."""
        self._sizes.append(size_bytes)
        self.events.append(MemoryEvent(len(self._sizes) - 1, size_bytes, "", "", ""))
        return len(self._sizes) - 1

    def release(self, storage: int) -> None:
        """Release a storage."""
        self.events.append(MemoryEvent(storage, -self._sizes[storage], "", "", ""))


def training_trace(steps: int, seed: int = 0) -> list[MemoryEvent]:
    """Return the events of a made-up training run; batches differ in size a little from step to step."""
    rng = random.Random(seed)
    trace = TraceBuilder()
    widths = [rng.choice((256 * KIB, 1 * MIB, 3 * MIB, 9 * MIB, 12 * MIB)) for _ in range(LAYERS)]
    weights = [(trace.request(width), trace.request(rng.randrange(4, 16 * KIB))) for width in widths]
    for _ in range(steps):
        scale = rng.uniform(0.8, 1.0)
        saved = []
        for width in widths:
            temporaries = [trace.request(int(width * scale * rng.uniform(0.1, 2))) for _ in range(3)]
            saved.append((trace.request(int(width * scale * 3)), trace.request(rng.randrange(4, 64 * KIB))))
            for temporary in temporaries:
                trace.release(temporary)
        gradients = []
        for width, kept in zip(reversed(widths), reversed(saved), strict=True):
            upstream = trace.request(int(width * scale * 3))
            gradients += [trace.request(width), trace.request(rng.randrange(4, 16 * KIB))]
            for storage in (*kept, upstream):
                trace.release(storage)
        for gradient in gradients:
            scratch = trace.request(rng.randrange(4, 4 * MIB))
            trace.release(scratch)
            trace.release(gradient)
    for weight in weights:
        for storage in weight:
            trace.release(storage)
    return trace.events


def measure(events: list[MemoryEvent], settings_text: str, repeats: int) -> dict[str, object]:
    """Return the best of several replays in events per second of processor time, and the peaks as a check."""
    settings = parse_cuda_settings(settings_text)
    best_ns = 0
    for _ in range(repeats):
        start_cpu_ns = time.process_time_ns()
        timeline = replay(events, settings)
        cpu_ns = time.process_time_ns() - start_cpu_ns
        best_ns = min(best_ns or cpu_ns, cpu_ns)
    assert timeline.reserved_bytes is not None
    return {
        "settings": settings_text or "defaults",
        "events": len(events),
        "cpu_ns": best_ns,
        "events_per_s": round(len(events) * 1_000_000_000 / best_ns),
        "peak_allocated_bytes": max(timeline.allocated_bytes),
        "peak_reserved_bytes": max(timeline.reserved_bytes),
    }


def main() -> None:
    """Measure every configuration and print one line each, or one JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200, help="training steps in the trace (default: 200)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="replays of each configuration; the best counts"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    events = training_trace(arguments.steps)
    rows = [measure(events, text, arguments.repeats) for text in CONFIGURATIONS]
    if arguments.json:
        document = {
            "schema": "memgauge.benchmark.allocator_speed/1",
            "goal_events_per_s": GOAL_EVENTS_PER_S,
            "python": platform.python_version(),
            "rows": rows,
        }
        print(json.dumps(document, indent=2))
        return
    for row in rows:
        peak = format_bytes(int(str(row["peak_reserved_bytes"])))
        print(f"{row['events_per_s']:>9,} events/s  peak reserved {peak}  {row['settings']}")


if __name__ == "__main__":
    main()
