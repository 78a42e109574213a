"""Pictures and sound in a batch for a model of transformers."""

from __future__ import annotations

import math
from typing import Any

from memgauge.frameworks.torch.transformers_config import parts_of
from memgauge.frameworks.torch.transformers_fields import Ask, Field

PICTURE = 224
SECONDS = 5
RATE = 16_000  # samples per second of most speech models
FRAMES = 16
_ONE_CHANNEL = {"dac", "pe_audio", "pe_audio_encoder", "pe_audio_video_encoder", "xcodec"}
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
    config = _part(
        asked.config, "vision_config", "vision_encoder_config", "thinker_config.vision_config", "encoder"
    )
    if asked.names & {"image_grid_thw", "grid_thw"}:
        return _patches(asked, config)
    if "flattened_patches" in asked.names:
        size = getattr(config, "patch_embed_hidden_size", 768) + 2  # each patch with its row and column
        count = 2048  # source: max_patches of Pix2StructImageProcessor
        return {
            "flattened_patches": Field((asked.batch_size, count, size)),
            "attention_mask": Field((asked.batch_size, count), fill=1),
        }
    if {"pixel_values", "target_sizes"} <= asked.names and "input_ids" not in asked.names:
        return _row_of_patches(asked, config)
    name = "pixel_values" if "pixel_values" in asked.names else "pixel_values_videos"
    optional = name not in asked.required and "input_ids" in asked.names  # text will do
    if name not in asked.names or (name == "pixel_values_videos" and optional):
        return {}
    height, width = _picture_size(asked, config)
    channels = int(getattr(config, "num_channels", None) or getattr(config, "in_channels", None) or 3)
    frames = getattr(config, "num_frames", None) or getattr(config, "frames_per_clip", None)
    films = asked.head == "VideoClassification" or name == "pixel_values_videos"
    shape = (int(frames or FRAMES),) if films or frames else ()
    if {"spatial_shapes", "pixel_attention_mask"} <= asked.names and hasattr(config, "num_patches"):
        return _flat_patches(asked, config)
    if asked.head == "KeypointMatching":
        shape = (2,)  # two pictures to compare
    if "aspect_ratio_ids" in asked.names:
        return _tiles(asked, (channels, height, width), int(config.max_num_tiles))
    if "pixel_attention_mask" in asked.names and "input_ids" in asked.names:
        shape = (1,)  # one picture for each sample
    return {name: Field((asked.batch_size, *shape, channels, height, width))}


def _tiles(asked: Ask, picture: tuple[int, int, int], tiles: int) -> dict[str, Field]:
    """Return one picture for each sample, cut into as many tiles as Llama 3.2 Vision allows."""
    count = asked.batch_size
    return {
        "pixel_values": Field((count, 1, tiles, *picture)),
        "aspect_ratio_ids": Field((count, 1), fill=1),
        "aspect_ratio_mask": Field((count, 1, tiles), fill=1),
        "cross_attention_mask": Field((count, asked.tokens, 1, tiles), fill=1),
    }


def _flat_patches(asked: Ask, config: Any) -> dict[str, Field]:
    """Return pictures as rows of patches, as SigLIP 2 takes them."""
    count, side = asked.batch_size, math.isqrt(config.num_patches)
    return {
        "pixel_values": Field((count, side * side, config.num_channels * config.patch_size**2)),
        "pixel_attention_mask": Field((count, side * side), fill=1),
        "spatial_shapes": Field((count, 2), rows=((side, side),) * count),
    }


def _row_of_patches(asked: Ask, config: Any) -> dict[str, Field]:
    """Return the patches of all pictures in one row, as MiniCPM-V's pictures are packed."""
    patch, channels = int(config.patch_size), int(getattr(config, "num_channels", 3))
    sides = tuple(length // patch for length in _picture_size(asked, config))
    patches = asked.batch_size * sides[0] * sides[1]
    return {
        "pixel_values": Field((1, channels, patch, patches * patch)),
        "target_sizes": Field((asked.batch_size, 2), rows=(sides,) * asked.batch_size),
    }


def _picture_size(asked: Ask, config: Any) -> tuple[int, int]:
    if asked.image_size is not None:
        return asked.image_size, asked.image_size
    places = [(part, key) for key in ("image_size", "crop_size") for part in parts_of(config)]
    size = next((found for part, key in places if (found := getattr(part, key, None))), None)
    size = size or _size_in_timm(asked.config) or PICTURE
    if isinstance(size, dict):
        size = (size.get("height", PICTURE), size.get("width", PICTURE))
    if isinstance(size, (list, tuple)):
        return int(size[0]), int(size[-1])
    return int(size), int(size)


def _size_in_timm(config: Any) -> int | None:
    """Return the size that a model of timm inside this one is made for."""
    for part in parts_of(config):
        if getattr(part, "model_type", "") == "timm_wrapper":
            import timm

            known = timm.get_pretrained_cfg(part.architecture)
            return int(known.input_size[-1]) if known is not None else None
    return None


def _patches(asked: Ask, config: Any) -> dict[str, Field]:
    """Return pictures cut into patches, all in one list, as the Qwen-VL family takes them."""
    patch = int(getattr(config, "patch_size", 14))
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
        channels = getattr(config, "audio_channels", None) or (
            1 if config.model_type in _ONE_CHANNEL else None
        )
        return {"input_values": Field((shape[0], channels, shape[1]) if channels else shape)}
    if "input_features" in asked.names and (
        not asked.names & {"pixel_values"} or "input_features" in asked.required
    ):
        return _spectrogram(asked, config)
    return {}


def _spectrogram(asked: Ask, config: Any) -> dict[str, Field]:
    count = asked.batch_size
    bins = next((int(v) for k in _BINS if isinstance(v := getattr(config, k, None), int)), 80)
    if hasattr(config, "spec_size"):  # CLAP: one picture of the sound
        return {"input_features": Field((count, 1, 1001, bins)), "is_longer": Field((count, 1), fill=False)}
    positions = getattr(config, "max_source_positions", None)
    bins_first = (
        bool(positions) and hasattr(config, "num_mel_bins") and not hasattr(config, "input_feat_per_channel")
    )
    frames = 2 * int(positions) if positions and bins_first else SECONDS * 100
    beside = (
        {} if bins_first or "input_ids" in asked.names else {"attention_mask": Field((count, frames), fill=1)}
    )
    return {
        **beside,
        "input_features": Field((count, bins, frames) if bins_first else (count, frames, bins)),
        "input_features_mask": Field((count, frames), fill=True),
        "feature_attention_mask": Field((count, frames), fill=1),
    }


def _part(config: Any, *paths: str) -> Any:
    for path in paths:
        part = config
        for key in path.split("."):
            part = getattr(part, key, None)
        if hasattr(part, "to_dict"):
            return part
    return config
