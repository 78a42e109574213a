"""GPUs through NVML, by answers played back at the library's boundary. None of this ran on a card."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from jobs import Job, values
from replayed_nvml import Answer, Nvml, NVMLError
from test_faults import _Stepped

from memgauge.explain.recording import summarise
from memgauge.monitor import gpu, pcie
from memgauge.storage import RunFile


class Notes(list[str]):
    def __call__(self, topic: str, text: str, remedy: str) -> None:
        self.append(text)


def card(nvml: Nvml, notes: Notes | None = None) -> gpu.Card:
    (found,) = gpu.find_cards(notes if notes is not None else Notes(), nvml)
    return found


def quantity(found: gpu.Card, metric: str) -> gpu.Quantity:
    return next(q for q in found.quantities if q.metric == metric)


def test_pcie_is_read_from_counters_where_the_card_has_them() -> None:
    nvml = Nvml(fields={197: [1000, 1000, 1500], 198: [5000, 5000, 9000], 186: [1]})
    found = card(nvml)
    sent, received = quantity(found, "pcie_sent_bytes"), quantity(found, "pcie_received_bytes")
    assert "counter" in sent.instrument
    assert (found.read(sent), found.read(received)) == (0, 0)
    assert (found.read(sent), found.read(received)) == (500, 4000)


@pytest.mark.parametrize("bits", [32, 64])
def test_a_counter_that_wraps_goes_on(bits: int) -> None:
    nvml = Nvml(fields={197: [0, 2**bits - 100, 50], 198: [0, 0, 0], 186: [1]})
    found = card(nvml)
    sent = quantity(found, "pcie_sent_bytes")
    assert [found.read(sent), found.read(sent)] == [0, 150]


def test_without_counters_hopper_is_asked_by_gpm(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10**9]
    monkeypatch.setattr(pcie.time, "monotonic_ns", lambda: now[0])
    nvml = Nvml(fields={186: [1]})
    nvml.gpm_rate = 64.0  # MiB/s
    found = card(nvml)
    sent = quantity(found, "pcie_sent_bytes")
    assert "GPM" in sent.instrument
    assert found.read(sent) == 0
    now[0] += 50_000_000  # too soon: the driver would say zero
    assert found.read(sent) == 0
    now[0] += 450_000_000
    assert found.read(sent) == 32 * 2**20


@pytest.mark.parametrize("refused", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet"])
def test_what_has_no_gpm_is_asked_by_a_thread_of_its_own(refused: str) -> None:
    nvml = Nvml(refuses={refused}, fields={})
    found = card(nvml)
    received = quantity(found, "pcie_received_bytes")
    assert "20 ms" in received.instrument
    while not found.read(received):  # pytest's timeout is the limit
        time.sleep(0)
    found.close()


def test_energy_is_the_counter_and_power_the_instant_one() -> None:
    found = card(Nvml())
    assert found.read(quantity(found, "gpu_energy_mj")) == 1_000_000
    assert found.read(quantity(found, "gpu_power_mw")) == 250_000
    older = card(Nvml(fields={197: [0], 198: [0]}))
    assert "average over 1 s" in quantity(older, "gpu_power_mw").instrument


def test_what_a_card_refuses_is_noted_once_and_left_out() -> None:
    notes = Notes()
    found = card(Nvml(refuses={"nvmlDeviceGetTotalEnergyConsumption"}), notes)
    assert [n for n in notes if "gpu_energy_mj" in n] == [
        "NVIDIA H100 80GB HBM3: gpu_energy_mj cannot be read: Not Supported"
    ]
    assert "gpu_energy_mj" not in {q.metric for q in found.quantities}


@pytest.mark.parametrize("code", [9, 12])
def test_no_driver_is_normal_and_silent(code: int) -> None:
    nvml, notes = Nvml(), Notes()
    nvml.error = NVMLError(code, "Driver Not Loaded")
    assert gpu.find_cards(notes, nvml) == []
    assert notes == []


def test_a_driver_that_does_not_work_is_noted() -> None:
    nvml, notes = Nvml(), Notes()
    nvml.error = NVMLError(18, "Driver/library version mismatch")
    assert gpu.find_cards(notes, nvml) == []
    assert notes == ["NVML does not work: Driver/library version mismatch"]


def test_a_card_that_disappears_is_noted_once() -> None:
    nvml, notes = Nvml(), Notes()
    found = card(nvml, notes)
    used = quantity(found, "gpu_used_bytes")
    assert found.read(used) == 3 * 2**30
    nvml.error = NVMLError(15, "GPU is lost")
    assert found.read(used) is None
    assert found.read(used) is None
    assert [n for n in notes if "disappeared" in n] == [f"{found.name} (GPU-gpu0) disappeared: GPU is lost"]


def test_mig_slices_are_devices_without_what_only_the_whole_has() -> None:
    nvml, notes = Nvml(), Notes()
    nvml.slices = 2
    found = gpu.find_cards(notes, nvml)
    assert [c.identity for c in found] == ["MIG-gpu0/0", "MIG-gpu0/1"]
    assert [q.metric for q in found[0].quantities] == ["gpu_used_bytes"]
    assert any("MIG" in n for n in notes)


def test_memory_of_a_process_that_the_driver_does_not_tell_is_unknown_not_zero() -> None:
    nvml = Nvml()
    nvml.processes = [
        Answer(pid=7, usedGpuMemory=None),
        Answer(pid=8, usedGpuMemory=2**64 - 1),
        Answer(pid=9, usedGpuMemory=5),
    ]
    assert card(nvml).process_bytes() == {7: None, 8: None, 9: 5}


def test_a_driver_older_than_the_binding_is_asked_by_version() -> None:
    # nvidia-ml-py: the call without a version is version 3, and says so by an error of its own kind.
    class Mismatch(Exception): ...

    class Older(Nvml):
        NVMLLibraryMismatchError = Mismatch

        def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
            raise Mismatch

        nvmlDeviceGetGraphicsRunningProcesses = nvmlDeviceGetComputeRunningProcesses

        def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: str) -> list[Any]:
            return [Answer(pid=7, usedGpuMemory=5)]

        def nvmlDeviceGetGraphicsRunningProcesses_v2(self, handle: str) -> list[Any]:
            raise NVMLError(13, "Function Not Found")

    notes = Notes()
    assert card(Older(), notes).process_bytes() == {7: 5}
    assert notes == []  # graphics' are of no interest where compute's are known


def test_an_accounting_that_is_not_available_is_unknown() -> None:
    class Unavailable(Nvml):
        def nvmlDeviceGetAccountingStats(self, handle: str, pid: int) -> Any:
            raise TypeError("an integer is required")  # as the binding, which sets a C integer to None

    assert card(Unavailable()).accounted_peak(7) is None


def test_a_gpu_without_the_binding_is_noted_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pynvml", None)
    notes = Notes()
    assert gpu.find_cards(notes) == []
    assert notes == ["a GPU is here, but not the binding of NVML"]


def record(tmp_path: Path, nvml: Nvml, job: Job) -> RunFile:
    path = tmp_path / "gpu.mg"
    _Stepped({"file": str(path), "interval_ns": 10**7, "pid": job.process.pid}, nvml=nvml).until_slow_ticks(
        3, job
    )
    job.end()
    return RunFile(path)


def waiting(tmp_path: Path) -> Job:
    job = Job("say(); wait()", tmp_path / "a.mg", wrap=False)
    job.heard()
    return job


def test_a_recording_holds_device_and_process_and_the_drivers_own_peak(tmp_path: Path) -> None:
    job, nvml = waiting(tmp_path), Nvml(fields={197: [0, 0, 10**6], 198: [0, 0, 10**9], 186: [1]})
    nvml.processes = [Answer(pid=job.process.pid, usedGpuMemory=2**30), Answer(pid=1, usedGpuMemory=2**31)]
    nvml.accounted = {job.process.pid: 2**30 + 77}
    with record(tmp_path, nvml, job) as run:
        said = summarise(run)
        assert {v for _, v in values(run, "gpu_process_bytes")} == {2**30}
    (device,) = said.devices
    assert device.peak_used_bytes == 3 * 2**30
    assert (device.pcie_sent_bytes, device.pcie_received_bytes) == (10**6, 10**9)
    assert device.mean_utilisation_percent == 87
    peaks = {p.name: (p.bytes, p.kind) for p in said.peaks}
    assert peaks[f"process {job.process.pid} on the GPU"] == (2**30 + 77, "upper bound")
    assert peaks["NVIDIA H100 80GB HBM3, used"] == (3 * 2**30, "lower bound")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("nvmlDeviceGetName", "GPUs cannot be read"),
        ("nvmlDeviceGetComputeRunningProcesses", "is read no more"),
    ],
)
def test_what_the_binding_raises_of_its_own_does_not_end_a_recording(
    tmp_path: Path, broken: str, said: str
) -> None:
    def fail(*_: Any) -> Any:
        raise AttributeError(broken)

    job, nvml = waiting(tmp_path), Nvml()
    setattr(nvml, broken, fail)
    with record(tmp_path, nvml, job) as run:
        assert [n.text for n in run.notes if said in n.text and broken in n.text]
        assert values(run, "rss_bytes")


def test_a_containers_foreign_pids_are_explained(tmp_path: Path) -> None:
    job, nvml = waiting(tmp_path), Nvml()
    nvml.processes = [Answer(pid=4_000_000, usedGpuMemory=2**30)]
    with record(tmp_path, nvml, job) as run:
        assert any("container" in n.text for n in run.notes)
        assert values(run, "gpu_process_bytes") == []


def test_torchs_four_figures_travel_with_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from memgauge.monitor import framework_memory

    held = {"current": 10, "peak": 20}
    kept = {"current": 30, "peak": 40}
    cuda = Answer(
        is_initialized=lambda: True,
        current_device=lambda: 0,
        memory_stats_as_nested_dict=lambda device: {
            "allocated_bytes": {"all": held},
            "reserved_bytes": {"all": kept},
        },
    )
    monkeypatch.setitem(sys.modules, "torch", Answer(cuda=cuda))  # type: ignore[arg-type]
    import json

    facts: dict[str, Any] = json.loads(framework_memory.figures())
    assert (facts["allocated_bytes"], facts["allocated_peak_bytes"]) == (10, 20)
    assert (facts["reserved_bytes"], facts["reserved_peak_bytes"]) == (30, 40)


def test_tensorflows_own_peak_travels_with_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    import json
    import sys

    from memgauge.monitor import framework_memory

    reset: list[str] = []
    config = Answer(
        list_logical_devices=lambda: [Answer(device_type="CPU"), Answer(device_type="GPU")],
        experimental=Answer(
            get_memory_info=lambda place: {"current": 10, "peak": 20} if place == "GPU:0" else None,
            reset_memory_stats=reset.append,
        ),
    )
    context = Answer(_context=Answer(_initialized=False))
    monkeypatch.setattr(framework_memory, "_tensorflow_place", [])
    monkeypatch.setitem(sys.modules, "tensorflow", Answer(config=config))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "tensorflow.python.eager.context", context)  # type: ignore[arg-type]
    assert framework_memory.figures() == "null"  # it has not begun, and a mark must not begin it
    context._context._initialized = True
    facts = json.loads(framework_memory.figures())
    assert facts == {
        "framework": "tensorflow",
        "device": "GPU:0",
        "allocated_bytes": 10,
        "allocated_peak_bytes": 20,
    }
    framework_memory.reset_peaks()
    assert reset == ["GPU:0"]


def test_no_gpu_here_is_silent(tmp_path: Path) -> None:
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a GPU")
    path = tmp_path / "a.mg"
    job = Job("pass", path)
    _, _, err = job.end()
    with RunFile(path) as run:
        said = summarise(run)
    assert said.devices == ()
    assert said.unknown["devices"] == "no GPU was found"
    assert not [n for n in said.notes if n.topic == "gpu"]
    assert "GPU" not in err
