"""Everything that goes wrong around a recording, with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import MIB, Job, memgauge, ticks, until, values, why_ends_are_not_told

from memgauge import __file__ as memgauge_file
from memgauge.errors import UsageError
from memgauge.explain.recording import summarise
from memgauge.monitor import calling, cgroup, endings
from memgauge.monitor.clock import Clock
from memgauge.monitor.events import Events
from memgauge.monitor.lanes import Pace
from memgauge.monitor.listening import PeakLock
from memgauge.monitor.machine import boot
from memgauge.monitor.notes import Notes
from memgauge.monitor.processes import TICK_NS, LinuxProcess, read_stat
from memgauge.monitor.readings import ProcessReadings
from memgauge.monitor.recorder import Monitor
from memgauge.monitor.rounds import Rounds
from memgauge.monitor.sampler import Sampler
from memgauge.monitor.system import this_system
from memgauge.monitor.tracked import Tracked
from memgauge.monitor.tree import CHILDREN, Tree
from memgauge.storage import RunFile, RunWriter, is_alive

IS_ROOT = os.geteuid() == 0
SPIN = "say(str(os.getpid()))\nwhile True: time.sleep(0.01)\n"


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("victim", ["sampler", "job", "both"])
def test_a_killed_recording_opens_and_states_its_ending(tmp_path: Path, victim: str) -> None:
    random.seed(victim)
    for attempt in range(17):  # three victims: 51 kills
        path = tmp_path / f"{victim}{attempt}.mg"
        job = Job(SPIN, path, "-i", "5ms", "-q")
        pid = int(job.heard())
        until(path, lambda run: ticks(run) > 3, job.process)
        time.sleep(random.random() * 0.5)  # the moment of death is meant to be random
        before = time.monotonic_ns()
        for target in {"sampler": [job.process.pid], "job": [pid], "both": [job.process.pid, pid]}[victim]:
            kill(target)
        code, _, err = job.end() if victim != "sampler" else (job.process.wait(), "", "")
        kill(pid)
        with RunFile(path) as run:
            said = summarise(run)
            assert run.damage == []
            died_us = (before - run.header["started_monotonic_ns"]) // 1000
            assert died_us - run.last_us() < 1_000_000
        if victim == "job":
            assert code == -signal.SIGKILL, err
            assert (said.state, said.signal, said.out_of_memory) == ("ended", "SIGKILL", False)
        else:
            assert said.state == "lost" or said.signal == "SIGKILL"
            assert "lost" in said.ended or said.signal == "SIGKILL"
        if victim == "sampler":  # what the job may have held since is unknown
            (process,) = said.processes
            assert process.peak_kind == "lower bound"


@pytest.mark.parametrize(("code", "exit_code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 15)", -15)])
def test_exit_code_and_signal_are_those_of_the_command(tmp_path: Path, code: str, exit_code: int) -> None:
    job = Job(code, tmp_path / "a.mg", "-q")
    assert job.end()[0] == exit_code


def test_output_and_input_are_the_commands_own(tmp_path: Path) -> None:
    command = [*memgauge("monitor", "-q", "-o", str(tmp_path / "a.mg"), "--"), "cat"]
    done = subprocess.run(command, input="to and fro\n", capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("to and fro\n", "")


@pytest.mark.parametrize(("name", "code"), [("no-such-command-here", 127), ("/etc/hostname", 126)])
def test_a_command_that_cannot_be_started_ends_as_in_a_shell(tmp_path: Path, name: str, code: int) -> None:
    done = subprocess.run(
        [*memgauge("monitor", "-o", str(tmp_path / "a.mg"), "--"), name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert name in done.stderr
    assert done.stderr.count("\n") == 1
    if code == 127:
        assert not (tmp_path / "a.mg").exists()


def test_open_files_of_the_shell_do_not_stop_a_recording(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 2_000:
        pytest.skip(f"no process may open more than {hard} files here")
    shell = """
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
for _ in range(1500):
    os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
os.execv(sys.argv[1], sys.argv[1:])
"""
    path = tmp_path / "a.mg"
    command = [*memgauge("monitor", "-q", "-o", str(path), "--"), sys.executable, "-c", "raise SystemExit(3)"]
    done = subprocess.run(
        [sys.executable, "-c", shell, *command], capture_output=True, text=True, check=False, close_fds=False
    )
    assert (done.returncode, done.stderr) == (3, "")
    with RunFile(path) as run:
        assert summarise(run).exit_code == 3


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_closed_for_the_command_too(tmp_path: Path, closed: str) -> None:
    path, seen = tmp_path / "a.mg", tmp_path / "seen"
    code = (
        "import os, sys; own = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "streams = sorted(int(n) for n in os.listdir('/proc/self/fd') if int(n) < 3 and int(n) != own)\n"
        "os.write(own, b'%r' % streams); sys.exit(7)"
    )
    found = []
    for before in ([], [*memgauge("monitor", "-o", str(path), "--")]):
        command = [*before, sys.executable, "-c", code, str(seen)]
        done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *command], check=False)
        found.append((done.returncode, seen.read_text()))
        seen.unlink()
    assert found[0][0] == 7
    assert found[1] == found[0]
    with RunFile(path) as run:
        assert run.damage == []
        assert summarise(run).exit_code == 7
    shown = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *memgauge("show", str(path))], check=False
    )
    assert shown.returncode == 0


def test_callers_without_a_descriptor_left_are_turned_away_and_do_not_keep_the_sampler_busy(
    tmp_path: Path,
) -> None:
    code = """
import memgauge
say(); wait()
for _ in range(60):
    if os.fork() == 0:
        memgauge.mark("child")
        say(); wait(); os._exit(0)
say(); wait()
"""
    path = tmp_path / "a.mg"
    few = (120, 120)
    job = Job(code, path, "-q", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, few))
    job.heard()
    job.go()
    for _ in range(61):
        job.heard()
    before = until(path, lambda run: values(run, "sampler_cpu_ns"), job.process)[-1]
    after = until(
        path,
        lambda run: [v for v in values(run, "sampler_cpu_ns") if v[0] > before[0] + 2_000_000],
        job.process,
    )[-1]
    for _ in range(61):
        job.go()
    assert job.end()[0] == 0
    # Awake all the time it would be 100 %.
    assert (after[1] - before[1]) / 1000 < 0.5 * (after[0] - before[0])
    with RunFile(path) as run:
        said = summarise(run)
    notes = [note.text for note in said.notes]
    assert any("no file descriptors are left" in text for text in notes)
    assert not any("another recording" in text for text in notes)


def test_a_signal_that_is_sent_to_memgauge_reaches_the_command_once(tmp_path: Path) -> None:
    code = """
import signal
import sqlite3
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
say()
while not got: time.sleep(0.01)
time.sleep(0.2)
sys.exit(40 + len(got))
"""
    job = Job(code, tmp_path / "a.mg", "-q")
    job.heard()
    job.process.send_signal(signal.SIGTERM)
    assert job.end()[0] == 41


def test_a_command_that_heeds_a_signal_which_we_inherited_ignored_gets_it(tmp_path: Path) -> None:
    code = """
import signal
assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
got = []
signal.signal(signal.SIGINT, lambda *_: got.append(1))
say()
while not got: time.sleep(0.01)
sys.exit(42)
"""

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell without job control does for `command &`
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    job = Job(code, tmp_path / "a.mg", "-q", preexec_fn=ignore)
    job.heard()
    job.process.send_signal(signal.SIGHUP)  # the command ignores it, so nothing becomes of it
    job.process.send_signal(signal.SIGINT)
    assert job.end()[0] == 42


def test_ctrl_c_in_a_terminal_reaches_the_command_once_and_the_file_is_complete(tmp_path: Path) -> None:
    code = """
import signal
import sqlite3
got = []
signal.signal(signal.SIGINT, lambda *_: got.append(1))
say()
while not got: time.sleep(0.01)
time.sleep(0.2)
sys.exit(40 + len(got))
"""
    path = tmp_path / "a.mg"
    terminal, inside = os.openpty()
    job = Job(code, path, "-q", stdin=inside, stdout=inside, stderr=inside, preexec_fn=_own_terminal)
    os.close(inside)
    job.heard()
    os.write(terminal, b"\x03")
    assert job.process.wait() == 41
    os.close(terminal)
    with RunFile(path) as run:
        assert summarise(run).exit_code == 41


@pytest.mark.parametrize(
    ("imported", "module"), [("typer", "memgauge"), ("sqlite3", "memgauge.monitor.sampler")]
)
def test_ctrl_c_while_it_starts_ends_it_without_a_traceback(
    tmp_path: Path, imported: str, module: str
) -> None:
    (tmp_path / f"{imported}.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    paths = os.pathsep.join([str(tmp_path), str(Path(memgauge_file).parents[1])])
    command = [sys.executable, "-P", "-m", module, "--help"]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""


def test_a_closed_terminal_ends_the_job_and_the_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    terminal, inside = os.openpty()
    job = Job(SPIN, path, stdin=inside, stdout=inside, stderr=inside, preexec_fn=_own_terminal)
    os.close(inside)
    job.heard()
    os.close(terminal)
    assert job.process.wait() == -signal.SIGHUP
    with RunFile(path) as run:
        assert summarise(run).signal == "SIGHUP"


def _own_terminal() -> None:
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_running_process_is_attached_to_and_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    job = Job(SPIN, path, wrap=False)
    pid = int(job.heard())
    sampler = subprocess.Popen(memgauge("monitor", "-q", "-o", str(path), "--pid", str(pid)))
    until(path, lambda run: ticks(run) > 3, sampler)
    sampler.send_signal(signal.SIGINT)
    assert sampler.wait() == 0
    assert job.process.poll() is None
    kill(pid)
    job.end()
    with RunFile(path) as run:
        said = summarise(run)
    assert "the job went on" in said.ended
    assert said.processes[0].pid == pid


def test_a_pid_that_is_not_there_is_refused() -> None:
    done = subprocess.run(
        memgauge("monitor", "--pid", "999999999"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("memgauge: there is no process 999999999; ")  # nothing was begun before
    assert done.stderr.count("\n") == 1


def test_the_end_of_an_attached_process_ends_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    job = Job("say(str(os.getpid())); wait()", path, wrap=False)
    pid = int(job.heard())
    sampler = subprocess.Popen(memgauge("monitor", "-q", "-o", str(path), "--pid", str(pid)))
    until(path, lambda run: ticks(run) > 3, sampler)
    job.go()
    job.end()
    assert sampler.wait() == 0
    with RunFile(path) as run:
        said = summarise(run)
    assert said.state == "ended"
    if IS_ROOT:  # exits of processes that are not ours are told to root only
        assert said.exit_code == 0


@pytest.mark.parametrize("events", [True, False])
def test_a_thousand_short_processes_are_counted(tmp_path: Path, events: bool) -> None:
    code = """
say(); wait()
for _ in range(1000):
    if os.fork() == 0: os._exit(0)
    os.wait()
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, wrap=False)
    job.heard()
    config = {"file": str(path), "interval_ns": 10_000_000, "pid": job.process.pid, "events": events}
    sampler = subprocess.Popen([sys.executable, "-m", "memgauge.monitor.sampler", json.dumps(config)])
    until(path, lambda run: ticks(run) > 3, sampler)
    job.go()
    assert job.end()[0] == 0
    assert sampler.wait() == 0
    with RunFile(path) as run:
        said = summarise(run)
        unread = [p for p in run.processes if p.found == "its end"]
    seen = len(said.processes) - 1
    if events and IS_ROOT:
        assert seen + said.unseen_processes == 1000
        assert said.unseen_is_exact
        if not why_ends_are_not_told():
            assert said.unseen_processes == 0
            assert {p.peak_kind for p in said.processes} == {"exact"}
            assert {p.command for p in unread} <= {said.processes[0].command}
    else:
        assert 1 <= seen + said.unseen_processes <= 1000
        assert not said.unseen_is_exact


def test_a_second_recording_gives_lower_bounds_and_says_why(tmp_path: Path) -> None:
    code = """
import memgauge
say(str(os.getpid())); wait()
with memgauge.phase("work"): x = bytearray(100 << 20); say(); wait(); del x
say(); wait()
"""
    first, second = tmp_path / "first.mg", tmp_path / "second.mg"
    job = Job(code, first, "-q")
    pid = int(job.heard())
    other = subprocess.Popen(memgauge("monitor", "-q", "-o", str(second), "--pid", str(pid)))
    until(second, lambda run: ticks(run) > 3, other)
    job.go()
    job.heard()
    until(second, lambda run: any(v > 100 * MIB for _, v in values(run, "rss_bytes")), other)
    job.go()
    job.heard()
    job.go()
    assert job.end()[0] == 0
    assert other.wait() == 0
    with RunFile(first) as run:
        mine = summarise(run)
    with RunFile(second) as run:
        theirs = summarise(run)
    assert mine.phases[0].peak_kind == "exact"
    assert (mine.phases[0].peak_bytes or 0) > 100 * MIB
    assert [(p.name, p.peak_kind) for p in theirs.phases] == [("work", "lower bound")]
    assert theirs.processes[0].peak_kind == "lower bound"
    assert any("another recording" in note.text for note in theirs.notes)


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are set back on Linux only")
def test_who_has_the_peak_of_a_process_has_those_of_its_children(tmp_path: Path) -> None:
    code = """
import memgauge
say(str(os.getpid())); wait()
if not os.fork():
    with memgauge.phase("work"): x = bytearray(100 << 20)
    os._exit(0)
os.wait()
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, wrap=False)
    pid = int(job.heard())
    another = PeakLock(pid, LinuxProcess(pid).started_ticks)  # as another recording has it
    recording = subprocess.Popen(memgauge("monitor", "-q", "-o", str(path), "--pid", str(pid)))
    until(path, lambda run: ticks(run) > 3, recording)
    job.go()
    assert (job.end()[0], recording.wait()) == (0, 0)
    another.release()
    with RunFile(path) as run:
        said = summarise(run)
    assert [(p.name, p.peak_kind == "exact") for p in said.phases] == [("work", False)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if not IS_ROOT:
        pytest.skip("a small file system can be mounted by root only")
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path) -> Path:
    with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    return folder / "filler"


@pytest.mark.parametrize("is_freed", [True, False])
def test_a_full_disk_stops_the_file_and_not_the_job(tmp_path: Path, small_disk: Path, is_freed: bool) -> None:
    path = tmp_path / "a.mg"
    path.symlink_to(small_disk / "a.mg")
    job = Job("say(); wait(); sys.exit(5)", path, "-i", "1ms")
    job.heard()
    until(path, lambda run: ticks(run) > 3, job.process)
    filler = fill(small_disk)
    assert job.process.stderr is not None
    line = job.process.stderr.readline()
    assert "cannot be written: the disk is full; the job goes on" in line
    if is_freed:
        filler.unlink()
    job.go()
    code, _, err = job.end()
    assert code == 5
    assert "still recording" not in err
    assert ("the end of the recording could not be written" in err) is not is_freed
    assert ("exit code 5" in err) is is_freed
    with RunFile(path) as run:
        assert ticks(run) > 3
        assert run.damage == []
        assert (summarise(run).exit_code == 5) is is_freed
        assert ("there was no room for the rest of the file" in summarise(run).ended) is not is_freed


def test_a_disk_without_room_for_a_file_is_an_error_that_leaves_nothing(small_disk: Path) -> None:
    fill(small_disk)
    done = subprocess.run(
        [*memgauge("monitor", "-o", str(small_disk / "a.mg"), "--"), "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "a.mg cannot be written: the disk is full" in done.stderr
    assert [f.name for f in small_disk.iterdir()] == ["filler"]


def test_a_folder_that_is_removed_does_not_stop_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    path = folder / "a.mg"
    job = Job("say(); wait(); sys.exit(6)", path, "-q")
    job.heard()
    until(path, lambda run: ticks(run) > 3, job.process)
    shutil.rmtree(folder)
    assert job.process.stderr is not None
    assert "was removed" in job.process.stderr.readline()
    job.go()
    assert job.end()[0] == 6


def test_a_file_that_cannot_be_made_is_an_error_before_the_job_starts(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    command = [*memgauge("monitor", "-o", str(tmp_path / "none" / "a.mg"), "--"), "touch", str(mark)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "does not exist" in done.stderr
    assert not mark.exists()


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("ulimit -n 12", "a process may have 12 here (ulimit -n); raise the limit first: ulimit -n 1024"),
        ("ulimit -n 20", "a process may have 20 here (ulimit -n); raise the limit first: ulimit -n 1024"),
        ("ulimit -f 20", "no file may be larger than "),
    ],
)
def test_a_limit_that_allows_no_recording_is_named_before_the_job_starts(
    tmp_path: Path, limit: str, said: str
) -> None:
    path, mark = tmp_path / "a.mg", tmp_path / "ran"
    command = [*memgauge("monitor", "-o", str(path), "--"), "touch", str(mark)]
    done = subprocess.run(
        ["sh", "-c", f'{limit}; exec "$@"', "sh", *command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
    assert [f.name for f in tmp_path.iterdir()] == []


def test_a_recording_in_progress_is_not_overwritten(tmp_path: Path) -> None:
    path, mark = tmp_path / "a.mg", tmp_path / "ran"
    job = Job("say(); wait()", path, "-q")
    job.heard()
    again = [*memgauge("monitor", "-q", "-o", str(path), "--overwrite", "--"), "touch", str(mark)]
    done = subprocess.run(again, capture_output=True, text=True, check=False)
    assert (done.returncode, mark.exists()) == (2, False)
    assert f"{path} is being recorded by process {job.process.pid}; choose another name" in done.stderr
    with pytest.raises(UsageError, match="is being recorded by process"):
        Monitor(path, overwrite=True).start()
    job.go()
    assert job.end()[0] == 0
    with RunFile(path) as run:
        assert run.header["command"][-1].endswith("a.py")
        assert summarise(run).state == "ended"
    assert subprocess.run(again, check=False).returncode == 0  # it has ended
    assert mark.exists()


def test_what_this_very_process_began_to_record_it_may_replace(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    own = {
        "sampler_pid": os.getpid(),
        "sampler_started_ticks": read_stat(os.getpid()).started_ticks,
        "boot": boot(),
    }
    RunWriter(path, own).close()
    with RunFile(path) as run:
        assert is_alive(run.header)
    RunWriter(path, {"title": "second"}, replace=True).close()
    with RunFile(path) as run:
        assert run.header["title"] == "second"


def test_steps_of_the_systems_clock_change_no_time_of_a_recording(tmp_path: Path) -> None:
    """The sampler's own code with a wall clock that jumps; the machine's is left alone."""
    job = Job("say(); wait()", tmp_path / "a.mg", wrap=False)
    job.heard()
    jumps = iter([0, 0, 3600, 3600, -7200])

    def wall() -> int:
        return time.time_ns() + next(jumps, 0) * 10**9

    path = tmp_path / "clock.mg"
    sampler = _Stepped({"file": str(path), "interval_ns": 10**7, "pid": job.process.pid}, wall)
    sampler.until_slow_ticks(4, job)
    job.end()
    with RunFile(path) as run:
        times = [t for _, c in run.chunks("fast") for t in c.times_us]
        notes = [n.text for n in run.notes if n.topic == "clock"]
    assert times == sorted(times)
    assert times[-1] < 60_000_000
    assert [n[:42] for n in notes[:2]] == [
        "the system's clock was set by +3600.0 s; t",
        "the system's clock was set by -10800.0 s; ",
    ]


class _Stepped(Sampler):
    """The sampler in this process; lets its job go after so many slow readings."""

    def until_slow_ticks(self, count: int, job: Job) -> None:
        self._left, self._stepped_job = count, job
        import signal as signals

        mask = signals.pthread_sigmask(signals.SIG_BLOCK, ())
        try:
            self.run()
        finally:
            signals.pthread_sigmask(signals.SIG_SETMASK, mask)
            import gc

            gc.enable()
            gc.unfreeze()

    def _open_lanes(self) -> None:
        super()._open_lanes()
        slow = self._rounds.paces[3]
        slow.asked_ns = slow.interval_ns = 50_000_000
        assert isinstance(slow, Pace)
        read = slow.read

        def counted(now_us: int) -> None:
            read(now_us)
            self._left -= 1
            if self._left == 0:
                self._stepped_job.go()

        slow.read = counted


def test_hostile_names_are_data_everywhere(tmp_path: Path) -> None:
    nasty = "</script><img src=x onerror=alert(1)>\x1b[31m'\"&\u202e"
    code = f"""
import memgauge
long = {nasty!r} + "x" * 100_000
memgauge.mark({nasty!r}, long)
with memgauge.phase(long, {nasty!r}): pass
"""
    path, html = tmp_path / "a.mg", tmp_path / "a.html"
    script = tmp_path / "job.py"
    script.write_text(code)
    argument = nasty + "y" * 90_000
    command = [*memgauge("monitor", "-q", "-o", str(path), "--"), sys.executable, str(script), argument]
    subprocess.run(command, check=True)
    shown = subprocess.run(memgauge("show", str(path)), capture_output=True, text=True, check=True).stdout
    assert "\x1b" not in shown
    with RunFile(path) as run:
        assert run.marks[0].name == nasty
        assert len(run.marks[1].name) < 1100
        assert "characters" in run.marks[1].name
    subprocess.run(memgauge("report", str(path), "-o", str(html)), check=True, capture_output=True)
    text = html.read_text()
    assert "<img src=x" not in text
    assert "&lt;img src=x" in text
    for kind in ("csv", "jsonl", "perfetto", "prometheus"):
        out = subprocess.run(
            memgauge("export", str(path), "-f", kind), capture_output=True, text=True, check=True
        )
        assert "\x1b" not in out.stdout
        if kind == "perfetto":
            assert json.loads(out.stdout)["traceEvents"]


@pytest.fixture
def everybodys() -> str:
    """Return a Python that other users may run."""
    if not IS_ROOT:
        pytest.skip("needs root to become somebody else")
    found = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    if found is None or subprocess.run([found, "-c", check], check=False).returncode:
        pytest.skip("there is no Python that other users may run")
    return found


def nobody() -> dict[str, Any]:
    """Return how a process is started as another user, with memgauge to be found."""
    environment = {**os.environ, "PYTHONPATH": str(Path(memgauge_file).parents[1])}
    return {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/", "env": environment}


def test_a_folder_that_may_not_be_looked_into_is_an_error(tmp_path: Path, everybodys: str) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for folder, why in ((closed, "may not be looked into"), (Path("/"), "may not be written")):
        config = json.dumps({"file": str(folder / "a.mg"), "interval_ns": 10**8, "pid": os.getpid()})
        command = [everybodys, "-m", "memgauge.monitor.sampler", config]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **nobody())
        assert done.returncode == 2
        assert done.stderr == f"memgauge: {folder / 'a.mg'} cannot be written: the folder {folder} {why}\n"


def test_marks_of_a_job_that_becomes_another_user_arrive(tmp_path: Path, everybodys: str) -> None:
    path = tmp_path / "a.mg"
    says = 'import memgauge\nwith memgauge.phase("as nobody"): memgauge.mark("step", 1)'
    becomes = (
        "import os, sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"os.chdir('/'); os.execv({everybodys!r}, [{everybodys!r}, '-c', {says!r}])"
    )
    command = memgauge("monitor", "-q", "-o", str(path), "--", sys.executable, "-c", becomes)
    subprocess.run(command, check=True, env=nobody()["env"])
    with RunFile(path) as run:
        said = summarise(run)
    assert ([p.name for p in said.phases], said.marks, said.marks_lost) == (["as nobody"], 3, 0)


def test_a_stranger_of_another_user_sends_no_marks(tmp_path: Path, everybodys: str) -> None:
    job = Job("say(str(os.getpid())); wait()", tmp_path / "a.mg", "-q")
    (address, *_) = calling.attached_addresses(int(job.heard()))
    environment = {**nobody()["env"], calling.ENVIRONMENT: address}
    says = [everybodys, "-c", "import memgauge; memgauge.mark('not of the job')"]
    subprocess.run(says, check=True, **{**nobody(), "env": environment})
    job.go()
    job.end()
    with RunFile(tmp_path / "a.mg") as run:
        assert not run.marks
        (note,) = (n for n in run.notes if n.topic == "marks")
    assert "of user 65534" in note.text


def test_a_process_that_may_not_be_read_is_named_with_the_remedy(tmp_path: Path, everybodys: str) -> None:
    code = """
for _ in range(2):
    if os.fork() == 0:
        wait(); os._exit(0)
say(str(os.getpid())); wait()
"""
    job = Job(code, tmp_path / "a.mg", wrap=False)
    pid = int(job.heard())
    folder = Path("/tmp") / f"memgauge-test-{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o777)
    path = folder / "a.mg"
    config = json.dumps({"file": str(path), "interval_ns": 20_000_000, "pid": pid})
    try:
        sampler = subprocess.Popen([everybodys, "-m", "memgauge.monitor.sampler", config], **nobody())
        found = until(path, lambda run: [n for n in run.notes if n.topic == "permission"], sampler)
        with RunFile(path) as run:
            assert values(run, "rss_bytes")[-1][1] > MIB  # what anybody may read is read
            assert all(v == -1 for _, v in values(run, "pss_bytes"))
        for _ in range(3):
            job.go()
        job.end()
        assert sampler.wait() == 0
        with RunFile(path) as run:
            assert len({p.pid for p in run.processes}) == 3
            assert len([n for n in run.notes if "PSS" in n.text]) == 1  # of all three
            (of_marks,) = (n for n in run.notes if n.topic == "marks")
            assert of_marks.text == "a job of user 0 gives its marks to that user and to root only"
    finally:
        shutil.rmtree(folder)
    assert "may not be read by this user" in found[0].text
    assert "as root" in found[0].remedy


def test_a_process_that_is_ending_is_not_taken_for_one_that_may_not_be_read(tmp_path: Path) -> None:
    if not IS_ROOT:
        pytest.skip("needs root to become somebody else")
    path = tmp_path / "a.mg"
    writer, tree = RunWriter(path, {}), Tree(this_system(), None, set())
    readings = ProcessReadings(writer, tree, Notes(writer, Clock()), 100_000_000)
    with _waiting_child() as (ending, end), _waiting_child() as (alive, _):
        for pid in (ending, alive):
            process = tree.add(pid, CHILDREN)
            assert process is not None
            readings.begin(process)
        end()
        os.seteuid(65534)
        try:
            readings.read_slow(0)
        finally:
            os.seteuid(0)
    writer.close()
    with RunFile(path) as run:
        told = [n.text for n in run.notes]
    assert told and all(f"as of {alive} " in text for text in told)


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A memory group of 150 MiB (version 1)."""
    group = Path("/sys/fs/cgroup/memory") / f"memgauge-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(150 * MIB))
    except OSError:
        pytest.skip("no memory group can be made here")
    yield group
    group.rmdir()


def test_running_out_of_memory_is_recognised(tmp_path: Path, small_memory: Path) -> None:
    procs = str(small_memory / "cgroup.procs")
    code = f"open({procs!r}, 'w').write(str(os.getpid()))\nx = bytearray(400 << 20)\n"
    path = tmp_path / "a.mg"
    job = Job(code, path)
    code_, _, err = job.end()
    assert code_ == -signal.SIGKILL
    assert "for lack of memory" in err
    with RunFile(path) as run:
        said = summarise(run)
    assert said.out_of_memory
    assert [p.ended for p in said.processes if p.ended != "exit code 0"] == [
        "killed by SIGKILL, out of memory"
    ]


# The kernel kills the children that fill the memory, the job kills the others: no victims of a lack of it.
CHILDREN_KILLED = """
import signal
for fills in {fills}:
    pid = os.fork()
    if pid == 0:
        if fills: x = bytearray(400 << 20)
        signal.pause()
    if not fills: os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    print(pid, flush=True)
sys.exit({code})
"""


@pytest.mark.parametrize(
    ("fills", "code", "is_run"),
    [
        ((True, False), 137, True),
        ((False, True), 256 - signal.SIGKILL, True),
        ((True,), 1, False),
        ((False,), 137, False),
    ],
)
def test_a_child_that_ran_out_of_memory_is_told_from_one_that_was_killed(
    tmp_path: Path, small_memory: Path, fills: tuple[bool, ...], code: int, is_run: bool
) -> None:
    path = tmp_path / "a.mg"
    procs = small_memory / "cgroup.procs"
    job = Job(
        CHILDREN_KILLED.format(fills=fills, code=code),
        path,
        preexec_fn=lambda: procs.write_text(str(os.getpid())),
    )
    ended, out, _ = job.end()
    assert ended == code
    with RunFile(path) as run:
        said = summarise(run)
    by_pid = {p.pid: p for p in said.processes}
    children = [by_pid[int(pid)] for pid in out.split()]
    if any(child.ended is None for child in children):
        pytest.skip("how children end is not told here")
    for child, was_filled in zip(children, fills, strict=True):
        assert str(child.ended).startswith("killed by SIGKILL")
        assert ("out of memory" in str(child.ended)) is was_filled
    noted = [n for n in said.notes if n.topic == "memory"]
    assert [bool(n.remedy) for n in noted] == [True] * any(fills)
    assert all(f"{c.pid} ({c.name})" in noted[0].text for c, was in zip(children, fills, strict=True) if was)
    assert said.out_of_memory is is_run
    assert ("for lack of memory" in said.ended) is is_run


@pytest.mark.parametrize("fills", [True, False])
def test_where_nobody_tells_how_children_end_the_groups_counter_is_asked(
    tmp_path: Path, small_memory: Path, fills: bool
) -> None:
    # Neither events nor the kernel's log have the numbers of processes of a namespace of its own.
    if subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True).returncode:
        pytest.skip("no namespace of processes can be made here")
    path, script = tmp_path / "a.mg", tmp_path / "job.py"
    script.write_text("import os, sys\n" + CHILDREN_KILLED.format(fills=(fills,), code=137))
    command = [*memgauge("monitor", "-o", str(path)), "--", sys.executable, str(script)]
    procs = small_memory / "cgroup.procs"
    with contextlib.ExitStack() as others:
        with contextlib.suppress(OSError):
            # What another recording is told is heard there too, and is no answer to this one.
            others.callback(Events().close)
        busy = others.enter_context(subprocess.Popen(["sh", "-c", "while :; do /bin/true; done"]))
        others.callback(busy.kill)
        done = subprocess.run(
            ["unshare", "-pf", "--mount-proc", *command],
            preexec_fn=lambda: procs.write_text(str(os.getpid())),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 137, done.stderr
    with RunFile(path) as run:
        said = summarise(run)
    assert said.out_of_memory is fills
    assert any("1 killed by the kernel for lack of memory" in n.text for n in said.notes) is fills


@pytest.mark.parametrize(
    ("of_group", "named", "said"),
    [
        (1, True, "out of memory"),
        (1, False, ""),
        (1, None, "probably out of memory"),
        (0, None, ""),
        (0, True, "out of memory"),
    ],
)
def test_the_kills_of_other_jobs_are_not_this_ones(
    monkeypatch: pytest.MonkeyPatch, of_group: int, named: bool | None, said: str
) -> None:
    counts, kills = [7], [3]  # of the machine, of the group
    monkeypatch.setattr(endings, "_of_machine", lambda: counts[-1])
    monkeypatch.setattr(endings, "_is_named", lambda _pid: named)
    monkeypatch.setattr(cgroup.Group, "oom_kills", lambda _group: kills[-1])
    found = endings.OomKills(cgroup.Group.__new__(cgroup.Group))
    assert found.judge(1, "before") is None
    counts.append(8)  # somebody was killed meanwhile
    kills.append(3 + of_group)
    victim = found.judge(2, "now")
    assert (victim.because() if victim else "") == said
    assert found.judge(3, "later") is None or not said  # that kill has its victim already


def test_a_daemon_is_adopted_and_named_when_it_outlives_the_command(tmp_path: Path) -> None:
    code = """
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
    os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
x = bytearray(90 << 20)
say(str(os.getpid())); wait()
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-q", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    daemon = job.heard()
    assert job.process.wait() == 0
    with RunFile(path) as run:
        said = summarise(run)
    job.go()
    assert daemon in next(n.text for n in said.notes if "went on after" in n.text)


def test_a_reused_pid_is_another_process(tmp_path: Path) -> None:
    last = Path("/proc/sys/kernel/ns_last_pid")
    code = """
def born(pid, mib):
    for _ in range(200):
        open("/proc/sys/kernel/ns_last_pid", "w").write(str(pid - 1))
        child = os.fork()
        if child == 0:
            if os.getpid() == pid: x = bytearray(mib << 20); say(); wait()
            os._exit(0)
        if child == pid: return child
        os.waitpid(child, 0)
    sys.exit(9)
pid = int(open("/proc/sys/kernel/ns_last_pid").read()) + 3000
if pid > 32000: pid = 5000
while os.path.exists(f"/proc/{pid}"): pid += 1
for mib in (30, 90):
    os.waitpid(born(pid, mib), 0)
"""
    if not IS_ROOT or not os.access(last, os.W_OK):
        pytest.skip("choosing the next pid needs root")
    path = tmp_path / "a.mg"
    job = Job(code, path, "-i", "20ms", "-q")
    for count in (1, 2):
        job.heard()
        until(path, lambda run, count=count: _alive_with_samples(run) >= count, job.process)
        job.go()
    if job.end()[0] == 9:
        pytest.skip("other processes were faster, 200 times")
    with RunFile(path) as run:
        by_pid: dict[int, list[int]] = {}
        for p in run.processes:
            by_pid.setdefault(p.pid, []).append(p.id)
        twice = [ids for ids in by_pid.values() if len(ids) == 2]
        peaks = {p.process: p.bytes for p in run.peaks if p.metric == "rss_bytes"}
    assert len(twice) == 1
    assert peaks[twice[0][1]] - peaks[twice[0][0]] > 50 * MIB


@contextlib.contextmanager
def _waiting_child(code: int = 0) -> Iterator[tuple[int, Callable[[], None]]]:
    """Fork a child that ends when it is told to; at the latest after the block."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(reader, 1)
        os._exit(code)

    def end() -> None:
        os.write(writer, b"x")
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    with open(reader, "rb"), open(writer, "wb"):
        try:
            yield pid, end
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_who_was_found_before_its_fork_was_told_is_told_of_once() -> None:
    ends: list[tuple[int, int | None]] = []
    others: list[object] = []

    def ended(process: Tracked, status: int | None) -> None:
        ends.append((process.pid, status))
        tree.drop(process)

    tree = Tree(this_system(), None, set())
    with contextlib.closing(tree):
        if tree.listen():
            pytest.skip("the kernel tells of forks to root only")
        with _waiting_child(7) as (pid, end):
            assert tree.add(pid, CHILDREN) is not None
            end()
            while not ends and not others and not tree.unseen:  # the parent hears of it before the events do
                tree.hear(others.append, ended, lambda *late: None, lambda *unread: others.append(unread))
    assert ends == [(pid, 7 << 8)]
    assert not others and not tree.unseen


def test_the_end_of_a_former_process_of_its_number_is_not_its_own() -> None:
    if why_ends_are_not_told():
        pytest.skip(why_ends_are_not_told())
    last = Path("/proc/sys/kernel/ns_last_pid")
    tree = Tree(this_system(), None, set())
    with contextlib.closing(tree):
        tree.listen()
        with _waiting_child() as (former, end):
            end()
        tree.hear_ends()
        told_ns = time.monotonic_ns()
        while time.monotonic_ns() < told_ns + 2 * TICK_NS:  # births are known by the tick
            pass
        for _ in range(200):
            last.write_text(str(former - 1))
            with _waiting_child() as (pid, end):
                if pid != former:
                    continue
                process = tree.add(pid, CHILDREN)
                assert process is not None and process.at_exit is None
                end()
                tree.hear_ends()
                assert process.at_exit is not None
                return
    pytest.skip("other processes were faster, 200 times")


def _alive_with_samples(run: RunFile) -> int:
    """Return how many processes were seen with more than 25 MiB."""
    owner = {s.id: s.process for s in run.series if s.metric == "rss_bytes"}
    big = {
        owner[c.series]
        for _, chunk in run.chunks("fast")
        for c in chunk.columns
        if c.series in owner and max(c.values) > 25 * MIB
    }
    return len(big)


def test_a_command_whose_first_thread_ends_early_is_one_process_to_its_end(tmp_path: Path) -> None:
    code = """
import ctypes, threading
def rest():
    x = bytearray(60 << 20); say(); wait(); os._exit(5)
threading.Thread(target=rest).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-i", "10ms", "-q")
    job.heard()
    seen = until(path, ticks, job.process)
    until(path, lambda run: ticks(run) > seen + 20, job.process)
    with RunFile(path) as run:
        # Its other threads tell, from the first tick without the first one on.
        assert min(resident for _, resident in values(run, "rss_bytes")) > 0
    job.go()
    assert job.end()[0] == 5
    with RunFile(path) as run:
        (process,) = summarise(run).processes
    assert process.ended == "exit code 5"
    assert (process.peak_bytes or 0) > 60 * MIB


def test_more_children_than_fit_on_a_page_are_all_found_without_events(tmp_path: Path) -> None:
    code = """
for _ in range(900):
    if os.fork() == 0:
        os.read(int(os.environ["WAIT"]), 1); os._exit(0)
say(); wait()
for _ in range(900): os.wait()
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, wrap=False)
    job.heard()
    config = {"file": str(path), "interval_ns": 100_000_000, "pid": job.process.pid, "events": False}
    sampler = subprocess.Popen([sys.executable, "-m", "memgauge.monitor.sampler", json.dumps(config)])
    found = until(path, lambda run: ticks(run) > 0 and [p.found for p in run.processes], sampler)
    for _ in range(901):
        job.go()
    assert job.end()[0] == 0
    assert sampler.wait() == 0
    assert found == ["given", *["children"] * 900]  # at once: not by the table of all processes


def test_an_orphan_that_has_ended_is_not_taken_for_another_process(tmp_path: Path) -> None:
    code = """
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.05); os._exit(0)
        os._exit(0)
    os.wait()
time.sleep(0.3)
"""
    path = tmp_path / "a.mg"
    assert Job(code, path, "-q", "-i", "1ms").end()[0] == 0
    with RunFile(path) as run:
        pids = [p.pid for p in run.processes]
    assert len(pids) > 20
    assert len(pids) == len(set(pids))


@pytest.mark.parametrize("command", [["true"], ["seq", "5"]])
def test_a_command_smaller_than_its_launcher_is_not_taken_for_it(tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "a.mg"
    subprocess.run([*memgauge("monitor", "-q", "-o", str(path), "--"), *command], check=True)
    with RunFile(path) as run:
        said = summarise(run)
    (largest,) = (p for p in said.peaks if p.name.startswith("largest process"))
    if why_ends_are_not_told():
        assert largest.kind in ("upper bound", "lower bound")
    else:
        assert largest.kind == "exact"
        assert 0 < largest.bytes < 5 * MIB  # the launcher held some 15


def test_as_root_it_is_known_how_each_process_ended(tmp_path: Path) -> None:
    code = """
pids = []
for n in range(60):
    pid = os.fork()
    if pid == 0:
        wait(); os._exit(n)
    pids.append(pid)
say()
for pid in pids: os.waitpid(pid, 0)
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-q", "-i", "1ms")
    job.heard()
    for _ in range(60):
        job.go()
    assert job.end()[0] == 0
    with RunFile(path) as run:
        if not run.header["unseen_is_exact"]:
            pytest.skip("the kernel tells of exits to root only")
        children = [p for p in run.processes if p.parent is not None]
    assert sorted(int(str(p.ended).removeprefix("exit code ")) for p in children) == list(range(60))


def test_a_process_that_renames_itself_has_its_new_name(tmp_path: Path) -> None:
    code = """
import ctypes
say(); wait()
ctypes.CDLL(None).prctl(15, b"worker one", 0, 0, 0)
say(); wait()
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-q")
    job.heard()
    until(path, ticks, job.process)
    job.go()
    job.heard()
    until(path, lambda run: run.processes[0].name == "worker one", job.process)
    job.go()
    assert job.end()[0] == 0


@pytest.mark.parametrize("interval_ms", [1, 20])
def test_a_lane_that_costs_more_than_its_budget_slows_down_and_says_so(
    tmp_path: Path, interval_ms: int
) -> None:
    path = tmp_path / "a.mg"
    job = Job("say(); wait()", path, "-q", "-i", f"{interval_ms}ms", "--budget", "0.01")
    job.heard()
    until(path, lambda run: any("the fast lane slowed down" in n.text for n in run.notes), job.process)
    job.go()
    assert job.end()[0] == 0
    with RunFile(path) as run:
        fast = run.header["lanes"]["fast"]
    assert fast["asked_ns"] == interval_ms * 10**6
    assert fast["interval_ns"] > 3 * fast["asked_ns"]


def rounds_of_nothing(path: Path, interval_ns: int) -> tuple[RunWriter, Rounds]:
    """Return lanes that read nothing, with a budget of 2 %, and what their notes are written to."""
    writer = RunWriter(path, {"interval_ns": interval_ns})
    unused: Any = None
    readings = dict.fromkeys(("processes", "machine", "devices", "peaks", "lose", "look_again"), unused)
    rounds = Rounds(writer, unused, Notes(writer, Clock()), **readings)
    rounds.open(interval_ns, 0.02)
    return writer, rounds


def test_a_lane_that_slowed_down_beyond_a_second_is_told_of_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    writer, rounds = rounds_of_nothing(path, 10**9)
    slow = rounds.paces[3]
    slow.interval_ns = 1_450_000_000
    rounds._slowed(slow, 0.029)
    writer.close()
    with RunFile(path) as run:
        assert "slowed down: 1.45 s between readings (it took 2.9 % of a core" in run.notes[0].text


def test_a_damaged_file_claims_no_lost_sampler_and_names_each_damage_once(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    assert Job("time.sleep(0.5)", path, "-q", "-i", "5ms").end()[0] == 0
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        size = db.execute("PRAGMA page_size").fetchone()[0]
        root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'header'").fetchone()[0]
        db.execute("UPDATE chunk SET data = x'0011223344'")
    data = bytearray(path.read_bytes())
    data[(root - 1) * size : root * size] = b"\xff" * size
    path.write_bytes(data)
    with RunFile(path) as run:
        said = summarise(run)
    assert "cannot be read" in said.ended and "killed" not in said.ended
    assert any("chunk" in text for text in said.damage)
    assert len(set(said.damage)) == len(said.damage)


def test_of_a_file_that_lost_its_second_half_the_first_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    assert Job("time.sleep(0.5)", path, "-q", "-i", "5ms").end()[0] == 0
    with RunFile(path) as run:
        whole = run.processes
    size = path.stat().st_size
    for left in range(size // 2, 4096, -3500):
        os.truncate(path, left)
        with RunFile(path) as run:
            said = summarise(run)
            if left > size // 3:
                assert run.processes == whole
        assert any("the end of the file is missing" in text for text in said.damage)


def test_a_lane_that_is_back_at_what_was_asked_has_no_remedy(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    writer, rounds = rounds_of_nothing(path, 10**7)
    fast = rounds.paces[0]
    for interval_ms, share in ((90, 0.18), (40, 0.009), (10, 0.004)):
        fast.interval_ns = interval_ms * 10**6
        rounds._slowed(fast, share)
    writer.close()
    with RunFile(path) as run:
        slowed, faster, back = run.notes
    assert "slowed down" in slowed.text and "is faster again: 40 ms" in faster.text
    assert slowed.remedy == faster.remedy != ""
    assert "is back at what was asked" in back.text and back.remedy == ""


def test_a_spike_is_in_a_lost_recording_however_slow_its_samples(tmp_path: Path) -> None:
    code = """
import mmap
say(str(os.getpid())); wait()
m = mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE); m.close()
say(); wait()
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-q", "-i", "5s")
    pid = int(job.heard())
    until(path, ticks, job.process)
    job.go()
    job.heard()
    until(path, lambda run: any(p.bytes > 256 * MIB for p in run.peaks if p.process), job.process)
    with RunFile(path) as run:
        assert ticks(run) == 1
    kill(job.process.pid)
    job.process.wait()
    kill(pid)
    with RunFile(path) as run:
        said = summarise(run)
    assert (said.state, said.peaks[0].name) == ("lost", "largest process, resident")
    assert said.peaks[0].bytes > 256 * MIB
