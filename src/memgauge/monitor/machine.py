"""What the whole machine uses: memory, pressure, disk, network, and energy of the CPU (Linux)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from memgauge.monitor.processes import TICK_NS, read_whole

SECTOR = 512  # bytes; /proc/diskstats counts in these whatever the disk has (kernel, block/stat)


class KeptFile:
    """A file that is read again and again on one descriptor.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: str, size: int = 4096) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = size

    def read(self) -> bytes:
        """Return its first `size` bytes."""
        return os.pread(self._fd, self._size, 0)

    def read_whole(self) -> bytes:
        """Return all of it."""
        return read_whole(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def kept(path: str, size: int = 4096) -> KeptFile | None:
    """Return the file, None where the system does not have it or does not let us."""
    try:
        file = KeptFile(path, size)
        file.read()
    except OSError:
        return None
    return file


class Parsed:
    """What a file says, understood anew only when it says something else: a machine at rest does not."""

    def __init__(self, read: Callable[[], bytes], parse: Callable[[bytes], list[int]]) -> None:
        self._read, self._parse = read, parse
        self._data: bytes | None = None
        self._values: list[int] = []

    def values(self) -> list[int]:
        """Return what it says now."""
        data = self._read()
        if data != self._data:
            self._data, self._values = data, self._parse(data)
        return self._values


class Memory:
    """System memory from /proc/meminfo.

    Used is total − free − buffers − cached, as Mahendran (2021) and `free` define it. `MemAvailable`
    is the kernel's own estimate of what a new program could take.
    """

    used_instrument = "/proc/meminfo: total − free − buffers − cached"
    available_instrument = "/proc/meminfo: MemAvailable"

    def __init__(self) -> None:
        self._fd = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
        self._data, self._read = b"", (0, 0)

    def read(self) -> tuple[int, int]:
        """Return used and available bytes.

        sysinfo(2) would take an eighth of the time, but that no more or fewer pages are free says little: what the
        cache gives up waits in lists of each CPU (376 MiB on Linux 6.18) while MemFree stands.
        """
        data = os.pread(self._fd, 256, 0)
        if data != self._data:  # a machine at rest says the same again
            self._data, f = data, data.split(None, 15)
            # Names at 0, 3, 6, 9, 12 and amounts in KiB behind each: the order is fixed by the kernel.
            total, free, available, buffers, cached = int(f[1]), int(f[4]), int(f[7]), int(f[10]), int(f[13])
            self._read = (total - free - buffers - cached) * 1024, available * 1024
        return self._read

    def total_bytes(self) -> int:
        return int(os.pread(self._fd, 256, 0).split(None, 2)[1]) * 1024


class Counters:
    """Counters of the machine that only grow; each is there only if the system has it."""

    def __init__(self) -> None:
        cpu, pressure = kept("/proc/stat", 256), kept("/proc/pressure/memory")
        disks = _whole_disks()
        disk, network = kept("/proc/diskstats") if disks else None, kept("/proc/net/dev")
        self._metrics: list[tuple[str, str, int | None]] = []
        self._files: list[Parsed] = []
        if cpu:
            self._files.append(Parsed(cpu.read, _cpu_ns))
            self._metrics.append(("system_cpu_ns", "/proc/stat, all cores", 10_000))
        if pressure:
            self._files.append(Parsed(pressure.read, _stall_us))
            self._metrics.append(("memory_stall_us", "/proc/pressure/memory, some", None))
        if disk:
            self._files.append(Parsed(disk.read_whole, lambda data: _disk_bytes(data, disks)))
            self._metrics += [
                (f"disk_{way}_bytes", "/proc/diskstats, whole disks", None) for way in ("read", "write")
            ]
        if network:
            self._files.append(Parsed(network.read_whole, _network_bytes))
            self._metrics += [
                (f"network_{way}_bytes", "/proc/net/dev, without lo", None) for way in ("received", "sent")
            ]
        self._energy, self.energy_reason = _energy_files()
        self._energy_last: list[int] = []
        self._energy_total = 0
        if self._energy:
            self._metrics.append(("cpu_energy_uj", "powercap, intel-rapl package domains", 1_000))

    def metrics(self) -> list[tuple[str, str, int | None]]:
        """Return metric, instrument and refresh time in µs of what `read` gives, in its order."""
        return self._metrics

    def read(self) -> list[int]:
        """Return the values of `metrics`, in its order."""
        values = [value for file in self._files for value in file.values()]
        if self._energy:
            values.append(self._read_energy())
        return values

    def _read_energy(self) -> int:
        """Return microjoules since the first read; the registers wrap, so differences are added."""
        now = [int(file.read()) for file, _ in self._energy]
        if self._energy_last:
            for before, after, (_, span) in zip(self._energy_last, now, self._energy, strict=True):
                self._energy_total += (after - before) % span
        self._energy_last = now
        return self._energy_total


def _cpu_ns(data: bytes) -> list[int]:
    f = data.split(b"\n", 1)[0].split()
    return [(sum(map(int, f[1:4])) + sum(map(int, f[6:9]))) * TICK_NS]


def _stall_us(data: bytes) -> list[int]:
    line = data.split(b"\n", 1)[0]
    return [int(line[line.index(b"total=") + 6 :])]


def _disk_bytes(data: bytes, disks: frozenset[bytes]) -> list[int]:
    read = written = 0
    for disk in disks:
        at = data.find(b" %b " % disk)  # a disk without requests so far may be left out
        if at >= 0:
            f = data[at : data.index(b"\n", at)].split(None, 8)  # from the name on (kernel, iostats)
            read += int(f[3])
            written += int(f[7])
    return [read * SECTOR, written * SECTOR]


def _network_bytes(data: bytes) -> list[int]:
    received = sent = 0
    for line in data.splitlines()[2:]:
        name, _, rest = line.partition(b":")
        f = rest.split()
        if name.strip() != b"lo" and len(f) > 8:
            received += int(f[0])
            sent += int(f[8])
    return [received, sent]


def _whole_disks() -> frozenset[bytes]:
    """Return the block devices that are disks: partitions would count their bytes a second time."""
    try:
        names = os.listdir("/sys/block")
    except OSError:
        return frozenset()
    return frozenset(n.encode() for n in names if not n.startswith(("loop", "ram", "dm-", "md", "zram")))


def _energy_files() -> tuple[list[tuple[KeptFile, int]], str]:
    """Return the package counters with their range in µJ, or why there are none."""
    found: list[tuple[KeptFile, int]] = []
    packages = sorted(Path("/sys/class/powercap").glob("intel-rapl:*"))
    for folder in packages:
        if folder.name.count(":") != 1:  # a part of a package, which counts it already
            continue
        try:
            span = int((folder / "max_energy_range_uj").read_text())
            found.append((KeptFile(str(folder / "energy_uj"), 64), span))
        except PermissionError:
            return [], "CPU energy (RAPL) is readable by root only since CVE-2020-8694"
        except (OSError, ValueError):
            continue
    return found, ""


def newest_pid() -> Callable[[], int] | None:
    """Return what reads the last process number that was given out (proc(5), loadavg); None if nothing does."""
    file = kept("/proc/loadavg", 128)
    return None if file is None else lambda: int(file.read().rsplit(None, 1)[1])


def boot() -> str:
    """Return what names this run of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
