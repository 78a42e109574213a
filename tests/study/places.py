"""Where the tests of studies run: a target that can be held at a gate, the command line, a PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TARGET = """
import os, memgauge, torch
from memgauge.monitor.marks import is_recorded

def make(width: int = 16, batch_size: int = 4, lr: float = 0.1, fail_at: int = 0, hold_mib: int = 0, gate: str = "",
         fill: str = "", leave: int = -1):
    def build():
        return torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 4))
    def batch():
        return torch.randn(batch_size, 16), torch.randint(0, 4, (batch_size,))
    def step(model, batch):  # without torch.optim, whose import doubles the time of a trial
        if is_recorded():  # in the trial itself, not while it is estimated
            if fail_at and width >= fail_at:
                raise ValueError(f"the width of {width} is too much for me")
            if leave >= 0:
                os._exit(leave)
            if hold_mib:
                held = torch.ones(hold_mib * 2**18)
            if fill and not os.path.exists("filled"):
                open("filled", "w").close()
                with open(fill, "wb", buffering=0) as filler:
                    try:
                        while filler.write(bytes(4096)): pass
                    except OSError: pass
            if gate:
                with open(gate + ".say", "w") as say: say.write(f"{os.getpid()}\\n")
                with open(gate + ".go") as go: go.read()
        torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad
                p.grad = None
    return memgauge.Workload(build=build, batch=batch, step=step)
"""
HEAD = '[study]\nname = "try"\ntarget = "target.py:make"\nthreads = 1\nbaselines = 0\n'
ONE = "[limits]\nsteps = 1\n[space.width]\nvalues = [16]\n"


class Gate:
    """Where trials wait: `arrived` returns the pid of one that does, `open` lets it pass."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for way in ("say", "go"):
            os.mkfifo(f"{path}.{way}")

    def arrived(self) -> int:
        with open(f"{self.path}.say") as file:
            return int(file.read().split()[0])

    def open(self) -> None:
        with open(f"{self.path}.go", "w") as file:
            file.write("x")


class Place:
    """A folder with a target and a study; `memgauge` runs the command line there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "target.py").write_text(TARGET)
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._started: list[subprocess.Popen[str]] = []

    def study(self, text: str, head: str = HEAD) -> Path:
        path = self.folder / "study.toml"
        path.write_text(head + text)
        return path

    def gate(self) -> Gate:
        return Gate(self.folder / "gate")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "memgauge", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def memgauge(self, *arguments: str, code: int = 0) -> str:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, out + err
        return out + err if code else out

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def postgres_programs() -> Path | None:
    """Return the folder of PostgreSQL's server programs, None if it is not installed."""
    beside = shutil.which("pg_ctl")
    places = [Path(beside).resolve().parent] if beside else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((p for p in places if (p / "initdb").exists() and (p / "pg_ctl").exists()), None)


class Server:
    """A PostgreSQL server of our own, on a socket in a folder of its own."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs, self._folder = programs, folder
        self._as: list[str] = []
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(folder, "postgres", "postgres")
            self._as = ["runuser", "-u", "postgres", "--"]
        self._run("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "me", "--no-sync")
        self.start()
        self.url = f"postgresql://me@/postgres?host={folder}&port=54329"

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as, str(self._programs / program), *arguments]
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def start(self) -> None:
        options = f"-k {self._folder} -p 54329 -c listen_addresses='' -c fsync=off"
        self._run(
            "pg_ctl", "-D", f"{self._folder}/data", "-l", f"{self._folder}/log", "-w", "-o", options, "start"
        )

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-m", "immediate", "-w", "stop")
