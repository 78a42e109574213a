"""CUDA graphs of a traced program: what is requested while one is captured lies in a pool of its own.

Blocks of the pool serve later requests of the capture, and of other captures that share the pool; nothing
else ever gets them, and they stay reserved as long as the graph lives, since replaying it writes to the same
addresses (c10/cuda/CUDACachingAllocator.cpp `PrivatePool`, `beginAllocateToPool`, `get_pool`). Replaying
requests nothing. Here a graph lives to the end of the run; what is pinned within a capture, which has a pool of its
own as well, counts with the rest.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from memgauge.allocators.cuda_caching import GRAPH_POOL
from memgauge.frameworks.torch.patches import Patches
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
_DROPPED = "CUDA graphs that were dropped: their pools are kept to the end, where torch gives them back at the next capture"


class Graphs:
    """What `torch.cuda` says of graphs; tells the ledger in which pool a request is made."""

    def __init__(self, mode: CudaPhantomMode) -> None:
        ledger, streams, pinned = mode._ledger, mode.streams, mode.placement.pinned
        self._ledger = ledger
        numbers = itertools.count(1)
        of_captures: list[Any] = []  # the stream that captures run on where none is named: one for all
        random_states: list[int] = []  # what the first capture requests beside the graph, and keeps

        def handle() -> tuple[int, int]:
            """`torch.cuda.graph_pool_handle`."""
            return next(numbers), 0

        class Graph:
            """`torch.cuda.CUDAGraph`."""

            _pool: tuple[int, int] | None = None

            def __new__(cls, *_: Any, **__: Any) -> Any:
                return super().__new__(cls)

            def capture_begin(made, pool: tuple[int, int] | None = None, *_: Any, **__: Any) -> None:
                if ledger.graph_pool:
                    raise RuntimeError("a CUDA graph is being captured already")
                if made._pool is not None:
                    raise RuntimeError("this CUDAGraph owns a captured graph already; make a new one")
                ledger.captures += 1
                if not random_states:  # seed and offset (ATen/cuda/CUDAGeneratorImpl.cpp `register_graph`)
                    random_states.extend(ledger.hold(8, Category.OTHER, "") for _ in range(2))
                made._pool = pool or handle()
                ledger.graph_pool = made._pool[0] * GRAPH_POOL

            def capture_end(made) -> None:
                if not ledger.graph_pool:
                    raise RuntimeError("no CUDA graph is being captured")
                ledger.graph_pool = 0

            def pool(made) -> tuple[int, int]:
                return captured(made)

            def replay(made) -> None:
                captured(made)

            def reset(made) -> None:
                if made._pool is not None:
                    mode.unmodelled.setdefault(_DROPPED)
                made._pool = None

            __del__ = reset

            def _nothing(made, *_: Any, **__: Any) -> None: ...

            instantiate = enable_debug_mode = debug_dump = register_generator_state = _nothing

        def captured(graph: Graph) -> tuple[int, int]:
            if graph._pool is None:
                raise RuntimeError("this CUDA graph was never captured")
            return graph._pool

        class Capture:
            """`torch.cuda.graph`: caches are given back, then the capture begins on a stream of its own."""

            def __init__(
                made, cuda_graph: Any, pool: Any = None, stream: Any = None, *_: Any, **__: Any
            ) -> None:
                if stream is None and not of_captures:
                    of_captures.append(streams.Stream())
                made._graph, made._pool = cuda_graph, pool
                made._on = streams.on(of_captures[0] if stream is None else stream)

            def __enter__(made) -> None:
                torch.cuda.empty_cache()
                pinned.release_cached()
                made._graph.capture_begin(made._pool)
                made._on.__enter__()

            def __exit__(made, *failure: Any) -> None:
                made._graph.capture_end()
                made._on.__exit__(*failure)

        def synchronize(device: Any = None) -> None:
            """`torch.cuda.synchronize`."""
            if ledger.graph_pool:
                raise RuntimeError(_NOT_IN_A_CAPTURE)

        self._answers: dict[str, Any] = {
            "synchronize": synchronize,
            "CUDAGraph": Graph,
            "graph": Capture,
            "graph_pool_handle": handle,
            "is_current_stream_capturing": lambda: ledger.graph_pool > 0,
        }

    def check(self, func: Any) -> None:
        """Refuse what waits for the device, as CUDA does in a capture."""
        if self._ledger.graph_pool and func in _WAITING:
            raise RuntimeError(_NOT_IN_A_CAPTURE)

    def patch(self, patches: Patches) -> None:
        """Answer in the place of torch's own; its `make_graphed_callables` is made of these."""
        for module in (torch.cuda, torch.cuda.graphs):
            for name, answer in self._answers.items():
                patches.set(module, name, answer)
