"""Bytes over PCIe of one NVIDIA GPU, by the best counter that the card offers.

  counters    of bytes, field values 197 and 198
  GPM         on Hopper and newer: rates between two samples of the driver's
  rate        over 20 ms; the call blocks for as long, so a thread of its own makes it

All become bytes since the first reading.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from memgauge.monitor.quantity import Quantity

# Field identifiers of nvml.h, named in nvidia-ml-py 13.615; older bindings lack the names, not the calls.
FIELD_SENT, FIELD_RECEIVED = 197, 198
_GPM_SENT, _GPM_RECEIVED = 20, 21  # nvmlGpmMetricId_t: MiB/s
GPM_EVERY_US = 200_000  # below 100 ms the driver gives zeros that look like no traffic
RATE_US = 20_000  # the window of nvmlDeviceGetPcieThroughput

Fields = Callable[[list[int]], list[int | None]]  # field identifiers -> values, None for what is not there


class Traffic:
    """Bytes sent and received by one card since its first reading.

    Args:
        nvml: The module pynvml.
        handle: NVML's handle of the device; not of a MIG slice, which has no link of its own.
        fields: Reads field values of the device.

    Raises:
        NVMLError: The card has none of the three.
    """

    def __init__(self, nvml: Any, handle: Any, fields: Fields) -> None:
        self._thread: _Throughput | None = None
        if _has_counters(nvml, fields):
            counters = _Counters(lambda: fields([FIELD_SENT, FIELD_RECEIVED]))
            self.quantities = _pair(counters, ("field 197, counter", "field 198, counter"), None)
        elif (gpm := _gpm(nvml, handle)) is not None:
            instrument = "GPM, rate times time"
            self.quantities = _pair(gpm, (instrument, instrument), GPM_EVERY_US)
        else:
            nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES)
            self._thread = _Throughput(nvml, handle)
            instrument = "nvmlDeviceGetPcieThroughput, rate over 20 ms times time"
            self.quantities = _pair(self._thread, (instrument, instrument), 2 * RATE_US)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.stop()


def _pair(
    source: _Counters | _Gpm | _Throughput, instruments: tuple[str, str], refresh_us: int | None
) -> list[Quantity]:
    return [
        Quantity("pcie_sent_bytes", "fast", instruments[0], refresh_us, source.sent),
        Quantity("pcie_received_bytes", "fast", instruments[1], refresh_us, source.received),
    ]


def _has_counters(nvml: Any, fields: Fields) -> bool:
    try:
        return None not in fields([FIELD_SENT, FIELD_RECEIVED])
    except nvml.NVMLError:
        return False


def _gpm(nvml: Any, handle: Any) -> _Gpm | None:
    """Return GPM's source if a first sample can be had: in a virtual machine the card has it, the driver may not."""
    try:
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return None
        source = _Gpm(nvml, handle)
        source.sent()
    except (nvml.NVMLError, AttributeError):
        return None
    return source


class _Counters:
    """Two counters of bytes that are read by one call and may wrap at 2^32 or 2^64."""

    def __init__(self, read: Callable[[], list[int | None]]) -> None:
        self._read = read
        self._last: list[int | None] = [None, None]
        self._total = [0, 0]

    def sent(self) -> int:
        now = self._read()
        for way in (0, 1):
            value, last = now[way], self._last[way]
            if value is None:
                continue
            if last is not None:
                # A value below the last one has wrapped: in 32 bits if both fit, else in 64.
                self._total[way] += (value - last) % (2**32 if max(value, last) < 2**32 else 2**64)
            self._last[way] = value
        return self._total[0]

    def received(self) -> int:
        return self._total[1]  # read together with `sent`, which comes first


class _Gpm:
    """PCIe traffic by GPM: two samples some time apart, and the rates between them."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        self._taken_ns = 0
        self._total = [0, 0]

    def sent(self) -> int:
        nvml, now = self._nvml, time.monotonic_ns()
        if not self._taken_ns:
            nvml.nvmlGpmSampleGet(self._handle, self._samples[0])
            self._taken_ns = now
        elif now - self._taken_ns >= GPM_EVERY_US * 1000:
            nvml.nvmlGpmSampleGet(self._handle, self._samples[1])
            asked = nvml.c_nvmlGpmMetricsGet_t()
            asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 2
            asked.sample1, asked.sample2 = self._samples
            for place, metric in enumerate((_GPM_SENT, _GPM_RECEIVED)):
                asked.metrics[place].metricId = metric
            nvml.nvmlGpmMetricsGet(asked)
            for way in (0, 1):
                if asked.metrics[way].nvmlReturn == nvml.NVML_SUCCESS:
                    rate = asked.metrics[way].value * 2**20
                    self._total[way] += round(rate * (now - self._taken_ns) / 1e9)
            self._samples.reverse()
            self._taken_ns = now
        return self._total[0]

    def received(self) -> int:
        return self._total[1]


class _Throughput:
    """PCIe traffic by the call that blocks for 20 ms in each direction, read by its own thread."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._total = [0, 0]
        self._stop = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="memgauge-pcie").start()

    def _run(self) -> None:
        nvml = self._nvml
        ways = (nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES)
        last = time.monotonic_ns()
        while not self._stop.is_set():
            try:
                rates = [int(nvml.nvmlDeviceGetPcieThroughput(self._handle, way)) for way in ways]
            except nvml.NVMLError:
                return
            now = time.monotonic_ns()
            for way in (0, 1):
                self._total[way] += rates[way] * 1000 * (now - last) // 10**9  # NVML gives KB/s, of 1000
            last = now
            self._stop.wait(0.001)

    def sent(self) -> int:
        return self._total[0]

    def received(self) -> int:
        return self._total[1]

    def stop(self) -> None:
        self._stop.set()
