"""`memgauge study`: run a study (`study_run.py`), show its table, explain it, draw it, make one of several."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from memgauge.cli import options, study_run
from memgauge.cli.output import note, show, show_json, write_text
from memgauge.cli.study_run import PIPED_WIDTH, ROWS
from memgauge.errors import UsageError

EPILOG = (
    "Example: memgauge study run study.toml --jobs 2, then: memgauge study report study.toml -o study.html"
)

app = typer.Typer(
    no_args_is_help=True,
    help="Many trials, each in a fresh process under the monitor, and what drives their memory.",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", no_args_is_help=True, epilog=study_run.EPILOG)(study_run.run)

Places = Annotated[
    list[str],
    typer.Argument(
        metavar="STUDY…",
        show_default=False,
        help="The study's file, name, folder or ledger (a path or postgresql://…); several are made one.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--study", metavar="NAME", show_default=False, help="Which study, if the ledger has several."
    ),
]


@app.command(
    "show",
    no_args_is_help=True,
    epilog="Example: memgauge study show study.toml --sort resident --descending\n\n"
    "Example: memgauge study show mahendran --csv trials.csv\n\n"
    "Example: memgauge study show here.study there.study --json | jq '.trials[].figures'",
)
def show_command(
    places: Places,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="COLUMN",
            show_default=False,
            help="A parameter, a figure, time: any column of the CSV.",
        ),
    ] = None,
    descending: Annotated[bool, typer.Option("--descending", help="The highest first.")] = False,
    status: Annotated[
        str | None,
        typer.Option(
            "--status", metavar="NAME", show_default=False, help="Only these: done, failed, out-of-memory, …"
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help=f"All rows, not only {ROWS}.")] = False,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv", metavar="FILE", show_default=False, help="Write all columns as CSV; - is stdout."
        ),
    ] = None,
    name: Name = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the trials of a study: parameters, predicted beside measured, how each ended."""
    from memgauge.report.study import chosen, conclusion_view, document, study_view, to_csv
    from memgauge.study.analysis.kept import kept
    from memgauge.study.merge import merged, open_study
    from memgauge.study.records import FINISHED

    study = merged([open_study(p, name) for p in places])
    trials = chosen(study, sort, descending, status)
    if csv is not None:
        text = to_csv(study, trials)
        if str(csv) == "-":
            sys.stdout.write(text)
            return
        write_text(csv, text)
        note(f"saved to {csv}")
        return
    analysis = kept(study)
    if as_json:
        show_json(document(study, trials, analysis))
        return
    show(study_view(study, trials, None if everything else ROWS), piped_width=PIPED_WIDTH)
    if analysis is not None:
        show("")
        show(conclusion_view(analysis), piped_width=PIPED_WIDTH)
    elif any(t.status in FINISHED for t in study.trials):
        note(f"memgauge study explain {' '.join(places)}  says what drives the memory")


@app.command(
    "explain",
    no_args_is_help=True,
    epilog="Example: memgauge study explain study.toml --json | jq .conclusion",
)
def explain(
    places: Places,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            "--figure",
            metavar="NAME",
            show_default=False,
            help="Explain this figure, such as peak_allocated_bytes; may be repeated.",
        ),
    ] = None,
    name: Name = None,
    as_json: options.AsJson = False,
) -> None:
    """Say which parameters drive the memory, with the evidence, and which are not above noise."""
    from memgauge.cli.running import running
    from memgauge.report.study import analysis_view, figures_of
    from memgauge.study.analysis.drivers import analyse
    from memgauge.study.analysis.kept import keep
    from memgauge.study.merge import merged, open_study

    study = merged([open_study(p, name) for p in places])
    _check_figures(figure, figures_of(study.trials))
    with running("explaining the study"):
        found = analyse(study, figure)
    if figure is None:
        keep(study, found)
    if as_json:
        show_json(found)
    else:
        show(analysis_view(found), piped_width=PIPED_WIDTH)


def _check_figures(figures: list[str] | None, there: list[str]) -> None:
    from memgauge.errors import nearest

    for figure in figures or []:
        if figure not in there:
            raise UsageError(
                f"--figure {figure}: no trial has it{nearest(figure, there)}; there are {', '.join(there)}"
            )


@app.command(
    "report",
    no_args_is_help=True,
    epilog="Example: memgauge study report study.toml -o study.html --trial 3 --trial 17",
)
def report(
    places: Places,
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path("study.html"),
    trial: Annotated[
        list[int] | None,
        typer.Option(
            "--trial",
            metavar="N",
            show_default=False,
            help="Draw the time line of this trial; may be repeated.",
        ),
    ] = None,
    name: Name = None,
) -> None:
    """Draw a study as one HTML page that works without a network, and print its conclusion."""
    from memgauge.cli.report import save_page
    from memgauge.cli.running import running
    from memgauge.report.study_page import study_page
    from memgauge.study.analysis.drivers import analyse
    from memgauge.study.analysis.kept import keep
    from memgauge.study.merge import merged, open_study

    options.writable(out)
    study = merged([open_study(p, name) for p in places])
    known = {t.number for t in study.trials}
    for number in trial or []:
        if number not in known:
            raise UsageError(
                f"--trial {number}: there is no such trial; they are 0 to {max(known, default=0)}"
            )
    with running("explaining and drawing the study"):
        found = analyse(study)
        keep(study, found)
        content = study_page(study, found, trial)
    save_page(out, content)
    for line in found.conclusion:
        sys.stdout.write(f"{line}\n")


@app.command(
    "merge", no_args_is_help=True, epilog="Example: memgauge study merge both.study here.study there.study"
)
def merge(
    out: Annotated[Path, typer.Argument(metavar="OUT", show_default=False, help="The folder to make.")],
    places: Places,
    name: Name = None,
) -> None:
    """Make one study of several, run on one machine or on many; the machine becomes a factor."""
    from memgauge.study.merge import merge_into, open_study

    found = merge_into(out, [open_study(p) for p in places], name)
    machines = {t.machine.name for t in found.trials if t.machine}
    note(f"{len(found.trials)} trials of {len(places)} studies and {len(machines)} machine(s) are in {out}")
    for text in found.notes:
        note(text)


@app.command("list", epilog="Example: memgauge study list")
def list_command() -> None:
    """Name the studies that come with memgauge."""
    from memgauge.report.tables import grid
    from memgauge.study.file import builtin_names, read

    table = grid("built-in study", "what it asks", flexible="what it asks")
    for found in builtin_names():
        table.add_row(found, read(found).study.title)
    show(table)
