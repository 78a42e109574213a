"""CUDA graphs of a traced program: what is requested while one is captured lies in a pool of its own.

Blocks of the pool serve later requests of the capture, and of other captures that share the pool; nothing
else ever gets them, and they stay reserved as long as the graph lives, since replaying it writes to the same
addresses (c10/cuda/CUDACachingAllocator.cpp `PrivatePool`, `beginAllocateToPool`, `get_pool`). Replaying
requests nothing.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from memgauge.allocators.cuda_caching import GRAPH_POOL
from memgauge.errors import UnsupportedError
from memgauge.frameworks.torch.cuda_streams import Streams
from memgauge.frameworks.torch.ledger import Ledger
from memgauge.frameworks.torch.patches import Patches
from memgauge.frameworks.torch.values import user_line


class Graphs:
    """What `torch.cuda` says of graphs; tells the ledger in which pool a request is made."""

    def __init__(self, ledger: Ledger, streams: Streams) -> None:
        numbers = itertools.count(1)
        of_captures: list[Any] = []  # the stream that captures run on where none is named: one for all

        def handle() -> tuple[int, int]:
            """`torch.cuda.graph_pool_handle`."""
            return next(numbers), 0

        class Graph:
            """`torch.cuda.CUDAGraph`."""

            def __init__(made, keep_graph: bool = False) -> None:
                made._pool: tuple[int, int] | None = None

            def capture_begin(made, pool: tuple[int, int] | None = None, *_: Any, **__: Any) -> None:
                if ledger.graph_pool:
                    raise UnsupportedError(f"{user_line()}: a CUDA graph is being captured already")
                made._pool = pool or handle()
                ledger.graph_pool = made._pool[0] * GRAPH_POOL

            def capture_end(made) -> None:
                ledger.graph_pool = 0

            def pool(made) -> tuple[int, int] | None:
                return made._pool

            def replay(made) -> None:
                if made._pool is None:
                    raise UnsupportedError(f"{user_line()}: this CUDA graph was never captured")

            def _nothing(made, *_: Any, **__: Any) -> None: ...

            instantiate = reset = enable_debug_mode = debug_dump = _nothing
            register_generator_state = _nothing

        class Capture:
            """`torch.cuda.graph`: the cache is given back, then the capture begins on a stream of its own."""

            def __init__(
                made, cuda_graph: Any, pool: Any = None, stream: Any = None, *_: Any, **__: Any
            ) -> None:
                if stream is None and not of_captures:
                    of_captures.append(streams.Stream())
                made._graph, made._pool = cuda_graph, pool
                made._on = streams.on(of_captures[0] if stream is None else stream)

            def __enter__(made) -> None:
                torch.cuda.empty_cache()
                made._on.__enter__()
                made._graph.capture_begin(made._pool)

            def __exit__(made, *failure: Any) -> None:
                made._graph.capture_end()
                made._on.__exit__(*failure)

        self._answers = {
            "CUDAGraph": Graph,
            "graph": Capture,
            "graph_pool_handle": handle,
            "is_current_stream_capturing": lambda: ledger.graph_pool > 0,
        }

    def patch(self, patches: Patches) -> None:
        """Answer in the place of torch's own; its `make_graphed_callables` is made of these."""
        for module in (torch.cuda, torch.cuda.graphs):
            for name, answer in self._answers.items():
                patches.set(module, name, answer)
