"""The reader for systems without /proc, by psutil: real processes through it, here on Linux."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import MIB, Job, memgauge, more_ticks, ticks, until, values

import memgauge as mg
from memgauge.explain.recording import how_it_ended, summarise
from memgauge.monitor import system
from memgauge.storage import RunFile

PSUTIL = {system.READER: "psutil"}


def test_a_job_is_recorded_with_what_psutil_gives(tmp_path: Path) -> None:
    code = """
import memgauge, mmap
say(); wait()
with memgauge.phase("hold"):
    kept = mmap.mmap(-1, 300 << 20); kept.write(b"x" * (300 << 20))
    say(); wait()
t = time.process_time()
while time.process_time() - t < 0.3: pass
sys.exit(7)
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-i", "20ms", env=PSUTIL)
    levels = []
    for _ in range(2):
        job.heard()
        more_ticks(path, job)
        with RunFile(path) as run:
            assert how_it_ended(run)[0] == "recording"
            levels.append(values(run, "rss_bytes")[-1][1])
        job.go()
    code_, _, err = job.end()
    assert code_ == 7, err
    with RunFile(path) as run:
        said = summarise(run)
        metrics = {s.metric for s in run.series}
        assert {s.instrument.split(",")[0] for s in run.series if s.process is not None} == {"psutil"}
    assert abs(levels[1] - levels[0] - 300 * MIB) < 3 * MIB
    (process,) = said.processes
    assert process.peak_kind == "exact"  # the command's own, as wait4 told
    assert (process.peak_bytes or 0) > 600 * MIB  # with the bytes that were copied from, which no sample saw
    assert said.cpu_ns is not None
    assert said.cpu_ns >= 300_000_000
    assert said.phases[0].peak_kind == "lower bound"
    assert (said.phases[0].peak_bytes or 0) > 300 * MIB
    assert "uss_bytes" in metrics
    assert "pss_bytes" not in metrics
    assert all("statm" not in p.instrument and "meminfo" not in p.instrument for p in said.peaks)
    told = [n.text for n in said.notes if n.topic == "system"]
    assert len(told) == len(set(told))
    assert any("PSS" in text for text in told)


def test_children_are_found_in_the_table_of_processes(tmp_path: Path) -> None:
    code = """
import subprocess
hold = "import os; x = bytearray(64 << 20); os.write(int(os.environ['SAY']), b'%d\\\\n' % os.getpid()); os.read(int(os.environ['WAIT']), 1)"
child = subprocess.Popen([sys.executable, "-c", hold], close_fds=False)
if os.fork() == 0:
    if os.fork() == 0:
        x = bytearray(96 << 20); say(str(os.getpid())); wait(); os._exit(0)
    os.wait(); os._exit(3)
child.wait(); os.wait()
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, "-i", "20ms", "-q", env=PSUTIL)
    pids = [int(job.heard()) for _ in range(2)]
    for pid in pids:
        until(path, lambda run, pid=pid: values(run, "rss_bytes", pid), job.process)
        more_ticks(path, job)
        job.go()
    assert job.end()[0] == 0
    with RunFile(path) as run:
        said = summarise(run)
        highest = {pid: max(v for _, v in values(run, "rss_bytes", pid)) for pid in pids}
    assert len(said.processes) == 4
    assert sorted(v // MIB // 32 for v in highest.values()) == [2, 3]
    kinds = {p.pid: p.peak_kind for p in said.processes}
    assert all(kinds[pid] == "lower bound" for pid in pids)


def test_a_process_is_attached_to_and_its_end_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    job = Job("say(str(os.getpid())); wait()", path, wrap=False)
    pid = int(job.heard())
    environment = {**os.environ, **PSUTIL}
    sampler = subprocess.Popen(memgauge("monitor", "-q", "-o", str(path), "--pid", str(pid)), env=environment)
    until(path, lambda run: ticks(run) > 3, sampler)
    job.go()
    job.end()
    assert sampler.wait() == 0
    with RunFile(path) as run:
        said = summarise(run)
    assert said.state == "ended"
    assert "only its parent can know" in said.ended


def test_a_killed_sampler_is_known_to_be_lost(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    job = Job("say(str(os.getpid())); wait()", path, "-q", env=PSUTIL)
    job.heard()
    until(path, lambda run: ticks(run) > 3, job.process)
    job.process.send_signal(signal.SIGKILL)
    job.process.wait()
    job.go()
    with RunFile(path) as run:
        assert summarise(run).state == "lost"


def test_three_lines_of_python_record_through_psutil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(system.READER, "psutil")
    path = tmp_path / "a.mg"
    with mg.Monitor(path, interval="10ms"):
        mg.mark("epoch", 1)
        until(path, lambda run: ticks(run) > 3)
    with RunFile(path) as run:
        assert [m.name for m in run.marks] == ["epoch"]
        assert run.header["reader"] == "psutil"


def test_a_system_that_is_not_unix_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system.os, "name", "nt")
    monkeypatch.setattr(system.sys, "platform", "win32")
    with pytest.raises(mg.MemgaugeError, match="not on win32") as caught:
        system.this_system()
    assert caught.value.exit_code == 2
    assert "show" in str(caught.value)


def test_on_linux_the_sampler_does_not_load_psutil() -> None:
    code = "import sys, memgauge.monitor.sampler as s; s.this_system(); sys.exit('psutil' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
