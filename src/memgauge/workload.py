"""What is run: how to build model and optimizer, one batch, one step.

A workload names no framework and no device. The same one is traced for any
device of the catalogue and really run on the one that is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from memgauge.environment import Own
from memgauge.errors import WorkloadError, nearest

# What `Workload(values=...)` may declare.
DECLARABLE = ("item", "condition", "nonzero", "masked_select", "nms", "unique", "bincount")


@dataclass(frozen=True, slots=True)
class Workload:
    """A training or inference loop, described by three functions.

    A run is `objects = build()`, then N times `b = batch(); r = step(*objects, b)`,
    after which `b` and `r` are dropped.

    Args:
        build: Returns the model, or a tuple of modules and optimizers. Runs with
            the device under study as the default device; may take `device`.
        batch: Returns one batch, any nest of tensors; may take `device`.
        step: Does one step exactly as a training loop would.
        values: What to answer when the step reads a value that is not known
            without running: `{"nonzero": 128}` says that `nonzero` or a mask as an
            index finds 128 elements (so do `masked_select`, `nms` and `unique`),
            `{"bincount": 10}` that it counts the values 0 to 9, `{"item": 0.5}` that
            `.item()` gives 0.5, `{"condition": True}` that a condition on a tensor
            holds, `all()` and `any()` of your own code among them. A number is
            for the line of a loop: 49 holds 49 times and then not once, for
            `while error > tolerance`; -49 fails 49 times and then holds once, for
            `while not done.all()`.
        mode: `"train"` or `"infer"`; only used to warn when training never
            calls backward.

    Raises:
        WorkloadError: One of the three is not callable, or a name in `values` is unknown.
    """

    build: Callable[..., Any]
    batch: Callable[..., Any]
    step: Callable[..., Any]
    values: Mapping[str, float] = field(default_factory=dict)
    mode: str = "train"
    description: Mapping[str, object] = field(default_factory=dict)  # where it came from, for the record
    own: Own = field(default_factory=Own)  # what its file set in the environment when it was loaded

    def __post_init__(self) -> None:
        for name in ("build", "batch", "step"):
            if not callable(getattr(self, name)):
                raise WorkloadError(f"Workload({name}={getattr(self, name)!r}): {name} must be a function")
        for name in self.values:
            if name not in DECLARABLE:
                raise WorkloadError(
                    f"Workload(values={{{name!r}: …}}): nothing reads it{nearest(name, DECLARABLE)}; "
                    f"it is {', '.join(DECLARABLE)}"
                )
        if self.mode not in ("train", "infer"):
            raise WorkloadError(f"Workload(mode={self.mode!r}): mode is 'train' or 'infer'")

    def described(self, **facts: object) -> Workload:
        """Return the same workload with `facts` added to its description."""
        return replace(self, description={**self.description, **facts})
