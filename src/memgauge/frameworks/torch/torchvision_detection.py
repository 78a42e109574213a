"""`torchvision:NAME` for detection: pictures in a list, boxes (masks, keypoints) as targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memgauge.arguments import TargetOptions
from memgauge.frameworks.torch.recipe import Recipe, recipe_options
from memgauge.workload import Workload

BATCH_SIZE = 2
PICTURE_SIZE = (480, 640)  # a usual COCO picture; most models enlarge it to 800 x 1067
BOXES_PER_PICTURE = 8
KEYPOINTS = 17
_FIXED_SIZE = {"ssd300_vgg16": 300, "ssdlite320_mobilenet_v3_large": 320}


def workload(name: str, make: Callable[[], nn.Module], options: TargetOptions) -> Workload:
    """Return the workload of a detection model that `make` builds."""
    fixed = _FIXED_SIZE.get(name)
    default = (fixed, fixed) if fixed else PICTURE_SIZE
    size = (options.image_size, options.image_size) if options.image_size else default
    count = options.batch_size or BATCH_SIZE

    def batch(dtype: torch.dtype) -> Any:
        pictures = [torch.rand(3, *size, dtype=dtype) for _ in range(count)]
        if options.mode == "infer":
            return (pictures,)
        return pictures, [_target(name, size) for _ in range(count)]

    return Recipe(
        model=make,
        batch=batch,
        loss=lambda model, batch: sum(model(*batch).values()),
        predict=lambda model, batch: model(*batch),
        description={
            "family": "detection",
            "batch_size": count,
            "image_size": list(size),
            "boxes_per_image": BOXES_PER_PICTURE,
        },
        **recipe_options(options),
    ).workload()


def _target(name: str, size: tuple[int, int]) -> dict[str, torch.Tensor]:
    """Return the annotations of one picture: boxes of a quarter of its width, side by side."""
    height, width = size
    left = torch.arange(BOXES_PER_PICTURE) * (0.75 * width / BOXES_PER_PICTURE)
    top = torch.full_like(left, 0.25 * height)
    target = {
        "boxes": torch.stack([left, top, left + 0.25 * width, top + 0.25 * height], dim=1),
        "labels": torch.ones(BOXES_PER_PICTURE, dtype=torch.int64),
    }
    if name.startswith("maskrcnn"):
        target["masks"] = torch.ones(BOXES_PER_PICTURE, height, width, dtype=torch.uint8)
    if name.startswith("keypointrcnn"):
        middle = torch.stack([left + 0.125 * width, top + 0.125 * height, torch.ones_like(left)], dim=1)
        target["keypoints"] = middle[:, None].repeat(1, KEYPOINTS, 1)
    return target
