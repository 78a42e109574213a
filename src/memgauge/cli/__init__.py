"""The command line: one command per file, and one boundary where errors become text and exit codes.

Exit codes: 0 done, 1 the answer is no or a run died, 2 wrong usage or input,
3 something is missing here, 70 a fault of memgauge's own, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from memgauge import environment
from memgauge.cli import (
    calibrate,
    compare,
    devices,
    doctor,
    estimate,
    export,
    fit,
    measure,
    monitor,
    report,
    reproduce,
    show,
    study,
    watch,
    zoo,
)
from memgauge.errors import MemgaugeError

INTERNAL_ERROR, INTERRUPTED, PIPE_CLOSED = 70, 130, 141

app = typer.Typer(
    name="memgauge",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: memgauge estimate zoo:gpt2 --device nvidia-t4 --batch-size 8",
)
for _name, _module in (
    ("estimate", estimate),
    ("measure", measure),
    ("fit", fit),
    ("compare", compare),
    ("monitor", monitor),
    ("show", show),
    ("watch", watch),
    ("export", export),
    ("report", report),
    ("devices", devices),
    ("calibrate", calibrate),
    ("zoo", zoo),
    ("reproduce", reproduce),
    ("doctor", doctor),
):
    _needs_arguments = _name not in ("devices", "calibrate", "zoo", "reproduce", "doctor")
    _context = getattr(_module, "CONTEXT", None)
    app.command(_name, no_args_is_help=_needs_arguments, epilog=_module.EPILOG, context_settings=_context)(
        _module.command
    )


app.add_typer(study.app, name="study")


def _print_version(asked: bool) -> None:
    if asked:
        from memgauge.version import installed_version

        typer.echo(f"memgauge {installed_version()}")
        raise typer.Exit


@app.callback()
def _app(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Know the memory of a neural network before it runs, watch it while it runs, explain the difference."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every error ends here.

    Args:
        arguments: What follows `memgauge` on the command line; `sys.argv` if None.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed by who started us
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    with contextlib.suppress(AttributeError, ValueError):  # a replaced stdout, as in tests
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        with environment.apart():  # options stand for variables of it
            code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except MemgaugeError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return PIPE_CLOSED
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own errors of usage
            return _misused(error)
        return _internal(error)


def _run(arguments: list[str]) -> int:
    """Parse and run; typer's own handling of errors is left out, since `main` has one for all."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("memgauge", arguments) as context:
            command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    return 0


def _fail(message: str, code: int) -> int:
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"memgauge: {message}\n")
    return code


def _misused(error: Exception) -> int:
    """Say what was wrong with the command line; help that was asked for by silence is printed already."""
    message = str(error.format_message()).strip()  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    if type(error).__name__ != "NoArgsIsHelpError":
        message += _given(error, message)
        hint = f"\nTry: {context.command_path} --help" if context is not None else ""
        return _fail(message + hint, getattr(error, "exit_code", 2))
    if message:
        sys.stdout.write(f"{message}\n")
    return 2


def _given(error: Exception, message: str) -> str:
    """Return what the user wrote where typer's message leaves it out: its cause, of pydantic, has it."""
    told = getattr(error.__cause__, "errors", None)
    found = repr(told()[0]["input"]) if told else ""
    return "" if found in message else f" (given: {found})"


def _internal(error: Exception) -> int:
    if os.environ.get("MEMGAUGE_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    first = str(error).strip().partition("\n")[0]
    said = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return _fail(
        f"internal error, please report it ({said}); MEMGAUGE_DEBUG=1 shows the traceback", INTERNAL_ERROR
    )


def _forget_stdout() -> None:
    """Let nothing be written when Python closes stdout at exit, whose reader is gone."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
