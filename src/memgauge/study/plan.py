"""From a study file to its trials: points, repeats, which are new, in which order, and what each of them runs."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from memgauge.arguments import TargetOptions
from memgauge.errors import UsageError, nearest
from memgauge.study.design import key_of, points
from memgauge.study.file import StudyFile, as_text
from memgauge.study.records import Params, Predicted, Trial
from memgauge.study.space import Space
from memgauge.targets import parse_target
from memgauge.training import FIELDS, Training

DEFAULT_STEPS = 3
_LAYERS, _NODES = "hidden_layers", "nodes"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial runs: a training, or a TARGET with arguments. Plain data, sent to processes.

    Args:
        training: What is trained, if it is not a TARGET.
        target: The TARGET.
        sets, options: Its arguments, and the options that libraries' models take.
        steps: Steps of a TARGET's run.
        device: `cpu` or `cuda`.
        threads: CPU threads.
        folder: The working directory, which a TARGET's path is relative to.
    """

    training: Training | None = None
    target: str | None = None
    sets: dict[str, str] = {}
    options: TargetOptions = TargetOptions()
    steps: int = DEFAULT_STEPS
    device: str = "cpu"
    threads: int | None = None
    folder: str | None = None

    @property
    def environment(self) -> str:
        """What is resident before anything is built depends on this."""
        if self.training is not None:
            t = self.training
            imported = f"sklearn {t.model}" if t.framework == "sklearn" else t.framework  # by the estimator
            what = f"{imported}, {t.data} {t.data_access}"
            size = f", image size {t.image_size}" if t.image_size else ""
            return f"{what}{size}, {self.device}"
        return f"{self.target}, {self.device}"


def points_of(file: StudyFile) -> list[Params]:
    """Return the points of a study's design.

    Raises:
        UsageError: The design does not go with the space.
    """
    space = None if file.study.design == "list" else Space(file.space)
    return points(file.study.design, space, file.study.trials, file.study.seed, file.list)


def missing(file: StudyFile, points: list[Params], known: Iterable[Trial]) -> list[Trial]:
    """Return the trials of a study that are not among those that are known, without numbers."""
    planned = {(key_of(t.params), t.repeat) for t in known}
    return [
        Trial(number=-1, params=point, repeat=repeat)
        for repeat in range(file.study.repeats)
        for point in points
        if (key_of(point), repeat) not in planned
    ]


def again(trials: Iterable[Trial], *, disturbed: bool, failed: bool) -> list[Trial]:
    """Return new trials for those that were disturbed or that failed, and have not been repeated yet."""
    known = list(trials)
    repeated = {t.repeats_trial for t in known}
    return [
        Trial(number=-1, params=t.params, repeat=t.repeat, repeats_trial=t.number)
        for t in known
        if t.number not in repeated
        and ((disturbed and t.status == "done" and t.is_disturbed) or (failed and t.status == "failed"))
    ]


def in_order(file: StudyFile, trials: Iterable[Trial]) -> list[Trial]:
    """Return trials as they run: whole rounds of repeats, each the cheapest first or shuffled."""
    found = sorted(trials, key=lambda t: t.number)
    if file.study.order == "random":
        source = random.Random(file.study.seed)
        shuffled = {t.number: source.random() for t in found}
        return sorted(found, key=lambda t: (t.repeat, shuffled[t.number]))
    return sorted(found, key=lambda t: (t.repeat, most_bytes(t.predicted) or 0))


def most_bytes(predicted: Predicted | None) -> int | None:
    """Return what a trial may take at most, by its estimate; where there is none, at least; None if nothing is known."""
    if predicted is None:
        return None
    return predicted.host_high_bytes or predicted.allocated_bytes or predicted.host_low_bytes


def subject_of(file: StudyFile, params: Params, threads: int | None, repeat: int = 0) -> Subject:
    """Return what a trial with these parameters runs.

    Raises:
        UsageError: A parameter is unknown or has the wrong type.
    """
    about = file.study
    given: dict[str, Any] = {**file.fixed, **params}
    if about.target is None:
        _refuse_unused(params, given)
        training = training_of(given, file, repeat)
        return Subject(training=training, device=about.device, threads=threads, folder=file.folder)
    if parse_target(about.target).kind in ("torchvision", "timm", "transformers"):
        known = {f.name for f in fields(TargetOptions)}
        options = {k: v for k, v in given.items() if k in known}
        given = {k: v for k, v in given.items() if k not in known}
    else:
        options = {}
    return Subject(
        target=_found_from(about.target, file.folder),
        options=msgspec.convert(options, TargetOptions),
        sets={name: as_text(value) for name, value in given.items()},
        steps=file.limits.steps or DEFAULT_STEPS,
        device=about.device,
        threads=threads,
        folder=file.folder,
    )


def _found_from(target: str, folder: str | None) -> str:
    """Return a TARGET whose file's path holds wherever the process runs."""
    parsed = parse_target(target)
    if parsed.kind != "file" or folder is None:
        return target
    return f"{Path(folder, Path(parsed.name).expanduser())}:{parsed.function}"


def training_of(given: dict[str, Any], file: StudyFile, repeat: int = 0) -> Training:
    """Return the training that parameters describe; `hidden_layers` and `nodes_1 …` become its widths.

    Raises:
        UsageError: A name is unknown, a value of the wrong type, or widths are incomplete.
    """
    plain: dict[str, Any] = {}
    layered: dict[str, int] = {}
    extra: dict[str, Any] = dict(given.get("options", {}))
    for name, value in given.items():
        if name in (_LAYERS, _NODES) or _layer_of(name):
            layered[name] = value
        elif name.startswith("options."):
            extra[name.removeprefix("options.")] = value
        elif name in FIELDS:
            plain[name] = value
        else:
            known = (*FIELDS, _LAYERS, _NODES, f"{_NODES}_1")
            raise UsageError(
                f"{name} is no parameter of a training{nearest(name, known)}; there are {', '.join(known)}"
            )
    if layered:
        if "widths" in plain:
            raise UsageError(
                f"widths and {', '.join(sorted(layered))} both say how wide layers are; choose one"
            )
        plain["widths"] = _widths(layered)
    if file.limits.steps is not None:
        plain.setdefault("steps", file.limits.steps)
    if file.limits.epochs is not None:
        plain.setdefault("epochs", file.limits.epochs)
    plain.setdefault("seed", file.study.seed + repeat)
    if file.study.device != "cpu":
        extra.setdefault("device", file.study.device)
    if extra:
        plain["options"] = extra
    if plain.get("data_dir") is not None and file.folder is not None:
        plain["data_dir"] = str(Path(file.folder, Path(str(plain["data_dir"])).expanduser()))
    try:
        return msgspec.convert(plain, Training)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        name = place.strip("`")
        value = f"{name} = {plain[name]!r}: " if name in plain else f"{place}: " if place else ""
        raise UsageError(f"{value}{what} (of a training)") from None


def _layer_of(name: str) -> int:
    """Return the number of the layer whose width a parameter is, 0 if it is no such parameter."""
    head, _, number = name.rpartition("_")
    return int(number) if head == _NODES and number.isdecimal() else 0


def _refuse_unused(params: Params, given: dict[str, Any]) -> None:
    """Refuse to vary the width of a layer that is not there: its effect would be none, whatever it is."""
    layers = given.get(_LAYERS)
    for name in params:
        layer = _layer_of(name)
        if isinstance(layers, int) and layer > layers:
            raise UsageError(
                f"{name} varies where {_LAYERS} = {layers}, so there is no such layer; write "
                f'[space.{name}] when = "{_LAYERS} >= {layer}"'
            )


def _widths(layered: dict[str, int]) -> tuple[int, ...]:
    numbered = {_layer_of(n): v for n, v in layered.items() if _layer_of(n)}
    count = layered.get(_LAYERS, max(numbered, default=0))
    widths = []
    for layer in range(1, count + 1):
        width = numbered.get(layer, layered.get(_NODES))
        if width is None:
            raise UsageError(f"{_LAYERS} = {count}, but there is neither {_NODES} nor {_NODES}_{layer}")
        widths.append(width)
    return tuple(widths)
