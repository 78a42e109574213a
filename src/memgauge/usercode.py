"""The user's own files: imported like a script, called with care, quoted when they fail."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from memgauge.errors import MemgaugeError, MissingError, UsageError, WorkloadError, missing_extra, nearest

_PACKAGE = Path(__file__).parent
_EXTRAS = {"torch": "torch", "torchvision": "models", "timm": "models", "transformers": "models"}
_directories: list[Path] = []  # of files loaded so far, the latest last


def load_file(path: str) -> ModuleType:
    """Import a Python file as a script would be: its directory first on `sys.path`.

    The module is registered under a name of its own, so that dataclasses, pickling
    and type hints find it, and a second load reads the file again.

    Raises:
        UsageError: There is no such file.
        WorkloadError: The file raised while it was imported.
        MissingError: The file imports a package that an extra of memgauge provides.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise UsageError(f"{path}: there is no such file{nearest_file(file)}")
    _put_first(file.parent)
    name = f"_memgauge_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: not a Python file; a file target is path/to/file.py:function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        raise _translated(error, f"{path} could not be imported") from error
    return module


def load_module(name: str) -> ModuleType:
    """Import `package.module`, looking in the working directory too, as `python -m` does.

    Raises:
        UsageError: There is no such module.
        WorkloadError: The module raised while it was imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {error.name!r} here; a TARGET is zoo:NAME, torchvision:NAME, timm:NAME, "
                f"transformers:TYPE, path/to/file.py:function or package.module:function"
                f"{nearest(name, ('zoo', *_EXTRAS))}"
            ) from error
        raise _translated(error, f"{name} could not be imported") from error
    except BaseException as error:
        raise _translated(error, f"{name} could not be imported") from error


def function_in(module: ModuleType, name: str, where: str) -> Any:
    """Return what `module` calls `name`.

    Raises:
        UsageError: It has no such name; the message lists its functions.
    """
    if hasattr(module, name):
        return getattr(module, name)
    found = [
        key
        for key, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__ and key[0] != "_"
    ]
    listed = f"its functions are {', '.join(found)}" if found else "it has no functions"
    raise UsageError(f"{where} has no function {name!r}{nearest(name, found)}; {listed}")


def functions_of_file(path: str) -> list[str]:
    """Return the names of the functions that a file defines, without running it."""
    try:
        tree = ast.parse(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return []
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]


def call_user(function: Callable[..., Any], what: str, arguments: dict[str, Any]) -> Any:
    """Call the user's function and turn what it raises into a `WorkloadError` with its own lines."""
    try:
        return function(**arguments)
    except MemgaugeError:
        raise
    except Exception as error:
        raise _translated(error, f"{what} raised {type(error).__name__}") from error


@contextmanager
def as_script(target: object) -> Iterator[None]:
    """Let the user's code find in `sys.argv` its own file alone, as if that were run without arguments.

    Args:
        target: The TARGET it is from, `train.py:my_training`; where there is none, nothing changes.
    """
    if not isinstance(target, str) or ":" not in target:
        yield
        return
    before = sys.argv
    sys.argv = [target.rpartition(":")[0]]
    try:
        yield
    finally:
        sys.argv = before


def user_traceback(error: BaseException) -> str:
    """Return the traceback with the frames of memgauge, torch and Python left out; never empty.

    If nothing else is left, the innermost frame stays, whosever it is.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    kept = [pair for pair in frames if not is_machinery(pair[0].f_code.co_filename)] or frames[-1:]
    lines = traceback.StackSummary.extract(iter(kept)).format()
    return "".join([*lines, *traceback.format_exception_only(error)]).rstrip("\n")


def what_was_raised(text: str) -> str:
    """Return the line of a traceback's text that names the error, and where; of other text the last line."""
    lines = text.strip().splitlines() or [text]
    frames = [place for place, line in enumerate(lines) if line.lstrip().startswith('File "')]
    if not frames:
        return lines[-1]
    said = [line for line in lines[frames[-1] + 1 :] if not line.startswith("  ")]
    where = re.match(r' *File "(.*)", line (\d+)', lines[frames[-1]])
    return f"{said[0] if said else lines[-1]} ({where[1]}:{where[2]})" if where else lines[-1]


def nearest_file(file: Path) -> str:
    """Return ` (nearest: …)` with Python files beside a missing one."""
    beside = [p.name for p in file.parent.glob("*.py")] if file.parent.is_dir() else []
    return nearest(file.name, beside)


def _translated(error: BaseException, what: str) -> BaseException:
    if isinstance(error, (MemgaugeError, KeyboardInterrupt)):
        return error
    if isinstance(error, ModuleNotFoundError):
        root = (error.name or "").split(".")[0]
        if root in _EXTRAS:
            return missing_extra(root, _EXTRAS[root])
        return MissingError(
            f"{what}: it imports {error.name!r}, which is not installed beside memgauge\n"
            f"{user_traceback(error)}"
        )
    return WorkloadError(f"{what}:\n{user_traceback(error)}")


def _put_first(directory: Path) -> None:
    """Put a directory first on `sys.path`, and forget modules of its siblings' names from earlier ones."""
    siblings = {p.stem for p in directory.glob("*.py")} | {p.name for p in directory.iterdir() if p.is_dir()}
    earlier = [d for d in _directories if d != directory]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name.split(".")[0] in siblings and any(d in Path(file).parents for d in earlier):
            del sys.modules[name]
    if directory in _directories:
        _directories.remove(directory)
    _directories.append(directory)
    if str(directory) in sys.path:
        sys.path.remove(str(directory))
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()


@cache  # a program may read a value many thousand times
def is_machinery(filename: str) -> bool:
    """Return whether a file is memgauge's, torch's or the standard library's."""
    if filename.startswith("<frozen"):
        return True
    path = Path(filename)
    torch = sys.modules.get("torch")
    roots = [_PACKAGE, *([Path(torch.__file__).parent] if torch is not None and torch.__file__ else [])]
    if any(root in path.parents for root in roots):
        return True
    return Path(sysconfig.get_paths()["stdlib"]) in path.parents and not is_installed(filename)


@cache
def is_own(filename: str) -> bool:
    """Return whether a file is memgauge's."""
    return _PACKAGE in Path(filename).parents


@cache
def is_installed(filename: str) -> bool:
    """Return whether a file belongs to an installed package, not to the user's own code."""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(filename).parts)


__all__ = [
    "as_script",
    "call_user",
    "function_in",
    "functions_of_file",
    "is_installed",
    "is_machinery",
    "is_own",
    "load_file",
    "load_module",
    "user_traceback",
    "what_was_raised",
]
