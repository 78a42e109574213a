"""Pictures and sound in a batch for a model of transformers, and the tokens that stand for them."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch

from memgauge.frameworks.torch.trace import trace
from memgauge.frameworks.torch.transformers_fields import Ask, Field, make_batch
from memgauge.workload import Workload

PICTURE = 224
SECONDS = 5
RATE = 16_000  # samples per second of most speech models
FRAMES = 16
_PICTURE_TOKENS = ("image_token_id", "image_token_index", "media_placeholder_token_id")
_SOUND_TOKENS = ("audio_token_id", "audio_token_index")
_BINS = (  # where configurations say how many numbers describe one frame of sound
    "num_mel_bins",
    "input_feat_per_channel",
    "feature_projection_input_dim",
    "feature_size",
    "input_feat_size",
    "input_dim",
)


# -- pictures ------------------------------------------------------------------------------------------


def see(asked: Ask) -> dict[str, Field]:
    """Return pictures or films, as far as the model takes them."""
    config = _part(asked.config, "vision_config", "vision_encoder_config", "thinker_config.vision_config", "encoder")
    if asked.names & {"image_grid_thw", "grid_thw"}:
        return _patches(asked, config)
    if "flattened_patches" in asked.names:
        size = getattr(config, "patch_embed_hidden_size", 768)
        count = 2048  # source: max_patches of Pix2StructImageProcessor
        return {"flattened_patches": Field((asked.batch_size, count, size)), "attention_mask": Field((asked.batch_size, count), fill=1)}
    name = "pixel_values" if "pixel_values" in asked.names else "pixel_values_videos"
    if name not in asked.names or (name == "pixel_values_videos" and name not in asked.required):
        return {}
    height, width = _picture_size(asked, config)
    channels = int(getattr(config, "num_channels", None) or getattr(config, "in_channels", None) or 3)
    frames = getattr(config, "num_frames", None) or getattr(config, "frames_per_clip", None)
    films = asked.head == "VideoClassification" or name == "pixel_values_videos"
    shape = (int(frames or FRAMES),) if films or frames else ()
    return {name: Field((asked.batch_size, *shape, channels, height, width))}


def _picture_size(asked: Ask, config: Any) -> tuple[int, int]:
    if asked.image_size is not None:
        return asked.image_size, asked.image_size
    size = getattr(config, "image_size", None) or getattr(config, "crop_size", None) or PICTURE
    if isinstance(size, dict):
        size = (size.get("height", PICTURE), size.get("width", PICTURE))
    if isinstance(size, (list, tuple)):
        return int(size[0]), int(size[-1])
    return int(size), int(size)


def _patches(asked: Ask, config: Any) -> dict[str, Field]:
    """Return pictures cut into patches, all in one list, as the Qwen-VL family takes them."""
    patch = int(config.patch_size)
    merge = int(getattr(config, "spatial_merge_size", 2))
    depth = int(getattr(config, "temporal_patch_size", 1))
    channels = int(getattr(config, "in_channels", None) or getattr(config, "in_chans", None) or 3)
    size = asked.image_size or PICTURE
    side = max(merge, math.ceil(size / (patch * merge)) * merge)
    rows = tuple((1, side, side) for _ in range(asked.batch_size))
    cut = Field((asked.batch_size * side * side, channels * depth * patch * patch))
    grid = Field((asked.batch_size, 3), rows=rows)
    pictures = "hidden_states" if "hidden_states" in asked.required else "pixel_values"
    return {pictures: cut, "grid_thw" if "grid_thw" in asked.names else "image_grid_thw": grid}


# -- sound ---------------------------------------------------------------------------------------------


def hear(asked: Ask) -> dict[str, Field]:
    """Return sound, as far as the model takes it: a wave, or a spectrogram."""
    config = _part(asked.config, "audio_config", "audio_encoder_config", "encoder_config", "encoder")
    if "input_values" in asked.names:
        bins = getattr(config, "num_mel_bins", None)
        if bins and hasattr(config, "max_length") and not hasattr(config, "conv_dim"):
            return {"input_values": Field((asked.batch_size, config.max_length, bins))}
        shape = (asked.batch_size, SECONDS * RATE)
        channels = getattr(config, "audio_channels", None)
        return {"input_values": Field((shape[0], channels, shape[1]) if channels else shape)}
    if "input_features" in asked.names and (not asked.names & {"pixel_values"} or "input_features" in asked.required):
        return _spectrogram(asked, config)
    return {}


def _spectrogram(asked: Ask, config: Any) -> dict[str, Field]:
    count = asked.batch_size
    bins = next((int(v) for k in _BINS if isinstance(v := getattr(config, k, None), int)), 80)
    if hasattr(config, "spec_size"):  # CLAP: one picture of the sound
        return {"input_features": Field((count, 1, 1001, bins)), "is_longer": Field((count, 1), fill=False)}
    positions = getattr(config, "max_source_positions", None)
    frames = 2 * positions if positions else SECONDS * 100
    bins_first = bool(positions) and not hasattr(config, "input_feat_per_channel")
    return {
        "input_features": Field((count, bins, frames) if bins_first else (count, frames, bins)),
        "input_features_mask": Field((count, frames), fill=True),
        "feature_attention_mask": Field((count, frames), fill=1),
    }


# -- tokens that stand for them ---------------------------------------------------------------------------


def placeholders(asked: Ask, model_class: Any, senses: Mapping[str, Field]) -> tuple[int, int]:
    """Return the token that stands for a piece of picture or sound, and how many each sample has."""
    if not senses:
        return 0, 0
    for keys, method in ((_PICTURE_TOKENS, "get_image_features"), (_SOUND_TOKENS, "get_audio_features")):
        token = next((t for k in keys if isinstance(t := _anywhere(asked.config, k), int)), None)
        if token is None or not hasattr(model_class, method):
            continue
        if "image_grid_thw" in senses:
            config = _part(asked.config, "vision_config", "thinker_config.vision_config")
            _, height, width = senses["image_grid_thw"].rows[0]  # type: ignore[index]
            return token, height * width // int(getattr(config, "spatial_merge_size", 2)) ** 2
        count = _count_features(asked, model_class, method, senses)
        if count:
            return token, count
    return 0, 0


def _count_features(asked: Ask, model_class: Any, method: str, senses: Mapping[str, Field]) -> int:
    """Return how many vectors the model makes of one sample, by making them on paper; 0 if it cannot."""
    takes = inspect.signature(getattr(model_class, method)).parameters
    given = {k: f for k, f in senses.items() if k in takes}
    counts: list[int] = []

    def step(model: Any, batch: Any) -> None:
        found = getattr(model, method)(**batch)
        found = getattr(found, "pooler_output", found)
        tensors = found if isinstance(found, (list, tuple)) else [found]
        counts.append(sum(t.numel() // t.shape[-1] for t in tensors if isinstance(t, torch.Tensor)))

    workload = Workload(
        build=lambda: model_class._from_config(copy.deepcopy(asked.config)),
        batch=lambda: make_batch(given, torch.float32),
        step=torch.no_grad()(step),
        mode="infer",
    )
    try:
        trace(workload, steps=1)
    except Exception:  # whatever it is, the model cannot see in this configuration
        return 0
    return counts[0] // asked.batch_size


def _part(config: Any, *paths: str) -> Any:
    for path in paths:
        part = config
        for key in path.split("."):
            part = getattr(part, key, None)
        if hasattr(part, "to_dict"):
            return part
    return config


def _anywhere(config: Any, key: str) -> Any:
    for place in (config, getattr(config, "thinker_config", None)):
        if getattr(place, key, None) is not None:
            return getattr(place, key)
    return None
