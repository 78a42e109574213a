"""What a storage is for, read off the objects that the workload built.

Used by the trace and by the real run: both look at the parameters, their
`.grad`, the buffers and the optimizer state at the ends of phases, each at
its own storages.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from memgauge.frameworks.torch.scopes import as_tuple, named_modules
from memgauge.records import Category


def tensors_of_roles(objects: object) -> Iterator[tuple[torch.Tensor, Category, str]]:
    """Yield every tensor with a lasting role, its category and the layer that owns it.

    Order matters where a tensor has two roles: the first wins.
    """
    owner: dict[int, str] = {}
    parameters: list[tuple[torch.nn.Parameter, str]] = []
    for module, path in named_modules(objects).items():
        for found in module._parameters.values():
            if found is not None and id(found) not in owner:
                owner[id(found)] = path
                parameters.append((found, path))
    optimizers = [o for o in as_tuple(objects) if isinstance(o, torch.optim.Optimizer)]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in owner:
                    owner[id(parameter)] = ""
                    parameters.append((parameter, ""))
    for parameter, path in parameters:
        # A lazy module's parameters are made in its first forward.
        if not torch.nn.parameter.is_lazy(parameter):
            yield parameter, Category.PARAMETER, path
    for parameter, path in parameters:
        if parameter.grad is not None:
            yield parameter.grad, Category.GRADIENT, path
    for module, path in named_modules(objects).items():
        for buffer in module._buffers.values():
            if buffer is not None and not torch.nn.parameter.is_lazy(buffer):
                yield buffer, Category.BUFFER, path
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for tensor in tensors_in(state):
                yield tensor, Category.OPTIMIZER_STATE, owner.get(id(parameter), "")
        for group in optimizer.param_groups:
            for key, value in group.items():
                if key != "params":
                    for tensor in tensors_in(value):
                        yield tensor, Category.OPTIMIZER_STATE, ""


def tensors_in(nest: object) -> Iterator[torch.Tensor]:
    """Yield every tensor in a nest of dicts, lists, tuples and dataclass-like objects."""
    if isinstance(nest, torch.Tensor):
        yield nest
    elif isinstance(nest, dict):
        for value in nest.values():
            yield from tensors_in(value)
    elif isinstance(nest, (tuple, list, set, frozenset)):
        for value in nest:
            yield from tensors_in(value)


def storages(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    """Yield the storages behind a tensor: one, or those of a sparse tensor's parts."""
    if tensor.layout is torch.strided:
        yield tensor.untyped_storage()
    elif tensor.layout is torch.sparse_coo:
        yield tensor._indices().untyped_storage()
        yield tensor._values().untyped_storage()
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield tensor.crow_indices().untyped_storage()
        yield tensor.col_indices().untyped_storage()
        yield tensor.values().untyped_storage()
