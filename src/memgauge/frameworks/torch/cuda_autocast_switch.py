"""Switching autocast on and off, for a CUDA target.

`torch.autocast("cuda")` sets its state through functions of the `torch` module. The
stand-ins have the dispatcher's AutocastCPU key, so switching CUDA's on switches that
key on; autocast for the CPU is only remembered, since host tensors are not memory here.
"""

from __future__ import annotations

from typing import Any

import torch

from memgauge.frameworks.torch.cuda_autocast import Autocast
from memgauge.frameworks.torch.patches import Patches


def patch_autocast(patches: Patches, autocast: Autocast) -> None:
    """Let autocast for `cuda` switch on the stand-ins' key, and autocast for the CPU only be remembered."""
    on_cpu = {"enabled": False, "dtype": torch.get_autocast_dtype("cpu")}
    set_enabled, set_dtype = torch.set_autocast_enabled, torch.set_autocast_dtype
    is_enabled, get_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    clear = torch.clear_autocast_cache
    patches.callback(set_enabled, "cpu", is_enabled("cpu"))
    patches.callback(set_enabled, "cuda", is_enabled("cuda"))
    patches.callback(set_dtype, "cuda", get_dtype("cuda"))
    autocast.lower = get_dtype("cuda")
    set_enabled("cpu", is_enabled("cuda"))

    def set_autocast_enabled(*args: Any) -> None:
        device, enabled = args if len(args) == 2 else ("cuda", args[0])
        if device == "cpu":
            on_cpu["enabled"] = enabled
            return
        set_enabled(device, enabled)
        if device == "cuda":
            set_enabled("cpu", enabled)

    def set_autocast_dtype(device: str, dtype: torch.dtype) -> None:
        if device == "cpu":
            on_cpu["dtype"] = dtype
            return
        set_dtype(device, dtype)
        if device == "cuda":
            autocast.lower = dtype

    def clear_autocast_cache() -> None:
        clear()
        autocast.clear()

    patches.set(torch, "set_autocast_enabled", set_autocast_enabled)
    patches.set(torch, "set_autocast_dtype", set_autocast_dtype)
    patches.set(torch, "set_autocast_gpu_dtype", lambda dtype: set_autocast_dtype("cuda", dtype))
    patches.set(torch, "clear_autocast_cache", clear_autocast_cache)
    patches.set(
        torch,
        "is_autocast_enabled",
        lambda device="cuda": on_cpu["enabled"] if device == "cpu" else is_enabled(device),
    )
    patches.set(
        torch, "get_autocast_dtype", lambda device: on_cpu["dtype"] if device == "cpu" else get_dtype(device)
    )
    patches.callback(autocast.clear)
