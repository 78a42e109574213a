"""Where a dispatch mode changes what autograd does, and the cure.

In-place work: while a mode is active, the engine sums gradients out of place
(torch/csrc/autograd/input_buffer.cpp, `accumulate`), and so do the formulas of some
operators (FunctionsManual.cpp and ATen/native, wherever `areAnyTensorSubclassLike` is
asked). In a real run they write into the first tensor when nobody else holds it.

Numbers: a Python number where an operator takes a tensor becomes a tensor of 8 bytes
before the dispatcher is asked (torch/csrc/utils/python_arg_parser.cpp), which autograd
may keep until backward. A mode is given the number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from memgauge.frameworks.torch.operators import Rule
from memgauge.frameworks.torch.scopes import NO_SEQUENCE

# Formulas that write into a tensor of their own, by operator and backward node.
_SELECTING = frozenset(f"{name}Backward0" for name in ("Sort", "Topk", "Kthvalue", "Max", "Min", "Mode"))
IN_PLACE_FORMULAS: dict[str, frozenset[str]] = {
    "aten.sub": frozenset({"BinaryCrossEntropyWithLogitsBackward0"}),
    "aten.mul": frozenset({"BinaryCrossEntropyWithLogitsBackward0"}),
    "aten.scatter": _SELECTING | {"SortBackward1", "MedianBackward1", "NanmedianBackward1"},
    "aten.scatter_add": frozenset({"GatherBackward0", "CummaxBackward0", "CumminBackward0"}),
    "aten.index_put": frozenset({"IndexBackward0"}),
    "aten.index_add": frozenset({"IndexSelectBackward0"}),
    "aten.index_fill": frozenset({"TraceBackward0"}),
}
# Formulas that add two tensors into a third: found by torch's own profiler over its operators' samples (2.13.0, CPU).
# What the engine adds right after one of them is then counted with a third tensor too, for a moment.
_ADDING = frozenset(
    """Atan2 Cholesky CholeskyInverse CholeskySolve LinalgCholeskyEx LinalgDet LinalgLstsq LinalgLu LinalgLuFactorEx
    LinalgLuSolve LinalgPinv LinalgQr LinalgSvd Logaddexp Logaddexp2 Logcumsumexp LuUnpack StdMean
    SpecialLogNdtr TriangularSolve VarMean""".split()
)


def done_in_place(rule: Rule, inputs: list[torch.Tensor]) -> bool:
    """Return whether the engine, which called this operator, would write into its first input."""
    if torch.is_grad_enabled():
        return False
    if rule.name == "aten.add":
        if len(inputs) != 2 or inputs[0].shape != inputs[1].shape or inputs[0].dtype != inputs[1].dtype:
            return False
        if type(torch._C._current_autograd_node()).__name__.removesuffix("Backward0") in _ADDING:
            return False
    else:
        nodes = IN_PLACE_FORMULAS.get(rule.name)
        if nodes is None:
            return False
        node = torch._C._current_autograd_node()
        if type(node).__name__ not in nodes or _is_saved(node, inputs[0]):
            return False
    return inputs[0].layout is torch.strided and _has_one_owner(inputs[0])


def _is_saved(node: Any, tensor: torch.Tensor) -> bool:
    """Return whether a formula was given a tensor, such as the weights of a loss, and did not make it.

    What was saved is looked at as it was packed: to unpack it would run hooks, which checkpoints allow once.
    """
    storage = tensor.untyped_storage()._cdata
    packed = (saved.data for saved in _raw_saved(node))
    return any(isinstance(p, torch.Tensor) and p.untyped_storage()._cdata == storage for p in packed)


def _raw_saved(node: Any) -> Iterator[Any]:
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            saved = getattr(node, name)
            yield from saved if isinstance(saved, (tuple, list)) else (saved,)


def _has_one_owner(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    return (
        torch._C._storage_Use_Count(storage._cdata) == 2  # the tensor, and `storage` here
        and storage.nbytes() == tensor.numel() * tensor.itemsize
    )


def scalar_bytes(rule: Rule, args: tuple[Any, ...], inputs: list[torch.Tensor]) -> int:
    """Return the size of the tensor that a Python number becomes as second argument, 0 if there is none."""
    if len(inputs) != 1 or len(args) < 2 or isinstance(args[1], torch.Tensor) or not rule.takes_scalar:
        return 0
    return 16 if isinstance(args[1], complex) else 1 if isinstance(args[1], bool) else 8


class SavedScalars:
    """Numbers that autograd saved as tensors, each until the node that saved it has run.

    Args:
        release: Is told the storage that goes.
    """

    def __init__(self, release: Callable[[int], None]) -> None:
        self._release = release
        self._saved: list[tuple[int, int]] = []  # (sequence number of the node, storage), ascending

    def save(self, storage: int) -> None:
        """Keep a storage for the node that is being made now."""
        self._saved.append((torch._C._autograd._get_sequence_nr(), storage))

    def release_used(self) -> None:
        """Let go what belongs to nodes that have run: those after the one that runs now."""
        if not self._saved:
            return
        node = torch._C._current_autograd_node()
        if node is None or node._sequence_nr() == NO_SEQUENCE:
            return
        while self._saved and self._saved[-1][0] > node._sequence_nr():
            self._release(self._saved.pop()[1])

    def release_all(self) -> None:
        """Let go of everything: the graph is gone."""
        while self._saved:
            self._release(self._saved.pop()[1])
