"""Reading a recording: show, export, watch, the page. The recordings are real, or written by the sampler's writer."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import html
import io
import itertools
import json
import os
import re
import resource
import shlex
import shutil
import sqlite3
import stat
import struct
import subprocess
import sys
import termios
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import MIB, Job, memgauge, ticks, until, values

from memgauge.cli import main
from memgauge.explain.bands import bands
from memgauge.explain.recorded_account import account_of
from memgauge.explain.recording import summarise
from memgauge.report.figures import process_stack, timeline
from memgauge.report.json import to_json
from memgauge.report.live import Live
from memgauge.report.panels import RunCurves, device_panels, memory_panel
from memgauge.storage import MISSING, Mark, PeakRow, RunFile, RunWriter
from memgauge.units import format_bytes

PHASES = """
import memgauge
for e in range(2):
    memgauge.mark("epoch", e)
    with memgauge.phase("train", e): x = bytearray(50 << 20); time.sleep(0.15); del x
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "run.mg"
    job = Job(PHASES, path, "-i", "10ms")
    code, _, err = job.end()
    assert code == 0, err
    assert "largest process" in err
    return path


def run(*arguments: str) -> str:
    return subprocess.run(memgauge(*arguments), capture_output=True, text=True, check=True).stdout


def test_show_prints_text_and_one_json_document(recording: Path) -> None:
    text = run("show", str(recording))
    assert "exit code 0" in text
    assert "Mahendran" in text
    rows = [line.split()[0] for line in text[text.index("train ") :].splitlines()[:3]]
    assert rows == ["train", "0", "1"]  # each value has its own peak
    said = json.loads(run("show", str(recording), "--json"))
    assert said["schema"] == "memgauge.recording/1"
    assert [(p["name"], p["count"], p["peak_kind"]) for p in said["phases"]] == [("train", 2, "exact")]
    train = said["phases"][0]
    assert [span["value"] for span in train["each"]] == ["0", "1"]
    assert max(span["peak_bytes"] for span in train["each"]) == train["peak_bytes"]
    assert said["average_used_bytes"] > 0


def test_every_value_is_exported_once(recording: Path, tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run("export", str(recording), "-f", "csv"))))
    lines = [json.loads(line) for line in run("export", str(recording), "-f", "jsonl").splitlines()]
    with RunFile(recording) as file:
        rss = [v for _, c in file.chunks("fast") for col in c.columns for v in col.values if v >= 0]
        marks, began = len(file.marks), file.header["started_unix_ns"]
    assert {line["time_unix_ns"] - line["time_ns"] for line in lines} == {began}  # values and marks
    fast = [int(r["value"]) for r in rows if r["lane"] == "fast"]
    assert sorted(fast) == sorted(rss)
    assert len(lines) == len(rows) + marks
    pq = pytest.importorskip("pyarrow.parquet")
    run("export", str(recording), "-f", "parquet", "-o", str(tmp_path / "a.parquet"))
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.num_rows == len(rows)
    assert table.column("value").to_pylist() == [int(r["value"]) for r in rows]


@pytest.mark.parametrize("by_link", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        *(
            ["export", "FILE", "-f", kind, "-o"]
            for kind in ("csv", "jsonl", "parquet", "perfetto", "prometheus")
        ),
        ["report", "FILE", "-o"],
        ["estimate", "zoo:mlp", "--out"],
        ["estimate", "zoo:mlp", "--html"],
        ["fit", "zoo:mlp", "--device", "A100-40GB", "--out"],
        ["measure", "zoo:mlp", "--out"],
        ["measure", "zoo:mlp", "--record"],
        ["reproduce", "--write"],
    ],
    ids=" ".join,
)
def test_no_output_is_written_over_a_recording(
    command: list[str],
    by_link: bool,
    recording: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, out = tmp_path / "kept.mg", tmp_path / "kept.mg"
    shutil.copy(recording, file)
    if by_link:
        out = tmp_path / "link"
        out.symlink_to(file)
    assert main([*(str(file) if word == "FILE" else word for word in command), str(out)]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"{out} is a recording, so it is not overwritten; choose another name" in said
    assert file.read_bytes() == recording.read_bytes()


def test_no_output_is_written_over_a_ledger(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = tmp_path / "ledger.db"
    with contextlib.closing(sqlite3.connect(ledger)) as database:
        database.execute("CREATE TABLE trials (number INTEGER)")
    before = ledger.read_bytes()
    assert main(["export", str(recording), "-o", str(ledger)]) == 2
    assert "such as a ledger" in capsys.readouterr().err
    assert ledger.read_bytes() == before


@pytest.mark.parametrize(
    "command",
    [
        *(
            ["export", "FILE", "-f", kind, "-o"]
            for kind in ("csv", "jsonl", "parquet", "perfetto", "prometheus")
        ),
        ["report", "FILE", "-o"],
        ["estimate", "zoo:mlp", "--out"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_written_whole_leaves_the_old_file(
    recording: Path, tmp_path: Path, command: list[str]
) -> None:
    out = tmp_path / "old"
    out.write_text("precious")
    done = subprocess.run(
        memgauge(*(str(recording) if word == "FILE" else word for word in command), str(out)),
        capture_output=True,
        text=True,
        check=False,
        # As on a full disk.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512)),
    )
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert out.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_file_that_is_replaced_keeps_its_permissions_and_links(recording: Path, tmp_path: Path) -> None:
    export = ["export", str(recording), "-f", "prometheus", "-o"]
    old, link, other = tmp_path / "old", tmp_path / "link", tmp_path / "other"
    old.write_text("old")
    old.chmod(0o640)
    link.symlink_to(old)
    assert main([*export, str(link)]) == 0
    assert link.is_symlink()
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert old.read_text().startswith("# HELP")
    other.write_text("old")
    (tmp_path / "same").hardlink_to(other)
    assert main([*export, str(tmp_path / "same")]) == 0
    assert other.read_text() == old.read_text()
    assert main([*export, str(tmp_path / "new")]) == 0
    plain = tmp_path / "plain"
    plain.touch()
    assert (tmp_path / "new").stat().st_mode == plain.stat().st_mode
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.parametrize("kind", ["pipe", "file", "named"])
def test_what_is_written_to_standard_output_or_a_pipe_arrives_there(
    recording: Path, tmp_path: Path, kind: str
) -> None:
    named = tmp_path / "named"
    os.mkfifo(named)
    line = shlex.join(memgauge("export", str(recording), "-f", "prometheus", "-o"))
    ways = {
        "pipe": f"{line} /dev/stdout | cat",
        "file": f"{{ {line} /dev/stdout; echo last; }} >>{tmp_path}/out; cat {tmp_path}/out",
        "named": f"cat {named} & {line} {named}; wait",
    }
    done = subprocess.run(ways[kind], shell=True, capture_output=True, text=True, check=True)
    assert "memgauge_rss_bytes{" in done.stdout
    assert done.stdout.endswith("\nlast\n") == (
        kind == "file"
    )  # the shell's file is still the one of that name
    assert named.is_fifo()


def test_a_span_is_exported_alone(recording: Path) -> None:
    with RunFile(recording) as kept:
        begin = kept.last_us() // 2000  # ms: the middle of the run, wherever a busy machine put its samples
    span = f"{begin}ms..{2 * begin}ms"
    rows = list(csv.DictReader(io.StringIO(run("export", str(recording), "--range", span))))
    assert rows
    assert {begin * 10**6 <= int(r["time_ns"]) <= 2 * begin * 10**6 for r in rows} == {True}


def test_a_trace_for_perfetto_has_counters_and_phases(recording: Path) -> None:
    events = json.loads(run("export", str(recording), "-f", "perfetto"))["traceEvents"]
    assert {"C", "X", "M", "i"} <= {e["ph"] for e in events}
    assert [e["name"] for e in events if e["ph"] == "X"] == ["train", "train"]


def test_phases_of_a_trace_for_perfetto_have_their_peaks(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    writer = RunWriter(path, {"interval_ns": 10**6})
    process = writer.add_process(7, parent=None, name="a", command="a", started_us=0, seen_us=0, found="x")
    column = writer.lane("fast").column(writer.add_series("fast", "rss_bytes", "x", process=process))
    column.extend(mib * MIB for mib in range(8))
    writer.lane("fast").times_us.extend(range(0, 8000, 1000))
    # Whose process was not seen has none.
    for span, (pid, begin_us, end_us) in enumerate([(7, 0, 2500), (8, 1000, 2000), (7, 3000, 5500)]):
        begin = writer.add_mark(begin_us, pid, "begin", "train", str(span), {"span": span})
        writer.add_mark(end_us, pid, "end", "train", str(span), {"span": span})
        if not span:
            writer.set_peak(PeakRow("rss_bytes", 9 * MIB, "exact", "VmHWM", "", process, None, begin))
    writer.close()
    for span, begin_us in ((), 0), (("--range", "4ms..7ms"), 4000):
        events = json.loads(run("export", str(path), "-f", "perfetto", *span))["traceEvents"]
        found = {e["args"].pop("value"): e["args"] for e in events if e["ph"] == "X"}
        last = {"peak_bytes": 5 * MIB, "peak_kind": "lower bound", **({"whole_us": 2500} if begin_us else {})}
        first = {"0": {"peak_bytes": 9 * MIB, "peak_kind": "exact"}, "1": {}}
        assert found == {**({} if begin_us else first), "2": last}


def test_names_of_phases_that_overlap_do_not_lie_over_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    writer = RunWriter(path, {"duration_us": 10_000_000})
    for number in range(5):  # as threads have them open
        writer.add_mark(100_000 * number, 7, "begin", f"worker {number}", None, {"span": number})
        writer.add_mark(9_000_000 + number, 7, "end", f"worker {number}", None, {"span": number})
    writer.close()
    with RunFile(path) as run:
        figure = timeline(RunCurves(run))
    rows = [a.yshift for a in figure.layout.annotations if a.text.startswith("worker")]
    assert len(rows) == len(set(rows)) == 3
    assert max(rows) + 12 <= figure.layout.margin.t
    assert min(rows) >= max(shape.y1 for shape in figure.layout.shapes if shape.ysizemode == "pixel")


def _written(path: Path, said: list[tuple[int, str, str, str | None, int | None]]) -> Path:
    """Write a recording of 10 s with marks: time, kind, name, value, number of the phase."""
    writer = RunWriter(path, {"duration_us": 10_000_000})
    for time_us, kind, name, value, span in sorted(said, key=lambda m: m[0]):
        writer.add_mark(time_us, 7, kind, name, value, {} if span is None else {"span": span})
    writer.close()
    return path


def _phase(
    number: int, name: str, value: str | None, begin_us: int, end_us: int
) -> list[tuple[int, str, str, str | None, int | None]]:
    return [(begin_us, "begin", name, value, number), (end_us, "end", name, value, number)]


def test_each_colour_of_phases_has_its_name_beside_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    said = []
    for number in range(60):
        begin = number * 160_000
        said += _phase(2 * number, "train", str(number), begin, begin + 140_000)
        said += _phase(2 * number + 1, "<b>validate</b>", None, begin + 140_000, begin + 160_000)
    with RunFile(_written(tmp_path / "a.mg", said)) as run:
        figure = timeline(RunCurves(run))
    named = {t.name: t.marker.color for t in figure.data if t.legendgroup == "phases"}
    assert list(named) == ["train", "&lt;b&gt;validate&lt;/b&gt;"]
    assert len(set(named.values())) == 2
    rectangles = [shape for shape in figure.layout.shapes if shape.type == "rect"]
    bands = [shape for shape in rectangles if shape.ysizemode != "pixel"]
    assert len(bands) == 120
    narrow = [shape for shape in bands if shape.line.width]  # two pixels are seen only with an outline
    assert len(narrow) == 60
    ink = named["&lt;b&gt;validate&lt;/b&gt;"].rpartition(",")[0]
    assert {shape.line.color.rpartition(",")[0] for shape in narrow} == {ink}
    # Bands that overlap mix their colours; above them each name has a row of bars in just the legend's.
    bars = [shape for shape in rectangles if shape.ysizemode == "pixel"]
    assert len(bars) == 120
    rows = {shape.fillcolor: (shape.y0, shape.y1) for shape in bars}
    assert list(rows) == list(named.values())
    assert {(shape.fillcolor, shape.y0, shape.y1) for shape in bars} == {(k, *v) for k, v in rows.items()}
    first, second = rows.values()
    assert first[0] > second[1] > second[0] > 13  # above the title of the curves


def test_the_network_is_said_to_be_without_loopback(tmp_path: Path) -> None:
    """Ranks that talk to each other on one machine would be looked for in vain."""
    pytest.importorskip("plotly")
    writer = RunWriter(tmp_path / "a.mg", {"duration_us": 3_000_000})
    lane = writer.lane("medium")
    for way in ("received", "sent"):
        lane.column(writer.add_series("medium", f"network_{way}_bytes", "x")).extend([0, MIB, 3 * MIB])
    lane.times_us.extend([0, 1_000_000, 2_000_000])
    writer.close()
    shown = " ".join(run("show", str(tmp_path / "a.mg")).split())
    assert "network, received and sent 3.00 MiB, 3.00 MiB of the whole machine, without loopback" in shown
    with RunFile(tmp_path / "a.mg") as file:
        figure = timeline(RunCurves(file))
    assert "network, whole machine, without loopback" in [a.text for a in figure.layout.annotations]


def _ranked(path: Path, ranks: int, names: int, apart_us: int = 0) -> Path:
    """Write a recording of processes each of which has phases of so many names, at once or one after the other."""
    writer = RunWriter(path, {"duration_us": 10_000_000})
    said = []
    for rank in range(ranks):
        script = f"python <{rank}.py"
        pid = 100 + rank
        writer.add_process(
            pid, parent=None, name="python", command=script, started_us=0, seen_us=0, found="x"
        )
        for number in range(names):
            begin = rank * apart_us + 10 * rank + 400_000 * number
            said += [(begin, pid, "begin", number), (begin + 390_000, pid, "end", number)]
    for time_us, pid, kind, number in sorted(said):
        writer.add_mark(time_us, pid, kind, f"phase {number}", "0", {"span": number})
    writer.close()
    return path


@pytest.mark.parametrize(
    ("ranks", "names", "beside"),
    [
        (1, 2, []),
        (2, 2, ["100 &lt;0.py", "101 &lt;1.py"]),
        (3, 20, ["100 &lt;0.py", "2 processes"]),  # there are as many rows as two have
        (40, 1, [*(f"{100 + n} &lt;{n}.py" for n in range(7)), "33 processes"]),
    ],
)
def test_phases_of_processes_that_overlap_have_bars_of_their_own(
    tmp_path: Path, ranks: int, names: int, beside: list[str]
) -> None:
    pytest.importorskip("plotly")
    with RunFile(_ranked(tmp_path / "a.mg", ranks, names)) as run:
        figure = timeline(RunCurves(run))
    notes = [a for a in figure.layout.annotations if a.hovertext]
    assert [a.text for a in notes] == beside
    bars = [shape for shape in figure.layout.shapes if shape.ysizemode == "pixel"]
    assert len(bars) <= 150
    if ranks <= 2:  # the second began 10 µs after the first
        first, second = ([bar.y0 for bar in bars if round(bar.x0 * 1e5) % 10 == rank] for rank in (0, 1))
        assert len(first) == len(set(first)) == names
        assert len(second) == len(set(second)) == names * (ranks - 1)
        assert not second or min(first) > max(second)
    for above, below in itertools.pairwise(notes):
        assert above.yshift - below.yshift >= 12  # their names do not lie over each other
    titles = [a.text for a in figure.layout.annotations if a.text.startswith("phase ")]
    assert len(titles) == len(set(titles))
    assert figure.layout.margin.t >= max(bar.y1 for bar in bars)
    if ranks == 40:
        assert notes[-1].hovertext.startswith("phases of 107 &lt;7.py, 108 &lt;8.py, ")


def test_phases_of_processes_one_after_the_other_share_their_bars(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    with RunFile(_ranked(tmp_path / "a.mg", 4, 2, apart_us=2_000_000)) as run:
        figure = timeline(RunCurves(run))
    bars = [shape for shape in figure.layout.shapes if shape.ysizemode == "pixel"]
    assert len(bars) == 8
    assert len({bar.y0 for bar in bars}) == 2
    assert not [a for a in figure.layout.annotations if a.hovertext]


def test_many_values_of_a_phase_are_folded_in_the_page(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    said = []
    for number in range(13):
        said += _phase(number, "<i>train", str(number), 10_000 * number, 10_000 * number + 5000)
    for number in range(12):
        begin = 500_000 + 10_000 * number
        said += _phase(100 + number, "test", f"fold {number}", begin, begin + 5000)
    path = _written(tmp_path / "a.mg", said)
    run("report", str(path), "-o", str(tmp_path / "a.html"))
    _, _, text = (tmp_path / "a.html").read_text().partition("<h2>Phases</h2>")
    text = text.partition("<h2>")[0]
    whole, _, folded = text.partition("<details>")
    assert folded.startswith("<summary>&lt;i&gt;train: each of 13</summary><table>")
    first = r'<tr><td class="long">(.*?)</td>'
    assert re.findall(first, whole) == ["&lt;i&gt;train", "test", *(f"· fold {n}" for n in range(12))]
    assert re.findall(first, folded) == [str(n) for n in range(13)]
    assert text.count("<details>") == 1


def test_too_many_phases_are_drawn_together_and_no_name_vanishes_in_silence(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    said = []
    for number in range(1000):
        said += _phase(2 * number, "train", None, 9000 * number, 9000 * number + 8000)
        said += _phase(2 * number + 1, "validate", None, 9000 * number + 8000, 9000 * number + 9000)
    for number in range(100):
        said += _phase(5000 + number, f"odd {number}", None, 9_000_000 + number * 10, 9_000_009 + number * 10)
    with RunFile(_written(tmp_path / "a.mg", said)) as run:
        figure = timeline(RunCurves(run))
    bands = [s for s in figure.layout.shapes if s.type == "rect" and s.ysizemode != "pixel"]
    names = [t.name for t in figure.data if t.legendgroup == "phases"]
    assert len(names) == 13
    assert len({t.marker.color for t in figure.data if t.legendgroup == "phases"}) == 13
    assert [re.sub("[0-9,]+$", "N", name) for name in names[:2]] == [
        "train, 1,000 drawn as N",
        "validate, 1,000 drawn as N",
    ]
    drawn = [int(name.rpartition(" ")[2]) for name in names[:2]]
    assert min(drawn) > 20
    assert len(bands) == sum(drawn) + 58 <= 150
    assert names[-1] == "90 more names, 42 not drawn"
    assert figure.layout.height >= 19 * len(names)


def test_names_of_marks_stand_below_the_curves_and_those_without_room_under_the_pointer(
    tmp_path: Path,
) -> None:
    pytest.importorskip("plotly")
    said = [(5_000_000, "mark", f"saved {n}", None, None) for n in range(100)]
    said += [
        (1_000_000, "mark", "n" * 50_000, None, None),
        (9_990_000, "mark", "the <i>last</i>", None, None),
    ]
    with RunFile(_written(tmp_path / "a.mg", said)) as run:
        figure = timeline(RunCurves(run))
    names = [a for a in figure.layout.annotations if a.yref == "y2"]
    assert 3 <= len(names) <= 2 + 4
    assert max(len(html.unescape(a.text)) for a in names) <= 24
    assert len({(a.x, a.y) for a in names}) == len(names)
    late = next(a for a in names if a.text.startswith("the"))
    assert (late.xanchor, late.text) == ("right", "the &lt;i&gt;last&lt;/i&gt;")
    strip = next(trace for trace in figure.data if trace.hovertext is not None)
    assert strip.yaxis == "y2"
    assert [text.count("<br>") for text in strip.hovertext] == [0, 8, 0]
    assert strip.hovertext[1].endswith("<br>and 92 more")
    lines = [shape for shape in figure.layout.shapes if shape.type == "line"]
    assert [line.x0 for line in sorted(lines, key=lambda line: line.x0)] == [1, 5, 9.99]
    assert {line.y0 for line in lines} == {figure.layout.yaxis2.domain[1]}


def test_lines_of_many_marks_let_the_curves_be_seen(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    said = [(2_000_000 + 500 * n, "mark", "step", str(n), None) for n in range(2000)]
    said += [(2_500_000, "mark", "epoch", "1", None)]
    said += [(2_000_000 + 200_000 * n, "mark", "save", None, None) for n in range(20, 30)]
    with RunFile(_written(tmp_path / "a.mg", said)) as run:
        figure = timeline(RunCurves(run))
    lines = sorted(shape.x0 for shape in figure.layout.shapes if shape.type == "line")
    assert {2.5, 6, 6.2, 7.8} <= set(lines)  # the rare ones first
    assert min(b - a for a, b in itertools.pairwise(lines)) >= 10 / 120
    assert f"marks, 2,011 drawn as {len(lines)} lines" in [a.text for a in figure.layout.annotations]


@pytest.mark.parametrize("width", [700, 1200])
def test_names_of_marks_do_not_lie_over_each_other_in_a_window(tmp_path: Path, width: int) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs a browser")
    page = tmp_path / "a.html"
    said = [(100_000 * n, "mark", "w", str(1_000_000 + 7 * n), None) for n in range(100)]
    run("report", str(_written(tmp_path / "a.mg", said)), "-o", str(page))
    told = """setInterval(() => {
        const names = [...document.querySelectorAll("g.annotation text")].filter(
            name => name.textContent.startsWith("w ") && name.parentElement.closest("[data-index]").style.visibility !== "hidden");
        if (!names.length) return;
        const at = names.map(name => name.getBoundingClientRect());
        const over = at.flatMap((a, i) => at.slice(i + 1).filter(
            b => a.left < b.right && b.left < a.right && Math.abs(a.top - b.top) < 8));
        document.title = `${names.length} ${over.length} ${names[0].textContent}`;
    }, 100)"""
    page.write_text(page.read_text() + f"<script>{told}</script>")
    options = ["--headless", "--no-sandbox", f"--window-size={width},900", "--virtual-time-budget=5000"]
    command = [browser, *options, "--dump-dom", page.as_uri()]
    dumped = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"<title>(\d+) (\d+) (.*?)</title>", dumped.stdout)
    assert found is not None
    assert int(found[1]) > 20
    assert (found[2], found[3]) == ("0", "w 1000000")


def test_prometheus_text_has_types_labels_and_peaks(recording: Path) -> None:
    text = run("export", str(recording), "-f", "prometheus")
    assert re.search(r'^memgauge_rss_bytes\{pid="\d+",process="python[^"]*"\} \d+$', text, re.M)
    assert re.search(r'^memgauge_peak_bytes\{of="largest process, resident",kind="exact"\} \d+$', text, re.M)
    for name in ("cpu_ns", "minor_faults", "major_faults"):
        assert f"# TYPE memgauge_{name}_total counter" in text
        assert f"\nmemgauge_{name}_total{{" in text
    assert "# TYPE memgauge_wall_clock_ns gauge\nmemgauge_wall_clock_ns " in text


@pytest.mark.parametrize("span", ["10..5", "x..y", "5s", ".."])
def test_a_span_that_is_none_is_refused(
    recording: Path, span: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(recording), "--range", span]) == 2
    assert "memgauge:" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["export", "report"])
def test_a_span_behind_the_end_is_refused(
    recording: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([kind, str(recording), "--range", "1h..", "-o", str(tmp_path / "out")]) == 2
    assert "behind the last sample" in capsys.readouterr().err


def test_a_page_loads_nothing_and_shows_what_show_says(recording: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    page = tmp_path / "a.html"
    assert main(["report", str(recording), str(recording), "-o", str(page)]) == 0
    text = page.read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)
    assert text.count('<div class="figure"') >= 3
    with RunFile(recording) as file:
        highest = summarise(file).peaks[0].bytes
    assert f"{highest / 2**20:.2f} MiB"[:4] in text
    assert page.stat().st_size < 8_000_000


def test_the_picture_by_process_has_those_of_the_span_each_in_its_own_colour(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    writer = RunWriter(tmp_path / "a.mg", {"interval_ns": 10**6, "duration_us": 20_000})
    card = writer.add_device("nvidia", "T4", "GPU-1", None, {})
    lane = writer.lane("fast")
    for tick in range(20):
        if tick in (0, 10):  # two live to the tenth tick, fifteen from then on
            columns = []
            for series in range(1, 5) if tick else ():
                lane.close_column(series)
            for number in range(15 if tick else 2):
                pid = 100 * (tick > 0) + number
                process = writer.add_process(
                    pid, parent=None, name="worker", command="worker", started_us=0, seen_us=0, found="x"
                )
                for metric, device in (("rss_bytes", None), ("gpu_process_bytes", card)):
                    of = {"process": process, "device": device}
                    columns.append(lane.column(writer.add_series("fast", metric, "x", **of)))
        lane.times_us.append(tick * 1000)
        for column in columns:
            column.append(MIB)
    writer.close()
    with RunFile(tmp_path / "a.mg") as run:
        data = RunCurves(run, 0, 8000)
        whole, early = process_stack(RunCurves(run)), process_stack(data)
        on_card = device_panels(data)[0].curves
    assert [name for name, _, _ in on_card] == ["T4, process 0", "T4, process 1"]
    assert [t.name for t in early.data] == ["0 worker", "1 worker"]
    assert len({t.name for t in whole.data}) == len({t.line.color for t in whole.data}) == 13
    assert whole.data[-1].name == "5 more"


def test_the_picture_by_process_says_that_shared_pages_are_in_each(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    path, page = tmp_path / "a.mg", tmp_path / "a.html"
    job = Job("if os.fork() == 0:\n  say(); wait(); os._exit(0)\nos.wait()", path, "-i", "10ms")
    job.heard()
    until(path, lambda run: len({s.process for s in run.series if s.metric == "rss_bytes"}) > 1, job.process)
    job.go()
    job.end()
    assert main(["report", str(path), "-o", str(page)]) == 0
    _, found, rest = page.read_text().partition("<h2>By process</h2>")
    assert found
    assert "shared pages are counted in each process" in rest[:200]
    figures = re.findall(r'<script type="application/json">(.*?)</script>', page.read_text())
    whole, stack = (json.loads(content)["layout"] for content in figures)
    assert stack["xaxis"]["range"] == whole["xaxis"]["range"]  # one below the other, at the same place
    assert stack["xaxis"]["range"][0] == 0
    assert [stack["margin"][side] for side in "lr"] == [whole["margin"][side] for side in "lr"]
    assert stack["margin"]["r"] > 150  # wider than either legend, or the wider one would push its axis


@settings(deadline=None)  # the first imports numpy
@given(st.lists(st.one_of(st.integers(0, 10**6), st.none()), min_size=1, max_size=400), st.integers(1, 30))
def test_thinning_keeps_every_buckets_lowest_and_highest(points: list[int | None], buckets: int) -> None:
    np = pytest.importorskip("numpy")
    from memgauge.report.thinning import thin

    times = np.arange(len(points), dtype=np.int64) * 1000
    values = np.array([np.nan if p is None else p for p in points], float)
    kept_times, kept = thin(times, values, buckets)
    assert len(kept) <= max(3 * buckets + 2, 2 * buckets)
    assert set(kept_times) <= set(times)
    known = [p for p in points if p is not None]
    if known:
        assert np.nanmax(kept) == max(known)
        assert np.nanmin(kept) == min(known)
    assert np.isnan(kept).any() == (None in points)


@settings(deadline=None)  # the first imports numpy
@given(st.lists(st.one_of(st.integers(0, 9), st.none()), min_size=1, max_size=200), st.integers(1, 9))
def test_thinning_keeps_what_stands_behind_each_bucket(points: list[int | None], buckets: int) -> None:
    """The next reading may be many buckets later: another's value would be drawn up to it, or none."""
    np = pytest.importorskip("numpy")
    from memgauge.report.thinning import thin

    # Readings follow each other within a bucket, then there are none for long.
    times = np.array([10_000 * (place // 20) + place for place in range(len(points))], np.int64)
    values = np.array([np.nan if p is None else p for p in points], float)
    kept_times, _ = thin(times, values, buckets, stand=True)
    width = times[-1] / buckets
    before_pauses = times[:-1][np.diff(times) > width]
    assert set(before_pauses) <= set(kept_times)


def test_thinning_takes_seconds_to_the_last_of_them() -> None:
    np = pytest.importorskip("numpy")
    from memgauge.report.thinning import thin

    times = np.arange(3990) / 1000  # 3.99 s, whose last are less than a whole second
    kept, _ = thin(times, times, 40)
    assert np.diff(kept).max() <= 0.1


def test_phases_nest_and_what_never_ended_lasts_to_the_end() -> None:
    said = [
        (1, "begin", "a"),
        (2, "begin", "b"),
        (3, "end", "b"),
        (4, "begin", "c"),
        (5, "end", "x"),
        (6, "end", "a"),
    ]
    marks = [Mark(i, t, 7, kind, name, None, {}) for i, (t, kind, name) in enumerate(said)]
    found = [(b.name, b.begin_us, b.end_us, b.depth, b.is_finished) for b in bands(marks, 9)]
    assert found == [("a", 1, 6, 0, True), ("b", 2, 3, 1, True), ("c", 4, 9, 0, False)]


def test_watching_without_a_terminal_writes_lines_and_ends_with_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    job = Job("import memgauge\nmemgauge.phase('train', 1).__enter__()\nsay(); wait()", path, "-q")
    job.heard()
    until(path, lambda file: ticks(file) > 2 and file.marks, job.process)
    watcher = subprocess.Popen(
        memgauge("watch", str(path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert watcher.stdout is not None
    line = watcher.stdout.readline()
    job.go()
    assert job.end()[0] == 0
    _rest, err = watcher.communicate()
    assert "resident" in line
    assert "train 1" in line
    assert "exit code 0" in err


def test_phases_that_overlap_are_on_tracks_of_their_own_in_a_trace_for_perfetto(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    writer = RunWriter(path, {})
    times = {"outer": (0, 100), "inner": (10, 20), "across": (50, 150), "after": (200, 210)}
    spans = {name: number for number, name in enumerate(times)}
    said = sorted(
        (t, kind, n) for n, ends in times.items() for t, kind in zip(ends, ("begin", "end"), strict=True)
    )
    for time_us, kind, name in said:
        writer.add_mark(time_us, 7, kind, name, None, {"span": spans[name]})
    writer.close()
    out = tmp_path / "a.json"
    assert main(["export", str(path), "-f", "perfetto", "-o", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(rows.values()) == ["overlapping phases 1"]
    assert min(rows) > 2**22  # no process has that number
    found = {e["name"]: (rows.get(e["tid"], e["tid"]), e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert found == {
        "outer": (7, 0, 100),
        "inner": (7, 10, 10),
        "across": ("overlapping phases 1", 50, 100),
        "after": (7, 200, 10),
    }


def test_a_span_has_the_phases_that_overlap_it_whole_or_cut_to_it(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    writer = RunWriter(path, {"duration_us": 9_000_000})
    seconds = {
        "before": (0, 1),
        "into": (0, 3),
        "across": (1, 7),
        "out": (4, 8),
        "after": (6, 8),
        "open": (1, 0),
    }
    spans = {name: number for number, name in enumerate(seconds)}
    told = [(b, "begin", n) for n, (b, _) in seconds.items()] + [
        (e, "end", n) for n, (_, e) in seconds.items() if e
    ]
    for second, kind, name in sorted(told):
        writer.add_mark(second * 10**6, 7, kind, name, None, {"span": spans[name]})
    column = writer.lane("fast").column(writer.add_series("fast", "system_used_bytes", "x"))
    column.extend([1, 1])
    writer.lane("fast").times_us.extend([0, 9_000_000])
    writer.close()
    events = json.loads(run("export", str(path), "-f", "perfetto", "--range", "2s..5s"))["traceEvents"]
    found = {
        e["name"]: (e["ts"] // 10**6, e["dur"] // 10**6, e["args"].get("whole_us"))
        for e in events
        if e["ph"] == "X"
    }
    assert found == {
        "into": (2, 1, 3_000_000),
        "across": (2, 3, 6_000_000),
        "out": (4, 1, 4_000_000),
        "open": (2, 3, 8_000_000),
    }
    rows = [
        json.loads(line) for line in run("export", str(path), "-f", "jsonl", "--range", "2s..5s").splitlines()
    ]
    marks = sorted((r["name"], r["time_ns"] // 10**9) for r in rows if "mark" in r)
    assert marks == sorted((n, t) for n in found for t in seconds[n][: 1 if n == "open" else 2])
    with RunFile(path) as kept:
        figure = timeline(RunCurves(kept, 2_000_000, 5_000_000))
    titles = {a.text: a.x for a in figure.layout.annotations if a.text in seconds}
    assert {name: titles[name] for name in ("into", "across", "open")} == dict.fromkeys(
        ("into", "across", "open"), 2
    )


def test_the_phases_that_are_open_now_are_shown_whichever_ended_first(tmp_path: Path) -> None:
    code = """
import memgauge
outer, inner, other = (memgauge.phase(n, v) for n, v in (("epoch", 3), ("step", None), ("load", None)))
for each in outer, other, inner: each.__enter__()
other.__exit__(None, None, None)
say(); wait()
inner.__exit__(None, None, None); outer.__exit__(None, None, None)
"""
    job = Job(code, tmp_path / "a.mg", "-q")
    job.heard()

    def phase(run: RunFile) -> str:
        live = Live(run)
        live.refresh()
        return live.phase if any(m.kind == "end" for m in run.marks) else ""

    assert until(job.path, phase, job.process) == "epoch 3 › step"
    job.go()
    assert job.end()[0] == 0


def test_a_phase_of_a_process_that_is_gone_is_not_open_now(tmp_path: Path) -> None:
    code = """
import memgauge
memgauge.phase("train").__enter__()
child = os.fork()
if child == 0:
    memgauge.phase("worker").__enter__()
    say(); wait()
    os._exit(0)
say(); os.waitpid(child, 0); wait()
"""
    job = Job(code, tmp_path / "a.mg", "-q", "-i", "20ms")
    shown: list[str] = []

    def phase(run: RunFile) -> str:
        live = Live(run)
        live.refresh()
        return live.phase

    for _ in range(2):
        job.heard()
    assert "worker" in until(job.path, lambda run: "worker" in phase(run) and phase(run), job.process)
    job.go()
    until(job.path, lambda run: any(p.gone_us is not None for p in run.processes), job.process)
    until(job.path, lambda run: shown.append(phase(run)) or "worker" not in shown[-1], job.process)
    assert shown[-1] == "train"
    job.go()
    assert job.end()[0] == 0


def test_live_without_a_terminal_leaves_the_commands_output_alone(tmp_path: Path) -> None:
    command = [
        *memgauge("monitor", "--live", "-q", "-o", str(tmp_path / "a.mg"), "--"),
        sys.executable,
        "-c",
        "print(5)",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "5\n"
    assert "resident" in done.stderr


@pytest.mark.parametrize(("lines", "first"), [(50, 42), (15, 7), (6, 4)])
def test_live_takes_the_last_lines_of_a_terminal_of_any_size(tmp_path: Path, lines: int, first: int) -> None:
    command = [*memgauge("monitor", "--live", "-q", "-o", str(tmp_path / "a.mg"), "--"), "sleep", "1"]
    outer, inner = os.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 100, 0, 0))
    job = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner)
    os.close(inner)
    said = b""
    with contextlib.suppress(OSError):  # the terminal's other end is closed: all have ended
        while piece := os.read(outer, 65536):
            said += piece
    os.close(outer)
    assert job.wait() == 0
    assert set(re.findall(rb"\x1b\[1;(\d+)r", said)) == {b"%d" % (first - 1)}  # the lines that scroll
    drawn = {int(line) for line in re.findall(rb"\x1b\[(\d+);1H", said)}
    assert drawn == set(range(first, lines + 1))


def test_an_estimate_is_kept_beside_and_set_against_the_recording(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
    from accounts import estimate

    from memgauge.report.json import to_json

    path, kept = tmp_path / "a.mg", tmp_path / "e.json"
    kept.write_text(to_json(estimate()))
    assert Job("pass", path, "--estimate", str(kept), "-q").end()[0] == 0
    assert main(["report", str(path), "-o", str(tmp_path / "a.html")]) == 0
    assert "Prediction" in (tmp_path / "a.html").read_text()


def test_an_estimate_within_a_run_file_or_a_pipe_is_not_taken_for_a_json_file(tmp_path: Path) -> None:
    predicted, path = tmp_path / "predicted.json", tmp_path / "a.mg"
    subprocess.run(memgauge("estimate", "zoo:mlp", "--out", str(predicted)), check=True, capture_output=True)
    record = [*memgauge("monitor", "-q", "--overwrite", "-o", str(path)), "--estimate"]
    subprocess.run([*record, str(predicted), "--", "true"], check=True)
    for name in (str(path), "/dev/stdin"):
        command = [*record, name, "--", "true"]
        done = subprocess.run(command, input=predicted.read_bytes(), capture_output=True, check=False)
        assert done.returncode == 2
        assert done.stderr.decode().startswith(f"memgauge: {name} is no JSON file; one is made by")


def test_a_gap_is_drawn_as_a_gap(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    from memgauge.report.curves import read_lane, with_gaps

    writer = RunWriter(tmp_path / "a.mg", {})
    lane = writer.lane("fast")
    column = lane.column(writer.add_series("fast", "rss_bytes", "x"))
    for tick in [*range(10), *range(100, 110)]:
        lane.times_us.append(tick * 1000)
        column.append(5)
    writer.close()
    with RunFile(tmp_path / "a.mg") as file:
        found = read_lane(file, "fast", None, None)
    curve = with_gaps(found.times_us, found.series[1])
    assert int(np.isnan(curve.values).sum()) == 1
    assert isinstance(column, array)


def test_between_rare_readings_of_pss_nothing_is_drawn(tmp_path: Path) -> None:
    """A line over the gap would lie above the RSS, which fell and rose again meanwhile."""
    np = pytest.importorskip("numpy")
    second = 1_000_000
    writer = RunWriter(tmp_path / "a.mg", {"lanes": {"slow": {"asked_ns": 10**9}}})
    process = writer.add_process(7, parent=None, name="a", command="a", started_us=0, seen_us=0, found="x")
    lane = writer.lane("slow")
    pss = lane.column(writer.add_series("slow", "pss_bytes", "x", process=process))
    for tick in range(41):
        lane.times_us.append(tick * second)
        # Read at 0, 1 and 2 s, then every 19 s: most of its own steps are short, or most are long.
        pss.append(50 * MIB if tick in (0, 1, 2, 21, 40) else MISSING)
    writer.close()
    for begin_us, times, gaps in ((None, [0, 1, 2, 21, 40], 2), (2 * second, [2, 21, 40], 2)):
        with RunFile(tmp_path / "a.mg") as file:
            (curve, style) = next(
                (c, s)
                for name, c, s in memory_panel(RunCurves(file, begin_us)).curves
                if name == "tree, sum of PSS"
            )
        is_gap = np.isnan(curve.values)
        assert curve.times[~is_gap].tolist() == times
        assert is_gap.sum() == gaps
        assert style["mode"] == "lines+markers"  # the reading at 21 s has a gap at either side


@pytest.mark.parametrize(
    ("read_at", "shown", "times", "values"),
    [
        ([0, 1, 3], (None, None), [0, 1, 3, 6], [0, 1, 3, 3]),
        # What was read before the span stands in it, and at its end.
        ([0, 1, 3], (1500, 2000), [1.5, 2], [1, 1]),
        ([0, 1, 3], (1000, 5000), [1, 3, 5], [1, 3, 3]),
        ([1, 3], (500, 2000), [1, 2], [1, 1]),
        # Not for longer than gaps are closed: a reading 19 s ago says nothing.
        ([0, 1, 20], (500, 15_000), [0.5, 1, 10.5], [0, 1, None]),
        ([0, 1, 20], (5000, 30_000), [10.5, 20], [None, 20]),
        ([0, 1, 20], (12_000, 15_000), [], []),
    ],
)
def test_a_reading_of_pss_stands_until_the_next_and_to_the_end_of_the_span(
    tmp_path: Path,
    read_at: list[int],
    shown: tuple[int | None, int | None],
    times: list[float],
    values: list[float | None],
) -> None:
    np = pytest.importorskip("numpy")
    pytest.importorskip("plotly")
    last = 30 if max(read_at) > 10 else 6
    header = {"lanes": {"slow": {"asked_ns": 10**9}}, "duration_us": last * 1_000_000}
    writer = RunWriter(tmp_path / "a.mg", header)
    process = writer.add_process(7, parent=None, name="a", command="a", started_us=0, seen_us=0, found="x")
    for lane, metric in (("fast", "rss_bytes"), ("slow", "pss_bytes")):
        column = writer.lane(lane).column(writer.add_series(lane, metric, "x", process=process))
        for second in range(last + 1):
            writer.lane(lane).times_us.append(second * 1_000_000)
            column.append(second * MIB if metric == "rss_bytes" or second in read_at else MISSING)
    writer.set_peak(PeakRow("largest_process_bytes", 40 * MIB, "exact", "VmHWM", "", process, None, None))
    writer.close()
    begin_us, end_us = (None if ms is None else ms * 1000 for ms in shown)
    with RunFile(tmp_path / "a.mg") as run:
        figure = timeline(RunCurves(run, begin_us, end_us))
    (level,) = [t for t in figure.data if t.name.startswith("largest process")]
    assert level.name == "largest process, resident<br>40.00 MiB (exact)"  # no text lies over the curves
    assert list(level.x) == [t / 1000 for t in (shown[0] or 0, shown[1] or 1000 * last)]
    assert not [a for a in figure.layout.annotations if "largest" in a.text]
    curves = [t for t in figure.data if t.name == "tree, sum of PSS"]
    if not times:
        assert not curves
        return
    (curve,) = curves
    assert curve.line.shape == "hv"
    assert curve.x.tolist() == times
    assert [None if np.isnan(v) else v / MIB for v in curve.y] == values
    is_read = [t in read_at for t in times]
    assert [size > 0 for size in curve.marker.size] == is_read  # a point where nothing was read is none


@pytest.mark.parametrize(
    ("rss", "read", "times", "values"),
    [
        # It fell below the first reading, and rose again: that one is out of date all the same.
        ([10, 10, 10, 4, 4, 9, 9], {0: 8, 5: 7}, [0, 2, 2.5, 5, 6], [8, 8, None, 7, 7]),
        # Nothing stands for so long anyway.
        ([10, 10, 10, 4, 4, 9, 9], {0: 8, 6: 7}, [0, 3, 6], [8, None, 7]),
        # To the end of the run nothing stands, and what is more from the first is a point.
        ([9, 3, 3, 9, 9, 3, 3], {0: 9, 1: 8, 3: 9}, [0, 1, 1, 3, 4, 4.5], [9, 8, None, 9, 9, None]),
        # What batched counters of the kernel hold back is no fall.
        ([1024, 1022, 1021, 1, 1, 1, 1], {0: 1024}, [0, 2, 2.5], [1024, 1024, None]),
        # What nobody knows of all processes is no fall either.
        ([10, 10, None, 10, 10, 10, 10], {0: 8, 4: 9}, [0, 4, 6], [8, 9, 9]),
    ],
)
def test_pss_ends_where_rss_falls_below_it(
    tmp_path: Path,
    rss: list[int | None],
    read: dict[int, int],
    times: list[float],
    values: list[float | None],
) -> None:
    """The page would show shared memory once to be more than the same memory counted in each process."""
    np = pytest.importorskip("numpy")
    pytest.importorskip("plotly")
    writer = RunWriter(tmp_path / "a.mg", {"lanes": {"slow": {"asked_ns": 10**9}}, "duration_us": 6_000_000})
    process = writer.add_process(7, parent=None, name="a", command="a", started_us=0, seen_us=0, found="x")
    for lane, metric, found in (
        ("fast", "rss_bytes", rss),
        ("slow", "pss_bytes", [*map(read.get, range(7))]),
    ):
        column = writer.lane(lane).column(writer.add_series(lane, metric, "x", process=process))
        writer.lane(lane).times_us.extend(range(0, 7_000_000, 1_000_000))
        column.extend(MISSING if mib is None else mib * MIB for mib in found)
    writer.close()
    with RunFile(tmp_path / "a.mg") as run:
        figure = timeline(RunCurves(run))
    (curve,) = [t for t in figure.data if t.name == "tree, sum of PSS"]
    assert curve.x.tolist() == times
    assert [None if np.isnan(v) else v / MIB for v in curve.y] == values
    points = {
        t: size > 0 for t, size, v in zip(times, curve.marker.size, values, strict=True) if v is not None
    }
    assert points == {t: t in read for t in points}


def test_compare_takes_run_files_beside_estimates(tmp_path: Path) -> None:
    small, large, saved = tmp_path / "small.mg", tmp_path / "large.mg", tmp_path / "small.json"
    for path, mib in ((small, 40), (large, 140)):
        assert Job(f"x = bytearray({mib} << 20)", path, "-q").end()[0] == 0
    with RunFile(small) as file:
        saved.write_text(to_json(account_of(file)))
    said = json.loads(run("compare", str(large), str(saved), "--json"))
    assert said["schema"] == "memgauge.compare/1"
    host = next(row for row in said["kinds"] if row["name"] == "host")
    assert abs(host["difference_bytes"] - 100 * MIB) < MIB
    assert "Peak resident memory of A" in said["gap"]
    allocated = next(row for row in said["kinds"] if row["name"] == "allocated")
    assert allocated["a_bytes"] is None
    assert "memgauge.mark" in allocated["a_unknown"]
    assert said["gap"].endswith("allocated is known on neither side.")
    text = run("compare", str(large), str(saved))
    assert "Memory at its peak" in text
    assert not re.search("Categories|by phase", text)


def test_two_recordings_are_compared_as_recordings(tmp_path: Path) -> None:
    small, large = tmp_path / "small.mg", tmp_path / "large.mg"
    for path, mib, last in ((small, 40, "tidy"), (large, 140, "test")):
        code = f"""
import memgauge
for e in range({2 if path == large else 1}):
    with memgauge.phase("train", e): x = bytearray({mib} << 20); time.sleep(0.15); del x
with memgauge.phase("{last}"): pass
"""
        assert Job(code, path, "-q", "-i", "10ms").end()[0] == 0
    said = json.loads(run("compare", str(large), str(small), "--json"))
    assert said["schema"] == "memgauge.compare-recordings/1"
    assert [Path(said[side]["file"]).name for side in "ab"] == ["large.mg", "small.mg"]
    peaks = {row["name"]: row for row in said["peaks"]}
    largest = peaks["largest process, resident"]
    assert largest["a_kind"] == largest["b_kind"] == "exact"
    assert abs(largest["difference_bytes"] - 100 * MIB) < MIB
    assert {"tree, sum of RSS", "tree, sum of PSS"} <= set(peaks)
    phases = {row["name"]: row for row in said["phases"]}
    assert (phases["train"]["a_count"], phases["train"]["b_count"]) == (2, 1)
    assert abs(phases["train"]["difference_bytes"] - 100 * MIB) < MIB
    assert phases["train"]["a_kind"] == "exact"
    assert phases["train"]["time"]["difference_us"] > 0.1e6
    assert phases["tidy"]["a_bytes"] is phases["tidy"]["difference_bytes"] is None
    assert phases["test"]["b_bytes"] is None
    times = {row["name"]: row for row in said["times"]}
    assert times["duration"]["a_us"] > 0.3e6
    assert times["CPU time"]["b_us"] > 0

    text = run("compare", str(large), str(small))
    assert "large.mg,python" in "".join(text.split())
    assert "the phase that differs most is train, +" in " ".join(text.split())
    assert re.search(r"^train +A +2 .*exact$", text, re.M)
    assert max(map(len, text.splitlines())) <= 80
    for heading in ("Highest", "Phases", "Over the run"):
        assert f"\n{heading}\n" in text


def test_recordings_without_anything_to_compare_have_no_empty_tables(tmp_path: Path) -> None:
    for name in "ab":
        RunWriter(tmp_path / f"{name}.mg", {"interval_ns": 10**8}).close()
    text = run("compare", str(tmp_path / "a.mg"), str(tmp_path / "b.mg"))
    assert text.startswith("No peak is known in both recordings.\n")
    assert "\nOver the run\n" in text
    assert not re.search("^(Highest|Phases|Categories)", text, re.M)


def test_peaks_that_frameworks_told_of_are_compared(tmp_path: Path) -> None:
    for name, mib in (("a", 30), ("b", 20)):
        writer = RunWriter(tmp_path / f"{name}.mg", {"interval_ns": 10**8})
        for time_us, kind, highest in ((0, "begin", 0), (9, "end", mib * MIB)):
            facts = {"allocated_bytes": 0, "allocated_peak_bytes": highest, "span": 1}
            writer.add_mark(time_us, 7, kind, "train", None, facts)
        writer.close()
    said = json.loads(run("compare", str(tmp_path / "a.mg"), str(tmp_path / "b.mg"), "--json"))
    assert [(row["name"], row["difference_bytes"], row["a_kind"]) for row in said["peaks"]] == [
        ("framework, allocated", 10 * MIB, "lower bound")
    ]
    assert said["phases"][0]["framework"]["difference_bytes"] == 10 * MIB
    text = run("compare", str(tmp_path / "a.mg"), str(tmp_path / "b.mg"))
    assert re.search(r"^train +framework +30.00 MiB +20.00 MiB", text, re.M)


def written(path: Path, **scales: int) -> None:
    """Write a recording of phases 0 and 1 of `train`, whose second never ended, and one of `test`."""
    writer = RunWriter(path, {"interval_ns": 10**6, "duration_us": 6000})
    process = writer.add_process(7, parent=None, name="a", command="a", started_us=0, seen_us=0, found="x")
    card = writer.add_device("nvidia", "T4", "GPU-1", None, {})
    for lane, metric, owner in (
        ("fast", "rss_bytes", {"process": process}),
        ("slow", "pss_bytes", {"process": process}),
        ("fast", "gpu_used_bytes", {"device": card}),
    ):
        if metric in scales:
            column = writer.lane(lane).column(writer.add_series(lane, metric, "x", **owner))
            column.extend(n * scales[metric] * MIB for n in range(6))
    for lane in ("fast", "slow"):
        writer.lane(lane).times_us.extend(range(0, 6000, 1000))
    writer.set_peak(PeakRow("largest_process_bytes", 5 * MIB, "exact", "VmHWM", "", process, None, None))
    for number, pid in enumerate((7, 8)):
        writer.set_peak(PeakRow("gpu_process_bytes", pid * MIB, "exact", "NVML", "", process, number, None))
    marks = [(0, "begin", 0), (2500, "end", 0), (3500, "begin", 1)]
    for time_us, kind, value in marks:
        facts = {
            "allocated_bytes": 0,
            "allocated_peak_bytes": time_us * scales.get("torch", 0),
            "span": value,
        }
        writer.add_mark(time_us, 7, kind, "train", str(value), facts)
    if "no_pss" in scales:
        writer.add_note(0, "system", "PSS cannot be read: why", "")
    writer.close()


def test_phases_of_recordings_are_compared_by_all_that_is_known_of_them(tmp_path: Path) -> None:
    a, b = tmp_path / "a.mg", tmp_path / "b.mg"
    written(a, rss_bytes=3, pss_bytes=2, gpu_used_bytes=10, torch=4)
    written(b, rss_bytes=1, gpu_used_bytes=10, no_pss=1)
    said = json.loads(run("compare", str(a), str(b), "--json"))
    (train,) = said["phases"]
    assert (train["a_unfinished"], train["b_unfinished"]) == (1, 1)
    found = {
        key: (train[key]["a_bytes"], train[key]["b_bytes"], train[key]["a_kind"])
        for key in ("tree_rss", "tree_pss", "gpu", "framework")
    }
    assert found == {
        "tree_rss": (15 * MIB, 5 * MIB, "lower bound"),
        "tree_pss": (10 * MIB, None, "sampled"),
        "gpu": (50 * MIB, 50 * MIB, "lower bound"),
        "framework": (10_000, 0, "exact"),
    }
    rows = [(v["name"], v["a_bytes"], v["tree_pss"]["a_bytes"], v["b_unfinished"]) for v in train["values"]]
    assert rows == [("0", 6 * MIB, 4 * MIB, 0), ("1", 15 * MIB, 10 * MIB, 1)]
    assert train["values"][0]["framework"]["a_bytes"] == 10_000
    assert train["values"][1]["framework"] is None
    peaks = {row["name"]: row for row in said["peaks"]}
    assert peaks["tree, sum of PSS"]["b_unknown"] == "PSS cannot be read: why"
    assert peaks["tree, sum of PSS"]["a_unknown"] == ""
    # Numbers of processes differ from run to run, so their rows would never meet.
    assert peaks["process on the GPU, largest"]["b_bytes"] == 8 * MIB

    text = run("compare", str(a), str(b))
    assert re.search(r"^train  \(1 not +A +2 ", text, re.M)
    assert len(re.findall(r"^  [01] .* A ", text, re.M)) == 2
    assert "tree, sum of PSS of B is not known: PSS cannot be read: why" in text
    for what in ("tree's PSS", "GPU memory", "framework"):
        assert re.search(rf"^(train)? +{what} +\d", text, re.M)
    assert max(map(len, text.splitlines())) <= 80


def test_phases_are_shown_with_all_that_is_known_of_them(tmp_path: Path) -> None:
    path, page = tmp_path / "a.mg", tmp_path / "a.html"
    written(path, rss_bytes=3, pss_bytes=2, gpu_used_bytes=10, torch=4)
    text = run("show", str(path))
    # One process: its PSS is not worth a column.
    assert re.search(r"^phase +times +total +peak +kind +tree's RSS *$", text, re.M)
    assert re.search(r"^phase +GPUs, used +framework's peak *$", text, re.M)
    assert re.search(r"^train +50.00 MiB +9.77 KiB *$", text, re.M)
    assert re.search(r"^  0 +20.00 MiB +9.77 KiB *$", text, re.M)
    assert re.search(r"^  1 +50.00 MiB +— *$", text, re.M)
    assert max(map(len, text.splitlines())) <= 80
    run("report", str(path), "-o", str(page))
    assert "GPUs, used" in page.read_text() and "tree's PSS" not in page.read_text()


def test_phases_of_several_processes_are_told_apart(tmp_path: Path) -> None:
    path, page = tmp_path / "a.mg", tmp_path / "a.html"
    writer = RunWriter(path, {"interval_ns": 10**6, "duration_us": 100})
    for pid in (7, 8):
        process = writer.add_process(
            pid, parent=None, name="a", command="a", started_us=0, seen_us=0, found="x"
        )
        for value in (0, 1):
            begin = writer.add_mark(value * 10 + pid, pid, "begin", "train", str(value), {"span": value})
            writer.add_mark(value * 10 + pid + 5, pid, "end", "train", str(value), {"span": value})
            peak = PeakRow("rss_bytes", (pid + value) * MIB, "exact", "VmHWM", "", process, None, begin)
            writer.set_peak(peak)
        writer.add_mark(50, pid, "begin", "test", None, {"span": 9})
        writer.add_mark(60, pid, "end", "test", None, {"span": 9})
    writer.close()
    text = run("show", str(path))
    rows = re.findall(r"^  (.*?)  +(?:\d+ µs) +([\d.]+) MiB +exact", text, re.M)
    assert rows == [
        ("0, process 7", "7.00"),
        ("0, process 8", "8.00"),
        ("1, process 7", "8.00"),
        ("1, process 8", "9.00"),
    ]
    assert re.findall(r"^  (process \d) ", text, re.M) == ["process 7", "process 8"]
    pytest.importorskip("plotly")
    run("report", str(path), "-o", str(page))
    assert "· 1, process 8<" in page.read_text()


def test_a_phases_figures_do_not_contradict_each_other(tmp_path: Path) -> None:
    # One process of samples 1 … 9 MiB; its counter says a little less in the first phase, more in the second.
    path = tmp_path / "a.mg"
    writer = RunWriter(path, {"interval_ns": 10**6, "duration_us": 9000, "cores": 2})
    process = writer.add_process(7, parent=None, name="a", command="a", started_us=0, seen_us=0, found="x")
    lane = writer.lane("fast")
    lane.column(writer.add_series("fast", "rss_bytes", "x", process=process)).extend(
        n * MIB for n in range(9)
    )
    lane.times_us.extend(range(0, 9000, 1000))
    for name, at, counted in (("behind", 0, 4 * MIB - 4096), ("ahead", 4, 30 * MIB), ("far", 2, 2 * MIB)):
        begin = writer.add_mark(at * 1000, 7, "begin", name, None, {"span": at})
        writer.add_mark((at + 4) * 1000, 7, "end", name, None, {"span": at})
        writer.set_peak(PeakRow("rss_bytes", counted, "exact", "VmHWM", "", process, None, begin))
    writer.close()
    with RunFile(path) as file:
        phases = {p.name: (p.peak_bytes, p.tree_peak_bytes) for p in summarise(file).phases}
    assert phases["behind"] == (4 * MIB, 4 * MIB)
    assert phases["ahead"] == (30 * MIB, 30 * MIB)
    # More than the kernel's batches explain: another phase's sample, or a fault, which is not hidden.
    assert phases["far"] == (2 * MIB, 6 * MIB)


def test_values_of_a_phase_are_compared_only_where_they_tell_both_sides_apart(tmp_path: Path) -> None:
    for name, sequence in (("once", "01"), ("more", "012"), ("twice", "00"), ("one", "0")):
        writer = RunWriter(tmp_path / f"{name}.mg", {"interval_ns": 10**8})
        for place, value in enumerate(sequence):
            for kind in ("begin", "end"):
                writer.add_mark(place * 10 + (kind == "end"), 7, kind, "train", value, {})
        writer.close()

    def compared(a: str, b: str) -> list[str]:
        said = json.loads(run("compare", str(tmp_path / f"{a}.mg"), str(tmp_path / f"{b}.mg"), "--json"))
        return [row["name"] for row in said["phases"][0]["values"]]

    assert compared("once", "more") == ["0", "1", "2"]
    assert compared("once", "one") == ["0", "1"]
    assert compared("once", "twice") == compared("one", "one") == []


def test_of_a_recording_that_is_not_there_nothing_is_said_of_estimates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(tmp_path / "a.mg"), str(tmp_path / "b.mg")]) == 2
    said = capsys.readouterr().err
    assert "there is no such recording; run files are made by" in said
    assert "account" not in said


def test_a_measurement_keeps_its_recording_and_both_compare_alike(tmp_path: Path) -> None:
    path, saved = tmp_path / "bare.mg", tmp_path / "m.json"
    measure = memgauge("measure", "zoo:mlp", "--steps", "2", "--record", str(path), "--out", str(saved))
    subprocess.run(measure, capture_output=True, check=True)
    with RunFile(path) as run:
        said = summarise(run)
    phases = {p.name: (p.count, p.peak_kind) for p in said.phases}
    assert phases == {"setup": (1, "exact"), "step": (2, "exact")}
    measured = json.loads(saved.read_text())["peak"]["host_bytes"]["expected"]
    assert max(p.peak_bytes or 0 for p in said.phases) == measured
    done = subprocess.run(
        memgauge("compare", str(path), str(saved), "--json"), capture_output=True, text=True, check=True
    )
    assert {row["difference_bytes"] for row in json.loads(done.stdout)["kinds"]} <= {0, None}


@pytest.mark.parametrize(
    ("group_mib", "is_own", "is_shown"), [(12_000, False, False), (900, False, True), (12_000, True, True)]
)
def test_a_control_group_is_shown_if_it_is_the_jobs(
    tmp_path: Path, group_mib: int, is_own: bool, is_shown: bool
) -> None:
    path = tmp_path / "a.mg"
    writer = RunWriter(path, {"interval_ns": 10**8, "cgroup": {"folder": "/somewhere", "is_own": is_own}})
    process = writer.add_process(
        7, parent=None, name="job", command="job", started_us=0, seen_us=0, found="given"
    )
    mark = writer.add_mark(0, 7, "begin", "train", None, {})
    writer.add_mark(9, 7, "end", "train", None, {})
    writer.set_peak(PeakRow("largest_process_bytes", 500 * MIB, "exact", "VmHWM", "", process, None, None))
    kind = "exact" if is_own else "upper bound"
    for phase in (None, mark):
        writer.set_peak(
            PeakRow("cgroup_bytes", group_mib * MIB, kind, "cgroup v2, memory.peak", "", None, None, phase)
        )
    writer.close()
    assert ("control group" in run("show", str(path))) is is_shown
    assert "control group" in {p["name"] for p in json.loads(run("show", str(path), "--json"))["peaks"]}
    run("report", str(path), "-o", str(tmp_path / "a.html"))
    tables = re.sub(r"<script.*?</script>", "", (tmp_path / "a.html").read_text(), flags=re.S)
    assert ("control group" in tables) is is_shown


@pytest.mark.parametrize(("group_mib", "kind"), [(520, "exact"), (400, "lower bound")])
def test_a_control_group_that_was_not_charged_for_all_is_a_lower_bound(
    tmp_path: Path, group_mib: int, kind: str
) -> None:
    path = tmp_path / "a.mg"
    header = {"interval_ns": 10**8, "cgroup": {"folder": "/somewhere", "is_own": True}}
    writer = RunWriter(path, {**header, "ended": {"how": "exited", "text": "exited with 0"}})
    writer.set_peak(PeakRow("largest_process_bytes", 500 * MIB, "exact", "VmHWM", "", None, None, None))
    writer.set_peak(PeakRow("cgroup_bytes", group_mib * MIB, "exact", "memory.peak", "", None, None, None))
    writer.close()
    with RunFile(path) as run:
        (group,) = [p for p in summarise(run).peaks if p.name == "control group"]
    assert group.kind == kind
    assert bool(group.reason) is (kind != "exact")


def test_what_tensorflow_holds_on_the_cpu_is_drawn_with_host_memory(tmp_path: Path) -> None:
    with_marks = tmp_path / "run.mg"
    writer = RunWriter(with_marks, {"interval_ns": 10**8})
    for time_us, framework, device in ((1, "tensorflow", "CPU:0"), (2, "torch", 0)):
        facts = {"framework": framework, "device": device, "allocated_bytes": 2**20}
        writer.add_mark(time_us, 7, "end", "build", None, facts)
    writer.close()
    with RunFile(with_marks) as run:
        data = RunCurves(run)
        host, gpu = memory_panel(data), device_panels(data)[0]
    assert [name for name, _, _ in host.curves] == ["tensorflow, allocated, at marks"]
    assert [name for name, _, _ in gpu.curves] == ["torch, allocated, at marks"]


def test_neither_long_names_nor_many_rows_squeeze_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    writer = RunWriter(path, {"interval_ns": 10**8, "cgroup": {"folder": "/somewhere", "is_own": True}})
    for number in range(1, 31):
        process = writer.add_process(
            number,
            parent=None,
            name="job",
            command=f"train-{number} --epochs 3",
            started_us=0,
            seen_us=0,
            found="given",
        )
        size = number * 1_100 * MIB
        writer.set_peak(PeakRow("rss_bytes", size, "lower bound", "VmHWM", "", process, None, None))
    writer.set_peak(PeakRow("cgroup_bytes", 123 * MIB, "exact", "cgroup v2", "", process, None, None))
    for number, name in enumerate(("n" * 200, *(f"phase {n}" for n in range(30)))):
        mark = writer.add_mark(2 * number, 30, "begin", name, None, {})
        writer.add_mark(2 * number + 1, 30, "end", name, None, {})
        for metric in ("rss_bytes", "cgroup_bytes"):
            row = PeakRow(metric, 123 * MIB, "exact", "VmHWM", "", process, None, mark)
            writer.set_peak(row)
    writer.close()
    text = run("show", str(path))
    rows = [line.split() for line in text.splitlines()]
    assert max(map(len, text.splitlines())) <= 80
    assert [
        "30",
        "32.23",
        "GiB",
        "lower",
        "bound",
        "—",
        "to",
        "the",
        "end",
        "train-30",
        "--epochs",
        "3",
    ] in rows
    pytest.importorskip("plotly")
    run("report", str(path), "-o", str(tmp_path / "a.html"))
    cell = f'<td class="long">{"n" * 200}</td>'  # breaks anywhere, so that times and peaks stay in the window
    assert cell in (tmp_path / "a.html").read_text()
    named, of_group = (row for row in rows if len(row) > 1 and row[0].startswith("nnn"))
    assert named[1:] == ["1", "1", "µs", "123.0", "MiB", "exact", "123.0", "MiB"]
    assert of_group[1:] == ["123.0", "MiB", "exact"]
    assert ["and", "20", "more,", "in", "--json"] in rows
    assert ["and", "11", "more,", "in", "--json"] in rows


NASTY = ('a"b\n</script><b>\x1b[31m\x00\r\\n,', '=HYPERLINK("x")', "-1+1", "@x" + "y" * 100_000)


def test_names_are_data_in_every_export(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    writer = RunWriter(path, {"interval_ns": 10**8})
    lane = writer.lane("fast")
    for number, name in enumerate(NASTY, 1):
        process = writer.add_process(
            number, parent=None, name=name, command=name, started_us=0, seen_us=0, found="given"
        )
        lane.column(writer.add_series("fast", "rss_bytes", "x", process=process)).append(number)
    lane.times_us.append(0)
    writer.add_mark(0, 1, "mark", NASTY[0], NASTY[3], {"framework": NASTY[0]})
    writer.close()

    lines = run("export", str(path), "-f", "csv").split("\n")
    assert len(lines) == 1 + len(NASTY) + 1  # each value stays on its line
    shown = [row["process"] for row in csv.DictReader(lines)]
    assert shown[0] == 'a"b\\n</script><b>\\x1b[31m\\x00\\r\\n,'
    assert shown[1:] == [f"'{name}" for name in NASTY[1:]]  # none is a formula to a spreadsheet

    text = run("export", str(path), "-f", "prometheus")
    found = re.findall(r'^memgauge_rss_bytes\{pid="\d",process="((?:[^"\\\n]|\\["\\n])*)"\} \d$', text, re.M)
    assert [re.sub(r"\\(.)", r"\1", label) for label in found] == [shown[0], *NASTY[1:]]
    assert all(c.isprintable() or c == "\n" for c in text)

    rows = [json.loads(line) for line in run("export", str(path), "-f", "jsonl").splitlines()]
    assert [row["process"] for row in rows[:-1]] == list(NASTY)
    assert rows[-1]["name"] == NASTY[0]
    events = json.loads(run("export", str(path), "-f", "perfetto"))["traceEvents"]
    assert f"{NASTY[0]} 1" in {e["args"].get("name") for e in events if e["ph"] == "M"}

    pq = pytest.importorskip("pyarrow.parquet")
    run("export", str(path), "-f", "parquet", "-o", str(tmp_path / "a.parquet"))
    assert pq.read_table(tmp_path / "a.parquet").column("process").to_pylist() == list(NASTY)


def test_a_number_that_was_given_out_twice_is_one_series_for_prometheus(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    writer = RunWriter(path, {"interval_ns": 10**8})
    lane = writer.lane("fast")
    for value in (5, 6):
        process = writer.add_process(
            7, parent=None, name="worker", command="", started_us=0, seen_us=0, found="given"
        )
        lane.column(writer.add_series("fast", "rss_bytes", "x", process=process)).append(value)
    lane.times_us.append(0)
    writer.close()
    lines = run("export", str(path), "-f", "prometheus").splitlines()
    assert [line for line in lines if line.startswith("memgauge_rss_bytes{")] == [
        'memgauge_rss_bytes{pid="7",process="worker"} 6'
    ]


@pytest.mark.parametrize(("root_gone_s", "span"), [(3, None), (None, None), (3, "..2s"), (9, "0s..2500ms")])
def test_a_sum_over_prometheus_processes_is_of_one_instant(
    tmp_path: Path, root_gone_s: int | None, span: str | None
) -> None:
    path = tmp_path / "a.mg"
    writer = RunWriter(path, {"interval_ns": 10**9})
    lane = writer.lane("fast")
    for name, held, gone_s in (
        ("root", (50, 60, 70, 0), root_gone_s),
        ("child", (20, 0), 1.9),
        ("killed", (20, 25), 1.5),
        ("late", (1, 2, 30), 2.9),
    ):
        number = len(name)
        process = writer.add_process(
            number, parent=None, name=name, command=name, started_us=0, seen_us=0, found="given"
        )
        column = lane.column(writer.add_series("fast", "rss_bytes", "statm\nof a\\b", process=process))
        column.extend([*held, *[MISSING] * (4 - len(held))])
        if gone_s is not None:
            writer.end_process(process, int(gone_s * 10**6))
    lane.times_us.extend(second * 10**6 for second in range(4))
    writer.close()
    text = run("export", str(path), "-f", "prometheus", *(("--range", span) if span else ()))
    found = dict(re.findall(r'^memgauge_rss_bytes\{pid="\d",process="(\w+)"\} (\d+)$', text, re.M))
    assert found == ({"root": "70", "late": "30"} if span else {"root": "70"})
    assert "# HELP memgauge_rss_bytes rss_bytes of each process that lived at the end" in text
    described = re.findall(r"^# HELP (\w+) \S.*\n# TYPE (\w+) gauge\n\1", text, re.M)
    assert described and all(name == typed for name, typed in described)
    assert all(re.match(r"# (HELP|TYPE) |memgauge_", line) for line in text.splitlines())


@pytest.mark.parametrize(
    ("held", "is_gone", "span", "given"),
    [
        # It gave back most between the reading of its shares and its last: that would be more PSS than RSS.
        ((300, 300, 300, 60, 0), True, None, {"rss_bytes": 60}),
        ((300, 300, 300, 60, 0), True, "..2100ms", {"rss_bytes": 300, "pss_bytes": 200, "uss_bytes": 150}),
        ((300, 60, 60, 60, 0), True, None, {"rss_bytes": 60, "pss_bytes": 200, "uss_bytes": 150}),
        ((300, 300, 300, 60, 60), False, None, {"rss_bytes": 60, "pss_bytes": 200, "uss_bytes": 150}),
    ],
)
def test_memory_of_a_process_that_ends_is_of_one_instant_for_prometheus(
    tmp_path: Path,
    held: tuple[int, ...],
    is_gone: bool,
    span: str | None,
    given: dict[str, int],
) -> None:
    path = tmp_path / "a.mg"
    writer = RunWriter(path, {"interval_ns": 10**9})
    process = writer.add_process(7, parent=None, name="a", command="a", started_us=0, seen_us=0, found="x")
    for lane, metric, read in (
        ("fast", "rss_bytes", held),
        ("slow", "pss_bytes", (210, 200)),
        ("slow", "uss_bytes", (160, 150)),
    ):
        writer.lane(lane).column(writer.add_series(lane, metric, "x", process=process)).extend(read)
    writer.lane("fast").times_us.extend(second * 10**6 for second in range(5))
    # Shares are read a little later in the same look.
    writer.lane("slow").times_us.extend(second * 10**6 + 6000 for second in (0, 2))
    if is_gone:
        writer.end_process(process, 4_500_000)
    writer.close()
    text = run("export", str(path), "-f", "prometheus", *(("--range", span) if span else ()))
    found = re.findall(r'^memgauge_(\w+)\{pid="7",process="a"\} (\d+)$', text, re.M)
    assert {metric: int(value) for metric, value in found} == given


def test_pss_that_was_not_read_at_the_top_says_when_it_was(tmp_path: Path) -> None:
    for read_late in (False, True):
        path = tmp_path / f"{read_late}.mg"
        writer = RunWriter(path, {"interval_ns": 10**9})
        process = writer.add_process(
            7, parent=None, name="job", command="job", started_us=0, seen_us=0, found="given"
        )
        fast, slow = writer.lane("fast"), writer.lane("slow")
        rss = fast.column(writer.add_series("fast", "rss_bytes", "x", process=process))
        pss = slow.column(writer.add_series("slow", "pss_bytes", "x", process=process))
        for second, mib in enumerate((100, 100, 100, 900, 900)):
            fast.times_us.append(second * 10**6)
            rss.append(mib * MIB)
            slow.times_us.append(second * 10**6 + 1000)
            pss.append(mib * MIB - MIB if second < 1 or read_late else -1)
        writer.close()
        with RunFile(path) as file:
            peak = next(p for p in summarise(file).peaks if p.name == "tree, sum of PSS")
        said = "it is of 1 ms, when the tree's RSS was 100.0 MiB: not read again while that was at its highest, 900.0 MiB"
        assert (said in peak.reason) is not read_late


def test_pss_of_before_a_large_allocation_says_so_however_short_the_run(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    code = """
say(); wait()
x = bytearray(200 << 20)
for _ in range(20): x[::64] = bytes(200 << 14)  # long enough to be sampled
"""
    job = Job(code, path, "-i", "1ms")
    job.heard()
    until(path, lambda run: any(v > 0 for _, v in values(run, "pss_bytes")), job.process)
    job.go()
    assert job.end()[0] == 0
    with RunFile(path) as file:
        peaks = {p.name: p for p in summarise(file).peaks}
    pss, rss = peaks["tree, sum of PSS"], peaks["tree, sum of RSS"]
    assert rss.bytes > 150 * MIB
    assert pss.bytes > 150 * MIB or "not read again while that was at its highest" in pss.reason


def test_a_table_of_phases_fits_a_window_of_700_pixels(recording: Path, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs a browser")
    page = tmp_path / "a.html"
    run("report", str(recording), "-o", str(page))
    told = "document.title = [...document.querySelectorAll('table')].map(t => t.scrollWidth - t.clientWidth)"
    page.write_text(page.read_text() + f"<script>{told}</script>")
    options = ["--headless", "--no-sandbox", "--window-size=700,900", "--dump-dom"]
    said = subprocess.run([browser, *options, page.as_uri()], capture_output=True, text=True, check=True)
    over = re.search(r"<title>([-\d,]+)</title>", said.stdout)
    assert over is not None
    assert max(int(width) for width in over[1].split(",")) <= 0


def test_several_runs_over_each_other_show_each_ones_peak(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    from memgauge.report.figures import overlay

    runs = []
    for name, kind in (("a", "exact"), ("b", "lower bound")):
        writer = RunWriter(tmp_path / f"{name}.mg", {"interval_ns": 5 * 10**9, "duration_us": 2_000_000})
        process = writer.add_process(
            7, parent=None, name="job", command="job", started_us=0, seen_us=0, found="given"
        )
        lane = writer.lane("fast")
        lane.column(writer.add_series("fast", "rss_bytes", "x", process=process)).append(10 * MIB)
        lane.times_us.append(1000)
        writer.set_peak(PeakRow("largest_process_bytes", 500 * MIB, kind, "x", "", None, None, None))
        writer.close()
        runs.append(RunCurves(RunFile(tmp_path / f"{name}.mg")))
    drawn = overlay(runs)
    for data in runs:
        data.run.close()
    names = [trace.name for trace in drawn.data]
    assert names == [
        "a.mg",
        "a.mg: largest process, resident, exact",
        "b.mg",
        "b.mg: largest process, resident, lower bound",
    ]
    samples, level = drawn.data[:2]
    assert samples.mode == "lines+markers"  # a line of one point is not drawn
    assert samples.line.color == samples.marker.color == level.line.color
    assert (list(level.x), list(level.y)) == ([0, 2], [500 * MIB] * 2)
    assert drawn.layout.yaxis.tickvals[-1] >= 500 * MIB
    assert list(drawn.layout.xaxis.range) == [0, 2]


def test_several_runs_have_a_picture_high_enough_to_name_each(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    from memgauge.report.figures import overlay

    runs = []
    for name in range(12):
        writer = RunWriter(tmp_path / f"{name}.mg", {"duration_us": 2_000_000})
        process = writer.add_process(
            7, parent=None, name="job", command="job", started_us=0, seen_us=0, found="given"
        )
        column = writer.lane("fast").column(writer.add_series("fast", "rss_bytes", "x", process=process))
        column.extend([MIB, MIB])
        writer.lane("fast").times_us.extend([500_000, 900_000])
        writer.set_peak(PeakRow("largest_process_bytes", MIB, "exact", "x", "", None, None, None))
        writer.close()
        with RunFile(tmp_path / f"{name}.mg") as run:
            runs.append(RunCurves(run))
    drawn = overlay(runs)
    assert len(drawn.data) == 24
    assert drawn.layout.height - drawn.layout.margin.t - drawn.layout.margin.b >= 20 * 24
    assert list(drawn.layout.xaxis.range) == [0, 2]  # also what lies before the first sample


def test_no_peak_is_below_a_sample_of_the_same_process(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    writer = RunWriter(path, {})
    process = writer.add_process(
        7, parent=None, name="job", command="job", started_us=0, seen_us=0, found="given"
    )
    column = writer.lane("fast").column(writer.add_series("fast", "rss_bytes", "statm", process=process))
    for time_us, sample in ((0, 100 * MIB), (10, 101 * MIB), (20, 90 * MIB)):
        column.append(sample)
        writer.lane("fast").times_us.append(time_us)
    for metric in ("rss_bytes", "largest_process_bytes"):  # the kernel's own peak lags by some pages
        writer.set_peak(PeakRow(metric, 100 * MIB, "exact", "VmHWM", "", process, None, None))
    writer.close()
    with RunFile(path) as run:
        said = summarise(run)
    assert said.peaks[0].bytes == said.processes[0].peak_bytes == 101 * MIB


def test_a_sum_that_lacks_some_process_is_no_sum(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    writer = RunWriter(path, {"interval_ns": 10**9})
    slow = writer.lane("slow")
    for number, shares in enumerate(((30, 40, 50), (-1, 8, -1)), 1):  # -1: it may not be read then
        process = writer.add_process(
            number, parent=None, name="job", command="job", started_us=0, seen_us=0, found="given"
        )
        column = slow.column(writer.add_series("slow", "pss_bytes", "x", process=process))
        column.extend(v * MIB if v >= 0 else v for v in shares)
    slow.times_us.extend(range(3))
    writer.close()
    with RunFile(path) as file:
        (peak,) = (p for p in summarise(file).peaks if p.name == "tree, sum of PSS")
        assert peak.bytes == 48 * MIB
        pytest.importorskip("numpy")
        drawn, read_at = RunCurves(file).pss()
        assert list(read_at) == [1e-6]
        assert list(drawn.times) == [1e-6, 2e-6]  # it stands to the end
        assert list(drawn.values) == [48 * MIB, 48 * MIB]


def _unfinished(path: Path, of_each: list[tuple[str, int | None, bool]]) -> Path:
    """Write a recording that nobody ended, of processes with a sample of 8 MiB: kind and MiB of the peak, is it gone."""
    writer = RunWriter(path, {"interval_ns": 2 * 10**9})
    fast = writer.lane("fast")
    for number, (kind, mib, is_gone) in enumerate(of_each, 1):
        process = writer.add_process(
            10 * number, parent=None, name="job", command="job", started_us=0, seen_us=0, found="given"
        )
        fast.column(writer.add_series("fast", "rss_bytes", "statm", process=process)).append(8 * MIB)
        if mib is not None:
            writer.set_peak(PeakRow("rss_bytes", mib * MIB, kind, "VmHWM", "", process, None, None))
        if is_gone:
            writer.end_process(process, 10, "exit code 0")
    fast.times_us.append(0)
    writer.close()
    return path


@pytest.mark.parametrize(
    ("of_each", "state", "found"),
    [
        ([("exact", 264, False), ("exact", 9, False)], "recording", (264, "exact", "VmHWM of process 10")),
        ([("exact", 9, False), ("exact", 264, True)], "recording", (264, "exact", "VmHWM of process 20")),
        ([("exact", 264, False), ("lower bound", 9, True)], "recording", (264, "lower bound", "another")),
        ([("exact", 264, False)], "lost", (264, "lower bound", "last read before the sampler was lost")),
        (
            [("exact", 264, True), ("exact", 9, False)],
            "lost",
            (264, "lower bound", "another process was last"),
        ),
        ([("", None, False)], "recording", (8, "lower bound", "statm of process 10")),
    ],
)
def test_the_largest_process_so_far_is_told_of_before_the_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    of_each: list[tuple[str, int | None, bool]],
    state: str,
    found: tuple[int, str, str],
) -> None:
    monkeypatch.setattr("memgauge.explain.recording.is_alive", lambda header: state == "recording")
    mib, kind, how = found
    with RunFile(_unfinished(tmp_path / "a.mg", of_each)) as file:
        said = summarise(file)
        live = Live(file)
        live.refresh()
    largest = said.peaks[0]
    assert said.state == state
    assert (largest.name, largest.bytes, largest.kind) == ("largest process, resident", mib * MIB, kind)
    assert how in f"{largest.instrument}; {largest.reason}"
    assert format_bytes(max(mib, 8 * len(of_each)) * MIB) in live.line()


def test_a_name_that_fills_a_screen_is_cut_in_the_tables_only(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    name, value = "n" * 1000, "v" * 1000
    said = [*_phase(1, name, value, 0, 10), *_phase(2, name, f"w{value}", 20, 30)]
    text = run("show", str(_written(path, said)))
    assert text.count("n" * 20) <= 3 and text.count("v" * 20) <= 6
    assert "…" in text
    both = run("compare", str(path), str(path))
    assert both.count("n" * 20) <= 3 and both.count("v" * 20) <= 6
    (phase,) = json.loads(run("show", "--json", str(path)))["phases"]
    assert (phase["name"], phase["each"][0]["value"]) == (name, value)


def test_a_process_whose_command_nobody_read_goes_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.mg"
    writer = RunWriter(path, {"interval_ns": 10**8})
    for number, command in enumerate(("sh -c ls", ""), 1):
        writer.add_process(
            number, parent=None, name="ls", command=command, started_us=0, seen_us=0, found="given"
        )
    writer.close()
    processes = json.loads(run("show", "--json", str(path)))["processes"]
    assert [p["command"] for p in processes] == ["sh -c ls", "ls"]
