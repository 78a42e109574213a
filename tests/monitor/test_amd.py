"""AMD GPUs, by amdsmi's documented answers played back at its boundary. Not run on hardware."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

from jobs import Job, values
from test_gpu import _Stepped

from memgauge.explain.recording import summarise
from memgauge.monitor.amd import find_amd_cards
from memgauge.storage import RunFile

MIB = 2**20


class _Refused(Exception):
    """As AmdSmiLibraryException is: a kind of AmdSmiException."""


class Replayed:
    """Answers as amdsmi 7.0 documents them, for one MI300X."""

    AmdSmiException = _Refused

    class AmdSmiInitFlags(enum.IntEnum):
        INIT_AMD_GPUS = 2

    class AmdSmiMemoryType(enum.IntEnum):
        VRAM = 0

    class AmdSmiTemperatureType(enum.IntEnum):
        HOTSPOT = 1

    class AmdSmiTemperatureMetric(enum.IntEnum):
        CURRENT = 0

    def __init__(self, processes: list[dict[str, Any]], refused: tuple[str, ...] = ()) -> None:
        self.processes, self.refused, self.count = processes, refused, 0

    def _may(self, name: str) -> None:
        if name in self.refused:
            raise _Refused("AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported")

    def amdsmi_init(self, flag: int) -> None:
        self._may("init")

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["card0"]

    def amdsmi_get_gpu_asic_info(self, handle: str) -> dict[str, Any]:
        return {"market_name": "AMD Instinct MI300X", "vendor_id": "0x1002", "device_id": "0x74a1"}

    def amdsmi_get_gpu_device_uuid(self, handle: str) -> str:
        return "a4ff74a1-0000-1000-80ff-ffffffffffff"

    def amdsmi_get_gpu_vram_usage(self, handle: str) -> dict[str, int]:
        return {"vram_total": 196_592, "vram_used": 300}

    def amdsmi_get_gpu_memory_usage(self, handle: str, kind: int) -> int:
        return 300 * MIB

    def amdsmi_get_gpu_activity(self, handle: str) -> dict[str, Any]:
        self._may("activity")
        return {"gfx_activity": 42, "umc_activity": 3, "mm_activity": "N/A"}

    def amdsmi_get_power_info(self, handle: str) -> dict[str, Any]:
        return {"current_socket_power": 140, "average_socket_power": "N/A"}

    def amdsmi_get_energy_count(self, handle: str) -> dict[str, Any]:
        self.count += 65_360  # of 15.3 µJ: one joule
        return {"energy_accumulator": self.count, "counter_resolution": 15.3, "timestamp": 1}

    def amdsmi_get_temp_metric(self, handle: str, kind: int, metric: int) -> Any:
        return "N/A"

    def amdsmi_get_gpu_process_list(self, handle: str) -> list[dict[str, Any]]:
        return self.processes


def process(pid: int, vram: object) -> dict[str, Any]:
    usage = {"gtt_mem": 2 * MIB, "cpu_mem": 8 * MIB, "vram_mem": vram}
    return {"name": "python", "pid": pid, "mem": vram, "memory_usage": usage}


def test_a_recording_holds_what_the_card_and_the_job_take(tmp_path: Path) -> None:
    job = Job("say(); wait()", tmp_path / "a.mg", wrap=False)
    job.heard()
    smi, path = Replayed([process(job.process.pid, 200 * MIB), process(1, 90 * MIB)]), tmp_path / "amd.mg"
    config = {"file": str(path), "interval_ns": 10**7, "pid": job.process.pid}
    _Stepped(config, amdsmi=smi).until_slow_ticks(3, job)
    job.end()
    with RunFile(path) as run:
        (device,) = summarise(run).devices
        assert {v for _, v in values(run, "gpu_process_bytes")} == {200 * MIB}
        assert {v for _, v in values(run, "gpu_power_mw")} == {140_000}
        notes = [n.text for n in run.notes if n.topic == "gpu"]
    assert (device.name, device.peak_used_bytes) == ("AMD Instinct MI300X", 300 * MIB)
    assert device.total_bytes == 196_592 * MIB
    assert device.mean_utilisation_percent == 42
    assert notes == ["AMD Instinct MI300X: gpu_temperature_celsius cannot be read: it answers N/A"]


def test_energy_is_the_accumulator_times_its_resolution() -> None:
    (card,) = find_amd_cards(lambda *_: None, Replayed([]))
    (energy,) = [q for q in card.quantities if q.metric == "gpu_energy_mj"]
    before, after = card.read(energy), card.read(energy)
    assert (before, after) == (2000, 3000)  # 65,360 × 15.3 µJ each; the first went to see whether it answers


def test_memory_that_the_driver_does_not_tell_is_unknown_not_zero() -> None:
    smi = Replayed([process(7, "N/A"), process(8, 5)])
    assert find_amd_cards(lambda *_: None, smi)[0].process_bytes() == {7: None, 8: 5}


def test_what_a_card_refuses_is_noted_once_and_left_out() -> None:
    said: list[str] = []
    (card,) = find_amd_cards(lambda topic, text, remedy: said.append(text), Replayed([], ("activity",)))
    assert "gpu_utilisation_percent" not in [q.metric for q in card.quantities]
    assert sum("gpu_utilisation_percent" in text for text in said) == 1


def test_a_driver_that_does_not_work_is_noted() -> None:
    said: list[str] = []
    assert find_amd_cards(lambda topic, text, remedy: said.append(text), Replayed([], ("init",))) == []
    assert "NOT_SUPPORTED" in said[0]
