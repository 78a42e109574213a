"""The version of memgauge that is running."""

from __future__ import annotations

UNKNOWN = "0+unknown"  # run from a source tree that is not installed


def installed_version() -> str:
    """Return the version that is installed, `UNKNOWN` if none is."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("memgauge")
    except PackageNotFoundError:
        return UNKNOWN
