"""`torch.load` for a CUDA target: what a checkpoint or `map_location` places on the card counts there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memgauge.errors import UnsupportedError
from memgauge.frameworks.torch.cuda_phantom import CudaPhantomMode
from memgauge.frameworks.torch.cuda_tensor import place_of
from memgauge.frameworks.torch.patches import Patches
from memgauge.frameworks.torch.shapes import contiguous
from memgauge.frameworks.torch.values import user_line

# Storages of so little keep what the file has in them: programs read counters, masks and tables back.
_KEPT_BYTES = 2**20


def patch_loading(patches: Patches, mode: CudaPhantomMode) -> None:
    """Let each form of `map_location` lead to the card; all end in torch's default_restore_location."""
    real = torch.serialization.default_restore_location
    patches.set(torch.serialization, "default_restore_location", _restored(mode, real))
    for kind in (torch.UntypedStorage, torch.TypedStorage):
        patches.set(kind, "cuda", _refuse)


def _restored(mode: CudaPhantomMode, real: Callable[..., Any]) -> Callable[..., Any]:
    def restored(storage: torch.UntypedStorage, location: Any) -> Any:
        name = location.decode() if isinstance(location, bytes) else location
        if not name.startswith("cuda") or not place_of(name):
            return real(storage, location)
        with mode.placement.at(True):
            # Files of before torch 1.6 fill the storage afterwards.
            if storage.nbytes() <= _KEPT_BYTES or getattr(storage, "_torch_load_uninitialized", False):
                mode.adopt(torch.empty(0, dtype=torch.uint8).set_(storage))
                return storage
            return mode.make(contiguous((storage.nbytes(),), torch.uint8)).untyped_storage()

    return restored


def _refuse(*_: Any, **__: Any) -> None:
    raise UnsupportedError(
        f"{user_line()}: .cuda() of a storage is not followed; in torch.load write map_location='cuda' instead "
        "of a function that calls it"
    )
