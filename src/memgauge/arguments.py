"""What the command line says about a TARGET, turned into arguments of the function behind it.

`--batch-size 64 --set width=3` arrives here as text. It leaves as values of the
types that the function's annotations or defaults ask for, or as an error that
names the value, the expected type and the arguments there are.
"""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from memgauge.errors import UsageError, nearest

PRECISIONS = ("float32", "float64", "bfloat16", "float16", "amp-bfloat16", "amp-float16")
MODES = ("train", "infer")
_SIZES = ("batch_size", "image_size", "sequence_length")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The options of `estimate`, `measure` and `fit` that say what is run.

    Args:
        batch_size: Samples per step; None leaves the choice to the target.
        image_size: Height and width of a picture, in pixels.
        sequence_length: Tokens per sample.
        optimizer: A class of `torch.optim` in lower case, with arguments after commas:
            `"adam"`, `"sgd,momentum=0.9"`. None means Adam for zoo and libraries.
        precision: `float32`, `float64`, `bfloat16` or `float16` for everything, or `amp-bfloat16`
            and `amp-float16` for autocast over float32 parameters.
        mode: `train` or `infer`.
        checkpointing: Whether activations are computed again during backward.

    Raises:
        UsageError: A size is not positive, or precision or mode is unknown.
    """

    batch_size: int | None = None
    image_size: int | None = None
    sequence_length: int | None = None
    optimizer: str | None = None
    precision: str = "float32"
    mode: str = "train"
    checkpointing: bool = False

    def __post_init__(self) -> None:
        for name in _SIZES:
            check_positive(name, getattr(self, name))
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("mode", self.mode, MODES)

    def given(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


def check_positive(name: str, value: object) -> None:
    """Raise `UsageError` if a size is given and below 1."""
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
        raise UsageError(f"{name} is {value}; it must be at least 1")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise `UsageError` if `value` is none of `choices`."""
    if value not in choices:
        raise UsageError(f"{name} {value!r} is unknown{nearest(value, choices)}; it is {_one_of(choices)}")


def arguments_for(
    function: Callable[..., Any], what: str, options: TargetOptions, sets: Mapping[str, str]
) -> dict[str, Any]:
    """Return the keyword arguments for `function` out of options and `--set key=value` pairs.

    Args:
        function: What will be called; its annotations and defaults decide on types.
        what: How the user calls it, for messages: `train.py:my_training`.
        options: Passed where the function has a parameter of that name.
        sets: Text by parameter name.

    Raises:
        UsageError: An argument is unknown, missing or of the wrong type.
    """
    parameters = _parameters(function)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    arguments: dict[str, Any] = {}
    for name, value in options.given().items():
        if name not in known and not takes_any:
            raise UsageError(f"{what} takes no {name} (given: {value}); it takes {_listed(known)}")
        arguments[name] = value
    for name, text in sets.items():
        if name not in known and not takes_any:
            raise UsageError(f"{what} takes no {name}{nearest(name, known)}; it takes {_listed(known)}")
        arguments[name] = convert(name, text, *_expected(parameters.get(name)))
        if name in _SIZES:
            check_positive(name, arguments[name])
    for name in known:
        if name not in arguments and parameters[name].default is inspect.Parameter.empty:
            raise UsageError(f"{what} needs a value for {name}; add --set {name}=VALUE")
    return arguments


def parse_sets(pairs: tuple[str, ...] | list[str]) -> dict[str, str]:
    """Return `{"width": "3"}` for `["width=3"]`.

    Raises:
        UsageError: There is no `=` in one of them, or a key comes twice.
    """
    sets: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {pair}: write --set name=value")
        if key.strip() in sets:
            raise UsageError(f"--set {key.strip()} is given twice: {sets[key.strip()]!r} and {value!r}")
        sets[key.strip()] = value
    return sets


def convert(name: str, text: str, expected: Any = None, default: Any = None) -> Any:
    """Return `text` as the type that an annotation, or else a default value, asks for.

    Raises:
        UsageError: The text is not of that type.
    """
    choices = typing.get_args(expected)
    if typing.get_origin(expected) is typing.Literal:
        return _literal(name, text, choices)
    if typing.get_origin(expected) in (typing.Union, types.UnionType):
        if type(None) in choices and text.lower() in ("none", ""):
            return None
        return _first_that_fits(name, text, [c for c in choices if c is not type(None)])
    expected = typing.get_origin(expected) or expected
    if expected in (None, Any, inspect.Parameter.empty):
        return guess(text) if default is None else convert(name, text, type(default))
    try:
        return _to_type(text, expected)
    except (ValueError, SyntaxError, TypeError) as error:
        kind = "true or false" if expected is bool else getattr(expected, "__name__", expected)
        raise UsageError(f"{name}={text!r}: expected {kind}") from error


def guess(text: str) -> Any:
    """Return the number, bool, None or collection that `text` spells, else `text` itself."""
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _to_type(text: str, expected: Any) -> Any:
    if expected is bool:
        if text.lower() in _TRUE + _FALSE:
            return text.lower() in _TRUE
        raise ValueError(text)
    if expected in (int, float, str):
        return expected(text)
    if expected in (list, tuple, dict, set):
        value = ast.literal_eval(text)
        return expected(value) if isinstance(value, (list, tuple, dict, set)) else expected([value])
    value = guess(text)
    if isinstance(expected, type) and not isinstance(value, expected):
        raise ValueError(text)
    return value


def _first_that_fits(name: str, text: str, choices: list[Any]) -> Any:
    # The narrowest first: "3" for `int | str` is a number.
    order: tuple[Any, ...] = (bool, int, float)
    for choice in sorted(choices, key=lambda c: order.index(c) if c in order else len(order)):
        if choice is bool and text.lower() not in ("true", "false"):
            continue
        try:
            return convert(name, text, choice)
        except UsageError:
            continue
    names = " or ".join(getattr(c, "__name__", str(c)) for c in choices)
    raise UsageError(f"{name}={text!r}: expected {names}")


def _literal(name: str, text: str, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if str(choice) == text:
            return choice
    raise UsageError(f"{name}={text!r}: expected {_one_of(tuple(str(c) for c in choices))}")


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function, eval_str=True).parameters
    except (NameError, TypeError, SyntaxError, AttributeError):
        return inspect.signature(function).parameters  # an annotation that only a type checker can read


def _expected(parameter: inspect.Parameter | None) -> tuple[Any, Any]:
    if parameter is None:
        return None, None
    default = None if parameter.default is inspect.Parameter.empty else parameter.default
    annotation = parameter.annotation
    if isinstance(annotation, str):
        annotation = {"int": int, "float": float, "bool": bool, "str": str}.get(annotation)
    return (None if annotation is inspect.Parameter.empty else annotation), default


def _one_of(choices: tuple[str, ...]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "no arguments"
