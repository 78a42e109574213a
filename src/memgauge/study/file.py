"""The study file: what a researcher writes, in TOML, validated before anything runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from memgauge.errors import UsageError, nearest
from memgauge.study.design import check_design
from memgauge.study.records import FIGURES, Params, Value
from memgauge.study.space import Parameter, Space
from memgauge.units import parse_bytes, parse_duration_ns

BUILTIN = Path(__file__).parent / "builtin"
ORDERS = ("cheap-first", "random")


class About(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[study]`: what is tried, and how it is recorded.

    Args:
        name: What the study is called; its folder is named after it.
        target: A TARGET whose arguments are varied. Without it the space names the fields of a training.
        design: `grid`, `random`, `sobol` or `list`.
        trials: Points of a random or Sobol design.
        seed: Where a random or Sobol design begins, and what a trial's own seed is made of.
        repeats: How often each point is run.
        interval: Time between two readings of the monitor.
        record: Figures to keep; all that cost nothing more if empty. `peak_allocated_bytes` on the CPU
            takes a second process per trial.
        device: `cpu`, or `cuda` for the GPU that is here.
        threads: CPU threads of a trial; as many as the cores per job if None.
        order: `cheap-first` by the estimates, or `random`, so that what drifts on the machine does not
            follow the size of the trials.
        baselines: Fresh processes per environment that measure its baseline; 0 for none.
        title: One line for the report.
    """

    name: str
    target: str | None = None
    design: str = "grid"
    trials: int | None = None
    seed: int = 0
    repeats: int = 1
    interval: str = "100ms"
    record: tuple[str, ...] = ()
    device: str = "cpu"
    threads: int | None = None
    order: str = "cheap-first"
    baselines: int = 3
    title: str = ""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[limits]` of each trial: time, memory, steps or epochs."""

    trial_seconds: float | None = None
    trial_memory: str | None = None
    steps: int | None = None
    epochs: int | None = None

    @property
    def memory_bytes(self) -> int | None:
        return None if self.trial_memory is None else parse_bytes(self.trial_memory)


class StudyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A study as it is written. The same in Python: `StudyFile(study=About(name=…), space={…})`.

    Args:
        study: What is tried.
        limits: Of each trial.
        fixed: Parameters that are the same in every trial.
        space: Parameters that vary, by name.
        list: The points of `design = "list"`.
        folder: Where the file lies: a TARGET's path is relative to it.
    """

    study: About
    limits: Limits = Limits()
    fixed: dict[str, Any] = {}
    space: dict[str, Parameter] = {}
    list: tuple[Params, ...] = ()
    folder: str | None = None

    def checked(self) -> StudyFile:
        """Return itself if all of it makes sense together.

        Raises:
            UsageError: Something does not; the message names it.
        """
        about, limits = self.study, self.limits
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,99}", about.name):
            raise UsageError(
                f"[study] name = {about.name!r}: write letters, digits, '-', '_' and '.', at most 100"
            )
        check_design(about.design)
        _check_one("[study] order", about.order, ORDERS)
        _check_one("[study] device", about.device, ("cpu", "cuda"))
        for name in about.record:
            _check_one("[study] record", name, tuple(FIGURES))
        for name, number, least in (
            ("[study] trials", about.trials, 1),
            ("[study] seed", about.seed, 0),
            ("[study] repeats", about.repeats, 1),
            ("[study] threads", about.threads, 1),
            ("[study] baselines", about.baselines, 0),
            ("[limits] steps", limits.steps, 1),
            ("[limits] epochs", limits.epochs, 1),
        ):
            if number is not None and number < least:
                raise UsageError(f"{name} = {number}: it is at least {least}")
        if limits.trial_seconds is not None and not limits.trial_seconds > 0:
            raise UsageError(f"[limits] trial_seconds = {limits.trial_seconds}: it is above 0")
        if limits.memory_bytes == 0:
            raise UsageError("[limits] trial_memory = 0: nothing fits")
        from memgauge.monitor.recorder import interval_ns

        interval_ns(about.interval)
        parse_duration_ns(about.interval)
        if about.design == "list":
            if not self.list or self.space:
                raise UsageError('design = "list" takes its points from [[list]], and no [space]')
        else:
            if self.list:
                raise UsageError(f'[[list]] is for design = "list"; this design is {about.design!r}')
            Space(self.space)
        both = set(self.fixed) & ({*self.space} | {name for point in self.list for name in point})
        if both:
            raise UsageError(f"{', '.join(sorted(both))} stands in [fixed] and varies as well; choose one")
        return self


def _check_one(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{what} = {value!r} is unknown{nearest(value, known)}; it is {', '.join(known)}")


def find(name: str) -> Path:
    """Return the file of a study: a path, or the name of a built-in study.

    Raises:
        UsageError: There is neither.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    builtin = builtin_names()
    if name in builtin:
        return BUILTIN / f"{name}.toml"
    if path.is_dir():
        raise UsageError(f"{name} is a directory; name a study file in it")
    beside = [str(p) for p in path.parent.glob("*.toml")] if path.parent.is_dir() else []
    listed = f"; built in are {', '.join(builtin)}" if builtin else ""
    raise UsageError(f"{name}: no such study file{nearest(name, [*builtin, *beside])}{listed}")


def builtin_names() -> list[str]:
    """Return the names of the studies that come with memgauge."""
    return sorted(p.stem for p in BUILTIN.glob("*.toml"))


def read(name: str) -> StudyFile:
    """Return the study in a file, or the built-in one of that name.

    Raises:
        UsageError: There is no such file, or something in it is not right.
    """
    path = find(name)
    try:
        content = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    folder = Path.cwd() if path.parent == BUILTIN else path.resolve().parent
    return parse(content, str(path), folder)


def parse(content: str, where: str, folder: Path | None = None) -> StudyFile:
    """Return the study that TOML text describes; `where` names it in messages.

    Raises:
        UsageError: It is not TOML, or something in it is not right.
    """
    try:
        plain = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where} is not TOML: {error}") from None
    try:
        return from_plain(plain, folder)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def from_plain(plain: dict[str, Any], folder: Path | None = None) -> StudyFile:
    """Return the study that plain data describes.

    Raises:
        UsageError: Something in it is not right.
    """
    _refuse_unknown(plain)
    if "study" not in plain:
        raise UsageError('there is no [study]; it begins with [study] and name = "…"')
    try:
        found = msgspec.convert(plain, StudyFile)
    except msgspec.ValidationError as error:
        raise UsageError(_readable(str(error))) from None
    if folder is not None:
        found = msgspec.structs.replace(found, folder=str(folder))
    return found.checked()


_SECTIONS: dict[str, type[msgspec.Struct]] = {"study": About, "limits": Limits}


def _refuse_unknown(plain: dict[str, Any]) -> None:
    known = [f.name for f in msgspec.structs.fields(StudyFile)]
    for section, content in plain.items():
        if section not in known:
            raise UsageError(
                f"[{section}] is unknown{nearest(section, known)}; there are {', '.join(known[:-1])}"
            )
        if section in _SECTIONS and isinstance(content, dict):
            _refuse_keys(f"[{section}]", content, _SECTIONS[section])
        if section == "space" and isinstance(content, dict):
            for name, parameter in content.items():
                if not isinstance(parameter, dict):
                    raise UsageError(
                        f"[space] {name} = {parameter!r}: write [space.{name}] with values or low and high; "
                        "what does not vary belongs to [fixed]"
                    )
                _refuse_keys(f"[space.{name}]", parameter, Parameter)


def _refuse_keys(where: str, content: dict[str, Any], record: type[msgspec.Struct]) -> None:
    known = [f.name for f in msgspec.structs.fields(record)]
    for key in content:
        if key not in known:
            raise UsageError(f"{where} {key}: unknown{nearest(key, known)}; there are {', '.join(known)}")


def _readable(text: str) -> str:
    """Return msgspec's message with the place in the way TOML names it."""
    return re.sub(r" - at `\$\.?([^`]*)`", lambda m: f" (at {m[1] or 'the top'})", text)


def as_text(value: Value) -> str:
    """Return a value as `--set` would have it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
