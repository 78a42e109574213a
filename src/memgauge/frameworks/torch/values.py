"""What to answer when a program reads a value that only a real run would know.

Known values (counters, shapes, masks made of constants) are computed for real
and never come here. For the rest: what the user declared, else the plainest
assumption (a loss is 1.0, nothing is infinite, routing is even), which is
stated in the result; else an error that names the operator and the user's line.
"""

from __future__ import annotations

import linecache
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from memgauge.errors import UnsupportedError
from memgauge.frameworks.torch.operators import Rule
from memgauge.frameworks.torch.torchvision_values import ASSUMPTION, answer_of_detector
from memgauge.usercode import is_installed, is_machinery, is_own
from memgauge.workload import DECLARABLE

# What LBFGS asks of its tensors holds or not as in a run that makes progress (torch/optim/lbfgs.py, torch 2.13): it
# keeps a correction pair of each iteration, and `_strong_wolfe` accepts its first step, so that `max_eval` does not
# end the iterations early. No other condition there holds: those end an iteration, or widen the line search.
_LBFGS = "torch/optim/lbfgs.py"
_HOLD_IN_LBFGS = {
    "if ys > 1e-10": "LBFGS is taken to keep what it learns in each iteration until its history is full",
    "if abs(gtd_new) <= -c2 * gtd": "LBFGS's line search is taken to accept its first step",
}

_PROTOCOL = str(Path(__file__).with_name("protocol.py"))  # calls the user's functions

# A line that reads a condition so often in one run is taken for a loop that never ends.
_ENDLESS = 50_000


class ValueReader:
    """Answers reads, and remembers what it had to assume."""

    def __init__(self, declared: Mapping[str, float]) -> None:
        self._declared = dict(declared)
        self.assumptions: dict[str, None] = {}  # ordered, each once
        self._reads = -1
        self._last: tuple[weakref.ref[torch.UntypedStorage], int, int, float] | None = None
        self._conditions: dict[str, int] = {}  # line -> how often it has been read

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
        if dtype is torch.bool:
            return self._condition(rule)
        found = self._of_detector(sys.maxsize)
        if found is not None:
            return float(found) if dtype.is_floating_point else found
        if "item" in self._declared and not (dtype.is_floating_point and _line_of_lbfgs()):
            value = self._declared["item"]
            return value if dtype.is_floating_point else int(value)
        if dtype.is_complex:
            return complex(1.0)
        if dtype.is_floating_point:
            self.assume("numbers read with .item() that depend on computed values fall slowly from 1.0")
            return self._falling(tensors[0])
        raise self.not_known(rule, "item")

    def _falling(self, tensor: torch.Tensor) -> float:
        """Return a number below those before; the same as the last time if nobody has written to the tensor since."""
        # Those of inference mode do not tell whether they were written to: each time another number.
        version = -1 if tensor.is_inference() else tensor._version
        storage, offset = tensor.untyped_storage(), int(tensor.storage_offset())
        if version >= 0 and self._last is not None:
            read, *place, value = self._last
            if read() is storage and place == [offset, version]:
                return value
        self._reads += 1
        value = 1.0 / (1.0 + 0.001 * self._reads)
        self._last = weakref.ref(storage), offset, version, value
        return value

    def _condition(self, rule: Rule) -> bool:
        """Whether a condition holds: as declared, else not; a number holds so many times at each line.

        A number below zero fails so many times.
        """
        of_lbfgs = _line_of_lbfgs()
        if of_lbfgs is not None:
            reason = next((why for text, why in _HOLD_IN_LBFGS.items() if text in of_lbfgs), None)
            if reason is not None:
                self.assume(reason)
            return reason is not None
        line = user_line()
        declared = self._declared.get("condition")
        if declared is None:
            self.assume(
                f'a condition read from a tensor ({line}) is taken as false; values={{"condition": …}} says else'
            )
            return False
        held = self._conditions[line] = self._conditions.get(line, -1) + 1
        if held >= _ENDLESS:
            raise UnsupportedError(
                f"{rule.name} at {line} was read {_ENDLESS:,} times: a loop that never ends while "
                f'values={{"condition": {declared}}}; declare how many times it holds, or -N: fails N times'
            )
        times = abs(int(declared))
        goes_on = declared is True or held % (times + 1) < times
        return goes_on if declared >= 0 else not goes_on

    def check_passes(self, of_torch: bool) -> bool:
        """Whether `all()` or `any()` is taken for a check that passes: not where a condition is declared.

        What is declared is for the user's own code: checks within torch and libraries always pass.
        """
        line, library = _lines()
        if of_torch or library or not line:
            self.assume("checks of data with all() and any() pass")
            return True
        if "condition" in self._declared:
            return False
        self.assume(
            f'a check of data with all() or any() ({line}) is taken to pass; values={{"condition": …}} says else'
        )
        return True

    def count(self, name: str, elements: int) -> int | None:
        """Return how many elements `nonzero` and its like find: as declared, None if undeclared.

        What a detector of torchvision asks for itself is answered from its settings.
        """
        found = self._of_detector(elements)
        if found is not None:
            return found
        declared = self._declared.get(name)
        return None if declared is None else min(int(declared), elements)

    def length_of_counts(self, minlength: int) -> int | None:
        """Return how many counts `bincount` gives: as declared, at least `minlength`, None if neither says it."""
        declared = self._declared.get("bincount")
        if declared is not None:
            return max(int(declared), minlength)
        if not minlength:
            return None
        self.assume("no value that bincount counts exceeds minlength - 1")
        return minlength

    def _of_detector(self, elements: int) -> int | None:
        found = answer_of_detector(elements)
        if found is not None:
            self.assume(ASSUMPTION)
        return found

    def assume(self, text: str) -> None:
        """Remember an assumption, once."""
        self.assumptions.setdefault(text)

    @staticmethod
    def not_known(rule: Rule, name: str, at_most: int | None = None) -> UnsupportedError:
        """Return the error for a value that only a real run would know; `at_most` is its bound."""
        bound = f" (how many are found, at most {at_most:,})" if at_most is not None else ""
        advice = (
            f'declare one: Workload(..., values={{"{name}": {at_most or 1}}}){bound}'
            if name in DECLARABLE
            else "make them from constants or inputs, or `memgauge measure` to really run it"
        )
        return UnsupportedError(
            f"{rule.name} at {_where()} depends on values that only a real run would know; {advice}"
        )


def _line_of_lbfgs() -> str | None:
    """Return the line of LBFGS's own code that reads a value; None if another, such as the closure, reads it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_own(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.endswith(_LBFGS):
        return None
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def user_line() -> str:
    """Return `file.py:12` of the innermost frame that is the user's own, or else of a library's."""
    line, library = _lines()
    return line or library or "an unknown line"


def _where() -> str:
    """Return `file.py:12`; with the library's line that reads, where it is one that the user calls."""
    line, library = _lines()
    return f"{library}, called at {line}," if line and library else user_line()


def _lines() -> tuple[str, str]:
    """Return the innermost line of the user's own code, and the innermost of a library within it; `""` if none."""
    frame: FrameType | None = sys._getframe(1)
    library = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if file == _PROTOCOL:
            break  # who called memgauge has no part in it
        if not file.startswith("<") and not is_machinery(file):
            line = f"{file}:{frame.f_lineno}"
            if not is_installed(file):
                return line, library
            library = library or line
        frame = frame.f_back
    return "", library
