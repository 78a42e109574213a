"""The last analysis of a study, kept in its folder, so that showing a study shows its conclusion at once."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import msgspec

from memgauge.study.analysis.records import Analysis
from memgauge.study.records import StudyRecord

FILE = "analysis.json"


class _Kept(msgspec.Struct, frozen=True):
    of: str
    analysis: Analysis


def keep(study: StudyRecord, analysis: Analysis) -> None:
    """Write an analysis into the study's folder; where that cannot be written, nothing is kept."""
    if study.folder is None:
        return
    with contextlib.suppress(OSError):
        aside = Path(study.folder, f".{FILE}.{os.getpid()}")
        aside.write_bytes(msgspec.json.encode(_Kept(_state_of(study), analysis)))
        aside.replace(Path(study.folder, FILE))


def kept(study: StudyRecord) -> Analysis | None:
    """Return the analysis of a study as it stands now; None if there is none, or trials have ended since."""
    if study.folder is None:
        return None
    try:
        found = msgspec.json.decode(Path(study.folder, FILE).read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError):
        return None
    return found.analysis if found.of == _state_of(study) else None


def _state_of(study: StudyRecord) -> str:
    """Return what changes when a trial of the study does."""
    told = repr([(t.number, t.status, t.ended_unix_ns) for t in study.trials])
    return hashlib.sha256(told.encode()).hexdigest()
