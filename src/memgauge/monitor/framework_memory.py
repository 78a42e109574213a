"""What torch's and TensorFlow's allocators say; a framework is never imported or started here."""

from __future__ import annotations

import os
import sys
from typing import Any


def figures() -> str:
    """Return what the framework's allocator holds, as JSON; null where none runs."""
    facts = _torch()
    return _tensorflow() if facts == "null" else facts


def _torch() -> str:
    """Return the figures of torch's CUDA allocator, if torch uses CUDA already."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not getattr(cuda, "is_initialized", bool)():
        return "null"
    try:
        device = cuda.current_device()
        found = cuda.memory_stats_as_nested_dict(device)
        held, kept = found["allocated_bytes"]["all"], found["reserved_bytes"]["all"]
        return (
            f'{{"device":{device},"allocated_bytes":{held["current"]},"allocated_peak_bytes":{held["peak"]},'
            f'"reserved_bytes":{kept["current"]},"reserved_peak_bytes":{kept["peak"]}}}'
        )
    except Exception:  # half-imported, or a build that differs
        return "null"


def _tensorflow() -> str:
    """Return the figures of TensorFlow's allocator, if it runs already.

    They are what tensors take, not what TensorFlow has reserved. On the CPU they are complete only with
    TF_CPU_ALLOCATOR_USE_BFC=1; without it they would count large blocks only, so they are left out.
    """
    place = _tensorflow_device()
    if place is None:
        return "null"
    try:
        found = sys.modules["tensorflow"].config.experimental.get_memory_info(place)
        return (
            f'{{"framework":"tensorflow","device":"{place}","allocated_bytes":{found["current"]},'
            f'"allocated_peak_bytes":{found["peak"]}}}'
        )
    except Exception:  # half-imported, or a device that keeps no account
        return "null"


_tensorflow_place: list[str | None] = []  # found once: its devices do not change while it runs


def _tensorflow_device() -> str | None:
    """Return the device whose allocator tells; None if there is none, or TensorFlow has not begun."""
    if _tensorflow_place:
        return _tensorflow_place[0]
    eager: Any = sys.modules.get("tensorflow.python.eager.context")
    begun = getattr(eager, "_context", None)
    if "tensorflow" not in sys.modules or not getattr(begun, "_initialized", False):
        return None
    try:
        devices = [d.device_type for d in sys.modules["tensorflow"].config.list_logical_devices()]
    except Exception:
        return None
    on_cpu = "CPU:0" if os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true") else None
    _tensorflow_place.append("GPU:0" if "GPU" in devices else on_cpu)
    return _tensorflow_place[0]


def reset_peaks() -> None:
    """Reset the peaks that torch and TensorFlow keep."""
    place = _tensorflow_device()
    if place is not None:
        sys.modules["tensorflow"].config.experimental.reset_memory_stats(place)
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.reset_peak_memory_stats()
