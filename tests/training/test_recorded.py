"""A training in a process of its own under the monitor: its phases and epochs are in the recording."""

import subprocess
import sys
import textwrap

import msgspec
import pytest

from memgauge.explain.recording import summarise
from memgauge.storage import RunFile
from memgauge.training import Training


def recorded(path, training, call="train"):
    program = textwrap.dedent(f"""
        import sys, msgspec
        from memgauge.training import Training, {call}
        {call}(msgspec.json.decode(sys.argv[1], type=Training))
        print(open("/proc/self/statm").read().split()[1])
    """)
    command = [sys.executable, "-m", "memgauge", "monitor", "-o", str(path), "-i", "20ms", "--"]
    text = msgspec.json.encode(training).decode()
    subprocess.run([*command, sys.executable, "-c", program, text], check=True, capture_output=True)
    with RunFile(path) as run:
        return summarise(run), [(mark.name, mark.value) for mark in run.marks]


@pytest.mark.parametrize(
    "training",
    [
        Training(epochs=3, batch_size=500),
        Training(framework="keras", epochs=3, batch_size=500),
        Training(framework="keras", epochs=3, batch_size=500, options={"feed": "arrays"}),
        Training(framework="sklearn", model="sgd-classifier", epochs=3, batch_size=500),
    ],
    ids=lambda t: f"{t.framework}-{t.options.get('feed', 'batches')}",
)
def test_phases_and_epochs_are_recorded(tmp_path, training):
    if training.framework == "keras":
        pytest.importorskip("tensorflow")
    summary, marks = recorded(tmp_path / "run.mg", training)
    assert [phase.name for phase in summary.phases] == ["import", "load data", "build", "train", "evaluate"]
    assert all(phase.peak_kind == "exact" for phase in summary.phases)
    assert [(name, str(value)) for name, value in marks if name == "epoch"] == [
        ("epoch", str(i)) for i in range(3)
    ]


def test_the_data_set_is_in_memory_once(tmp_path):
    """Sixty MiB of floats: in memory they are resident once, and in the baseline too; mapped they are not read."""
    peaks = {}
    rows = 5_000
    for access in ("memory", "mapped"):
        training = Training(data=f"synthetic:{rows}x32x32x3", data_access=access, steps=1)
        summary, _ = recorded(tmp_path / f"{access}.mg", training)
        peaks[access] = next(p.peak_bytes for p in summary.phases if p.name == "load data")
    data = rows * 32 * 32 * 3 * 4
    # Mapped, the file was written in this phase: its pages are resident until the kernel wants them back.
    second, _ = recorded(
        tmp_path / "again.mg", Training(data=f"synthetic:{rows}x32x32x3", data_access="mapped", steps=1)
    )
    mapped = next(p.peak_bytes for p in second.phases if p.name == "load data")
    assert peaks["memory"] - mapped == pytest.approx(data, rel=0.25)


def test_a_baseline_keeps_its_data_and_builds_nothing():
    program = textwrap.dedent("""
        import sys
        from memgauge.training import Training, baseline
        resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
        baseline(Training())  # the framework is imported now
        before = resident()
        baseline(Training(data="synthetic:5000x32x32x3"))
        print(resident() - before, "memgauge.zoo.mlp" in sys.modules)
    """)
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    grown, built = found.stdout.split()
    assert int(grown) == pytest.approx(5_000 * 32 * 32 * 3 * 4, rel=0.1)
    assert built == "False"
