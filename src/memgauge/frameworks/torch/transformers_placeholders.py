"""How many tokens stand for a picture or for sound in the text that a model reads.

A processor would know; without one the model is asked: its forward is traced
once on text without placeholders, as far as the call that turns a picture or
sound into vectors. As many tokens are needed as there are vectors.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from memgauge.frameworks.torch.trace import trace
from memgauge.frameworks.torch.transformers_config import TOKENS
from memgauge.frameworks.torch.transformers_fields import Entry, make_batch
from memgauge.workload import Workload


@dataclass(frozen=True, slots=True)
class Placeholders:
    """What has to stand in the text, for each sample.

    Attributes:
        refusal: Why the model does not take these pictures or this sound at all; `""` if it does.
        token: The token; of no meaning if `count` is 0.
        count: How many of them.
    """

    refusal: str = ""
    token: int = 0
    count: int = 0


class _Counted(Exception):
    """Enough is known; the rest of forward need not run."""


def known_counts(entries: Mapping[str, Entry], names: Collection[str]) -> dict[str, float]:
    """Return what to declare as `Workload.values`: of pictures under a mask, nothing is only padding."""
    masked = "pixel_attention_mask" in names and "pixel_values" in entries
    return {"nonzero": 2**40} if masked else {}  # as many as there are


def placeholders(
    model_class: Any, config: Any, entries: Mapping[str, Entry], batch_size: int
) -> Placeholders:
    """Return the placeholders that the batch `entries` needs beside its text."""
    seen: list[tuple[str, int]] = []

    def step(model: Any, batch: Any) -> None:
        for module in model.modules():
            for method in TOKENS:
                if hasattr(type(module), method):
                    setattr(module, method, _counting(getattr(module, method), method, seen))
        with torch.no_grad():
            model(**batch)

    workload = Workload(
        build=lambda: model_class._from_config(copy.deepcopy(config)).eval(),
        batch=lambda: make_batch(entries, torch.get_default_dtype()),
        step=step,
        values=known_counts(entries, inspect.signature(model_class.forward).parameters),
        mode="infer",
    )
    try:
        trace(workload, steps=1)
    except Exception as error:  # whatever it is: the model cannot take them in this configuration
        if not seen:
            return Placeholders(str(error).strip().splitlines()[-1].strip() or type(error).__name__)
    if not seen:
        return Placeholders()
    method, count = seen[0]
    token = _token(config, method)
    if token is None:  # two encoders side by side, as in CLIP
        return Placeholders()
    return Placeholders(token=token, count=count // batch_size)


def _counting(original: Callable[..., Any], method: str, seen: list[tuple[str, int]]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        vectors = getattr(found, "pooler_output", found)
        tensors = vectors if isinstance(vectors, (list, tuple)) else [vectors]
        seen.append((method, sum(t.numel() // t.shape[-1] for t in tensors if isinstance(t, torch.Tensor))))
        raise _Counted

    return counted


def _token(config: Any, method: str) -> int | None:
    for place in (config, getattr(config, "thinker_config", None)):
        for key in TOKENS[method]:
            token = getattr(place, key, None)
            if isinstance(token, int):
                return token
    return None
