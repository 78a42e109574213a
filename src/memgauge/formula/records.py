"""What the calculation by hand is made of, and what it says.

    LayerTable   read off the real modules: layers, their calls, optimizers, input
    Formula      the table and its totals for training and for inference
    Both         the same beside a traced prediction, with the gap itemised

All quantities are `int` bytes, or counts without a unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from memgauge.records import Estimate

How = Literal["new", "in place", "view"]


class LayerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One layer of the table.

    Attributes:
        path: Where the layer is in the model, `""` for the model itself.
        kind: Class name of the module.
        calls: How often one step calls it; 0 for a module that only holds parameters.
        output_shapes: Shapes of the tensors that one call returns, the first call's.
        parameter_formula: The count written out, such as `64 × (3 × 3 × 3) + 64`.
        parameters: Parameters counted here; each parameter of the model is counted in one row.
        parameter_bytes: Their bytes.
        feature_map_bytes: Bytes of everything that the calls of one step return.
        note: What is special: shared parameters, a module that is not called.
    """

    path: str
    kind: str
    calls: int
    output_shapes: tuple[tuple[int, ...], ...]
    parameter_formula: str
    parameters: int
    parameter_bytes: int
    feature_map_bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """One tensor that a call returned: its bytes, and how it came by its storage."""

    count_bytes: int
    storage: int | None  # the trace's number of the storage; None if the trace does not list it
    how: How


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One call of a layer in one step, in program order."""

    step: int
    path: str
    outputs: tuple[OutputTensor, ...]

    @property
    def count_bytes(self) -> int:
        """Bytes of everything that the call returned."""
        return sum(t.count_bytes for t in self.outputs)


@dataclass(frozen=True, slots=True)
class ParameterShape:
    """One parameter: its shape and the bits of one element."""

    shape: tuple[int, ...]
    element_bits: int

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def count_bytes(self) -> int:
        """Bytes of it, whole bytes where elements are smaller than one."""
        return bytes_of(self.elements, self.element_bits)


def bytes_of(elements: int, element_bits: int) -> int:
    """Return the bytes of `elements` elements, rounded up to whole bytes."""
    return -(-elements * element_bits // 8)


@dataclass(frozen=True, slots=True)
class OptimizerUse:
    """One optimizer of the workload: class, arguments of each group, parameters with a gradient.

    `names` are the class and the classes it inherits from, nearest first, so that a
    subclass of Adam is counted as Adam. `found_bytes` is the state that the optimizer
    really has after the traced steps.
    """

    names: tuple[str, ...]
    groups: tuple[tuple[Mapping[str, object], tuple[ParameterShape, ...]], ...]
    found_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LayerTable:
    """What the reader found on the real modules.

    Attributes:
        layers: The rows, in the order of the first call.
        calls: Every call of every traced step, in program order.
        optimizers: As the workload built them, or the one asked for.
        parameter_bytes, gradient_bytes: Of all parameters; of those that are trained.
        input_bytes: The batch.
        trained_bytes: Of the parameters that are trained, by the path of their module.
        goes_backward: Whether the step calls backward: training, with or without an optimizer.
        assumptions: What was taken for granted.
        element_types: Of the parameters, by name.
    """

    layers: tuple[LayerRow, ...]
    calls: tuple[LayerCall, ...]
    optimizers: tuple[OptimizerUse, ...]
    parameter_bytes: int
    gradient_bytes: int
    input_bytes: int
    trained_bytes: Mapping[str, int] = field(default_factory=dict)
    goes_backward: bool = True
    assumptions: tuple[str, ...] = ()
    element_types: tuple[str, ...] = ()

    def calls_of(self, step: int) -> tuple[LayerCall, ...]:
        """Return the calls of one step."""
        return tuple(call for call in self.calls if call.step == step)


class StateRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of tensor that an optimizer keeps: its name in torch, how many bytes, and why."""

    optimizer: str
    name: str
    formula: str
    state_bytes: int
    source: str


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """What training takes by hand: everything at once, each activation with a gradient."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    activation_bytes: int
    activation_gradient_bytes: int
    input_bytes: int
    total_bytes: int


class Inference(msgspec.Struct, frozen=True, kw_only=True):
    """What inference takes by hand: parameters, input, the two largest consecutive feature maps."""

    parameter_bytes: int
    two_largest_bytes: int
    layers: tuple[str, ...]  # the paths of the two
    input_bytes: int
    total_bytes: int


class Formula(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.formula/1"):
    """The calculation by hand for one workload."""

    workload: dict[str, object]
    device: dict[str, object]
    mode: str
    element_type: str
    parameters: int
    layers: tuple[LayerRow, ...]
    optimizer_state: tuple[StateRow, ...]
    training: Training | None  # null for a workload that only infers
    inference: Inference
    assumptions: tuple[str, ...] = ()
    versions: dict[str, str] = {}

    @property
    def total_bytes(self) -> int:
        """Return what the formula says of the workload as it is: training or inference."""
        return self.inference.total_bytes if self.training is None else self.training.total_bytes


class CategoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One category on both sides; the difference is the trace minus the formula."""

    name: str
    formula_bytes: int
    trace_bytes: int
    difference_bytes: int


class GapItem(msgspec.Struct, frozen=True, kw_only=True):
    """One named part of the difference, the trace minus the formula; the items add up to it.

    Attributes:
        category: Which category it belongs to.
        name: What the formula misses, or counts and should not.
        gap_bytes: Positive where the formula is too low, negative where it counts too much.
        parts_bytes: The same by operator or layer, largest first.
        why: The reason, in a sentence.
    """

    category: str
    name: str
    gap_bytes: int
    parts_bytes: dict[str, int]
    why: str


class Both(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.formula-and-trace/1"):
    """Formula and trace side by side. The trace's side is its first instant of peak allocated."""

    formula: Formula
    trace: Estimate
    formula_bytes: int
    trace_bytes: int
    difference_bytes: int
    categories: tuple[CategoryRow, ...]
    gap: tuple[GapItem, ...]


class ZooNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """One network of the zoo, with what it takes by default: all its arguments as they are."""

    target: str
    description: str
    arguments: dict[str, object]
    parameters: int
    peak_allocated_bytes: int | None
    training_by_hand_bytes: int
