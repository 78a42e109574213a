"""What `torch.cuda` and `torch.accelerator` answer, for a CUDA target: one idle GPU.

Streams have pools of their own (`cuda_streams`), events do nothing, memory statistics are 0, the random state is 16
bytes in the host's memory (c10 `CUDAGeneratorImpl::get_state`: seed and offset).
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.profiler.profiler import _KinetoProfile
from torch.utils._pytree import tree_map_only

from memgauge.devices import PublishedRates
from memgauge.devices.stack import Stack
from memgauge.errors import UnsupportedError
from memgauge.frameworks.torch.cuda_placement import Placement
from memgauge.frameworks.torch.cuda_streams import Nothing, Streams
from memgauge.frameworks.torch.cuda_tensor import CPU, refuse_other_cards
from memgauge.frameworks.torch.patches import Patches
from memgauge.frameworks.torch.values import ValueReader, user_line
from memgauge.records import ASKED_CARD

RNG_STATE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Card:
    """What a program is told when it asks which GPU this is."""

    name: str = "NVIDIA A100-SXM4-80GB"
    capability: tuple[int, int] = (8, 0)
    total_bytes: int = 80 * 2**30
    multiprocessors: int = 108
    is_nvidia: bool = True
    context_bytes: int = 0  # what the process takes of it beside torch's allocator
    cublas_bytes: int = 0  # workspace of each cuBLAS handle and stream
    stack: Stack = Stack()  # noqa: RUF009 (frozen)
    rates: PublishedRates | None = None  # None: those of its architecture


def _scatter(self: Any, inputs: tuple[Any, ...], kwargs: dict[str, Any], devices: Any) -> Any:
    """Give `DataParallel` its inputs on the one GPU there is; replicas are made for two and more only."""
    if len(devices) > 1:
        raise UnsupportedError(
            f"{user_line()}: DataParallel over {len(devices)} GPUs is not followed; name one (device_ids=[0]) "
            "and give it its share of the batch"
        )
    moved = tree_map_only(torch.Tensor, lambda t: t.to("cuda"), (inputs, kwargs))
    return (moved[0],), (moved[1],)


def _profiles_the_host(real: Any) -> Any:
    """Return what sets up torch's profiler without the GPU: asked for one that is not there it fills stderr."""

    def init(self: Any, *, activities: Any = None, **options: Any) -> None:
        real(self, activities=[ProfilerActivity.CPU], **options)

    return init


def patch_cuda(
    patches: Patches,
    card: Card,
    placement: Placement,
    values: ValueReader,
    empty_cache: Callable[[], None],
    allow: Callable[[float], None],
    streams: Streams,
) -> None:
    """Answer for `torch.cuda`, `torch.accelerator` and cuDNN as with one GPU present."""
    for module, answers in (
        (torch.cuda, {**_answers(placement), **_streams(streams), **_about(card, values), **_refusals()}),
        (torch.cuda.memory, _MEMORY),
        (torch.cuda.random, _random(placement)),
        (
            torch.accelerator,
            {**_ACCELERATOR, "current_stream": streams.current, "set_stream": streams.set},
        ),
        (
            torch.backends.cudnn,
            {"is_available": lambda: True, "is_acceptable": _cudnn_takes, "version": lambda: 91900},
        ),
        (torch.backends.cuda, {"is_built": lambda: True}),
        (torch.nn.DataParallel, {"scatter": _scatter}),
        (_KinetoProfile, {"__init__": _profiles_the_host(_KinetoProfile.__init__)}),
    ):
        for name, answer in answers.items():
            patches.set(module, name, answer)
    for module in (torch.cuda, torch.cuda.memory, torch.accelerator):
        patches.set(module, "empty_cache", lambda: empty_cache())
    for module in (torch.cuda, torch.cuda.memory):
        patches.set(module, "set_per_process_memory_fraction", lambda fraction, device=None: allow(fraction))


def _cudnn_takes(tensor: torch.Tensor) -> bool:
    known = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return torch.backends.cudnn.enabled and tensor.is_cuda and tensor.dtype in known


class _OnCard(Nothing):
    """`torch.cuda.device(...)`: there is one card to be on."""

    def __init__(self, device: Any = None) -> None:
        refuse_other_cards(device)


def _nothing(*_: Any, **__: Any) -> None: ...


def _of_the_card(answer: Callable[[], Any]) -> Callable[..., Any]:
    """Return what answers for the one card there is, its first argument."""

    def ask(device: Any = None, *_: Any, **__: Any) -> Any:
        refuse_other_cards(device)
        return answer()

    return ask


_nothing_of_the_card = _of_the_card(lambda: None)
_zero = _of_the_card(lambda: 0)
_statistics = _of_the_card(lambda: collections.defaultdict(int))

_MEMORY: dict[str, Any] = {
    **dict.fromkeys(
        (
            "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
            "memory_cached", "max_memory_cached",
        ),
        _zero,
    ),
    **dict.fromkeys(
        (
            "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
            "reset_accumulated_memory_stats",
        ),
        _nothing_of_the_card,
    ),
    **dict.fromkeys(("empty_cache", "_record_memory_history", "_dump_snapshot"), _nothing),
    "memory_stats": _statistics,
    "_snapshot": _of_the_card(lambda: {"segments": [], "device_traces": []}),
    "memory_snapshot": lambda *_, **__: [],
    "memory_summary": _of_the_card(str),
}  # fmt: skip

_ACCELERATOR: dict[str, Any] = {
    "is_available": lambda: True,
    "current_accelerator": lambda check_available=False: torch.device("cuda"),
    "device_count": lambda: 1,
    **dict.fromkeys(
        (
            "current_device_index", "current_device_idx", "memory_allocated", "max_memory_allocated",
            "memory_reserved", "max_memory_reserved",
        ),
        _zero,
    ),
    **dict.fromkeys(("set_device_index", "set_device_idx"), refuse_other_cards),
    **dict.fromkeys(
        ("synchronize", "reset_peak_memory_stats", "reset_accumulated_memory_stats"), _nothing_of_the_card
    ),
    "empty_cache": _nothing,
    "memory_stats": _statistics,
}  # fmt: skip


def _random(placement: Placement) -> dict[str, Any]:
    def state(device: Any = "cuda") -> torch.Tensor:
        refuse_other_cards(device)
        with placement.at(False):
            return torch.zeros(RNG_STATE_BYTES, dtype=torch.uint8, device=CPU)

    return {
        "get_rng_state": state,
        "get_rng_state_all": lambda: [state()],
        "initial_seed": lambda: torch.initial_seed(),
        **dict.fromkeys(
            ("set_rng_state", "set_rng_state_all", "manual_seed", "manual_seed_all", "seed", "seed_all"), _nothing
        ),
    }  # fmt: skip


def _answers(placement: Placement) -> dict[str, Any]:
    return {
        "_initialized": True,
        "_is_in_bad_fork": lambda: False,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "default_generators": (torch.default_generator,),
        "can_device_access_peer": lambda *_: False,
        "current_blas_handle": lambda: 0,
        "device": _OnCard,
        "set_device": refuse_other_cards,
        **dict.fromkeys(("Event", "device_of", "_DeviceGuard"), Nothing),
        **dict.fromkeys(("init", "ipc_collect", "set_sync_debug_mode"), _nothing),
        "nvtx": Nothing(),
        **_MEMORY,
        **_random(placement),
    }  # fmt: skip


def _streams(streams: Streams) -> dict[str, Any]:
    return {
        "Stream": streams.Stream,
        "ExternalStream": streams.Stream,
        "StreamContext": streams.on,
        "stream": streams.on,
        "current_stream": streams.current,
        "default_stream": streams.default,
        "set_stream": streams.set,
    }


def _about(card: Card, values: ValueReader) -> dict[str, Any]:
    def asked(device: Any, answer: Any) -> Any:
        refuse_other_cards(device)
        values.assume(f"{ASKED_CARD} and was told {card.name}")
        return answer

    properties = types.SimpleNamespace(
        name=card.name, major=card.capability[0], minor=card.capability[1], total_memory=card.total_bytes,
        multi_processor_count=card.multiprocessors, warp_size=32, is_integrated=0, gcnArchName="",
    )  # fmt: skip
    return {
        "is_bf16_supported": lambda including_emulation=True: (
            including_emulation or card.capability >= (8, 0)
        ),
        "get_device_name": lambda device=None: asked(device, card.name),
        "get_device_capability": lambda device=None: asked(device, card.capability),
        "get_device_properties": lambda device=None: asked(device, properties),
        "mem_get_info": lambda device=None: asked(
            device, (card.total_bytes - card.context_bytes, card.total_bytes)
        ),
        "get_arch_list": lambda: ["sm_{}{}".format(*card.capability)],
    }


def _refusals() -> dict[str, Any]:
    def refuse(text: str) -> Callable[..., Any]:
        def function(*_: Any, **__: Any) -> Any:
            raise UnsupportedError(f"{user_line()}: {text}")

        return function

    return {
        "_lazy_init": refuse(
            "this function was imported by name before tracing began, so device='cuda' reached CUDA itself; "
            "call it through its module (torch.zeros(...)), or make the tensor first and move it with .to(device)"
        ),
        **dict.fromkeys(
            ("MemPool", "MemPoolContext", "use_mem_pool"),
            refuse("torch.cuda.MemPool is not followed; leave it out to estimate the run in the usual pools"),
        ),
    }
