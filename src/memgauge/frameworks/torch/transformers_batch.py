"""A batch for any model of transformers, read off its configuration and the arguments of its forward.

The names of these arguments mean the same throughout transformers, so what is
needed follows from them: `input_ids`, `pixel_values`, `input_features`, …

Sizes, unless the options say otherwise: batch 32 for models that only see
pictures, else 8; 128 tokens of text, fewer if the model has fewer positions;
pictures as configured, else 224 x 224; five seconds of sound. Tokens that
stand for a picture or for sound come on top of those of the text.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from memgauge.arguments import TargetOptions
from memgauge.frameworks.torch.transformers_fields import Ask, Entry, Field, ask
from memgauge.frameworks.torch.transformers_placeholders import placeholders
from memgauge.frameworks.torch.transformers_senses import hear, see

OBJECTS_PER_PICTURE = 8
TRANSCRIPT = 32  # characters or tokens spoken in five seconds


def entries_of(
    model_class: Any, config: Any, head: str, options: TargetOptions, name: str
) -> tuple[dict[str, Entry], dict[str, str]]:
    """Return the entries of a batch for one model, and what was left out and why.

    Raises:
        UsageError: A size is given that the model does not have.
    """
    parameters = inspect.signature(model_class.forward).parameters
    names: Mapping[str, inspect.Parameter] = {n: p for n, p in parameters.items() if n != "self"}
    asked = ask(config, head, options, names, name)
    senses = {k: f for k, f in {**see(asked), **hear(asked)}.items() if k in names}
    left_out: dict[str, str] = {}
    entries: dict[str, Entry] = {**_text(asked, model_class, senses, left_out), **senses, **_series(asked)}
    if asked.training:
        entries.update(_labels(asked, entries))
    return _known(asked, entries), left_out


def _text(
    asked: Ask, model_class: Any, senses: dict[str, Field], left_out: dict[str, str]
) -> dict[str, Field]:
    hears_instead = asked.head in ("CTC", "SpeechSeq2Seq", "AudioClassification") and bool(senses)
    if "input_ids" not in asked.names or (hears_instead and "input_ids" not in asked.required):
        return _decoder(asked)
    ids = asked.ids()
    if any(name not in asked.required for name in senses):
        without: dict[str, Entry] = {**_beside(asked, ids), **senses}
        needed = placeholders(model_class, asked.config, _known(asked, without), asked.batch_size)
        if needed.refusal:
            for name in [n for n in senses if n not in asked.required]:
                del senses[name]  # text only
                left_out[name] = needed.refusal
        if needed.count:
            longer = (asked.batch_size, asked.tokens + needed.count)
            ids = dataclasses.replace(ids, shape=longer, placeholders=needed.count, placeholder=needed.token)
    return _beside(asked, ids)


def _beside(asked: Ask, ids: Field) -> dict[str, Field]:
    """Return tokens and what goes with each of them."""
    return {
        "input_ids": ids,
        "attention_mask": Field(ids.shape, fill=1),
        "mm_token_type_ids": Field(ids.shape, below=1, placeholders=ids.placeholders, placeholder=1),
        "bbox": Field((*ids.shape, 4), fill=1),
        "qformer_input_ids": asked.ids(part=getattr(asked.config, "qformer_config", None)),
        **_decoder(asked),
    }


def _known(asked: Ask, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    return {key: entry for key, entry in entries.items() if key in asked.names}


def _decoder(asked: Ask) -> dict[str, Field]:
    if "decoder_input_ids" not in asked.names:
        return {}
    part = getattr(asked.config, "decoder", None)
    length = TRANSCRIPT if "input_ids" not in asked.names else None
    return {"decoder_input_ids": asked.ids(length, part if hasattr(part, "vocab_size") else None)}


def _series(asked: Ask) -> dict[str, Field]:
    """Return the entries of models that continue series of numbers."""
    if "past_values" not in asked.names:
        return {}
    config = asked.config
    count = asked.batch_size
    if "past_time_features" not in asked.names:
        length = getattr(config, "context_length", 512)
        channels = getattr(config, "num_input_channels", None)
        shape = (count, length, channels) if channels else (count, length)
        return {"past_values": Field(shape)}
    past = config.context_length + max(config.lags_sequence)
    features = config.num_time_features
    future = config.prediction_length
    found = {
        "past_values": Field((count, past)),
        "past_time_features": Field((count, past, features)),
        "past_observed_mask": Field((count, past), fill=1.0),
        "future_time_features": Field((count, future, features)),
    }
    return {**found, "future_values": Field((count, future))} if asked.training else found


def _labels(asked: Ask, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return what the model's own loss wants to know."""
    if "return_loss" in asked.names:
        return {"return_loss": True}
    if "labels" not in asked.names:
        return {}
    count = asked.batch_size
    classes = max(1, int(getattr(asked.config, "num_labels", 2) or 2))
    head = asked.head
    if head in ("CTC", "SpeechSeq2Seq", "RNNT", "TDT"):
        return {"labels": asked.ids(TRANSCRIPT)}
    if head in (
        "ImageClassification",
        "VideoClassification",
        "AudioClassification",
        "SequenceClassification",
    ):
        return {"labels": Field((count,), below=classes)}
    pixels = entries.get("pixel_values")
    if isinstance(pixels, Field) and head == "SemanticSegmentation":
        return {"labels": Field((count, *pixels.shape[-2:]), below=classes)}
    if head == "ObjectDetection":
        boxes = {
            "class_labels": Field((OBJECTS_PER_PICTURE,), below=classes),
            "boxes": Field((OBJECTS_PER_PICTURE, 4), fill=0.25),
        }
        return {"labels": [boxes for _ in range(count)]}
    ids = entries.get("decoder_input_ids") or entries.get("input_ids")
    if isinstance(ids, Field) and head not in (
        "",
        "PreTraining",
        "ZeroShotObjectDetection",
        "DepthEstimation",
    ):
        return {"labels": dataclasses.replace(ids, placeholders=0)}
    return {}
