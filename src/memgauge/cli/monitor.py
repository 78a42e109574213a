"""`memgauge monitor`: record a running job into a run file."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from memgauge.errors import UsageError

EPILOG = (
    "Example: memgauge monitor -o run.mg -- python train.py --epochs 3\n\n"
    "Example: memgauge monitor --pid 4711 --interval 10ms\n\n"
    "Exit code: that of COMMAND, or its signal; with --pid 0. 126 and 127 as in a shell."
)
CONTEXT: dict[str, Any] = {"allow_interspersed_args": False}


def command(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", show_default=False, help="What to run and record."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", show_default=False, help="The run file; by default named after the job."),
    ] = None,
    pid: Annotated[
        int | None, typer.Option("--pid", show_default=False, help="Record a process that runs already.")
    ] = None,
    interval: Annotated[
        str, typer.Option("-i", "--interval", help="Time between two readings of the fast lane, 1ms to 5s.")
    ] = "100ms",
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            show_default=False,
            help="Percent of one core that each lane may take; by default 2, and 8 for the fast lane under 10ms.",
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", show_default=False, help="What to call this run.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run file if it exists.")
    ] = False,
    estimate: Annotated[
        Path | None,
        typer.Option(
            "--estimate",
            metavar="JSON",
            show_default=False,
            help="Keep an estimate beside the recording, to compare.",
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Show memory while it runs; without a terminal a line now and then."),
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No summary at the end.")] = False,
    gpu: Annotated[bool, typer.Option("--gpu/--no-gpu", help="Read GPUs.")] = True,
    cgroup: Annotated[
        bool,
        typer.Option(
            "--cgroup",
            help="Give the command a memory control group of its own: the peak of its whole tree is then exact.",
        ),
    ] = False,
) -> None:
    """Record memory, CPU, disk, network and GPUs of a command and all that it starts.

    The command's output, exit code and signals are its own; the summary goes to stderr.
    """
    if (pid is None) == (not command):
        raise UsageError("give a COMMAND after --, or --pid PID; one of them")
    if cgroup and pid is not None:
        raise UsageError("--cgroup is for a COMMAND; a process that runs already stays in its group")
    if budget is not None and not 0.01 <= budget <= 100:
        raise UsageError(f"--budget {budget:g} is out of range; it is percent of one core, 0.01 to 100")
    from memgauge.monitor.launch import refuse_missing
    from memgauge.monitor.recorder import become_sampler, interval_ns

    if command:
        refuse_missing(command[0])
    path = (out or _free_name(command, pid)).absolute()
    config: dict[str, Any] = {
        "file": str(path),
        "interval_ns": interval_ns(interval),
        "pid": pid,
        "budget": None if budget is None else budget / 100,
        "title": title,
        "overwrite": overwrite,
        "gpu": gpu,
        "cgroup": cgroup,
        "summary": not quiet,
    }
    if estimate is not None:
        from memgauge.report.json import read_account
        from memgauge.storage import is_run_file

        read_account(estimate)  # what cannot be read is refused before anything starts
        if is_run_file(estimate) or not estimate.is_file():  # the sampler reads it once more
            raise UsageError(
                f"{estimate} is no JSON file; one is made by: memgauge estimate TARGET --out FILE"
            )
        config["estimate_file"] = str(estimate.resolve())
    if live:
        config["live"] = sys.stderr.isatty()
        config["watch"] = True
    if not quiet:  # said once the recording has begun: an error comes alone
        config["announce"] = [
            *([f"recording to {path.name}"] if out is None else []),
            *(
                [f"recording process {pid}; Ctrl-C ends the recording, not the process"]
                if pid is not None
                else []
            ),
        ]
    become_sampler(config, command or [])


def _free_name(command: list[str] | None, pid: int | None) -> Path:
    """Return a name that says what and when: `train-20260131-142530.mg`."""
    words = command or [f"pid-{pid}"]
    scripts = [w for w in words[1:] if w.endswith((".py", ".sh")) or w.startswith("-m")]
    stem = Path((scripts or words)[0]).stem
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")[:40] or "run"
    path = Path(f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}.mg")
    count = 1
    while os.path.lexists(path):
        count += 1
        path = path.with_name(f"{path.stem.split('~')[0]}~{count}.mg")
    return path
