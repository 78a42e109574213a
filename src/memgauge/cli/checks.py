"""What `memgauge doctor` tries: each thing for real, and in a process of its own.

A broken installation may crash or hang the process that imports it; here that
is a finding like any other.
"""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from memgauge.cli.documents import Check
from memgauge.units import format_bytes
from memgauge.version import installed_version

PACKAGES = {  # distribution: the line that installs it
    "torch": 'pip install "memgauge[torch]"',
    "torchvision": 'pip install "memgauge[models]"',
    "timm": 'pip install "memgauge[models]"',
    "transformers": 'pip install "memgauge[models]"',
    "cloudpickle": 'pip install "memgauge[torch]"',
    "nvidia-ml-py": "pip install nvidia-ml-py",
    "psutil": "pip install psutil",
    "typer": "pip install typer",
    "rich": "pip install rich",
    "msgspec": "pip install msgspec",
    "numpy": "pip install numpy",
}
_TIMEOUT_S = 300
_LIMIT_FILES = {"": "memory.max", "memory": "memory.limit_in_bytes"}  # cgroup v2, v1
_NO_LIMIT = 2**60  # v1 writes a number near 2^63 where there is none

_CUDA = """
import json, torch
found = {"built": torch.version.cuda, "version": torch.__version__, "devices": [], "error": ""}
try:
    torch.cuda.init()
    for i in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(i)
        found["devices"].append([facts.name, facts.total_memory])
except Exception as error:
    found["error"] = str(error).strip().splitlines()[0]
print(json.dumps(found))
"""
_NVML = """
import json
try:
    import pynvml
except ImportError:
    print(json.dumps({"installed": False}))
else:
    found = {"installed": True, "error": "", "driver": "", "count": 0}
    try:
        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
        found["driver"] = driver.decode() if isinstance(driver, bytes) else driver
        found["count"] = pynvml.nvmlDeviceGetCount()
    except Exception as error:
        found["error"] = str(error)
    print(json.dumps(found))
"""


def versions() -> dict[str, str | None]:
    """Return the version of Python, of memgauge and of each package that it can use; None if missing."""
    found: dict[str, str | None] = {"python": platform.python_version(), "memgauge": installed_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def run_python(*arguments: str) -> tuple[int, str, str]:
    """Run Python in a fresh process; returns exit code, output and the last line of its errors."""
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer within {_TIMEOUT_S} s"
    said = done.stderr.strip().splitlines()
    return done.returncode, done.stdout, said[-1].removeprefix("memgauge: ") if said else ""


def prediction() -> Check:
    """Try to predict a tiny network."""
    return _tiny("prediction", "estimate", "predicted")


def measurement() -> Check:
    """Try to really run a tiny network."""
    return _tiny("measurement", "measure", "measured")


def _tiny(name: str, verb: str, done: str) -> Check:
    code, output, said = run_python("-m", "memgauge", verb, "zoo:mlp", "--steps", "1", "--json")
    if code not in (0, 1) or not output:
        remedy = said.partition("run: ")[2] or f"MEMGAUGE_DEBUG=1 memgauge {verb} zoo:mlp shows more"
        detail = f"{verb} zoo:mlp failed: {said or f'exit code {code}'}"
        return Check(name=name, state="no", detail=detail, remedy=remedy, is_needed=True)
    peak: dict[str, Any] = msgspec.json.decode(output)["peak"]
    if peak["allocated_bytes"] is None:
        remedy = f"memgauge {verb} zoo:mlp says why"
        return Check(name=name, state="no", detail=said or "it died", remedy=remedy, is_needed=True)
    detail = f"one step of zoo:mlp {done}: {format_bytes(peak['allocated_bytes'])} at the peak"
    return Check(name=name, state="ok", detail=detail, is_needed=True)


def cuda() -> Check:
    """Look for a CUDA device that torch can use."""
    code, output, said = run_python("-c", _CUDA)
    if code != 0:
        remedy = (
            PACKAGES["torch"] if "No module named 'torch'" in said else "repair the installation of torch"
        )
        return Check(name="CUDA", state="no", detail=said or f"exit code {code}", remedy=remedy)
    found = msgspec.json.decode(output.strip().splitlines()[-1])
    if found["devices"]:
        listed = ", ".join(f"{name} ({format_bytes(size)})" for name, size in found["devices"])
        return Check(name="CUDA", state="ok", detail=listed)
    if found["built"] is None:
        detail = f"torch {found['version']} is built without CUDA"
        remedy = "to measure on a GPU, install a CUDA build of torch; predicting for GPUs works without"
    else:
        detail = found["error"] or "torch sees no CUDA device"
        remedy = "install the GPU's driver, or measure where there is a GPU; predicting works without"
    return Check(name="CUDA", state="no", detail=detail, remedy=remedy)


def nvml() -> Check:
    """Look for NVIDIA's management library."""
    code, output, said = run_python("-c", _NVML)
    if code != 0:
        return Check(
            name="NVML", state="no", detail=said or f"exit code {code}", remedy="repair nvidia-ml-py"
        )
    found = msgspec.json.decode(output)
    if not found["installed"]:
        remedy = PACKAGES["nvidia-ml-py"]
        return Check(name="NVML", state="no", detail="nvidia-ml-py is not installed", remedy=remedy)
    if found["error"]:
        remedy = "install NVIDIA's driver; only needed where there is a GPU"
        return Check(name="NVML", state="no", detail=found["error"], remedy=remedy)
    detail = f"driver {found['driver']}, {found['count']} GPUs"
    return Check(name="NVML", state="ok", detail=detail)


def resident_peak() -> Check:
    """Try to reset the kernel's record of the highest resident memory (proc(5), clear_refs)."""
    name = "exact resident peak"
    code, _, said = run_python("-c", "open('/proc/self/clear_refs', 'w').write('5')")
    if code == 0:
        return Check(name=name, state="ok", detail="VmHWM can be reset, so the peak is that of the run alone")
    return Check(
        name=name,
        state="limited",
        detail=f"VmHWM cannot be reset: {said}",
        remedy="resident peaks include the imports; allow writing /proc/self/clear_refs to leave them out",
    )


def memory_limit() -> Check:
    """Read the limit that a container or batch system has put on this process (cgroups)."""
    limits = list(cgroup_limits())
    name = "memory limit"
    if not limits:
        return Check(name=name, state="ok", detail="no cgroup limit")
    limit, where = min(limits)
    remedy = "what exceeds it is killed; raise the limit of the container or job for larger runs"
    return Check(name=name, state="limited", detail=f"{format_bytes(limit)} ({where})", remedy=remedy)


def cgroup_limits(root: Path = Path("/")) -> list[tuple[int, str]]:
    """Return the limits on this process's control groups and all above them, with the file of each."""
    found = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controller, path = line.split(":", 2)
        if controller not in _LIMIT_FILES:
            continue
        top = root / "sys/fs/cgroup" / controller
        group = top / path.strip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            try:
                limit = int((folder / _LIMIT_FILES[controller]).read_text())
            except (OSError, ValueError):  # no such group from here, or "max"
                continue
            if limit < _NO_LIMIT:
                found.append((limit, str(folder / _LIMIT_FILES[controller])))
    return found


def overcommit(path: Path = Path("/proc/sys/vm/overcommit_memory")) -> Check:
    """Read whether the kernel hands out more memory than there is."""
    name = "overcommit"
    try:
        mode = path.read_text().strip()
    except OSError:
        return Check(name=name, state="ok", detail="not a setting of this system")
    if mode == "2":
        return Check(
            name=name,
            state="limited",
            detail="strict (vm.overcommit_memory=2): requests fail though resident memory is free",
            remedy="set vm.overcommit_memory=0, or count virtual memory against CommitLimit in /proc/meminfo",
        )
    return Check(name=name, state="ok", detail={"0": "heuristic", "1": "always"}.get(mode, mode))


ALL = (prediction, measurement, cuda, nvml, resident_peak, memory_limit, overcommit)
