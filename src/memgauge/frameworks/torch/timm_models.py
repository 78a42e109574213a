"""`timm:NAME`: picture classification, or features where the model has no classes.

Batch 32, the input size of the model's own configuration, cross-entropy against
its classes; a model without a classifier gets the mean square of what it returns.
A name may carry the tag of weights (`resnet50.a1_in1k`), whose sizes then hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from memgauge.arguments import TargetOptions, guess
from memgauge.errors import UnsupportedError, UsageError, missing_extra, nearest
from memgauge.frameworks.torch.recipe import Recipe, recipe_options
from memgauge.frameworks.torch.torchvision_compat import import_torchvision
from memgauge.workload import Workload

BATCH_SIZE = 32


def timm_workload(name: str, options: TargetOptions, sets: Mapping[str, str]) -> Workload:
    """Return the workload of one of timm's architectures.

    Raises:
        UsageError: There is no such model or tag, or it has no sequence length.
        UnsupportedError: The model cannot be checkpointed, or not at this picture size.
    """
    timm = _import_timm()
    channels, size, classes = _configuration(timm, name)
    if options.sequence_length is not None:
        raise UsageError(f"timm:{name} takes no sequence length (given: {options.sequence_length})")
    arguments = {key: guess(value) for key, value in sets.items()}
    classes = int(arguments.get("num_classes", classes))
    resized = options.image_size is not None and (options.image_size,) * 2 != size
    if options.image_size is not None:
        size = (options.image_size, options.image_size)
    count = options.batch_size or BATCH_SIZE

    def batch(dtype: torch.dtype) -> Any:
        pictures = torch.randn(count, channels, *size, dtype=dtype)
        return (pictures, torch.randint(0, classes, (count,))) if classes else (pictures, None)

    return Recipe(
        model=_maker(timm, name, arguments, size if resized else None, options.checkpointing),
        batch=batch,
        loss=_loss,
        predict=lambda model, batch: model(batch[0]),
        description={"batch_size": count, "image_size": list(size), "classes": classes, **arguments},
        **recipe_options(options),
    ).workload()


def _import_timm() -> Any:
    import_torchvision()
    try:
        import timm
    except ModuleNotFoundError as error:
        if error.name == "timm":
            raise missing_extra("timm", "models") from error
        raise
    return timm


def _configuration(timm: Any, name: str) -> tuple[int, tuple[int, int], int]:
    """Return channels, picture size and number of classes of a model or of one of its tags."""
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise UsageError(f"timm has no model {name!r}{nearest(architecture, timm.list_models())}")
    found = timm.models.get_pretrained_cfg(name, allow_unregistered=True) if not tag else None
    if tag:
        try:
            found = timm.models.get_pretrained_cfg(name, allow_unregistered=False)
        except RuntimeError as error:
            tags = [n for n in timm.list_pretrained() if n.startswith(f"{architecture}.")]
            raise UsageError(
                f"timm:{architecture} has no weights {tag!r}; it has {', '.join(tags)}"
            ) from error
    if found is None:  # some of timm 1.0.9: they take another's configuration when they are made
        with torch.random.fork_rng(devices=[]):
            made = timm.create_model(architecture).pretrained_cfg
        channels, height, width = made["input_size"]
        return channels, (height, width), made["num_classes"]
    channels, height, width = found.input_size
    return channels, (height, width), found.num_classes


def _maker(
    timm: Any, name: str, arguments: dict[str, Any], size: tuple[int, int] | None, checkpointing: bool
) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = _create(timm, name, arguments, size).to(torch.get_default_dtype())
        if checkpointing:
            _checkpoint(model, name)
        return model

    return make


def _create(timm: Any, name: str, arguments: dict[str, Any], size: tuple[int, int] | None) -> nn.Module:
    try:
        if size is not None and "img_size" not in arguments:
            try:
                # Transformers are built for one size; convolutional models do not know the argument.
                return timm.create_model(name, pretrained=False, img_size=size, **arguments)  # type: ignore[no-any-return]
            except TypeError:
                pass
        return timm.create_model(name, pretrained=False, **arguments)  # type: ignore[no-any-return]
    except (TypeError, AssertionError, ValueError) as error:
        raise UsageError(f"timm:{name} with {arguments or size}: {error}") from error


def _checkpoint(model: nn.Module, name: str) -> None:
    switch = getattr(model, "set_grad_checkpointing", None)
    try:
        if switch is None:
            raise NotImplementedError
        switch(True)
    except (AssertionError, NotImplementedError) as error:
        raise UnsupportedError(
            f"timm:{name} has no checkpointing of its own; leave out --checkpointing"
        ) from error


def _loss(model: nn.Module, batch: Any) -> torch.Tensor:
    pictures, labels = batch
    output = model(pictures)
    if labels is not None and isinstance(output, torch.Tensor):
        return cross_entropy(output, labels)
    squares = [tensor.float().pow(2).mean() for tensor in _floating(output)]
    return torch.stack(squares).mean()


def _floating(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, (list, tuple)):
        for item in output:
            yield from _floating(item)
    elif isinstance(output, dict):
        yield from _floating(list(output.values()))
