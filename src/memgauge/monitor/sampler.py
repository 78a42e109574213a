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

from memgauge.errors import MemgaugeError, UsageError
from memgauge.monitor import cgroup, launch
from memgauge.monitor.clock import Clock
from memgauge.monitor.devices import DeviceReadings
from memgauge.monitor.endings import OomKills
from memgauge.monitor.lanes import Pace, budget_for, in_step
from memgauge.monitor.launch import Ending
from memgauge.monitor.listening import Listener
from memgauge.monitor.marks import ENVIRONMENT
from memgauge.monitor.notes import Notes
from memgauge.monitor.peaks import Peaks
from memgauge.monitor.processes import Tracked, read_command, read_stat
from memgauge.monitor.readings import GroupReadings, MachineReadings, ProcessReadings
from memgauge.monitor.tree import GIVEN, Tree
from memgauge.monitor.viewer import Viewer
from memgauge.storage import RunWriter

FLUSH_NS = 800_000_000  # a killed sampler loses what came after the last flush
CPU_NS = 100_000_000  # CPU time in /proc moves by clock ticks of 10 ms; over less than ten it says little
MEDIUM_NS, SLOW_NS = 250_000_000, 1_000_000_000
DEAF_NS = 100_000_000  # how long events may wait after some that were about strangers only
DRAIN_NS = 50_000_000  # how long marks may wait for the next look
_LONGEST_UNWRITTEN_S = 60
_SEE_OFF_S = 0.3  # how long those may take that end with the command


class Sampler:
    """Follows one job from its beginning to its end.

    Args:
        config: `file`, `interval_ns`, and one of `pid` and `command`; `overwrite`, `budget`, `gpu`,
            `cgroup`, `events`, `stop_fd` (recording ends when it is closed), `title`, `estimate_file`
            (moved into the run file).
        wall_ns: Tells the time of day.
        nvml: The module pynvml, or one that answers as it does.
        amdsmi: The module amdsmi, or one that answers as it does.
    """

    def __init__(
        self,
        config: dict[str, Any],
        wall_ns: Callable[[], int] = time.time_ns,
        nvml: Any = None,
        amdsmi: Any = None,
    ) -> None:
        self.config = config
        self._clock = Clock(wall_ns)
        self._nvml, self._amdsmi = nvml, amdsmi
        self._job: launch.Job | None = None
        self._root: Tracked | None = None
        self._ending: Ending | None = None
        self._statuses: dict[int, int] = {}  # pid -> status, of those whose end was told
        self._unwritten_since: float | None = None
        self._files_moved = False
        self._viewer: Viewer | None = None

    # ------------------------------------------------------------------ beginning and end

    def run(self) -> None:
        """Record until the job ends or somebody stops it."""
        config = self.config
        command, pid = config.get("command"), config.get("pid")
        _refuse_missing(pid)
        self._signals = launch.Signals()
        self._writer = RunWriter(Path(config["file"]), self._header(), replace=bool(config.get("overwrite")))
        self._notes = Notes(self._writer, self._clock)
        if config.get("estimate_file"):
            estimate = Path(config["estimate_file"])
            self._writer.set_document("estimate", estimate.read_text())
            estimate.unlink(missing_ok=True)
        owners = {0, os.getuid(), os.geteuid(), *_owner_of(pid)}
        self._listener = Listener(pid, owners)
        if self._listener.attached_is_taken:
            self._notes.say(
                "marks", "another recording receives the marks of this job, so there are none here"
            )
        adopts = command is not None and launch.adopt_orphans()
        excluded = {os.getpid(), *config.get("exclude", ())}
        self._tree = Tree(self._joined, os.getpid() if adopts else None, excluded)
        self._open_lanes()
        if config.get("events", True):
            self._tree.listen()
        try:
            self._tell_starter("ready " + self._listener.address)
            self._begin(command, pid)
            self._loop()
        except launch.CommandError as error:
            self._ending = Ending("stopped", code=error.exit_code, detail=str(error))
            raise
        finally:
            self._finish()

    def _begin(self, command: list[str] | None, pid: int | None) -> None:
        """Start the command if there is one, and all that depends on its pid."""
        group = self._make_group() if command and self.config.get("cgroup") else None
        self._take_group(group)
        if command:
            environment = {**os.environ, ENVIRONMENT: self._listener.address}
            enter = None if group is None else group.enter
            self._job = self._peaks.job = launch.start(command, environment, self._signals.mask_before, enter)
            pid = self._job.pid
            self._writer.set(root_pid=pid)
        assert pid is not None
        self._root = self._peaks.root = self._tree.add(pid, GIVEN)
        if self._root is None and self._job is None:
            self._ending = Ending("gone", detail="the process was over before it could be read")
        if group is None:
            self._take_group(cgroup.of_process(pid))
        if self.config.get("watch"):
            self._viewer = Viewer(self.config["file"], self._signals.mask_before)
            if self._viewer.pid is not None:
                self._tree.excluded.add(self._viewer.pid)
        _raise_file_limit()
        if self.config.get("gpu", True):
            self._devices.find(self._nvml, self._amdsmi)

    def _take_group(self, group: cgroup.Group | None) -> None:
        self._group, self._peaks.group = GroupReadings(self._writer, group), group
        self._oom_kills = OomKills(group)

    def _make_group(self) -> cgroup.Group | None:
        try:
            return cgroup.make()
        except OSError as error:
            self._notes.say(
                "cgroup",
                f"the command has no memory group of its own: {error.strerror or error}",
                "run as root, or below: systemd-run --user --scope -p Delegate=yes",
            )
            return None

    @property
    def ending(self) -> Ending:
        """How the run ended, once it has."""
        assert self._ending is not None
        return self._ending

    def _header(self) -> dict[str, object]:
        from memgauge.version import installed_version

        config = self.config
        is_program = config.get("stop_fd") is not None
        return {
            "memgauge": installed_version(),
            "command": config.get("command"),
            "title": config.get("title"),
            "root_pid": config.get("pid"),
            "folder": os.getcwd(),
            "way": "command" if config.get("command") else "python" if is_program else "pid",
            "started_unix_ns": self._clock.began_unix_ns,
            "started_monotonic_ns": self._clock.origin_ns,
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
        writer, now = self._writer, self._clock.now_us()
        if self._ending is None:
            self._ending = Ending("stopped", detail="the recording was stopped")
        self._peaks.hear(self._listener.drain())
        self._see_off()
        for process in list(self._tree.live.values()):
            self._peaks.read(process, now)
        self._sum_up(now)
        self._devices.end_all()
        self._listener.close()
        self._tree.close()
        with contextlib.suppress(OSError):
            writer.flush()  # whoever looks on sees that it has ended, and lets go of the file
        if self._viewer is not None:
            self._viewer.wait()
        try:
            writer.close()
        except OSError as error:
            self._notes.complain(f"the end of the recording could not be written to {writer.path}: {error}")
        else:
            if not writer.is_in_place():
                self._notes.complain(f"{writer.path} was removed while it was written; the recording is lost")
        self._tell_starter("done")

    def _see_off(self) -> None:
        """Wait a moment for those that end with the command, and name those that went on."""
        if self._job is None or self.ending.how not in ("exit", "signal"):
            return
        until = time.monotonic() + _SEE_OFF_S
        while True:
            if self._tree.events is not None:
                self._hear_events()
            self._tree.look(self._clock.now_us())
            self._reap()
            self._lose([p for p in self._tree.live.values() if p.is_over()], self._clock.now_us())
            if not self._tree.live or time.monotonic() >= until:
                break
            time.sleep(_SEE_OFF_S / 20)
        stay = list(self._tree.live.values())
        if stay:
            named = ", ".join(f"{p.pid} ({p.name})" for p in stay[:3])
            self._notes.say(
                "processes",
                f"{len(stay)} went on after the command had ended, without being recorded: {named}",
                f"memgauge monitor --pid {stay[0].pid}; or let the command wait for them",
            )

    def _sum_up(self, now_us: int) -> None:
        ending, tree = self.ending, self._tree
        self._writer.set(
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
            marks_lost=self._listener.lost + self._listener.garbled,
            sampler_cpu_ns=time.process_time_ns(),
            sampler_peak_bytes=_own_peak(),
            lanes={pace.name: pace.account() for pace in self._paces},
        )
        for process in tree.live.values():
            self._peaks.keep(process, now_us, is_alive=True)
        self._peaks.keep_largest()
        self._group.close(self._peaks.group_bytes)

    # ------------------------------------------------------------------ the loop

    def _open_lanes(self) -> None:
        writer, interval = self._writer, int(self.config["interval_ns"])
        self._lanes = {name: writer.lane(name) for name in ("fast", "cpu", "medium", "slow")}
        self._processes = ProcessReadings(writer, self._tree, self._notes)
        self._machine = MachineReadings(writer, self._clock, self._notes)
        self._devices = DeviceReadings(writer, self._tree, self._notes)
        self._peaks = Peaks(writer, self._tree, self._notes, self._clock)
        self._group = GroupReadings(writer, None)

        def pace(name: str, least_ns: int, read: Callable[[int], None]) -> Pace:
            every_ns = in_step(interval, least_ns)
            budget = budget_for(max(interval, least_ns), self.config.get("budget"))
            return Pace(name, every_ns, budget, read, self._slowed)

        self._paces = [
            pace("fast", interval, self._read_fast),
            pace("cpu", CPU_NS, self._read_cpu),
            pace("medium", MEDIUM_NS, self._read_medium),
            pace("slow", SLOW_NS, self._read_slow),
        ]

    def _loop(self) -> None:
        stop_fd = self.config.get("stop_fd")
        doorbells = self._listener.doorbells()
        waiting: list[Any] = [self._signals.fd, *doorbells]
        if stop_fd is not None:
            waiting.append(stop_fd)
        events = self._tree.events.socket if self._tree.events is not None else None
        deaf_until_ns = 0  # events of strangers wake nobody up to here
        paces, monotonic = self._paces, time.monotonic_ns
        start = monotonic()
        flush_ns = drain_ns = start + FLUSH_NS // 4
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
            if drain_ns < until and self._listener.is_used():
                until = drain_ns
            hearing = waiting
            if events is not None:
                if deaf_until_ns <= monotonic():
                    hearing = [*waiting, events]
                else:
                    until = min(until, deaf_until_ns)
            ready = select.select(hearing, (), (), max(0, until - monotonic()) / 1e9)[0]
            if ready:
                if events is not None and events in ready and not self._hear_events():
                    deaf_until_ns = min(paces[0].due_ns, monotonic() + DEAF_NS)
                if self._signals.fd in ready:
                    self._take_signals()
                if any(bell in ready for bell in doorbells):
                    self._listener.accept(self._peaks.welcome)
                if stop_fd is not None and stop_fd in ready:
                    if os.read(stop_fd, 4096) or not self._root_is_over():
                        self._ending = Ending("stopped", detail="the program ended the recording")
                    else:  # the program is gone: the next tick says so
                        waiting.remove(stop_fd)
            now = monotonic()
            for pace in paces:
                if pace.due_ns <= now:
                    pace.run(now, self._clock.of(now))
            if now >= drain_ns:
                drain_ns = now + DRAIN_NS
                if self._listener.is_used():
                    self._hear()
            if now >= flush_ns:
                flush_ns += FLUSH_NS * ((now - flush_ns) // FLUSH_NS + 1)
                self._flush()

    def _root_is_over(self) -> bool:
        return self._root is None or self._root.gone or self._root.is_over()

    def _read_fast(self, now_us: int) -> None:
        self._tree.look(now_us)
        gone = self._processes.read_fast()
        self._machine.read_fast()
        self._devices.read_fast()
        self._lanes["fast"].times_us.append(now_us)
        if gone:
            self._lose(gone, now_us)

    def _read_cpu(self, now_us: int) -> None:
        gone = self._processes.read_cpu()
        self._lanes["cpu"].times_us.append(now_us)
        if gone:
            self._lose(gone, now_us)

    def _read_medium(self, now_us: int) -> None:
        self._machine.read_medium()
        self._devices.read_medium()
        self._lanes["medium"].times_us.append(now_us)
        self._peaks.read_changed(now_us)

    def _read_slow(self, now_us: int) -> None:
        self._tree.look_through_table()
        if self._tree.refused:
            no_more = "descriptors" in self._tree.refused
            remedy = (
                "raise the limit: ulimit -n 65536" if no_more else "run memgauge as the same user, or as root"
            )
            self._notes.say("processes", self._tree.refused, remedy)
            self._tree.refused = ""
        self._processes.read_slow(now_us)
        self._machine.read_slow(now_us)
        self._group.read_slow(self._peaks.group_bytes)
        self._lanes["slow"].times_us.append(now_us)

    # ------------------------------------------------------------------ who comes and goes

    def _joined(self, process: Tracked) -> None:
        parent = self._tree.live.get(process.parent_pid)
        process.seen_us = self._clock.now_us()
        process.id = self._writer.add_process(
            process.pid,
            parent=None if parent is None else parent.id,
            name=process.name,
            command=process.command,
            started_us=self._clock.born_us(process.started_ticks),
            seen_us=process.seen_us,
            found=process.found,
        )
        self._peaks.claim(process)
        self._processes.begin(process)

    def _lose(self, gone: list[Tracked], now_us: int) -> None:
        """Follow processes no more that are gone; what is known of their end is kept."""
        if self._job is not None and self._root in gone:
            self._reap()  # a tick saw it before its parent, us, was told: its last marks and its usage first
        for process in gone:
            if process.gone or self._may_run_on(process):
                continue
            self._peaks.keep(process, now_us, is_alive=False)
            self._peaks.forget(process)
            status = self._statuses.pop(process.pid, None)
            self._writer.end_process(process.id, now_us, ending_text(status))
            self._processes.end(process)
            self._devices.end(process)
            self._tree.drop(process)
            if process is self._root and self._job is None:
                self._hear()
                unknown = Ending("gone", detail="the process ended; only its parent can know how")
                self._ending = unknown if status is None else self._judged(status)

        self._tree.adopt()  # what its children became, before anything told of them

    def _may_run_on(self, process: Tracked) -> bool:
        """Return whether it is the command, not waited for: its first thread may be over before the others."""
        return self._job is not None and process is self._root and process.pid not in self._statuses

    def _hear_events(self) -> bool:
        def ended(process: Tracked, status: int | None) -> None:
            if process is self._root and self._job is not None:
                return  # the command is waited for
            if status is not None:
                self._statuses[process.pid] = status
            if status is None or process.is_over():  # else it has a moment left, or other threads
                self._lose([process], self._clock.now_us())

        return self._tree.hear(self._renamed, ended)

    def _renamed(self, process: Tracked) -> None:
        try:
            process.name = process.read_stat().name
        except OSError:
            return
        process.command = read_command(process.pid)
        self._writer.rename_process(process.id, process.name, process.command)

    def _take_signals(self) -> None:
        for arrived in self._signals.read():
            number = arrived.number
            if number == signal.SIGCHLD:
                self._reap()
            elif self._job is None:
                if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT) and (
                    self.config.get("stop_fd") is None or not arrived.is_from_terminal
                ):
                    why = f"the recording was stopped by {launch.signal_name(number)}; the job went on"
                    self._ending = Ending("stopped", detail=why)
            elif arrived.is_for_job() and number not in self._signals.ignored_before:
                with contextlib.suppress(OSError):
                    os.kill(self._job.pid, number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._statuses[pid] = status
            if self._job is not None and pid == self._job.pid:
                self._command_ended(status, usage)
            elif (process := self._tree.live.get(pid)) is not None:
                self._lose([process], self._clock.now_us())

    def _command_ended(self, status: int, usage: Any) -> None:
        assert self._job is not None
        now = self._clock.now_us()
        self._hear()
        process = self._tree.live.get(self._job.pid)
        # A reset of VmHWM at a phase's boundary resets ru_maxrss too; what was read before it counts.
        read = process.hwm_bytes if process is not None else 0
        self._peaks.largest_bytes = max(usage.ru_maxrss * 1024, read)
        if process is not None:
            self._lose([process], now)
        else:  # it was over before it could be looked at; its peak is known all the same
            command = list(self.config["command"])
            number = self._writer.add_process(
                self._job.pid,
                parent=None,
                name=os.path.basename(command[0]),
                command=" ".join(command),
                started_us=0,
                seen_us=now,
                found="waited for",
            )
            self._writer.end_process(number, now, ending_text(status))
            self._peaks.keep_largest(number)
        self._ending = self._judged(status)
        self._writer.set(command_cpu_ns=round((usage.ru_utime + usage.ru_stime) * 1e9))

    def _judged(self, status: int) -> Ending:
        ending = launch.ending_of(status)
        assert self._root is not None or self._job is not None
        pid = self._job.pid if self._job is not None else self._root.pid  # type: ignore[union-attr]
        why = self._oom_kills.was_cause(pid) if ending.signal == "SIGKILL" else ""
        return ending._replace(out_of_memory=True, detail=why) if why else ending

    def _hear(self) -> None:
        if self._peaks.hear(self._listener.drain()):  # look at shares soon after a boundary
            slow = self._paces[3]
            slow.due_ns = min(slow.due_ns, time.monotonic_ns() + 200_000_000)

    # ------------------------------------------------------------------ the file

    def _flush(self) -> None:
        writer, now = self._writer, self._clock.now_us()
        self._peaks.keep_changed(now)
        writer.set(
            alive_us=now, unseen_processes=self._tree.unseen, unseen_is_exact=self._tree.unseen_is_exact
        )
        try:
            writer.flush()
        except OSError as error:
            self._could_not_write(error)
            return
        if self._unwritten_since is not None:
            self._unwritten_since = None
            self._notes.say("file", "the file could be written again")
        if not self._files_moved and not writer.is_in_place():
            self._files_moved = True
            self._notes.complain(
                f"{writer.path} was removed or replaced while it is written; the job goes on, the recording will be lost"
            )

    def _could_not_write(self, error: OSError) -> None:
        if self._unwritten_since is None:
            self._unwritten_since = time.monotonic()
            self._notes.complain(
                f"{self._writer.path} cannot be written: {error}; the job goes on, memgauge keeps trying"
            )
        elif time.monotonic() - self._unwritten_since > _LONGEST_UNWRITTEN_S:
            self._unwritten_since = time.monotonic()
            dropped = self._writer.drop_samples()
            self._notes.say(
                "file", f"{dropped} ticks are missing: {error}", "make room where the run file is"
            )

    def _slowed(self, pace: Pace, share: float) -> None:
        what = "slowed down" if pace.interval_ns > pace.asked_ns else "is back at what was asked"
        self._notes.say(
            "budget",
            f"the {pace.name} lane {what}: {pace.interval_ns / 1e6:.3g} ms between readings "
            f"(it took {100 * share:.2g} % of a core, its budget is {100 * pace.budget:g} %)",
            "--budget allows more; --interval asks for less",
            again=True,
        )

    def _tell_starter(self, text: str) -> None:
        fd = self.config.get("tell_fd")
        if fd is not None:
            with contextlib.suppress(OSError):
                os.write(fd, text.encode() + b"\n")


def ending_text(status: int | None) -> str | None:
    """Return how a process ended as text; None if nobody could know."""
    return None if status is None else launch.ending_of(status).text()


def _refuse_missing(pid: int | None) -> None:
    if pid is None:
        return
    try:
        state = read_stat(pid).state
    except OSError:
        raise UsageError(
            f"there is no process {pid}; memgauge monitor --pid takes the number of one that runs"
        ) from None
    if state in "ZX":
        raise UsageError(f"process {pid} has ended already")


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


def _own_peak() -> int:
    """Return the sampler's own highest resident size; ru_maxrss would include what it was before exec."""
    with open("/proc/self/status", "rb") as file:
        data = file.read()
    at = data.index(b"VmHWM:") + 6
    return int(data[at : data.index(b"kB", at)]) * 1024


def _raise_file_limit() -> None:
    import resource

    with contextlib.suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
