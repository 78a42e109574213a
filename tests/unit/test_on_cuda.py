"""What only a machine with CUDA reaches, from start to end on a pretended device: not on hardware."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from pretended_cuda import UUID, Device, PretendedNvml, pretended

from benchmarks.gpu import __main__ as suite
from benchmarks.gpu import measured
from benchmarks.gpu.replayed import replayed
from benchmarks.gpu.workloads import SUITE
from memgauge import devices
from memgauge.calibration import Readings, calibrated
from memgauge.child import Job, Result, run_job
from memgauge.cli import calibrate, main
from memgauge.frameworks.torch import cuda_ladder, trial_run
from memgauge.frameworks.torch.cuda_run import cuda_run
from memgauge.measure import _measurement
from memgauge.monitor import framework_memory, nvml
from memgauge.records import Category, Trace
from memgauge.units import GIB, MIB
from memgauge.workload import Workload

WORKLOADS = [
    "mlp", "vgg cudnn.benchmark", "residual channels_last amp", "unet", "lstm", "decoder checkpointing",
    "decoder empty_cache", "decoder adam,fused", "encoder efficient", "mobile infer",
    "decoder expandable_segments:True", "residual max_split_size_mb:64", "decoder roundup_power2_divisions:4",
]  # fmt: skip


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_of_the_suite_is_measured_and_its_history_is_whole(name: str) -> None:
    conf = SUITE[name].alloc_conf
    device = Device(alloc_conf=conf, others_bytes=3 * GIB)
    with pretended(device, PretendedNvml(device)):
        row = json.loads(json.dumps(measured.answer(name)))
    assert "error" not in row, row
    held = row["reserved_now"]
    assert row["process"] == row["used"] - row["used_before"] == Device.CONTEXT + held
    assert row["cuda_used"] == Device.CONTEXT + held + 3 * GIB
    # What torch gave back before the end was on the device at the peak.
    assert suite.device_bytes(row) == Device.CONTEXT + row["reserved"]
    assert held < row["reserved"] or "empty_cache" not in name
    again = replayed(row["history"], conf)
    assert again["peak"] == again["recorded_peak"] == row["reserved"] and not again["differing"]
    assert row["requested"] <= row["allocated"] <= row["reserved"]


def test_without_nvml_the_driver_is_asked() -> None:
    device = Device()
    with pretended(device):
        row = measured.answer("mlp")
    assert row["process"] is row["used"] is row["used_before"] is None
    assert suite.device_bytes(row) == device.CONTEXT + row["reserved"]


def test_what_was_in_use_before_is_read_once_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    # The driver gives back what an ended process had a moment after its end.
    seen = iter([9, 7, 5, 5, 3])
    monkeypatch.setattr(nvml, "used_bytes", lambda: {UUID: next(seen)})
    assert measured.settled(every_s=0) == {UUID: 5}
    monkeypatch.setattr(nvml, "used_bytes", dict)
    assert measured.settled(at_most_s=600) == {}


def test_memory_that_runs_out_is_an_answer_with_the_place_where_it_did() -> None:
    device = Device(total_bytes=1 * GIB)
    with pretended(device, PretendedNvml(device)):
        row = measured.answer("decoder")
    assert row["error"] == "OutOfMemoryError: CUDA out of memory. Tried to allocate much."
    assert any("in request" in line for line in row["traceback"]) and len(row["traceback"]) <= 12


def pretend_servers(monkeypatch: pytest.MonkeyPatch, total_bytes: int = 80 * GIB) -> list[str]:
    """Measure on pretended devices of this process; the list tells what was measured."""
    asked: list[str] = []

    def answer(_: object, name: str) -> dict[str, Any]:
        device = Device(total_bytes=total_bytes, alloc_conf=SUITE[name].alloc_conf if name else "")
        asked.append(name)
        with pretended(device, PretendedNvml(device)):
            return dict(json.loads(json.dumps(measured.answer(name))))

    monkeypatch.setattr(suite._Servers, "measured", answer)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # which the command hides from itself
    return asked


def run_suite(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", *arguments])
    return suite.main()


def test_the_suite_writes_all_that_it_shows_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = pretend_servers(monkeypatch)
    out = str(tmp_path / "gpu.json")
    assert run_suite(monkeypatch, "--out", out, "--only", "mlp", "--minutes", "0") == 0
    assert asked == [""] and "1 left" in capsys.readouterr().err
    assert run_suite(monkeypatch, "--out", out, "--only", "mlp") == 0
    assert run_suite(monkeypatch, "--out", out, "--only", "mlp;lstm infer") == 0
    assert asked == ["", "", "mlp", "", "lstm infer"]
    document = json.loads(Path(out).read_text())
    assert document["machine"]["capability"] == [9, 0]
    for name in ("mlp", "lstm infer"):
        row = document["rows"][name]
        assert row["replay"]["peak"] == row["reserved"]
        # The device was pretended from the same trace, so the estimate is known to be right.
        assert row["estimate"]["allocated"] == row["allocated"]
    table = capsys.readouterr().out
    assert "exact" in table and "lstm infer" in table


def test_the_card_is_kept_up_between_workloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    asked = pretend_servers(monkeypatch)
    monkeypatch.setattr(nvml, "used_bytes", lambda: looks.append("by the suite's own process") or {})
    assert run_suite(monkeypatch, "--out", str(tmp_path / "gpu.json"), "--only", "mlp", "--minutes", "0") == 0
    assert asked == [""] and len(looks) == 1


def test_what_was_done_is_kept_when_the_user_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_servers(monkeypatch)
    answer = suite._Servers.measured

    def stopped(servers: Any, name: str) -> dict[str, Any]:
        if name == "gru infer":
            raise KeyboardInterrupt
        return answer(servers, name)

    monkeypatch.setattr(suite._Servers, "measured", stopped)
    out = tmp_path / "gpu.json"
    assert run_suite(monkeypatch, "--out", str(out), "--only", "mlp infer;gru infer;lstm") == 130
    rows = json.loads(out.read_text())["rows"]
    assert list(rows) == ["mlp infer"] and "estimate" in rows["mlp infer"]


def test_a_small_card_skips_with_the_reason_and_another_card_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_servers(monkeypatch, total_bytes=int(1.1 * GIB))
    out = tmp_path / "gpu.json"
    assert run_suite(monkeypatch, "--out", str(out), "--only", "decoder;mlp infer") == 0
    rows = json.loads(out.read_text())["rows"]
    assert "out of memory" in rows["decoder"]["error"] and "error" not in rows["mlp infer"]
    assert "out of memory" in capsys.readouterr().out
    document = json.loads(out.read_text())
    document["machine"]["gpu"] = "Tesla T4"
    out.write_text(json.dumps(document))
    with pytest.raises(SystemExit) as ended:
        run_suite(monkeypatch, "--out", str(out))
    assert ended.value.code == 2 and "Tesla T4" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_said_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = pretend_servers(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        run_suite(monkeypatch, "--out", str(tmp_path / "none" / "gpu.json"))
    assert ended.value.code == 2 and not asked and "no folder" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_for_each_whatever_becomes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(name: str) -> dict[str, Any]:
        os.write(1, b"something that a library says\n")
        if name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "interrupted":
            raise KeyboardInterrupt
        return {"name": name, "pid": os.getpid()}

    monkeypatch.setattr(measured, "answer", answer)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    pids = {json.loads(measured.forked("a"))["pid"], json.loads(measured.forked("b"))["pid"]}
    assert len(pids) == 2 and os.getpid() not in pids
    assert "signal 9" in json.loads(measured.forked("killed"))["error"]
    assert "exit code 1" in json.loads(measured.forked("interrupted"))["error"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("is_known", "answer"),
    [
        (True, {"pid": 1}),
        (False, {"name": "mlp", "error": "RuntimeError: CUDA driver error: initialization error"}),
        (False, {"gpu": None}),
    ],
)
def test_where_cuda_has_begun_before_the_fork_a_process_begins_anew(
    monkeypatch: pytest.MonkeyPatch, is_known: bool, answer: dict[str, Any]
) -> None:
    def begin(path: str, arguments: list[str]) -> None:
        os.write(1, json.dumps(arguments).encode())
        os._exit(0)

    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: is_known)
    monkeypatch.setattr(measured, "answer", lambda name: answer)
    monkeypatch.setattr(os, "execv", begin)
    assert json.loads(measured.forked("mlp")) == [sys.executable, "-m", "benchmarks.gpu.measured", "mlp"]


def server(code: str) -> Any:
    class Servers(suite._Servers):
        def _start(self, conf: str) -> Any:
            import subprocess

            pipe = subprocess.PIPE
            command = [sys.executable, "-c", code]
            return subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=self._said, start_new_session=True
            )

    return Servers(dict(os.environ))


def test_a_server_that_dies_or_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    dying = "import sys; sys.stdin.readline(); sys.exit('the driver is gone')"
    with server(dying) as servers:
        for _ in range(2):
            row = servers.measured("mlp")
            assert row["error"] and row["traceback"][-1] == "the driver is gone"
    monkeypatch.setattr(suite, "_START_S", 0.2)
    monkeypatch.setattr(suite, "_TIMEOUT_S", 0.2)
    with server("input(); input()") as servers:
        assert servers.measured("mlp")["error"] == "no end within 0.4 s"
        assert servers._process is None
    monkeypatch.setattr(suite, "_TIMEOUT_S", 5)
    with server("input(); input()") as servers:
        servers.until = time.monotonic() - 1  # the suite's minutes are over
        assert servers.measured("mlp")["error"] == "no end within 1 s"


def test_a_server_inherits_where_packages_are_but_no_settings() -> None:
    environment = {"PYTHONPATH": "/there", "PYTORCH_ALLOC_CONF": "max_split_size_mb:100", "HOME": "/"}
    with suite._Servers(environment) as servers:
        assert servers._environment["PYTHONPATH"].endswith("/there")
        assert "PYTORCH_ALLOC_CONF" not in servers._environment


# -- calibrate -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seen",
    [
        lambda d: PretendedNvml(d),
        lambda d: PretendedNvml(d, count=3, place=2),  # CUDA_VISIBLE_DEVICES=2: torch's 0 is NVML's 2
        lambda d: PretendedNvml(d, is_slice=True),
        lambda d: None,
    ],
)
def test_the_ladder_is_what_the_process_takes_beside_torch(seen: Any) -> None:
    device = Device()
    binding = seen(device)
    if binding is not None:
        device.others_bytes = 5 * GIB  # they use the device, too; without NVML nobody can tell
    with pretended(device, binding):
        found = cuda_ladder.readings()
    assert set(found.ladder.values()) == {Device.CONTEXT}
    assert (found.cublas_workspace, found.backward_workspace) == (32 * MIB, 32 * MIB)
    assert found.constants == {"small": 2 * MIB, "shared": 20 * MIB, "own": 32 * MIB}
    assert found.driver == ("580.159.04" if binding else "")
    assert calibrated(found).nearest == "nvidia-h100-80gb"


def test_calibrate_writes_a_file_that_estimates_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    device = Device()
    with pretended(device, PretendedNvml(device)):
        text = msgspec.json.encode(cuda_ladder.readings())
    assert isinstance(msgspec.json.decode(text, type=Readings), Readings)
    monkeypatch.setattr(calibrate, "_measured", lambda: text)
    out = tmp_path / "card.toml"
    assert main(["calibrate", "--out", str(out)]) == 0
    capfd.readouterr()
    assert devices.find(str(out)).capacity_bytes == 80 * GIB
    assert main(["estimate", "zoo:mlp", "--device", str(out), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["peak"]["device_bytes"]["expected"] > Device.CONTEXT


# -- measure --device cuda, and a study's trial ----------------------------------------------------------


def perceptron() -> Workload:
    def build() -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))
        return model, torch.optim.Adam(model.parameters())

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return Workload(build=build, batch=lambda: torch.randn(64, 512), step=step)


PARAMETERS = 4 * (512 * 1024 + 1024 + 1024 * 8 + 8)


def held(trace: Trace, category: Category) -> int:
    now: dict[int, int] = {}
    for event in trace.events:
        now[event.storage] = now.get(event.storage, 0) + event.requested_bytes
    return sum(size for storage, size in now.items() if trace.categories[storage] is category)


def test_a_run_on_cuda_becomes_a_trace_with_its_roles_and_exact_peaks() -> None:
    device = Device()
    with pretended(device, PretendedNvml(device)):
        before = torch.zeros(1000, device="cuda")  # the history has nothing of it
        trace, facts = cuda_run(perceptron(), steps=3)
        del before
    assert held(trace, Category.PARAMETER) == PARAMETERS
    assert held(trace, Category.GRADIENT) == PARAMETERS
    assert held(trace, Category.OPTIMIZER_STATE) >= 2 * PARAMETERS
    inputs = [
        e for e in trace.events if trace.categories[e.storage] is Category.INPUT and e.requested_bytes > 0
    ]
    assert [(e.phase, e.requested_bytes) for e in inputs] == [
        (f"step {n} forward", 64 * 512 * 4) for n in (1, 2, 3)
    ]
    assert {e.layer for e in trace.events} >= {"0", "2"}
    assert facts["reserved_bytes"] == device.allocator.peak_reserved_bytes
    assert facts["device_bytes"] == device.process_bytes and "NVML" in facts["device_instrument"]


@pytest.mark.parametrize("tells", [True, False])
def test_what_torch_gave_back_before_the_end_counts(tells: bool) -> None:
    def step(model: Any, optimizer: Any, batch: Any) -> None:
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()

    device = Device()
    with pretended(device, PretendedNvml(device) if tells else None):
        _, facts = cuda_run(Workload(build=perceptron().build, batch=perceptron().batch, step=step), steps=1)
    assert facts["device_bytes"] == Device.CONTEXT + facts["reserved_bytes"] > device.process_bytes
    assert "gave back" in facts["device_instrument"]


def test_where_the_driver_counts_other_pids_the_whole_device_is_told() -> None:
    device = Device(others_bytes=GIB)
    binding = PretendedNvml(device)
    binding.pids_are_the_hosts = True
    with pretended(device, binding):
        _, facts = cuda_run(perceptron(), steps=1)
    assert facts["device_bytes"] == device.process_bytes + GIB
    assert "all processes" in facts["device_instrument"]


def test_a_run_that_runs_out_of_memory_leaves_what_was_seen() -> None:
    device = Device(total_bytes=Device.CONTEXT + 21 * MIB)
    with pretended(device, PretendedNvml(device)), pytest.raises(torch.OutOfMemoryError) as caught:
        cuda_run(perceptron(), steps=3)
    assert any(e.requested_bytes == 512 * 1024 * 4 for e in caught.value.partial_trace.events)  # type: ignore[attr-defined]


class Writer:
    def __init__(self) -> None:
        self.result = Result()

    def write(self) -> None:
        msgspec.msgpack.encode(self.result)


def test_measure_puts_both_runs_together(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for kind in ("bare", "cuda"):
        device, writer = Device(), Writer()
        job = Job(kind=kind, target="zoo:mlp", device="cuda", steps=2)
        with pretended(device, PretendedNvml(device)):
            run_job(job, writer)  # type: ignore[arg-type]
        results.append(msgspec.msgpack.decode(msgspec.msgpack.encode(writer.result), type=Result))
    said = _measurement("zoo:mlp", devices.find("cuda"), *results, "completed", 2)
    text = json.loads(msgspec.json.encode(said, enc_hook=str))
    assert text["peak"]["allocated_bytes"] <= text["peak"]["reserved_bytes"]
    assert text["peak"]["device_bytes"]["expected"] == Device.CONTEXT + text["peak"]["reserved_bytes"]
    assert len(text["step_ns"]) == 2 and "nvml" in text["instruments"]["peak.device_bytes"].lower()


def test_steps_on_cuda_are_timed_to_the_end_of_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    waited: list[int] = []
    with pretended(device, PretendedNvml(device)):
        real = torch.cuda.synchronize
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: (waited.append(1), real())[0])
        seconds, each = trial_run.run_trial(perceptron(), steps=2, device="cuda")
        peaks = trial_run.device_peaks()
    assert len(waited) == 2 and len(each) == 2 and seconds == sum(each)
    assert peaks["peak_reserved_bytes"] == device.allocator.peak_reserved_bytes


def test_marks_carry_the_allocators_figures() -> None:
    device = Device()
    with pretended(device, PretendedNvml(device)):
        tensor = torch.zeros(MIB, device="cuda")
        facts = json.loads(framework_memory.figures())
        del tensor
    assert facts["allocated_bytes"] == facts["allocated_peak_bytes"] == 4 * MIB
    assert facts["reserved_bytes"] == 20 * MIB and facts["device"] == 0


# -- NVML by UUID ---------------------------------------------------------------------------------------


def test_a_device_is_found_by_its_uuid_with_and_without_the_prefix() -> None:
    device = Device()
    with pretended(device, PretendedNvml(device, count=2, place=1)):
        figures = nvml.used_bytes()
        assert nvml.of_device(figures, UUID) == nvml.of_device(figures, f"GPU-{UUID}") == Device.RESERVE
        assert nvml.of_device(figures, "") is None  # two of them, and torch does not say which
        assert nvml.process_bytes(UUID) is None  # no context yet
        device.memory_info()
        assert nvml.process_bytes(UUID) == Device.CONTEXT


def test_nothing_is_known_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml  # the real binding; there is no driver where tests run

    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a GPU here")
    assert pynvml is not None
    assert nvml.used_bytes() == {} and nvml.process_bytes(UUID) is None and nvml.driver_version() == ""
