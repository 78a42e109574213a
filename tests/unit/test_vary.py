"""Many cards, many values, and the largest that fits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import memgauge
from memgauge import devices, vary
from memgauge.affine import Affine
from memgauge.arguments import TargetOptions
from memgauge.devices.stack import Stack
from memgauge.errors import UsageError
from memgauge.records import Category, MemoryEvent, Scratch, Trace
from memgauge.targets import resolve
from memgauge.varied import Tracer, Varied, tracer
from memgauge.vary import convolved_on, curve, largest, over_catalogue, parse_values

MLP = {"options": TargetOptions(), "sets": {}}


def varied(target: str = "zoo:torres-cnn", **options: object) -> Varied:
    asked = dataclasses.replace(TargetOptions(), **options)  # type: ignore[arg-type]
    return Varied(target, devices.find("nvidia-t4"), "batch_size", asked, {}, 3, None)


def test_replayed_values_equal_traced_ones() -> None:
    once = varied()
    assert once.trace(100).events != once.trace(8).events
    assert 100 not in once.traced  # interpolated
    real = once.really(100)
    assert [e.requested_bytes for e in Varied.trace(varied(), 100).events] == [
        e.requested_bytes for e in real.events
    ]


def test_the_largest_of_what_changes_the_number_of_events_is_found_in_few_traces(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(
        "import torch, memgauge\n"
        "def run(depth: int = 1):\n"
        "    build = lambda: torch.nn.Sequential(*(torch.nn.Linear(8192, 8192) for _ in range(depth)))\n"
        "    step = lambda model, x: model(x).sum().backward()\n"
        "    return memgauge.Workload(build=build, batch=lambda: torch.zeros(1, 8192), step=step)\n"
    )
    told: list[str] = []
    found = largest(f"{tmp_path}/deep.py:run", device="nvidia-t4", name="depth", tell=told.append, **MLP)
    assert found.surely is not None and found.probably is not None
    fits = {row.value: row.fits.verdict for row in found.curve.rows}
    assert fits[found.surely] == "yes" != fits[found.surely + 1]
    assert 25 <= found.surely <= found.probably <= 30  # parameters and gradients of 512 MiB a layer, 15 GiB
    assert len(told) == len(found.curve.traced) <= 12


def test_sizes_off_the_line_are_noticed() -> None:
    once = varied()
    first, second, third = (once.really(v) for v in (8, 16, 40))
    line = Affine.through(8, first, 16, second)
    assert line is not None and line.gives(40, third)
    bent = [
        third.events[0]._replace(requested_bytes=third.events[0].requested_bytes + 512),
        *third.events[1:],
    ]
    assert not line.gives(40, dataclasses.replace(third, events=bent))
    assert not line.gives(40, dataclasses.replace(third, events=third.events[:-1]))


def test_scratch_may_lie_a_little_off_the_line_and_tensors_may_not() -> None:
    def run(size: int, mechanism: str | None) -> Trace:
        scratch = {} if mechanism is None else {0: Scratch(mechanism, 0, size)}
        events = [MemoryEvent(0, size, "", "", ""), MemoryEvent(0, -size, "", "", "")]
        return Trace(events=events, categories=[Category.TEMPORARY], layers=[""], scratch=scratch)

    assert Affine.through(8, run(100_000, None), 16, run(200_004, None)) is None
    line = Affine.through(8, run(100_000, "sorting"), 16, run(200_004, "sorting"))
    assert line is not None
    assert [e.requested_bytes for e in line.at(11).events] == [137_501, -137_501]
    assert line.gives(11, run(137_600, "sorting")) and not line.gives(11, run(139_000, "sorting"))


def test_the_catalogue_is_one_row_for_each_card_smallest_first() -> None:
    said: list[str] = []
    result = over_catalogue("zoo:mlp", tell=said.append, **MLP)  # type: ignore[arg-type]
    heard = [line.split()[3].rstrip(",") for line in said]
    # no torch of today has kernels for the K80
    assert [card for card in heard if card != "nvidia-k80"] == [row.device for row in result.rows]
    assert result.rows[0].device == "nvidia-rtx-2060"
    assert len(result.rows) == len(devices.gpus()) - 1 and len(result.left_out) == 1
    assert {row.fits.verdict for row in result.rows} == {"yes"}


def test_a_row_of_the_catalogue_is_what_an_estimate_for_that_card_says(tmp_path: Path) -> None:
    # Three cards of one compute capability: cuDNN divides work among their multiprocessors, and a
    # program may size its batch by the card's memory.
    (tmp_path / "by_memory.py").write_text(
        "import memgauge, torch\n"
        "def by_memory():\n"
        "    def batch():\n"
        "        return torch.randn(torch.cuda.get_device_properties(0).total_memory // 2**30, 1 << 20)\n"
        "    return memgauge.Workload(build=lambda: torch.nn.Linear(1 << 20, 1), batch=batch,\n"
        "        step=lambda model, x: model(x).sum().backward())\n"
    )
    half = TargetOptions(batch_size=2, precision="float16")
    for target, options in (
        ("torchvision:resnet18", half),
        (f"{tmp_path}/by_memory.py:by_memory", TargetOptions()),
    ):
        rows = {row.device: row for row in over_catalogue(target, options=options, sets={}).rows}
        for card in ("nvidia-rtx-3060", "nvidia-a6000", "nvidia-rtx-3090"):
            alone = memgauge.estimate(target, device=card, options=options)
            assert rows[card].device_bytes == alone.peak.device_bytes, (target, card)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_trace_of_another_card_is_that_cards_own_once_its_convolutions_are(precision: str) -> None:
    tracing = tracer(1, None)[0]
    workload = resolve("torchvision:resnet18", TargetOptions(batch_size=8, precision=precision), {})
    cards = ("nvidia-rtx-3090", "nvidia-a6000", "nvidia-rtx-3060-8gb", "nvidia-a10g")
    own = {card: tracing(workload, devices.find(card)) for card in cards}
    first = own["nvidia-rtx-3090"]
    for card in cards:
        assert convolved_on(devices.find(card), first) == own[card], card
    assert precision == "float32" or any(trace.events != first.events for trace in own.values())


@pytest.mark.parametrize(("searches", "most"), [(False, 20), (True, 200)])
def test_cards_that_run_the_same_kernels_share_a_trace_unless_cudnn_searches(
    monkeypatch: pytest.MonkeyPatch, searches: bool, most: int
) -> None:
    said: list[str] = []

    def counting(steps: int, stack: Stack | None) -> Tracer:
        tracing, software = tracer(steps, stack)

        def counted(workload: Any, place: devices.Device) -> Trace:
            said.append(place.name)
            return tracing(workload, place)

        return counted, software

    monkeypatch.setattr(vary, "tracer", counting)
    stack = Stack(cudnn_benchmark=True) if searches else None
    options = TargetOptions(batch_size=4)
    rows = over_catalogue("zoo:torres-cnn", options=options, sets={}, steps=1, stack=stack).rows
    assert (len(said) == len(rows)) is searches and len(said) <= most
    assert len(set(said)) == len(said)


def test_a_curve_grows_with_the_batch() -> None:
    result = curve("zoo:torres-cnn", device="nvidia-t4", name="batch_size", values=(16, 64, 256), **MLP)  # type: ignore[arg-type]
    peaks = [row.allocated_bytes for row in result.rows]
    assert peaks == sorted(peaks) and len(set(peaks)) == 3
    assert result.is_affine and result.traced == (8, 16, 40, 256)  # the largest is traced, to be sure


def test_the_largest_fits_and_the_next_does_not() -> None:
    result = largest("zoo:torres-cnn", device="nvidia-rtx-4060", name="batch_size", **MLP)  # type: ignore[arg-type]
    assert result.surely is not None and result.probably is not None
    assert 1 <= result.surely <= result.probably
    rows = {row.value: row for row in result.curve.rows}
    assert rows[result.surely].fits.verdict == "yes"
    assert rows[result.surely + 1].fits.verdict != "yes"
    need = rows[result.probably + 1].fits.least_capacity_bytes
    capacity = rows[result.probably + 1].fits.capacity_bytes
    assert need is not None and capacity is not None and need.expected > capacity
    assert result.binds["phase"].startswith("step")


@pytest.mark.parametrize("card", ["nvidia-rtx-4060", "nvidia-t4"])
def test_what_fit_says_of_a_value_is_what_an_estimate_says(card: str) -> None:
    options = TargetOptions(optimizer="adam", precision="amp-float16")
    found = largest("torchvision:resnet18", device=card, name="batch_size", options=options, sets={})
    assert found.surely is not None and found.probably is not None
    for value in (found.surely, found.surely + 1, found.probably, found.probably + 1):
        row = next(row for row in found.curve.rows if row.value == value)
        alone = memgauge.estimate(
            "torchvision:resnet18", device=card, options=dataclasses.replace(options, batch_size=value)
        )
        assert alone.fits is not None
        assert (row.fits, row.device_bytes) == (alone.fits, alone.peak.device_bytes), value


def test_a_largest_of_many_millions_is_found() -> None:
    result = largest("zoo:mlp", device="nvidia-b200", name="batch_size", **MLP)  # type: ignore[arg-type]
    assert result.surely is not None and result.surely > 2**22
    assert result.curve.traced == (1, 2, 4, 8, 16, 40, result.probably)  # the rest by replays


# Below 3,072 indices the gradient of an embedding is summed without sorting; at most 4,000 are taken.
EMBEDDED = """
import memgauge, torch

def embedded(count: int = 1, most: int = 4000):
    def build():
        model = torch.nn.Embedding(50_000, 768)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def batch():
        if count < 3:
            raise ValueError(f"{count} is too few")
        if count > most:
            raise ValueError(f"{count} is more than {most}")
        return torch.zeros(count * 64, dtype=torch.int64)

    def step(model, optimizer, ids):
        model(ids).sum().backward()
        optimizer.step()

    return memgauge.Workload(build=build, batch=batch, step=step)
"""


def embedded(folder: Path) -> str:
    (folder / "embedded.py").write_text(EMBEDDED)
    return f"{folder / 'embedded.py'}:embedded"


def test_a_line_that_ends_somewhere_is_noticed(tmp_path: Path) -> None:
    target = embedded(tmp_path)
    found = curve(target, device="nvidia-t4", name="count", values=(4, 40, 100, 1000), **MLP)  # type: ignore[arg-type]
    for row in found.rows:
        sets = {"count": str(row.value)}
        alone = memgauge.estimate(target, device="nvidia-t4", sets=sets)
        assert row.device_bytes == alone.peak.device_bytes, row.value


def test_the_largest_lies_beyond_the_end_of_a_line(tmp_path: Path) -> None:
    target, sets = embedded(tmp_path), {"most": "1000000"}
    found = largest(target, device="nvidia-t4", name="count", options=TargetOptions(), sets=sets)
    assert found.probably is not None and found.probably in found.curve.traced
    assert found.curve.rows[0].value == 4  # 1 and 2 are refused
    for value, fits in ((found.probably, True), (found.probably + 1, False)):
        alone = memgauge.estimate(target, device="nvidia-t4", sets={**sets, "count": str(value)}).fits
        assert alone is not None and alone.least_capacity_bytes is not None
        assert (alone.least_capacity_bytes.expected <= (alone.capacity_bytes or 0)) is fits
    assert not found.limit


def test_the_largest_is_at_most_what_the_target_takes(tmp_path: Path) -> None:
    target = embedded(tmp_path)
    found = largest(target, device="nvidia-b200", name="count", options=TargetOptions(), sets={})
    assert found.surely == found.probably == 4000
    assert "4001 is more than 4000" in found.limit
    with pytest.raises(UsageError, match="1 is too few"):
        largest(target, device="nvidia-t4", name="count", options=TargetOptions(), sets={"most": "2"})


def test_positions_end_a_search(tmp_path: Path) -> None:
    found = largest(
        "zoo:gpt2",
        device="nvidia-a100-80gb",
        name="sequence_length",
        options=TargetOptions(batch_size=1),
        sets={},
    )
    assert found.surely == found.probably == 1024 and "1024 positions" in found.limit


def test_what_does_not_grow_has_no_largest(tmp_path: Path) -> None:
    (tmp_path / "same.py").write_text(
        "import memgauge, torch\n"
        "def same(seed: int = 1):\n"
        "    return memgauge.Workload(build=lambda: torch.nn.Linear(4, 4), batch=lambda: torch.randn(2, 4),\n"
        "        step=lambda model, x: model(x).sum().backward())\n"
    )
    target = f"{tmp_path / 'same.py'}:same"
    with pytest.raises(UsageError, match="memory does not grow with seed"):
        largest(target, device="nvidia-t4", name="seed", options=TargetOptions(), sets={})


@pytest.mark.parametrize(
    "text",
    ["batch_size", "batch_size=8,16,8", "batch_size=", "batch_size=8,x", "batch_size=0", "=8", "a b=8"],
)
def test_values_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--vary"):
        parse_values(text)


def test_what_is_given_cannot_vary_as_well() -> None:
    with pytest.raises(UsageError, match="both given and varied"):
        varied(batch_size=8)


def test_only_cards_of_known_size_have_a_largest() -> None:
    with pytest.raises(UsageError, match="--device cpu"):
        largest("zoo:mlp", device="cpu", name="batch_size", **MLP)  # type: ignore[arg-type]
