"""The configuration of a model of transformers: a type's default or a file's, with attributes set."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memgauge.arguments import convert
from memgauge.errors import UsageError, nearest

# The method of transformers' models that makes the vectors, and where configurations keep the token.
TOKENS = {
    "get_image_features": ("image_token_id", "image_token_index", "media_placeholder_token_id"),
    "get_audio_features": ("audio_token_id", "audio_token_index"),
}


def configuration(name: str, sets: Mapping[str, str], image_size: int | None = None) -> Any:
    """Return the configuration of a model type, or that of a `config.json` or its directory.

    Args:
        name: The type or path.
        sets: Attributes to change, as text; `text_config.hidden_size` reaches into parts.
        image_size: Pictures that the model is built for; as configured if None.

    Raises:
        UsageError: There is no such type, file or attribute, or the configuration is not valid.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    path = Path(name).expanduser()
    if path.exists() or name.endswith(".json"):
        written = _read(path, name)
        kind = str(written.get("model_type", ""))
        if kind not in CONFIG_MAPPING:
            raise UsageError(
                f"{name}: transformers has no model type {kind!r}{nearest(kind, CONFIG_MAPPING)}"
            )
    else:
        written, kind = {}, name
        if kind not in CONFIG_MAPPING:
            raise UsageError(f"transformers has no model type {name!r}{nearest(name, CONFIG_MAPPING)}")
    config_class = CONFIG_MAPPING[kind]
    try:
        config = config_class.from_dict(copy.deepcopy(written))
        if sets:
            config = config_class.from_dict(_with_sets(written, config, sets, name))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UsageError(f"transformers:{name}: the configuration is not valid: {error!r}") from error
    if not written:
        _complete(config)
    for part in parts_of(config):
        if getattr(part, "use_pretrained_backbone", None):
            part.use_pretrained_backbone = False  # nothing is fetched
        configured = getattr(part, "image_size", None)
        if image_size is not None and configured is not None:
            part.image_size = image_size if isinstance(configured, int) else [image_size, image_size]
    return config


def _complete(config: Any) -> None:
    """Fill in what a default configuration leaves open or at odds with itself."""
    if getattr(config, "prediction_length", 0) is None:
        config.prediction_length = 24  # a day by the hour
        config.context_length = getattr(config, "context_length", None) or config.prediction_length
    for part in parts_of(config):
        _complete_heads(part)
    vision, text = getattr(config, "vision_config", None), text_of(config)
    if "vocab_size" in vars(config) and config.vocab_size is None:
        config.vocab_size = 32  # characters of transcripts, amino acids
        if getattr(config, "pad_token_id", 0) is None:
            config.pad_token_id = 0
    for key in itertools.chain.from_iterable(TOKENS.values()):
        last = int(getattr(text, "vocab_size", None) or 1) - 1
        token = getattr(config, key, 0)
        if token is None or token > last > 0:
            setattr(config, key, last)
    if vision is None or not hasattr(text, "hidden_size"):
        return
    if hasattr(vision, "out_hidden_size"):
        vision.out_hidden_size = text.hidden_size
    elif hasattr(vision, "embed_dim") and hasattr(vision, "spatial_merge_size"):
        vision.hidden_size = text.hidden_size  # Qwen2-VL: what the vision tower gives to the text model


def _complete_heads(part: Any) -> None:
    """Say what most models take for granted: a key and value for each head, all of one width."""
    written = vars(part)
    heads, width = written.get("num_attention_heads"), written.get("hidden_size")
    if not isinstance(heads, int) or not isinstance(width, int):
        return
    if written.get("num_key_value_heads", 0) is None:
        part.num_key_value_heads = heads
    if written.get("head_dim", 0) is None:
        part.head_dim = width // heads


def text_of(config: Any) -> Any:
    """Return the configuration of the part that reads text, or the whole if there is none."""
    for key in ("text_config", "text_encoder", "text_encoder_config", "thinker_config"):
        part = getattr(config, key, None)
        if hasattr(part, "vocab_size") or hasattr(part, "text_config"):
            return getattr(part, "text_config", part)
    try:
        return config.get_text_config()
    except ValueError:  # several, of equal rank
        return config


def _read(path: Path, name: str) -> dict[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"{name}: there is no such file; a configuration is a config.json or its directory")
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UsageError(f"{file} is not JSON: {error}") from error
    if not isinstance(written, dict):
        raise UsageError(f"{file} holds no configuration but a {type(written).__name__}")
    return written


def _with_sets(written: dict[str, Any], config: Any, sets: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return the written configuration with attributes set; `text_config.hidden_size` reaches into parts."""
    changed = copy.deepcopy(written)
    for key, text in sets.items():
        *parents, last = key.split(".")
        place, part = changed, config
        for parent in parents:
            place = place.setdefault(parent, {})
            part = getattr(part, parent, None)
        known = part.to_dict() if part is not None else {}
        if not hasattr(part, last):
            where = f"transformers:{name}" + "".join(f".{p}" for p in parents)
            raise UsageError(f"{where} has no attribute {last!r}{nearest(last, known)}")
        place[last] = convert(key, text, None, getattr(part, last))
        if last == "num_hidden_layers":
            place.pop("layer_types", None)  # one entry per layer; derived again
    return changed


def parts_of(config: Any) -> Iterator[Any]:
    """Yield a configuration and those inside it."""
    yield config
    for key in getattr(config, "sub_configs", {}):
        part = getattr(config, key, None)
        if part is not None and hasattr(part, "to_dict"):
            yield from parts_of(part)
