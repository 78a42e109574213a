"""torch's optimizers in Keras: the same names, arguments and defaults. No framework is imported.

The rules are the same, up to the rounding of the bias correction; so is the state that they keep for each
parameter, which is what takes memory. Where Keras adds epsilon under the root and torch behind it, the square
of torch's is given.

Source:
    Signatures of torch.optim 2.13 and keras.optimizers 3.15.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from memgauge.arguments import convert, parse_sets
from memgauge.errors import UsageError, nearest


@dataclass(frozen=True, slots=True)
class _Kind:
    """Keras's class, and Keras's name and torch's default for each of torch's arguments."""

    name: str
    arguments: dict[str, tuple[str, Any]]


_UNDER_ROOT = "epsilon under the root"
_MOMENTS = {"betas": ("beta_1 beta_2", (0.9, 0.999)), "eps": ("epsilon", 1e-8)}
_KINDS = {
    "adadelta": _Kind("Adadelta", {"rho": ("rho", 0.9), "eps": ("epsilon", 1e-6)}),
    "adagrad": _Kind(
        "Adagrad",
        {"initial_accumulator_value": ("initial_accumulator_value", 0.0), "eps": (_UNDER_ROOT, 1e-10)},
    ),
    "adam": _Kind("Adam", {**_MOMENTS, "amsgrad": ("amsgrad", False)}),
    "adamax": _Kind("Adamax", _MOMENTS),
    "adamw": _Kind(
        "AdamW", {**_MOMENTS, "amsgrad": ("amsgrad", False), "weight_decay": ("weight_decay", 1e-2)}
    ),
    "rmsprop": _Kind(
        "RMSprop",
        {
            "alpha": ("rho", 0.99),
            "eps": (_UNDER_ROOT, 1e-8),
            "momentum": ("momentum", 0.0),
            "centered": ("centered", False),
        },
    ),
    "sgd": _Kind("SGD", {"momentum": ("momentum", 0.0), "nesterov": ("nesterov", False)}),
}
NAMES = tuple(_KINDS)


def keras_optimizer(text: str, learning_rate: float) -> tuple[str, dict[str, Any]]:
    """Return Keras's class and its arguments for `sgd,momentum=0.9`.

    Raises:
        UsageError: Keras has no such optimizer, or it takes no such argument in the same sense.
    """
    name, *pairs = (part.strip() for part in re.split(r",(?![^(]*\))", text))  # commas outside brackets
    if name not in _KINDS:
        raise UsageError(
            f"optimizer {name!r} is unknown to Keras{nearest(name, NAMES)}; it is {', '.join(NAMES)}"
        )
    kind = _KINDS[name]
    if wrong := [pair for pair in pairs if "=" not in pair]:
        raise UsageError(f"optimizer {text!r}: write {wrong[0]}=VALUE")
    given = parse_sets(pairs)
    for argument in given:
        if argument not in kind.arguments:
            raise UsageError(
                f"optimizer {text!r}: {argument} is not the same in Keras and torch"
                f"{nearest(argument, kind.arguments)}; here {name} takes {', '.join(kind.arguments)}"
            )
    arguments: dict[str, Any] = {"learning_rate": learning_rate}
    for argument, (names, default) in kind.arguments.items():
        value = convert(argument, given[argument], type(default)) if argument in given else default
        if names == _UNDER_ROOT:
            arguments["epsilon"] = value**2
            continue
        values = value if isinstance(value, tuple) else (value,)
        arguments |= dict(zip(names.split(), values, strict=True))
    return kind.name, arguments
