"""`memgauge study`: run a study, show its table, explain it, draw it, make one of several."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from memgauge.cli import options
from memgauge.cli.output import note, show, show_json
from memgauge.errors import UsageError

EPILOG = (
    "Example: memgauge study run study.toml --jobs 2, then: memgauge study report study.toml -o study.html"
)
_ROWS = 50
_PIPED_WIDTH = 200  # a table of trials has many columns

app = typer.Typer(
    no_args_is_help=True,
    help="Many trials, each in a fresh process under the monitor, and what drives their memory.",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)

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
    "run",
    no_args_is_help=True,
    epilog="Example: memgauge study run study.toml\n\n"
    "Example: memgauge study run study.toml --jobs 4 --ledger postgresql://me@host/studies\n\n"
    "Ctrl-C or a kill loses nothing: the same command goes on where it was.",
)
def run(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME", show_default=False, help="A study file, or the name of a built-in study."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="DIR",
            show_default=False,
            help="Folder of ledger and run files; NAME.study here by default.",
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "-j",
            "--jobs",
            metavar="N",
            help="Trials at the same time, as far as predicted memory and cores allow.",
        ),
    ] = 1,
    ledger: Annotated[
        str | None,
        typer.Option(
            "--ledger",
            metavar="URL",
            show_default=False,
            help="postgresql://user@host/name, if several machines share the study.",
        ),
    ] = None,
    executor: Annotated[
        str, typer.Option("--executor", metavar="NAME", help="local, or ray for a Ray cluster.")
    ] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(
            "--ray-address",
            metavar="ADDRESS",
            show_default=False,
            help="Of the Ray cluster; 'auto' by default.",
        ),
    ] = None,
    repeat_disturbed: Annotated[
        bool, typer.Option("--repeat-disturbed", help="Run trials again that other work disturbed.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run trials again whose model raised.")
    ] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Run trials that another machine claimed and never finished.")
    ] = False,
    at_most: Annotated[
        int | None,
        typer.Option(
            "--at-most",
            metavar="N",
            show_default=False,
            help="Stop after so many trials; run again to go on.",
        ),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            metavar="NAME",
            show_default=False,
            help="What to call this machine; its host name by default.",
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be run, and run nothing.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Run the trials of a study that are not done yet, then say what they mean."""
    options.check_counts(jobs=jobs, at_most=at_most)
    if executor not in ("local", "ray"):
        raise UsageError(f"--executor {executor} is unknown; it is local or ray")
    if ray_address is not None and executor != "ray":
        raise UsageError("--ray-address is for --executor ray")
    from memgauge.study.file import read

    described = read(file)
    if plan:
        _plan(described, as_json)
        return
    from memgauge.cli.study_progress import StudyProgress
    from memgauge.study.ledger import shown
    from memgauge.study.merge import URL_FILE, folder_of
    from memgauge.study.runner import Options, Runner

    folder = out or folder_of(described.study.name)
    asked = Options(
        jobs=jobs,
        ledger=ledger,
        repeat_disturbed=repeat_disturbed,
        retry_failed=retry_failed,
        take_over=take_over,
        machine=machine,
        at_most=at_most,
    )
    make = None
    if executor == "ray":
        from memgauge.study.on_ray import on_ray

        make = on_ray(ray_address)
    with StudyProgress() as progress:
        runner = Runner(described, folder, asked, progress, make)
        try:
            if ledger is not None:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / URL_FILE).write_text(f"{shown(ledger)}\n{described.study.name}\n")
            record = runner.run()
        except KeyboardInterrupt:
            note(f"interrupted; what is done is kept, the same command goes on: memgauge study run {file}")
            raise
    from memgauge.report.study import document, study_view

    if as_json:
        show_json(document(record, record.trials))
        return
    show(study_view(record, record.trials, _ROWS), piped_width=_PIPED_WIDTH)
    _say_conclusion(record)
    note(f"memgauge study report {folder} -o {folder.name.removesuffix('.study')}.html  draws it")


def _say_conclusion(record: object) -> None:
    from memgauge.cli.running import running
    from memgauge.errors import MissingError
    from memgauge.report.study import analysis_view
    from memgauge.study.analysis.drivers import analyse
    from memgauge.study.records import StudyRecord

    assert isinstance(record, StudyRecord)
    try:
        with running("explaining the study"):
            found = analyse(record)
    except MissingError as error:
        note(str(error))
        return
    show("")
    show(analysis_view(found), piped_width=_PIPED_WIDTH)


def _plan(described: object, as_json: bool) -> None:
    from memgauge.study.file import StudyFile
    from memgauge.study.plan import points_of, subject_of

    assert isinstance(described, StudyFile)
    points = points_of(described)
    for point in points:
        subject_of(described, point, described.study.threads)
    from memgauge.report.study import document, study_view
    from memgauge.study.records import StudyRecord, Trial

    repeats = range(described.study.repeats)
    trials = [
        Trial(number=i, params=p, repeat=r)
        for i, (r, p) in enumerate((r, p) for r in repeats for p in points)
    ]
    record = StudyRecord(name=described.study.name, file={}, trials=trials)
    if as_json:
        show_json(document(record, trials))
    else:
        show(study_view(record, trials, _ROWS), piped_width=_PIPED_WIDTH)


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
    everything: Annotated[bool, typer.Option("--all", help=f"All rows, not only {_ROWS}.")] = False,
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
    from memgauge.report.study import chosen, document, study_view, to_csv
    from memgauge.study.merge import merged, open_study

    study = merged([open_study(p, name) for p in places])
    trials = chosen(study, sort, descending, status)
    if csv is not None:
        text = to_csv(study, trials)
        if str(csv) == "-":
            sys.stdout.write(text)
            return
        _save(csv, text)
        return
    if as_json:
        show_json(document(study, trials))
        return
    show(study_view(study, trials, None if everything else _ROWS), piped_width=_PIPED_WIDTH)


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
    from memgauge.study.merge import merged, open_study

    study = merged([open_study(p, name) for p in places])
    _check_figures(figure, figures_of(study.trials))
    with running("explaining the study"):
        found = analyse(study, figure)
    if as_json:
        show_json(found)
    else:
        show(analysis_view(found), piped_width=_PIPED_WIDTH)


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


def _save(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    note(f"saved to {path}")
