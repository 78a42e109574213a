"""What NVIDIA's GPUs report, through NVML (nvidia-ml-py), read for the sampler.

Each figure comes from the best source that the card offers, and says which:

  memory    of the device (`nvmlDeviceGetMemoryInfo`) and of each process on it
  PCIe      by the best counter that there is (pcie.py)
  energy    the device's own counter; never power times time
  power     field value 186, the instant one; `nvmlDeviceGetPowerUsage` is an average over 1 s on Ampere
            and newer

What a card refuses is noted once with the reason and asked for no more. A card that disappears is
noted and left alone. Nothing here has yet run on a GPU: tests replay the library's documented answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memgauge.monitor.nvml import running
from memgauge.monitor.pcie import Traffic
from memgauge.monitor.quantity import Note, Quantity

FIELD_POWER_INSTANT = 186  # of nvml.h
ENERGY_US = 100_000  # how often the energy counter moves (ml.energy, H100)
UTILISATION_US = 166_667  # nvml.h: between 1/6 s and 1 s depending on the product
_NOT_AVAILABLE = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE as an unsigned number


class Card:
    """One GPU, or one MIG slice of one.

    Args:
        nvml: The module pynvml.
        handle: NVML's handle of the device.
        note: Is told what cannot be read.
    """

    process_instrument = "nvmlDeviceGetComputeRunningProcesses"

    def __init__(self, nvml: Any, handle: Any, note: Note, parent: Any = None) -> None:
        self._nvml, self.handle, self._note = nvml, handle, note
        self._is_slice = parent is not None
        self._physical = parent if parent is not None else handle
        self.name = _text(self._try(nvml.nvmlDeviceGetName, handle) or "GPU")
        self.identity = _text(self._try(nvml.nvmlDeviceGetUUID, handle) or "")
        memory = self._try(nvml.nvmlDeviceGetMemoryInfo, handle)
        self.total_bytes = None if memory is None else int(memory.total)
        self.is_lost = False
        self.device = 0  # its id in the run file, once it has one
        self._refused: set[str] = set()
        self._traffic: Traffic | None = None
        self.quantities = self._find_quantities()
        self._process_kinds = ["Compute", "Graphics"]

    def _find_quantities(self) -> list[Quantity]:
        nvml, handle = self._nvml, self.handle
        found = [
            Quantity(
                "gpu_used_bytes",
                "fast",
                "nvmlDeviceGetMemoryInfo, version 1 (reserved counts as used)",
                None,
                lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used),
            )
        ]
        found += self._pcie()
        if self._is_slice:
            self._note(
                "gpu",
                f"{self.name}: utilisation, power and energy are those of the whole GPU, not of a MIG slice",
                "record them by the whole device, where the driver lets you",
            )
            return found
        candidates = [
            Quantity(
                "gpu_utilisation_percent",
                "medium",
                "nvmlDeviceGetUtilizationRates",
                UTILISATION_US,
                lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            ),
            self._power(),
            Quantity(
                "gpu_energy_mj",
                "medium",
                "nvmlDeviceGetTotalEnergyConsumption",
                ENERGY_US,
                lambda: int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
            ),
            Quantity(
                "gpu_temperature_celsius",
                "medium",
                "nvmlDeviceGetTemperature",
                None,
                lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            ),
        ]
        return found + [q for q in candidates if self._answers(q)]

    def _answers(self, quantity: Quantity) -> bool:
        try:
            return quantity.read() is not None
        except self._nvml.NVMLError as error:
            self._note("gpu", f"{self.name}: {quantity.metric} cannot be read: {_reason(error)}", "")
            return False

    def _power(self) -> Quantity:
        instant = Quantity(
            "gpu_power_mw",
            "medium",
            "field 186, instant power",
            100_000,
            lambda: self._field(FIELD_POWER_INSTANT),
        )
        try:
            if instant.read() is not None:
                return instant
        except self._nvml.NVMLError:
            pass
        return Quantity(
            "gpu_power_mw",
            "medium",
            "nvmlDeviceGetPowerUsage, an average over 1 s on Ampere and newer",
            1_000_000,
            lambda: int(self._nvml.nvmlDeviceGetPowerUsage(self._physical)),
        )

    def _field(self, number: int) -> int | None:
        return self._fields([number])[0]

    def _fields(self, numbers: list[int]) -> list[int | None]:
        """Return field values; None for each that the card does not have."""
        nvml = self._nvml
        answers = nvml.nvmlDeviceGetFieldValues(self._physical, numbers)
        return [_value(nvml, a) if a.nvmlReturn == nvml.NVML_SUCCESS else None for a in answers]

    def _pcie(self) -> list[Quantity]:
        if self._is_slice:
            return []
        try:
            self._traffic = Traffic(self._nvml, self._physical, self._fields)
        except self._nvml.NVMLError as error:
            self._note("gpu", f"{self.name}: PCIe traffic cannot be read: {_reason(error)}", "")
            return []
        return self._traffic.quantities

    def process_bytes(self) -> dict[int, int | None]:
        """Return the bytes of each process on this device by pid; None where the driver does not say."""
        found: dict[int, int | None] = {}
        for kind in list(self._process_kinds):
            try:
                for process in running(self._nvml, self.handle, kind):
                    used = process.usedGpuMemory
                    known = None if used in (None, _NOT_AVAILABLE) else int(used)
                    found[int(process.pid)] = max(known or 0, found.get(int(process.pid)) or 0) or known
            except self._nvml.NVMLError as error:
                if self.lost_by(error):
                    return {}
                self._process_kinds.remove(kind)
                if kind == "Compute":
                    self._note(
                        "gpu",
                        f"{self.name}: memory of each process cannot be read: {_reason(error)}",
                        "run memgauge on the host, or rely on torch's own figures at marks",
                    )
        return found

    def accounted_peak(self, pid: int) -> int | None:
        """Return the driver's own highest value of one process; None unless accounting is on."""
        try:
            peak = int(self._nvml.nvmlDeviceGetAccountingStats(self.handle, pid).maxMemoryUsage)
        except (
            self._nvml.NVMLError,
            AttributeError,
            TypeError,
        ):  # TypeError: the binding, of "not available"
            return None
        return None if peak in (0, _NOT_AVAILABLE) else peak

    def read(self, quantity: Quantity) -> int | None:
        """Return a value; None where it cannot be read, which is noted once."""
        if self.is_lost:
            return None
        try:
            return quantity.read()
        except self._nvml.NVMLError as error:
            if not self.lost_by(error) and quantity.metric not in self._refused:
                self._refused.add(quantity.metric)
                self._note("gpu", f"{self.name}: {quantity.metric} cannot be read: {_reason(error)}", "")
            return None

    def lost_by(self, error: Exception) -> bool:
        """Return whether an error says that the device is gone; noted the first time."""
        nvml = self._nvml
        lost = tuple(
            getattr(nvml, name)
            for name in ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_GPU_NOT_FOUND", "NVML_ERROR_RESET_REQUIRED")
            if hasattr(nvml, name)
        )
        if getattr(error, "value", None) not in lost:
            return False
        if not self.is_lost:
            self.is_lost = True
            remedy = "the driver's log (dmesg, Xid) says why; a reset or reboot brings it back"
            self._note("gpu", f"{self.name} ({self.identity}) disappeared: {_reason(error)}", remedy)
        return True

    def _try(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None

    def close(self) -> None:
        if self._traffic is not None:
            self._traffic.close()


def find_cards(note: Note, nvml: Any = None) -> list[Card]:
    """Return the GPUs and MIG slices that are here; none, silently, where there is no driver.

    Args:
        note: Is told what cannot be read.
        nvml: The module pynvml, or one that answers as it does.
    """
    if nvml is None:
        try:
            import pynvml
        except ImportError:
            note("gpu", "a GPU is here, but not the binding of NVML", "pip install 'memgauge[gpu]'")
            return []
        nvml = pynvml
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        absent = [
            getattr(nvml, n, None) for n in ("NVML_ERROR_LIBRARY_NOT_FOUND", "NVML_ERROR_DRIVER_NOT_LOADED")
        ]
        if getattr(error, "value", None) not in absent:
            note("gpu", f"NVML does not work: {_reason(error)}", "nvidia-smi says more")
        return []
    cards: list[Card] = []
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            cards += _slices(nvml, handle, note) or [Card(nvml, handle, note)]
        except nvml.NVMLError as error:
            note("gpu", f"GPU {index} cannot be read: {_reason(error)}", "nvidia-smi says more")
    return cards


def _slices(nvml: Any, handle: Any, note: Note) -> list[Card]:
    """Return the MIG slices of a GPU; none if it is not divided."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
        if current != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return []
    found = []
    for index in range(most):
        try:
            found.append(
                Card(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index), note, parent=handle)
            )
        except nvml.NVMLError:  # this place is not in use
            continue
    return found


def _value(nvml: Any, answer: Any) -> int:
    """Return what a field value holds, by the type that it says (nvmlValue_t)."""
    kinds = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    return int(getattr(answer.value, kinds.get(answer.valueType, "ullVal")))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
