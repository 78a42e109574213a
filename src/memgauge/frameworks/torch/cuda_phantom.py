"""The phantom mode for a CUDA target: only device memory is listed, and CUDA's kernels decide.

Everything else (views, known values, shape rules) is as on the CPU.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from memgauge.frameworks.torch.cuda_copies import COPYING, copied
from memgauge.frameworks.torch.cuda_devices import Card
from memgauge.frameworks.torch.cuda_graphs import Graphs
from memgauge.frameworks.torch.cuda_kernels import KERNELS, REPLACED_IN_INFERENCE
from memgauge.frameworks.torch.cuda_libraries import Libraries
from memgauge.frameworks.torch.cuda_placement import Placement
from memgauge.frameworks.torch.cuda_settings import OwnSettings
from memgauge.frameworks.torch.cuda_streams import Streams
from memgauge.frameworks.torch.cuda_workspace import workspace_bytes
from memgauge.frameworks.torch.operators import Rule
from memgauge.frameworks.torch.phantom import PhantomMode, _tensors
from memgauge.frameworks.torch.shapes import Spec
from memgauge.records import Scratch

aten = torch.ops.aten


class CudaPhantomMode(PhantomMode):
    """A phantom mode that tells device memory from the host's."""

    lists_what_it_meets = False  # they are on the host until they are moved, which is a copy
    frames_to_caller = 5

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._workspace = self._workspace or workspace_bytes
        self.placement = Placement(self._unknown)
        self.libraries = Libraries(self, Card())
        self.streams = Streams(self._ledger)
        self.graphs = Graphs(self)
        self.own = OwnSettings(self.values)

    @property
    def in_backward(self) -> bool:
        """Return whether the engine's thread is running, which has library handles of its own."""
        return self._scopes.backward_depth > 0

    @property
    def stream(self) -> int:
        """Return the current stream; 0 is the default one."""
        return self._ledger.stream

    def take(self, size: int, scratch: Scratch, layer: str | None = None) -> int:
        """List what a library takes for itself; returns its number for `give_back`."""
        return self._ledger.take(size, scratch, self._layer() if layer is None else layer)

    def release_cache(self) -> None:
        """List that the allocator gives its cached memory back (`torch.cuda.empty_cache()`)."""
        self._ledger.release_cache()

    def allow(self, fraction: float) -> None:
        """Note what the program lets torch take (`torch.cuda.set_per_process_memory_fraction`)."""
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        self._ledger.memory_fraction = fraction

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with self.placement.beside(_tensors(args, kwargs)):
            if self._ledger.graph_pool:
                self.graphs.check(func, args, kwargs)
            if self.placement.now:
                replacement = REPLACED_IN_INFERENCE.get(func)
                if replacement is not None:
                    with self:
                        return replacement(self.placement, func, *args, **kwargs)
                kernel = KERNELS.get(func)
                if kernel is not None:
                    result = self._as_operator(func, kernel, args, kwargs)
                    if result is not NotImplemented:
                        return result
            return super().__torch_dispatch__(func, types, args, kwargs)

    def _compute(self, func: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.placement.now:
            return super()._compute(func, rule, args, kwargs)
        self.libraries.before(func, args)
        with copied(self, func, args) if func in COPYING else nullcontext():
            result = super()._compute(func, rule, args, kwargs)
            self.libraries.after(func, args, kwargs, result)
        return result

    def _as_operator(self, func: Any, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer, self._ledger.operator = self._ledger.operator, func._schema.name.replace("::", ".")
        try:
            return kernel(self, *args, **kwargs)
        finally:
            self._ledger.operator = outer

    def runs_here(self, func: Any, args: tuple[Any, ...]) -> bool:
        if func in (aten._softmax.default, aten._log_softmax.default):
            return not args[2]  # from half to float in one kernel is CUDA's
        return torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CPU")

    def computed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any) -> Any:
        try:
            return super().computed(func, args, kwargs, specs)
        except NotImplementedError:  # CUDA's kernel takes a type that the CPU's does not: `histc` of integers
            if type(specs) is not Spec or specs.alias is not None:
                raise
            wide = [a.double() if isinstance(a, torch.Tensor) else a for a in args]
            return func(*wide, **kwargs).to(specs.dtype)

    def _list(self, storage: torch.UntypedStorage) -> None:
        self.placement.put(storage)
        if self.placement.now:
            self.own.begin()
            super()._list(storage)

    def _is_made_here(self, storage: torch.UntypedStorage) -> bool:
        return self.placement.made_here(storage)

    def _wrapped_scalar(self, rule: Rule, args: tuple[Any, ...], inputs: list[torch.Tensor]) -> int | None:
        return None  # a Python number becomes a tensor in the host's memory
