"""The ways in that are not the command line: from Python, and from other libraries' loops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import MIB, Job, memgauge, ticks, until, values

import memgauge as mg
from memgauge.explain.recording import summarise
from memgauge.monitor import marks
from memgauge.monitor.calling import ENVIRONMENT
from memgauge.storage import RunFile

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_three_lines_of_python_record_this_process(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    with mg.Monitor(path, interval="10ms"):
        assert marks.is_recorded()
        with mg.phase("work"):
            held = bytearray(64 * MIB)
            del held
        mg.mark("epoch", 1)
        until(path, lambda run: ticks(run) > 3)
    assert not marks.is_recorded()
    with RunFile(path) as run:
        said = summarise(run)
        assert {p.pid for p in said.processes} == {os.getpid()}  # the sampler itself is not part of it
        assert len(values(run, "rss_bytes", os.getpid())) > 3
    assert said.state == "ended"
    assert said.ended == "the program ended the recording"
    assert [p.name for p in said.phases] == ["work"]
    assert said.phases[0].peak_kind == "exact"


def test_a_monitor_that_cannot_write_raises_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(mg.MemgaugeError, match="does not exist"):
        mg.Monitor(tmp_path / "none" / "a.mg").start()


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_folder_in_the_place_of_a_file_is_told_as_one(
    tmp_path: Path, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("", tmp_path):
        with pytest.raises(mg.MemgaugeError, match=r"the name of a file is missing; give one: .*/run\.mg"):
            mg.Monitor(path, overwrite=overwrite).start()


@pytest.mark.parametrize("interval", ["0.1ms", "10s", "soon", -1])
def test_an_interval_that_makes_no_sense_is_refused(tmp_path: Path, interval: str) -> None:
    with pytest.raises(mg.MemgaugeError, match=r"duration|interval"):
        mg.Monitor(tmp_path / "a.mg", interval=interval)


def test_a_program_that_dies_within_the_block_ends_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    code = f"import memgauge, os\nwith memgauge.Monitor({str(path)!r}): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    until(path, lambda run: summarise(run).state == "ended")


def test_the_sampler_is_no_child_that_the_program_could_wait_for(tmp_path: Path) -> None:
    code = f"""
import memgauge, os
with memgauge.Monitor({str(tmp_path / "a.mg")!r}):
    if os.fork() == 0: os._exit(0)
    os.wait()
    try: print(os.waitpid(-1, os.WNOHANG))
    except ChildProcessError: print("none is left")
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "none is left\n"


def test_a_program_with_closed_standard_streams_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    code = f"""
import memgauge
with memgauge.Monitor({str(path)!r}):
    with memgauge.phase("work"): held = bytearray(100 << 20)
"""
    subprocess.run(["sh", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, code], check=True)
    with RunFile(path) as run:
        said = summarise(run)
    assert said.ended == "the program ended the recording"
    assert (said.phases[0].peak_bytes or 0) > 100 * MIB


def test_a_forked_child_that_leaves_the_block_ends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    code = f"""
import memgauge, os, sys
with memgauge.Monitor({str(path)!r}):
    child = os.fork()
    if child == 0: sys.exit(0)
    os.waitpid(child, 0)
    with memgauge.phase("afterwards"): held = bytearray(100 << 20)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    with RunFile(path) as run:
        said = summarise(run)
    assert [(p.name, p.peak_kind) for p in said.phases] == [("afterwards", "exact")]
    assert (said.phases[0].peak_bytes or 0) > 100 * MIB


def test_nothing_happens_when_nothing_records() -> None:
    code = "import memgauge\nmemgauge.mark('a', object())\nwith memgauge.phase('b'): pass\nprint('fine')"
    environment = {k: v for k, v in os.environ.items() if k != ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_marks_arrive_from_every_process_of_the_tree(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import memgauge, os\nmemgauge.mark('parent', os.getpid())\n"
        "for _ in range(3):\n    if os.fork() == 0:\n        memgauge.mark('child', os.getpid()); os._exit(0)\n"
        "for _ in range(3): os.wait()\n"
    )
    path = tmp_path / "a.mg"
    subprocess.run(
        [*memgauge("monitor", "-q", "-o", str(path), "--"), sys.executable, str(script)], check=True
    )
    with RunFile(path) as run:
        found = [(m.name, m.pid, m.value) for m in run.marks]
    assert sorted(name for name, _, _ in found) == ["child"] * 3 + ["parent"]
    assert all(str(pid) == value for _, pid, value in found)


@pytest.mark.parametrize(
    ("example", "phases"),
    [
        ("phases.py", {"train", "validate"}),
        ("with_lightning.py", {"train", "validate", "step"}),
        ("with_transformers.py", {"train", "evaluate"}),
        ("with_keras.py", {"train", "validate", "step"}),
    ],
)
def test_examples_run_and_their_phases_are_recorded(tmp_path: Path, example: str, phases: set[str]) -> None:
    path = tmp_path / "a.mg"
    command = [*memgauge("monitor", "-q", "-o", str(path), "--"), sys.executable, str(EXAMPLES / example)]
    # A torchvision made for another build of torch cannot be imported; both libraries try to.
    (tmp_path / "sitecustomize.py").write_text(
        "try:\n    from memgauge.frameworks.torch.torchvision_compat import import_torchvision\n"
        "    import_torchvision()\nexcept Exception: pass\n"
    )
    found = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [
        *command[: command.index("--") + 1],
        "env",
        f"PYTHONPATH={found}",
        *command[command.index("--") + 1 :],
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with RunFile(path) as run:
        said = summarise(run)
    by_name = {p.name: p for p in said.phases}
    assert phases <= set(by_name)
    assert by_name["train"].count in (2, 3)
    assert {p.peak_kind for p in said.phases} == {"exact"}
    assert all(p.unfinished == 0 for p in said.phases)


def test_a_users_file_with_the_name_of_a_module_does_not_reach_the_sampler(tmp_path: Path) -> None:
    for name in ("json", "signal", "sqlite3", "zlib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong file')\n")
    code = f"import memgauge\nwith memgauge.Monitor({str(tmp_path / 'a.mg')!r}): pass\n"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    with RunFile(tmp_path / "a.mg") as run:
        assert summarise(run).state == "ended"


def test_children_of_a_process_that_was_attached_to_say_their_phases(tmp_path: Path) -> None:
    code = """
import memgauge, subprocess
said = "import memgauge\\nwith memgauge.phase('spawned'): pass"
say(); wait()
if os.fork() == 0:
    if os.fork() == 0:
        with memgauge.phase("grandchild"): pass
        os._exit(0)
    os.wait()
    os._exit(0)
os.wait()
subprocess.run([sys.executable, "-c", said], check=True)
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, wrap=False)
    job.heard()
    recorder = subprocess.Popen(memgauge("monitor", "-q", "-o", str(path), "--pid", str(job.process.pid)))
    until(path, ticks, recorder)
    job.go()
    assert recorder.wait(timeout=60) == 0
    with RunFile(path) as run:
        assert {p.name for p in summarise(run).phases} == {"grandchild", "spawned"}


def test_a_recording_within_a_recording_leaves_the_outer_one_its_phases(tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer.mg", tmp_path / "inner.mg"
    code = f"""
import memgauge
with memgauge.Monitor({str(inner)!r}):
    with memgauge.phase("both"): pass
with memgauge.phase("outer"): pass
"""
    assert Job(code, outer, "-q").end()[0] == 0
    for path, names in ((outer, {"both", "outer"}), (inner, {"both"})):
        with RunFile(path) as run:
            assert {p.name for p in summarise(run).phases} == names
            assert {p.count for p in summarise(run).phases} == {1}
            assert not any("memgauge.monitor.sampler" in p.command for p in summarise(run).processes)


def test_a_second_monitor_of_a_program_leaves_out_the_sampler_of_the_first(tmp_path: Path) -> None:
    first, second = tmp_path / "first.mg", tmp_path / "second.mg"
    with mg.Monitor(first), mg.Monitor(second):
        until(second, ticks)
    with RunFile(second) as run:
        assert {p.pid for p in run.processes} == {os.getpid()}


@pytest.mark.parametrize("events", [True, False])
def test_a_child_that_becomes_another_recordings_sampler_is_let_go(tmp_path: Path, events: bool) -> None:
    path, other = tmp_path / "a.mg", tmp_path / "other.mg"
    code = f"""
import json
parent, (became, become) = os.getpid(), os.pipe()
if os.fork() == 0:
    say(str(os.getpid())); wait(); os.write(become, b"x")
    config = json.dumps({{"file": {str(other)!r}, "interval_ns": 10**8, "pid": parent}})
    os.execv(sys.executable, [sys.executable, "-P", "-m", "memgauge.monitor.sampler", config])
os.read(became, 1); wait(); os._exit(0)
"""
    job = Job(code, path, wrap=False)
    child = int(job.heard())
    config = {"file": str(path), "interval_ns": 10_000_000, "pid": job.process.pid, "events": events}
    recorder = subprocess.Popen([sys.executable, "-m", "memgauge.monitor.sampler", json.dumps(config)])
    until(path, lambda run: values(run, "rss_bytes", child), recorder)
    job.go()
    until(other, ticks)
    ended = until(path, lambda run: [p.ended for p in run.processes if p.pid == child and p.ended], recorder)
    assert ended == ["became the sampler of another recording"]
    job.go()
    assert recorder.wait(timeout=60) == job.end()[0] == 0
    with RunFile(path) as run:
        assert {p.pid for p in run.processes} == {job.process.pid, child}


def test_another_recordings_own_sampler_is_recorded_where_it_is_the_one_given(tmp_path: Path) -> None:
    job = Job("say(); wait()", tmp_path / "job.mg", wrap=False)
    job.heard()
    first, second = tmp_path / "first.mg", tmp_path / "second.mg"
    one = subprocess.Popen(memgauge("monitor", "-q", "-o", str(first), "--pid", str(job.process.pid)))
    until(first, ticks, one)
    with RunFile(first) as run:
        pid = run.header["sampler_pid"]
    other = subprocess.Popen(memgauge("monitor", "-q", "-o", str(second), "--pid", str(pid)))
    until(second, ticks, other)
    job.go()
    assert job.end()[0] == one.wait(timeout=60) == other.wait(timeout=60) == 0
