"""What an estimate needs of msgspec, in plain Python: for a machine that has only torch.

`install()` stands in for the package where it is missing, so that the suite can estimate on the machine
that it measures. Records are made and converted; nothing is validated or encoded, and nothing else of
memgauge runs with it. That estimates are the same with and without is tested.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any


class Struct:
    """A record: a frozen dataclass."""

    def __init_subclass__(cls, *, frozen: bool = False, kw_only: bool = False, **_: Any) -> None:
        """Make the class's annotations its fields."""
        super().__init_subclass__()
        for name, value in list(vars(cls).items()):
            if name in cls.__annotations__ and type(value) in (dict, list):
                setattr(cls, name, dataclasses.field(default_factory=type(value)))  # as msgspec: one each
        dataclasses.dataclass(frozen=frozen, kw_only=kw_only)(cls)


class ValidationError(ValueError):
    """Only named here; what is converted comes from memgauge's own files."""


def convert(value: Any, type: Any) -> Any:
    """Return tables and lists, as TOML has them, as records of a type."""
    if isinstance(type, types.UnionType) or typing.get_origin(type) is typing.Union:
        return None if value is None else convert(value, typing.get_args(type)[0])
    if typing.get_origin(type) is list:
        return [convert(item, typing.get_args(type)[0]) for item in value]
    if typing.get_origin(type) is tuple:
        return tuple(value)
    if dataclasses.is_dataclass(type) and isinstance(value, Mapping):
        kinds = typing.get_type_hints(type)
        made: Any = type
        return made(**{key: convert(item, kinds[key]) for key, item in value.items()})
    return value


def install() -> bool:
    """Stand in for msgspec if it is not installed and nothing does yet; returns whether that was so."""
    if "msgspec" in sys.modules or importlib.util.find_spec("msgspec") is not None:
        return False
    module: Any = types.ModuleType("msgspec")
    module.Struct, module.ValidationError, module.convert = Struct, ValidationError, convert
    module.structs = types.ModuleType("msgspec.structs")
    module.structs.replace = dataclasses.replace
    sys.modules |= {"msgspec": module, "msgspec.structs": module.structs}
    return True
