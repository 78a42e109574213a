"""How many boxes torchvision's detectors sample, match and find, line by line of their own code.

How many there are depends on weights and pictures, so a trace has to assume it, and nobody who calls a
detector could declare it. Assumed is what the detector's own settings let through; a real run has fewer boxes
in its first steps.

Source: torchvision 0.28, models/detection/*.py and ops/poolers.py; each line below is one that asks.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NamedTuple

from memgauge.usercode import is_machinery

ASSUMPTION = (
    "torchvision's detectors are taken to sample and find as many boxes as their settings allow; "
    "in its first steps a run has fewer"
)
_PACKAGE = f"{os.sep}torchvision{os.sep}"  # in a file's path; nobody's own folder that is named after it
# Side of a box whose size nobody knows, in pixels: what `MultiScaleRoIAlign` takes for the canonical one.
_SIDE = 224


class _Line(NamedTuple):
    """A line that asks: its file, what stands in it, and the answer.

    The answer is made of the local variables there and of `n`, the number of elements that are asked about.
    """

    file: str
    text: str
    answer: Callable[[Mapping[str, Any], int], int]


def _samples(sampler: Any) -> int:
    return int(sampler.batch_size_per_image)


def _positives(sampler: Any) -> int:
    return int(sampler.batch_size_per_image * sampler.positive_fraction)


def _matched(here: Mapping[str, Any], elements: int) -> int:
    """One anchor for each box of the picture, or of all pictures."""
    targets = [here["targets_per_image"]] if "targets_per_image" in here else here["targets"]
    return sum(len(target["boxes"]) for target in targets)


def _even(here: Mapping[str, Any], elements: int) -> int:
    """Boxes are spread evenly over the levels of a pyramid; together they are all."""
    levels = len(here["x_filtered"])
    return elements // levels + int(here["level"] < elements % levels)


_LINES = (
    # which samples the losses see
    _Line("_utils.py", "positive = ", lambda here, n: _positives(here["self"])),
    _Line("_utils.py", "negative = ", lambda here, n: n),
    # one anchor matches each box best
    _Line("_utils.py", "highest_quality_foreach_gt[:", lambda here, n: len(here["match_quality_matrix"])),
    _Line("retinanet.py", "foreground_idxs_per_image", _matched),
    _Line("retinanet.py", "gt_classes_target[\n", _matched),
    _Line("retinanet.py", "[valid_idxs_per_image]", lambda here, n: n),
    _Line("ssd.py", "foreground_idxs", _matched),
    # within 1.5 strides of a box's centre are three by three points
    _Line("fcos.py", "foregroud_mask", lambda here, n: 9 * sum(len(t["boxes"]) for t in here["targets"])),
    _Line(
        "rpn.py",
        "sampled_pos_inds = torch.where",
        lambda here, n: len(here["labels"]) * _positives(here["self"].fg_bg_sampler),
    ),
    _Line(
        "rpn.py",
        "sampled_neg_inds = torch.where",
        lambda here, n: (
            len(here["labels"])
            * (_samples(here["self"].fg_bg_sampler) - _positives(here["self"].fg_bg_sampler))
        ),
    ),
    _Line(
        "roi_heads.py", "pos_inds_img | neg_inds_img", lambda here, n: _samples(here["self"].fg_bg_sampler)
    ),
    _Line("roi_heads.py", "labels[img_id] > 0", lambda here, n: _positives(here["self"].fg_bg_sampler)),
    # `fastrcnn_loss` does not see the sampler, whose positive fraction is a quarter by default
    _Line("roi_heads.py", "torch.where(labels > 0)", lambda here, n: n // 4),
    _Line("roi_heads.py", "torch.where(valid)", lambda here, n: n),
    _Line("poolers.py", "torch.where(levels == level)", _even),
    _Line("ops/_utils.py", "[mask]", lambda here, n: n),
    # which boxes are found
    _Line("rpn.py", "remove_small_boxes", lambda here, n: n),
    _Line("rpn.py", "scores >= self.score_thresh", lambda here, n: n),
    _Line("rpn.py", "box_ops.batched_nms", lambda here, n: here["self"].post_nms_top_n()),
    _Line("retinanet.py", "keep_idxs", lambda here, n: here["self"].topk_candidates),
    _Line("fcos.py", "keep_idxs", lambda here, n: here["self"].topk_candidates),
    _Line("ssd.py", "keep_idxs", lambda here, n: here["self"].topk_candidates),
    _Line("roi_heads.py", "scores > self.score_thresh", lambda here, n: here["self"].detections_per_img),
    _Line("roi_heads.py", "remove_small_boxes", lambda here, n: n),
    _Line("", "box_ops.batched_nms", lambda here, n: here["self"].detections_per_img),
    _Line("boxes.py", "in torch.unique(idxs)", lambda here, n: 1),  # all are of one class
    _Line("boxes.py", "curr_indices = ", lambda here, n: n),
    # how large they are, where masks and keypoints are laid into the picture
    _Line("roi_heads.py", "widths_ceil[i].item()", lambda here, n: _SIDE),
    _Line("roi_heads.py", "heights_ceil[i].item()", lambda here, n: _SIDE),
    _Line("roi_heads.py", "w = int(box[2]", lambda here, n: _SIDE),
    _Line("roi_heads.py", "h = int(box[3]", lambda here, n: _SIDE),
    _Line("roi_heads.py", "im_mask[y_0:y_1, x_0:x_1]", lambda here, n: 0),
)


def answer_of_detector(elements: int) -> int | None:
    """Return what the line of torchvision's detectors that is asking is told, None if none of them asks."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if _PACKAGE in file:
            text = linecache.getline(file, frame.f_lineno)
            for line in _LINES:
                if file.endswith(line.file) and line.text in text:
                    return min(int(line.answer(frame.f_locals, elements)), elements)
        elif not is_machinery(file):
            return None
        frame = frame.f_back
    return None
