"""What a program does with tensors that no dispatcher sees, and what a trace makes of it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from memgauge.errors import UnsupportedError
from memgauge.frameworks.torch.patches import Patches
from memgauge.frameworks.torch.shapes import contiguous
from memgauge.frameworks.torch.values import user_line

if TYPE_CHECKING:
    from memgauge.frameworks.torch.phantom import PhantomMode


_KNOWN_COPY_BYTES = 4096


@contextmanager
def seen_by(mode: PhantomMode) -> Iterator[None]:
    """Give the program storages, random states and files as a trace has them, for as long as it runs."""
    with Patches() as patches:
        if mode.lists_what_it_meets:
            _list_rng_states(patches, mode)
        patches.set(torch.UntypedStorage, "clone", _phantom_copy(mode))
        saved: dict[Any, Any] = {}
        patches.set(torch, "save", _write_nothing(mode, saved))
        patches.set(torch, "load", _not_what_was_saved(torch.load, saved))
        yield


def _list_rng_states(patches: Patches, mode: PhantomMode) -> None:
    """Tensors that hold random states (5,056 bytes each) are made outside the dispatcher."""
    before = torch.get_rng_state

    def listed() -> torch.Tensor:
        return mode.adopt(before())  # type: ignore[no-any-return]

    patches.set(torch, "get_rng_state", listed)
    patches.set(torch.random, "get_rng_state", listed)


def _phantom_copy(mode: PhantomMode) -> Callable[[torch.UntypedStorage], torch.UntypedStorage]:
    """`copy.deepcopy` of a detached tensor, as in a kept `state_dict()`, copies its storage.

    What is known and small stays known, such as the counters of batch norm's and of averaged weights' copies.
    """

    def clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
        with torch._C._DisableTorchDispatch():  # else the trace would list what is made here
            source = torch.empty(0, dtype=torch.uint8).set_(storage)
            is_kept = storage.nbytes() <= _KNOWN_COPY_BYTES and mode.is_known(source)
            copied = source.clone() if is_kept else None
        if copied is not None:
            return mode.adopt(copied).untyped_storage()  # type: ignore[no-any-return]
        return mode.make(contiguous((storage.nbytes(),), torch.uint8)).untyped_storage()

    return clone


def _write_nothing(mode: PhantomMode, saved: dict[Any, Any]) -> Callable[..., None]:
    """A checkpoint of phantoms would overwrite a real one with zeros; `saved` has what was to be written to."""

    def save(obj: object, f: Any, *_: Any, **__: Any) -> None:
        mode.values.assume("torch.save writes no file in a prediction")
        saved[_identity(f)] = f

    return save


def _not_what_was_saved(real: Callable[..., Any], saved: Mapping[Any, Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        if _identity(f) in saved:
            raise UnsupportedError(
                f"{user_line()}: torch.load of {f!r}, which this run saved: torch.save writes no file in a "
                "prediction; leave the loading out, or keep a copy of the state_dict() and load that"
            )
        return real(f, *args, **kwargs)

    return load


def _identity(file: Any) -> Any:
    """Return the path of a file, also of an open one; else (a buffer) what tells it from others."""
    path = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
    return os.path.abspath(path) if isinstance(path, (str, os.PathLike)) else id(file)
