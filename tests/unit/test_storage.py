"""The run file: what is written is read, also while it grows; damage, newer and foreign files."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from memgauge.errors import FileFormatError, UsageError
from memgauge.storage import PeakRow, RunFile, RunWriter

HEADER = {"command": ["true"], "interval_ns": 10**8}


def write(path: Path, ticks: int = 2000, *, close: bool = True) -> RunWriter:
    writer = RunWriter(path, HEADER)
    process = writer.add_process(
        7, parent=None, name="job", command="job --x", started_us=0, seen_us=1, found="given"
    )
    lane = writer.lane("fast")
    column = lane.column(writer.add_series("fast", "rss_bytes", "/proc/PID/statm", process=process))
    for tick in range(ticks):
        column.append(tick * 4096)
        lane.times_us.append(tick * 100_000)
        if tick % 9 == 0:
            writer.flush()
    writer.add_mark(5, 7, "begin", "epoch", "1", {"a": 1})
    writer.set_peak(PeakRow("rss_bytes", 10, "exact", "VmHWM", "", process, None, None))
    writer.set_peak(PeakRow("rss_bytes", 20, "exact", "VmHWM", "", process, None, None))
    writer.add_note(9, "gpu", "no GPU", "buy one")
    if close:
        writer.close()
    return writer


def values(run: RunFile) -> list[int]:
    return [v for _, chunk in run.chunks("fast") for column in chunk.columns for v in column.values]


def test_everything_that_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a.mg")
    assert os.listdir(tmp_path) == ["a.mg"]  # one file remains
    with RunFile(tmp_path / "a.mg") as run:
        assert run.header["command"] == ["true"]
        assert values(run) == [4096 * tick for tick in range(2000)]
        assert [t for _, c in run.chunks("fast") for t in c.times_us] == [10**5 * t for t in range(2000)]
        assert (run.processes[0].pid, run.processes[0].command) == (7, "job --x")
        assert run.marks[0].facts == {"a": 1}
        assert [p.bytes for p in run.peaks] == [20]
        assert run.notes[0].remedy == "buy one"
        assert run.damage == []


def test_it_is_readable_while_it_grows(tmp_path: Path) -> None:
    writer = write(tmp_path / "a.mg", 100, close=False)
    writer.flush()
    with RunFile(tmp_path / "a.mg") as run:
        assert len(values(run)) == 100
        lane = writer.lane("fast")
        (entry,) = lane.open.values()
        entry[1].append(1)
        lane.times_us.append(10**9)
        writer.flush()
        assert len(values(run)) == 101
    writer.close()


def test_a_span_reads_only_its_chunks(tmp_path: Path) -> None:
    write(tmp_path / "a.mg")
    with RunFile(tmp_path / "a.mg") as run:
        found = [t for _, c in run.chunks("fast", 60_000_000, 61_000_000) for t in c.times_us]
    assert min(found) <= 60_000_000
    assert max(found) >= 61_000_000
    assert len(found) < 1100


def test_a_file_that_exists_is_kept_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    write(path)
    with pytest.raises(UsageError, match=r"a\.mg exists already.*--overwrite; overwrite=True in Python"):
        RunWriter(path, HEADER)
    RunWriter(path, HEADER, replace=True).close()
    other = tmp_path / "thesis.txt"
    other.write_text("years of work")
    with pytest.raises(UsageError, match="no run file"):
        RunWriter(other, HEADER, replace=True)
    assert other.read_text() == "years of work"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the folder .*nowhere does not exist"):
        RunWriter(tmp_path / "nowhere" / "a.mg", HEADER)


def test_a_cut_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    write(path, 30_000)
    whole = path.read_bytes()
    read = []
    for share in (0.5, 0.8, 0.95):
        path.write_bytes(whole[: int(len(whole) * share)])
        try:
            with RunFile(path) as run:
                read.append(len(values(run)))
                assert run.damage
        except FileFormatError as error:
            assert "damaged" in str(error)  # the catalogue itself was cut off
    assert max(read, default=0) > 10_000


def test_scribbles_cost_what_they_hit_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    write(path, 30_000)
    data = bytearray(path.read_bytes())
    pages = len(data) // 4096
    for page in range(pages // 2, pages, 3):
        data[page * 4096 : page * 4096 + 200] = os.urandom(200)
    path.write_bytes(data)
    with RunFile(path) as run:
        found = values(run)
        assert run.damage
        assert 1000 < len(found) < 30_000
        assert set(found) <= {4096 * tick for tick in range(30_000)}


@pytest.mark.parametrize("content", [b"", b"hello", b"SQLite format 3\0" + b"\xff" * 4096])
def test_what_is_no_run_file_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.mg"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"a\.mg"):
        RunFile(path)


def test_another_programs_database_is_no_run_file(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE trials (id)")
    db.close()
    with pytest.raises(FileFormatError, match=r"SQLite file, but no run file"):
        RunFile(path)


def test_a_newer_version_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    write(path)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(FileFormatError, match=r"newer memgauge.*pip install --upgrade"):
        RunFile(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        RunFile(tmp_path / "none.mg")


def test_text_that_is_no_unicode_is_kept_visibly(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "a.mg", HEADER)
    writer.add_note(0, "x", "a\udcff<b>\x1b[31m", "")
    writer.close()
    with RunFile(tmp_path / "a.mg") as run:
        assert run.notes[0].text == "a\\udcff<b>\x1b[31m"
