from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import HEAD, TARGET, Gate

from memgauge.study.file import from_plain
from memgauge.study.runner import Options, Runner

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray leaves files open and warns of its own future


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A real cluster of two nodes on this machine, each with one core and 900 MiB."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "memory": 900 * 2**20, "object_store_memory": 80 * 2**20}
    found = Cluster(initialize_head=True, head_node_args=node)
    found.add_node(**node)
    yield found.address
    ray.shutdown()
    found.shutdown()


def run(folder: Path, address: str, text: str, notes: list[str]) -> Runner:
    import tomllib

    from memgauge.study.on_ray import on_ray

    (folder / "target.py").write_text(TARGET)
    file = from_plain(tomllib.loads(HEAD + text), folder)

    def told(what: str, runner: Runner) -> None:
        if what == "note":
            notes.append(runner.said)

    return Runner(file, folder / "ray.study", Options(), told, on_ray(address))


def test_a_study_runs_on_both_nodes_and_what_fits_on_none_is_kept(cluster: str, tmp_path: Path) -> None:
    text = "[limits]\nsteps = 1\n[space.width]\nvalues = [16, 32, 48, 20_000_000]\n"
    study = run(tmp_path, cluster, text, []).run()
    assert [t.status for t in study.trials] == ["done", "done", "done", "does-not-fit"]
    assert len({t.machine.name for t in study.trials if t.machine}) == 2
    assert all((tmp_path / "ray.study" / str(t.run_file)).is_file() for t in study.trials[:3])


def test_a_worker_that_is_killed_costs_one_attempt(cluster: str, tmp_path: Path) -> None:
    import threading

    gate = Gate(tmp_path / "gate")
    notes: list[str] = []
    text = f"[limits]\nsteps = 1\n[space.width]\nvalues = [16]\n[fixed]\ngate = '{gate.path}'\n"
    killed: list[int] = []

    def kill_the_worker() -> None:
        pid = gate.arrived()
        sampler = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        worker = int(Path(f"/proc/{sampler}/stat").read_text().rpartition(")")[2].split()[1])
        killed.append(worker)
        os.kill(worker, signal.SIGKILL)
        gate.arrived()
        gate.open()

    thread = threading.Thread(target=kill_the_worker)
    thread.start()
    (trial,) = run(tmp_path, cluster, text, notes).run().trials
    thread.join()
    assert killed and (trial.status, trial.attempts) == ("done", 2)
    assert any("its worker or node was lost" in n for n in notes)
