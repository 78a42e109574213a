"""Find studies that have been run, read them, and make one of several: machines are a factor like any other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from memgauge.errors import UsageError, nearest
from memgauge.study.database import url_of
from memgauge.study.file import StudyFile, find, read
from memgauge.study.holding import LEDGER, TRIALS
from memgauge.study.ledger import Ledger
from memgauge.study.reading import read_ledger
from memgauge.study.records import FINISHED, StudyRecord, Trial

URL_FILE = "ledger.url"


def folder_of(name: str) -> Path:
    """Return the folder of a study by default: `NAME.study` here."""
    return Path(f"{name.replace(' ', '-')}.study")


def open_study(place: str, name: str | None = None) -> StudyRecord:
    """Return a study that was run: its folder, its file, its name, its ledger or the URL of one.

    Raises:
        UsageError: There is none; the message says what there is.
        LedgerError: Its ledger cannot be reached.
        FileFormatError: It is no ledger.
    """
    if "://" in place:
        return read_ledger(url_of(place), name)
    path = Path(place).expanduser()
    if path.is_file() and path.suffix != ".toml":
        found = read_ledger(url_of(path), name)
        found.folder = str(path.parent)
        return found
    folder = path if path.is_dir() else folder_of(place)
    if not folder.is_dir():
        folder = folder_of(_name_of(place))
    if not folder.is_dir():
        raise UsageError(
            f"{place} has not been run here: there is no {folder}; memgauge study run {place} runs it"
        )
    url_file = folder / URL_FILE
    if url_file.is_file() and not (folder / LEDGER).exists():
        url, _, kept = url_file.read_text().partition("\n")
        found = read_ledger(url_of(url.strip()), name or kept.strip() or None)
    elif (folder / LEDGER).is_file():
        found = read_ledger(url_of(folder / LEDGER), name)
    else:
        raise UsageError(f"{folder} is no study: it has no {LEDGER}")
    found.folder = str(folder)
    return found


def _name_of(place: str) -> str:
    try:
        return read(str(find(place))).study.name
    except UsageError:
        there = sorted(p.name.removesuffix(".study") for p in Path().glob("*.study"))
        raise UsageError(
            f"{place}: there is no such study here{nearest(place, there)}"
            + (f"; there are {', '.join(there)}" if there else "; memgauge study run FILE makes one")
        ) from None


def merged(studies: Sequence[StudyRecord]) -> StudyRecord:
    """Return several studies as one, a single one as it is; each trial keeps where it is from, numbers are new."""
    return studies[0] if len(studies) == 1 else _joined(studies)


def _joined(studies: Sequence[StudyRecord]) -> StudyRecord:
    trials: list[Trial] = []
    baselines = {}
    names = [s.name for s in studies]
    for place, study in enumerate(studies):
        source = study.name if names.count(study.name) == 1 else f"{study.name} ({place + 1})"
        source = study.folder or source
        new = {t.number: len(trials) + i for i, t in enumerate(study.trials)}
        for trial in study.trials:
            path = trial.run_file
            if path is not None and study.folder is not None:
                path = os.path.abspath(Path(study.folder, path))
            trials.append(
                msgspec.structs.replace(
                    trial,
                    number=new[trial.number],
                    repeats_trial=None if trial.repeats_trial is None else new.get(trial.repeats_trial),
                    run_file=path,
                    source=source,
                )
            )
        baselines.update(study.baselines)
    notes = _differences(studies)
    return StudyRecord(
        name=" + ".join(dict.fromkeys(names)),
        file=studies[0].file,
        trials=trials,
        baselines=baselines,
        notes=notes,
    )


def _differences(studies: Sequence[StudyRecord]) -> list[str]:
    first, notes = studies[0], []
    for other in studies[1:]:
        for part, name in (
            ("study", "target"),
            ("limits", "steps"),
            ("limits", "epochs"),
            ("study", "device"),
        ):
            before, after = first.file.get(part, {}).get(name), other.file.get(part, {}).get(name)
            if before != after:
                notes.append(
                    f"{other.name} has {name} = {after!r}, {first.name} has {before!r}: their trials differ in that too"
                )
        if first.file.get("fixed") != other.file.get("fixed"):
            notes.append(f"{other.name} and {first.name} differ in [fixed]")
    return notes


def merge_into(out: Path, studies: Sequence[StudyRecord], name: str | None = None) -> StudyRecord:
    """Write several studies into a new folder, run files with them; returns what was written.

    Raises:
        UsageError: The folder is there already.
    """
    if out.exists():
        raise UsageError(f"{out} exists; name another folder")
    found = _joined(studies)
    plain = msgspec.convert(found.file, StudyFile)
    about = msgspec.structs.replace(plain.study, name=name or out.name.removesuffix(".study"), design="list")
    points = tuple(dict(p) for p in {str(sorted(t.params.items())): t.params for t in found.trials}.values())
    file = msgspec.structs.replace(plain, study=about, list=points, space={})
    out.mkdir(parents=True)
    ledger = Ledger(url_of(out / LEDGER), file)
    ledger.add([_as_ended(_with_run_file(out, trial)) for trial in found.trials])
    for key, baseline in found.baselines.items():
        ledger.keep_baseline(key, baseline)
    result = ledger.read()
    ledger.close()
    result.folder, result.notes = str(out), found.notes
    return result


def _as_ended(trial: Trial) -> Trial:
    """Return a trial that has ended as it is, any other as one that waits."""
    return trial if trial.status in FINISHED else msgspec.structs.replace(trial, status="waiting", claim=None)


def _with_run_file(out: Path, trial: Trial) -> Trial:
    if trial.run_file is None or not Path(trial.run_file).is_file():
        return msgspec.structs.replace(trial, run_file=None)
    place = out / TRIALS / f"{trial.number:05d}"
    place.mkdir(parents=True)
    shutil.copy2(trial.run_file, place / "run.mg")
    return msgspec.structs.replace(trial, run_file=str(Path(TRIALS, place.name, "run.mg")))
