"""The ways in that are not the command line: from Python, and from other libraries' loops."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from jobs import MIB, Job, memgauge, ticks, until, values

import memgauge as mg
from memgauge.explain.recorded import Recording
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


@pytest.mark.parametrize("ends", [True, False])
def test_a_program_that_lets_go_of_its_recording_is_followed_if_it_ends(tmp_path: Path, ends: bool) -> None:
    # One that is killed closes its files before it is over; the same without an end is to stop the recording.
    code = """
import memgauge, signal
path, ends = sys.argv[0].replace(".py", ".mg"), os.environ["ENDS"]
memgauge.Monitor(path).start()
for number in set(map(int, os.listdir("/proc/self/fd"))) - {0, 1, 2, int(os.environ["SAY"]), int(os.environ["WAIT"])}:
    try:
        os.close(number)
    except OSError:
        pass
if ends:
    time.sleep(0.1)  # the rest of its end takes a while
    os.kill(os.getpid(), signal.SIGKILL)
wait()
"""
    path = tmp_path / "a.mg"
    job = Job(code, path, wrap=False, env={"ENDS": "yes" if ends else ""})
    said = until(path, lambda run: (found := summarise(run)).state == "ended" and found)
    assert said.ended == ("killed by SIGKILL" if ends else "the program ended the recording")
    if not ends:
        job.go()
    job.end()


def test_a_monitor_that_cannot_write_raises_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(mg.MemgaugeError, match="does not exist"):
        mg.Monitor(tmp_path / "none" / "a.mg").start()


@pytest.mark.parametrize("budget", ["a", -5, 0, float("nan"), float("inf"), 1.5, True, 0.00001])
def test_a_budget_that_is_none_is_refused(tmp_path: Path, budget: Any) -> None:
    with pytest.raises(mg.MemgaugeError, match=rf"a budget of {re.escape(repr(budget))} is out of range"):
        mg.Monitor(tmp_path / "a.mg", budget=budget)


@pytest.mark.parametrize("budget", [None, 1, 0.0001, 0.02])
def test_a_budget_within_the_range_of_the_command_line_is_taken(tmp_path: Path, budget: float | None) -> None:
    assert mg.Monitor(tmp_path / "a.mg", budget=budget).path == tmp_path / "a.mg"


@pytest.mark.parametrize("path", [None, 5, b"x", "a\0b.mg"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(mg.MemgaugeError, match=re.escape(f"{path!r} is no path of a run file")):
        mg.Monitor(path)


@pytest.mark.parametrize("name", ["overwrite", "gpu"])
@pytest.mark.parametrize("value", ["no", "", None, 0, 1])
def test_what_is_neither_true_nor_false_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(mg.MemgaugeError, match=f"{name}={value!r} is neither True nor False"):
        mg.Monitor(tmp_path / "a.mg", **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        *(("pid", value, "no number of a process") for value in ("7", 1.5, True)),
        *(("title", value, "no text") for value in (5, b"x", True)),
    ],
)
def test_what_is_no_process_and_no_title_is_refused(tmp_path: Path, name: str, value: Any, why: str) -> None:
    with pytest.raises(mg.MemgaugeError, match=re.escape(f"{name}={value!r} is {why}")):
        mg.Monitor(tmp_path / "a.mg", **{name: value})


@pytest.mark.parametrize("interval", [True, None, float("nan"), b"1s", -1, float("inf")])
def test_an_interval_that_is_none_is_refused(tmp_path: Path, interval: Any) -> None:
    with pytest.raises(mg.MemgaugeError, match=rf"an interval of {re.escape(repr(interval))} is "):
        mg.Monitor(tmp_path / "a.mg", interval=interval)


def test_a_monitor_is_for_one_recording(tmp_path: Path) -> None:
    monitor = mg.Monitor(tmp_path / "a.mg", overwrite=True)
    with monitor:
        with pytest.raises(mg.MemgaugeError, match="a Monitor is for one recording"):
            monitor.start()
        mg.mark("first")
    with pytest.raises(mg.MemgaugeError, match=r"one recording, and that of .*a\.mg was started"), monitor:
        pass
    with RunFile(tmp_path / "a.mg") as run:
        assert [mark.name for mark in run.marks] == ["first"]


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
    said = recorded_with_libraries(EXAMPLES / example, tmp_path)
    by_name = {p.name: p for p in said.phases}
    assert phases <= set(by_name)
    assert by_name["train"].count in (2, 3)
    assert {p.peak_kind for p in said.phases} == {"exact"}
    assert all(p.unfinished == 0 for p in said.phases)


def recorded_with_libraries(script: Path, tmp_path: Path) -> Recording:
    """Return the recording of a script that imports Lightning, transformers or Keras."""
    path = tmp_path / "a.mg"
    command = [*memgauge("monitor", "-q", "-o", str(path), "--"), sys.executable, str(script)]
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
        return summarise(run)


# Each stops in the midst of a step of its second epoch, goes on with something else, and begins again.
LIGHTNING = """
import lightning, memgauge, torch
from memgauge.callbacks.lightning import MemoryPhases
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.stops = True
    def training_step(self, batch, number):
        if self.stops and self.current_epoch == 1 and number == 1: raise KeyboardInterrupt
        return self.layer(batch[0]).sum()
    def predict_step(self, batch): return self.layer(batch[0])
    def configure_optimizers(self): return torch.optim.SGD(self.parameters())
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(8, 4)), batch_size=2)
callback, model = MemoryPhases(steps=True), Model()
def trainer():
    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=[callback], **off)
try: trainer().fit(model, data)
except BaseException: pass
with memgauge.phase("afterwards"): pass
model.stops = False
trainer().fit(model, data)
trainer().predict(model, data)
"""
KERAS = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, memgauge, numpy
from memgauge.callbacks.keras import MemoryPhases
class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None): self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 1 and batch == 1: raise KeyboardInterrupt
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = numpy.zeros((8, 4), "float32")
callback = MemoryPhases(steps=True)
def fit(*others): model.fit(x, x[:, :1], batch_size=2, epochs=2, verbose=0, callbacks=[callback, *others])
for again in (fit, lambda: model.evaluate(x, x[:, :1], verbose=0, callbacks=[callback])):
    try: fit(Stop())
    except KeyboardInterrupt: memgauge.mark("stopped")
    again()
"""
TRANSFORMERS = """
import memgauge, tempfile, torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from memgauge.callbacks.transformers import MemoryPhases
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x): return {"loss": self.layer(x).sum()}
class Stop(TrainerCallback):
    stops = True
    def on_step_begin(self, args, state, control, **others):
        if self.stops and state.global_step == 5: raise KeyboardInterrupt
rows, stop = [{"x": torch.zeros(4)}] * 8, Stop()
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, num_train_epochs=2, per_device_train_batch_size=2, save_strategy="no", report_to=[],
        use_cpu=True, disable_tqdm=True, remove_unused_columns=False,
    )
    callbacks = [MemoryPhases(steps=True), stop]
    trainer = Trainer(Model(), arguments, train_dataset=rows, callbacks=callbacks)
    try: trainer.train()
    except KeyboardInterrupt: pass
    stop.stops = False
    trainer.train()
"""


@pytest.mark.parametrize(
    ("code", "trained"),
    [(LIGHTNING, "0 1 0 1"), (KERAS, "0 1 0 1 0 1"), (TRANSFORMERS, "0 1 0 1")],
    ids=["lightning", "keras", "transformers"],
)
def test_what_an_exception_left_open_ends_and_lies_across_nothing(
    tmp_path: Path, code: str, trained: str
) -> None:
    script = tmp_path / "job.py"
    script.write_text(code)
    said = recorded_with_libraries(script, tmp_path)
    assert {p.name for p in said.phases if p.unfinished} == set()
    assert {p.peak_kind for p in said.phases} == {"exact"}
    by_name = {p.name: p.each for p in said.phases}
    assert [span.value for span in by_name["train"]] == trained.split()
    others = [*by_name["train"], *by_name.get("afterwards", ()), *by_name.get("predict", ())]
    in_order = sorted([*others, *by_name.get("validate", ())], key=lambda span: span.begin_us)
    assert all(one.end_us <= next_.begin_us for one, next_ in pairwise(in_order))
    if code is LIGHTNING:
        assert len(by_name["predict"]) == 1


def test_the_trainers_evaluation_has_its_first_batch_too(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("""
import copy, memgauge, mmap, pickle, tempfile, torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from memgauge.callbacks.transformers import MemoryPhases
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x):
        if not self.training:
            held = mmap.mmap(-1, 200 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
            held.close()
        return {"loss": self.layer(x).sum()}
class Copying(TrainerCallback):
    def on_train_begin(self, args, state, control, model, **others):
        copied = pickle.loads(pickle.dumps(copy.deepcopy(model))).eval()
        copied(torch.zeros(2, 4))
rows = [{"x": torch.zeros(4)}] * 4
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, num_train_epochs=2, per_device_train_batch_size=2, per_device_eval_batch_size=4, save_strategy="no",
        report_to=[], use_cpu=True, disable_tqdm=True, remove_unused_columns=False, eval_strategy="epoch",
    )
    callbacks = [MemoryPhases(), Copying()]
    trainer = Trainer(Model(), arguments, train_dataset=rows, eval_dataset=rows, callbacks=callbacks)
    trainer.train()
    with memgauge.phase("afterwards"): trainer.predict(rows); trainer.evaluate(); trainer.predict(rows)
""")
    said = recorded_with_libraries(script, tmp_path)
    by_name = {p.name: p for p in said.phases}
    assert {name: p.count for name, p in by_name.items()} == {
        "train": 2,
        "evaluate": 3,
        "afterwards": 1,
        "predict": 2,
    }
    in_order = sorted([*by_name["evaluate"].each, *by_name["predict"].each], key=lambda span: span.begin_us)
    assert in_order[2:] == [
        by_name["predict"].each[0],
        by_name["evaluate"].each[2],
        by_name["predict"].each[1],
    ]
    assert (by_name["evaluate"].peak_bytes or 0) > (by_name["train"].each[0].peak_bytes or 0) + 190 * MIB


def test_phases_that_have_not_ended_are_said_to_in_the_tables(tmp_path: Path) -> None:
    code = """
import memgauge
with memgauge.phase("train", 0): pass
for phase in memgauge.phase("train", 1), memgauge.phase("step"): phase.__enter__()
with memgauge.phase("whole"): pass
"""
    path = tmp_path / "a.mg"
    assert Job(code, path, "-q").end()[0] == 0
    text = subprocess.run(memgauge("show", str(path)), capture_output=True, text=True, check=True).stdout
    page = tmp_path / "a.html"
    subprocess.run(memgauge("report", str(path), "-o", str(page)), check=True, capture_output=True)
    assert re.findall(r">([a-z·]+[^<>]* \((?:1 )?not ended\))<", page.read_text()) == [
        "train (1 not ended)",
        "· 1 (not ended)",
        "step (not ended)",
    ]
    found = re.findall(r"^ *(\w+)  \((.*not ended)\)", text, re.MULTILINE)
    assert found == [("train", "1 not ended"), ("1", "not ended"), ("step", "not ended")]
    with RunFile(path) as run:
        train = next(p for p in summarise(run).phases if p.name == "train")
    assert [span.is_finished for span in train.each] == [True, False]


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


def test_a_thread_is_no_process_to_attach_to(tmp_path: Path) -> None:
    code = """
import threading
threading.Thread(target=wait, daemon=True).start()
say(next(t for t in os.listdir("/proc/self/task") if int(t) != os.getpid()))
wait()
"""
    job = Job(code, tmp_path / "a.mg", wrap=False)
    thread = job.heard()
    command = memgauge("monitor", "-o", str(tmp_path / "a.mg"), "--pid", thread)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    pid = job.process.pid
    assert done.stderr == f"memgauge: {thread} is a thread of process {pid}; record that one: --pid {pid}\n"
    assert not (tmp_path / "a.mg").exists()
