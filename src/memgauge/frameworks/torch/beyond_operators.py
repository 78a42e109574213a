"""What a program does with tensors that no dispatcher sees, and what a trace makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from memgauge.frameworks.torch.patches import Patches
from memgauge.frameworks.torch.shapes import contiguous

if TYPE_CHECKING:
    from memgauge.frameworks.torch.phantom import PhantomMode


@contextmanager
def seen_by(mode: PhantomMode) -> Iterator[None]:
    """Give the program storages, random states and files as a trace has them, for as long as it runs."""
    with Patches() as patches:
        if mode.lists_what_it_meets:
            _list_rng_states(patches, mode)
        patches.set(torch.UntypedStorage, "clone", _phantom_copy(mode))
        patches.set(torch, "save", _write_nothing(mode))
        yield


def _list_rng_states(patches: Patches, mode: PhantomMode) -> None:
    """Tensors that hold random states (5,056 bytes each) are made outside the dispatcher."""
    before = torch.get_rng_state

    def listed() -> torch.Tensor:
        return mode.adopt(before())  # type: ignore[no-any-return]

    patches.set(torch, "get_rng_state", listed)
    patches.set(torch.random, "get_rng_state", listed)


def _phantom_copy(mode: PhantomMode) -> Callable[[torch.UntypedStorage], torch.UntypedStorage]:
    """`copy.deepcopy` of a detached tensor, as in a kept `state_dict()`, copies its storage."""

    def clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
        return mode.make(contiguous((storage.nbytes(),), torch.uint8)).untyped_storage()

    return clone


def _write_nothing(mode: PhantomMode) -> Callable[..., None]:
    """A checkpoint of phantoms would overwrite a real one with zeros."""

    def save(*args: Any, **kwargs: Any) -> None:
        mode.values.assume("torch.save writes no file in a prediction")

    return save
