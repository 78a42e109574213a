"""A study as text, JSON and CSV: trials with predicted beside measured, and what drives the memory."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from memgauge.errors import UsageError, nearest
from memgauge.report.tables import grid, plain
from memgauge.study.analysis.records import Analysis, FigureAnalysis
from memgauge.study.analysis.words import count
from memgauge.study.records import FIGURES, STATUSES, Baseline, Predicted, StudyRecord, Trial
from memgauge.units import format_bytes, format_duration

_LONGEST_VALUE, _MOST_ANOVA = 24, 8
_SHORT = {
    "peak_resident_bytes": "resident",
    "peak_network_bytes": "above baseline",
    "peak_allocated_bytes": "allocated",
    "peak_reserved_bytes": "reserved",
    "peak_process_device_bytes": "device",
    "average_system_used_bytes": "system, average",
}
_ALSO_SHORT = {  # the table's other headings, by their columns in the CSV
    "number": "trial",
    "seconds": "time",
    "status": "state",
    "predicted_host_expected_bytes": "predicted",
}
_IN_TABLE = (
    "peak_resident_bytes",
    "peak_allocated_bytes",
    "peak_process_device_bytes",
)  # the rest is in the CSV


class StudyDocument(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="memgauge.study/1"):
    """A study as JSON."""

    name: str
    folder: str | None
    trials_total: int
    by_status: dict[str, int]
    file: dict[str, Any]
    baselines: dict[str, Baseline]
    trials: tuple[Trial, ...]
    notes: tuple[str, ...]
    conclusion: tuple[str, ...] | None  # null if the study was not analysed since its last trial ended


def document(study: StudyRecord, trials: Sequence[Trial], analysis: Analysis | None = None) -> StudyDocument:
    """Return a study with these of its trials, and its conclusion if it was analysed, as one document."""
    return StudyDocument(
        name=study.name,
        folder=study.folder,
        trials_total=len(study.trials),
        by_status=dict(Counter(t.status for t in study.trials)),
        file=study.file,
        baselines=study.baselines,
        trials=tuple(trials),
        notes=tuple(study.notes),
        conclusion=None if analysis is None else analysis.conclusion,
    )


def figures_of(trials: Iterable[Trial]) -> list[str]:
    """Return the names of all figures that some trial has, those that everybody asks for first."""
    there = dict.fromkeys(name for t in trials for name in t.figures)
    return [n for n in FIGURES if n in there] + [n for n in there if n not in FIGURES]


def parameters_of(trials: Iterable[Trial]) -> list[str]:
    """Return the names of all parameters."""
    return list(dict.fromkeys(name for t in trials for name in t.params))


def chosen(study: StudyRecord, sort: str | None, descending: bool, status: str | None) -> list[Trial]:
    """Return the trials to show, in the order to show them.

    Raises:
        UsageError: There is no such column or status.
    """
    trials = study.trials
    if status is not None:
        if status not in STATUSES:
            raise UsageError(
                f"--status {status}: unknown{nearest(status, STATUSES)}; it is {', '.join(STATUSES)}"
            )
        trials = [t for t in trials if t.status == status]
    if sort is None:
        return trials
    columns = _columns(study.trials)
    short = {v: k for k, v in (_SHORT | _ALSO_SHORT).items()}
    name = sort if sort in columns else short.get(sort, sort)
    if name not in columns:
        raise UsageError(
            f"--sort {sort}: there is no such column{nearest(sort, columns)}; there are {', '.join(columns)}"
        )
    value = columns[name]
    known = [t for t in trials if value(t) is not None]
    rest = [t for t in trials if value(t) is None]
    try:
        known.sort(key=lambda t: value(t), reverse=descending)
    except TypeError:
        known.sort(key=lambda t: str(value(t)), reverse=descending)
    return known + rest


def _columns(trials: Sequence[Trial]) -> dict[str, Callable[[Trial], Any]]:
    """Return every column of the full table: its name and how it is read off a trial."""
    found: dict[str, Callable[[Trial], Any]] = {
        "number": lambda t: t.number,
        "status": lambda t: t.status,
        "repeat": lambda t: t.repeat,
    }
    for name in parameters_of(trials):
        found[name] = lambda t, n=name: _cell(t.params.get(n))  # type: ignore[misc]
    for name in figures_of(trials):
        found[name] = lambda t, n=name: t.figures.get(n)  # type: ignore[misc]
    for field in msgspec.structs.fields(Predicted):
        column = field.name if field.name in ("parameters", "activations") else f"predicted_{field.name}"
        found[column] = lambda t, n=field.name: getattr(t.predicted, n) if t.predicted else None  # type: ignore[misc]
    found |= {
        "seconds": lambda t: t.seconds,
        "cpu_seconds": lambda t: t.cpu_seconds,
        "censored_at_bytes": lambda t: t.censored_at_bytes,
        "background_cores": lambda t: t.background.mean_cores if t.background else None,
        "disturbed": lambda t: "; ".join(t.background.reasons) if t.background else None,
        "machine": lambda t: t.machine.name if t.machine else None,
        "source": lambda t: t.source,
        "repeats_trial": lambda t: t.repeats_trial,
        "run_file": lambda t: t.run_file,
        "cause": lambda t: t.cause,
        "error": lambda t: t.error,
    }
    return found


def _cell(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else value


def to_csv(study: StudyRecord, trials: Sequence[Trial]) -> str:
    """Return trials as CSV: raw integers, the unit in each column's name."""
    columns = _columns(study.trials)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([value(t) for value in columns.values()] for t in trials)
    return out.getvalue()


def study_view(study: StudyRecord, trials: Sequence[Trial], most: int | None) -> RenderableType:
    """Return the table of trials as text.

    Args:
        study: The study.
        trials: Those to show, in their order.
        most: At most so many rows; None for all.
    """
    counts = Counter(t.status for t in study.trials)
    head = Text(study.name, style="bold")
    told = ", ".join(f"{counts[s]:,} {s}" for s in STATUSES if counts[s])
    disturbed = sum(t.is_disturbed for t in study.trials)
    line = f"{count(len(study.trials), 'trial')}: {told}" if study.trials else "no trial yet"
    if disturbed:
        line += f"; {disturbed:,} disturbed by other work (memgauge study run … --repeat-disturbed)"
    parts: list[RenderableType] = [head, Text(line), ""]
    shown = list(trials if most is None else trials[:most])
    parts.append(_trials_table(study, shown))
    if len(shown) < len(trials):
        parts.append(Text(f"and {len(trials) - len(shown):,} more: --all, --csv or --json", style="dim"))
    bounded = next((t for t in shown if t.predicted and t.predicted.bound), None)
    if bounded is not None and bounded.predicted is not None:
        p = bounded.predicted
        said = f"at least: a lower bound, no estimate ({p.reason}); trial {bounded.number}: {p.bound}"
        parts.append(Text(said, style="dim"))
    if study.baselines:
        parts += ["", _baselines(study.baselines)]
    errors = [t for t in shown if t.error and t.status == "failed"][:5]
    for trial in errors:
        parts += [
            "",
            Text(f"trial {trial.number} failed:", style="yellow"),
            *(plain(line) for line in (trial.error or "").strip()[-600:].splitlines()),
        ]
    parts += [Text(f"note: {n}", style="yellow") for n in study.notes]
    return Group(*parts)


def _trials_table(study: StudyRecord, trials: Sequence[Trial]) -> RenderableType:
    names = parameters_of(study.trials)
    there = set(figures_of(study.trials))
    figures = [f for f in _IN_TABLE if f in there]
    machines = {t.machine.name for t in study.trials if t.machine}
    columns = ["trial", *names]
    for figure in figures:
        columns.append(_SHORT[figure])
        if figure in _PREDICTED:
            columns.append("predicted")
    if not figures:
        columns.append("predicted")
    columns += ["time", *(["machine"] if len(machines) > 1 else []), "state"]
    table = grid(*columns, flexible="state")
    for trial in trials:
        cells: list[str | Text] = [str(trial.number)]
        cells += [plain(_shown(trial.params.get(n))) for n in names]
        for figure in figures:
            cells.append(_measured(trial, figure))
            if figure in _PREDICTED:
                cells.append(_predicted(trial.predicted, figure))
        if not figures:
            cells.append(_predicted(trial.predicted, "peak_resident_bytes", otherwise="peak_allocated_bytes"))
        cells.append(format_duration(None if trial.seconds is None else trial.seconds * 1e6))
        if len(machines) > 1:
            cells.append(plain(trial.machine.name if trial.machine else "—"))
        cells.append(_state(trial))
        table.add_row(*cells)
    return table


_PREDICTED: dict[str, Callable[[Any], int | None]] = {
    "peak_resident_bytes": lambda p: p.host_expected_bytes,
    "peak_allocated_bytes": lambda p: p.allocated_bytes,
    "peak_process_device_bytes": lambda p: p.device_expected_bytes,
}


def _predicted(predicted: Predicted | None, figure: str, otherwise: str | None = None) -> str:
    """Return what was predicted of a figure, or its lower bound, which says that it is one."""
    if predicted is None:
        return "—"
    value = _PREDICTED[figure](predicted)
    if value is None and otherwise is not None:
        value = _PREDICTED[otherwise](predicted)
    if value is None and figure == "peak_resident_bytes" and predicted.bound is not None:
        return f"at least {format_bytes(predicted.host_low_bytes)}"
    return format_bytes(value)


def _measured(trial: Trial, figure: str) -> str:
    value = trial.figures.get(figure)
    if trial.status in ("out-of-memory", "time-limit") and figure == "peak_resident_bytes":
        return f"> {format_bytes(trial.censored_at_bytes or value)}"
    return format_bytes(value)


def _state(trial: Trial) -> Text:
    said = trial.status if trial.cause is None else f"{trial.status}: {trial.cause}"
    text = Text(said, style="" if trial.status in ("done", "waiting", "running") else "yellow")
    if trial.is_disturbed and trial.background:
        text.append(f" disturbed: {'; '.join(trial.background.reasons)}", "dim")
    if trial.repeats_trial is not None:
        text.append(f" repeats {trial.repeats_trial}", "dim")
    return text


def _shown(value: Any) -> str:
    text = "—" if value is None else f"{value:.4g}" if isinstance(value, float) else str(_cell(value))
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def environment_named(key: str) -> str:
    """Return the key of a baseline as people read it; the ledgers have it as it is.

    >>> environment_named("here: torch, digits memory, cpu, 1 threads")
    'here: torch, digits memory, cpu, 1 thread'
    """
    return key.removesuffix("s") if key.endswith(" 1 threads") else key


def _baselines(baselines: dict[str, Baseline]) -> RenderableType:
    heads = ("interpreter", "imported", "data loaded", "with an optimizer", "spread")
    table = grid("baseline of", *heads, flexible="baseline of")
    for key, b in baselines.items():
        spread = b.spread_bytes if b.repeats > 1 else None
        amounts = (b.interpreter_bytes, b.imported_bytes, b.loaded_bytes, b.with_optimizer_bytes, spread)
        table.add_row(plain(environment_named(key)), *map(format_bytes, amounts))
    return table


def conclusion_view(analysis: Analysis) -> RenderableType:
    """Return the conclusion of an analysis as text, with what speaks against it."""
    parts = [Text(f"What {analysis.study} says", style="bold")]
    for figure in analysis.figures:
        first, *rest = figure.conclusion or (figure.title,)
        parts += [Text(f"• {first}"), *(Text(f"    {line}") for line in rest)]
    parts += [Text(f"• {line}") for line in analysis.remarks]
    parts += [Text(f"! {line}", style="yellow") for line in analysis.warnings]
    return Group(*parts)


def analysis_view(analysis: Analysis) -> RenderableType:
    """Return an analysis as text: the conclusion first, then its evidence."""
    parts: list[RenderableType] = [conclusion_view(analysis)]
    for figure in analysis.figures:
        if figure.importances:
            parts += ["", _figure_view(figure)]
    if analysis.agreement:
        table = grid("predicted against measured", "trials", "median error", "highest", "in range")
        for a in analysis.agreement:
            inside = "—" if a.inside_range is None else f"{100 * a.inside_range:.0f} %"
            table.add_row(
                FIGURES[a.figure][0],
                str(a.trials),
                f"{100 * a.median_error:.2f} %",
                f"{100 * a.highest_error:.2f} %",
                inside,
            )
        parts += ["", table]
    return Group(*parts)


def _figure_view(figure: FigureAnalysis) -> RenderableType:
    span = f"{format_bytes(figure.low_bytes)} to {format_bytes(figure.high_bytes)}"
    spread = "" if figure.repeat_spread is None else f", repeats differ by {100 * figure.repeat_spread:.2f} %"
    head = Text(f"{figure.title}: {figure.trials} trials, {span}{spread}")
    table = grid("parameter", "share", "95 % interval", "end to end", "verdict")
    for i in figure.importances:
        style = "bold" if i.verdict == "driver" else "dim"
        interval = f"{100 * i.low:.2f} – {100 * i.high:.2f} %"
        table.add_row(
            plain(i.name),
            f"{100 * i.share:.2f} %",
            interval,
            format_bytes(i.effect_bytes),
            Text(i.verdict if i.verdict != "none" else "not above noise", style=style),
        )
    table.add_row("noise (dummies)", "", f"below {100 * (figure.floor or 0):.2f} %", "", "")
    parts: list[RenderableType] = [head, table]
    if figure.anova:
        rows = grid("ANOVA", "share", "F", "p")
        for row in figure.anova[:_MOST_ANOVA]:
            f, p = ("—" if v is None else f"{v:.3g}" for v in (row.f, row.p))
            rows.add_row(plain(row.name), f"{100 * row.share:.2f} %", f, p)
        parts += ["", rows]
    return Group(*parts)
