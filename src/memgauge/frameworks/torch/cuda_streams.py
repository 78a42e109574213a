"""Streams of a CUDA program: none runs anything, but each has pools of its own in torch's allocator.

A block belongs to the stream that was current when it was requested (c10/cuda/CUDACachingAllocator.cpp
`malloc`), so what a loader copies ahead on a stream of its own is never reused by the step, nor the
other way round. `record_stream`, which keeps a block until another stream is done with it, changes
when a block comes back, not where to; time does not pass in a trace, so it holds nothing back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memgauge.frameworks.torch.cuda_tensor import refuse_other_cards
from memgauge.frameworks.torch.ledger import Ledger

GPU = torch.device("cuda", 0)
DEFAULT = 0
# torch hands out streams of a device in turn from 32 of each priority (c10/cuda/CUDAStream.cpp
# `kStreamsPerPool`), so that the 33rd is the first again.
STREAMS_PER_POOL = 32


class Nothing:
    """An event, a guard: accepts every call, can be entered, does nothing."""

    device = GPU
    device_index = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def elapsed_time(self, other: object) -> float:
        return 1.0

    def record_event(self, event: Any = None) -> Any:
        return event or Nothing()


class Stream(Nothing):
    """A stream by its number; 0 is the default one."""

    def __init__(self, number: int, is_capturing: bool = False) -> None:
        self.stream_id = self.cuda_stream = number
        self._is_capturing = is_capturing

    def is_capturing(self) -> bool:
        return self._is_capturing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


class Streams:
    """What `torch.cuda` says of streams; tells the ledger on which one a request is made."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        numbers = itertools.cycle(range(1, STREAMS_PER_POOL + 1))

        class Made(Stream):
            """`torch.cuda.Stream(...)`: the next of the pool. Entering it makes it the current one."""

            def __init__(made, device: Any = None, *_: Any, **__: Any) -> None:
                refuse_other_cards(device)
                super().__init__(next(numbers))

        self.Stream = Made

    def current(self, device: Any = None) -> Stream:
        """`torch.cuda.current_stream`."""
        refuse_other_cards(device)
        return Stream(self._ledger.stream, self._ledger.graph_pool > 0)

    def default(self, device: Any = None) -> Stream:
        """`torch.cuda.default_stream`."""
        refuse_other_cards(device)
        return Stream(DEFAULT)

    def set(self, stream: Any) -> None:
        """`torch.cuda.set_stream`."""
        self._ledger.stream = getattr(stream, "stream_id", DEFAULT)

    @contextmanager
    def on(self, stream: Any) -> Iterator[Any]:
        """`torch.cuda.stream`; None changes nothing."""
        before = self._ledger.stream
        if stream is not None:
            self.set(stream)
        try:
            yield stream
        finally:
            self._ledger.stream = before
