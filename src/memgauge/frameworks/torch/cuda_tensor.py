"""What a tensor says of itself and how it moves, for a CUDA target.

Replaces attributes of `torch.Tensor` while a trace runs, so that a program, and
torch's own Python code (optimizers, GradScaler, checkpointing, autocast), sees
`cuda:0` on tensors that stand for device memory. Compiled code goes on seeing
CPU tensors.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, is_lazy

from memgauge.errors import UnsupportedError
from memgauge.frameworks.torch.address_space import storage_bytes
from memgauge.frameworks.torch.cuda_placement import Placement, values_of
from memgauge.frameworks.torch.patches import Patches
from memgauge.frameworks.torch.protocol import CANNOT_PIN
from memgauge.frameworks.torch.values import user_line

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")

_TYPE_NAMES = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char",
    torch.uint8: "Byte", torch.bool: "Bool",
}  # fmt: skip


class Move(torch.autograd.Function):
    """A copy between host and device whose gradient goes back the same way."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, placement: Placement, there: bool, options: Any
    ) -> torch.Tensor:
        ctx.placement, ctx.back, ctx.dtype = placement, not there, tensor.dtype
        return copy_to(tensor, placement, there, options)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return copy_to(gradient, ctx.placement, ctx.back, {"dtype": ctx.dtype}), None, None, None


def copy_to(tensor: torch.Tensor, placement: Placement, there: bool, options: dict[str, Any]) -> torch.Tensor:
    """Return a copy of the tensor on the other side."""
    with placement.at(there):
        return torch.ops.aten._to_copy.default(tensor, **options)  # type: ignore[no-any-return]


def place_of(device: Any) -> bool | None:
    """Return True for the GPU, False for the host, None for what is neither (`meta`, nothing).

    Raises:
        UnsupportedError: It is another GPU than the first.
    """
    refuse_other_cards(device)
    if device is None:
        return None
    kind = "cuda" if isinstance(device, int) else torch.device(device).type
    return True if kind == "cuda" else False if kind == "cpu" else None


def refuse_other_cards(device: Any) -> None:
    """Name the user's line where it asks for a second GPU: the trace stands for one.

    Raises:
        UnsupportedError: The device has an index, and it is above 0.
    """
    if isinstance(device, str):
        device = torch.device(device)
    index = device if isinstance(device, int) else getattr(device, "index", None)
    if index is not None and index > 0 and getattr(device, "type", "cuda") == "cuda":
        raise UnsupportedError(
            f"{user_line()}: cuda:{index} is not followed, a prediction is of one GPU, which is cuda:0; "
            "predict each card's share by a workload of its own, with 'cuda' as its device"
        )


def below_modes(real: Any) -> Any:
    """Call torch's own method without function modes.

    A mode (`with torch.device(...)` is one) would look the method up by its name and
    find the replacement again.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return real(*args, **kwargs)

    return call


def patch_tensor(patches: Patches, placement: Placement) -> None:
    """Make tensors answer and move as on a machine with a GPU."""
    on_device = placement.on_device
    real_device = below_modes(torch._C.TensorBase.device.__get__)

    def device(self: torch.Tensor) -> torch.device:
        return GPU if on_device(self) else real_device(self)

    thread = threading.get_ident()

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if on_device(self):
            raise RuntimeError(
                f"cannot pin '{self.type()}' {CANNOT_PIN}; build() and batch() run with the card as torch's default "
                "device, and what batch() returns is moved there: make a data set in build() with device='cpu', and "
                "return it beside the model"
            )
        # What a loader's own thread pins ahead of the step depends on time: it is left out.
        if threading.get_ident() != thread or self.layout is not torch.strided or placement.is_pinned(self):
            return self
        size = storage_bytes(tuple(self.shape), self.stride(), self.itemsize)
        return placement.pin(copy_to(self, placement, False, {}), size)

    answers = {
        "device": property(device),
        "is_cuda": property(on_device),
        "is_cpu": property(lambda self: device(self).type == "cpu"),
        "get_device": lambda self: 0 if on_device(self) else -1,
        "pin_memory": pin_memory,
        "is_pinned": lambda self, device=None: placement.is_pinned(self),
        "record_stream": lambda self, stream: None,
    }
    for name, answer in {**answers, **_moves(placement), "__deepcopy__": _deepcopy()}.items():
        patches.set(torch.Tensor, name, answer)


def _moves(placement: Placement) -> dict[str, Any]:
    """Return the methods that move a tensor between host and device."""
    on_device = placement.on_device
    real_to = below_modes(torch.Tensor.to)
    real_type = below_modes(torch.Tensor.type)

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        there, args, kwargs = _destination(args, kwargs)
        if there is None or there == on_device(self):
            placement.moved_in_vain = placement.moved_in_vain or bool(there)
            return real_to(self, *args, **kwargs)  # type: ignore[no-any-return]
        if is_lazy(
            self
        ):  # of no size yet; a buffer stays one, a parameter is given the new data by its module
            data = to(values_of(self), **{**kwargs, "device": "cuda" if there else "cpu"})
            return data.as_subclass(UninitializedBuffer) if isinstance(self, UninitializedBuffer) else data
        options = {"dtype": kwargs.get("dtype") or self.dtype}
        if kwargs.get("memory_format") is not None:
            options["memory_format"] = kwargs["memory_format"]
        if kwargs.get("non_blocking"):
            options["non_blocking"] = True
        with_gradient = self.requires_grad and torch.is_grad_enabled()
        move = Move.apply if with_gradient else copy_to
        moved: torch.Tensor = move(self, placement, there, options)
        # Only into pinned memory can a copy go on while the program does (TensorConversions.cpp `_to_copy`, `pin_out`).
        return placement.pin(moved) if kwargs.get("non_blocking") and not there else moved

    def cuda(
        self: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: Any = torch.preserve_format,
    ) -> torch.Tensor:
        return to(
            self, "cuda" if device is None else device, non_blocking=non_blocking, memory_format=memory_format
        )

    def cpu(self: torch.Tensor, memory_format: Any = torch.preserve_format) -> torch.Tensor:
        return to(self, "cpu", memory_format=memory_format)

    def type_as(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return to(self, other)

    def type_(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is None:
            name = f"{_TYPE_NAMES.get(self.dtype, '')}Tensor"
            return f"torch.cuda.{name}" if on_device(self) else real_type(self)
        text = (
            dtype
            if isinstance(dtype, str)
            else f"{getattr(dtype, '__module__', '')}.{getattr(dtype, '__name__', '')}"
        )
        if text.startswith("torch.cuda."):
            name = text.rsplit(".", 1)[1].removesuffix("Tensor")
            return to(self, "cuda", dtype=next(d for d, n in _TYPE_NAMES.items() if n == name))
        return real_type(self, dtype, non_blocking, **kwargs)

    return {"to": to, "cuda": cuda, "cpu": cpu, "type_as": type_as, "type": type_}


def _deepcopy() -> Any:
    """Return a `__deepcopy__` that dispatchers see: torch copies the storage byte by byte."""
    real = below_modes(torch.Tensor.__deepcopy__)

    def deepcopy(self: torch.Tensor, memo: dict[int, Any]) -> Any:
        is_plain = type(self) is torch.Tensor and self.is_leaf and self.layout is torch.strided
        if not is_plain or id(self) in memo:
            return real(self, memo)
        memo[id(self)] = copied = self.detach().clone().requires_grad_(self.requires_grad)
        return copied

    return deepcopy


def _destination(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bool | None, tuple[Any, ...], dict[str, Any]]:
    """Split the arguments of `.to(...)`: where to, and the rest with the CPU as stand-in for the GPU."""
    kwargs = dict(kwargs)
    first = args[0] if args else kwargs.get("other", kwargs.get("device"))
    if isinstance(first, torch.Tensor):
        kwargs.pop("other", None)
        there, rest = place_of(first.device), (first.dtype, *args[1:])
    elif isinstance(first, (str, int, torch.device)) and not isinstance(first, bool):
        there, rest = place_of(first), args[1:]
    else:
        return None, args, kwargs
    if there is None:
        return None, args, kwargs
    names = ("dtype", "non_blocking", "copy")
    kwargs.update({name: value for name, value in zip(names, rest, strict=False) if value is not None})
    return there, (), {**kwargs, "device": CPU}
