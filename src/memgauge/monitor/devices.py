"""What the lanes read of GPUs, and the columns that it goes to."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from memgauge.monitor.notes import Notes
from memgauge.monitor.tracked import Tracked
from memgauge.monitor.tree import Tree
from memgauge.storage import MISSING, PeakRow, RunWriter


class DeviceReadings:
    """Memory of devices and of the tree's processes on them, PCIe, utilisation, power, energy.

    Whatever a vendor's library raises, the recording goes on without the card and says so.

    Args:
        writer: Has the lanes fast and medium.
        tree: The processes that are followed.
        notes: Is told what cannot be read.
    """

    def __init__(self, writer: RunWriter, tree: Tree, notes: Notes) -> None:
        self._writer, self._tree, self._notes = writer, tree, notes
        self._fast = writer.lane("fast")
        self._cards: list[Any] = []
        self._knows_pids = False  # whether a card has ever told of one of the tree's processes
        self._columns: dict[str, list[tuple[Any, Any, Any]]] = {"fast": [], "medium": []}
        self._held: dict[
            tuple[int, int], tuple[int, Any, Any]
        ] = {}  # (process, device) -> series, column, card

    def find(self, nvml: Any = None, amdsmi: Any = None) -> None:
        """Look for GPUs; none is normal. A module that answers as the vendor's does may be given."""
        if nvml is not None or _has_nvidia():
            from memgauge.monitor.gpu import find_cards

            self._look(find_cards, nvml)
        if amdsmi is not None or os.path.exists("/dev/kfd"):
            from memgauge.monitor.amd import find_amd_cards

            self._look(find_amd_cards, amdsmi)
        for card in self._cards:
            self._add(card)

    def _look(self, find: Callable[..., list[Any]], library: Any) -> None:
        try:
            self._cards += find(self._notes.say, library)
        except Exception as error:
            self._notes.say("gpu", f"GPUs cannot be read: {_said(error)}", "memgauge doctor says more")

    def _give_up(self, card: Any, error: Exception) -> None:
        card.is_lost = True
        self._notes.say("gpu", f"{card.name} is read no more: {_said(error)}", "memgauge doctor says more")

    def _add(self, card: Any) -> None:
        card.device = self._writer.add_device("gpu", card.name, card.identity, card.total_bytes, {})
        for quantity in card.quantities:
            series = self._writer.add_series(
                quantity.lane,
                quantity.metric,
                quantity.instrument,
                device=card.device,
                refresh_us=quantity.refresh_us,
            )
            column = self._writer.lane(quantity.lane).column(series)
            self._columns[quantity.lane].append((card, quantity, column))

    def read_medium(self) -> None:
        """Read utilisation, power, energy and temperature."""
        self._read("medium")

    def read_fast(self) -> None:
        """Read memory and PCIe bytes."""
        if not self._cards:
            return
        self._read("fast")
        for card in self._cards:
            if not card.is_lost:
                self._read_processes(card)

    def _read(self, lane: str) -> None:
        for card, quantity, column in self._columns[lane]:
            value = None
            if not card.is_lost:
                try:
                    value = card.read(quantity)
                except Exception as error:
                    self._give_up(card, error)
            column.append(MISSING if value is None else value)

    def _read_processes(self, card: Any) -> None:
        try:
            held = card.process_bytes()
        except Exception as error:
            self._give_up(card, error)
            return
        for pid, used in held.items():
            process = self._tree.live.get(pid)
            if process is not None:
                self._column_of(process, card).append(MISSING if used is None else used)
        self._knows_pids = self._knows_pids or bool(held.keys() & self._tree.live.keys())
        if held and self._tree.live and not self._knows_pids:
            self._notes.say(
                "gpu",
                f"{card.name}: processes hold memory, but none of this job by its number here; in a "
                "container the driver may give the host's numbers",
                "run memgauge on the host, or rely on torch's figures at marks",
            )
        for (_, device), (series, column, _) in self._held.items():
            if device == card.device and self._fast.is_behind(series):
                column.append(0)  # it holds nothing on this device any more

    def _column_of(self, process: Tracked, card: Any) -> Any:
        entry = self._held.get((process.id, card.device))
        if entry is None:
            series = self._writer.add_series(
                "fast",
                "gpu_process_bytes",
                card.process_instrument,
                process=process.id,
                device=card.device,
            )
            entry = self._held[process.id, card.device] = (series, self._fast.column(series), card)
        return entry[1]

    def end(self, process: Tracked) -> None:
        """Close what a process that is gone had here; the driver's own peak of it is kept if it has one."""
        for key in [k for k in self._held if k[0] == process.id]:
            series, _, card = self._held.pop(key)
            self._fast.close_column(series)
            self._keep_accounted(process, card)

    def end_all(self) -> None:
        """Keep the driver's peaks of those that outlive the recording, and let the cards go."""
        processes = {p.id: p for p in self._tree.live.values()}
        for number, _ in list(self._held):
            if number in processes:
                self.end(processes[number])
        for card in self._cards:
            card.close()

    def _keep_accounted(self, process: Tracked, card: Any) -> None:
        peak = card.accounted_peak(process.pid)
        if peak is None:
            return
        # The driver counts from the process's own beginning, which may lie before the recording's.
        is_whole = not process.has_past
        self._writer.set_peak(
            PeakRow(
                "gpu_process_bytes",
                peak,
                "exact" if is_whole else "upper bound",
                "NVML accounting",
                "" if is_whole else "it may have been reached before the recording began",
                process.id,
                card.device,
                None,
            )
        )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _has_nvidia() -> bool:
    """Return whether NVIDIA's driver is there, by its device file or WSL's; saves loading its library."""
    return any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/dxg", "/dev/nvidia0"))
