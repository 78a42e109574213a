"""Accounts and comparisons to JSON text, and accounts back from it.

The key `schema` comes first and says what a document is and in which version.
Quantities are raw integers with the unit in the key; what is unknown is null.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from memgauge.errors import FileFormatError, UsageError
from memgauge.explain.compare import Comparison
from memgauge.explain.recorded import Recording
from memgauge.explain.recorded_account import account_of, recording_of
from memgauge.records import Account, Estimate, Measurement
from memgauge.storage import MADE_BY, RunFile, is_run_file

STDIN = "-"
_KNOWN = ("memgauge.estimate/1", "memgauge.measurement/1")
_KEPT = 'an account is saved by "memgauge estimate" or "measure" with --out FILE or --json'


class _Head(msgspec.Struct):
    """What every document of ours begins with."""

    schema: str | None = None


def to_json(record: Account | Comparison | msgspec.Struct) -> str:
    """Return an estimate, a measurement, a comparison or another record as indented JSON text."""
    try:
        encoded = msgspec.json.encode(record, enc_hook=str)
    except (TypeError, UnicodeEncodeError):
        # A user's argument may be anything: a dict with tuples for keys, a path that is not UTF-8.
        encoded = msgspec.json.encode(_plain(msgspec.to_builtins(record, enc_hook=str, str_keys=False)))
    return msgspec.json.format(encoded, indent=2).decode()


def _plain(value: Any) -> Any:
    """Return a value of built-in types that JSON can hold."""
    if isinstance(value, dict):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def read_account(path: str | Path) -> Estimate | Measurement:
    """Return the estimate or measurement that a JSON file or a run file holds; `-` is standard input.

    Raises:
        UsageError: There is no such file, or it cannot be read.
        FileFormatError: It is damaged, of another kind, or made by a newer version.
    """
    if str(path) != STDIN and is_run_file(Path(os.path.expanduser(path))):
        with RunFile(os.path.expanduser(path)) as run:
            return account_of(run)
    name = "standard input" if str(path) == STDIN else str(path)
    return decode_account(_read(path), name)


def read_recording(path: str | Path) -> Recording | None:
    """Return what a run file says; None if it holds a measurement, or is no run file.

    Raises:
        FileFormatError: It is damaged, or made by a newer version.
    """
    if str(path) == STDIN or not is_run_file(Path(os.path.expanduser(path))):
        return None
    with RunFile(os.path.expanduser(path)) as run:
        return recording_of(run)


def decode_account(content: bytes, name: str) -> Estimate | Measurement:
    """Return the estimate or measurement in `content`; `name` says where it is from in messages.

    Raises:
        FileFormatError: It is damaged, of another kind, or made by a newer version.
    """
    content = content.removeprefix(b"\xef\xbb\xbf")
    if not content.strip():
        raise FileFormatError(f"{name} is empty; {_KEPT}")
    if content.startswith(b"SQLite format 3"):
        raise FileFormatError(f"{name} is an SQLite file, not JSON; {_KEPT}")
    try:
        schema = msgspec.json.decode(content, type=_Head).schema
    except msgspec.ValidationError:
        raise FileFormatError(f"{name} is JSON, but no estimate or measurement; {_KEPT}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileFormatError(f"{name} is damaged, or not JSON: {_reason(error)}; {_KEPT}") from error
    if schema not in _KNOWN:
        raise FileFormatError(f"{name} {_other(schema)}")
    try:
        return msgspec.json.decode(content, type=Estimate | Measurement)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileFormatError(f"{name} says that it is {schema}, but is damaged: {_reason(error)}") from error


def _read(path: str | Path) -> bytes:
    if str(path) == STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(path).expanduser().read_bytes()
    except FileNotFoundError:
        if Path(path).suffix == ".mg":
            raise UsageError(f"{path}: there is no such recording; {MADE_BY}") from None
        raise UsageError(f"{path}: there is no such file; {_KEPT}") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a directory; name a JSON file in it") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _other(schema: str | None) -> str:
    """Say what is wrong with a document of this schema."""
    if schema is None:
        return f'is JSON without the key "schema", so no estimate or measurement; {_KEPT}'
    kind, _, version = schema.rpartition("/")
    if version.isdecimal() and int(version) > 1 and any(known.startswith(f"{kind}/") for known in _KNOWN):
        return f"is {schema}, made by a newer memgauge; update with: pip install --upgrade memgauge"
    return f"is {schema!r}, which is no estimate or measurement; {_KEPT}"


def _reason(error: Exception) -> str:
    return str(error).removesuffix(".")
