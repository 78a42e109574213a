"""The control group's own peak: of the whole tree, however short its processes live."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jobs import MIB, Job

from memgauge.explain.recording import summarise
from memgauge.monitor import cgroup
from memgauge.storage import RunFile

# Three children hold 60 MiB each at the same time, all between two samples; no sample, and no
# process's own peak, has the 180 MiB.
BURST = """
pids = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        x = bytearray(60 << 20); say(); wait(); os._exit(0)
    pids.append(pid)
say()
for pid in pids: os.waitpid(pid, 0)
"""


def may_make_groups() -> bool:
    try:
        cgroup.make().close()
    except OSError:
        return False
    return True


def test_a_group_of_its_own_has_the_exact_peak_of_the_whole_tree(tmp_path: Path) -> None:
    if not may_make_groups():
        pytest.skip("no memory group can be made here")
    path = tmp_path / "a.mg"
    job = Job(BURST, path, "-q", "-i", "5s", "--cgroup")
    for _ in range(4):
        job.heard()
    for _ in range(3):
        job.go()
    assert job.end()[0] == 0
    with RunFile(path) as run:
        said = summarise(run)
        folder = Path(run.header["cgroup"]["folder"])
    peak = next(p for p in said.peaks if p.name.startswith("control group"))
    assert peak.kind == "exact"
    assert 180 * MIB < peak.bytes < 240 * MIB
    assert not folder.exists()


PHASES = """
import memgauge
def burst(mib):
    pids = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            x = bytearray(mib << 20); say(); wait(); os._exit(0)
        pids.append(pid)
    say()
    for pid in pids: os.waitpid(pid, 0)
memgauge.mark("begin")
with memgauge.phase("large"): burst(80)
with memgauge.phase("small"): burst(20)
"""


def test_each_phase_has_the_exact_peak_of_the_whole_tree(tmp_path: Path) -> None:
    if not may_make_groups():
        pytest.skip("no memory group can be made here")
    path = tmp_path / "a.mg"
    job = Job(PHASES, path, "-q", "-i", "5s", "--cgroup")
    for _ in range(2):
        for _ in range(3):
            job.heard()
        for _ in range(2):
            job.go()
    assert job.end()[0] == 0
    with RunFile(path) as run:
        said = summarise(run)
    peaks = {p.name: (p.group_peak_bytes or 0, p.group_peak_kind) for p in said.phases}
    whole = next(p for p in said.peaks if p.name.startswith("control group"))
    if not peaks["large"][0]:
        pytest.skip("this kernel's peak cannot be reset")
    assert {kind for _, kind in peaks.values()} == {"exact"}
    assert 160 * MIB < peaks["large"][0] < 220 * MIB
    assert 40 * MIB < peaks["small"][0] < 100 * MIB
    assert whole.bytes == peaks["large"][0]  # the resets take nothing from the whole run's


def test_only_one_process_resets_the_peak_that_all_share(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for name, text in ((cgroup.V1.current, "1"), (cgroup.V1.peak, "2"), ("memory.stat", "cache 3\nrss 2\n")):
        (folder / name).write_text(text)
    own, others = cgroup.Group(folder, cgroup.V1, is_own=True), cgroup.Group(folder, cgroup.V1)
    assert own.peak_for_phases(os.getpid()) == str(folder / cgroup.V1.peak)
    assert own.peak_for_phases(os.getppid()) == ""
    assert own.peak_for_phases(os.getpid()) != ""
    assert others.peak_for_phases(os.getpid()) == ""
    others.close()
    for fd in (own._current, own._stat, own._peak):
        os.close(fd)


def test_a_group_that_others_may_share_gives_an_upper_bound(tmp_path: Path) -> None:
    if cgroup.of_process(os.getpid()) is None:
        pytest.skip("no memory group is here")
    path = tmp_path / "a.mg"
    assert Job("x = bytearray(40 << 20)", path, "-q").end()[0] == 0
    with RunFile(path) as run:
        peak = next(p for p in summarise(run).peaks if p.name.startswith("control group"))
    assert peak.kind == "upper bound"
    assert "more than this job" in peak.reason
    assert peak.bytes > 40 * MIB


@pytest.mark.parametrize(("version", "line"), [(1, "4:memory:/job\n0::/\n"), (2, "0::/job\n")])
def test_both_versions_are_read_as_documented(tmp_path: Path, version: int, line: str) -> None:
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    folder = root / "memory" / "job" if version == 1 else root / "job"
    folder.mkdir(parents=True)
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text(line)
    names = cgroup.V1 if version == 1 else cgroup.V2
    (folder / names.current).write_text("4096\n")
    (folder / names.peak).write_text("8192\n")
    (folder / "memory.stat").write_text("cache 300\nrss 200\n" if version == 1 else "anon 200\nfile 300\n")
    if version == 2:
        (folder / names.peak).chmod(0o444)
    group = cgroup.of_process(7, root, proc)
    assert group is not None
    assert group.read() == (4096, 200, 300)
    if version == 1 or os.geteuid() != 0:  # root may write anywhere; then the reset is what is read
        assert group.read_peak() == 8192
    group.close()


def test_the_root_group_has_no_counters(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text("0::/\n")
    assert cgroup.of_process(7, tmp_path / "none", tmp_path) is None
