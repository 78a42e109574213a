"""Bytes to text and back.

Inside the program a quantity of memory is an `int` number of bytes. People see
binary units with IEC labels; on input `GB` means 10^9 and `GiB` means 2^30.
"""

from __future__ import annotations

import re

from memgauge.errors import UsageError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": KIB,
    "kib": KIB,
    "m": MIB,
    "mib": MIB,
    "g": GIB,
    "gib": GIB,
    "t": TIB,
    "tib": TIB,
}


def format_bytes(count_bytes: int | None) -> str:
    """Return bytes as people read them: four significant digits at most, binary units.

    >>> format_bytes(1610612736), format_bytes(512), format_bytes(None)
    ('1.50 GiB', '512 B', '—')
    """
    if count_bytes is None:
        return "—"
    sign, rest = ("-", -count_bytes) if count_bytes < 0 else ("", count_bytes)
    for unit, size in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        # 1023.995 KiB would print as 1024; the next unit up takes it.
        if rest >= size * 0.9995:
            value = rest / size
            digits = 0 if value >= 999.5 else 1 if value >= 99.95 else 2
            return f"{sign}{value:.{digits}f} {unit}"
    return f"{sign}{rest} B"


def format_difference(difference_bytes: int | None, reference_bytes: int | None) -> str:
    """Return `+1.50 MiB (+3.1 %)`, `exact` when there is none, or a dash when unknown."""
    if difference_bytes is None or reference_bytes is None:
        return "—"
    if difference_bytes == 0:
        return "exact"
    sign = "+" if difference_bytes > 0 else ""
    text = f"{sign}{format_bytes(difference_bytes)}"
    if reference_bytes == 0:
        return text
    percent = 100 * difference_bytes / reference_bytes
    return f"{text} ({percent:+.{1 if abs(percent) >= 0.1 else 3}f} %)"


def parse_bytes(text: str) -> int:
    """Return the bytes meant by `512`, `1.5GiB`, `1.5 GB` (10^9) or `80g` (binary).

    Raises:
        UsageError: The text is not a number with a known unit.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if not match or match[2].lower() not in _UNITS:
        raise UsageError(f"{text!r} is not an amount of memory; write for example 24GiB, 24GB or 512MiB")
    return round(float(match[1]) * _UNITS[match[2].lower()])


_DURATIONS_NS = {
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "": 10**9,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
}


def parse_duration_ns(text: str) -> int:
    """Return the nanoseconds meant by `10ms`, `1.5s`, `2min`, `1h` or `5` (seconds).

    Raises:
        UsageError: The text is not a number with a known unit.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e-?\d+)?)\s*([a-zµ]*)\s*", text.lower())
    if not match or match[2] not in _DURATIONS_NS:
        raise UsageError(f"{text!r} is not a duration; write for example 10ms, 1s or 5min")
    return round(float(match[1]) * _DURATIONS_NS[match[2]])


def format_duration(duration_us: float | None) -> str:
    """Return a duration as people read it.

    >>> format_duration(950), format_duration(1_500_000), format_duration(3_725_000_000)
    ('950 µs', '1.50 s', '1 h 2 min')
    """
    if duration_us is None:
        return "—"
    if duration_us < 1000:
        return f"{duration_us:.3g} µs"
    if duration_us < 999_500:
        return f"{duration_us / 1000:.3g} ms"
    seconds = duration_us / 1e6
    if seconds < 60:
        return f"{seconds:.{2 if seconds < 10 else 1}f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
