"""CUDA graphs of a traced program: what is requested while one is captured lies in a pool of its own.

Blocks of the pool serve later requests of the capture, and of other captures that share the pool; nothing
else ever gets them, and they stay reserved as long as the graph lives, since replaying it writes to the same
addresses (c10/cuda/CUDACachingAllocator.cpp `PrivatePool`, `beginAllocateToPool`, `get_pool`). Replaying
requests nothing. Here a graph lives to the end of the run; what is pinned within a capture, which has a pool of its
own as well, counts with the rest.
"""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from memgauge.allocators.cuda_caching import GRAPH_POOL
from memgauge.frameworks.torch.cuda_tensor import refuse_other_cards
from memgauge.frameworks.torch.patches import Patches
from memgauge.frameworks.torch.roles import tensors_in
from memgauge.records import Category

if TYPE_CHECKING:
    from memgauge.frameworks.torch.cuda_phantom import CudaPhantomMode

_NOT_IN_A_CAPTURE = "operation not permitted when stream is capturing (a CUDA graph is being captured)"
# Operators whose result is read on the host.
_WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
}
# Those that wait where the other side is the host's and `non_blocking` is not asked for.
_COPYING = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
# Those that look for the true elements of a mask, as `nonzero` does.
_INDEXING = {
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
    torch.ops.aten._index_put_impl_.default,
}
_DROPPED = "CUDA graphs that were dropped: their pools are kept to the end, where torch gives them back at the next capture"


class Graphs:
    """What `torch.cuda` says of graphs; tells the ledger in which pool a request is made.

    Args:
        mode: Of the trace.
    """

    def __init__(self, mode: CudaPhantomMode) -> None:
        self._mode, self._ledger = mode, mode._ledger
        self._numbers = itertools.count(1)
        self._stream: Any = None  # that captures run on where none is named: one for all
        self._has_random_state = False

    def patch(self, patches: Patches) -> None:
        """Answer in the place of torch's own; its `make_graphed_callables` is made of these."""
        answers: dict[str, Any] = {
            "CUDAGraph": type("CUDAGraph", (Graph,), {"graphs": self}),
            "graph": type("graph", (Capture,), {"graphs": self}),
            "graph_pool_handle": self.handle,
            "is_current_stream_capturing": lambda: self._ledger.graph_pool > 0,
            "synchronize": self.synchronize,
        }
        for module in (torch.cuda, torch.cuda.graphs):
            for name, answer in answers.items():
                patches.set(module, name, answer)

    def handle(self) -> tuple[int, int]:
        """`torch.cuda.graph_pool_handle`."""
        return next(self._numbers), 0

    def synchronize(self, device: Any = None) -> None:
        """`torch.cuda.synchronize`."""
        refuse_other_cards(device)
        if self._ledger.graph_pool:
            raise RuntimeError(_NOT_IN_A_CAPTURE)

    def check(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse what waits for the device, as CUDA does in a capture."""
        places = [self._mode.placement.on_device(t) for t in tensors_in((args, kwargs))]
        if not any(places) and not self._mode.placement.now:  # of the host alone
            return
        if func in _COPYING:
            is_into = func is torch.ops.aten.copy_.default
            to_device, source = (places[0], args[1]) if is_into else (self._mode.placement.now, args[0])
            is_filled = to_device and source.dim() == 0
            waits = (
                places[-1] != to_device
                and not is_filled
                and not _argument(func, "non_blocking", args, kwargs)
            )
        elif func in _INDEXING:
            waits = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        else:
            waits = func in _WAITING
        if waits:
            raise RuntimeError(_NOT_IN_A_CAPTURE)

    def stream(self) -> Any:
        """Return the stream of captures that name none."""
        self._stream = self._stream or self._mode.streams.Stream()
        return self._stream

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream the current one."""
        return self._mode.streams.on(stream)

    def give_caches_back(self) -> None:
        """Give back what is cached on the device and what is pinned and free."""
        torch.cuda.empty_cache()
        self._mode.placement.pinned.release_cached()

    def begin(self, pool: tuple[int, int]) -> None:
        """Let requests go to a pool from now on."""
        if self._ledger.graph_pool:
            raise RuntimeError("a CUDA graph is being captured already")
        if not self._has_random_state:  # seed and offset (ATen/cuda/CUDAGeneratorImpl.cpp `register_graph`)
            self._has_random_state = True
            for _ in range(2):
                self._ledger.hold(8, Category.OTHER, "")
        self._ledger.captures += 1
        self._ledger.graph_pool = pool[0] * GRAPH_POOL

    def end(self) -> None:
        """Let requests go where they went before."""
        if not self._ledger.graph_pool:
            raise RuntimeError("no CUDA graph is being captured")
        self._ledger.graph_pool = 0

    def dropped(self) -> None:
        """Note that a captured graph is gone, whose pool is kept here."""
        self._mode.unmodelled.setdefault(_DROPPED)


class Graph:
    """`torch.cuda.CUDAGraph`."""

    graphs: ClassVar[Graphs]
    _pool: tuple[int, int] | None = None

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return super().__new__(cls)

    def capture_begin(self, pool: tuple[int, int] | None = None, *_: Any, **__: Any) -> None:
        if self._pool is not None:
            raise RuntimeError("this CUDAGraph owns a captured graph already; make a new one")
        pool = pool or self.graphs.handle()
        self.graphs.begin(pool)
        self._pool = pool

    def capture_end(self) -> None:
        self.graphs.end()

    def pool(self) -> tuple[int, int]:
        if self._pool is None:
            raise RuntimeError("this CUDA graph was never captured")
        return self._pool

    def replay(self) -> None:
        self.pool()

    def reset(self) -> None:
        if self._pool is not None:
            self.graphs.dropped()
        self._pool = None

    __del__ = reset

    def _nothing(self, *_: Any, **__: Any) -> None: ...

    instantiate = enable_debug_mode = debug_dump = register_generator_state = _nothing


class Capture:
    """`torch.cuda.graph`: caches are given back, then the capture begins on a stream of its own."""

    graphs: ClassVar[Graphs]

    def __init__(self, cuda_graph: Any, pool: Any = None, stream: Any = None, *_: Any, **__: Any) -> None:
        self._graph, self._pool = cuda_graph, pool
        self._on = self.graphs.on(self.graphs.stream() if stream is None else stream)

    def __enter__(self) -> None:
        self.graphs.give_caches_back()
        self._graph.capture_begin(self._pool)
        self._on.__enter__()

    def __exit__(self, *failure: Any) -> None:
        self._graph.capture_end()
        self._on.__exit__(*failure)


def _argument(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what an operator is called with for one of its arguments; None where it is left out."""
    place = [a.name for a in func._schema.arguments].index(name)
    return args[place] if place < len(args) else kwargs.get(name)
