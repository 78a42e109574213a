"""From the word on the command line to what is run.

    zoo:NAME                    one of the few networks that come with memgauge
    torchvision:NAME            any architecture of torchvision, without weights
    timm:NAME                   any architecture of timm, without weights
    transformers:TYPE           a model type in its default configuration, or the path of a config.json
    path/to/file.py:function    a function of yours that returns a Workload
    package.module:function     the same, importable

Parsing looks at the text only. Resolving imports what it needs and builds no model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from memgauge import environment, usercode
from memgauge.arguments import TargetOptions, arguments_for, parse_sets
from memgauge.errors import UsageError, WorkloadError, missing_extra, nearest
from memgauge.workload import Workload

Kind = Literal["zoo", "torchvision", "timm", "transformers", "file", "module"]

_LIBRARIES: tuple[Kind, ...] = ("torchvision", "timm", "transformers")
_KINDS: tuple[Kind, ...] = ("zoo", *_LIBRARIES)
_FORMS = (
    "zoo:NAME, torchvision:NAME, timm:NAME, transformers:TYPE, "
    "path/to/file.py:function or package.module:function"
)


@dataclass(frozen=True, slots=True)
class Target:
    """One TARGET, taken apart.

    Attributes:
        kind: Which form it has.
        name: The model in the zoo or library; the file's path or the module's name otherwise.
        function: The function in the file or module; None for the others.
    """

    kind: Kind
    name: str
    function: str | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.function}" if self.function is not None else f"{self.kind}:{self.name}"


def parse_target(text: str) -> Target:
    """Take a TARGET apart; nothing is imported and no file is opened.

    Raises:
        UsageError: It has none of the six forms.
    """
    text = text.strip()
    head, colon, tail = text.partition(":")
    if head in _KINDS:
        if not tail.strip():
            raise UsageError(f"{text!r} names no model; write for example {_example(head)}")
        return Target(head, tail.strip())
    place, _, function = text.rpartition(":")
    if not colon or not place or text.endswith(".py"):
        raise UsageError(_incomplete(text))
    kind: Kind = "file" if place.endswith(".py") else "module"
    if kind == "module" and not all(part.isidentifier() for part in place.split(".")):
        raise UsageError(f"{text!r} is not a TARGET{nearest(head, _KINDS)}; it is {_FORMS}")
    if not function:
        raise UsageError(f"{text!r} names no function{_functions(place)}")
    if not function.isidentifier():
        hint = f"; did you mean {_nearest_kind(head)}:{function}?" if _nearest_kind(head) else ""
        raise UsageError(f"{text!r}: {function!r} is not the name of a function{hint}")
    return Target(kind, place, function)


def resolve(
    text: str, options: TargetOptions | None = None, sets: Mapping[str, str] | None = None
) -> Workload:
    """Return the workload that a TARGET stands for, its description filled in.

    Args:
        text: The TARGET.
        options: What `--batch-size` and its like say; the defaults if None.
        sets: What `--set name=value` says, as text by name.

    Raises:
        UsageError: The target, a name in it or an argument is unknown, wrong or given twice.
        WorkloadError: The user's function raised, or returned no `Workload`.
        MissingError: A package is not installed; the message says how to get it.
        UnsupportedError: The model cannot be studied, or not with these options.
    """
    target = parse_target(text)
    options, sets = options or TargetOptions(), sets or {}
    _refuse_twice(options, sets)
    if target.kind == "zoo":
        workload = _from_zoo(target, options, sets)
    elif target.kind in _LIBRARIES:
        workload = _from_library(target, options, sets)
    else:
        loaded = _loaded(target)
        with usercode.as_script(text), environment.apart(_own.get(loaded)) as own:
            workload = _from_user(target, options, sets)
        _own[loaded] = own
        workload = replace(workload, own=own)
    return workload.described(target=str(target))


_own: dict[object, environment.Own] = {}  # by what was loaded: what it set then


def _loaded(target: Target) -> object:
    """Return what tells a file or module from others, from what it was before an edit, and in another environment."""
    file = Path(target.name).expanduser()
    edited = file.stat().st_mtime_ns if file.is_file() else 0
    return str(file.absolute()), edited, tuple(environment.variables().items())


def _refuse_twice(options: TargetOptions, sets: Mapping[str, str]) -> None:
    for name, value in options.given().items():
        if name in sets:
            flag = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            raise UsageError(f"{flag} and --set {name}={sets[name]} both say {name}; leave one of them out")


def _from_zoo(target: Target, options: TargetOptions, sets: Mapping[str, str]) -> Workload:
    from memgauge import zoo

    function = _with_torch(lambda: zoo.find(target.name))
    return _call(function, str(target), options, sets)


def _from_library(target: Target, options: TargetOptions, sets: Mapping[str, str]) -> Workload:
    def build() -> Workload:
        from memgauge.frameworks.torch.libraries import library_workload

        return library_workload(target.kind, target.name, options, sets)

    workload: Workload = _with_torch(build)
    return workload


def _from_user(target: Target, options: TargetOptions, sets: Mapping[str, str]) -> Workload:
    from memgauge.frameworks.torch.import_hook import torchvision_on_import

    torchvision_on_import()
    load = usercode.load_file if target.kind == "file" else usercode.load_module
    function = usercode.function_in(load(target.name), target.function or "", target.name)
    if isinstance(function, Workload):
        if sets or options.given():
            raise UsageError(f"{target} is a Workload, not a function; it takes no options")
        return function
    if not callable(function):
        raise UsageError(f"{target} is a {type(function).__name__}, not a function that returns a Workload")
    return _call(function, str(target), options, sets)


def _call(
    function: Callable[..., Any], what: str, options: TargetOptions, sets: Mapping[str, str]
) -> Workload:
    arguments = arguments_for(function, what, options, sets)
    workload = usercode.call_user(function, what, arguments)
    if not isinstance(workload, Workload):
        raise WorkloadError(
            f"{what} returned {_a(workload)}, not a Workload; "
            "end it with: return memgauge.Workload(build=build, batch=batch, step=step)"
        )
    return workload.described(arguments=arguments) if arguments else workload


def _with_torch(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise missing_extra("torch", "torch") from error
        raise


def _incomplete(text: str) -> str:
    """Say what is missing from a text without a usable colon."""
    if text.endswith(".py"):
        return f"{text!r} names no function{_functions(text)}"
    if not text:
        return f"no TARGET is given; it is {_FORMS}"
    from memgauge.zoo import NAMES

    if text in NAMES:
        return f"{text!r} is not a TARGET; did you mean zoo:{text}?"
    return f"{text!r} is not a TARGET; it is {_FORMS}"


def _functions(place: str) -> str:
    found = usercode.functions_of_file(place) if place.endswith(".py") else []
    listed = f"; it has {', '.join(found)}" if found else ""
    return f"; write {place}:function{listed}"


def _nearest_kind(head: str) -> str:
    found = re.search(r"nearest: (\w+)", nearest(head, _KINDS, count=1))
    return found[1] if found else ""


def _example(kind: str) -> str:
    return {
        "zoo": "zoo:gpt2",
        "torchvision": "torchvision:resnet50",
        "timm": "timm:vit_base_patch16_224",
        "transformers": "transformers:llama",
    }[kind]


def _a(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


__all__ = ["Target", "TargetOptions", "parse_sets", "parse_target", "resolve"]
