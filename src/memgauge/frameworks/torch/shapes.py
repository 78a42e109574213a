"""Sizes of an operator's outputs, by torch's own rules.

The operator runs on the `meta` device, where tensors have no memory; what it
gives back is remembered by the shapes that went in, since a network asks the
same few hundred questions over and over. Operators that `meta` does not know
are asked of FakeTensorMode, which knows decompositions and special cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch._subclasses import fake_tensor

from memgauge.frameworks.torch.not_eager import (
    refuse_nested_operator,
    refuse_quantised_operator,
    without_shape_rule,
)
from memgauge.frameworks.torch.operators import Rule
from memgauge.frameworks.torch.values import ValueReader


class Spec(NamedTuple):
    """One output tensor: its layout in memory, or the argument that it is."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    alias: int | str | None = None
    storage_bytes: int | None = None  # where the storage is larger than the layout needs


def contiguous(shape: tuple[int, ...], dtype: torch.dtype) -> Spec:
    """Return the spec of a contiguous tensor."""
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return Spec(tuple(shape), tuple(reversed(stride)), dtype)


_CACHE: dict[tuple[Any, ...], Any] = {}
_target = "cpu"


@contextmanager
def shapes_of(target: str) -> Iterator[None]:
    """Ask for the shapes that kernels of `"cpu"` or `"cuda"` give, where they differ."""
    global _target
    before, _target = _target, target
    try:
        yield
    finally:
        _target = before


def output_specs(func: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the outputs of `func(*args, **kwargs)` as a nest of `Spec`, None and numbers.

    Raises:
        UnsupportedError: torch has no rule for this operator.
        RuntimeError: Whatever the framework says of shapes that do not fit.
    """
    try:
        key: tuple[Any, ...] | None = (
            func,
            _key(args, rule.float_decides_shape),
            tuple((k, _key(v, rule.float_decides_shape)) for k, v in kwargs.items()),
            torch.get_default_dtype(),
            _target,
        )
        found = _CACHE.get(key)  # type: ignore[arg-type]
    except TypeError:  # an argument that cannot be a key
        key, found = None, None
    if found is None:
        found = (_corrected(func, args, kwargs, _ask(func, rule, args, kwargs)),)
        if key is not None:
            _CACHE[key] = found
    return found[0]


def _corrected(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], specs: Any) -> Any:
    """Put right what the `meta` rules say otherwise than the kernels of the target do."""
    if _target != "cpu":
        return specs
    from memgauge.frameworks.torch.cpu_shapes import output_specs_on_cpu  # which needs Spec from here

    return output_specs_on_cpu(func, args, kwargs, specs)


def _key(value: Any, exact_floats: bool) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype)
    if type(value) is float:
        return value if exact_floats else float
    if isinstance(value, (list, tuple)):
        return tuple([_key(v, exact_floats) for v in value])
    if isinstance(value, torch.Generator):
        return None
    return (type(value), value) if isinstance(value, (bool, int)) else value


def _ask(func: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    refuse_nested_operator(rule.name)
    refuse_quantised_operator(rule.name)
    arguments = {
        k: None if isinstance(v, torch.Generator) else v for k, v in kwargs.items() if k != "pin_memory"
    }
    if rule.has_device:
        arguments["device"] = torch.device("meta")
    with _as_on_target():
        try:
            result = func(*_to_meta(args), **_to_meta(arguments))
        except NotImplementedError:
            result = _ask_fake(func, rule, args, kwargs)
        except RuntimeError as error:
            if _NO_RULE in str(error):
                raise without_shape_rule(rule.name) from error
            raise
    return _describe(result, rule, args, kwargs)


# What torch/_library/fake_impl.py says of an operator of the user's own (torch 2.13).
_NO_RULE = "no fake impl registered"


def _ask_fake(func: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode:
            fakes = _map(args, lambda t: _like(t, "cpu"))
            return func(*fakes, **_map(kwargs, lambda t: _like(t, "cpu")))
    except (fake_tensor.DynamicOutputShapeException, fake_tensor.DataDependentOutputException) as error:
        raise ValueReader.not_known(rule, rule.name.split(".")[-1]) from error
    except (NotImplementedError, fake_tensor.UnsupportedOperatorException) as error:
        raise without_shape_rule(rule.name) from error


@contextmanager
def _as_on_target() -> Iterator[None]:
    """Let torch's Python shape rules, which assume CUDA for `meta`, answer for the target."""
    import torch._meta_registrations as rules

    before = rules.device_hint
    target = _target
    rules.device_hint = lambda _: target  # type: ignore[assignment]
    try:
        yield
    finally:
        rules.device_hint = before


def _like(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _to_meta(value: Any) -> Any:
    return _map(value, lambda t: _like(t, "meta"))


def _map(value: Any, change: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {k: _map(v, change) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)([_map(v, change) for v in value])
    return value


def _describe(result: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    many = len(rule.returns) != 1
    results = result if many and isinstance(result, (tuple, list)) else (result,)
    specs = tuple(
        _spec(value, rule.returns[i] if i < len(rule.returns) else None) for i, value in enumerate(results)
    )
    return specs if many else specs[0]


def _spec(value: Any, alias: int | str | None) -> Any:
    if isinstance(value, torch.Tensor):
        return Spec(tuple(value.shape), value.stride(), value.dtype, alias)
    if isinstance(value, (list, tuple)):
        return [_spec(v, alias) for v in value]
    return value
