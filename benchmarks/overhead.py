"""What watching costs: memgauge beside its peers, on one tree of nine processes, in one run.

    python benchmarks/overhead.py peers          # CPU of each tool at the same intervals, resident memory
    python benchmarks/overhead.py loop           # how much a training loop's steps are slowed at 10 ms
    python benchmarks/overhead.py marks          # a mark, a phase, and both when nothing records
    python benchmarks/overhead.py exits          # what the end of a process costs, of the job and of others
    python benchmarks/overhead.py files          # 24 h at 10 Hz, and a report of a million samples

CPU is what the tool's threads ran over the window, to the nanosecond (/proc/PID/task/TID/schedstat). Peers are
run as their users would; one that is not installed, or refuses the interval, is said to.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

PROCESSES, HELD_MIB = 9, 20
INTERVALS_S = (0.1, 0.01, 0.001)
WINDOW_S = 10.0

TREE = f"""
import os, time
for i in range({PROCESSES - 1}):
    if os.fork() == 0:
        x = bytearray({HELD_MIB} << 20)
        while True: time.sleep(1)
x = bytearray({HELD_MIB} << 20)
while True: time.sleep(1)
"""

PSUTIL = """
import psutil, sys, time
root, interval, count = psutil.Process(int(sys.argv[1])), float(sys.argv[2]), 0
due = time.monotonic()
while True:
    for p in [root, *root.children(recursive=True)]:
        p.memory_info().rss, p.cpu_times()
    psutil.virtual_memory()
    count += 1
    if count % 10 == 0: open(sys.argv[3], "w").write(str(count))
    due = max(due + interval, time.monotonic()); time.sleep(max(0, due - time.monotonic()))
"""

BARE = """
import sys, time
while True: time.sleep(float(sys.argv[1]))
"""

READS = """
import os, sys, time
root = int(sys.argv[1])
pids = [root, *map(int, open(f"/proc/{root}/task/{root}/children").read().split())]
files = [os.open(path, os.O_RDONLY) for path in [*(f"/proc/{p}/statm" for p in pids), "/proc/meminfo"]]
while True:
    for file in files: os.pread(file, 256, 0)
    time.sleep(float(sys.argv[2]))
"""

MEMORY_PROFILER = """
import sys, memory_profiler
found = memory_profiler.memory_usage(int(sys.argv[1]), interval=float(sys.argv[2]), timeout=1e9,
    include_children=True, multiprocess=True, stream=open(sys.argv[3], "w"))
"""

NVITOP = """
import sys, time
from nvitop import ResourceMetricCollector
c = ResourceMetricCollector(devices=[], root_pids={int(sys.argv[1])}, interval=float(sys.argv[2]))
c.start("run")
while True: time.sleep(1)
"""


def tools(root: int, interval_s: float, folder: Path) -> dict[str, list[str]]:
    """Return the command of each tool; the last argument is a file that it counts or writes to."""
    python, out = sys.executable, str(folder / "out")
    config = {"file": out, "interval_ns": round(interval_s * 1e9), "pid": root, "overwrite": True}
    return {
        "memgauge": [python, "-m", "memgauge.monitor.sampler", json.dumps(config)],
        "a bare sleep": [python, "-c", BARE, str(interval_s), out],  # what waking up costs on this machine,
        "nine statm, meminfo": [python, "-c", READS, str(root), str(interval_s), out],  # and reading so much
        "psutil, tree walk": [python, "-c", PSUTIL, str(root), str(interval_s), out],
        "psrecord": [
            str(Path(python).with_name("psrecord")),
            str(root),
            "--interval",
            str(interval_s),
            "--log",
            out,
            "--include-children",
        ],
        "memory_profiler": [python, "-c", MEMORY_PROFILER, str(root), str(interval_s), out],
        "nvitop collector": [python, "-c", NVITOP, str(root), str(interval_s), out],
    }


def samples_taken(name: str, out: Path) -> int | None:
    """Return how many samples a tool has taken so far, where its output tells."""
    try:
        if name == "memgauge":
            from memgauge.storage import RunFile

            with RunFile(out) as run:
                return sum(len(c.times_us) for _, c in run.chunks("fast"))
        text = out.read_text()
        if name.startswith("psutil"):
            return int(text)
        # memory_profiler writes one line for the root and one for each child.
        return text.count("\nMEM ") if name == "memory_profiler" else text.count("\n")
    except (OSError, ValueError):
        return None


class Cost(NamedTuple):
    """What one tool took over one window."""

    percent: float  # of a core
    sample_us: float | None  # None where its output does not tell how many samples it took
    samples_s: float | None
    resident_mib: float


def peers(warm_s: float, busy: int, rounds: int, only: Sequence[str]) -> None:
    """Run each tool on the same tree, one after the other, at each interval, beside so many busy processes.

    What else the machine's host does moves every figure: the middle of several rounds is shown, with the
    lowest and the highest.
    """
    names = [name for name in tools(0, 1.0, Path()) if not only or any(name.startswith(o) for o in only)]
    found: dict[tuple[str, float], list[Cost]] = {}
    tree = subprocess.Popen([sys.executable, "-c", TREE])
    beside = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        time.sleep(1.5)
        for number in range(rounds):
            for interval_s in INTERVALS_S:
                for name in names:
                    print(f"round {number + 1}: {name}, {interval_s * 1000:.0f} ms", file=sys.stderr)
                    with tempfile.TemporaryDirectory() as folder:
                        cost = _one(name, tree.pid, interval_s, Path(folder), warm_s)
                    found.setdefault((name, interval_s), []).extend([cost] if cost else [])
    finally:
        for process in beside:
            process.kill()
            process.wait()
        for child in psutil.Process(tree.pid).children():
            child.kill()
        tree.kill()
        tree.wait()
    print(
        f"{'tool':20} {'interval':>9} {'% of a core':>12} {'lowest':>7} {'highest':>7} {'us/sample':>10} "
        f"{'samples/s':>10} {'RSS MiB':>8}"
    )
    for (name, interval_s), costs in found.items():
        print(_row(name, interval_s, costs))


def _row(name: str, interval_s: float, costs: list[Cost]) -> str:
    label = f"{name:20} {interval_s * 1000:>6.0f} ms"
    if not costs:
        return f"{label} {'does not run':>12}"
    percent = [c.percent for c in costs]
    text = f"{label} {statistics.median(percent):12.2f} {min(percent):7.2f} {max(percent):7.2f}"
    each, taken = [c.sample_us for c in costs if c.sample_us], [c.samples_s for c in costs if c.samples_s]
    text += (
        f" {statistics.median(each):10.0f} {statistics.median(taken):10.1f}"
        if each and taken
        else f" {'—':>10} {'—':>10}"
    )
    return f"{text} {max(c.resident_mib for c in costs):8.1f}"


def _one(name: str, root: int, interval_s: float, folder: Path, warm_s: float) -> Cost | None:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(tools(root, interval_s, folder)[name], **quiet)
    watched = psutil.Process(process.pid)
    out = folder / "out"
    try:
        time.sleep(warm_s)
        if process.poll() is not None:
            return None
        before, counted, began = _cpu_s(watched), samples_taken(name, out), time.monotonic()
        time.sleep(WINDOW_S)
        window = time.monotonic() - began
        used, after = _cpu_s(watched) - before, samples_taken(name, out)
        resident = watched.memory_info().rss / 2**20
    finally:
        process.terminate()
        process.wait()
    taken = after - counted if after is not None and counted is not None and name != "nvitop collector" else 0
    return Cost(
        100 * used / window,
        used / taken * 1e6 if taken else None,
        taken / window if taken else None,
        resident,
    )


def _cpu_s(process: psutil.Process) -> float:
    """Return CPU seconds of all threads to the nanosecond (schedstat); `cpu_times` counts in steps of 10 ms."""
    spent = 0
    for each in [process, *process.children(recursive=True)]:
        for file in Path(f"/proc/{each.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                spent += int(file.read_text().split()[0])
    return spent / 1e9


LOOP = """
import time, torch
torch.set_num_threads(1)
m = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
o = torch.optim.SGD(m.parameters(), lr=.1); x = torch.randn(128, 256)
def step():
    o.zero_grad(); m(x).square().mean().backward(); o.step()
for _ in range(200): step()
while True:
    line = input()
    t, c = time.perf_counter(), time.process_time()
    for _ in range(250): step()
    print((time.perf_counter() - t) / 250, (time.process_time() - c) / 250, flush=True)
"""


def loop(pairs: int = 60) -> None:
    """Steps of a training loop with a sampler at 10 ms, and with the same sampler held still (SIGSTOP).

    Rounds of 250 steps, a pair at a time in changing order, so that what else the machine does falls on both
    alike; CPU time of a step shows what sampling disturbs within the job even where other work delays it.
    """
    job = subprocess.Popen(
        [sys.executable, "-c", LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert job.stdin is not None
    assert job.stdout is not None
    ratios: list[tuple[float, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        config = {"file": f"{folder}/out", "interval_ns": 10_000_000, "pid": job.pid, "overwrite": True}
        sampler = subprocess.Popen([sys.executable, "-m", "memgauge.monitor.sampler", json.dumps(config)])
        time.sleep(2.0)
        for number in range(pairs):
            found: dict[bool, tuple[float, ...]] = {}
            for is_watched in (number % 2 == 0, number % 2 == 1):
                sampler.send_signal(signal.SIGCONT if is_watched else signal.SIGSTOP)
                job.stdin.write("\n")
                job.stdin.flush()
                found[is_watched] = tuple(map(float, job.stdout.readline().split()))
            ratios.append(tuple(w / a for w, a in zip(found[True], found[False], strict=True)))
        sampler.send_signal(signal.SIGCONT)
        sampler.terminate()
        sampler.wait()
    job.kill()
    job.wait()
    chance = random.Random(1)
    for place, what in enumerate(("time", "CPU time")):
        each = [r[place] for r in ratios]
        again = sorted(statistics.median(chance.choices(each, k=pairs)) for _ in range(2000))
        low, high = (100 * (again[k] - 1) for k in (50, 1949))
        slowed = 100 * (statistics.median(each) - 1)
        print(
            f"{what} of a step watched at 10 ms: {slowed:+.2f} % (95 % interval {low:+.2f} to {high:+.2f} %, "
            f"{pairs} pairs)"
        )


MARKS = """
import time, memgauge
def cost(f, n=3000, pause=0.0):
    found = []
    for _ in range(n):
        t = time.perf_counter_ns(); f(); found.append(time.perf_counter_ns() - t)
        if pause: time.sleep(pause)
    found.sort()
    return f"median {found[n // 2] / 1000:.2f} us, 99 % under {found[n * 99 // 100] / 1000:.2f} us"
def phase():
    with memgauge.phase("step", 1): pass
memgauge.mark("begin")
for pause, title in ((0.0, "one after another"), (1e-4, "after 0.1 ms of sleep")):
    print(f"mark,  {title:21}", cost(lambda: memgauge.mark("step", 1), pause=pause))
    print(f"phase, {title:21}", cost(phase, pause=pause), "(two boundaries, each with the exact peak)")
"""


def marks() -> None:
    """Time marks and phases, recorded and not."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "marks.py")
        script.write_text(MARKS)
        print("recorded:")
        command = [
            sys.executable,
            "-m",
            "memgauge",
            "monitor",
            "-q",
            "-o",
            f"{folder}/a.mg",
            "--",
            sys.executable,
            str(script),
        ]
        subprocess.run(command, check=True)
        print("not recorded:", flush=True)
        subprocess.run([sys.executable, str(script)], check=True)


FORKS = 4000
FORKING = f"""
import os
input()
for _ in range({FORKS}):
    if os.fork() == 0: os._exit(0)
    os.wait()
print(flush=True); input()
"""


def exits() -> None:
    """CPU of the sampler at 100 ms while some process forks; what it takes without is subtracted."""
    for title, is_job in (("others", False), ("the job", True)):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        forking = subprocess.Popen([sys.executable, "-S", "-c", FORKING], **pipes)
        beside = subprocess.Popen(["sleep", "600"])
        assert forking.stdin is not None
        assert forking.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            pid = forking.pid if is_job else beside.pid
            config = {"file": f"{folder}/out", "interval_ns": 100_000_000, "pid": pid}
            sampler = subprocess.Popen([sys.executable, "-m", "memgauge.monitor.sampler", json.dumps(config)])
            watched = psutil.Process(sampler.pid)
            time.sleep(2.0)
            idle, began = _cpu_s(watched), time.monotonic()
            time.sleep(3.0)
            idle = (_cpu_s(watched) - idle) / (time.monotonic() - began)
            used, began = _cpu_s(watched), time.monotonic()
            forking.stdin.write("\n")
            forking.stdin.flush()
            forking.stdout.readline()
            time.sleep(0.5)
            used = _cpu_s(watched) - used - idle * (time.monotonic() - began)
            for process in (sampler, forking, beside):
                process.terminate()
                process.wait()
        print(f"processes of {title}: {1e6 * used / FORKS:.1f} us for each that comes and goes", flush=True)


def files() -> None:
    """Write what a sampler would in 24 hours at 10 Hz with nine processes, through its own writer."""
    for title, ticks in (("24 h at 10 Hz, nine processes", 864_000), ("a million samples", 100_000)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "long.mg")
            began = time.perf_counter()
            _write(path, ticks)
            size, wrote = path.stat().st_size, time.perf_counter() - began
            began, before = time.perf_counter(), os.times()
            page = Path(folder, "long.html")
            subprocess.run(
                [sys.executable, "-m", "memgauge", "report", str(path), "-o", str(page)],
                check=True,
                capture_output=True,
            )
            took, after = time.perf_counter() - began, os.times()
            cpu = after.children_user + after.children_system - before.children_user - before.children_system
            print(
                f"{title}: {size / 1e6:.1f} MB on disk (written in {wrote:.0f} s), report in {took:.1f} s ({cpu:.1f} s of CPU), "
                f"{page.stat().st_size / 1e6:.1f} MB, {_drawn_after(page)}",
                flush=True,
            )


READY = """<script>addEventListener("load", () => {
  const drawn = document.querySelectorAll(".js-plotly-plot .main-svg").length;
  document.documentElement.dataset.ready = `${drawn} ${Math.round(performance.now())}`; });</script></body>"""


def _drawn_after(page: Path) -> str:
    """Return when Chromium has the first figures drawn and takes input; those out of sight are drawn later."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        return "no Chromium here to open it"
    content, _, rest = page.read_text().rpartition("</body>")
    page.write_text(content + READY + rest)
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r'data-ready="(\d+) (\d+)"', done.stdout)
    if found is None or found[1] == "0":
        return "Chromium drew nothing"
    return f"drawn in Chromium after {int(found[2]) / 1000:.2f} s"


def _write(path: Path, ticks: int) -> None:
    """Values that wander as a training job's do: steps of pages, a sawtooth per batch, jittered times."""
    from memgauge.storage import RunWriter

    chance = random.Random(1)
    writer = RunWriter(
        path,
        {
            "command": ["train"],
            "interval_ns": 10**8,
            "ended": {"how": "exit", "code": 0, "text": "exit code 0"},
        },
    )
    fast, cpu = writer.lane("fast"), writer.lane("cpu")
    columns, seconds, level = [], [], []
    for number in range(PROCESSES):
        process = writer.add_process(
            1000 + number,
            parent=None,
            name="python",
            command="python train.py",
            started_us=0,
            seen_us=0,
            found="given",
        )
        columns.append(
            fast.column(writer.add_series("fast", "rss_bytes", "/proc/PID/statm", process=process))
        )
        seconds.append(cpu.column(writer.add_series("cpu", "cpu_ns", "/proc/PID/stat", process=process)))
        level.append(500 * 2**20)
    used = fast.column(writer.add_series("fast", "system_used_bytes", "/proc/meminfo"))
    busy = [0] * PROCESSES
    for tick in range(ticks):
        for number in range(PROCESSES):
            if chance.random() < 0.5:
                level[number] = max(2**20, level[number] + 4096 * chance.randint(-2000, 2000))
            busy[number] += chance.randint(0, 100_000_000)
            columns[number].append(level[number])
            seconds[number].append(busy[number])
        used.append(sum(level) + 4096 * chance.randint(0, 5000))
        now = tick * 100_000 + chance.randint(50, 400)
        fast.times_us.append(now)
        cpu.times_us.append(now)
        if tick % 8 == 0 and fast.is_full():
            writer.flush()
    writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("peers", "loop", "marks", "exits", "files"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser.add_argument("--warm", type=float, default=12.0, help="peers: seconds before the window")
    parser.add_argument("--busy", type=int, default=0, help="peers: processes that keep a core busy beside")
    parser.add_argument("--rounds", type=int, default=3, help="peers: windows of each tool at each interval")
    parser.add_argument("--only", help="peers: beginnings of tools' names, with commas between them")
    asked = parser.parse_args()
    if asked.what == "peers":
        peers(asked.warm, asked.busy, asked.rounds, asked.only.split(",") if asked.only else ())
    else:
        {"loop": loop, "marks": marks, "exits": exits, "files": files}[asked.what]()
