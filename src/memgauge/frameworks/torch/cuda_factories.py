"""What makes tensors on a named device, for a CUDA target.

`torch.zeros(..., device="cuda")` makes the CPU stand-in and says that it counts as
device memory; without a device, or with `device="cpu"`, it is the host's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _device as torch_device

from memgauge.frameworks.torch.cuda_placement import Placement
from memgauge.frameworks.torch.cuda_tensor import CPU, below_modes, place_of, refuse_other_cards
from memgauge.frameworks.torch.patches import Patches

_FACTORIES = (
    "empty", "empty_permuted", "empty_strided", "ones", "zeros", "full", "arange", "range", "linspace",
    "logspace", "eye", "rand", "randn", "randint", "randperm", "tensor", "as_tensor", "asarray",
    "scalar_tensor", "tril_indices", "triu_indices", "bartlett_window", "blackman_window", "hamming_window",
    "hann_window", "kaiser_window", "normal", "sparse_coo_tensor", "sparse_csr_tensor",
)  # fmt: skip
_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
_NEW = ("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full", "new_tensor")
_FROM_TENSOR = ("as_tensor", "asarray")  # may be given a tensor, which then moves


def patch_factories(patches: Patches, placement: Placement) -> None:
    """Let tensors be made on the device under study, and on the host."""
    constructors = set(torch_device._device_constructors())  # before the patches, which it would remember
    for name in _FACTORIES:
        patches.set(
            torch, name, _factory(getattr(torch, name), placement, default=True, moves=name in _FROM_TENSOR)
        )
    for name in ("fftfreq", "rfftfreq"):
        patches.set(torch.fft, name, _factory(getattr(torch.fft, name), placement, default=True))
    for name in _LIKE:
        patches.set(torch, name, _factory(getattr(torch, name), placement, default=False))
    for name in _NEW:
        patches.set(
            torch.Tensor, name, _factory(below_modes(getattr(torch.Tensor, name)), placement, default=False)
        )
    factory_of: dict[Any, Callable[..., Any]] = {}

    def torch_function(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """`with torch.device("cuda")`: a factory that was imported by name, before the patch."""
        kwargs = kwargs or {}
        there = place_of(kwargs.get("device"))
        if func in constructors and (
            there or (kwargs.get("device") is None and place_of(self.device) is not None)
        ):
            if func not in factory_of:
                factory_of[func] = _factory(func, placement, default=True)
            return factory_of[func](*args, **{**kwargs, "device": kwargs.get("device") or self.device})
        return func(*args, **kwargs)

    patches.set(torch_device.DeviceContext, "__torch_function__", torch_function)
    patches.set(torch, "Generator", _generator())
    for name in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool"):
        patches.set(torch.cuda, f"{name}Tensor", _legacy(getattr(torch, f"{name}Tensor"), placement))


def _default_device() -> torch.device | None:
    """Return the device of the innermost `with torch.device(...)`, None outside."""
    for level in reversed(range(torch._C._len_torch_function_stack())):
        mode = torch._C._get_function_stack_at(level)
        if isinstance(mode, torch_device.DeviceContext):
            return mode.device
    return None


def _factory(
    real: Callable[..., Any], placement: Placement, *, default: bool, moves: bool = False
) -> Callable[..., Any]:
    is_normal = getattr(real, "__name__", "") == "normal"  # given means or deviations, it is no factory

    def make(*args: Any, **kwargs: Any) -> Any:
        if not placement.active or (is_normal and _has_tensor(args, kwargs)):
            return real(*args, **kwargs)
        is_pinned = kwargs.pop("pin_memory", False)
        device = kwargs.get("device")
        if device is None and default:
            if moves and args and isinstance(args[0], torch.Tensor) and _default_device() is None:
                return real(*args, **kwargs)
            device = _default_device() or CPU
        there = place_of(device)
        if there is None:
            made = real(*args, **kwargs)
            return placement.pin(made) if is_pinned and not placement.on_device(made) else made
        if is_pinned and there:
            raise RuntimeError(
                "pin_memory=True: only the host's memory can be pinned, and this is on the device"
            )
        if moves and args and isinstance(args[0], torch.Tensor):
            kwargs.pop("device", None)
            return real(args[0].to(device), *args[1:], **kwargs)
        kwargs["device"] = CPU
        with placement.at(there):
            made = real(*args, **kwargs)
        return placement.pin(made) if is_pinned else made

    make.__wrapped__ = real  # type: ignore[attr-defined]
    make.__name__ = getattr(real, "__name__", "factory")
    return make


def _has_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values()))


def _legacy(real: Any, placement: Placement) -> type:
    def make(cls: type, *args: Any) -> Any:
        with placement.at(True):
            return real(*args)

    return type(real.__name__, (), {"__new__": make})


def _generator() -> Any:
    real = torch.Generator

    class AnyGenerator(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

    class Generator(metaclass=AnyGenerator):
        def __new__(cls, device: Any = "cpu") -> Any:
            refuse_other_cards(device)
            return real(device=CPU)

    return Generator
