"""The space of a study: parameters, the values they may take, and when they exist at all."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from memgauge.errors import UsageError, nearest
from memgauge.study.records import Params, Value

_LARGEST = 2**63 - 1  # what ledgers and JSON hold


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One parameter: a list of values, or a range.

    Args:
        values: What it may be; numbers, names or true and false.
        low, high: The ends of a range, both included. Whole numbers make a range of whole numbers.
        log: Spread evenly over orders of magnitude.
        step: Distance of two neighbours in the range; a grid needs it (1 for whole numbers).
        when: A condition on other parameters; where it does not hold, there is no such parameter.
    """

    values: tuple[Value, ...] | None = None
    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    step: int | float | None = None
    when: str | None = None

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def count(self) -> int | None:
        """How many values there are; None if infinitely many."""
        if self.values is not None:
            return len(self.values)
        assert self.low is not None and self.high is not None
        if self.step is None and not (self.is_whole and not self.log):
            return None
        return math.floor((self.high - self.low) / (self.step or 1) + 1e-9) + 1

    def level(self, place: int) -> Value:
        """Return one of the values in order, of `count`."""
        if self.values is not None:
            return self.values[place]
        assert self.low is not None
        found = self.low + place * (self.step or 1)
        return found if isinstance(found, int) else float(f"{found:.12g}")  # 0.3, not 0.30000000000000004

    def levels(self) -> tuple[Value, ...] | None:
        """Return all values in order; None if there are infinitely many."""
        return None if self.count is None else tuple(self.level(place) for place in range(self.count))

    def at(self, share: float) -> Value:
        """Return the value at `share` (0 ≤ share < 1) of the parameter's extent."""
        if self.count is not None:
            return self.level(min(int(share * self.count), self.count - 1))
        assert self.low is not None and self.high is not None
        if self.log:
            low, high = math.log(self.low), math.log(self.high + (1 if self.is_whole else 0))
            found = math.exp(low + share * (high - low))
        else:
            found = self.low + share * (self.high - self.low)
        return min(int(found), int(self.high)) if self.is_whole else float(f"{found:.6g}")


class Space:
    """Parameters in an order in which each comes after those that its condition names.

    Raises:
        UsageError: It is empty, a range is the wrong way round, a condition names nothing or is circular.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        if not parameters:
            raise UsageError("[space] is empty; a study varies at least one parameter")
        for name, parameter in parameters.items():
            _check(name, parameter)
        self._conditions = {n: Condition(p.when, n) for n, p in parameters.items() if p.when is not None}
        for name, condition in self._conditions.items():
            for used in condition.names:
                if used not in parameters:
                    raise UsageError(
                        f"[space.{name}] when = {condition.text!r}: there is no parameter {used!r}"
                        f"{nearest(used, parameters)}"
                    )
        self.parameters = {name: parameters[name] for name in self._ordered(parameters)}

    def _ordered(self, parameters: Mapping[str, Parameter]) -> list[str]:
        done: list[str] = []
        left = list(parameters)
        while left:
            free = [n for n in left if n not in self._conditions or self._conditions[n].names <= set(done)]
            if not free:
                raise UsageError(f"[space]: the conditions of {', '.join(left)} depend on each other")
            done.append(free[0])
            left.remove(free[0])
        return done

    def exists(self, name: str, params: Params) -> bool:
        """Return whether a parameter exists, given those before it."""
        condition = self._conditions.get(name)
        return condition is None or (condition.names <= set(params) and condition.holds(params))

    def point(self, shares: Mapping[str, float]) -> Params:
        """Return the point at these shares of each parameter's extent."""
        params: Params = {}
        for name, parameter in self.parameters.items():
            if self.exists(name, params):
                params[name] = parameter.at(shares[name])
        return params

    def size(self) -> float:
        """Return how many points there can be at most, conditions left out; infinite for ranges."""
        total = 1.0
        for parameter in self.parameters.values():
            total *= math.inf if parameter.count is None else parameter.count
        return total


def _check(name: str, p: Parameter) -> None:
    where = f"[space.{name}]"
    for number in (*(p.values or ()), p.low, p.high):
        if isinstance(number, int) and abs(number) > _LARGEST:
            raise UsageError(f"{where}: {number} is too large; whole numbers have 64 bits")
    if (p.values is None) == (p.low is None and p.high is None):
        raise UsageError(f"{where}: give either values = […] or low and high")
    if p.values is not None:
        if not p.values:
            raise UsageError(f"{where} values = []: it needs at least one value")
        if len(set(map(repr, p.values))) != len(p.values):
            raise UsageError(f"{where} values = {list(p.values)}: a value comes twice")
        endless = [v for v in p.values if isinstance(v, float) and not math.isfinite(v)]
        if endless:
            raise UsageError(f"{where} values: {endless[0]} is no value that can be tried")
        if p.log or p.step is not None:
            raise UsageError(f"{where}: log and step are for ranges (low, high), not for values")
        return
    if p.low is None or p.high is None:
        raise UsageError(f"{where}: low and high belong together")
    if not (math.isfinite(p.low) and math.isfinite(p.high)) or p.low > p.high:
        raise UsageError(f"{where}: low = {p.low} must not be above high = {p.high}")
    if p.log and p.low <= 0:
        raise UsageError(f"{where}: low = {p.low}; a range with log = true begins above 0")
    if p.step is not None and (p.step <= 0 or p.log):
        raise UsageError(f"{where}: step = {p.step}; it is above 0, and not for log = true")


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


class Condition:
    """`hidden_layers >= 5 and optimizer == "adam"`: comparisons joined by and, or, not; nothing is run.

    Raises:
        UsageError: It says something else.
    """

    def __init__(self, text: str, owner: str) -> None:
        self.text = text
        try:
            self._tree = ast.parse(text, mode="eval").body
        except SyntaxError as error:
            raise UsageError(f"[space.{owner}] when = {text!r}: {error.msg}; {_FORM}") from None
        self.names = {n.id for n in ast.walk(self._tree) if isinstance(n, ast.Name)}
        self._owner = owner
        self._validate(self._tree)
        if not self.names:
            raise UsageError(f"[space.{owner}] when = {text!r} names no parameter; {_FORM}")

    def _validate(self, node: ast.AST) -> None:
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self._validate(value)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._validate(node.operand)
        elif isinstance(node, ast.Compare) and all(type(o) in _COMPARISONS for o in node.ops):
            for part in (node.left, *node.comparators):
                if not isinstance(part, (ast.Name, ast.Constant, ast.Tuple, ast.List)):
                    self._refuse(part)
        elif not isinstance(node, ast.Name):
            self._refuse(node)

    def _refuse(self, node: ast.AST) -> None:
        said = ast.unparse(node)
        raise UsageError(f"[space.{self._owner}] when = {self.text!r}: {said!r} cannot stand there; {_FORM}")

    def holds(self, params: Params) -> bool:
        """Return whether it holds; all names in it have a value."""
        try:
            return bool(self._value(self._tree, params))
        except TypeError as error:
            raise UsageError(
                f"[space.{self._owner}] when = {self.text!r} cannot be decided: {error}"
            ) from None

    def _value(self, node: ast.AST, params: Params) -> Any:
        if isinstance(node, ast.BoolOp):
            parts = (self._value(v, params) for v in node.values)
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        if isinstance(node, ast.UnaryOp):
            return not self._value(node.operand, params)
        if isinstance(node, ast.Compare):
            left = self._value(node.left, params)
            for comparison, other in zip(node.ops, node.comparators, strict=True):
                right = self._value(other, params)
                if not _COMPARISONS[type(comparison)](left, right):
                    return False
                left = right
            return True
        if isinstance(node, ast.Name):
            return params[node.id]
        return ast.literal_eval(node)


_FORM = 'write for example when = "hidden_layers >= 5" or when = "optimizer == \'adam\'"'
