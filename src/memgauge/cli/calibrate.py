"""`memgauge calibrate`: measure this machine's own GPU constants, for later estimates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from memgauge.cli import options
from memgauge.cli.output import note, show, show_json, write_text
from memgauge.cli.running import running
from memgauge.errors import FileFormatError, MissingError

EPILOG = (
    "Example: memgauge calibrate && memgauge estimate zoo:gpt2 --device cuda\n\n"
    "Exit code: 0 done, 2 wrong usage, 3 there is no CUDA device here."
)

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        show_default=False,
        help="Device file to write; by default the one that --device cuda reads.",
    ),
]
_TIMEOUT_S = 300  # torch and its libraries may come from a cold disk
_MISSING = 3
# What would make the constants those of the user's settings, not the card's.
_SETTINGS = (
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
)


def command(out: Out = None, as_json: options.AsJson = False) -> None:
    """Measure context, workspaces and allocator constants of the GPU that is here, and write a device file."""
    from memgauge.calibration import Readings, calibrated, device_toml
    from memgauge.devices import calibration_file

    if out is None:
        out = calibration_file()
        out.parent.mkdir(parents=True, exist_ok=True)
    else:
        out = options.writable(out) or out
    with running("measuring this machine's GPU"):
        text = _measured()
    try:
        found = msgspec.json.decode(text, type=Readings)
    except msgspec.DecodeError as error:
        raise FileFormatError(f"the measurement's answer cannot be read: {error}") from error
    result = msgspec.structs.replace(calibrated(found), file=str(out))
    write_text(out, device_toml(result.device), "--out")
    note(f"saved to {out}")
    if as_json:
        show_json(result)
    else:
        from memgauge.report.calibration import calibration_view

        show(calibration_view(result))


def _measured() -> bytes:
    """Run the measurement in a fresh process; returns its JSON."""
    arguments = [sys.executable, "-m", "memgauge.frameworks.torch.cuda_ladder"]
    environment = {name: value for name, value in os.environ.items() if name not in _SETTINGS}
    try:
        done = subprocess.run(
            arguments, capture_output=True, timeout=_TIMEOUT_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise MissingError(f"the GPU gave no answer within {_TIMEOUT_S} s; is it in use by others?") from None
    said = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode == 0:
        return done.stdout
    last = said[-1].removeprefix("memgauge: ") if said else f"exit code {done.returncode}"
    if done.returncode == _MISSING:
        raise MissingError(last)
    raise MissingError(f"the measurement failed: {last}")
