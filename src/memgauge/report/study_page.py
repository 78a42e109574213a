"""The page of a study: its conclusion, importances, memory against parameters, predictions, time lines, all trials."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from memgauge.errors import MemgaugeError
from memgauge.report import study_figures
from memgauge.report.figures import overlay
from memgauge.report.page import escaped, figure, page, table
from memgauge.report.panels import RunCurves
from memgauge.report.study import environment_named, figures_of, parameters_of
from memgauge.storage import RunFile
from memgauge.study.analysis.drivers import usable
from memgauge.study.analysis.records import Analysis, Coefficient, FigureAnalysis
from memgauge.study.analysis.words import count
from memgauge.study.forecast import said
from memgauge.study.records import FIGURES, STATUSES, Predicted, StudyRecord, Trial
from memgauge.units import format_bytes, format_duration

_MOST_ROWS, _MOST_LINES, _MOST_ANOVA = 2000, 6, 12
_SORT = """<script>document.addEventListener("click",e=>{const h=e.target.closest("table.sortable th");if(!h)return;
const b=h.closest("table").tBodies[0],i=[...h.parentNode.children].indexOf(h),d=h.dataset.down==="1"?-1:1;
h.dataset.down=d===1?"1":"0";const v=r=>r.cells[i].dataset.v??r.cells[i].textContent;
[...b.rows].sort((p,q)=>{const a=v(p),c=v(q),n=parseFloat(a)-parseFloat(c);
return d*(isNaN(n)?String(a).localeCompare(String(c)):n)}).forEach(r=>b.appendChild(r))});</script>
<style>table.sortable th{cursor:pointer}table.sortable{max-height:640px;overflow-y:auto}</style>"""


def study_page(study: StudyRecord, analysis: Analysis, lines: Sequence[int] | None = None) -> str:
    """Return one HTML page for a study.

    Args:
        study: The study.
        analysis: What it says.
        lines: Trials whose time lines are drawn over each other; the smallest, middle and largest if None.
    """
    return page(f"{study.name} – memgauge", _sections(study, analysis, lines))


def _sections(study: StudyRecord, analysis: Analysis, lines: Sequence[int] | None) -> Iterator[str]:
    counts = Counter(t.status for t in study.trials)
    told = ", ".join(f"{counts[s]:,} {s}" for s in STATUSES if counts[s])
    title = str(study.file.get("study", {}).get("title") or "")
    yield f"<h1>{escaped(study.name)}</h1><p>{escaped(title)}</p><p>{count(len(study.trials), 'trial')}: {told}</p>"
    yield f"<h2>What it says</h2><ul>{''.join(_conclusion(analysis))}</ul>"
    for text in (*analysis.warnings, *study.notes):
        yield f'<p class="warn">{escaped(text)}</p>'
    trials, number = usable(study), 0
    explained = [f for f in analysis.figures if f.importances]
    if explained:
        number += 1
        yield "<h2>What drives the memory</h2>" + figure(study_figures.importances(explained), number)
        yield (
            '<p class="faint">Share of the variance that each parameter explains on its own (fANOVA), bars: 95 % of the '
            "bootstrap draws; dotted: what columns of noise reach. Further figures by a click in the legend.</p>"
        )
    for found in explained:
        number += 1
        yield f"<h2>{escaped(found.title)} against each parameter</h2>"
        yield figure(study_figures.against_parameters(trials, found), number)
        yield from _evidence(found)
    if explained:
        number += 1
        yield "<h2>All parameters at once</h2>"
        yield figure(study_figures.parallel(trials, explained[0].figure), number)
    number += 1
    yield from _predictions(trials, analysis, number)
    there = [
        n
        for n in (
            "peak_resident_bytes",
            "peak_allocated_bytes",
            "peak_process_device_bytes",
            "peak_device_bytes",
        )
        if n in figures_of(trials)
    ]
    curves = study_figures.batch_curves(trials, there)
    if curves is not None:
        number += 1
        yield "<h2>Over batch size, host and device</h2>" + figure(curves, number)
    number += 1
    yield from _time_lines(study, trials, lines, number)
    yield "<h2>Trials</h2>" + _trials(study.trials) + _SORT
    yield from _isolation(study, analysis)


def _conclusion(analysis: Analysis) -> Iterator[str]:
    for found in analysis.figures:
        first, *rest = found.conclusion or (found.title,)
        below = "".join(f"<li>{escaped(line)}</li>" for line in rest)
        yield f"<li>{escaped(first)}{f'<ul>{below}</ul>' if below else ''}</li>"
    for line in analysis.remarks:
        yield f"<li>{escaped(line)}</li>"


def _evidence(found: FigureAnalysis) -> Iterator[str]:
    spread = "—" if found.repeat_spread is None else f"{100 * found.repeat_spread:.2f} %"
    explained = "left-out trials not explained"  # worse than their mean is no share
    if found.explained is not None and found.explained > 0:
        explained = f"left-out trials explained to {100 * found.explained:.1f} %"
    yield (
        f'<p class="faint">{escaped(found.how)}; {found.trials} trials, {found.censored} known only as above their '
        f"limit; {explained}; repeats differ by {spread}</p>"
    )
    yield table(
        ("parameter", "share ", "low ", "high ", "end to end ", "verdict"),
        [
            (
                i.name,
                f"{100 * i.share:.2f} %",
                f"{100 * i.low:.2f} %",
                f"{100 * i.high:.2f} %",
                format_bytes(i.effect_bytes),
                "not above noise" if i.verdict == "none" else i.verdict,
            )
            for i in found.importances
        ],
    )
    if found.anova:
        yield "<p>ANOVA, type II, with interactions</p>" + table(
            ("source", "degrees ", "share ", "F ", "p "),
            [
                (
                    r.name,
                    f"{r.degrees:g}",
                    f"{100 * r.share:.2f} %",
                    "" if r.f is None else f"{r.f:.3g}",
                    "" if r.p is None else f"{r.p:.2g}",
                )
                for r in found.anova[:_MOST_ANOVA]
            ],
        )
    if found.mechanisms:
        rows = [
            (
                m.group,
                c.name,
                *_term(c),
                f"{100 * m.explained:.2f} %",
            )
            for m in found.mechanisms
            for c in m.coefficients
        ]
        yield "<p>Mechanism: fixed + bytes per parameter + bytes per activation of a batch</p>" + table(
            ("trials", "term", "coefficient ", "95 % ", "unit", "explained "), rows
        )


def _term(c: Coefficient) -> tuple[str, str, str]:
    if c.name == "fixed":
        low, high = (format_bytes(round(b)) for b in (c.low, c.high))
        return format_bytes(round(c.bytes)), f"{low} – {high}", ""
    return f"{c.bytes:,.2f}", f"{c.low:,.2f} – {c.high:,.2f}", c.unit


def _predictions(trials: Sequence[Trial], analysis: Analysis, number: int) -> Iterator[str]:
    plot = study_figures.predicted_against_measured(trials)
    if plot is None:
        reasons = Counter(t.predicted.reason for t in trials if t.predicted and t.predicted.reason)
        said = "; ".join(f"{r} ({n} trials)" for r, n in reasons.most_common(3)) or "nothing was predicted"
        yield f"<h2>Predicted against measured</h2><p>{escaped(said)}</p>"
        return
    yield "<h2>Predicted against measured</h2>" + figure(plot, number)
    yield table(
        ("figure", "trials ", "median error ", "highest ", "inside the range "),
        [
            (
                FIGURES[a.figure][0],
                a.trials,
                f"{100 * a.median_error:.2f} %",
                f"{100 * a.highest_error:.2f} %",
                "—" if a.inside_range is None else f"{100 * a.inside_range:.0f} %",
            )
            for a in analysis.agreement
        ],
    )


def _time_lines(
    study: StudyRecord, trials: Sequence[Trial], lines: Sequence[int] | None, number: int
) -> Iterator[str]:
    chosen = [t for t in study.trials if t.number in lines] if lines else _spread(trials)
    with contextlib.ExitStack() as stack:
        drawn = []
        for trial in chosen[:_MOST_LINES]:
            path = Path(study.folder or "", trial.run_file or "")
            if trial.run_file is None or not path.is_file():
                continue
            with contextlib.suppress(MemgaugeError):
                data = RunCurves(stack.enter_context(RunFile(path)))
                data.title = f"trial {trial.number}"
                drawn.append(data)
        if drawn:
            names = "; ".join(f"trial {t.number}: {said(t)}" for t in chosen[:_MOST_LINES])
            yield "<h2>Time lines</h2>" + figure(overlay(drawn), number)
            yield f'<p class="faint">{escaped(names)}</p>'


def _spread(trials: Sequence[Trial]) -> list[Trial]:
    """Return the smallest, the middle and the largest trial."""
    known = sorted(
        (t for t in trials if t.run_file and "peak_resident_bytes" in t.figures),
        key=lambda t: t.figures["peak_resident_bytes"],
    )
    return (
        list({t.number: t for t in (known[0], known[len(known) // 2], known[-1])}.values()) if known else []
    )


def _trials(trials: Sequence[Trial]) -> str:
    """Return the table of trials; a click on a column's head sorts by it."""
    names, figures = parameters_of(trials), figures_of(trials)[:8]
    heads = ["trial", *names, *(FIGURES[f][0] if f in FIGURES else f for f in figures)]
    heads += ["predicted resident", "predicted allocated", "seconds", "machine", "state"]
    rows = []
    for t in trials[:_MOST_ROWS]:
        p = t.predicted
        cells = [_cell(t.number), *(_cell(t.params.get(n)) for n in names)]
        cells += [_bytes(t.figures.get(f)) for f in figures]
        cells += [_predicted_resident(p), _bytes(p.allocated_bytes if p else None)]
        cells += [
            _cell(None if t.seconds is None else round(t.seconds, 3)),
            _cell(t.machine.name if t.machine else ""),
        ]
        why = t.cause or (t.error or "").strip().splitlines()[-1:] or ""
        said = f"{t.status}{': ' if why else ''}{why if isinstance(why, str) else why[0]}"
        disturbed = (
            f" (disturbed: {'; '.join(t.background.reasons)})" if t.is_disturbed and t.background else ""
        )
        cells.append(_cell(said + disturbed))
        rows.append(f"<tr>{''.join(cells)}</tr>")
    more = (
        f"<p>and {len(trials) - _MOST_ROWS:,} more: memgauge study show --csv</p>"
        if len(trials) > _MOST_ROWS
        else ""
    )
    head = "".join(f"<th>{escaped(h)}</th>" for h in heads)
    return (
        f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>{more}'
    )


def _cell(value: object) -> str:
    if isinstance(value, (tuple, list)):
        value = ",".join(map(str, value))
    kind = ' class="number"' if isinstance(value, (int, float)) and not isinstance(value, bool) else ""
    return f"<td{kind}>{'—' if value is None else escaped(value)}</td>"


def _bytes(count_bytes: int | None) -> str:
    return f'<td class="number" data-v="{count_bytes or 0}">{format_bytes(count_bytes)}</td>'


def _predicted_resident(predicted: Predicted | None) -> str:
    if predicted is None or predicted.bound is None:
        return _bytes(predicted.host_expected_bytes if predicted else None)
    least = predicted.host_low_bytes or 0
    title = escaped(predicted.bound)
    return f'<td class="number" data-v="{least}" title="{title}">at least {format_bytes(least)}</td>'


def _isolation(study: StudyRecord, analysis: Analysis) -> Iterator[str]:
    if study.baselines:
        yield "<h2>Baselines</h2>" + table(
            (
                "environment",
                "interpreter ",
                "imported ",
                "data loaded ",
                "with an optimizer ",
                "spread ",
                "processes ",
            ),
            [
                (
                    environment_named(key),
                    format_bytes(b.interpreter_bytes),
                    format_bytes(b.imported_bytes),
                    format_bytes(b.loaded_bytes),
                    format_bytes(b.with_optimizer_bytes),
                    format_bytes(b.spread_bytes if b.repeats > 1 else None),
                    b.repeats,
                )
                for key, b in study.baselines.items()
            ],
        )
    machines = {t.machine.name: t.machine for t in study.trials if t.machine}
    yield "<h2>Machines</h2>" + table(
        ("machine", "processor", "cores ", "memory ", "GPUs", "system", "trials ", "disturbed "),
        [
            (
                m.name,
                m.processor,
                m.cores,
                format_bytes(m.memory_bytes),
                ", ".join(m.gpus) or "none",
                m.system,
                sum(t.machine == m for t in study.trials),
                sum(t.machine == m and t.is_disturbed for t in study.trials),
            )
            for m in machines.values()
        ],
    )
    versions = {f"{k} {v}" for t in study.trials for k, v in t.versions.items()}
    seconds = sum(t.seconds or 0 for t in study.trials)
    yield f'<p class="faint">{escaped(", ".join(sorted(versions)))}; {format_duration(seconds * 1e6)} of training in all</p>'
