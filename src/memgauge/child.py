"""What runs in the fresh process of a measurement: one job in, one result file out.

    python -m memgauge.child JOB RESULT

A job is one kind of run of one workload. The result file is replaced whole
each time there is more to say, so that a process that is killed leaves what
was seen until then.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec

from memgauge import environment
from memgauge.errors import MemgaugeError
from memgauge.records import Trace
from memgauge.targets import TargetOptions, resolve
from memgauge.usercode import user_traceback
from memgauge.workload import Workload


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One run to make: of a target by its name, or of a workload that was pickled."""

    kind: str  # "profiled", "bare", "baseline" or "cuda"
    target: str | None = None
    options: TargetOptions = TargetOptions()
    sets: dict[str, str] = {}
    pickled: bytes | None = None
    device: str = "cpu"
    steps: int = 3
    threads: int | None = None
    import_path: tuple[str, ...] = ()


class Result(msgspec.Struct, kw_only=True):
    """What a run had to say; fields that its kind does not know stay None."""

    trace: Trace | None = None
    resident: dict[str, Any] | None = None
    device: dict[str, Any] | None = None
    threads: int | None = None
    versions: dict[str, str] = {}
    description: dict[str, Any] = {}
    error: str | None = None  # the user's own traceback, or what memgauge has to say
    error_kind: str | None = None  # name of the exception's class
    exit_code: int = 0


class _Writer:
    def __init__(self, path: Path, result: Result) -> None:
        self._path = path
        self.result = result

    def write(self) -> None:
        aside = self._path.with_suffix(".part")
        aside.write_bytes(msgspec.msgpack.encode(self.result))
        os.replace(aside, self._path)


def load_workload(job: Job) -> Workload:
    """Return the job's workload, resolved in this process."""
    for entry in reversed(job.import_path):
        if entry not in sys.path:
            sys.path.insert(0, entry)
    if job.target is not None:
        workload = resolve(job.target, job.options, job.sets)
        environment.put(workload.own.variables)
        return workload
    import cloudpickle

    workload = cloudpickle.loads(job.pickled)
    assert isinstance(workload, Workload)
    return workload


def run_job(job: Job, writer: _Writer) -> None:
    """Run the job and write its result as it becomes known."""
    import torch

    if job.threads is not None:
        torch.set_num_threads(job.threads)
    result = writer.result
    result.threads = torch.get_num_threads()
    result.versions = {"torch": str(torch.__version__)}
    if job.device == "cuda":
        from memgauge.frameworks.torch.cuda_run import require_cuda

        require_cuda()
    workload = load_workload(job)
    result.description = dict(workload.description)
    if job.kind in ("bare", "baseline"):
        from memgauge.frameworks.torch.bare import bare_run, resident_bytes

        if job.kind == "baseline":
            resident = resident_bytes()
            result.resident = {
                "baseline_bytes": resident,
                "peak_bytes": resident,
                "step_ns": [],
                "has_dynamo": "torch._dynamo" in sys.modules,
            }
            writer.write()
            return

        def report(run: Any) -> None:
            result.resident = msgspec.to_builtins(run)
            writer.write()

        bare_run(workload, steps=job.steps, device=job.device, report=report)
    elif job.kind == "profiled":
        from memgauge.frameworks.torch.profiled import profiled_run

        try:
            result.trace = profiled_run(workload, steps=job.steps)
        except Exception as error:
            result.trace = getattr(error, "partial_trace", None)
            raise
    else:
        from memgauge.frameworks.torch.cuda_run import cuda_run

        result.trace, result.device = cuda_run(workload, steps=job.steps)
    writer.write()


def main() -> int:
    """Run one job; the exit code is that of the error, if there was one."""
    job = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=Job)
    writer = _Writer(Path(sys.argv[2]), Result())
    try:
        run_job(job, writer)
    except MemgaugeError as error:
        writer.result.error, writer.result.error_kind = str(error), type(error).__name__
        writer.result.exit_code = error.exit_code
    except Exception as error:
        writer.result.error, writer.result.error_kind = user_traceback(error), type(error).__name__
        writer.result.exit_code = 2
        if os.environ.get("MEMGAUGE_DEBUG"):
            traceback.print_exc()
    writer.write()
    return writer.result.exit_code


if __name__ == "__main__":
    sys.exit(main())
