"""The sampler: a process of its own that follows a tree of processes and writes the run file.

    python -m memgauge.monitor.sampler CONFIG [COMMAND…]

One loop waits for whatever comes first: a lane that is due, a signal, a process that wants to say
something, an event of the process table. What it reads goes to columns in memory and from there to
the file, at least once a second. It uses one thread and the standard library only.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memgauge.errors import MemgaugeError
from memgauge.monitor import launch
from memgauge.monitor.lanes import Pace, budget_for
from memgauge.monitor.launch import Ending
from memgauge.monitor.listening import Heard, Listener, PeakLock
from memgauge.monitor.machine import Counters, Memory, oom_kills
from memgauge.monitor.marks import ENVIRONMENT
from memgauge.monitor.processes import TICK_US, Tracked, read_command, read_stat
from memgauge.monitor.tree import GIVEN, Tree
from memgauge.storage import MISSING, PeakRow, RunWriter

FLUSH_NS = 800_000_000  # a killed sampler loses what came after the last flush
CPU_NS = 100_000_000  # CPU time in /proc moves by clock ticks of 10 ms; over less than ten it says little
MEDIUM_NS, SLOW_NS = 250_000_000, 1_000_000_000
HIGHEST_US = 1_000_000  # the highest size of a process that seems to stand still is read so often
DRAIN_NS = 50_000_000  # how long marks may wait for the next look
SHARES_BUDGET = 0.001  # share of a core for PSS and USS: reading them holds the target's memory map
SHARES_AHEAD_US = 30_000  # what may be spent of it in advance, so that short runs are read each second
_MOST_NOTES = 50
_LONGEST_UNWRITTEN_S = 60
_KILLED = "the kernel killed it for lack of memory"


class Sampler:
    """Follows one job from its beginning to its end.

    Args:
        config: `file`, `interval_ns`, and one of `pid` and `command`; `overwrite`, `budget`, `gpu`,
            `events`, `quiet`, `stop_fd` (recording ends when it is closed), `title`.
    """

    def __init__(
        self, config: dict[str, Any], wall_ns: Callable[[], int] = time.time_ns, nvml: Any = None
    ) -> None:
        self.config = config
        self._wall_ns = wall_ns
        self._nvml = nvml
        self._origin_ns = time.monotonic_ns()
        self._wall_offset_ns = wall_ns() - self._origin_ns
        self._notes = 0
        self._noted: set[tuple[str, str]] = set()
        self._root: Tracked | None = None
        self._job: launch.Job | None = None
        self._ending: Ending | None = None
        self._statuses: dict[int, int] = {}
        self._stop_reason = ""
        self._unwritten_since: float | None = None
        self._phases: dict[int, list[list[Any]]] = {}  # pid -> open phases: [mark, name, highest]
        self._gone_lately: list[Tracked] = []
        self._files_moved = False
        self._largest_bytes = 0  # the largest resident size of any one process that was waited for
        self._shares_left_us, self._shares_looked_us = float(SHARES_AHEAD_US), 0
        self._oom_before = oom_kills()
        self._cards: list[Any] = []
        self._gpu_columns: list[tuple[Any, Any, Any]] = []
        self._gpu_process_columns: dict[tuple[int, int], tuple[int, Any, Any]] = {}

    # ------------------------------------------------------------------ beginning and end

    def run(self) -> None:
        """Record until the job ends or somebody stops it."""
        config = self.config
        command, pid = config.get("command"), config.get("pid")
        self._refuse_missing(pid)
        self.signals = launch.Signals()
        writer = RunWriter(Path(config["file"]), self._header(), replace=bool(config.get("overwrite")))
        self.writer = writer
        if config.get("estimate"):
            writer.set_document("estimate", config["estimate"])
        self._open_lanes()
        owners = {0, os.getuid(), os.geteuid(), *_owner_of(pid)}
        self.listener = Listener(pid, owners)
        if self.listener.attached_is_taken:
            self._say("marks", "another recording receives the marks of this job, so there are none here", "")
        adopts = command is not None and launch.adopt_orphans()
        excluded = {os.getpid(), *config.get("exclude", ())}
        self.tree = Tree(self._joined, os.getpid() if adopts else None, excluded)
        if config.get("events", True):
            reason = self.tree.listen()
            self._event_reason = reason
        try:
            self._tell_starter("ready " + self.listener.address)
            if command:
                environment = {**os.environ, ENVIRONMENT: self.listener.address}
                self._job = launch.start(command, environment, self.signals.mask_before)
                pid = self._job.pid
                writer.set(root_pid=pid)
            assert pid is not None
            self._root = self.tree.add(pid, GIVEN)
            if self._root is None and self._job is None:
                self._ending = Ending("gone", detail="the process was over before it could be read")
            self._start_viewer()
            _raise_file_limit()
            self._find_gpus()
            self._loop()
        except launch.CommandError as error:
            self._stop_reason = str(error)
            self._ending = Ending("stopped", code=error.exit_code, detail=str(error))
            raise
        finally:
            self._finish()

    @property
    def ending(self) -> Ending:
        """How the run ended, once it has."""
        assert self._ending is not None
        return self._ending

    def _start_viewer(self) -> None:
        """Show the recording while it runs, by a process of its own."""
        self._viewer: int | None = None
        if not self.config.get("watch"):
            return
        command = [
            sys.executable,
            "-P",
            "-m",
            "memgauge",
            "watch",
            "--below",
            "--wait",
            "10",
            self.config["file"],
        ]
        null = os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, null, 1)]
        with contextlib.suppress(OSError):
            self._viewer = os.posix_spawn(
                command[0],
                command,
                dict(os.environ),
                file_actions=actions,
                setsigmask=self.signals.mask_before,
                setsigdef=[signal.SIGINT],
            )
            self.tree.excluded.add(self._viewer)
        os.close(null)

    def _end_viewer(self) -> None:
        """Let the viewer see that the recording has ended, so that it gives the terminal back."""
        viewer = getattr(self, "_viewer", None)
        if viewer is not None:
            with contextlib.suppress(OSError):
                os.waitpid(viewer, 0)

    def _refuse_missing(self, pid: int | None) -> None:
        if pid is None:
            return
        from memgauge.errors import UsageError

        try:
            state = read_stat(pid).state
        except OSError:
            raise UsageError(
                f"there is no process {pid}; memgauge monitor --pid takes the number of one that runs"
            ) from None
        if state in "ZX":
            raise UsageError(f"process {pid} has ended already")

    def _header(self) -> dict[str, object]:
        from memgauge.version import installed_version

        config = self.config
        return {
            "memgauge": installed_version(),
            "command": config.get("command"),
            "title": config.get("title"),
            "root_pid": config.get("pid"),
            "folder": os.getcwd(),
            "way": "command"
            if config.get("command")
            else "python"
            if config.get("stop_fd") is not None
            else "pid",
            "started_unix_ns": self._wall_ns(),
            "started_monotonic_ns": self._origin_ns,
            "host": platform.node(),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "boot": _boot(),
            "sampler_pid": os.getpid(),
            "sampler_started_ticks": read_stat(os.getpid()).started_ticks,
            "interval_ns": config["interval_ns"],
        }

    def _finish(self) -> None:
        """Write everything that is left and how it ended; a recording always ends with this."""
        writer, now = self.writer, self._now_us()
        if self._ending is None:
            self._ending = Ending("stopped", detail=self._stop_reason or "the recording was stopped")
        self._hear(self.listener.drain())
        for process in list(self.tree.live.values()):
            self._read_highest(process, now)
        self._sum_up(now)
        for card in self._cards:
            card.close()
        self.listener.close()
        if self.tree.events is not None:
            self.tree.events.close()
        with contextlib.suppress(OSError):
            writer.flush()  # whoever looks on sees that it has ended, and lets go of the file
        self._end_viewer()
        try:
            writer.close()
        except OSError as error:
            self._complain(f"the end of the recording could not be written to {writer.path}: {error}")
        else:
            if not writer.is_in_place():
                self._complain(f"{writer.path} was removed while it was written; the recording is lost")
        self._tell_starter("done")

    def _sum_up(self, now_us: int) -> None:
        writer, tree = self.writer, self.tree
        ending = self._ending
        assert ending is not None
        usage = time.process_time_ns()
        writer.set(
            ended={
                "how": ending.how,
                "code": ending.code,
                "signal": ending.signal,
                "out_of_memory": ending.out_of_memory,
                "text": ending.text(),
            },
            duration_us=now_us,
            unseen_processes=tree.unseen,
            unseen_is_exact=tree.unseen_is_exact,
            marks_lost=self.listener.lost + self.listener.garbled,
            sampler_cpu_ns=usage,
            sampler_peak_bytes=_own_peak(),
            lanes={
                p.name: {
                    "asked_ns": p.asked_ns,
                    "interval_ns": p.interval_ns,
                    "ticks": p.ticks,
                    "skipped": p.late,
                }
                for p in self._paces
            },
        )
        for process in [*tree.live.values()]:
            self._keep_peak(process, now_us, is_alive=True)
        if self._largest_bytes and self._job is not None:
            exact = self._largest_bytes > self._job.launcher_bytes
            writer.set_peak(
                PeakRow(
                    "largest_process_bytes",
                    self._largest_bytes,
                    "exact" if exact else "upper bound",
                    "wait4, ru_maxrss: the command and all that it waited for",
                    "" if exact else "the command stayed below what its launcher held before it",
                    None,
                    None,
                    None,
                )
            )

    # ------------------------------------------------------------------ the loop

    def _open_lanes(self) -> None:
        config, writer = self.config, self.writer
        interval = int(config["interval_ns"])
        asked = config.get("budget")
        self.memory = Memory()
        self.counters = Counters()
        writer.set(memory_total_bytes=self.memory.total_bytes())
        if self.counters.energy_reason:
            self._say(
                "energy",
                self.counters.energy_reason,
                "run memgauge as root, or: chmod a+r /sys/class/powercap/*/energy_uj",
            )
        self.fast, self.cpu = writer.lane("fast"), writer.lane("cpu")
        self.medium, self.slow = writer.lane("medium"), writer.lane("slow")
        self._used = self.fast.column(
            writer.add_series("fast", "system_used_bytes", "/proc/meminfo: total − free − buffers − cached")
        )
        self._available = self.fast.column(
            writer.add_series("fast", "system_available_bytes", "/proc/meminfo: MemAvailable")
        )
        self._machine = [
            self.medium.column(writer.add_series("medium", metric, instrument, refresh_us=refresh))
            for metric, instrument, refresh in self.counters.metrics()
        ]
        self._own_cpu = self.slow.column(
            writer.add_series("slow", "sampler_cpu_ns", "clock_gettime, process CPU time")
        )
        self._own_rss = self.slow.column(writer.add_series("slow", "sampler_rss_bytes", "/proc/self/statm"))
        self._wall = self.slow.column(writer.add_series("slow", "wall_clock_ns", "clock_gettime, real time"))
        self._paces = [
            Pace("fast", interval, budget_for(interval, asked), self._read_fast, self._slowed),
            Pace("cpu", max(interval, CPU_NS), budget_for(CPU_NS, asked), self._read_cpu, self._slowed),
            Pace(
                "medium",
                max(interval, MEDIUM_NS),
                budget_for(MEDIUM_NS, asked),
                self._read_medium,
                self._slowed,
            ),
            Pace("slow", max(interval, SLOW_NS), budget_for(SLOW_NS, asked), self._read_slow, self._slowed),
        ]

    def _loop(self) -> None:
        stop_fd = self.config.get("stop_fd")
        doorbells = self.listener.doorbells()
        waiting: list[Any] = [self.signals.fd, *doorbells]
        if stop_fd is not None:
            waiting.append(stop_fd)
        events = self.tree.events.socket if self.tree.events is not None else None
        if events is not None:
            waiting.append(events)
        paces, monotonic = self._paces, time.monotonic_ns
        flush_ns = drain_ns = monotonic() + FLUSH_NS // 4
        start = monotonic()
        for pace in paces:
            pace.due_ns = start
        gc.collect()
        gc.freeze()
        gc.disable()  # nothing here makes cycles; a collection would only make a tick late
        while self._ending is None:
            until = flush_ns
            for pace in paces:
                if pace.due_ns < until:
                    until = pace.due_ns
            if drain_ns < until and self.listener.is_used():
                until = drain_ns
            ready = select.select(waiting, (), (), max(0, until - monotonic()) / 1e9)[0]
            if ready:
                if events is not None and events in ready:
                    self._hear_events()
                if self.signals.fd in ready:
                    self._take_signals()
                if any(bell in ready for bell in doorbells):
                    self.listener.accept(self._owns)
                if stop_fd is not None and stop_fd in ready:
                    if os.read(stop_fd, 4096) or not self._root_is_over():
                        self._ending = Ending("stopped", detail="the program ended the recording")
                    else:  # the program is gone: the next tick says so
                        waiting.remove(stop_fd)
            now = monotonic()
            for pace in paces:
                if pace.due_ns <= now:
                    pace.run(now, (now - self._origin_ns) // 1000)
            if now >= drain_ns:
                drain_ns = now + DRAIN_NS
                if self.listener.is_used():
                    self._hear(self.listener.drain())
            if now >= flush_ns:
                flush_ns = now + FLUSH_NS
                self._flush()

    def _root_is_over(self) -> bool:
        return self._root is None or self._root.gone or self._is_over(self._root)

    def _now_us(self) -> int:
        return (time.monotonic_ns() - self._origin_ns) // 1000

    # ------------------------------------------------------------------ lanes

    def _read_fast(self, now_us: int) -> None:
        tree = self.tree
        tree.look(now_us)
        gone: list[Tracked] = []
        for process in tree.live.values():
            try:
                pages = int(os.pread(process.statm_fd, 64, 0).split(b" ", 2)[1])
            except OSError:
                gone.append(process)
                continue
            if pages == 0 and self._is_over(process):
                gone.append(process)
                continue
            process.resident.append(pages * _PAGE)
        used, available = self.memory.read()
        self._used.append(used)
        self._available.append(available)
        if self._cards:
            self._read_gpus()
        self.fast.times_us.append(now_us)
        if gone:
            self._lose(gone, now_us)

    def _read_cpu(self, now_us: int) -> None:
        tree = self.tree
        gone = []
        known = self._gone_lately
        for process in tree.live.values():
            try:
                stat = process.read_stat()
            except OSError:
                gone.append(process)
                continue
            process.cpu.append(stat.cpu_ns)
            process.threads = stat.threads
            if stat.children_minor_faults != process.children_faults:
                tree.account_for_children(process, stat.children_minor_faults, known)
            columns = process.columns
            if columns:
                columns["faults"] = [stat.minor_faults, stat.major_faults]  # type: ignore[assignment]
        self.cpu.times_us.append(now_us)
        self._gone_lately = []
        if gone:
            self._lose(gone, now_us)

    def _read_medium(self, now_us: int) -> None:
        for column, value in zip(self._machine, self.counters.read(), strict=True):
            column.append(value)
        for card, quantity, column in self._gpu_columns:
            if quantity.lane == "medium":
                value = card.read(quantity)
                column.append(MISSING if value is None else value)
        self.medium.times_us.append(now_us)
        for process in self.tree.live.values():
            resident = process.resident[-1] if process.resident else 0
            if resident != process.looked_bytes or now_us - process.hwm_read_us >= HIGHEST_US:
                process.looked_bytes = resident
                self._read_highest(process, now_us)

    def _read_slow(self, now_us: int) -> None:
        tree = self.tree
        tree.look_through_table()
        if tree.refused:
            self._say(
                "processes",
                tree.refused,
                "raise the limit: ulimit -n 65536"
                if "descriptors" in tree.refused
                else "run memgauge as the same user, or as root",
            )
            tree.refused = ""
        earned = (now_us - self._shares_looked_us) * SHARES_BUDGET
        self._shares_left_us = min(SHARES_AHEAD_US, self._shares_left_us + earned)
        self._shares_looked_us = now_us
        with_shares = self._shares_left_us > 0
        began = time.thread_time_ns()
        for process in tree.live.values():
            self._read_slow_of(process, with_shares)
        if with_shares:
            self._shares_left_us -= (time.thread_time_ns() - began) / 1000
        self._own_cpu.append(time.process_time_ns())
        self._own_rss.append(_own_resident())
        wall = self._wall_ns()
        self._wall.append(wall)
        self.slow.times_us.append(now_us)
        self._watch_clock(wall, now_us)

    def _read_slow_of(self, process: Tracked, with_shares: bool) -> None:
        columns = process.columns
        if not columns:
            columns = process.columns = self._slow_columns(process)
        pss = uss = MISSING
        if with_shares and "shares" not in process.unread:
            try:
                shares = process.read_shares()
                if shares is not None:
                    pss, uss = shares
            except PermissionError:
                self._cannot(process, "shares", "PSS and USS")
            except OSError:
                process.unread.add("shares")
        files = MISSING
        if with_shares and "files" not in process.unread:
            try:
                files = process.count_files()
            except PermissionError:
                self._cannot(process, "files", "the number of open files")
            except OSError:
                process.unread.add("files")
        faults = columns["faults"]
        values = (pss, uss, process.threads, files, faults[0], faults[1])
        for name, value in zip(_SLOW_METRICS, values, strict=True):
            columns[name].append(value)

    def _slow_columns(self, process: Tracked) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        for metric, instrument in _SLOW_METRICS.items():
            series = self.writer.add_series("slow", metric, instrument, process=process.id)
            process.series.append((self.slow, series))
            columns[metric] = self.slow.column(series)
        try:
            stat = process.read_stat()
            columns["faults"] = [stat.minor_faults, stat.major_faults]
        except OSError:
            columns["faults"] = [MISSING, MISSING]
        return columns

    def _cannot(self, process: Tracked, what: str, title: str) -> None:
        process.unread.add(what)
        self._say(
            "permission",
            f"{title} of process {process.pid} ({process.name}) may not be read by this user",
            "run memgauge as the user of the job, or as root",
        )

    # ------------------------------------------------------------------ GPUs

    def _find_gpus(self) -> None:
        if not self.config.get("gpu", True):
            return
        if self._nvml is None and not _has_driver():
            return
        from memgauge.monitor.gpu import find_cards

        self._cards = find_cards(self._say, self._nvml)
        for card in self._cards:
            device = self.writer.add_device("gpu", card.name, card.identity, card.total_bytes, {})
            card.device = device
            for quantity in card.quantities:
                series = self.writer.add_series(
                    quantity.lane,
                    quantity.metric,
                    quantity.instrument,
                    device=device,
                    refresh_us=quantity.refresh_us,
                )
                lane = self.fast if quantity.lane == "fast" else self.medium
                self._gpu_columns.append((card, quantity, lane.column(series)))

    def _read_gpus(self) -> None:
        for card, quantity, column in self._gpu_columns:
            if quantity.lane == "fast":
                value = card.read(quantity)
                column.append(MISSING if value is None else value)
        for card in self._cards:
            if card.is_lost:
                continue
            held = card.process_bytes()
            known = False
            for pid, used in held.items():
                process = self.tree.live.get(pid)
                if process is None:
                    continue
                known = True
                key = (process.id, card.device)
                entry = self._gpu_process_columns.get(key)
                if entry is None:
                    series = self.writer.add_series(
                        "fast",
                        "gpu_process_bytes",
                        "nvmlDeviceGetComputeRunningProcesses",
                        process=process.id,
                        device=card.device,
                    )
                    entry = self._gpu_process_columns[key] = (series, self.fast.column(series), card)
                entry[1].append(MISSING if used is None else used)
            if held and not known and not (held.keys() & self.tree.live.keys()):
                self._say(
                    "gpu",
                    f"{card.name}: processes hold memory, but none of this job by its number here; in a "
                    "container the driver may give the host's numbers",
                    "run memgauge on the host, or rely on torch's figures at marks",
                )
            for (process_id, device), (series, column, _) in self._gpu_process_columns.items():
                if device == card.device and self.fast.is_behind(series):
                    column.append(0 if process_id else MISSING)  # it holds nothing on this device any more

    # ------------------------------------------------------------------ processes

    def _joined(self, process: Tracked) -> None:
        writer, now = self.writer, self._now_us()
        parent = self.tree.live.get(process.parent_pid)
        process.seen_us = now
        started_us = _started_us(process.started_ticks, self._origin_ns)
        process.id = writer.add_process(
            process.pid,
            parent=None if parent is None else parent.id,
            name=process.name,
            command=process.command,
            started_us=started_us,
            seen_us=now,
            found=process.found,
        )
        self._claim_peak(process, is_new=started_us >= -TICK_US)
        rss = writer.add_series("fast", "rss_bytes", "/proc/PID/statm", process=process.id)
        process.resident = self.fast.column(rss)
        cpu = writer.add_series("cpu", "cpu_ns", "/proc/PID/stat", process=process.id, refresh_us=TICK_US)
        process.cpu = self.cpu.column(cpu)
        process.series += [(self.fast, rss), (self.cpu, cpu)]

    def _claim_peak(self, process: Tracked, is_new: bool) -> None:
        """Take the right to reset a process's highest resident size, and reset it if it has a past."""
        process.hwm_kind = "exact"
        try:
            process.lock = PeakLock(process.pid, process.started_ticks)
        except OSError:
            process.hwm_kind = "other"
            self._say(
                "peaks",
                "another recording may reset the highest resident sizes of this job, so peaks here are lower bounds",
                "end the other recording, or read the peaks in its file",
            )
            return
        if not is_new and not process.reset_highest():
            process.hwm_kind = "past"

    def _owns(self, pid: int | None) -> bool:
        if pid is None:
            return False
        process = self.tree.live.get(pid)
        if process is None:
            self.tree.look(self._now_us())
            process = self.tree.live.get(pid)
        return process is not None and process.hwm_kind != "other" and process.lock is not None

    def _read_highest(self, process: Tracked, now_us: int) -> None:
        try:
            highest = process.read_highest()
        except OSError:
            return
        if highest is not None:
            process.hwm_bytes = max(process.hwm_bytes, highest)
            process.hwm_read_us = now_us

    def _is_over(self, process: Tracked) -> bool:
        try:
            return process.read_stat().state in "ZX"
        except OSError:
            return True

    def _lose(self, gone: list[Tracked], now_us: int) -> None:
        """Follow processes no more that are gone; what is known of their end is kept."""
        if self._job is not None and self._root in gone:
            self._reap()  # a tick saw it before its parent, us, was told: its last marks and its usage first
        for process in gone:
            if process.gone:
                continue
            self._keep_peak(process, now_us, is_alive=False)
            status = self._statuses.pop(process.pid, None)
            self.writer.end_process(process.id, now_us, ending_text(status))
            for lane, series in process.series:
                lane.close_column(series)
            for key in [k for k in self._gpu_process_columns if k[0] == process.id]:
                series, _, card = self._gpu_process_columns.pop(key)
                self.fast.close_column(series)
                self._keep_accounted(process, key[1], card)
            if process.lock is not None:
                process.lock.release()  # type: ignore[attr-defined]
            self._phases.pop(process.pid, None)
            self._gone_lately.append(process)
            self.tree.drop(process)
            if process is self._root and self._job is None:
                self._hear(self.listener.drain())
                text = ending_text(status)
                self._ending = (
                    self._judged(status)
                    if text
                    else Ending("gone", detail="the process ended; only its parent can know how")
                )

    def _keep_accounted(self, process: Tracked, device: int, card: Any) -> None:
        peak = card.accounted_peak(process.pid)
        if peak is not None:
            self.writer.set_peak(
                PeakRow("gpu_process_bytes", peak, "exact", "NVML accounting", "", process.id, device, None)
            )

    def _keep_peak(self, process: Tracked, now_us: int, *, is_alive: bool) -> None:
        highest = process.hwm_bytes
        kind, reason = "exact", ""
        if process.hwm_kind == "other":
            kind, reason = "lower bound", "another recording resets it"
        elif process.hwm_kind == "past":
            kind, reason = "upper bound", "it may have been reached before the recording began"
        elif not is_alive:
            kind = "lower bound"
            reason = f"last read {max(0, now_us - process.hwm_read_us) / 1000:.0f} ms before the process was found gone"
        if not process.hwm_read_us:
            highest = max(process.resident, default=0)
            kind, reason = "lower bound", "highest sample; it was gone before its peak could be read"
        if process is self._root and self._job is not None and self._largest_bytes:
            highest, kind, reason = self._root_peak(highest, kind, reason)
        if highest:
            instrument = "VmHWM" if highest == process.hwm_bytes else "wait4, ru_maxrss"
            if not process.hwm_read_us and kind == "lower bound":
                instrument = "/proc/PID/statm"
            self.writer.set_peak(
                PeakRow("rss_bytes", highest, kind, instrument, reason, process.id, None, None)
            )

    def _root_peak(self, highest: int, kind: str, reason: str) -> tuple[int, str, str]:
        """Return the command's own peak, now that wait4 told the largest of it and its children."""
        assert self._job is not None
        largest = self._largest_bytes
        if largest <= self._job.launcher_bytes:
            # The number includes what the launcher held; VmHWM is what is left to know it by.
            if highest:
                return (
                    highest,
                    "lower bound",
                    reason or "the command was gone before its last peak could be read",
                )
            return largest, "upper bound", "the command stayed below what its launcher held before it"
        alone = (
            not any(p for p in self.tree.live.values() if p is not self._root) and self._children_ever == 0
        )
        if largest <= highest or alone:
            return max(largest, highest), "exact", ""
        return highest, "lower bound", reason

    @property
    def _children_ever(self) -> int:
        return self.writer._last["process"] - 1 + self.tree.unseen

    # ------------------------------------------------------------------ what comes from outside

    def _hear_events(self) -> None:
        now = self._now_us()
        for ended in self.tree.hear(self._renamed):
            self._statuses[ended.pid] = ended.status
            process = self.tree.live.get(ended.pid)
            if process is not None and not (self._job and ended.pid == self._job.pid):
                self._lose([process], now)

    def _renamed(self, process: Tracked) -> None:
        try:
            process.name = process.read_stat().name
        except OSError:
            return
        process.command = read_command(process.pid)
        self.writer.rename_process(process.id, process.name, process.command)

    def _take_signals(self) -> None:
        for arrived in self.signals.read():
            number = arrived.number
            if number == signal.SIGCHLD:
                self._reap()
            elif self._job is None:
                if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT) and (
                    self.config.get("stop_fd") is None or not arrived.is_from_terminal
                ):
                    self._stop_reason = (
                        f"the recording was stopped by {launch.signal_name(number)}; the job went on"
                    )
                    self._ending = Ending("stopped", detail=self._stop_reason)
            elif self._is_for_job(arrived) and number not in self.signals.ignored_before:
                with contextlib.suppress(OSError):
                    os.kill(self._job.pid, number)

    def _is_for_job(self, arrived: launch.Arrived) -> bool:
        """Return whether the command has not had this signal from the terminal itself.

        A terminal that is closed tells only the leader of its session, as a rule the shell.
        """
        if arrived.number == signal.SIGHUP and os.getsid(0) == os.getpid():
            return True
        return not arrived.is_from_terminal

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            now = self._now_us()
            self._statuses[pid] = status
            process = self.tree.live.get(pid)
            if self._job is not None and pid == self._job.pid:
                self._hear(self.listener.drain())
                # A reset of VmHWM at a phase's boundary resets ru_maxrss too; what was read before it counts.
                read = process.hwm_bytes if process is not None else 0
                self._largest_bytes = max(usage.ru_maxrss * 1024, read)
                if process is not None:
                    self._lose([process], now)
                else:
                    self._add_unseen_root(now, status)
                self._ending = self._judged(status)
                self.writer.set(command_cpu_ns=round((usage.ru_utime + usage.ru_stime) * 1e9))
            elif process is not None:
                self._lose([process], now)

    def _add_unseen_root(self, now_us: int, status: int) -> None:
        """Note a command that was over before it could be looked at; its peak is known all the same."""
        assert self._job is not None
        command = list(self.config["command"])
        number = self.writer.add_process(
            self._job.pid,
            parent=None,
            name=os.path.basename(command[0]),
            command=" ".join(command),
            started_us=0,
            seen_us=now_us,
            found="waited for",
        )
        self.writer.end_process(number, now_us, ending_text(status))
        exact = self._largest_bytes > self._job.launcher_bytes
        self.writer.set_peak(
            PeakRow(
                "rss_bytes",
                self._largest_bytes,
                "exact" if exact else "upper bound",
                "wait4, ru_maxrss",
                "" if exact else "the command stayed below what its launcher held before it",
                number,
                None,
                None,
            )
        )

    def _judged(self, status: int | None) -> Ending:
        assert status is not None
        ending = launch.ending_of(status)
        after = oom_kills()
        if ending.signal == "SIGKILL" and self._oom_before is not None and (after or 0) > self._oom_before:
            ending = ending._replace(out_of_memory=True, detail=_KILLED)
        return ending

    def _hear(self, heard: list[Heard]) -> None:
        writer = self.writer
        boundary = False
        for said in heard:
            time_us = (said.time_ns - self._origin_ns) // 1000
            mark = writer.add_mark(time_us, said.pid, said.kind, said.name, said.value, said.facts)
            if said.kind == "mark":
                continue
            boundary = True
            stack = self._phases.setdefault(said.pid, [])
            highest = said.highest_bytes
            process = self.tree.live.get(said.pid)
            if highest is not None:
                if process is not None:
                    process.hwm_bytes = max(process.hwm_bytes, highest)
                for phase in stack:
                    phase[2] = None if phase[2] is None else max(phase[2], highest)
            elif process is not None and process.hwm_kind == "other":
                for phase in stack:
                    phase[2] = None
            if said.kind == "begin":
                stack.append([mark, said.name, 0 if highest is not None else None])
            else:
                self._end_phase(said, stack, process)
        if boundary:
            self._paces[3].due_ns = min(self._paces[3].due_ns, time.monotonic_ns() + 200_000_000)

    def _end_phase(self, said: Heard, stack: list[list[Any]], process: Tracked | None) -> None:
        for place in range(len(stack) - 1, -1, -1):
            if stack[place][1] == said.name:
                mark, _, highest = stack.pop(place)
                if highest:
                    self.writer.set_peak(
                        PeakRow(
                            "rss_bytes",
                            highest,
                            "exact",
                            "VmHWM, reset at the phase's boundaries",
                            "",
                            None if process is None else process.id,
                            None,
                            mark,
                        )
                    )
                return

    # ------------------------------------------------------------------ file and notes

    def _flush(self) -> None:
        now = self._now_us()
        for process in self.tree.live.values():
            if process.hwm_bytes != process.kept_bytes:
                process.kept_bytes = process.hwm_bytes
                self._keep_peak(process, now, is_alive=True)
        self.writer.set(
            alive_us=now, unseen_processes=self.tree.unseen, unseen_is_exact=self.tree.unseen_is_exact
        )
        try:
            self.writer.flush()
        except OSError as error:
            self._could_not_write(error, now)
            return
        if self._unwritten_since is not None:
            self._unwritten_since = None
            self._say("file", "the file could be written again", "")
        if not self._files_moved and not self.writer.is_in_place():
            self._files_moved = True
            self._complain(
                f"{self.writer.path} was removed or replaced while it is written; the job goes on, the recording will be lost"
            )

    def _could_not_write(self, error: OSError, now_us: int) -> None:
        if self._unwritten_since is None:
            self._unwritten_since = time.monotonic()
            self._complain(
                f"{self.writer.path} cannot be written: {error}; the job goes on, memgauge keeps trying"
            )
        elif time.monotonic() - self._unwritten_since > _LONGEST_UNWRITTEN_S:
            self._unwritten_since = time.monotonic()
            dropped = self.writer.drop_samples()
            self._say("file", f"{dropped} ticks are missing: {error}", "make room where the run file is")

    def _slowed(self, pace: Pace, share: float) -> None:
        what = "slowed down" if pace.interval_ns > pace.asked_ns else "is back at what was asked"
        self._say(
            "budget",
            f"the {pace.name} lane {what}: {pace.interval_ns / 1e6:.3g} ms between readings "
            f"(it took {100 * share:.2g} % of a core, its budget is {100 * pace.budget:g} %)",
            "--budget allows more; --interval asks for less",
            again=True,
        )

    def _watch_clock(self, wall_ns: int, now_us: int) -> None:
        offset = wall_ns - self._origin_ns - now_us * 1000
        moved = offset - self._wall_offset_ns
        self._wall_offset_ns = offset
        if abs(moved) > 500_000_000:
            self._say(
                "clock",
                f"the system's clock was set by {moved / 1e9:+.1f} s; times here do not depend on it",
                "",
                again=True,
            )

    def _say(self, topic: str, text: str, remedy: str = "", *, again: bool = False) -> None:
        if (topic, text) in self._noted and not again:
            return
        self._noted.add((topic, text))
        self._notes += 1
        if self._notes <= _MOST_NOTES:
            self.writer.add_note(self._now_us(), topic, text, remedy)

    def _complain(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"memgauge: {text}\n".encode(errors="backslashreplace"))

    def _tell_starter(self, text: str) -> None:
        fd = self.config.get("tell_fd")
        if fd is not None:
            with contextlib.suppress(OSError):
                os.write(fd, text.encode() + b"\n")


_PAGE = os.sysconf("SC_PAGE_SIZE")
_SLOW_METRICS = {
    "pss_bytes": "/proc/PID/smaps_rollup",
    "uss_bytes": "/proc/PID/smaps_rollup",
    "threads": "/proc/PID/stat",
    "open_files": "/proc/PID/fd",
    "minor_faults": "/proc/PID/stat",
    "major_faults": "/proc/PID/stat",
}


def ending_text(status: int | None) -> str | None:
    """Return how a process ended as text; None if nobody could know."""
    return None if status is None else launch.ending_of(status).text()


def _started_us(started_ticks: int, origin_ns: int) -> int:
    """Return when a process began, in µs of the run; as coarse as the kernel's clock tick."""
    since_boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    slept_ns = since_boot_ns - time.monotonic_ns()
    return started_ticks * TICK_US - (origin_ns + slept_ns) // 1000


def _owner_of(pid: int | None) -> set[int]:
    if pid is None:
        return set()
    try:
        return {os.stat(f"/proc/{pid}").st_uid}
    except OSError:
        return set()


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _own_resident() -> int:
    with open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read(64).split()[1]) * _PAGE


def _own_peak() -> int:
    """Return the sampler's own highest resident size; ru_maxrss would include what it was before exec."""
    with open("/proc/self/status", "rb") as file:
        data = file.read()
    at = data.index(b"VmHWM:") + 6
    return int(data[at : data.index(b"kB", at)]) * 1024


def _has_driver() -> bool:
    """Return whether NVIDIA's driver is there, by its device file or WSL's; saves loading its library."""
    return any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/dxg", "/dev/nvidia0"))


def _raise_file_limit() -> None:
    import resource

    try:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        pass


def main(arguments: list[str]) -> int:
    """Run one sampler; errors that were made on purpose are one line on stderr."""
    config = json.loads(arguments[0])
    if arguments[1:]:
        config["command"] = arguments[1:]
    sampler = Sampler(config)
    try:
        sampler.run()
    except MemgaugeError as error:
        sys.stderr.write(f"memgauge: {error}\n")
        return error.exit_code
    if config.get("summary"):
        _show(config["file"])
    return launch.end_alike(sampler.ending) if config.get("command") else 0


def _show(path: str) -> None:
    """Print the summary on stderr, by a process of its own: stdout belongs to the command."""
    import subprocess

    command = [sys.executable, "-P", "-m", "memgauge", "show", path, "--brief"]
    with contextlib.suppress(OSError):
        subprocess.run(command, stdout=2, stdin=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
