"""Programs that take and give back known amounts, and what a recording says of them."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from jobs import MIB, Job, memgauge, more_ticks, ticks, until, values, why_ends_are_not_told

from memgauge.explain.bands import bands
from memgauge.explain.recording import summarise
from memgauge.explain.samples import Sums
from memgauge.monitor.machine import Memory
from memgauge.monitor.processes import LinuxProcess
from memgauge.storage import RunFile

SLEEPER = """
import ctypes, mmap, sys
held = mmap.mmap(-1, 32 << 20)
print(ctypes.addressof(ctypes.c_char.from_buffer(held)), flush=True)
sys.stdin.read()
"""


def slow_tick(path: Path, job: Job) -> None:
    """Wait until PSS was read after this call."""
    now = time.monotonic_ns()

    def later(run: RunFile) -> bool:
        begin = (now - run.header["started_monotonic_ns"]) // 1000
        return any(t > begin and v >= 0 for t, v in values(run, "pss_bytes"))

    until(path, later, job.process)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/meminfo")
def test_what_the_system_uses_is_what_the_kernel_says_at_that_moment() -> None:
    # Shared memory that is given back may wait in lists of each CPU: MemFree stands while the rest moves.
    def said() -> tuple[int, int]:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        total, free, available, buffers, cached = (
            int(lines[key].split()[0]) * 1024
            for key in ("MemTotal", "MemFree", "MemAvailable", "Buffers", "Cached")
        )
        return total - free - buffers - cached, available

    memory, compared = Memory(), 0
    for _ in range(20):
        memory.read()
        held = mmap.mmap(-1, 64 * MIB)
        held.write(b"x" * (64 * MIB))
        for change in (lambda: None, held.close):
            memory.read()
            change()
            before, found, after = said(), memory.read(), said()
            if before == after:  # else something else moved it between the readings
                compared += 1
                assert found == before
    assert compared


def test_the_systems_memory_is_read_whenever_the_trees_moves(tmp_path: Path) -> None:
    code = """
import mmap
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
held = [mmap.mmap(-1, 64 << 20, flags=flags) for _ in range(24)]
"""
    path = tmp_path / "a.mg"
    assert Job(code, path, "-i", "5ms").end()[0] == 0
    with RunFile(path) as run:
        resident, used = Sums(run), dict(values(run, "system_used_bytes"))
    rows = [(now, used[at]) for at, now in zip(resident.times_us, resident.total, strict=True)]
    # The first of it comes from lists of each CPU, which the kernel does not count as free.
    moved = [(a[1], b[1]) for a, b in pairwise(rows) if b[0] - a[0] > 4 * MIB and b[0] > 800 * MIB]
    assert len(moved) >= 4
    # Read by its own clock, every 50 ms, it would change in one of ten; the kernel's lists hide some on a busy machine.
    assert sum(before != after for before, after in moved) > len(moved) / 5


def test_what_others_take_shows_in_the_systems_memory_while_the_tree_sleeps(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    job = Job("say(); wait()", path, "-i", "10ms")
    job.heard()
    more_ticks(path, job, 30)
    with RunFile(path) as run:
        began_ns = run.header["started_monotonic_ns"]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    memory, held = Memory(), []
    low = memory.read()[0]
    # The first of it comes from lists of each CPU, which the kernel does not count as free.
    while (now := memory.read()[0]) < low + 400 * MIB and len(held) < 16:
        held.append(mmap.mmap(-1, 256 * MIB, flags=flags))
    taken_us = (time.monotonic_ns() - began_ns) // 1000
    more_ticks(path, job, 10)
    job.go()
    assert job.end()[0] == 0
    assert now > low + 400 * MIB
    with RunFile(path) as run:
        series = {s.metric: s for s in run.series}
        later = [value for at, value in values(run, "system_used_bytes") if at > taken_us]
    assert series["system_used_bytes"].refresh_us == 50_000
    assert any(value > low + 200 * MIB for value in later[:6])


def test_what_is_held_is_reported_within_a_percent(tmp_path: Path) -> None:
    code = """
import mmap
say(); wait()
kept = mmap.mmap(-1, 300 << 20); kept.write(b"x" * (300 << 20))
say(); wait()
kept.close()
say(); wait()
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-i", "20ms")
    levels = []
    for _ in range(3):
        job.heard()
        more_ticks(path, job)
        with RunFile(path) as run:
            levels.append(values(run, "rss_bytes")[-1][1])
        job.go()
    assert job.end()[0] == 0
    assert abs(levels[1] - levels[0] - 300 * MIB) < 3 * MIB
    assert abs(levels[2] - levels[0]) < 3 * MIB


def test_a_spike_between_two_samples_is_in_the_exact_peak(tmp_path: Path) -> None:
    code = """
import mmap
say(); wait()
m = mmap.mmap(-1, 256 << 20); m.write(b"x" * (256 << 20)); m.close()
say(); wait()
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-i", "5s")
    job.heard()
    until(path, lambda run: values(run, "rss_bytes"), job.process)
    job.go()
    job.heard()
    job.go()
    assert job.end()[0] == 0
    with RunFile(path) as run:
        seen = max(v for _, v in values(run, "rss_bytes"))
        said = summarise(run)
    assert seen < 200 * MIB
    for peak in said.peaks:
        assert ("one process alone held more" in peak.reason) is peak.name.startswith("tree")
    (process,) = said.processes
    assert process.peak_kind == "exact"
    assert process.peak_bytes is not None
    # The program itself holds some 10 MiB beside the 256 and the bytes that it copies from.
    assert 512 * MIB <= process.peak_bytes <= 512 * MIB + 30 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="born when, in ticks since boot")
def test_the_run_begins_with_its_command_and_not_with_the_sampler(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    assert Job("pass", path, "-q").end()[0] == 0
    with RunFile(path) as run:
        (command,) = run.processes
        slept_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
        sampler_ns = run.header["sampler_started_ticks"] * 10_000_000 - slept_ns
        sampler_us = (run.header["started_monotonic_ns"] - sampler_ns) // 1000
    assert command.started_us is not None
    # Beside what the sampler imports, and opens after that, a fork takes no time: 1 part in 1,000, before 1 in 15.
    assert 0 <= command.started_us < sampler_us / 30


def test_what_the_command_held_as_another_program_is_its_own_too(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    code = "x = bytearray(256 << 20)\nos.execvp('sleep', ['sleep', '0'])\n"
    assert Job(code, path, "-q", "-i", "5s").end()[0] == 0
    with RunFile(path) as run:
        said = summarise(run)
    (process,) = said.processes
    (largest,) = (p for p in said.peaks if p.name.startswith("largest process"))
    assert process.peak_bytes == largest.bytes
    assert process.peak_bytes is not None and process.peak_bytes > 256 * MIB


def test_shared_pages_are_counted_once_in_pss_and_each_time_in_rss(tmp_path: Path) -> None:
    code = """
import mmap
shared = mmap.mmap(-1, 200 << 20); shared.write(b"x" * (200 << 20))
for i in range(3):
    if os.fork() == 0:
        sum(shared[i] for i in range(0, len(shared), 4096))
        say(); wait(); os._exit(0)
say(); wait()
for i in range(3): os.wait()
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-i", "20ms")
    for _ in range(4):
        job.heard()
    slow_tick(path, job)
    for _ in range(4):
        job.go()
    assert job.end()[0] == 0
    with RunFile(path) as run:
        said = summarise(run)
        shares = Sums(run, "pss_bytes", "slow").total
    peaks = {p.name: p for p in said.peaks}
    assert len(said.processes) == 4
    assert peaks["tree, sum of RSS"].bytes > 800 * MIB
    # Processes are read one after the other: a reading while they still take pages may count some twice.
    assert any(200 * MIB < total < 300 * MIB for total in shares)
    # At worst each one is read when only those before it have the pages: 200 · (1 + 1/2 + 1/3 + 1/4) MiB.
    assert max(shares) < 440 * MIB
    assert "shared pages counted in each process" in peaks["tree, sum of RSS"].instrument


def test_a_child_in_its_parents_memory_counts_from_its_own_program_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Between vfork and exec it opens a pipe that nobody writes to yet: it stays there, and its parent waits.
    code = """
held = bytearray(b"x") * (200 << 20)
os.mkfifo(sys.argv[0] + ".fifo")
own = "import os; held = bytearray(b'x') * (40 << 20); os.write(int(os.environ['SAY']), bytes([45, 10])); os.read(0, 1)"
say()
child = os.posix_spawn(
    sys.executable,
    [sys.executable, "-c", own],
    os.environ,
    file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[0] + ".fifo", os.O_RDONLY, 0)],
)
os.waitpid(child, 0)
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-i", "20ms")
    job.heard()
    parent, child = until(
        path, lambda run: len(run.processes) == 2 and [p.pid for p in run.processes], job.process
    )
    slow_tick(path, job)
    more_ticks(path, job)
    monkeypatch.setattr(
        "memgauge.monitor.processes._same_memory", lambda *_: None
    )  # as where kcmp is forbidden
    assert LinuxProcess(child).runs_in_memory_of(LinuxProcess(parent))
    assert not LinuxProcess(os.getpid()).runs_in_memory_of(LinuxProcess(parent))
    with open(path.with_suffix(".py.fifo"), "wb"):
        job.heard()
        slow_tick(path, job)
    assert job.end()[0] == 0
    with RunFile(path) as run:
        said = summarise(run)
        childs = [v for _, v in values(run, "rss_bytes", child)]
    peaks = {p.name: p for p in said.peaks}
    for name in ("tree, sum of RSS", "tree, sum of PSS"):
        assert 240 * MIB < peaks[name].bytes < 300 * MIB
    assert childs[0] == 0
    assert 40 * MIB < max(childs) < 100 * MIB
    own = next(p for p in said.processes if p.pid == child)
    assert own.peak_bytes is not None
    assert own.peak_bytes < 100 * MIB


@pytest.mark.parametrize("events", [True, False])
def test_a_child_that_left_its_parents_memory_has_its_own_exact_peak_without_a_sample(
    tmp_path: Path, events: bool
) -> None:
    # It is found before its exec, and ends before the next sample.
    code = """
say(); wait()
os.mkfifo(sys.argv[0] + ".fifo")
own = "import os; held = bytearray(b'x') * (300 << 20); del held; os.read(int(os.environ['WAIT']), 1)"
child = os.posix_spawn(
    sys.executable,
    [sys.executable, "-c", own],
    os.environ,
    file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[0] + ".fifo", os.O_RDONLY, 0)],
)
os.waitpid(child, 0)
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, wrap=False)
    job.heard()
    config = {"file": str(path), "interval_ns": 5 * 10**9, "pid": job.process.pid, "events": events}
    sampler = subprocess.Popen([sys.executable, "-m", "memgauge.monitor.sampler", json.dumps(config)])
    until(path, lambda run: ticks(run) > 0, sampler)
    job.go()
    until(path, lambda run: len(run.processes) == 2, sampler)
    with open(path.with_suffix(".py.fifo"), "wb"):
        if not events or os.geteuid() != 0 or why_ends_are_not_told():
            until(path, lambda run: any(p.process and p.bytes > 300 * MIB for p in run.peaks), sampler)
        job.go()
        assert job.end()[0] == 0
    assert sampler.wait() == 0
    with RunFile(path) as run:
        said = summarise(run)
    child = said.processes[1]
    assert child.peak_bytes is not None and 300 * MIB < child.peak_bytes < 340 * MIB
    largest = next(p for p in said.peaks if p.name.startswith("largest process"))
    assert largest.bytes == child.peak_bytes


def test_file_backed_pages_are_resident_too(tmp_path: Path) -> None:
    data = tmp_path / "data.bin"
    data.write_bytes(bytes(100 * MIB))
    code = f"""
import mmap
say(); wait()
m = mmap.mmap(os.open({str(data)!r}, os.O_RDONLY), 0, prot=mmap.PROT_READ)
sum(m[i] for i in range(0, len(m), 4096))
say(); wait()
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-i", "20ms")
    levels = []
    for _ in range(2):
        job.heard()
        more_ticks(path, job)
        with RunFile(path) as run:
            levels.append(values(run, "rss_bytes")[-1][1])
        job.go()
    assert job.end()[0] == 0
    assert abs(levels[1] - levels[0] - 100 * MIB) < 1 * MIB


def test_cpu_time_is_that_of_the_command(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    job = Job("t = time.process_time()\nwhile time.process_time() - t < 0.3: pass\n", path)
    assert job.end()[0] == 0
    with RunFile(path) as run:
        cpu = summarise(run).cpu_ns
    assert cpu is not None
    assert 300_000_000 <= cpu < 600_000_000


def test_cpu_time_of_a_program_that_records_itself_begins_with_the_recording(tmp_path: Path) -> None:
    code = """
import os, sys, time, memgauge
def spin(seconds):
    t = time.process_time()
    while time.process_time() - t < seconds: pass
spin(1.0)
with memgauge.Monitor(sys.argv[1], interval="20ms"): spin(0.5)
"""
    path = tmp_path / "a.mg"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    with RunFile(path) as run:
        found = summarise(run)
    (of_program,) = found.processes
    assert found.cpu_ns is not None and of_program.cpu_ns is not None
    assert 200_000_000 <= of_program.cpu_ns <= found.cpu_ns < 900_000_000


@pytest.mark.parametrize(
    "case",
    ["waited for", "not waited for", "a daemon", "nobody waits, SIGCHLD is ignored", "alive at the end"],
)
def test_cpu_time_has_each_process_once_whoever_waits_for_it(tmp_path: Path, case: str) -> None:
    code = f"""
import signal
case = {case!r}
if "ignored" in case: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def spin(seconds):
    t = time.process_time()
    while time.process_time() - t < seconds: pass
ended, end = os.pipe()
spin(0.4)
child = os.fork()
if child == 0:
    if case == "a daemon" and os.fork(): os._exit(0)
    spin(0.6)
    if case == "alive at the end": os.write(end, b"x"); wait()
    os._exit(0)
os.close(end)
os.read(ended, 1)
if case in ("waited for", "a daemon"): os.waitpid(child, 0)
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-q", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert job.process.wait() == 0
    if case == "alive at the end":
        job.go()
    with RunFile(path) as run:
        cpu = summarise(run).cpu_ns
    assert cpu is not None
    assert 800_000_000 <= cpu < 1_250_000_000  # of one that nobody waited for up to its last sample


def test_a_job_that_ends_before_the_first_sample_has_its_peak(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    job = Job("x = bytearray(100 << 20)\n", path, "-i", "5s")
    assert job.end()[0] == 0
    with RunFile(path) as run:
        said = summarise(run)
        assert ticks(run) <= 1
    (process,) = said.processes
    assert process.peak_kind == "exact"
    assert 100 * MIB < (process.peak_bytes or 0) < 125 * MIB


def test_workers_are_followed_whether_forked_or_spawned(tmp_path: Path) -> None:
    code = """
import multiprocessing as mp
def work(q, go):
    x = bytearray(64 << 20); q.put(os.getpid()); go.wait()
if __name__ == "__main__":
    for how in ("fork", "spawn"):
        c = mp.get_context(how); q = c.Queue(); go = c.Event()
        p = c.Process(target=work, args=(q, go)); p.start()
        say(str(q.get())); wait(); go.set(); p.join()
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-i", "20ms")
    pids = []
    for _ in range(2):
        pids.append(int(job.heard()))
        more_ticks(path, job)
        job.go()
    assert job.end()[0] == 0
    with RunFile(path) as run:
        for pid in pids:
            assert max(v for _, v in values(run, "rss_bytes", pid)) > 64 * MIB


def test_a_phase_has_its_own_exact_peak(tmp_path: Path) -> None:
    code = """
import memgauge
def hold(mib): x = bytearray(mib << 20)
with memgauge.phase("outer"):
    with memgauge.phase("big", 1): hold(200)
    with memgauge.phase("small"): hold(20)
    with memgauge.phase("big", 2): hold(100)
memgauge.mark("epoch", 3)
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-i", "5s")  # no sample falls into any of them
    assert job.end()[0] == 0
    with RunFile(path) as run:
        phases = {p.name: p for p in summarise(run).phases}
        marks = [(m.name, m.value) for m in run.marks if m.kind == "mark"]
    assert marks == [("epoch", "3")]
    assert {p.peak_kind for p in phases.values()} == {"exact"}
    assert phases["big"].count == 2
    assert 200 * MIB < (phases["big"].peak_bytes or 0) < 240 * MIB
    assert 20 * MIB < (phases["small"].peak_bytes or 0) < 60 * MIB
    assert phases["outer"].peak_bytes == phases["big"].peak_bytes
    one, two = phases["big"].each
    assert (one.value, two.value) == ("1", "2")
    assert 200 * MIB < (one.peak_bytes or 0) == phases["big"].peak_bytes
    assert 100 * MIB < (two.peak_bytes or 0) < 140 * MIB


def test_shared_memory_is_read_soon_after_the_tree_has_grown(tmp_path: Path) -> None:
    code = """
import mmap, time
for _ in range(6):
    held = mmap.mmap(-1, 100 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    time.sleep(0.4)
    held.close()
    time.sleep(0.4)
"""
    path = tmp_path / "a.mg"
    assert Job(code, path).end()[0] == 0
    with RunFile(path) as run:
        times = Sums(run, "pss_bytes", "slow").times_us
        highest = next(p for p in summarise(run).peaks if p.name == "tree, sum of PSS")
    assert highest.bytes > 100 * MIB
    assert min(b - a for a, b in pairwise(times[1:])) < 900_000  # the slow lane alone reads once in a second


LAST = """
import memgauge, mmap
def last():
    with memgauge.phase("last"):
        held = mmap.mmap(-1, 200 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
        held.close()
    os._exit(0)
"""


def last_phases(path: Path) -> tuple[int, str, int]:
    with RunFile(path) as run:
        last = next(p for p in summarise(run).phases if p.name == "last")
    return last.count, last.peak_kind, round((last.peak_bytes or 0) / MIB, -2)


def test_phases_of_one_name_in_two_threads_keep_their_own_ends_and_peaks(tmp_path: Path) -> None:
    code = """
import memgauge, threading
first_began, second_began, first_ended = (threading.Event() for _ in range(3))
def first():
    with memgauge.phase("work", "first"):
        first_began.set(); second_began.wait()
    first_ended.set()
other = threading.Thread(target=first)
other.start(); first_began.wait()
with memgauge.phase("work", "second"):
    second_began.set(); first_ended.wait()
    x = bytearray(200 << 20)
    say(); wait()
other.join()
"""
    job = Job(code, tmp_path / "a.mg", "-q")
    job.heard()
    job.go()
    assert job.end()[0] == 0
    with RunFile(job.path) as run:
        found = {b.value: b for b in bands(run.marks, run.last_us())}
        peaks = {p.phase: p.bytes for p in run.peaks if p.phase is not None and p.metric == "rss_bytes"}
    first, second = found["first"], found["second"]
    assert first.begin_us <= second.begin_us <= first.end_us <= second.end_us
    assert peaks[first.mark] < 100 * MIB
    assert peaks[second.mark] > 200 * MIB


def test_phases_that_end_with_their_processes_have_their_exact_peak(tmp_path: Path) -> None:
    code = """
for _ in range(6):
    child = os.fork()
    if child == 0: last()
    os.waitpid(child, 0)
"""
    job = Job(LAST + code, tmp_path / "a.mg", "-i", "5ms")  # it looks for ends more often than for marks
    assert job.end()[0] == 0
    assert last_phases(tmp_path / "a.mg") == (6, "exact", 200)


@pytest.mark.parametrize("how", ["sys.exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_phase_that_is_open_at_its_processs_end_lasts_and_is_counted_to_there(
    tmp_path: Path, how: str
) -> None:
    if why := why_ends_are_not_told():
        pytest.skip(why)
    code = f"""
import memgauge, mmap
child = os.fork()
if child == 0:
    held = mmap.mmap(-1, 400 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    held.close()  # before the phase
    memgauge.phase("outer").__enter__()
    memgauge.phase("inner").__enter__()
    held = mmap.mmap(-1, 200 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    held.close()
    {how}
os.waitpid(child, 0)
time.sleep(1)
"""
    path = tmp_path / "a.mg"
    assert Job(code, path, "-q", "-i", "1s").end()[0] == 0
    with RunFile(path) as run:
        said = summarise(run)
    assert [(p.name, p.peak_kind, p.unfinished) for p in said.phases] == [
        ("outer", "exact", 1),
        ("inner", "exact", 1),
    ]
    for phase in said.phases:
        assert 200 * MIB < (phase.peak_bytes or 0) < 300 * MIB
        assert phase.each[0].end_us < said.duration_us - 900_000


def test_the_last_phase_of_a_process_that_was_attached_to_has_its_exact_peak(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    job = Job(LAST + "say(); wait(); last()", path, wrap=False)
    job.heard()
    options = ("-q", "-i", "5ms", "-o", str(path), "--pid", str(job.process.pid))
    recorder = subprocess.Popen(memgauge("monitor", *options))
    until(path, ticks, recorder)
    job.go()
    assert recorder.wait(timeout=60) == 0
    assert last_phases(path) == (1, "exact", 200)


SHORT = """
import mmap
def short(mib):
    held = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    os._exit(0)
"""


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_children_between_two_samples_have_their_exact_peaks(tmp_path: Path, is_waited_for: bool) -> None:
    if why := why_ends_are_not_told():
        pytest.skip(why)
    sizes = (60, 300, 120, 240, 180)
    code = f"""
import signal
if not {is_waited_for}: signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets them at once
for mib in {sizes}:
    child = os.fork()
    if child == 0: short(mib)
    try: os.waitpid(child, 0)
    except ChildProcessError: pass
"""
    path = tmp_path / "a.mg"
    assert Job(SHORT + code, path, "-q", "-i", "5s").end()[0] == 0
    with RunFile(path) as run:
        said = summarise(run)
        instruments = {p.instrument for p in run.peaks if p.metric == "rss_bytes"}
    own, *children = sorted(said.processes, key=lambda p: p.began_us)
    assert said.unseen_processes == 0
    assert instruments == {"taskstats at its end, hiwater_rss"}  # whether or not a sample saw some of it
    assert {p.peak_kind for p in said.processes} == {"exact"}
    assert (own.peak_bytes or 0) < 60 * MIB
    peaks = sorted(
        child.peak_bytes or 0 for child in children
    )  # beginnings are known to 10 ms if it was sampled
    for mib, peak in zip(sorted(sizes), peaks, strict=True):
        assert mib * MIB <= peak <= (mib + 30) * MIB
    largest = next(p for p in said.peaks if p.name.startswith("largest process"))
    assert largest.kind == "exact"
    assert 300 * MIB <= largest.bytes <= 330 * MIB


def test_the_end_of_one_thread_is_not_the_end_of_its_process(tmp_path: Path) -> None:
    if why := why_ends_are_not_told():
        pytest.skip(why)
    code = """
import threading
for _ in range(3):
    other = threading.Thread(target=lambda: None); other.start(); other.join()
if os.fork() == 0:
    threading.Thread(target=lambda: None).start()
    short(200)
os.wait()
"""
    path = tmp_path / "a.mg"
    assert Job(SHORT + code, path, "-q", "-i", "5s").end()[0] == 0
    with RunFile(path) as run:
        _, child = sorted(summarise(run).processes, key=lambda p: p.began_us)
    assert child.peak_kind == "exact"
    assert 200 * MIB <= (child.peak_bytes or 0) <= 230 * MIB


def test_a_job_that_was_attached_to_has_its_exact_peak_to_its_end(tmp_path: Path) -> None:
    if why := why_ends_are_not_told():
        pytest.skip(why)
    path = tmp_path / "a.mg"
    job = Job(SHORT + "say(); wait(); short(150)", path, wrap=False)
    job.heard()
    config = {"file": str(path), "interval_ns": 5 * 10**9, "pid": job.process.pid}
    sampler = subprocess.Popen([sys.executable, "-m", "memgauge.monitor.sampler", json.dumps(config)])
    until(path, ticks, sampler)
    job.go()
    assert sampler.wait(timeout=60) == 0
    with RunFile(path) as run:
        (process,) = summarise(run).processes
    assert process.peak_kind == "exact"
    assert 150 * MIB <= (process.peak_bytes or 0) <= 180 * MIB


def test_what_others_bring_into_the_memory_of_a_sleeper_shows_once_its_peak_is_read() -> None:
    job = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert job.stdin is not None and job.stdout is not None
        address = int(job.stdout.readline())
        process = LinuxProcess(job.pid)
        while process.read_stat().state != "S":
            pass
        before = process.read_resident()
        with open(f"/proc/{job.pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(address)
            memory.write(b"x" * (32 << 20))
        process.read_highest()
        assert process.read_resident() - before == pytest.approx(32 << 20, rel=0.01)
        process.close()
    finally:
        job.kill()
        job.communicate()


def test_the_largest_process_says_where_its_peak_was_read(tmp_path: Path) -> None:
    code = """
import memgauge, mmap, resource
with memgauge.phase("a"):
    held = mmap.mmap(-1, 200 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    held.close()
with memgauge.phase("b"): pass
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 150 << 10
"""
    path = tmp_path / "a.mg"
    assert Job(code, path, "-q").end()[0] == 0
    with RunFile(path) as run:
        largest = next(p for p in run.peaks if p.metric == "largest_process_bytes")
    assert largest.bytes > 200 * MIB
    assert largest.kind == "exact"
    assert "wait4" not in largest.instrument


def test_a_job_that_becomes_another_program_has_its_shares_all_the_same(tmp_path: Path) -> None:
    code = """
if len(sys.argv) < 2:
    say(); wait()
    os.execv(sys.executable, [sys.executable, __file__, "again"])
held = bytearray(b"x") * (200 << 20)
say(); wait()
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-q")
    job.heard()
    until(path, lambda run: values(run, "pss_bytes"), job.process)
    job.go()
    job.heard()
    until(path, lambda run: any(v > 190 * MIB for _, v in values(run, "pss_bytes")), job.process)
    job.go()
    assert job.end()[0] == 0
    with RunFile(path) as run:
        pss = next(p for p in summarise(run).peaks if p.name == "tree, sum of PSS")
    assert 200 * MIB < pss.bytes < 250 * MIB


def test_a_child_that_begins_a_phase_at_once_has_its_exact_peak(tmp_path: Path) -> None:
    code = """
import memgauge
memgauge.mark("begun")
for _ in range(40):
    pid = os.fork()
    if not pid:
        with memgauge.phase("task"): pass
        os._exit(0)
    os.waitpid(pid, 0)
"""
    path = tmp_path / "a.mg"
    assert Job(code, path, "-q").end()[0] == 0
    with RunFile(path) as run:
        said = summarise(run)
    if not said.unseen_is_exact:
        pytest.skip("the kernel does not tell of every fork here")
    (task,) = said.phases
    assert [span.peak_kind for span in task.each] == ["exact"] * 40


def test_pss_follows_a_process_that_grows_for_seconds(tmp_path: Path) -> None:
    code = """
import mmap
held = []
for _ in range(6):
    held.append(mmap.mmap(-1, 128 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
    time.sleep(0.6)  # how long it holds them, of which the recording is asked
time.sleep(2.5)  # longer than a reading may stand while memory moves little: that of the growth must not have cost it
"""
    path = tmp_path / "a.mg"
    assert Job(code, path, "-q").end()[0] == 0
    with RunFile(path) as run:
        said = summarise(run)
    pss = next(p for p in said.peaks if p.name == "tree, sum of PSS")
    rss = next(p for p in said.peaks if p.name == "tree, sum of RSS")
    assert pss.bytes > 0.97 * (rss.bytes - 16 * MIB)  # what is left is shared with other programs
    assert not [n.text for n in said.notes if n.topic == "budget"]
