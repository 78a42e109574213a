"""What a job says of itself, from several threads and with values of any sort."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from jobs import Job, memgauge

import memgauge as mg
from memgauge.explain.recorded import Recording
from memgauge.explain.recording import summarise
from memgauge.monitor import calling
from memgauge.monitor.calling import Link
from memgauge.monitor.held import Held
from memgauge.monitor.listening import Listener
from memgauge.storage import RunFile
from memgauge.units import MIB


def recorded(code: str, path: Path, *options: str) -> Recording:
    job = Job(code, path, *options)
    code_of_end, _, err = job.end(120)
    assert code_of_end == 0, err
    with RunFile(path) as run:
        return summarise(run)


def test_phases_of_many_threads_are_all_kept_and_none_raises(tmp_path: Path) -> None:
    code = """
import memgauge
from concurrent.futures import ThreadPoolExecutor
def load(number):
    with memgauge.phase("load", number):
        return number
with ThreadPoolExecutor(8) as pool:
    assert list(pool.map(load, range(3000))) == list(range(3000))
"""
    said = recorded(code, tmp_path / "a.mg")
    (load,) = said.phases
    assert (load.count, load.unfinished, said.marks, said.marks_lost) == (3000, 0, 6000, 0)


def test_each_call_of_a_decorated_function_is_a_phase_also_in_recursion_and_threads(tmp_path: Path) -> None:
    code = """
import memgauge
from concurrent.futures import ThreadPoolExecutor
@memgauge.phase("down")
def down(n, *, by=1):
    "Go down."
    return n if n == 0 else down(n - by, by=by)
@memgauge.phase("work", "w")
def work(n): time.sleep(0.001); return n
@memgauge.phase("fail")
def fail(): raise KeyError("x")
assert (down.__name__, down.__doc__) == ("down", "Go down.")
assert down(3) == 0
with ThreadPoolExecutor(4) as pool: assert list(pool.map(work, range(50))) == list(range(50))
try: fail()
except KeyError: pass
"""
    said = recorded(code, tmp_path / "a.mg")
    found = {p.name: (p.count, p.unfinished) for p in said.phases}
    assert found == {"down": (4, 0), "work": (50, 0), "fail": (1, 0)}
    times = [(span.begin_us, span.end_us) for span in said.phases[0].each]
    assert all(a[0] <= b[0] and b[1] <= a[1] for a, b in pairwise(times))
    assert {span.value for p in said.phases if p.name == "work" for span in p.each} == {"w"}


def test_a_decorator_without_a_name_is_refused_where_it_stands() -> None:
    with pytest.raises(mg.MemgaugeError, match=r'write @memgauge.phase\("validate"\)'):

        @mg.phase  # type: ignore[arg-type]
        def validate(model: object) -> object:
            return model


def test_a_decorated_function_runs_where_nothing_records() -> None:
    double = mg.phase("double")(lambda n: 2 * n)
    assert [double(n) for n in range(3)] == [0, 2, 4]


def test_names_that_are_no_text_or_blank_are_seen_and_never_raise(tmp_path: Path) -> None:
    code = """
import memgauge
class Mute:
    def __str__(self): return ""
class Bad:
    def __str__(self): raise ValueError
for name in ("", "  ", None, b"q", 5, Mute(), Bad()):
    with memgauge.phase(name, ""): memgauge.mark(name)
"""
    path = tmp_path / "a.mg"
    said = recorded(code, path)
    names = ["''", "'  '", "None", "b'q'", "5", "<Bad: ValueError in str()>"]
    assert [p.name for p in said.phases] == names
    assert [p.count for p in said.phases] == [2, 1, 1, 1, 1, 1]
    with RunFile(path) as run:
        assert {mark.name for mark in run.marks if mark.kind == "mark"} == set(names)


def test_first_phases_that_begin_together_are_each_heard_once(tmp_path: Path) -> None:
    code = """
import memgauge, threading
together = threading.Barrier(4)
def work(number):
    together.wait()
    with memgauge.phase(f"work {number}"):
        together.wait()
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for t in threads: t.start()
for t in threads: t.join()
"""
    said = recorded(code, tmp_path / "a.mg")
    assert sorted((p.name, p.count) for p in said.phases) == [(f"work {n}", 1) for n in range(4)]


@pytest.mark.skipif("sys.platform != 'linux'")
def test_a_phases_peak_is_exact_beside_busy_threads_that_have_phases_too(tmp_path: Path) -> None:
    code = """
import memgauge, mmap, threading, time
over = False
def burn():
    while not over: sum(range(20_000))
def step():
    while not over:
        with memgauge.phase("step"): time.sleep(0.002)
others = [threading.Thread(target=f) for f in (burn, burn, step)]
for t in others: t.start()
for number in range(20):
    with memgauge.phase("spike", number):
        time.sleep(0.02)
        mmap.mmap(-1, 150 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()
        time.sleep(0.02)
over = True
for t in others: t.join()
"""
    said = recorded(code, tmp_path / "a.mg", "-i", "5s")
    spike = next(p for p in said.phases if p.name == "spike")
    assert {s.peak_kind for s in spike.each} == {"exact"}
    assert all(150 * MIB < (s.peak_bytes or 0) < 200 * MIB for s in spike.each), spike.each


def test_a_value_that_cannot_be_put_into_words_is_named_and_loses_nothing_else(tmp_path: Path) -> None:
    code = """
import memgauge
class Odd:
    def __str__(self): raise RuntimeError("no words")
memgauge.mark("before")
memgauge.mark("odd", Odd())
memgauge.mark("after")
"""
    path = tmp_path / "a.mg"
    assert recorded(code, path).marks_lost == 0
    with RunFile(path) as run:
        assert [(m.name, m.value) for m in run.marks] == [
            ("before", None),
            ("odd", "<Odd: RuntimeError in str()>"),
            ("after", None),
        ]


def test_a_signals_handler_may_say_something_in_the_midst_of_a_mark(tmp_path: Path) -> None:
    code = """
import signal, time
from memgauge import mark
heard = []
def told(number, frame):
    mark("signal")
    heard.append(number)
signal.signal(signal.SIGALRM, told)
mark("begin")
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
said = 0
while len(heard) < 300:
    for _ in range(50):
        mark("loop")
    said += 50
    time.sleep(0.01)  # the sampler takes in so much meanwhile
signal.setitimer(signal.ITIMER_REAL, 0)
mark("said", said + len(heard))
"""
    path = tmp_path / "a.mg"
    said = recorded(code, path)
    with RunFile(path) as run:
        promised = int(next(m.value or 0 for m in run.marks if m.name == "said"))
    assert said.marks + said.marks_lost == promised + 2  # those two


def test_a_python_without_ctypes_is_recorded_all_the_same(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["ctypes"] = None
import memgauge
with memgauge.phase("work"): held = bytearray(100 << 20)
"""
    (work,) = recorded(code, tmp_path / "a.mg").phases
    assert (work.count, work.peak_kind == "exact") == (1, False)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_child_of_multiprocessing_says_all_before_it_ends(tmp_path: Path) -> None:
    # Faster than they are taken in: the last lines wait in the child, which ends without atexit.
    code = """
import memgauge, multiprocessing
def work():
    for number in range(8000):
        memgauge.mark("item", number)
    with memgauge.phase("work"):
        pass
memgauge.mark("parent")
children = [multiprocessing.get_context("fork").Process(target=work) for _ in range(3)]
for child in children: child.start()
for child in children: child.join()
assert {child.exitcode for child in children} == {0}
"""
    said = recorded(code, tmp_path / "a.mg")
    assert said.marks + said.marks_lost == 1 + 3 * (8000 + 2)
    (work,) = said.phases
    assert (work.count, work.unfinished) == (3, 0)


def test_what_was_sent_at_the_end_is_not_counted_as_lost() -> None:
    link = Link()
    link.socket, other = socket.socketpair()
    link._held = Held(link.socket.fileno())
    with other:
        link.socket.setblocking(False)
        while not link._pending:
            link.send("mark", '"x",null', "null", None)
        reading = threading.Thread(target=lambda: [None for _ in iter(lambda: other.recv(65536), b"")])
        reading.start()
        link.finish()
        link.lose()
        reading.join()
    assert link._lost == 0


def test_what_was_dropped_at_the_end_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_PENDING", 10_000)
    listener = Listener(None, {os.getuid()})
    link = Link()
    monkeypatch.setenv(calling.ENVIRONMENT, listener.address)
    answering = threading.Thread(target=answer, args=(listener,))
    answering.start()
    assert link.find(())
    answering.join()
    for _ in range(20_000):  # nobody takes them in meanwhile
        link.send("mark", '"x",null', "null", None)
    ending = threading.Thread(target=link.finish)
    ending.start()
    heard = 0
    while ending.is_alive():
        heard += len(listener.drain())
    link.lose()
    heard += len(listener.drain())
    listener.close()
    assert 0 < listener.lost < 20_000
    assert heard + listener.lost == 20_000


def answer(listener: Listener) -> None:
    while not listener.is_used():
        listener.accept(lambda pid: "reader")


@pytest.mark.parametrize("starter", ["as the command", "as a child"])
def test_marks_of_a_process_with_a_cleaned_environment_are_heard(tmp_path: Path, starter: str) -> None:
    path = tmp_path / "a.mg"
    code = "import memgauge\nfor n in range(30):\n    memgauge.mark('step', n)"
    cleaned = ["env", "-i", f"PYTHONPATH={Path(mg.__file__).parents[1]}", sys.executable, "-c", code]
    if starter == "as a child":
        cleaned = [sys.executable, "-c", f"import subprocess; subprocess.run({cleaned!r}, check=True)"]
    subprocess.run([*memgauge("monitor", "-q", "-o", str(path)), "--", *cleaned], check=True)
    with RunFile(path) as run:
        assert [m.value for m in run.marks] == [str(n) for n in range(30)]


CLOSES_ALL = """
import os, socket, sys, memgauge
recording = memgauge.Monitor(sys.argv[1]).start() if len(sys.argv) > 1 else None
with memgauge.phase("before"): pass
os.closerange(3, 1024)  # as a daemon does
with memgauge.phase("none open"): pass
os.closerange(3, 1024)
names = [f"own{n}" for n in range(10)]
files = [os.open(name, os.O_RDWR | os.O_CREAT) for name in names]
pairs = [socket.socketpair() for _ in range(4)]
for file in files: os.write(file, b"my own text")
with memgauge.phase("after"): pass
memgauge.mark("end")
if recording is not None: recording.stop()
for file, name in zip(files, names):
    os.write(file, b", to its end")
    assert open(name, "rb").read() == b"my own text, to its end", name
for one, other in pairs:
    one.close()
    assert other.recv(1000) == b""  # nothing but its end
"""


@pytest.mark.parametrize("recorded_by", ["a command", "itself"])
def test_a_job_that_closes_what_it_did_not_open_keeps_its_files_and_its_marks(
    tmp_path: Path, recorded_by: str
) -> None:
    path = tmp_path / "a.mg"
    program = [sys.executable, "-c", CLOSES_ALL]
    is_by_command = recorded_by == "a command"
    started = (
        [*memgauge("monitor", "-q", "-o", str(path), "--"), *program]
        if is_by_command
        else [*program, str(path)]
    )
    ended = subprocess.run(started, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    if is_by_command:
        with RunFile(path) as run:
            said = summarise(run)
        assert [(p.name, p.peak_kind) for p in said.phases] == [
            (n, "exact") for n in ("before", "none open", "after")
        ]
        assert (said.marks, said.marks_lost) == (7, 0)


def test_a_child_that_is_forked_while_a_thread_makes_the_first_mark_does_not_hang() -> None:
    code = """
import os, threading, memgauge
threading.Thread(target=lambda: memgauge.mark("begins"), daemon=True).start()
pid = os.fork()
if pid == 0:
    with memgauge.phase("worker"): pass
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    for _ in range(5):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_marks_of_another_clock_have_the_time_at_which_they_arrive(tmp_path: Path) -> None:
    other_clock = ["unshare", "--time", "--monotonic", "86400", "--boottime", "86400", "--fork"]
    try:
        subprocess.run([*other_clock, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there are no time namespaces here, or they may not be made")
    path = tmp_path / "a.mg"
    code = "import memgauge\nwith memgauge.phase('away'): pass"
    job = memgauge("monitor", "-q", "-o", str(path), "--", *other_clock, sys.executable, "-c", code)
    subprocess.run(job, check=True)
    with RunFile(path) as run:
        said = summarise(run)
        assert len(run.marks) == 2
        assert all(0 < m.time_us <= said.duration_us for m in run.marks)
    (note,) = (n for n in said.notes if n.topic == "marks")
    assert "time namespace" in note.text


def test_cores_are_counted_from_the_beginning_of_the_job(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    code = "import time\nwhile time.process_time() < 1: pass"
    subprocess.run(
        memgauge("monitor", "-q", "-o", str(path), "--", sys.executable, "-S", "-c", code), check=True
    )
    with RunFile(path) as run:
        said = summarise(run)
        (job,) = run.processes
    assert said.cpu_ns is not None and job.gone_us is not None
    assert said.mean_cores == pytest.approx(said.cpu_ns / 1000 / (said.duration_us - job.seen_us), rel=0.03)
