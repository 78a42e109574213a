"""NVML's answers as its documentation gives them (nvml.h, nvidia-ml-py 13.615), played back at its boundary.

Nothing here has been recorded on a card; each answer's shape is that of the binding.
"""

from __future__ import annotations

from types import SimpleNamespace as Answer
from typing import Any


class NVMLError(Exception):
    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


class Nvml:
    """One GPU by default; `refuses` names the calls that answer "Not Supported"."""

    NVMLError = NVMLError
    NVML_SUCCESS, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_FOUND = 0, 3, 6
    NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_GPU_IS_LOST = 9, 12, 15
    NVML_VALUE_TYPE_DOUBLE, NVML_VALUE_TYPE_UNSIGNED_INT, NVML_VALUE_TYPE_UNSIGNED_LONG = 0, 1, 2
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, NVML_VALUE_TYPE_SIGNED_LONG_LONG = 3, 4
    NVML_TEMPERATURE_GPU, NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 0, 1
    NVML_DEVICE_MIG_ENABLE, NVML_GPM_METRICS_GET_VERSION = 1, 1

    def __init__(
        self, *, refuses: set[str] = frozenset(), fields: dict[int, list[int]] | None = None
    ) -> None:  # type: ignore[assignment]
        self.refuses = set(refuses)
        self.fields = {197: [1000, 1500], 198: [5000, 9000], 186: [250_000]} if fields is None else fields
        self.error: NVMLError | None = None
        self.slices = 0
        self.processes: list[Any] = []
        self.used = 3 * 2**30
        self.energy_mj = 1_000_000
        self.accounted: dict[int, int] = {}
        self.gpm_rate = 0.0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            error = object.__getattribute__(self, "error")
            if error is not None:
                raise error
            if name in object.__getattribute__(self, "refuses"):

                def refuse(*_: Any) -> Any:
                    raise NVMLError(3, "Not Supported")

                return refuse
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu{index}"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "NVIDIA H100 80GB HBM3" + (" MIG 1g.10gb" if "/" in handle else "")

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return ("MIG-" if "/" in handle else "GPU-") + handle

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return Answer(total=80 * 2**30, used=self.used, free=80 * 2**30 - self.used)

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        return [1 if self.slices else 0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index >= self.slices:
            raise NVMLError(6, "Not Found")
        return f"{handle}/{index}"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return Answer(gpu=87, memory=40)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 300_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return self.energy_mj

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 61

    def nvmlDeviceGetFieldValues(self, handle: str, numbers: list[int]) -> list[Any]:
        answers = []
        for number in numbers:
            row = self.fields.get(number)
            if row is None:
                answers.append(Answer(fieldId=number, nvmlReturn=3, valueType=3, value=Answer(ullVal=0)))
                continue
            value = row.pop(0) if len(row) > 1 else row[0]
            answers.append(Answer(fieldId=number, nvmlReturn=0, valueType=3, value=Answer(ullVal=value)))
        return answers

    def nvmlDeviceGetPcieThroughput(self, handle: str, way: int) -> int:
        return (1000, 4000)[way]  # KB/s

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:
        return Answer(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> object:
        return object()

    def nvmlGpmSampleGet(self, handle: str, sample: object) -> None: ...

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return Answer(metrics=[Answer(metricId=0, nvmlReturn=0, value=0.0) for _ in range(2)])

    def nvmlGpmMetricsGet(self, asked: Any) -> None:
        for metric in asked.metrics:
            metric.value = self.gpm_rate

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return self.processes

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[Any]:
        return []

    def nvmlDeviceGetAccountingStats(self, handle: str, pid: int) -> Any:
        if pid not in self.accounted:
            raise NVMLError(3, "Not Supported")
        return Answer(maxMemoryUsage=self.accounted[pid])
