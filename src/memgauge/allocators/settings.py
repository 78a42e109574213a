"""Settings of PyTorch's CUDA allocator, read as PYTORCH_CUDA_ALLOC_CONF spells them.

Source: `AcceleratorAllocatorConfig` and `CUDAAllocatorConfig` of torch 2.13.0
(headers c10/core/AllocatorConfig.h and c10/cuda/CUDAAllocatorConfig.h; limits and
refusals observed in its libc10; CUDA's own in c10/cuda/CUDAAllocatorConfig.cpp). Refused is what torch
refuses, in its own words after the user's value, and also what torch
silently misreads: a negative number, or letters behind one (it takes `30GB` for 30 MiB).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

from memgauge.errors import UnsupportedError, UsageError, nearest
from memgauge.units import MIB

FIRST_DIVIDED_POWER = 20  # roundup_power2_divisions: its first entry is for sizes below 2 MiB
_DIVIDED_POWERS = 16  # and its last for sizes of 32 GiB and more
_SHARED_REQUEST_MB = 10  # kMinLargeAlloc
_MOST_REGISTER_THREADS = 128  # pinned_max_register_threads of CUDAAllocatorConfig.h
_SYNTAX = "key:value,key:value, for example max_split_size_mb:128,expandable_segments:True"

_PAIR = re.compile(r"([^,:\[\]]+):(\[[^\[\]]*\]|[^,:\[\]]+)(?:,|$)")
_TOKEN = re.compile(r"[^,:\[\]]+|[,:\[\]]")


@dataclass(frozen=True, slots=True)
class CudaSettings:
    """What can change the size of a block or segment; the defaults are torch's.

    Attributes:
        max_split_bytes: Blocks of this size and more are never split; None: all are.
        large_segment_bytes: Segment for requests between 1 and 10 MiB, and page of expandable ones.
        max_non_split_rounding_bytes: What an unsplit large block may exceed its request by;
            None: `large_segment_bytes`.
        roundup_power2_divisions: Steps between two powers of two that requests are rounded to,
            16 entries from 1 MiB to 32 GiB; 0 and 1 mean none. Empty: no such rounding.
        garbage_collection_threshold: Share of the allowed memory above which cached segments are
            given back before new ones are obtained; acts only with `per_process_memory_fraction` below 1.
        expandable_segments: One growing segment per pool.
        per_process_memory_fraction: Share of the card's memory that is allowed.
    """

    max_split_bytes: int | None = None
    large_segment_bytes: int = 20 * MIB
    max_non_split_rounding_bytes: int | None = None
    roundup_power2_divisions: tuple[int, ...] = ()
    garbage_collection_threshold: float | None = None
    expandable_segments: bool = False
    per_process_memory_fraction: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what torch refuses.

        Raises:
            UsageError: A value is outside its limits.
        """
        segment_mb = self.large_segment_bytes / MIB
        _require(
            segment_mb > _SHARED_REQUEST_MB,
            "large_segment_size_mb",
            segment_mb,
            "CachingAllocator option large_segment_size_mb must be > 10 MB",
        )
        for key, limit_bytes in (
            ("max_split_size_mb", self.max_split_bytes),
            ("max_non_split_rounding_mb", self.max_non_split_rounding_bytes),
        ):
            if limit_bytes is not None:
                enough = limit_bytes >= self.large_segment_bytes
                reason = f"CachingAllocator option {key} too small, must be >= {segment_mb:g}"
                _require(enough, key, limit_bytes / MIB, reason)
        threshold, fraction = self.garbage_collection_threshold, self.per_process_memory_fraction
        if threshold is not None:
            reason = "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"
            _require(0 < threshold < 1, "garbage_collection_threshold", threshold, reason)
        reason = "per_process_memory_fraction is invalid, set it in [0.0, 1.0]"
        _require(0 <= fraction <= 1, "per_process_memory_fraction", fraction, reason)
        for divisions in self.roundup_power2_divisions:
            _require_divisions(divisions)


def parse_cuda_settings(text: str) -> CudaSettings:
    """Return the settings that a value of PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF means.

    Whitespace is ignored and a later key replaces an earlier one. Keys that cannot change a size
    on the device (pinned host memory, locks, graph capture) are accepted and left out.

    Raises:
        UsageError: A key is unknown or a value is refused; names it and the nearest key.
        UnsupportedError: The setting replaces the allocator that is modelled here.
    """
    return CudaSettings(**_values_of(text))  # type: ignore[arg-type]


def settings_after_call(settings: CudaSettings, text: str) -> CudaSettings:
    """Return the settings once a program has given `text` to `torch._C._accelerator_setAllocatorSettings`.

    Three keys go back to their defaults unless they are named again; the others stay (`parseArgs` in
    c10/core/AllocatorConfig.cpp).

    Raises:
        UsageError, UnsupportedError: As `parse_cuda_settings` does.
    """
    return replace(settings, **{**_RESET, **_values_of(text)})  # type: ignore[arg-type]


_RESET = {"max_split_bytes": None, "roundup_power2_divisions": (), "garbage_collection_threshold": None}


def _values_of(text: str) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value, index in _pairs("".join(text.split())):
        if key in _TRUE_OR_FALSE and value not in ("True", "False"):
            raise UsageError(
                f"{key}:{value}: Expected 'True' or 'False' at index {index} in ConfigTokenizer but got {value!r}"
            )
        if key in _IGNORED:
            continue
        if key not in _PARSERS:
            known = nearest(key, (*_PARSERS, *_IGNORED))
            raise UsageError(f"Unrecognized key {key!r} in CUDA allocator config.{known} Write {_SYNTAX}")
        field, parse = _PARSERS[key]
        parsed = parse(key, value)
        if field:
            values[field] = parsed
    return values


def format_cuda_settings(settings: CudaSettings) -> str:
    """Return the text that sets these settings: what differs from the defaults, in torch's spelling."""
    defaults = CudaSettings()
    differing = {
        field.name: getattr(settings, field.name)
        for field in fields(settings)
        if getattr(settings, field.name) != getattr(defaults, field.name)
    }
    pairs = ((key, differing[field]) for key, (field, _) in _PARSERS.items() if field in differing)
    return ",".join(f"{key}:{_format_value(key, value)}" for key, value in pairs)


def _pairs(text: str) -> Iterable[tuple[str, str, int]]:
    """Yield each key with its value, and which of torch's tokens the value is: separators are tokens too."""
    position = index = 0
    while position < len(text):
        match = _PAIR.match(text, position)
        if not match:
            raise UsageError(
                f"cannot read {text[position:]!r} in the CUDA allocator settings; write {_SYNTAX}"
            )
        yield match[1], match[2], index + 2
        index += len(_TOKEN.findall(match[0]))
        position = match.end()


def _require(condition: bool, key: str, number: float, reason: str) -> None:
    if not condition:
        raise UsageError(f"{key}:{number:.12g}: {reason}")


def _require_divisions(divisions: int) -> None:
    allowed = divisions == 0 or _is_power2(divisions)
    reason = "For roundups, the divisions has to be power of 2 or 0 to disable roundup"
    _require(allowed, "roundup_power2_divisions", divisions, reason)


def _is_power2(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _whole(key: str, value: str) -> int:
    if not re.fullmatch(r"\+?[0-9]{1,18}", value):
        raise UsageError(f"{key}:{value}: {value!r} is not a whole number")
    return int(value)


def _megabytes(key: str, value: str) -> int:
    return _whole(key, value) * MIB


def _share(key: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if math.isnan(share):
        raise UsageError(f"{key}:{value}: {value!r} is not a number between 0 and 1")
    return share


def _boolean(key: str, value: str) -> bool:
    return value == "True"


def _divisions(key: str, value: str) -> tuple[int, ...]:
    """Parse `4` (for every size) or `[256:1,512:2,>:4]` (from a size in MiB on; `>`: all above).

    The first interval also covers every smaller size; a size between two named ones is not rounded.
    """
    if not value.startswith("["):
        divisions = _whole(key, value)
        _require(_is_power2(divisions), key, divisions, "For roundups, the divisions has to be power of 2")
        return (divisions,) * _DIVIDED_POWERS
    table = [0] * _DIVIDED_POWERS
    last: int | None = None
    for item in filter(None, value[1:-1].split(",")):
        start, _, steps = item.partition(":")
        divisions = _whole(key, steps)
        _require_divisions(divisions)
        if start == ">":
            first = (last or 0) + 1
            table[first:] = [divisions] * len(table[first:])
            continue
        interval = _whole(key, start)
        _require(_is_power2(interval), key, interval, "For roundups, the intervals have to be power of 2")
        index = min(interval.bit_length(), _DIVIDED_POWERS) - 1
        if last is None:
            table[:index] = [divisions] * index
        table[index] = divisions
        last = index
    return tuple(table) if any(table) else ()


def _backend(key: str, value: str) -> None:
    if value == "cudaMallocAsync":
        raise UnsupportedError(
            f"{key}:{value}: CUDA's own pool allocator is not modelled, only PyTorch's (backend:native)"
        )
    if value != "native":
        raise UsageError(f"{key}:{value}: Unknown allocator backend, options are native and cudaMallocAsync")


def _register_threads(key: str, value: str) -> None:
    threads = _whole(key, value)
    _require(_is_power2(threads), key, threads, "Number of register threads has to be power of 2")
    reason = f"Number of register threads should be less than or equal to {_MOST_REGISTER_THREADS}"
    _require(threads <= _MOST_REGISTER_THREADS, key, threads, reason)


def _reserve_segment(key: str, value: str) -> None:
    size = _whole(key, value)
    _require(size > 0, key, size, "Pinned reserve segment size has to be greater than 0")


def _refusal(key: str, value: str) -> None:
    if _boolean(key, value):
        raise UnsupportedError(f"{key}:{value}: refusing a request before the driver does is not modelled")


_PARSERS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "max_split_size_mb": ("max_split_bytes", _megabytes),
    "large_segment_size_mb": ("large_segment_bytes", _megabytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _megabytes),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", _share),
    "expandable_segments": ("expandable_segments", _boolean),
    "per_process_memory_fraction": ("per_process_memory_fraction", _share),
    "backend": ("", _backend),
    "throw_on_cudamalloc_oom": ("", _refusal),
    "pinned_num_register_threads": ("", _register_threads),
    "pinned_reserve_segment_size_mb": ("", _reserve_segment),
}

_IGNORED = (
    "graph_capture_record_stream_reuse",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
)


_TRUE_OR_FALSE = (
    "expandable_segments",
    "throw_on_cudamalloc_oom",
    "graph_capture_record_stream_reuse",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
)


def _format_value(key: str, value: object) -> str:
    if isinstance(value, tuple):
        steps = (f"{1 << power}:{divisions}" for power, divisions in enumerate(value))
        return f"[{','.join(steps)}]"
    if key.endswith("_mb") and isinstance(value, int):
        return str(value // MIB)
    return str(value)
