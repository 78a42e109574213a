"""`transformers:TYPE`: any architecture of transformers, in its default configuration or one from a file.

The model gets the head that people train it with (`_HEADS`, first match), and
its own loss; one that has none is trained on the mean square of its output.
Weights are random, nothing is fetched. In training the key-value cache is off,
as transformers' own Trainer has it; in inference it is as configured.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from memgauge.arguments import TargetOptions
from memgauge.errors import UnsupportedError, missing_extra
from memgauge.frameworks.torch.recipe import Recipe, recipe_options
from memgauge.frameworks.torch.torchvision_compat import import_torchvision
from memgauge.frameworks.torch.transformers_batch import entries_of
from memgauge.frameworks.torch.transformers_config import configuration, parts_of
from memgauge.frameworks.torch.transformers_fields import Field, make_batch
from memgauge.frameworks.torch.transformers_placeholders import known_counts
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
    "KeypointMatching",
    "SequenceClassification",
    "TokenClassification",
    "PreTraining",
)
_WHOLE = {"Seq2SeqLM", "SpeechSeq2Seq", "TextToWaveform"}  # with encoder and decoder
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
    found = architecture_of(transformers, configuration(name, sets, options.image_size), name)
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
        f"transformers:{name} is a part of other models, without a model class; study the whole model"
    )


def _heads_of(transformers: Any, config: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for head in (*_HEADS, ""):
        auto = getattr(transformers, f"AutoModelFor{head}" if head else "AutoModel", None)
        mapping = getattr(auto, "_model_mapping", {})
        if type(config) in mapping:
            model_class = mapping[type(config)]
            found[head] = model_class[0] if isinstance(model_class, tuple) else model_class
    if getattr(config, "is_encoder_decoder", False) and found.keys() & _WHOLE:
        for head in ("MaskedLM", "CausalLM"):  # of the decoder alone
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
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, NotImplementedError) as error:
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
