"""What each optimizer of torch keeps for a parameter, as formulas.

One entry for each class of `torch.optim`: the tensors of its state, which of
them depend on an argument, and the file of torch where they are made. A test
holds each against the state of the real optimizer after a step.

Source: torch 2.13, the `_init_group` or `step` of the file named in each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from memgauge.errors import UsageError, nearest
from memgauge.formula.records import OptimizerUse, ParameterShape, StateRow, bytes_of

SCALAR_BYTES = 4  # counters are float32 tensors of one element: `_get_scalar_dtype`
_ALWAYS: Callable[[Mapping[str, object]], bool] = lambda options: True  # noqa: E731


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of the state.

    Attributes:
        name: Its key in the state.
        elements: Its elements for one parameter; None for a counter of one float32.
        formula: The same in words, P for the parameter's elements.
        when: Whether it is there, from the arguments of the parameter group.
        on_host: Whether it stays in host memory when the parameters are on a GPU.
    """

    name: str
    elements: Callable[[ParameterShape], int] | None
    formula: str
    when: Callable[[Mapping[str, object]], bool] = _ALWAYS
    on_host: bool = False


def _like_parameter(name: str, when: Callable[[Mapping[str, object]], bool] = _ALWAYS) -> Slot:
    return Slot(name, lambda p: p.elements, "P", when)


def _counter(name: str, *, on_host: bool = True) -> Slot:
    return Slot(name, None, "1 for each tensor", on_host=on_host)


def _is_matrix(parameter: ParameterShape) -> bool:
    return len(parameter.shape) > 1


def _rows(p: ParameterShape) -> int:
    return p.elements // max(p.shape[-1], 1) if _is_matrix(p) else 0


def _columns(p: ParameterShape) -> int:
    return p.elements // max(p.shape[-2], 1) if _is_matrix(p) else 0


_MOMENTS = (_like_parameter("exp_avg"), _like_parameter("exp_avg_sq"))
_AMSGRAD = _like_parameter("max_exp_avg_sq", lambda options: bool(options.get("amsgrad")))
_MOMENTUM = _like_parameter("momentum_buffer", lambda options: bool(options.get("momentum")))
_STEP = _counter("step")

# Class of torch.optim -> its file there, and what it keeps for each parameter.
RULES: dict[str, tuple[str, tuple[Slot, ...]]] = {
    "SGD": ("sgd.py", (_MOMENTUM,)),
    "Adam": ("adam.py", (*_MOMENTS, _AMSGRAD, _STEP)),
    "AdamW": ("adam.py", (*_MOMENTS, _AMSGRAD, _STEP)),
    "Adagrad": ("adagrad.py", (_like_parameter("sum"), _STEP)),
    "RMSprop": (
        "rmsprop.py",
        (
            _like_parameter("square_avg"),
            _MOMENTUM,
            _like_parameter("grad_avg", lambda options: bool(options.get("centered"))),
            _STEP,
        ),
    ),
    "Adadelta": ("adadelta.py", (_like_parameter("square_avg"), _like_parameter("acc_delta"), _STEP)),
    "Adamax": ("adamax.py", (_like_parameter("exp_avg"), _like_parameter("exp_inf"), _STEP)),
    "NAdam": ("nadam.py", (*_MOMENTS, _STEP, _counter("mu_product"))),
    "RAdam": ("radam.py", (*_MOMENTS, _STEP)),
    "ASGD": (
        "asgd.py",
        (
            _like_parameter("ax"),
            _counter("step", on_host=False),
            _counter("eta", on_host=False),
            _counter("mu", on_host=False),
        ),
    ),
    "Rprop": ("rprop.py", (_like_parameter("prev"), _like_parameter("step_size"), _STEP)),
    "Adafactor": (
        "_adafactor.py",
        (
            Slot("row_var", _rows, "P / columns, for matrices"),
            Slot("col_var", _columns, "P / rows, for matrices"),
            Slot("variance", lambda p: 0 if _is_matrix(p) else p.elements, "P, for vectors"),
            _STEP,
        ),
    ),
    "SparseAdam": ("sparse_adam.py", _MOMENTS),
    "Muon": (
        "_muon.py",
        (Slot("momentum_buffer", lambda p: p.elements if len(p.shape) == 2 else 0, "P, for matrices"),),
    ),
    "LBFGS": ("lbfgs.py", ()),  # keeps vectors over all parameters at once: `_lbfgs`
}


def rule_name(names: tuple[str, ...]) -> str | None:
    """Return the entry for a class by its own name or that of the nearest class it inherits from."""
    return next((name for name in names if name in RULES), None)


def class_of(name: str) -> str:
    """Return the class that is meant by a name in any case: `adamw` is `AdamW`.

    Raises:
        UsageError: No optimizer of torch has that name.
    """
    known = {key.lower(): key for key in RULES}
    if name.lower() not in known:
        raise UsageError(
            f"optimizer {name!r} is unknown{nearest(name.lower(), known)}; it is {', '.join(known)}"
        )
    return known[name.lower()]


def state_rows(use: OptimizerUse, *, on_gpu: bool = False) -> tuple[StateRow, ...]:
    """Return what one optimizer keeps, a row for each name in its state.

    Args:
        use: The optimizer with its parameters by group.
        on_gpu: Whether only device memory is counted: counters stay on the host.

    An optimizer that is none of torch's has one row: the state that it had after the traced steps.
    """
    name = rule_name(use.names)
    if name is None:
        return (
            StateRow(
                optimizer=use.names[0],
                name="state",
                formula="no formula is known; read off after a step",
                state_bytes=use.found_bytes or 0,
                source="the optimizer itself",
            ),
        )
    file, slots = RULES[name]
    source = f"torch/optim/{file}"
    if name == "LBFGS":
        return _lbfgs(use, source)
    rows = (_row(name, slot, use, source, on_gpu=on_gpu) for slot in slots)
    return tuple(row for row in rows if row.state_bytes)


def _row(name: str, slot: Slot, use: OptimizerUse, source: str, *, on_gpu: bool) -> StateRow:
    total, elements = 0, 0
    for options, parameters in use.groups:
        if not slot.when(options):
            continue
        on_device = not slot.on_host or bool(options.get("capturable")) or bool(options.get("fused"))
        if on_gpu and not on_device:
            continue
        for parameter in parameters:
            count = 1 if slot.elements is None else slot.elements(parameter)
            elements += count
            total += SCALAR_BYTES if slot.elements is None else bytes_of(count, parameter.element_bits)
    return StateRow(
        optimizer=name,
        name=slot.name,
        formula=f"{slot.formula} = {elements:,}",
        state_bytes=total,
        source=source,
    )


def _lbfgs(use: OptimizerUse, source: str) -> tuple[StateRow, ...]:
    """Return the state of LBFGS once its history is full: two vectors, and two for each step it remembers."""
    rows = []
    for options, parameters in use.groups:
        history = options.get("history_size", 100)
        count = history if isinstance(history, int) else 100
        elements = sum(p.elements for p in parameters)
        bits = max((p.element_bits for p in parameters), default=32)
        for name, formula, vectors in (
            ("d, prev_flat_grad", f"2 × {elements:,}", 2 * elements),
            ("old_dirs, old_stps", f"2 × {count} × {elements:,}, history_size {count}", 2 * count * elements),
            ("ro, al, H_diag", f"2 × {count} + 1 numbers", 2 * count + 1),
        ):
            rows.append(
                StateRow(
                    optimizer="LBFGS",
                    name=name,
                    formula=formula,
                    state_bytes=bytes_of(vectors, bits),
                    source=source,
                )
            )
    return tuple(rows)
