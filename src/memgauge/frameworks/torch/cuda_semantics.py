"""A CUDA run on a build of PyTorch without CUDA: what is different from the CPU, put together.

    where memory is        cuda_placement   device memory is listed, host memory is not
    what a tensor says     cuda_tensor      .device, .is_cuda, .to(...), .cuda(), .cpu()
    what makes a tensor    cuda_factories   torch.zeros(..., device="cuda")
    what loads tensors     cuda_loading     torch.load(..., map_location="cuda")
    what torch.cuda says   cuda_devices     streams, events, statistics, random state
    which kernels run      cuda_operators   dropout, attention, recurrent layers, norms
    what kernels give      cuda_kernels     outputs that torch's shape rules do not know
    autocast               cuda_autocast    CUDA's lists, float16 by default

What follows by itself, because torch's own Python code sees `cuda` on the
parameters: optimizers work on lists of tensors (foreach) and accept `fused=True`,
step counters stay on the host, checkpointing keeps the device's random state.

Everything is undone on leaving, also after an error. The table of all
differences with their sources is docs/cuda-semantics.md.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import _len_torch_function_stack
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import _device, checkpoint

from memgauge.devices.stack import Stack
from memgauge.frameworks.torch import cuda_autocast, cuda_operators
from memgauge.frameworks.torch.cuda_attention import capability
from memgauge.frameworks.torch.cuda_autocast_switch import patch_autocast
from memgauge.frameworks.torch.cuda_devices import Card, patch_cuda
from memgauge.frameworks.torch.cuda_factories import patch_factories
from memgauge.frameworks.torch.cuda_libraries import Libraries
from memgauge.frameworks.torch.cuda_loading import patch_loading
from memgauge.frameworks.torch.cuda_phantom import CudaPhantomMode
from memgauge.frameworks.torch.cuda_placement import Placement, values_of
from memgauge.frameworks.torch.cuda_rnn import RNN_MODES, flatten
from memgauge.frameworks.torch.cuda_tensor import patch_tensor
from memgauge.frameworks.torch.patches import Patches
from memgauge.frameworks.torch.shapes import shapes_of


@contextmanager
def cuda_semantics(mode: CudaPhantomMode, card: Card = Card()) -> Iterator[None]:  # noqa: B008 (frozen)
    """Give what runs inside, under `mode`, the meaning that it has on a GPU.

    Args:
        mode: The phantom mode of the trace.
        card: What a program is told of its GPU; its compute capability also decides
            which attention kernel runs.
    """
    # Optimizers import the one at their first step, forward-mode AD the other: not while torch is patched.
    import torch._decomp.decompositions_for_jvp
    import torch._dynamo

    placement = mode.placement
    mode.libraries = Libraries(mode, card)
    autocast = cuda_autocast.Autocast(placement)
    library = torch.library.Library("aten", "IMPL")
    with Patches() as patches, shapes_of("cuda"):
        patches.callback(library._destroy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that kernels are overridden, which is the purpose
            cuda_operators.register(library, placement)
            cuda_autocast.register(library, autocast)
        patch_autocast(patches, autocast)
        patch_tensor(patches, placement)
        patch_factories(patches, placement)
        patch_loading(patches, mode)
        patch_cuda(patches, card, placement, mode.values, mode.release_cache, mode.allow, mode.streams)
        mode.graphs.patch(patches)
        mode.own.patch(patches)
        patches.set(torch.backends.cudnn.rnn, "get_cudnn_mode", RNN_MODES.__getitem__)
        patches.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
        patches.set(torch, "_cudnn_rnn_flatten_weight", flatten(placement))
        patches.set(checkpoint.DefaultDeviceType, "_default_device_type", "cuda")
        patches.set(capability, "now", card.capability)
        patches.set(placement, "active", True)
        _keep_default_device(patches)
        _lend(patches, placement)
        _switch_cudnn(patches, card.stack)
        yield


def _switch_cudnn(patches: Patches, stack: Stack) -> None:
    """Set cuDNN's flags as asked for, and give them back as they were whatever the program sets."""
    flags = torch.backends.cudnn
    asked = {
        "enabled": stack.cudnn,
        "benchmark": stack.cudnn_benchmark,
        "deterministic": stack.cudnn_deterministic,
        "allow_tf32": stack.tf32,
    }
    for kind in (getattr(flags, name, None) for name in ("conv", "rnn")):  # torch 2.9 and newer
        if kind is not None:
            patches.callback(setattr, kind, "fp32_precision", kind.fp32_precision)
    for name, value in asked.items():
        with contextlib.suppress(RuntimeError):  # `allow_tf32` cannot be read where those two differ
            patches.callback(setattr, flags, name, getattr(flags, name))
        if value is not None:
            setattr(flags, name, value)


def _keep_default_device(patches: Patches) -> None:
    """Have the default device and the function modes at the end as they are now, whatever the program sets.

    A device that is set within `with torch.device(...)` takes that one's place among torch's modes, and torch
    finds no way back from there (torch/utils/_device.py).
    """
    modes, device = _get_current_function_mode_stack(), _device.CURRENT_DEVICE
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)

    def undo() -> None:
        while _len_torch_function_stack():
            _pop_mode()
        for mode in modes:
            _push_mode(mode)
        _device.CURRENT_DEVICE = device
        torch._GLOBAL_DEVICE_CONTEXT.device_context = context

    patches.callback(undo)


def _lend(patches: Patches, placement: Placement) -> None:
    """Modules that were there before the run are moved as in a real one, and get their tensors back after it."""
    real = torch.nn.Module._apply

    def apply(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        for parameter in self._parameters.values():
            if parameter is not None and not placement.made_here(values_of(parameter).untyped_storage()):
                patches.callback(setattr, parameter, "data", parameter.data)
                patches.callback(setattr, parameter, "grad", parameter.grad)
        for name, buffer in self._buffers.items():
            if buffer is not None and not placement.made_here(values_of(buffer).untyped_storage()):
                patches.callback(self._buffers.__setitem__, name, buffer)
        result: torch.nn.Module = real(self, *args, **kwargs)
        return result

    patches.set(torch.nn.Module, "_apply", apply)
