"""The sampler: a process of its own that follows a tree of processes and writes the run file.

    python -m memgauge.monitor.sampler CONFIG [COMMAND…]

It opens all that is read and written, starts the command or finds the process, runs the loop, and writes
how it ended. What is read goes to columns in memory and from there to the file, at least once a second. It
uses one thread and, on Linux, the standard library only.
"""

from __future__ import annotations

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an import would answer Ctrl-C by a traceback

import contextlib
import errno
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memgauge.errors import MemgaugeError, UsageError
from memgauge.monitor import cgroup, launch
from memgauge.monitor.calling import ENVIRONMENT, with_outer
from memgauge.monitor.clock import Clock
from memgauge.monitor.devices import DeviceReadings
from memgauge.monitor.endings import OomKills
from memgauge.monitor.launch import Ending
from memgauge.monitor.lifetimes import Lifetimes
from memgauge.monitor.listening import Listener
from memgauge.monitor.loop import Loop
from memgauge.monitor.notes import Notes
from memgauge.monitor.peaks import Peaks
from memgauge.monitor.readings import GroupReadings, MachineReadings, ProcessReadings
from memgauge.monitor.rounds import Rounds
from memgauge.monitor.saving import Saving, began, header
from memgauge.monitor.system import System, this_system
from memgauge.monitor.tree import Tree
from memgauge.monitor.viewer import Viewer
from memgauge.storage import RunWriter

# What it opens, with a command of one process: 29 to 34 with all that the kernel tells (Linux 6.18, 2026-11-22).
_DESCRIPTORS = 36


class Sampler:
    """Follows one job from its beginning to its end.

    Args:
        config: `file`, `interval_ns`, and one of `pid` and `command`; `overwrite`, `budget`, `gpu`,
            `cgroup`, `events`, `stop_fd` (recording ends when it is closed), `closed` (standard streams that
            the command begins without), `title`, `estimate_file` (moved into the run file), `announce` (lines
            for stderr once it has begun), `tell_fd` (is told when it is ready, and when it failed).
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
        self._stop_fd: int | None = config.get("stop_fd")
        self._viewer: Viewer | None = None

    def run(self) -> None:
        """Record until the job ends or somebody stops it."""
        config = self.config
        command, pid = config.get("command"), config.get("pid")
        self._system = this_system()
        _refuse_missing(pid, self._system)
        _refuse_few_descriptors()
        self._signals = launch.Signals()
        self._writer = RunWriter(
            Path(config["file"]),
            header(config, self._clock, self._system),
            replace=bool(config.get("overwrite")),
        )
        self._notes = Notes(self._writer, self._clock)
        if config.get("estimate_file"):
            self._writer.set_document("estimate", Path(config["estimate_file"]).read_text(encoding="utf-8"))
        owner, own = _owner_of(pid, self._system), {os.getuid(), os.geteuid()}
        self._listener = Listener(pid, {0, *own, *owner}, self._say_turned_away)
        if os.geteuid() and owner - own:
            self._notes.say(
                "marks",
                f"a job of user {min(owner)} gives its marks to that user and to root only",
                "record it as that user, or as root",
            )
        if self._listener.attached_is_taken:
            self._notes.say(
                "marks", "two other recordings receive the marks of this job, so there are none here"
            )
        for text, remedy in self._system.lacks:
            self._notes.say("system", text, remedy)
        adopts = command is not None and self._system.tells_events and launch.adopt_orphans()
        self._own = self._system.open(os.getpid())
        self._tree = Tree(self._system, self._own if adopts else None, {os.getpid()})
        self._open_lanes()
        if config.get("events", True):
            self._tree.listen()
        self._clock.begin()
        self._writer.set(**began(self._clock))
        try:
            self.tell_starter(f"ready {os.getpid()} {self._listener.address}")
            self._begin(command, pid)
            for text in config.get("announce", ()):
                self._notes.complain(text)
            self._run_loop()
        except launch.CommandError as error:
            self._lifetimes.ending = Ending("stopped", code=error.exit_code, detail=str(error))
            raise
        finally:
            self._finish()

    def _open_lanes(self) -> None:
        writer, tree, clock, notes = self._writer, self._tree, self._clock, self._notes
        interval_ns = int(self.config["interval_ns"])
        processes = ProcessReadings(writer, tree, notes, interval_ns)
        self._machine = MachineReadings(writer, clock, notes, self._system, self._own, interval_ns)
        self._devices = DeviceReadings(writer, tree, notes)
        self._peaks = Peaks(writer, tree, notes, clock)
        self._saving = Saving(writer, clock, notes)
        self._lifetimes = Lifetimes(
            writer,
            tree,
            clock=clock,
            system=self._system,
            processes=processes,
            devices=self._devices,
            peaks=self._peaks,
            hear=self._hear,
        )
        self._rounds = Rounds(
            writer,
            tree,
            notes,
            processes=processes,
            machine=self._machine,
            devices=self._devices,
            peaks=self._peaks,
            lose=self._lifetimes.lose,
            look_again=self._lifetimes.look_again,
        )
        self._rounds.open(interval_ns, self.config.get("budget"))

    def _begin(self, command: list[str] | None, pid: int | None) -> None:
        """Start the command if there is one, and all that depends on its pid."""
        group = self._make_group() if command and self.config.get("cgroup") else None
        enter = None if group is None else group.enter
        # Before the command starts, which has the group that we are in: a kill soon after is to be counted.
        self._take_group(group or cgroup.of_process(pid or os.getpid()))
        if command:
            environment = {**os.environ, ENVIRONMENT: with_outer(self._listener.address)}
            job = launch.start(command, environment, self._signals, enter, self.config.get("closed", ()))
            pid = job.pid
            self._listener.attend(pid)
            self._writer.set(root_pid=pid)
            self._lifetimes.begin_command(job, command)
        else:
            assert pid is not None
            self._lifetimes.begin_pid(pid)
        if self.config.get("watch"):
            self._viewer = Viewer(self.config["file"], self._signals.mask_before)
            if self._viewer.pid is not None:
                self._tree.excluded.add(self._viewer.pid)
        _raise_file_limit()
        if self.config.get("gpu", True):
            self._devices.find(self._nvml, self._amdsmi)

    def _take_group(self, group: cgroup.Group | None) -> None:
        self._rounds.group, self._peaks.group = GroupReadings(self._writer, group), group
        self._lifetimes.oom_kills = OomKills(group)

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

    def _run_loop(self) -> None:
        loop = Loop(
            self._rounds,
            self._lifetimes,
            self._tree,
            listener=self._listener,
            hear=self._hear,
            peaks=self._peaks,
            saving=self._saving,
            clock=self._clock,
            signals=self._signals,
            stop_fd=self._stop_fd,
        )
        with contextlib.closing(loop):
            loop.run()

    def _hear(self) -> None:
        if self._peaks.hear(self._listener.drain()):
            self._rounds.look_soon()

    def _finish(self) -> None:
        """Write everything that is left and how it ended; a recording always ends with this."""
        lifetimes, now = self._lifetimes, self._clock.now_us()
        if lifetimes.ending is None:
            lifetimes.ending = Ending("stopped", detail="the recording was stopped")
        self._peaks.hear(self._listener.drain())
        lifetimes.see_off(self._notes)
        for process in list(self._tree.live.values()):
            self._peaks.read(process, now)
            self._peaks.keep(process, now, is_alive=True)
        self._peaks.keep_largest()
        self._rounds.group.close(self._peaks.group_bytes)
        self._devices.end_all()
        self._saving.end(
            lifetimes.ending,
            duration_us=now,
            marks_lost=self._listener.lost + self._listener.garbled,
            sampler_cpu_ns=time.process_time_ns(),
            sampler_peak_bytes=self._machine.own_peak_bytes(),
            lanes=self._rounds.account(),
            **self._tree.missed(),
        )
        self._listener.close()
        self._tree.close()
        with contextlib.suppress(OSError):
            self._writer.flush()  # whoever looks on sees that it has ended, and lets go of the file
        if self._viewer is not None:
            self._viewer.wait()
        self._saving.close()
        self.tell_starter("done")

    def _say_turned_away(self, pid: int, user: int) -> None:
        self._notes.say(
            "marks",
            f"process {pid} of user {user} wanted to send marks, and is not known to be one of the job's",
            "record as that user, or as root",
        )

    @property
    def ending(self) -> Ending:
        """How the run ended, once it has."""
        assert self._lifetimes.ending is not None
        return self._lifetimes.ending

    @property
    def is_complete(self) -> bool:
        """Whether the file holds the recording to its end."""
        return self._saving.is_complete

    def tell_starter(self, text: str) -> None:
        """Tell whoever started the sampler, if they listen."""
        fd = self.config.get("tell_fd")
        if fd is not None:
            with contextlib.suppress(OSError):
                os.write(fd, text.encode() + b"\n")


def _refuse_missing(pid: int | None, system: System) -> None:
    if pid is None:
        return
    try:
        state = system.stat(pid).state
    except OSError:
        raise UsageError(
            f"there is no process {pid}; memgauge monitor --pid takes the number of one that runs"
        ) from None
    if state in "ZX":
        raise UsageError(f"process {pid} has ended already")
    whole = system.process_of(pid)
    if whole != pid:
        raise UsageError(f"{pid} is a thread of process {whole}; record that one: --pid {whole}")


def _refuse_few_descriptors() -> None:
    import resource

    opened: list[int] = []
    try:
        for _ in range(_DESCRIPTORS):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise UsageError(
            f"a recording needs {_DESCRIPTORS} open files more than there are, and a process may have "
            f"{limit} here (ulimit -n); raise the limit first: ulimit -n 1024"
        ) from None
    finally:
        for fd in opened:
            os.close(fd)


def _owner_of(pid: int | None, system: System) -> set[int]:
    with contextlib.suppress(OSError):
        return set() if pid is None else {system.owner(pid)}
    return set()


def _raise_file_limit() -> None:
    import resource

    with contextlib.suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(arguments: list[str]) -> int:
    """Run one sampler; errors that were made on purpose are one line on stderr."""
    config = json.loads(arguments[0])
    if config.get("detach") and os.fork():
        os._exit(0)
    if arguments[1:]:
        config["command"] = arguments[1:]
    sampler = Sampler(config)
    try:
        sampler.run()
    except MemgaugeError as error:
        sys.stderr.write(f"memgauge: {error}\n")
        sampler.tell_starter(f"failed {error.exit_code}")
        return error.exit_code
    if config.get("summary") and sampler.is_complete:
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
