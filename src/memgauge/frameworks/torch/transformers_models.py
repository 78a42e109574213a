"""`transformers:TYPE`: any architecture of transformers, in its default configuration or one from a file.

The model gets the head that people train it with (`_HEADS`, first match), and
its own loss; one that has none is trained on the mean square of its output.
Weights are random, nothing is fetched. In training the key-value cache is off,
as transformers' own Trainer has it; in inference it is as configured.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from memgauge.arguments import TargetOptions, convert
from memgauge.errors import UnsupportedError, UsageError, missing_extra, nearest
from memgauge.frameworks.torch.recipe import Recipe, recipe_options
from memgauge.frameworks.torch.torchvision_compat import import_torchvision
from memgauge.frameworks.torch.transformers_batch import entries_of
from memgauge.frameworks.torch.transformers_fields import Field, make_batch
from memgauge.frameworks.torch.transformers_placeholders import TOKENS, known_counts
from memgauge.workload import Workload

# Heads by what they are for, in the order of preference; a model has several.
_HEADS = (
    "ImageTextToText",
    "MultimodalLM",
    "Seq2SeqLM",
    "SpeechSeq2Seq",
    "MaskedLM",
    "CausalLM",
    "ImageClassification",
    "VideoClassification",
    "ObjectDetection",
    "SemanticSegmentation",
    "UniversalSegmentation",
    "InstanceSegmentation",
    "DepthEstimation",
    "CTC",
    "RNNT",
    "TDT",
    "AudioClassification",
    "VisualQuestionAnswering",
    "ZeroShotObjectDetection",
    "ZeroShotImageClassification",
    "TimeSeriesPrediction",
    "TextToSpectrogram",
    "TextToWaveform",
    "MaskGeneration",
    "SequenceClassification",
    "TokenClassification",
    "PreTraining",
)
_IMPLEMENTATION = "attn_implementation"


@dataclass(frozen=True, slots=True)
class Architecture:
    """A configuration and the class that it makes.

    Attributes:
        config: The configuration; copied before each use, since models write to theirs.
        model_class: The class of the model.
        head: What the class is for, one of `_HEADS`, or `""` for a model without a head.
    """

    config: Any
    model_class: Any
    head: str


def transformers_workload(name: str, options: TargetOptions, sets: Mapping[str, str]) -> Workload:
    """Return the workload of a model type or of a configuration file.

    Raises:
        UsageError: Type, file, attribute or size is unknown or does not fit the model.
        UnsupportedError: The type is a part of other models only, or cannot be checkpointed.
    """
    transformers = _import_transformers()
    sets = dict(sets)
    attention = sets.pop(_IMPLEMENTATION, None)
    found = architecture_of(transformers, _configuration(transformers, name, sets), name)
    entries, left_out = entries_of(
        found.model_class, found.config, found.head, options, f"transformers:{name}"
    )
    return Recipe(
        model=_maker(found, name, attention, options),
        batch=lambda dtype: make_batch(entries, dtype),
        loss=lambda model, batch: _loss(_forward(model, batch, name)),
        predict=lambda model, batch: _forward(model, batch, name),
        values=known_counts(entries, inspect.signature(found.model_class.forward).parameters),
        description={
            "model_class": found.model_class.__name__,
            "batch": {key: list(entry.shape) for key, entry in entries.items() if isinstance(entry, Field)},
            **({"left_out": left_out} if left_out else {}),
            **sets,
        },
        **recipe_options(options),
    ).workload()


def _import_transformers() -> Any:
    import_torchvision()  # parts of transformers import it
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name == "transformers":
            raise missing_extra("transformers", "models") from error
        raise
    return transformers


# -- the configuration -----------------------------------------------------------------------------------


def _configuration(transformers: Any, name: str, sets: Mapping[str, str]) -> Any:
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
    return config


def _complete(config: Any) -> None:
    """Fill in what a default configuration leaves open or at odds with itself."""
    if getattr(config, "prediction_length", 0) is None:
        config.prediction_length = 24  # a day by the hour
        config.context_length = getattr(config, "context_length", None) or config.prediction_length
    vision, text = getattr(config, "vision_config", None), config.get_text_config()
    if "vocab_size" in vars(config) and config.vocab_size is None:
        config.vocab_size = 32  # characters, for transcripts
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


# -- the model -------------------------------------------------------------------------------------------


def architecture_of(transformers: Any, config: Any, name: str) -> Architecture:
    """Return the class that a configuration is for: what its file names, else by the order of heads."""
    heads = _heads_of(transformers, config)
    for written in getattr(config, "architectures", None) or ():
        model_class = getattr(transformers, written, None)
        if model_class is not None:
            head = next((h for h, c in heads.items() if c is model_class), "")
            return Architecture(config, model_class, head)
    if heads:
        head = next(iter(heads))
        if heads[head].forward is nn.Module.forward:
            raise UnsupportedError(f"transformers:{name} has no forward: it can generate, but not be trained")
        return Architecture(config, heads[head], head)
    raise UnsupportedError(
        f"transformers:{name} is a part of other models and has no model class of its own; study the whole model"
    )


def _heads_of(transformers: Any, config: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for head in (*_HEADS, ""):
        auto = getattr(transformers, f"AutoModelFor{head}" if head else "AutoModel", None)
        mapping = getattr(auto, "_model_mapping", {})
        if type(config) in mapping:
            model_class = mapping[type(config)]
            found[head] = model_class[0] if isinstance(model_class, tuple) else model_class
    if getattr(config, "is_encoder_decoder", False):
        for head in ("MaskedLM", "CausalLM"):  # the whole, not its decoder alone
            if "Seq2SeqLM" in found or "SpeechSeq2Seq" in found:
                found.pop(head, None)
    return found


def _maker(
    found: Architecture, name: str, attention: str | None, options: TargetOptions
) -> Callable[[], nn.Module]:
    if options.checkpointing and not getattr(found.model_class, "supports_gradient_checkpointing", False):
        raise UnsupportedError(
            f"transformers:{name} has no checkpointing of its own; leave out --checkpointing"
        )

    def make() -> nn.Module:
        config = copy.deepcopy(found.config)
        if options.mode == "train":
            for part in parts_of(config):
                if hasattr(part, "use_cache"):
                    part.use_cache = False
        extra = {_IMPLEMENTATION: attention} if attention else {}
        try:
            model: nn.Module = found.model_class._from_config(
                config, dtype=torch.get_default_dtype(), **extra
            )
        except ImportError as error:
            first = str(error).strip().splitlines()[0]
            raise UnsupportedError(
                f"transformers:{name} needs a package that is not installed: {first}"
            ) from error
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise UnsupportedError(
                f"transformers:{name}: {found.model_class.__name__} cannot be made from this configuration "
                f"({type(error).__name__}: {error}); give the path of a complete config.json"
            ) from error
        if options.checkpointing:
            _checkpoint(model)
        return model

    return make


def _checkpoint(model: Any) -> None:
    # Renamed during transformers 5; the old name still works but warns.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()


def _forward(model: nn.Module, batch: Any, name: str) -> Any:
    try:
        return model(**batch)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise UnsupportedError(
            f"transformers:{name}: the batch that memgauge makes does not suit {type(model).__name__} "
            f"({type(error).__name__}: {error}); write model and batch in a function of your own"
        ) from error


def _loss(output: Any) -> torch.Tensor:
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss if loss.dim() == 0 else loss.mean()
    return _mean_square(output)


def _mean_square(output: Any) -> torch.Tensor:
    """Return the mean square of the first result that depends on parameters."""
    values = output.values() if isinstance(output, dict) else output
    for value in (values,) if isinstance(values, torch.Tensor) else values:
        if isinstance(value, torch.Tensor) and value.requires_grad:
            return value.float().pow(2).mean()
        if isinstance(value, (tuple, list)) and value and isinstance(value[-1], torch.Tensor):
            return value[-1].float().pow(2).mean()
    raise UnsupportedError(f"{type(output).__name__} holds nothing to go backward from; use --mode infer")
