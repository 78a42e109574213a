"""The binding itself (nvidia-ml-py), its structures and versions, over a library of NVML's declarations."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pynvml")
compiler = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(
    compiler is None or sys.platform != "linux", reason="needs a C compiler and Linux"
)
SOURCE = Path(__file__).with_name("nvml.c")

READ = """
import json, time
from memgauge.monitor import gpu, nvml, pcie
notes = []
(card,) = gpu.find_cards(lambda topic, text, remedy: notes.append(text))
def read(): return {q.metric: [q.instrument, card.read(q)] for q in card.quantities}
read()
import pynvml
source = pcie._gpm(pynvml, card.handle)
if source is not None:
    source._taken_ns -= 10**9  # a second ago
    source.sent()
print(json.dumps({
    "name": card.name, "identity": card.identity, "total": card.total_bytes, "read": read(),
    "processes": card.process_bytes(), "peaks": [card.accounted_peak(7), card.accounted_peak(8)],
    "notes": notes, "used": nvml.used_bytes(), "driver": nvml.driver_version(),
    "gpm": None if source is None else [source.sent(), source.received()],
}))
card.close()
"""


def read(folder: Path, *flags: str) -> dict[str, Any]:
    library = folder / "libnvidia-ml.so.1"
    assert compiler is not None
    subprocess.run([compiler, "-shared", "-fPIC", *flags, "-o", str(library), str(SOURCE)], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", READ], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_each_figure_arrives_with_its_unit(tmp_path: Path) -> None:
    said = read(tmp_path)
    assert (said["name"], said["driver"]) == ("NVIDIA H100 80GB HBM3", "580.159.04")
    assert said["total"] == 81559 << 20 and said["notes"] == []
    assert said["used"] == {"3f2504e0-4f89-11d3-9a0c-0305e82c3301": 1200 << 20}
    values = {metric: value for metric, (_, value) in said["read"].items()}
    assert values == {
        "gpu_used_bytes": 1200 << 20, "pcie_sent_bytes": 0, "pcie_received_bytes": 0,
        "gpu_utilisation_percent": 87, "gpu_power_mw": 250_000, "gpu_energy_mj": 1 << 40,
        "gpu_temperature_celsius": 61,
    }  # fmt: skip
    assert "counter" in said["read"]["pcie_sent_bytes"][0]
    assert said["processes"] == {"7": 5 << 30, "8": None}
    assert said["peaks"] == [6 << 30, None]
    sent, received = said["gpm"]
    assert 64 << 20 <= sent < 65 << 20 and 128 << 20 <= received < 130 << 20


def test_a_driver_older_than_the_binding_still_tells_of_processes(tmp_path: Path) -> None:
    said = read(tmp_path, "-DOLD")
    assert said["processes"] == {"7": 5 << 30, "8": None}
    assert said["notes"] == [] and said["gpm"] is None
    assert "20 ms" in said["read"]["pcie_sent_bytes"][0]
