"""The entries of a batch for a model of transformers: what each looks like, and making them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from memgauge.arguments import TargetOptions
from memgauge.errors import UsageError
from memgauge.frameworks.torch.transformers_config import text_of

TEXT_BATCH, PICTURE_BATCH = 8, 32
SEQUENCE = 128
_FULL_LENGTH = {"perceiver", "reformer"}  # train on as many tokens as they have positions, no fewer


@dataclass(frozen=True, slots=True)
class Field:
    """One entry of a batch.

    Attributes:
        shape: Its shape.
        below: Whole numbers from `start` up to this one; None for floating point.
        start: The smallest whole number.
        fill: The same value everywhere instead.
        rows: These rows, repeated for each sample, instead.
        placeholders: How many at the start of each row are `placeholder` instead.
        placeholder: The token that stands for a piece of a picture or of sound.
    """

    shape: tuple[int, ...]
    below: int | None = None
    start: int = 0
    fill: float | bool | None = None
    rows: tuple[Any, ...] | None = None
    placeholders: int = 0
    placeholder: int = 0

    def make(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the tensor; floating point is `dtype`."""
        if self.rows is not None:
            return torch.tensor(self.rows)
        if self.fill is not None:
            return torch.full(self.shape, self.fill, dtype=dtype if isinstance(self.fill, float) else None)
        if self.below is None:
            return torch.randn(self.shape, dtype=dtype)
        made = torch.randint(self.start, self.below, self.shape)
        if self.placeholders:
            made[:, : self.placeholders] = self.placeholder
        return made


Entry = (
    Field | bool | list[dict[str, Field]]
)  # a flag of forward; a list of annotations, one for each picture


def make_batch(entries: Mapping[str, Entry], dtype: torch.dtype) -> dict[str, Any]:
    """Return the batch: keyword arguments for the model's forward."""

    def make(entry: Entry) -> Any:
        if isinstance(entry, Field):
            return entry.make(dtype)
        if isinstance(entry, list):
            return [{key: field.make(dtype) for key, field in item.items()} for item in entry]
        return entry

    return {name: make(entry) for name, entry in entries.items()}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a batch is asked for.

    Attributes:
        config: The model's configuration.
        names: The arguments of the model's forward.
        required: Those without a default.
        head: What the model is for; `""` without a head.
        training: Whether labels are wanted.
        batch_size, tokens, image_size: Sizes; `image_size` None means as configured.
    """

    config: Any
    names: frozenset[str]
    required: frozenset[str]
    head: str
    training: bool
    batch_size: int
    tokens: int
    image_size: int | None

    @property
    def text(self) -> Any:
        """The configuration of the part that reads text."""
        return text_of(self.config)

    def vocabulary(self, part: Any = None) -> tuple[int, int]:
        """Return the widest range of tokens that mean nothing special to the model."""
        size = int(getattr(part or self.text, "vocab_size", None) or 1000)
        special = sorted(
            {i for i in _special_tokens(self.config) | _special_tokens(self.text) if 0 <= i < size}
        )
        edges = [-1, *special, size]
        return max(
            ((low + 1, high) for low, high in itertools.pairwise(edges)),
            key=lambda pair: pair[1] - pair[0],
        )

    def ids(self, length: int | None = None, part: Any = None) -> Field:
        """Return a field of tokens."""
        start, below = self.vocabulary(part)
        return Field((self.batch_size, length or self.tokens), below=below, start=start)


def ask(config: Any, head: str, options: TargetOptions, parameters: Mapping[str, Any], name: str) -> Ask:
    """Return what a batch is asked for, the sizes settled.

    Raises:
        UsageError: A size is given that the model does not have, or is too long for it.
    """
    names = frozenset(parameters)
    reads = bool(names & {"input_ids", "inputs_embeds"})
    sees = any("pixel" in n for n in names) or "flattened_patches" in names
    if options.sequence_length is not None and not reads:
        raise UsageError(f"{name} takes no sequence length (given: {options.sequence_length})")
    if options.image_size is not None and not sees:
        raise UsageError(f"{name} takes no image size (given: {options.image_size})")
    only_sees = sees and not names & {"input_ids", "pixel_values_videos", "input_features", "input_values"}
    asked = Ask(
        config=config,
        names=names,
        required=frozenset(
            n for n, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        ),
        head=head,
        training=options.mode == "train",
        batch_size=options.batch_size or (PICTURE_BATCH if only_sees else TEXT_BATCH),
        tokens=SEQUENCE,
        image_size=options.image_size,
    )
    return _with_tokens(asked, options.sequence_length, name)


def _with_tokens(asked: Ask, wanted: int | None, name: str) -> Ask:
    limit = getattr(asked.text, "max_position_embeddings", None)
    limit = limit if isinstance(limit, int) and limit > 0 else None
    if wanted is None:
        usual = limit if asked.config.model_type in _FULL_LENGTH else SEQUENCE
        return dataclasses.replace(asked, tokens=min(usual or SEQUENCE, limit or SEQUENCE))
    turning = any(key.startswith("rope") for key in vars(asked.text))  # positions are computed: no end
    if limit is not None and wanted > limit and not turning:
        raise UsageError(f"sequence_length is {wanted}; {name} has {limit} positions")
    return dataclasses.replace(asked, tokens=wanted)


def _special_tokens(config: Any) -> set[int]:
    found: set[int] = set()
    for key, value in vars(config).items():
        if key.endswith(("_token_id", "_token_index", "_id")):
            found |= {v for v in (value if isinstance(value, (list, tuple)) else [value]) if type(v) is int}
    return found


__all__ = ["Ask", "Entry", "Field", "ask", "make_batch"]
