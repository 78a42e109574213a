"""`torchvision:NAME`: classification, segmentation, video, optical flow and detection.

What is run, unless the options say otherwise:

    kind            batch  input                       loss
    classification     32  3 x S x S                   cross-entropy; auxiliary heads as in the papers
    segmentation        8  3 x 520 x 520               cross-entropy per pixel, 0.5 x the auxiliary head
    video               8  3 x 16 x S x S              cross-entropy
    optical flow        2  two of 3 x 368 x 496        L1 over all iterations, weighted by 0.8^i
    detection           2  3 x 480 x 640, 8 boxes      the sum of the model's own losses

S is the crop size with which torchvision's weights were trained. Models are as
without weights: trained from scratch, all layers, batch statistics not frozen.

Source: references/{classification,segmentation,video_classification,optical_flow,
detection} of https://github.com/pytorch/vision, version 0.28.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from memgauge.arguments import TargetOptions, guess
from memgauge.errors import UnsupportedError, UsageError, nearest
from memgauge.frameworks.torch import torchvision_detection as detection
from memgauge.frameworks.torch.checkpointing import checkpoint_blocks
from memgauge.frameworks.torch.recipe import Recipe, recipe_options
from memgauge.frameworks.torch.torchvision_compat import import_torchvision
from memgauge.workload import Workload

CLIP_FRAMES = 16
_AUXILIARY = {"InceptionOutputs": 0.4, "GoogLeNetOutputs": 0.3}
_FLOW_SIZE = (368, 496)
_FLOW_GAMMA = 0.8
_SEGMENTATION_SIZE = 520


@dataclass(frozen=True, slots=True)
class _Setting:
    """What one family of models needs beside the model."""

    batch_size: int
    size: tuple[int, ...]  # of one picture, without channels
    batch: Callable[[int, tuple[int, ...], int, torch.dtype], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    predict: Callable[[nn.Module, Any], Any]


def torchvision_workload(name: str, options: TargetOptions, sets: Mapping[str, str]) -> Workload:
    """Return the workload of one of torchvision's architectures.

    Raises:
        UsageError: There is no such model, or it has no sequence length.
        UnsupportedError: The model is quantised, or has nothing to checkpoint.
    """
    models = import_torchvision().models
    known = models.list_models()
    if name not in known:
        raise UsageError(f"torchvision has no model {name!r}{nearest(name, known)}")
    family = models.get_model_builder(name).__module__.split(".")[2]
    if family == "quantization":
        plain = name.removeprefix("quantized_")
        raise UnsupportedError(
            f"torchvision:{name} runs on quantised kernels, which are not modelled; study torchvision:{plain}"
        )
    if options.sequence_length is not None:
        raise UsageError(f"torchvision:{name} takes no sequence length (given: {options.sequence_length})")
    arguments = {key: guess(value) for key, value in sets.items()}
    if family == "detection":
        return detection.workload(name, _maker(name, arguments, options.checkpointing), options)
    setting = _setting(models, name, family)
    size = (options.image_size,) * len(setting.size) if options.image_size else setting.size
    batch_size = options.batch_size or setting.batch_size
    classes = int(arguments.get("num_classes", {"segmentation": 21, "video": 400}.get(family, 1000)))
    built_for = {**_size_arguments(name, options.image_size), **arguments}
    return Recipe(
        model=_maker(name, built_for, options.checkpointing),
        batch=lambda dtype: setting.batch(batch_size, size, classes, dtype),
        loss=setting.loss,
        predict=setting.predict,
        description={"family": family, "batch_size": batch_size, "image_size": list(size), **arguments},
        **recipe_options(options),
    ).workload()


def _maker(name: str, arguments: dict[str, Any], checkpointing: bool) -> Callable[[], nn.Module]:
    models = import_torchvision().models
    if name in ("googlenet", "inception_v3"):
        arguments = {"init_weights": False, **arguments}  # scipy-like initial values take minutes, no memory
    if name in models.list_models(models.segmentation) or name in models.list_models(models.detection):
        arguments = {"weights_backbone": None, **arguments}

    def make() -> nn.Module:
        try:
            model: nn.Module = models.get_model(name, weights=None, **arguments)
        except (TypeError, ValueError) as error:
            raise UsageError(f"torchvision:{name} with {arguments}: {error}") from error
        model = model.to(torch.get_default_dtype())
        if checkpointing:
            checkpoint_blocks(model, f"torchvision:{name}")
        return model

    return make


def _setting(models: Any, name: str, family: str) -> _Setting:
    if family == "segmentation":
        size = (_SEGMENTATION_SIZE, _SEGMENTATION_SIZE)
        return _Setting(8, size, _segmentation_batch, _segmentation_loss, _on_pictures)
    if family == "optical_flow":
        return _Setting(2, _FLOW_SIZE, _flow_batch, _flow_loss, _on_picture_pairs)
    crop = _crop_size(models, name)
    if family == "video":
        return _Setting(8, (crop, crop), _video_batch, _classification_loss, _on_pictures)
    return _Setting(32, (crop, crop), _classification_batch, _classification_loss, _on_pictures)


def _crop_size(models: Any, name: str) -> int:
    """Return the smallest crop that any of the model's weights was trained with, else 224."""
    crops = []
    for weights in models.get_model_weights(name):
        crop = getattr(weights.transforms, "keywords", {}).get("crop_size")
        crops.append(crop[0] if isinstance(crop, (tuple, list)) else crop)
    return min((c for c in crops if c), default=224)


def _size_arguments(name: str, image_size: int | None) -> dict[str, Any]:
    """Return the constructor's argument for models that are built for one picture size."""
    if image_size is None:
        return {}
    if name.startswith("vit_"):
        return {"image_size": image_size}
    if name.startswith("maxvit"):
        return {"input_size": (image_size, image_size)}
    if name.startswith("mvit"):
        return {"spatial_size": (image_size, image_size)}
    return {}


# -- batches: a nest of tensors, the floating-point ones in `dtype` -----------------------------------


def _classification_batch(count: int, size: tuple[int, ...], classes: int, dtype: torch.dtype) -> Any:
    return torch.randn(count, 3, *size, dtype=dtype), torch.randint(0, classes, (count,))


def _video_batch(count: int, size: tuple[int, ...], classes: int, dtype: torch.dtype) -> Any:
    return torch.randn(count, 3, CLIP_FRAMES, *size, dtype=dtype), torch.randint(0, classes, (count,))


def _segmentation_batch(count: int, size: tuple[int, ...], classes: int, dtype: torch.dtype) -> Any:
    return torch.randn(count, 3, *size, dtype=dtype), torch.randint(0, classes, (count, *size))


def _flow_batch(count: int, size: tuple[int, ...], classes: int, dtype: torch.dtype) -> Any:
    pictures = torch.randn(count, 3, *size, dtype=dtype), torch.randn(count, 3, *size, dtype=dtype)
    return *pictures, torch.randn(count, 2, *size, dtype=dtype)


# -- losses and predictions ------------------------------------------------------------------------------


def _classification_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    pictures, labels = batch
    output = model(pictures)
    if isinstance(output, torch.Tensor):
        return cross_entropy(output, labels)
    weight = _AUXILIARY[type(output).__name__]
    main, *others = output
    loss = cross_entropy(main, labels)
    for other in others:
        if other is not None:
            loss = loss + weight * cross_entropy(other, labels)
    return loss


def _segmentation_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    pictures, labels = batch
    output = model(pictures)
    loss = cross_entropy(output["out"], labels)
    return loss + 0.5 * cross_entropy(output["aux"], labels) if "aux" in output else loss


def _flow_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    first, second, truth = batch
    flows = model(first, second)
    loss = torch.zeros((), dtype=truth.dtype, device=truth.device)
    for i, flow in enumerate(flows):
        loss = loss + _FLOW_GAMMA ** (len(flows) - i - 1) * (flow - truth).abs().mean()
    return loss


def _on_pictures(model: nn.Module, batch: Any) -> Any:
    return model(batch[0])


def _on_picture_pairs(model: nn.Module, batch: Any) -> Any:
    return model(batch[0], batch[1])
