"""The form of a device file: what each fact is called, and what may be written for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from memgauge.errors import nearest

Form = tuple[Callable[[object], bool], str]


def misfit(
    table: Mapping[str, object], struct: type[msgspec.Struct], within: Mapping[str, type[msgspec.Struct]]
) -> str | None:
    """Return what is wrong with the first fact that is not of its form, and what to write; None if all are.

    Args:
        table: As TOML has it.
        struct: What it is to become.
        within: Those of the facts that are tables, by name.
    """
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    for name, value in table.items():
        if name not in fields:
            near = nearest(name, fields)
            return f"{name} = {value!r}: no such fact is known{near}; known are {', '.join(fields)}"
        if name in within:
            if not isinstance(value, dict):
                example = "{ bytes = 300_000_000, grade = 'others', source = 'nvidia-smi' }"
                return f"{name} = {value!r}: write a table" + (f", {example}" if name != "rates" else "")
            wrong = misfit(value, within[name], {})
            if wrong is not None:
                return f"{name}.{wrong}"
        elif not _FORMS[name][0](value):
            return f"{name} = {value!r}: write {_FORMS[name][1]}"
    missing = next((name for name, field in fields.items() if field.required and name not in table), None)
    return None if missing is None else f"{missing} is missing; write {_FORMS[missing][1]}"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_whole, value))


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


_BYTES: Form = (_is_whole, "bytes as a whole number, such as 17_179_869_184")
_COUNT: Form = (_is_whole, "a whole number")
_TFLOPS: Form = (_is_number, "TFLOPS as a number, such as 62.5")
_FORMS: Mapping[str, Form] = {
    "name": (_is_text, "a name in quotes, such as 'my-card'"),
    "title": (_is_text, "text in quotes"),
    "also": (_is_texts, "names in quotes, such as ['NVIDIA A30']"),
    "kind": (_is_text, "'cuda', or leave it out"),
    "source": (_is_text, "where it is from in quotes, such as 'data sheet'"),
    "grade": (_is_text, "how it is known in quotes: 'measured', 'others', 'vendor' or 'guessed'"),
    "architecture": (_is_text, "it in quotes, such as 'gfx90a'"),
    "capacity_bytes": _BYTES,
    "bytes": _BYTES,
    "compute_capability": (_is_pair, "two whole numbers, such as [8, 6]"),
    "multiprocessors": _COUNT,
    "threads_per_multiprocessor": _COUNT,
    "tf32": _TFLOPS,
    "half": _TFLOPS,
    "float32": _TFLOPS,
    "memory": (_is_number, "TB/s as a number, such as 0.6"),
}
