"""The phantom mode for a CUDA target: only device memory is listed, and CUDA's kernels decide.

Everything else (views, known values, shape rules) is as on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch

from memgauge.frameworks.torch.cuda_kernels import KERNELS, REPLACED_IN_INFERENCE
from memgauge.frameworks.torch.cuda_placement import Placement
from memgauge.frameworks.torch.cuda_workspace import workspace_bytes
from memgauge.frameworks.torch.operators import Rule
from memgauge.frameworks.torch.phantom import PhantomMode, _tensors

aten = torch.ops.aten


class CudaPhantomMode(PhantomMode):
    """A phantom mode that tells device memory from the host's."""

    lists_what_it_meets = False  # they are on the host until they are moved, which is a copy
    frames_to_caller = 4

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._workspace = self._workspace or workspace_bytes
        self.placement = Placement(self._unknown)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with self.placement.beside(_tensors(args, kwargs)):
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

    def _list(self, storage: torch.UntypedStorage) -> None:
        self.placement.put(storage)
        if self.placement.now:
            super()._list(storage)

    def _is_made_here(self, storage: torch.UntypedStorage) -> bool:
        return self.placement.made_here(storage)

    def _wrapped_scalar(self, rule: Rule, args: tuple[Any, ...], inputs: list[torch.Tensor]) -> int | None:
        return None  # a Python number becomes a tensor in the host's memory
