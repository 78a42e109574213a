"""Make torchvision importable where its compiled operators do not load.

torchvision ships operators (`nms`, `roi_align`, …) compiled for one build of
torch. Beside another build, typically a CPU torch next to a torchvision made
for CUDA, the library does not load, and then `import torchvision` fails, because
torchvision 0.28 registers a shape rule for `torchvision::nms` (and `qnms`) in
`torchvision/_meta_registrations.py` without asking whether the operator exists.
timm and parts of transformers import torchvision and fail with it.

Tracing needs no kernels, only schemas and torchvision's own Python shape rules.
So the schemas are defined here, the same as in `torchvision/csrc/ops/*.cpp`
(0.28), but only if the import would fail. Their kernels stay missing: a
real run of a detection model then gets an `UnsupportedError` that says why.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any, NoReturn

import torch

from memgauge.errors import UnsupportedError, missing_extra

_BOX = "Tensor {grad}, Tensor rois{saved}, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_IMAGE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_CONVOLUTION = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, "
    "SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, "
    "bool use_mask"
)


def _box(grad: str, saved: str = "") -> str:
    return _BOX.format(grad=grad, saved=f", Tensor {saved}" if saved else "")


_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": f"({_box('input')}, int sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward": f"({_box('grad')}, {_IMAGE}, int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool": f"({_box('input')}) -> (Tensor, Tensor)",
    "_roi_pool_backward": f"({_box('grad', 'argmax')}, {_IMAGE}) -> Tensor",
    "ps_roi_align": f"({_box('input')}, int sampling_ratio) -> (Tensor, Tensor)",
    "_ps_roi_align_backward": (
        f"({_box('grad', 'channel_mapping')}, int sampling_ratio, {_IMAGE}) -> Tensor"
    ),
    "ps_roi_pool": f"({_box('input')}) -> (Tensor, Tensor)",
    "_ps_roi_pool_backward": f"({_box('grad', 'channel_mapping')}, {_IMAGE}) -> Tensor",
    "deform_conv2d": f"({_CONVOLUTION}) -> Tensor",
    "_deform_conv2d_backward": f"(Tensor grad, {_CONVOLUTION}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
}
_HAVE_SHAPE_RULES = ("nms", "qnms")  # registered by torchvision in any case

_libraries: list[torch.library.Library] = []  # a schema lives as long as the library that defined it


def import_torchvision() -> Any:
    """Return torchvision, with schemas in place of operators that do not load.

    Raises:
        MissingError: torchvision is not installed.
    """
    if "torchvision" in sys.modules:
        return sys.modules["torchvision"]
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        if error.name == "torchvision":
            raise missing_extra("torchvision", "models") from error
        raise
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    _forget_half_imported()
    _define_schemas()
    module = importlib.import_module("torchvision")
    _complete(module)
    return module


def compiled_operators_load() -> bool:
    """Return whether torchvision's real kernels are there."""
    return not _libraries


def _forget_half_imported() -> None:
    for name in [n for n in sys.modules if n == "torchvision" or n.startswith("torchvision.")]:
        del sys.modules[name]


def _define_schemas() -> None:
    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    for name, schema in _SCHEMAS.items():
        library.define(name + schema)
        for backend in ("CPU", "CUDA"):
            library.impl(name, _refuse(name), backend)


def _refuse(name: str) -> Any:
    def kernel(*_: object) -> NoReturn:
        raise UnsupportedError(
            f"torchvision::{name} cannot run: the compiled operators of torchvision do not load beside torch "
            f"{torch.__version__}; install builds of both for the same device (https://pytorch.org/get-started)"
        )

    return kernel


def _complete(torchvision: Any) -> None:
    """Let torchvision register shape rules and gradients for the schemas, as if they had been loaded."""
    extension = sys.modules["torchvision.extension"]
    extension._has_ops = lambda: True  # type: ignore[attr-defined]
    # Took the function by name when it was imported; would call torch.compile in its stead.
    sys.modules["torchvision.ops.roi_align"]._has_ops = extension._has_ops  # type: ignore[attr-defined]
    rules = torchvision._meta_registrations
    for name in _SCHEMAS:
        rule = getattr(rules, f"meta_{name.lstrip('_')}", None)
        if rule is not None and name not in _HAVE_SHAPE_RULES:
            rules.register_meta(name)(rule)
    with contextlib.suppress(ModuleNotFoundError):  # older releases define gradients in the missing library
        importlib.reload(importlib.import_module("torchvision._autograd_registrations"))
