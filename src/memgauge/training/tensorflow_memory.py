"""What TensorFlow's own allocators report, and its habit of taking the whole GPU.

On the CPU `get_memory_info` counts every block only under the BFC allocator
(`TF_CPU_ALLOCATOR_USE_BFC=1`); otherwise oneDNN's allocator counts large blocks alone, and the figure gets
another name; without oneDNN (`TF_ENABLE_ONEDNN_OPTS=0`, or a processor without AVX512_VNNI) nothing is counted. On a GPU BFC takes all free memory at its start, less a reserve, unless memory growth is on:
the device's memory then says nothing about the network, and the peak in use does.

Source:
    Our measurements with TensorFlow 2.21 on the CPU; tensorflow/core/common_runtime/gpu/gpu_device.cc
    (MinSystemMemory) for the GPU, which we have not run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import tensorflow as tf

_TRUE, _FALSE = ("1", "true"), ("0", "false")


def memory_of() -> dict[str, int]:
    """Return the peaks of TensorFlow's allocators since the process began, by name, in bytes."""
    found: dict[str, int] = {}
    complete = os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "0").lower() in _TRUE
    name = "tf_cpu_peak_bytes" if complete else "tf_cpu_large_blocks_peak_bytes"
    peak = _peak("CPU:0")
    if peak is not None:
        found[name] = peak
    for number, _ in enumerate(tf.config.list_logical_devices("GPU")):
        peak = _peak(f"GPU:{number}")
        if peak is not None:
            found["tf_gpu_peak_bytes" if number == 0 else f"tf_gpu{number}_peak_bytes"] = peak
    return found


def _peak(device: str) -> int | None:
    try:
        return int(tf.config.experimental.get_memory_info(device)["peak"])
    except (ValueError, RuntimeError):  # this allocator keeps no statistics
        return None


def whole_gpu_notes() -> Iterator[str]:
    """Give a note for each visible GPU of which TensorFlow takes everything that is free."""
    for gpu in tf.config.get_visible_devices("GPU"):
        limited = any(one.memory_limit for one in tf.config.get_logical_device_configuration(gpu) or ())
        growth = bool(tf.config.experimental.get_memory_growth(gpu))
        if takes_whole_gpu(limited, growth, os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH")):
            yield (
                f"TensorFlow takes all free memory of {gpu.name} when it starts, less a reserve, whatever the "
                "network: the device's memory says nothing about this training, tf_gpu_peak_bytes does. Set "
                "TF_FORCE_GPU_ALLOW_GROWTH=true to see what it needs"
            )


def takes_whole_gpu(is_limited: bool, grows: bool, forced: str | None) -> bool:
    """Return whether TensorFlow will take all of a GPU's free memory at its start.

    Args:
        is_limited: A memory limit is set for a logical device on it.
        grows: Memory growth is on in the program.
        forced: The value of `TF_FORCE_GPU_ALLOW_GROWTH`, which comes before the program's own setting.
    """
    if is_limited:
        return False
    if forced is not None and forced.lower() in (*_TRUE, *_FALSE):
        return forced.lower() in _FALSE
    return not grows
