"""Reaching a ledger's database: its URL, what is raised when it is away, full or locked, Optuna's storage in it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from memgauge.errors import FileFormatError, MissingError, UsageError, missing_extra

SQLITE = "sqlite:///"
BUSY_S = 30  # how long SQLite waits for another process that writes
PATIENCE_S = 60  # how long a ledger may be away before the study stops
_LONGEST_PAUSE_S = 10.0

T = TypeVar("T")


class LedgerError(MissingError):
    """The ledger cannot be reached or written now; what was measured is kept, and the study can go on later."""


def url_of(place: str | Path) -> str:
    """Return the URL of a ledger: a URL as it is (`postgresql://…`), a path as SQLite."""
    text = str(place)
    if "://" not in text:
        return f"{SQLITE}{Path(text).absolute()}"
    scheme, rest = text.split("://", 1)
    return f"postgresql+psycopg://{rest}" if scheme in ("postgres", "postgresql") else text


def shown(url: str) -> str:
    """Return a URL without its password."""
    head, at, tail = url.rpartition("@")
    if not at or "://" not in head:
        return url.removeprefix(SQLITE)
    scheme, _, login = head.partition("://")
    scheme = scheme.removesuffix("+psycopg")  # url_of's addition
    return f"{scheme}://{login.split(':')[0]}@{tail}"


@contextlib.contextmanager
def reached(url: str) -> Iterator[None]:
    """Turn what a database raises when it is away, full or locked into one error."""
    import optuna
    import sqlalchemy.exc

    try:
        yield
    except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.DBAPIError) as error:
        cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
        reason = str(getattr(cause, "orig", None) or cause or error).strip().splitlines()[0]
        raise LedgerError(
            f"the ledger {shown(url)} cannot be used: {reason}; what was measured is kept, run the study again"
        ) from error


def patiently(action: Callable[[], T], note: Callable[[str], None]) -> T:
    """Do something with a ledger and return what comes of it; if it is away, say so and wait a while for it.

    Raises:
        LedgerError: It did not come back.
    """
    until = time.monotonic() + PATIENCE_S
    pause = 0.5
    while True:
        try:
            return action()
        except LedgerError as error:
            if time.monotonic() + pause > until:
                raise
            note(f"{str(error).partition(';')[0]}; trying again in {pause:g} s")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


@contextlib.contextmanager
def driver(url: str) -> Iterator[None]:
    """Say which extra brings the driver of a database that is not installed."""
    try:
        yield
    except ImportError as error:
        extra = "postgres" if url.startswith("postgres") else "study"
        raise missing_extra(f"the driver of {shown(url)}", extra) from error


def open_storage(url: str) -> Any:
    """Return Optuna's storage in a database.

    Raises:
        UsageError: It is no URL.
        FileFormatError: The file is no database.
        MissingError: The driver is not installed.
    """
    import optuna

    if not url.startswith((SQLITE, "postgresql")):
        raise UsageError(
            f"{shown(url)}: a ledger is a path or postgresql://user@host/name, and no other database"
        )
    arguments: dict[str, Any] = {"connect_args": {"timeout": BUSY_S}} if url.startswith("sqlite") else {}
    if url.startswith("postgresql"):
        arguments = {"pool_pre_ping": True, "connect_args": {"connect_timeout": 10}}
    try:
        with driver(url):
            return optuna.storages.RDBStorage(url, engine_kwargs=arguments)
    except MissingError:
        raise
    except Exception as error:
        import sqlalchemy.exc

        if isinstance(error, sqlalchemy.exc.ArgumentError):
            raise UsageError(
                f"{shown(url)} is no URL of a database: {error}; write postgresql://user@host/name"
            ) from error
        if isinstance(error, sqlalchemy.exc.DatabaseError) and "not a database" in str(error):
            raise FileFormatError(f"{shown(url)} is not a ledger: it is no SQLite file") from error
        raise
