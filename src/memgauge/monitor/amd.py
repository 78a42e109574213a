"""What AMD GPUs report, through amdsmi, in the same quantities as NVIDIA's.

Energy comes from the accumulator, never from power. PCIe traffic is left out: the driver's old file for
it sleeps for a second at each reading, and amdsmi gives a bandwidth of unstated window. What amdsmi
does not know it calls "N/A".

Source: amdsmi 7.0, Python interface (rocm.docs.amd.com/projects/amdsmi). Not yet run on hardware.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memgauge.monitor.quantity import Note, Quantity

ENERGY_US = 100_000  # a cautious guess: AMD states no refresh time of the accumulator
ACTIVITY_US = 100_000
_MIB = 2**20


class AmdCard:
    """One AMD GPU: the same interface as `gpu.Card`.

    Args:
        amdsmi: The module, or one that answers as it does.
        handle: The processor handle.
        note: Is told what cannot be read.
    """

    process_instrument = "amdsmi_get_gpu_process_list, vram_mem"

    def __init__(self, amdsmi: Any, handle: Any, note: Note) -> None:
        self._amdsmi, self._handle, self._note = amdsmi, handle, note
        asic = self._ask(amdsmi.amdsmi_get_gpu_asic_info) or {}
        self.name = str(asic.get("market_name") or "AMD GPU")
        self.identity = str(self._ask(amdsmi.amdsmi_get_gpu_device_uuid) or "")
        usage = self._ask(amdsmi.amdsmi_get_gpu_vram_usage) or {}
        total = _number(usage.get("vram_total"))
        self.total_bytes = None if total is None else total * _MIB
        self.is_lost = False
        self.device = 0  # its id in the run file, once it has one
        self._refused: set[str] = set()
        self.quantities = [q for q in self._candidates() if self._answers(q)]

    def _candidates(self) -> list[Quantity]:
        amdsmi, handle = self._amdsmi, self._handle

        def used() -> int | None:
            kind = amdsmi.AmdSmiMemoryType.VRAM
            return _number(amdsmi.amdsmi_get_gpu_memory_usage(handle, kind))

        def busy() -> int | None:
            return _number(amdsmi.amdsmi_get_gpu_activity(handle)["gfx_activity"])

        def power() -> int | None:
            facts = amdsmi.amdsmi_get_power_info(handle)
            watts = _number(facts.get("current_socket_power"))
            watts = _number(facts.get("average_socket_power")) if watts is None else watts
            return None if watts is None else watts * 1000

        def energy() -> int | None:
            facts = amdsmi.amdsmi_get_energy_count(handle)
            count = facts.get("energy_accumulator", facts.get("power"))  # its name before 6.4
            return None if count is None else round(count * facts["counter_resolution"] / 1000)

        def temperature() -> int | None:
            kinds, metric = amdsmi.AmdSmiTemperatureType, amdsmi.AmdSmiTemperatureMetric.CURRENT
            return _number(amdsmi.amdsmi_get_temp_metric(handle, kinds.HOTSPOT, metric))

        return [
            Quantity("gpu_used_bytes", "fast", "amdsmi_get_gpu_memory_usage, VRAM", None, used),
            Quantity("gpu_utilisation_percent", "medium", "amdsmi_get_gpu_activity, gfx", ACTIVITY_US, busy),
            Quantity("gpu_power_mw", "medium", "amdsmi_get_power_info, socket", ENERGY_US, power),
            Quantity("gpu_energy_mj", "medium", "amdsmi_get_energy_count", ENERGY_US, energy),
            Quantity(
                "gpu_temperature_celsius", "medium", "amdsmi_get_temp_metric, hotspot", None, temperature
            ),
        ]

    def _answers(self, quantity: Quantity) -> bool:
        try:
            if quantity.read() is not None:
                return True
            why = "it answers N/A"
        except self._amdsmi.AmdSmiException as error:
            why = str(error) or type(error).__name__
        self._note("gpu", f"{self.name}: {quantity.metric} cannot be read: {why}", "")
        return False

    def read(self, quantity: Quantity) -> int | None:
        """Return a value; None where it cannot be read, which is noted once."""
        try:
            return quantity.read()
        except self._amdsmi.AmdSmiException as error:
            if quantity.metric not in self._refused:
                self._refused.add(quantity.metric)
                self._note("gpu", f"{self.name}: {quantity.metric} cannot be read: {error}", "")
            return None

    def process_bytes(self) -> dict[int, int | None]:
        """Return the video memory of each process by pid; None where the driver does not say."""
        found: dict[int, int | None] = {}
        for entry in self._ask(self._amdsmi.amdsmi_get_gpu_process_list) or []:
            if not isinstance(entry, dict) or not isinstance(entry.get("pid"), int):
                continue
            found[entry["pid"]] = _number((entry.get("memory_usage") or {}).get("vram_mem"))
        return found

    def accounted_peak(self, pid: int) -> int | None:
        """Return None: amdsmi keeps no peak of a process."""
        return None

    def _ask(self, call: Callable[..., Any]) -> Any:
        try:
            return call(self._handle)
        except self._amdsmi.AmdSmiException as error:
            name = getattr(call, "__name__", "a call")
            if name not in self._refused:
                self._refused.add(name)
                self._note("gpu", f"AMD GPU: {name} fails: {error}", "")
            return None

    def close(self) -> None:
        """Do nothing: amdsmi is shut down with the process."""


def find_amd_cards(note: Note, amdsmi: Any = None) -> list[AmdCard]:
    """Return the AMD GPUs that are here; none, silently, where there is no driver.

    Args:
        note: Is told what cannot be read.
        amdsmi: The module amdsmi, or one that answers as it does.
    """
    if amdsmi is None:
        try:
            import amdsmi as found
        except (ImportError, KeyError, OSError):  # it looks for ROCm's library while it is imported
            note(
                "gpu",
                "an AMD GPU is here, but amdsmi cannot be imported",
                "it comes with ROCm: pip install /opt/rocm/share/amd_smi",
            )
            return []
        amdsmi = found
    try:
        amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
        handles = amdsmi.amdsmi_get_processor_handles()
    except amdsmi.AmdSmiException as error:
        note("gpu", f"amdsmi does not work: {error}", "amd-smi says more")
        return []
    return [AmdCard(amdsmi, handle, note) for handle in handles]


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
