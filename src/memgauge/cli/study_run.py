"""`memgauge study run`: the trials of a study, or its plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memgauge.cli import options
from memgauge.cli.output import note, show, show_json
from memgauge.errors import UsageError

if TYPE_CHECKING:
    from memgauge.study.analysis.records import Analysis
    from memgauge.study.file import StudyFile
    from memgauge.study.local import Executor
    from memgauge.study.records import StudyRecord
    from memgauge.study.runner import Options, Runner

ROWS = 50
PIPED_WIDTH = 200  # a table of trials has many columns
EPILOG = (
    "Example: memgauge study run study.toml\n\n"
    "Example: memgauge study run study.toml --jobs 4 --ledger postgresql://me@host/studies\n\n"
    "Ctrl-C or a kill loses nothing: the same command goes on where it was."
)


File = Annotated[
    str,
    typer.Argument(
        metavar="FILE|NAME", show_default=False, help="A study file, or the name of a built-in study."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--out",
        metavar="DIR",
        show_default=False,
        help="Folder of ledger and run files; NAME.study here by default.",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "-j",
        "--jobs",
        metavar="N",
        help="Trials at the same time, as far as predicted memory and cores allow.",
    ),
]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        show_default=False,
        help="postgresql://user@host/name, if several machines share the study.",
    ),
]
ExecutorName = Annotated[
    str, typer.Option("--executor", metavar="NAME", help="local, or ray for a Ray cluster.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address", metavar="ADDRESS", show_default=False, help="Of the Ray cluster; 'auto' by default."
    ),
]
RepeatDisturbed = Annotated[
    bool, typer.Option("--repeat-disturbed", help="Run trials again that other work disturbed.")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Run trials again whose model raised.")]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Run trials that another machine claimed and never finished.")
]
AtMost = Annotated[
    int | None,
    typer.Option(
        "--at-most", metavar="N", show_default=False, help="Stop after so many trials; run again to go on."
    ),
]
MachineName = Annotated[
    str | None,
    typer.Option(
        "--machine",
        metavar="NAME",
        show_default=False,
        help="What to call this machine; its host name by default.",
    ),
]
Plan = Annotated[
    bool,
    typer.Option(
        "--plan", help="Estimate what would be run, and run no trial; exit code 1 if some cannot fit."
    ),
]


def run(
    file: File,
    out: Out = None,
    jobs: Jobs = 1,
    ledger: LedgerUrl = None,
    executor: ExecutorName = "local",
    ray_address: RayAddress = None,
    repeat_disturbed: RepeatDisturbed = False,
    retry_failed: RetryFailed = False,
    take_over: TakeOver = False,
    at_most: AtMost = None,
    machine: MachineName = None,
    plan: Plan = False,
    as_json: options.AsJson = False,
) -> None:
    """Run the trials of a study that are not done yet, then say what they mean.

    Exit code 0: all that could run is done; what ran out of memory or time, or cannot fit, is an answer.
    1: some trials failed, or none fits here. 2: the study is wrong, found before anything ran. 3: something is missing here.
    """
    options.check_counts(jobs=jobs, at_most=at_most)
    make = _executor(executor, ray_address)
    from memgauge.study.file import read

    described = read(file)
    if plan:
        _plan(described, machine, as_json)
        return
    from memgauge.study.merge import folder_of
    from memgauge.study.runner import Options

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
    try:
        record = _run(described, folder, asked, make)
    except KeyboardInterrupt:
        note(f"interrupted; what is done is kept, the same command goes on: memgauge study run {file}")
        raise
    _tell(record, folder, as_json)


def _executor(name: str, ray_address: str | None) -> Callable[[Runner], Executor] | None:
    """Return what makes the executor of that name; None for the one of this machine.

    Raises:
        UsageError: There is none of that name, or it has no address.
    """
    if name not in ("local", "ray"):
        raise UsageError(f"--executor {name} is unknown; it is local or ray")
    if name == "local":
        if ray_address is not None:
            raise UsageError("--ray-address is for --executor ray")
        return None
    from memgauge.study.on_ray import on_ray

    return on_ray(ray_address)


def _run(
    described: StudyFile, folder: Path, asked: Options, make: Callable[[Runner], Executor] | None
) -> StudyRecord:
    """Run a study with progress; a ledger that is elsewhere is noted in the study's folder."""
    from memgauge.cli.study_progress import StudyProgress
    from memgauge.study.database import shown
    from memgauge.study.merge import URL_FILE
    from memgauge.study.runner import Runner

    with StudyProgress() as progress:
        runner = Runner(described, folder, asked, progress, make)
        if asked.ledger is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / URL_FILE).write_text(f"{shown(asked.ledger)}\n{described.study.name}\n")
        return runner.run()


def _tell(record: StudyRecord, folder: Path, as_json: bool) -> None:
    """Show a study that has just been run; exit code 1 if some of its trials failed."""
    from memgauge.report.study import analysis_view, document, study_view
    from memgauge.study.analysis.drivers import usable

    analysis = _explained(record)
    if as_json:
        show_json(document(record, record.trials, analysis))
    else:
        show(study_view(record, record.trials, ROWS), piped_width=PIPED_WIDTH)
        if analysis is not None:
            show("")
            show(analysis_view(analysis), piped_width=PIPED_WIDTH)
        note(f"memgauge study report {folder} -o {folder.name.removesuffix('.study')}.html  draws it")
    failed = sum(t.status == "failed" for t in usable(record))
    if failed:
        note(
            f"{failed} of {len(record.trials)} trials failed: memgauge study show {folder} --status failed; "
            "--retry-failed runs them again"
        )
    fits_none = bool(record.trials) and all(t.status == "does-not-fit" for t in record.trials)
    if fits_none:
        note("no trial of the study fits here, so none was run")
    if failed or fits_none:
        raise typer.Exit(1)


def _explained(record: StudyRecord) -> Analysis | None:
    from memgauge.cli.running import running
    from memgauge.errors import MissingError
    from memgauge.study.analysis.drivers import analyse
    from memgauge.study.analysis.kept import keep, kept

    before = kept(record)
    if before is not None:
        return before
    try:
        with running("explaining the study"):
            found = analyse(record)
    except MissingError as error:
        note(str(error))
        return None
    keep(record, found)
    return found


def _plan(described: StudyFile, machine: str | None, as_json: bool) -> None:
    from memgauge.cli.study_progress import StudyProgress
    from memgauge.report.study import document, study_view
    from memgauge.study.forecast import planned
    from memgauge.study.machine import this_machine

    with StudyProgress() as progress:
        record = planned(described, this_machine(machine), progress.say)
    if as_json:
        show_json(document(record, record.trials))
    else:
        show(study_view(record, record.trials, ROWS), piped_width=PIPED_WIDTH)
    if any(t.status == "does-not-fit" for t in record.trials):
        raise typer.Exit(1)
