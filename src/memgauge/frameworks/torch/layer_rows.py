"""From the calls that were seen to the rows of the layer table: each parameter in exactly one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import torch

from memgauge.formula.records import LayerRow, ParameterShape
from memgauge.frameworks.torch.parameter_formulas import parameter_formula

Shapes = tuple[tuple[int, ...], ...]

_OUTSIDE = "outside every module"


@dataclass(slots=True)
class Seen:
    """What is known of one layer after its calls in one step.

    Attributes:
        shapes: Of the tensors that the first call returned.
        first: Number of that call in the order of the step.
        calls: How many there were.
        map_bytes: Bytes of everything that they returned.
    """

    shapes: Shapes
    first: int
    calls: int = 0
    map_bytes: int = 0


def layer_rows(
    paths: Mapping[torch.nn.Module, str],
    seen: Mapping[torch.nn.Module, Seen],
    callers: Set[torch.nn.Module],
    parameters: Sequence[torch.Tensor],
    shape_of: Callable[[torch.Tensor], ParameterShape],
) -> tuple[LayerRow, ...]:
    """Return a row for each layer and each other holder of parameters, in the order of calls.

    Args:
        paths: Every module of the workload with its path, in the model's order.
        seen: The layers, with their calls.
        callers: Modules that called others.
        parameters: Every parameter of the workload, once.
        shape_of: Shape and bits of a parameter.
    """
    left = {id(p): p for p in parameters}
    held: dict[torch.nn.Module, list[torch.nn.Parameter]] = {m: [] for m in seen}
    shared: dict[torch.nn.Module, list[str]] = {}
    first_path: dict[int, str] = {}
    for module, path, parameter in _all_parameters(paths):
        holder = _holder(module, path, paths, seen, callers)
        held.setdefault(holder, [])
        if left.pop(id(parameter), None) is None:
            shared.setdefault(holder, []).append(first_path[id(parameter)])
            continue
        first_path[id(parameter)] = path
        held[holder].append(parameter)
    order = {module: number for number, module in enumerate(paths)}
    rows = []
    for module in sorted(held, key=lambda m: (_first_call(m, paths, seen), order.get(m, len(order)))):
        notes = [
            f"shares parameters with {path}, counted there" for path in dict.fromkeys(shared.get(module, []))
        ]
        if module not in seen:
            notes.insert(0, "held by the module itself" if module in callers else "not called as a module")
        rows.append(_row(module, paths, seen.get(module), held[module], shape_of, "; ".join(notes)))
    if left:
        rows.append(_row_outside([shape_of(p) for p in left.values()]))
    return tuple(rows)


def _all_parameters(
    paths: Mapping[torch.nn.Module, str],
) -> Iterator[tuple[torch.nn.Module, str, torch.nn.Parameter]]:
    for module, path in paths.items():
        for parameter in module._parameters.values():
            if parameter is not None:
                yield module, path, parameter


def _holder(
    module: torch.nn.Module,
    path: str,
    paths: Mapping[torch.nn.Module, str],
    seen: Mapping[torch.nn.Module, Seen],
    callers: Set[torch.nn.Module],
) -> torch.nn.Module:
    """Return the layer that uses a module's parameters: itself, or the layer it is a part of."""
    if module in seen or module in callers:
        return module
    layers = {paths[m]: m for m in seen if m in paths and m not in callers}
    parts = path.split(".")
    for length in range(len(parts) - 1, -1, -1):
        found = layers.get(".".join(parts[:length]))
        if found is not None:
            return found
    return module


def _first_call(
    module: torch.nn.Module, paths: Mapping[torch.nn.Module, str], seen: Mapping[torch.nn.Module, Seen]
) -> float:
    """Return the number of the first call of a module or of what is inside it."""
    path = paths.get(module)
    if module in seen or path is None:
        return seen[module].first if module in seen else float("inf")
    prefix = f"{path}." if path else ""
    inside = (s.first for other, s in seen.items() if paths.get(other, "").startswith(prefix))
    return min(inside, default=float("inf"))


def _row(
    module: torch.nn.Module,
    paths: Mapping[torch.nn.Module, str],
    seen: Seen | None,
    parameters: list[torch.nn.Parameter],
    shape_of: Callable[[torch.Tensor], ParameterShape],
    note: str,
) -> LayerRow:
    return LayerRow(
        path=paths.get(module, type(module).__name__),
        kind=type(module).__name__,
        calls=seen.calls if seen else 0,
        output_shapes=seen.shapes if seen else (),
        parameter_formula=parameter_formula(module, parameters),
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(shape_of(p).count_bytes for p in parameters),
        feature_map_bytes=seen.map_bytes if seen else 0,
        note=note,
    )


def _row_outside(parameters: list[ParameterShape]) -> LayerRow:
    """Return the row of parameters that only an optimizer knows."""
    return LayerRow(
        path="",
        kind=_OUTSIDE,
        calls=0,
        output_shapes=(),
        parameter_formula=" + ".join(" × ".join(map(str, p.shape)) or "1" for p in parameters),
        parameters=sum(p.elements for p in parameters),
        parameter_bytes=sum(p.count_bytes for p in parameters),
        feature_map_bytes=0,
        note="known to the optimizer only",
    )
