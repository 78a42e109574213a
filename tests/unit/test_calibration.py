"""Calibration: what can be tested without a GPU is everything after the readings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from memgauge import devices
from memgauge.calibration import CONSTANTS, Calibration, Readings, calibrated, device_toml, nearest
from memgauge.cli import main
from memgauge.devices.context import context
from memgauge.devices.stack import Stack
from memgauge.errors import UsageError
from memgauge.units import GIB, MIB

T4 = Readings(
    title="Tesla T4",
    total_bytes=15_828_320_256,
    compute_capability=(7, 5),
    multiprocessors=40,
    threads_per_multiprocessor=1024,
    ladder={
        "init": 110_100_480,
        "product": 137_363_456,
        "convolution": 141_426_688,
        "backward": 143_000_000,
        "optimizer": 143_000_000,
    },
    cublas_workspace=8_519_680,
    backward_workspace=8_519_680,
    constants=dict(CONSTANTS),
    torch="2.11.0+cu128",
    cuda="12.8",
    driver="570.1",
    used_before=0,
)


def test_the_card_is_recognised_and_the_catalogue_is_judged() -> None:
    result = calibrated(T4)
    assert result.nearest == "nvidia-t4"
    judged = {row.figure: row for row in result.deviations}
    assert judged["context"].is_inside
    assert judged["context"].measured_bytes == 143_000_000
    assert judged["cuBLAS workspace, first product"].is_inside
    assert judged["segment for a shared request"].is_inside
    off = calibrated(msgspec.structs.replace(T4, constants={"shared": 40 * MIB}))
    assert {r.figure: r.is_inside for r in off.deviations}["segment for a shared request"] is False


@pytest.mark.parametrize(
    ("title", "gib", "capability", "name"),
    [
        ("NVIDIA GeForce RTX 4070", 11.6, (8, 9), "nvidia-rtx-4070"),
        ("NVIDIA GeForce RTX 4070 Ti", 11.7, (8, 9), "nvidia-rtx-4070-ti"),
        ("NVIDIA GeForce RTX 4080 SUPER", 15.6, (8, 9), "nvidia-rtx-4080-super"),
        ("NVIDIA GeForce RTX 3090", 23.7, (8, 6), "nvidia-rtx-3090"),
        ("NVIDIA H100 80GB HBM3", 79.1, (9, 0), "nvidia-h100-80gb"),
        ("NVIDIA H100 PCIe", 79.1, (9, 0), "nvidia-h100-pcie"),
    ],
)
def test_a_card_is_told_from_its_sisters(
    title: str, gib: float, capability: tuple[int, int], name: str
) -> None:
    known = nearest(title, capability, int(gib * GIB))
    assert known is not None and known.name == name


def test_a_calibrated_amd_card_stays_one(tmp_path: Path) -> None:
    found = msgspec.structs.replace(
        T4, title="AMD Instinct MI300X", total_bytes=206_136_955_371, compute_capability=None,
        architecture="gfx942", torch="2.6.0+rocm6.2", cuda="6.2.41133", cublas_workspace=128 * MIB,
    )  # fmt: skip
    result = calibrated(found)
    assert result.nearest == "amd-mi300x"
    assert {r.figure: r.is_inside for r in result.deviations}["cuBLAS workspace, first product"]
    path = tmp_path / "device.toml"
    path.write_text(device_toml(result.device))
    assert not devices.find(str(path)).is_nvidia


def test_a_card_that_is_not_listed_is_still_described() -> None:
    strange = msgspec.structs.replace(T4, total_bytes=5 * GIB, title="Something Else")
    result = calibrated(strange)
    assert result.nearest is None
    assert result.device.capacity_bytes == 5 * GIB


def test_the_file_is_read_back_as_the_same_device(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    made = calibrated(msgspec.structs.replace(T4, title='The "quick" card\\')).device
    path.write_text(device_toml(made))
    assert devices.find(str(path)) == made


def test_device_cuda_says_what_to_do_before_and_is_listed_after_a_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for arguments in ("estimate zoo:mlp --device cuda", "devices cuda"):
        assert main(arguments.split()) == 0
        out = " ".join(capfd.readouterr().out.split())
        assert "memgauge calibrate" in out and "--device NAME" in out

    def listed() -> str:
        assert main(["devices"]) == 0
        return next(line for line in capfd.readouterr().out.splitlines() if line.startswith("cuda "))

    assert "calibrate" in listed()
    file = devices.calibration_file()
    file.parent.mkdir(parents=True)
    file.write_text(device_toml(calibrated(T4).device))
    assert "calibrate" not in listed() and "Tesla T4" in listed()


def test_device_cuda_uses_the_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert devices.find("cuda").capacity_bytes is None
    path = devices.calibration_file()
    path.parent.mkdir()
    path.write_text(device_toml(calibrated(T4).device))
    found = devices.find("cuda")
    assert found.capacity_bytes == T4.total_bytes
    figure, basis = context(found, Stack())
    assert figure.expected == 143_000_000 and basis.grade == "measured"


@pytest.mark.parametrize("last", [0, 14 * GIB])
def test_readings_that_cannot_be_right_are_refused(last: int) -> None:
    ladder = dict.fromkeys(("init", "product"), last)
    with pytest.raises(UsageError, match="another process"):
        calibrated(msgspec.structs.replace(T4, ladder=ladder))


def test_without_a_gpu_the_command_says_so_and_writes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    out = tmp_path / "card.toml"
    assert main(["calibrate", "--out", str(out)]) == 3
    said = capfd.readouterr()
    assert said.out == "" and "no CUDA device here" in said.err
    assert "--device cpu" not in said.err  # which this command does not have
    assert not out.exists()


def test_the_measuring_process_needs_a_device() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    command = [sys.executable, "-m", "memgauge.frameworks.torch.cuda_ladder"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert done.returncode == 3 and done.stdout == ""


def test_a_calibration_is_one_json_document() -> None:
    text = msgspec.json.encode(calibrated(T4))
    assert msgspec.json.decode(text)["schema"] == "memgauge.calibration/1"
    assert msgspec.json.decode(text, type=Calibration).nearest == "nvidia-t4"
