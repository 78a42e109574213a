"""What to answer when a program reads a value that only a real run would know.

Known values (counters, shapes, masks made of constants) are computed for real
and never come here. For the rest: what the user declared, else the plainest
assumption (a loss is 1.0, nothing is infinite, routing is even), which is
stated in the result; else an error that names the operator and the user's line.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from memgauge.errors import UnsupportedError
from memgauge.frameworks.torch.operators import Rule
from memgauge.frameworks.torch.shapes import Spec

# Indices that come out of unknown numbers are assumed even; larger ones stay unknown.
ASSUMED_ELEMENTS = 2**20


class ValueReader:
    """Answers reads, and remembers what it had to assume."""

    def __init__(self, declared: Mapping[str, float]) -> None:
        self._declared = dict(declared)
        self.assumptions: dict[str, None] = {}  # ordered, each once

    def read(
        self, func: Any, rule: Rule, args: tuple[Any, ...], is_known: Callable[[torch.Tensor], bool]
    ) -> Any:
        """Return the value that `.item()`, `bool()` or `torch.equal` gives to Python."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if all(is_known(t) for t in tensors):
            return func(*args)
        if rule.name in ("aten.equal", "aten.allclose"):
            return False
        dtype = tensors[0].dtype
        if "item" in self._declared:
            value = self._declared["item"]
            return bool(value) if dtype is torch.bool else value if dtype.is_floating_point else int(value)
        if dtype is torch.bool:
            self._assume(f"a condition read from a tensor ({user_line()}) is taken as false")
            return False
        if dtype.is_complex:
            return complex(1.0)
        if dtype.is_floating_point:
            self._assume("numbers read with .item() that depend on computed values are taken as 1.0")
            return 1.0
        raise self._not_known(rule, "item")

    def assume(
        self,
        func: Any,
        rule: Rule,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        adopt: Callable[[Any], Any],
    ) -> Any:
        """Replace indices that come out of unknown numbers by evenly spread ones, as routing does."""
        return result

    def dynamic_specs(
        self,
        func: Any,
        rule: Rule,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        is_known: Callable[[torch.Tensor], bool],
    ) -> Any:
        """Return the output of an operator whose size depends on values."""
        short = rule.name.split(".")[-1]
        count = self._declared.get(short)
        if count is None:
            raise self._not_known(rule, short)
        first = next(a for a in args if isinstance(a, torch.Tensor))
        size = int(count)
        if short == "nonzero":
            return Spec((size, first.dim()), (1, max(size, 1)), torch.int64)
        return Spec((size,), (1,), first.dtype)

    def _assume(self, text: str) -> None:
        self.assumptions.setdefault(text)

    @staticmethod
    def _not_known(rule: Rule, name: str) -> UnsupportedError:
        return UnsupportedError(
            f"{rule.name} at {user_line()} depends on values that only a real run would know; "
            f'declare one: Workload(..., values={{"{name}": 1}})'
        )


_LIBRARY = (sysconfig.get_paths()["stdlib"], str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))


def user_line() -> str:
    """Return `file.py:12` of the innermost frame that is neither torch, Python nor memgauge."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_LIBRARY) and not frame.filename.startswith("<"):
            return f"{frame.filename}:{frame.lineno}"
    return "an unknown line"
