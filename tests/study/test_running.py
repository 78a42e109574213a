from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from places import HEAD, ONE, TARGET, Place

from memgauge.cli.study_progress import StudyProgress
from memgauge.errors import MissingError, UsageError
from memgauge.report.study import chosen
from memgauge.storage import RunFile
from memgauge.study.database import open_storage, shown, url_of
from memgauge.study.file import parse
from memgauge.study.harvest import _environment_bytes, with_run_file
from memgauge.study.isolation import background
from memgauge.study.ledger import Ledger
from memgauge.study.local import Local
from memgauge.study.merge import open_study
from memgauge.study.order import Order
from memgauge.study.plan import Subject
from memgauge.study.predictor import Question, answer
from memgauge.study.process import is_alive
from memgauge.study.reading import read_ledger
from memgauge.study.records import Baseline, Predicted, StudyRecord, Trial
from memgauge.study.runner import Runner
from memgauge.study.trial import Result
from memgauge.training import Training

TWO = "[limits]\nsteps = 1\n[space.width]\nvalues = [16, 64]\n"


def read(place: Place) -> StudyRecord:
    return open_study(str(place.folder / "try.study"))


def ends(pid: int) -> None:
    """Wait until a process is gone; it was sent a signal that it cannot refuse."""
    until = time.monotonic() + 30
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)


def test_a_study_runs_each_trial_once_and_keeps_predicted_beside_measured(place: Place) -> None:
    place.study(
        "repeats = 2\nrecord = ['peak_allocated_bytes']\n" + TWO,
        HEAD.replace("baselines = 0", "baselines = 1"),
    )
    shown = place.memgauge("study", "run", "study.toml")
    assert "4 trials: 4 done" in shown
    study = read(place)
    assert [t.attempts for t in study.trials] == [1, 1, 1, 1]
    (baseline,) = study.baselines.values()
    for trial in study.trials:
        assert trial.predicted is not None and trial.machine is not None
        assert trial.figures["peak_allocated_bytes"] == trial.predicted.allocated_bytes
        assert (
            trial.figures["peak_network_bytes"]
            == trial.figures["peak_resident_bytes"] - baseline.loaded_bytes
        )
        low, high = trial.predicted.host_low_bytes, trial.predicted.host_high_bytes
        assert low is not None and high is not None and low <= trial.figures["peak_resident_bytes"] <= high
        with RunFile(place.folder / "try.study" / str(trial.run_file)) as run:
            assert json.loads(str(run.document("machine")))["cores"] == trial.machine.cores
            assert run.document("estimate") is not None
    before = [t.ended_unix_ns for t in study.trials]
    place.memgauge("study", "run", "study.toml")
    assert [t.ended_unix_ns for t in read(place).trials] == before  # nothing is done twice
    rows = list(
        csv.DictReader(
            io.StringIO(
                place.memgauge("study", "show", "study.toml", "--csv", "-", "--sort", "width", "--descending")
            )
        )
    )
    assert [r["width"] for r in rows] == ["64", "64", "16", "16"]
    assert rows[0]["predicted_allocated_bytes"] == rows[0]["peak_allocated_bytes"]
    found = json.loads(place.memgauge("study", "show", "try.study", "--json"))
    assert (found["schema"], found["by_status"]) == ("memgauge.study/1", {"done": 4})
    place.memgauge("study", "report", "study.toml", "-o", "page.html")
    page = (place.folder / "page.html").read_text()
    assert "default-src 'none'" in page and "trial 0" in page and "<script src" not in page


def test_what_the_first_optimizer_loads_is_the_environment_s_and_not_the_network_s(place: Place) -> None:
    place.study(
        "[limits]\nsteps = 1\n[fixed]\nmodel = 'mlp'\ndata = 'digits'\n[space.mode]\nvalues = ['train', 'infer']\n",
        '[study]\nname = "try"\nthreads = 1\nbaselines = 1\n',
    )
    place.memgauge("study", "run", "study.toml")
    study = read(place)
    (baseline,) = study.baselines.values()
    assert baseline.with_optimizer_bytes is not None
    assert baseline.with_optimizer_bytes - baseline.loaded_bytes > 40 * 2**20
    shown = " ".join(place.memgauge("study", "show", "study.toml").split())
    assert "cpu, 1 thread " in shown and "1 threads" not in shown
    taken = {t.params["mode"]: t for t in study.trials}
    for mode, environment in (("train", baseline.with_optimizer_bytes), ("infer", baseline.loaded_bytes)):
        figures = taken[mode].figures
        assert figures["peak_network_bytes"] == figures["peak_resident_bytes"] - environment
        assert figures["peak_network_bytes"] < 40 * 2**20  # a network of 18,000 parameters


def test_what_a_trial_held_without_a_baseline_is_its_own_reading_only_where_that_was_of_everything() -> None:
    read_early = Result(state="done", loaded_bytes=100)
    assert _environment_bytes(read_early, None) == 100
    assert _environment_bytes(msgspec.structs.replace(read_early, state="began"), None) is None
    baseline = Baseline(
        interpreter_bytes=1,
        imported_bytes=2,
        loaded_bytes=3,
        with_optimizer_bytes=7,
        spread_bytes=0,
        repeats=1,
    )
    assert _environment_bytes(Result(state="done"), baseline) == 3
    assert _environment_bytes(Result(state="done", has_dynamo=True), baseline) == 7
    assert _environment_bytes(Result(state="began"), baseline) == 7  # a bound, whether it made one or not


def test_a_longer_study_goes_on_and_another_one_of_its_name_is_refused(ran: Place) -> None:
    place = ran
    place.study(TWO)
    assert "2 trials: 2 done" in place.memgauge("study", "run", "study.toml")
    place.study(TWO.replace("steps = 1", "steps = 2"))
    assert "[limits] steps was 1" in place.memgauge("study", "run", "study.toml", code=2)


@pytest.mark.parametrize(
    "changed", ["seed = 1", "order = 'random'", "interval = '1s'", "design = 'random'\ntrials = 2"]
)
def test_a_study_that_began_keeps_its_design(ran: Place, changed: str) -> None:
    ran.study(f"{changed}\n{TWO}")
    said = ran.memgauge("study", "run", "study.toml", code=2)
    assert "when study 'try' began" in said and "two designs" in said and "--out another folder" in said
    assert len(read(ran).trials) == 1


def test_other_threads_than_a_study_began_with_are_refused(ran: Place) -> None:
    ran.study(TWO, HEAD.replace("threads = 1", "threads = 2"))
    assert "run with 1 since it began" in ran.memgauge("study", "run", "study.toml", code=2)


def test_the_estimate_of_a_deep_network_reaches_the_run_file(place: Place) -> None:
    many = "*[torch.nn.Identity() for _ in range(1500)], torch.nn.Linear(width, 4)"
    (place.folder / "target.py").write_text(TARGET.replace("torch.nn.Linear(width, 4)", many))
    place.study(ONE)
    place.memgauge("study", "run", "study.toml")
    (trial,) = read(place).trials
    with RunFile(place.folder / "try.study" / str(trial.run_file)) as run:
        assert len(str(run.document("estimate"))) > 128 * 1024  # longer than one argument of a command may be


def test_the_prediction_holds_the_data_a_second_time_where_they_are_fed_as_one_tensor() -> None:
    def expected(feed: str) -> int:
        training = Training(data="dt1", model="torres-cnn", options={"feed": feed})
        found = answer(
            Question(subject=Subject(training=training, threads=1), baseline_bytes=10**9)
        ).predicted
        assert found.host_expected_bytes is not None
        return found.host_expected_bytes

    assert expected("arrays") - expected("batches") == 60_000 * 32 * 32 * 3 * 4


def test_the_table_is_sorted_by_its_own_headings() -> None:
    trials = [
        Trial(
            number=i,
            params={},
            status="done",
            seconds=s,
            predicted=Predicted(host_expected_bytes=b),
            figures={"peak_resident_bytes": r},
        )
        for i, (s, b, r) in enumerate([(2.0, 1, 7), (1.0, 3, 8), (3.0, 2, 6)])
    ]
    study = StudyRecord(name="made", file={}, trials=trials)
    found = {
        h: [t.number for t in chosen(study, h, False, None)]
        for h in ("time", "predicted", "resident", "trial")
    }
    assert found == {"time": [1, 0, 2], "predicted": [0, 2, 1], "resident": [2, 0, 1], "trial": [0, 1, 2]}


def test_a_database_that_no_ledger_can_be_is_refused_by_its_own_name() -> None:
    with pytest.raises(UsageError, match="mysql://me@host/x: a ledger is a path or postgresql://"):
        open_storage("mysql://me:secret@host/x")
    assert shown(url_of("postgresql://me:secret@host/x")) == "postgresql://me@host/x"


def test_a_study_that_was_refused_before_any_trial_may_be_corrected(place: Place) -> None:
    place.study(ONE.replace("steps = 1", "steps = 2") + "[fixed]\nbatch_sise = 8\n")
    assert "batch_size" in place.memgauge("study", "run", "study.toml", code=2)
    place.study(ONE)
    assert "1 trial: 1 done" in place.memgauge("study", "run", "study.toml")


def test_while_a_trial_runs_the_waiting_ones_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(TARGET)
    looks: list[int] = []

    class Counting(Local):
        def can_take(self, order: Order) -> bool:
            looks.append(order.number)
            return super().can_take(order)

    text = HEAD + TWO.replace("64]", "64, 65]").replace("steps = 1", "steps = 1\ntrial_memory = '8GiB'")
    file = parse(text, "study.toml", tmp_path)
    study = Runner(file, tmp_path / "s", executor=lambda _: Counting(1, 1, None, None)).run()
    assert [t.status for t in study.trials] == ["done"] * 3
    assert looks == [0, 1, 2]  # though the memory of a trial is looked at every 10 ms meanwhile


def test_a_model_that_raises_fails_its_trial_only(place: Place) -> None:
    place.study(TWO + "[fixed]\nfail_at = 64\n")
    said = place.memgauge("study", "run", "study.toml", code=1)
    assert "1 of 2 trials failed" in said and "--retry-failed" in said
    done, failed = read(place).trials
    assert (done.status, failed.status) == ("done", "failed")
    assert "the width of 64 is too much for me" in str(failed.error)
    assert "target.py" in str(failed.error)


@pytest.mark.parametrize("code", [0, 7])
def test_a_model_that_ends_its_process_fails_its_trial_once(place: Place, code: int) -> None:
    place.study(ONE + f"[fixed]\nleave = {code}\n")
    place.memgauge("study", "run", "study.toml", code=1)
    (trial,) = read(place).trials
    assert (trial.status, trial.attempts) == ("failed", 1)
    assert f"exit code {code} before the trial was done" in str(trial.error)


def test_a_trial_above_its_limit_is_stopped_and_kept_as_a_bound(place: Place) -> None:
    place.study("[limits]\nsteps = 1\ntrial_memory = '600MiB'\n[space.hold_mib]\nvalues = [0, 2000]\n")
    place.memgauge("study", "run", "study.toml")
    done, stopped = read(place).trials
    assert done.status == "done"
    assert (stopped.status, stopped.censored_at_bytes) == ("out-of-memory", 600 * 2**20)
    assert "> 600.0 MiB" in place.memgauge("study", "show", "study.toml")


def test_what_cannot_fit_is_kept_but_not_run(place: Place) -> None:
    place.study("[limits]\nsteps = 1\ntrial_memory = '700MiB'\n[space.width]\nvalues = [16, 20_000_000]\n")
    place.memgauge("study", "run", "study.toml")
    done, refused = read(place).trials
    assert (done.status, refused.status, refused.attempts) == ("done", "does-not-fit", 0)
    assert refused.predicted is not None and "there are 700.0 MiB" in str(refused.cause)
    assert not (place.folder / "try.study/trials/00001").exists()


def test_an_argument_that_does_not_exist_stops_the_study_before_anything_runs(place: Place) -> None:
    place.study("[space.widht]\nvalues = [1, 2]\n", HEAD.replace("baselines = 0", "baselines = 1"))
    said = place.memgauge("study", "run", "study.toml", code=2)
    assert "baseline" not in said  # nothing was measured for it
    assert "takes no widht (nearest: width)" in said and "Traceback" not in said
    assert read(place).trials == []


def test_a_limit_of_time_ends_a_trial(place: Place) -> None:
    gate = place.gate()  # at which nobody ever looks
    place.study(
        f"[limits]\nsteps = 1\ntrial_seconds = 5\n[space.width]\nvalues = [16]\n[fixed]\ngate = '{gate.path}'\n"
    )
    place.memgauge("study", "run", "study.toml")
    (trial,) = read(place).trials
    assert trial.status == "time-limit" and "5 s" in str(trial.cause)


def test_a_runner_that_is_killed_loses_nothing_and_does_nothing_twice(place: Place) -> None:
    gate = place.gate()
    place.study(ONE + f"[fixed]\ngate = '{gate.path}'\n")
    runner = place.start("study", "run", "study.toml")
    pid = gate.arrived()
    runner.kill()
    runner.communicate()
    assert [t.status for t in read(place).trials] == ["running"]
    again = place.start("study", "run", "study.toml")
    assert "still runs; its end is awaited" in again.stderr.readline()  # type: ignore[union-attr]
    assert is_alive(place.folder / "try.study/trials/00000")
    gate.open()
    again.communicate(timeout=120)
    (trial,) = read(place).trials
    assert (trial.status, trial.attempts) == ("done", 1)
    with RunFile(place.folder / "try.study" / str(trial.run_file)) as run:
        assert pid in {p.pid for p in run.processes}


def test_the_time_left_is_not_counted_from_trials_that_ended_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def told(done: int) -> Any:
        trials = {i: Trial(number=i, params={}, status="done" if i < done else "waiting") for i in range(10)}
        return SimpleNamespace(trials=trials, running={done}, total=10, last=None, said="")

    progress = StudyProgress()
    progress("end", told(8))  # ended while no runner was there
    assert "left" not in capsys.readouterr().err
    progress("start", told(8))
    assert "left" not in progress._doing(told(9), 9)


def test_what_ended_while_no_runner_was_there_is_told_by_the_next(place: Place) -> None:
    gate = place.gate()
    place.study(ONE + f"[fixed]\ngate = '{gate.path}'\n")
    runner = place.start("study", "run", "study.toml")
    pid = gate.arrived()
    runner.kill()
    runner.communicate()
    gate.open()
    ends(pid)
    folder = place.folder / "try.study/trials/00000"
    until = time.monotonic() + 30
    while is_alive(folder) and time.monotonic() < until:  # the sampler writes the end of its file
        time.sleep(0.01)
    place.memgauge("study", "run", "study.toml")
    (trial,) = read(place).trials
    assert (trial.status, trial.attempts) == ("done", 1)


def test_a_trial_that_is_killed_runs_again(place: Place) -> None:
    gate = place.gate()
    place.study(ONE + f"[fixed]\ngate = '{gate.path}'\n")
    runner = place.start("study", "run", "study.toml")
    os.kill(gate.arrived(), signal.SIGKILL)
    gate.arrived()
    gate.open()
    _, said = runner.communicate(timeout=120)
    assert "was killed; it is run again" in said
    (trial,) = read(place).trials
    assert (trial.status, trial.attempts) == ("done", 2)


def test_a_trial_whose_monitor_is_killed_is_ended_and_runs_again(place: Place) -> None:
    gate = place.gate()
    place.study(ONE + f"[fixed]\ngate = '{gate.path}'\n")
    runner = place.start("study", "run", "study.toml")
    first = gate.arrived()
    os.kill(os.getsid(first), signal.SIGKILL)  # the sampler leads the session of its trial
    second = gate.arrived()
    assert second != first
    ends(first)
    gate.open()
    _, said = runner.communicate(timeout=120)
    assert runner.returncode == 0, said
    (trial,) = read(place).trials
    assert (trial.status, trial.attempts) == ("done", 2)
    assert trial.figures["peak_resident_bytes"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_study_ends_its_trial_and_can_go_on(place: Place, number: signal.Signals) -> None:
    gate = place.gate()
    place.study(ONE + f"[fixed]\ngate = '{gate.path}'\n")
    runner = place.start("study", "run", "study.toml")
    pid = gate.arrived()
    runner.send_signal(number)
    _, said = runner.communicate(timeout=60)
    assert runner.returncode == 130 and "the same command goes on" in said
    ends(pid)
    assert [t.status for t in read(place).trials] == ["waiting"]


def test_a_second_runner_is_refused(place: Place) -> None:
    gate = place.gate()
    place.study(ONE + f"[fixed]\ngate = '{gate.path}'\n")
    runner = place.start("study", "run", "study.toml")
    gate.arrived()
    said = place.memgauge("study", "run", "study.toml", code=2)
    assert f"process {runner.pid} runs this study" in said
    gate.open()
    runner.communicate(timeout=60)


def test_what_others_do_meanwhile_is_recorded_and_flagged(ran: Place) -> None:
    place = ran
    (trial,) = read(place).trials
    assert trial.background is not None and trial.background.mean_cores is not None
    with RunFile(place.folder / "try.study" / str(trial.run_file)) as run:
        calm = background(run, 2**34, (10**9, 10**9))
        moved = background(run, 2**34, (10**9, 3 * 10**9))
        shared = background(run, 2**34, (10**9, 3 * 10**9), jobs=2)
    assert any("memory that others use moved by 1.86 GiB" in r for r in moved.reasons)
    assert not any("moved" in r for r in calm.reasons) and shared.reasons == ()


def test_disturbed_trials_are_repeated_if_asked(ran: Place) -> None:
    import msgspec

    place, path = ran, ran.folder / "study.toml"
    ledger_file = place.folder / "try.study/ledger.db"
    import sqlite3

    with sqlite3.connect(ledger_file) as connection:  # as if others had worked meanwhile
        (text,) = connection.execute(
            "SELECT value_json FROM trial_user_attributes WHERE key = 'memgauge'"
        ).fetchone()
        trial = msgspec.json.decode(text)
        trial["background"] = {"mean_cores": 3.0, "reasons": ["others kept 3.0 cores busy"]}
        connection.execute(
            "UPDATE trial_user_attributes SET value_json = ? WHERE key = 'memgauge'", (json.dumps(trial),)
        )
    connection.close()
    assert "1 disturbed" in place.memgauge("study", "show", str(path))
    place.memgauge("study", "run", "study.toml", "--repeat-disturbed")
    first, second = read(place).trials
    assert (first.repeats_trial, second.repeats_trial, second.status) == (None, 0, "done")


def test_studies_of_two_machines_become_one(place: Place) -> None:
    place.study(ONE)
    for machine in ("left", "right"):
        place.memgauge("study", "run", "study.toml", "-o", machine, "--machine", machine, "--at-most", "1")
    place.memgauge("study", "merge", "both.study", "left", "right")
    study = open_study(str(place.folder / "both.study"))
    assert [t.machine.name for t in study.trials if t.machine] == ["left", "right"]
    assert all((place.folder / "both.study" / str(t.run_file)).is_file() for t in study.trials)
    shown = json.loads(place.memgauge("study", "show", "left", "right", "--json"))
    assert shown["trials_total"] == 2
    place.memgauge("study", "merge", "one.study", "left")
    (trial,) = open_study(str(place.folder / "one.study")).trials
    assert (place.folder / "one.study" / str(trial.run_file)).is_file()


def test_a_ledger_is_claimed_once_and_read_without_optuna(tmp_path: Path) -> None:
    file = parse(HEAD + TWO, "study.toml")
    ledger = Ledger(url_of(tmp_path / "ledger.db"), file)
    first, second = ledger.add([Trial(number=-1, params={"width": w}) for w in (16, 64)])
    assert ledger.claim(first) and not ledger.claim(first)
    ledger.finish(
        Trial(number=first.number, params=first.params, status="done", figures={"peak_resident_bytes": 7})
    )
    ledger.finish(
        Trial(number=first.number, params=first.params, status="failed")
    )  # told twice: the first holds
    assert ledger.claim(second)
    ledger.release(second)
    found = read_ledger(url_of(tmp_path / "ledger.db"))
    assert [(t.number, t.status) for t in found.trials] == [(0, "done"), (1, "waiting")]
    ledger.close()


def test_a_trial_that_was_told_in_part_is_told_whole_by_the_next_runner(tmp_path: Path) -> None:
    import optuna

    ledger = Ledger(url_of(tmp_path / "ledger.db"), parse(HEAD + TWO, "study.toml"))
    first, second = ledger.add([Trial(number=-1, params={"width": w}) for w in (16, 64)])
    assert ledger.claim(first) and ledger.claim(second)
    ledger._write(
        Trial(number=0, params=first.params, status="done", figures={"peak_resident_bytes": 7})
    )  # and killed
    ledger.tell_half_told()
    ledger.close()
    told = optuna.load_study(storage=url_of(tmp_path / "ledger.db"), study_name="try").get_trials()
    assert [(t.state.name, t.value) for t in told] == [("COMPLETE", 7.0), ("RUNNING", None)]


def test_what_is_no_ledger_is_named(place: Place) -> None:
    (place.folder / "x.db").write_text("nothing")
    assert "is not a ledger" in place.memgauge("study", "show", "x.db", code=2)
    assert "has not been run here" in place.memgauge("study", "show", str(place.study(ONE)), code=2)
    assert "there is no such study" in place.memgauge("study", "show", "nothing", code=2)
    assert "no such study file" in place.memgauge("study", "run", "nothing.toml", code=2)


def test_a_plan_estimates_and_runs_nothing(place: Place) -> None:
    place.study(
        "[limits]\nsteps = 1\ntrial_memory = '700MiB'\n[space.width]\nvalues = [16, 20_000_000]\n",
        HEAD.replace("baselines = 0", "baselines = 1"),
    )
    process = place.start("study", "run", "study.toml", "--plan", "--json")
    plan = json.loads(process.communicate(timeout=300)[0])
    assert process.returncode == 1  # not all of it fits
    assert plan["by_status"] == {"waiting": 1, "does-not-fit": 1}
    assert [t["status"] for t in plan["trials"]] == ["waiting", "does-not-fit"]
    small, large = (t["predicted"]["host_expected_bytes"] for t in plan["trials"])
    assert small < 700 * 2**20 < large
    assert not (place.folder / "try.study").exists()


def test_a_study_of_which_nothing_fits_says_no(place: Place) -> None:
    place.study(
        "[limits]\nsteps = 1\ntrial_memory = '1MiB'\n[space.width]\nvalues = [16]\n",
        HEAD.replace("baselines = 0", "baselines = 1"),
    )
    assert "no trial of the study fits here" in place.memgauge("study", "run", "study.toml", code=1)


def test_the_conclusion_is_shown_until_another_trial_has_ended(ran: Place) -> None:
    assert "What try says" in ran.memgauge("study", "show", "try.study")
    found = json.loads(ran.memgauge("study", "show", "try.study", "--json"))
    assert "1 trial is too few" in found["conclusion"][0]
    with contextlib.closing(sqlite3.connect(ran.folder / "try.study/ledger.db")) as connection, connection:
        (text,) = connection.execute(
            "SELECT value_json FROM trial_user_attributes WHERE key='memgauge'"
        ).fetchone()
        trial = json.loads(text) | {"ended_unix_ns": 1}
        connection.execute(
            "UPDATE trial_user_attributes SET value_json = ? WHERE key = 'memgauge'", (json.dumps(trial),)
        )
    assert json.loads(ran.memgauge("study", "show", "try.study", "--json"))["conclusion"] is None


def test_a_plan_of_thousands_is_in_the_ledger_whole(tmp_path: Path) -> None:
    import optuna

    text = "[limits]\nsteps = 1\n[space.width]\nlow = 1\nhigh = 9999\n[space.act]\nvalues = ['a', 'b']\nwhen = 'width > 50'\n"
    ledger = Ledger(url_of(tmp_path / "ledger.db"), parse(HEAD + text, "study.toml"))
    plan = [Trial(number=-1, params={"width": w} | ({"act": "b"} if w > 50 else {})) for w in range(1, 3001)]
    added = ledger.add(plan)
    assert [t.number for t in added] == list(range(3000))
    assert ledger.claim(added[2999])
    with pytest.raises(UsageError, match="another name"):  # all or none
        ledger.add([Trial(number=-1, params={"width": 7}), Trial(number=-1, params={"act": "c"})])
    by_optuna = optuna.load_study(storage=url_of(tmp_path / "ledger.db"), study_name="try").get_trials()
    assert len(by_optuna) == 3000
    assert (by_optuna[60].params, by_optuna[60].number) == ({"width": 61, "act": "b"}, 60)
    assert [t.status for t in read_ledger(url_of(tmp_path / "ledger.db")).trials[2998:]] == [
        "waiting",
        "running",
    ]
    ledger.close()


def test_a_full_disk_ends_the_study_in_order_and_it_goes_on_when_there_is_room(place: Place) -> None:
    """On a disk of its own, which the trial fills at its step and the test empties."""
    disk = place.folder / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=68m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mounted, capture_output=True).returncode != 0:
        pytest.skip("a small disk can be mounted by root only")
    try:
        place.study(ONE + f"[fixed]\nfill = '{disk}/filler'\n")
        said = place.memgauge("study", "run", "study.toml", "-o", str(disk / "try"), code=3)
        assert "is kept" in said and "Traceback" not in said
        assert (disk / "filler").stat().st_size > 2**20
        (disk / "filler").unlink()
        place.memgauge("study", "run", "study.toml", "-o", str(disk / "try"))
        assert [t.status for t in open_study(str(disk / "try")).trials] == ["done"]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_a_run_file_that_cannot_be_written_any_more_costs_no_trial(ran: Place) -> None:
    folder = ran.folder / "try.study"
    (trial,) = read(ran).trials
    path = folder / str(trial.run_file)
    with RunFile(path) as run, contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")  # as unwritable as on a full disk
        with pytest.raises(MissingError, match="cannot be written"):
            run.set_documents(trial="{}")
        assert with_run_file(trial, path.parent, folder) == trial


def test_data_that_are_damaged_stop_a_study_before_anything_runs(place: Place) -> None:
    from memgauge.data import describe
    from memgauge.data.files import CHECKSUMS, md5_of
    from memgauge.data.idx import write_idx

    folder = place.folder / "own"
    folder.mkdir()
    names = describe("mnist").files
    for name in names:
        write_idx(folder / name, np.zeros((64, 28, 28) if "images" in name else 64, np.uint8))
    (folder / CHECKSUMS).write_text("".join(f"{md5_of(folder / n)}  {n}\n" for n in names))
    place.study(
        "[limits]\nsteps = 1\n[fixed]\ndata = 'mnist'\ndata_dir = 'own'\n[space.batch_size]\nvalues = [8]\n",
        HEAD.replace('target = "target.py:make"\n', ""),
    )
    pictures = folder / names[0]
    content = bytearray(pictures.read_bytes())
    content[-1] ^= 1
    pictures.write_bytes(content)
    said = place.memgauge("study", "run", "study.toml", code=2)
    assert "its MD5 sum is" in said and "fetch or copy it again" in said and "batch_size=8" in said
    pictures.write_bytes(content[:-100])
    assert "cut off" in place.memgauge("study", "run", "study.toml", code=2)
    pictures.unlink()
    assert f"lacks {names[0]}" in place.memgauge("study", "run", "study.toml", code=2)
    assert read(place).trials == []


def test_a_generated_file_that_is_cut_is_to_be_removed_not_copied(place: Place, tmp_path: Path) -> None:
    from memgauge.data import describe

    place.environment["MEMGAUGE_DATA"] = str(tmp_path / "data")
    folder = tmp_path / "data" / "cifar10-synthetic"
    folder.mkdir(parents=True)
    for name in describe("cifar10").files:
        (folder / name).write_bytes(bytes(3073 * 2 - 1))
    place.study(
        "[limits]\nsteps = 1\n[fixed]\ndata = 'cifar10'\n[space.batch_size]\nvalues = [8]\n",
        HEAD.replace('target = "target.py:make"\n', ""),
    )
    said = place.memgauge("study", "run", "study.toml", code=2)
    assert f"remove {folder} and it is made again" in said and "copy it" not in said
