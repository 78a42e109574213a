"""What libraries take, at the moment when they take it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from memgauge import devices
from memgauge.devices import convolutions, libraries
from memgauge.devices.stack import Stack
from memgauge.estimate import traced
from memgauge.frameworks.torch.cuda_convolution import WITHOUT_CUDNN_NOTE
from memgauge.records import Trace
from memgauge.units import MIB
from memgauge.workload import Workload


def run(
    model: Any,
    *shape: int,
    stack: Stack | None = None,
    device: str = "nvidia-a100-40gb",
    before: Any = None,
    to: torch.dtype = torch.float32,
) -> Trace:
    def build() -> Any:
        if before is not None:
            before()
        return model()

    def step(model: nn.Module, x: torch.Tensor) -> None:
        model(x).sum().backward()

    workload = Workload(build=build, batch=lambda: torch.randn(*shape, dtype=to), step=step)
    return traced(workload, devices.find(device), steps=3, threads=1, stack=stack or Stack(torch=(2, 6)))


def of(trace: Trace, mechanism: str) -> list[tuple[int, int]]:
    """Return index and bytes of each request by a mechanism."""
    return [
        (index, event.requested_bytes)
        for index, event in enumerate(trace.events)
        if event.requested_bytes > 0
        and event.storage in trace.scratch
        and trace.scratch[event.storage].mechanism == mechanism
    ]


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


def test_each_of_two_threads_keeps_one_cublas_workspace() -> None:
    trace = run(linear, 32, 64)
    taken = of(trace, libraries.CUBLAS)
    assert [size for _, size in taken] == [8_519_680, 8_519_680]
    assert [trace.events[index].phase for index, _ in taken] == ["step 1 forward", "step 1 backward"]
    released = {e.storage for e in trace.events if e.requested_bytes < 0}
    assert all(trace.events[index].storage not in released for index, _ in taken)
    assert {trace.categories[trace.events[index].storage] for index, _ in taken} == {"workspace"}


def test_a_cublaslt_workspace_of_its_own_passes_by_and_since_torch_2_9_is_kept() -> None:
    def taken(**settings: Any) -> tuple[list[int], bool]:
        trace = run(linear, 32, 64, stack=Stack(**settings))
        found = of(trace, libraries.CUBLASLT)
        released = {e.storage for e in trace.events if e.requested_bytes < 0}
        return [size for _, size in found], any(trace.events[i].storage in released for i, _ in found)

    own = {"cublaslt_unified": False, "cublaslt_workspace_kib": 512}
    assert taken(torch=(2, 6), **own) == ([MIB // 2] * 6, True)
    assert taken(torch=(2, 13), **own) == ([MIB // 2], False)
    assert taken(torch=(2, 13)) == ([], False)


def test_an_amd_card_takes_hipblaslts_workspace() -> None:
    trace = run(linear, 32, 64, stack=Stack(torch=(2, 13)), device="amd-mi250")
    assert [size for _, size in of(trace, libraries.CUBLASLT)] == [76 * MIB]


def test_hopper_gets_the_larger_workspace_and_a_setting_overrides_it() -> None:
    assert of(run(linear, 32, 64, device="nvidia-h100-80gb"), libraries.CUBLAS)[0][1] == 32 * MIB
    off = Stack(torch=(2, 6), cublas_workspace_config=":0:0")
    assert of(run(linear, 32, 64, stack=off), libraries.CUBLAS) == []


def test_a_product_with_a_bias_takes_one_mebibyte_before_torch_2_9() -> None:
    assert {size for _, size in of(run(linear, 32, 64), libraries.CUBLASLT)} == {MIB}
    assert of(run(linear, 32, 64, stack=Stack(torch=(2, 13))), libraries.CUBLASLT) == []


def test_no_product_no_workspace() -> None:
    trace = run(lambda: nn.Sequential(nn.BatchNorm1d(8), nn.ReLU()), 32, 8)
    assert not trace.scratch


def test_products_with_a_sparse_matrix_are_cusparses() -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            places = torch.stack([torch.arange(1000), torch.arange(1000).flip(0)])
            links = torch.sparse_coo_tensor(places, torch.ones(1000), (1000, 1000), check_invariants=False)
            self.register_buffer("links", links.coalesce())
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(self.links, x * self.scale)

    trace = run(Graph, 1000, 64)
    result, product = 1000 * 64 * 4, 4 * 1001 + 4 * 1000 + 1000 * 64 * 4
    sorted_copy = 1000 * (2 * 8 + 4)
    (_, while_built), *taken = of(trace, libraries.SPARSE)
    assert while_built == 24 * 1000  # of `coalesce`
    # Forward; backward by the transposed matrix, which is not coalesced, added to zeros.
    step = [product, result + sorted_copy + 24 * 1000, result + sorted_copy + product]
    assert [size for _, size in taken] == step * 3
    assert of(trace, libraries.CUBLAS) == []
    assert any("cuSPARSE" in text for text in trace.unmodelled)


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))


def test_each_convolution_has_a_workspace_in_forward_and_one_for_each_gradient() -> None:
    trace = run(convolution, 4, 3, 32, 32)
    phases = [trace.events[index].phase for index, _ in of(trace, libraries.CONVOLUTION)]
    # The second layer has two gradients; the first has none of its input, which needs none.
    assert phases.count("step 1 forward") == 2
    assert phases.count("step 1 backward") == 3


def wide() -> nn.Module:
    return nn.Sequential(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1))


def test_what_kernels_read_is_copied_and_for_gradients_what_they_write() -> None:
    trace = run(wide, 4, 64, 32, 32)
    sizes: dict[str, list[int]] = {"forward": [], "backward": []}
    for index, size in of(trace, libraries.CONVOLUTION):
        phase = trace.events[index].phase
        if phase.startswith("step 1"):
            sizes[phase.removeprefix("step 1 ")].append(size)
    first = 4 * (4 * 64 * 32 * 32 + 128 * 64 * 9 + 4 * 128 * 32 * 32)
    second = 4 * (2 * 4 * 128 * 32 * 32 + 128 * 128 * 9)
    # 108 multiprocessors share five tiles of the first filter's gradient and nine of the second's.
    assert sizes["backward"] == [second, second + 12 * 128 * 128 * 9 * 4, first + 21 * 128 * 64 * 9 * 4]
    assert sizes["forward"] == [
        4 * (4 * 64 * 32 * 32 + 128 * 64 * 9),
        4 * (4 * 128 * 32 * 32 + 128 * 128 * 9),
    ]
    assert all(
        trace.scratch[trace.events[i].storage].low_bytes == 0 for i, _ in of(trace, libraries.CONVOLUTION)
    )


def test_narrow_layers_are_not_worth_a_copy() -> None:
    trace = run(convolution, 4, 3, 32, 32)
    assert {size for _, size in of(trace, libraries.CONVOLUTION)} == {1}  # nothing; a byte keeps its place


@pytest.mark.parametrize(
    ("data", "result", "kernel", "direction", "pays"),
    [
        (3, 64, 7, "forward", True),  # a stem: little is copied
        (3, 64, 7, "data", False),  # three channels fill a twentieth of a tile
        (64, 64, 3, "data", True),
        (32, 32, 3, "data", False),  # half a tile, and Winograd
        (32, 32, 3, "filter", True),  # which the filter's gradient cannot have
        (32, 32, 5, "forward", True),  # nor a kernel of five
    ],
)
def test_copies_for_tensor_cores_are_weighed_against_the_ordinary_units(
    data: int, result: int, kernel: int, direction: str, pays: bool
) -> None:
    one = dataclasses.replace(call(data, result, 32, 56, kernel), direction=direction)
    copied = one.data + one.weight + (0 if direction == "forward" else one.result)
    assert convolutions.pays(one, IN_TF32, 4 * copied) is pays


def test_in_channels_last_nothing_is_copied_but_partial_sums_are_kept() -> None:
    last = dataclasses.replace(call(64, 128, 32, 56, 3), channels_last=True)
    expected = {
        direction: convolutions.convolution_bytes(
            dataclasses.replace(last, direction=direction), IN_TF32, 108
        ).expected
        for direction in ("forward", "data", "filter")
    }
    # 108 multiprocessors share the five tiles of the filter's gradient.
    assert expected == {"forward": 0, "data": 0, "filter": 21 * 64 * 128 * 9 * 4}


def test_winograd_needs_neighbouring_points() -> None:
    plain = dataclasses.replace(call(32, 32, 32, 56, 3), direction="data")
    dilated = dataclasses.replace(plain, dilated=True)
    copied = 4 * (plain.data + plain.weight + plain.result)
    assert convolutions.winograd_bytes(plain) and not convolutions.winograd_bytes(dilated)
    assert (convolutions.pays(plain, IN_TF32, copied), convolutions.pays(dilated, IN_TF32, copied)) == (
        False,
        True,
    )
    trace = run(lambda: nn.Conv2d(8, 8, 3, dilation=2), 2, 8, 16, 16, device="nvidia-p100-16gb")
    highs = {trace.scratch[trace.events[i].storage].high_bytes for i, _ in of(trace, libraries.CONVOLUTION)}
    assert highs == {8 * 8 * 9 * 4}  # the filter; by Winograd it would be more


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 0, 8, 8)])
def test_a_convolution_of_nothing_is_nobodys(shape: tuple[int, ...]) -> None:
    trace = run(lambda: nn.Conv2d(shape[1], 4, 3), *shape)
    assert not of(trace, libraries.CONVOLUTION)


@pytest.mark.parametrize(
    ("geforce", "other"),
    [
        ("nvidia-rtx-3090", "nvidia-a6000"),
        ("nvidia-rtx-4090", "nvidia-l40s"),
    ],
)
def test_cards_that_make_float32_sums_at_the_full_rate_copy_sooner(geforce: str, other: str) -> None:
    def expected(device: str) -> list[int]:
        trace = run(lambda: nn.Conv2d(32, 32, 5).half(), 16, 32, 28, 28, device=device, to=torch.float16)
        first = [i for i in of(trace, libraries.CONVOLUTION) if trace.events[i[0]].phase == "step 1 forward"]
        return [size for _, size in first]

    assert expected(geforce) == [1]  # nothing; a byte keeps its place: half of a tile is all that is gained
    assert expected(other) == [2 * (16 * 32 * 28 * 28 + 32 * 32 * 25)]


def test_where_tf32_is_no_faster_nothing_is_copied() -> None:
    trace = run(wide, 4, 64, 32, 32, device="nvidia-rtx-3090")
    assert {size for _, size in of(trace, libraries.CONVOLUTION)} == {1}
    amd = run(wide, 4, 64, 32, 32, device="amd-mi300x")  # MIOpen's are not known
    assert {size for _, size in of(amd, libraries.CONVOLUTION)} == {1}
    half = run(lambda: wide().half(), 4, 64, 32, 32, device="nvidia-rtx-3090", to=torch.float16)
    assert max(size for _, size in of(half, libraries.CONVOLUTION)) > MIB


def test_half_types_are_weighed_without_winograd() -> None:
    place = devices.find("nvidia-rtx-3090")
    wide = dataclasses.replace(call(256, 256, 32, 56, 3), itemsize=2)
    speed = convolutions.rates(place.rates, is_half=True, allows_tf32=False)
    assert convolutions.pays(wide, speed, 2 * (wide.data + wide.weight))


def test_a_convolution_of_one_point_is_a_product_in_any_layout() -> None:
    trace = run(lambda: nn.Conv2d(16, 16, 1), 4, 16, 32, 32)
    assert {size for _, size in of(trace, libraries.CONVOLUTION)} == {1}  # nothing; a byte keeps its place
    strided = run(lambda: nn.Conv2d(512, 1024, 1, stride=2), 4, 512, 32, 32)
    assert min(size for _, size in of(strided, libraries.CONVOLUTION)) > 4 * 512 * 32 * 32 * 4


def test_without_tf32_there_is_nothing_to_copy_for_and_at_most_winograds_transform() -> None:
    trace = run(convolution, 4, 3, 32, 32, stack=Stack(torch=(2, 6), tf32=False))
    taken = of(trace, libraries.CONVOLUTION)
    assert {size for _, size in taken} == {1}
    tiles = 4 * 8 * 8
    assert {trace.scratch[trace.events[i].storage].high_bytes for i, _ in taken} == {
        36 * 4 * (tiles * (3 + 16) + 3 * 16),
        36 * 4 * (tiles * (16 + 16) + 16 * 16),
    }


def test_the_newer_switch_of_tf32_is_read_and_given_back() -> None:
    def by_operator() -> None:
        torch.backends.cudnn.conv.fp32_precision = "ieee"  # `allow_tf32` raises from here on

    before = torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.rnn.fp32_precision
    trace = run(convolution, 4, 3, 32, 32, before=by_operator)
    assert {size for _, size in of(trace, libraries.CONVOLUTION)} == {1}
    assert torch.backends.cudnn.allow_tf32  # can be read again
    after = torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.rnn.fp32_precision
    assert after == before


def test_efficient_attention_works_out_delta_before_the_querys_gradient() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 192)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.layer(x).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
            return nn.functional.scaled_dot_product_attention(q, k, v)

    trace = run(Attention, 4, 100, 64)
    rows = 4 * 2 * 100
    taken = [(i, size) for i, size in of(trace, libraries.ATTENTION) if "step 1" in trace.events[i].phase]
    # product of gradient and output, its sums, delta; then two tiles of 64 × 64 and their locks
    assert [size for _, size in taken] == [rows * 32 * 4, rows * 4, rows * 4, 4 * 2 * 2 * (64 * 64 * 4 + 16)]
    product, gradient = (trace.events[taken[n][0]].storage for n in (0, 3))
    back = {e.storage: i for i, e in enumerate(trace.events) if e.requested_bytes < 0}
    assert back[product] < taken[3][0] < back[gradient]


def test_a_depthwise_convolution_in_float32_is_torchs_own() -> None:
    trace = run(lambda: nn.Conv2d(16, 16, 3, groups=16), 4, 16, 32, 32)
    assert of(trace, libraries.CONVOLUTION) == []


def test_bfloat16_is_convolved_by_torch_where_cudnn_takes_none() -> None:
    def model() -> nn.Module:
        return nn.Conv2d(16, 24, 3, padding=1, groups=2).bfloat16()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x.bfloat16())

    older = run(Model, 4, 16, 32, 32, device="nvidia-t4")
    assert of(older, libraries.CONVOLUTION) == []
    # One picture's patches of one group: 8 channels by 9 places of the filter by 32 x 32 results, 2 B each;
    # forward and for the filter's gradient, in each of three steps.
    assert [size for _, size in of(older, libraries.COLUMNS)] == [8 * 9 * 32 * 32 * 2] * 6
    assert len(of(older, libraries.CUBLAS)) == 2
    newer = run(Model, 4, 16, 32, 32)
    assert of(newer, libraries.COLUMNS) == []
    assert len(of(newer, libraries.CONVOLUTION)) == 6


def test_without_cudnn_a_convolution_of_one_point_unfolds_only_backward() -> None:
    off = Stack(torch=(2, 6), cudnn=False)

    def phases(**options: Any) -> set[str]:
        trace = run(lambda: nn.Conv2d(16, 8, 1, **options), 4, 16, 32, 32, stack=off)
        return {trace.events[i].phase.split()[-1] for i, _ in of(trace, libraries.COLUMNS)}

    assert phases() == {"backward"}
    assert phases(stride=2) == phases(padding=1) == {"forward", "backward"}


def test_what_has_one_dimension_is_unfolded_as_well() -> None:
    trace = run(lambda: nn.Conv1d(16, 8, 3), 4, 16, 34, stack=Stack(torch=(2, 6), cudnn=False))
    assert {size for _, size in of(trace, libraries.COLUMNS)} == {16 * 3 * 32 * 4}


@pytest.mark.parametrize(
    ("model", "shape", "is_named"),
    [
        (lambda: nn.Conv2d(8, 8, 3, groups=2), (2, 8, 16, 16), True),
        (lambda: nn.ConvTranspose2d(8, 8, 3), (2, 8, 16, 16), True),
        (lambda: nn.Conv3d(8, 8, 3), (2, 8, 8, 8, 8), True),
        (lambda: nn.Conv2d(8, 8, 3), (2, 8, 16, 16), False),
        (lambda: nn.Conv2d(8, 8, 3, groups=8), (2, 8, 16, 16), False),
    ],
)
def test_convolutions_without_cudnn_that_are_not_followed_are_named(
    model: Any, shape: tuple[int, ...], is_named: bool
) -> None:
    off = run(model, *shape, stack=Stack(torch=(2, 6), cudnn=False))
    assert (WITHOUT_CUDNN_NOTE in off.unmodelled) is is_named
    assert WITHOUT_CUDNN_NOTE not in run(model, *shape).unmodelled
    older = run(lambda: model().bfloat16(), *shape, device="nvidia-t4", to=torch.bfloat16)
    assert (WITHOUT_CUDNN_NOTE in older.unmodelled) is is_named


@pytest.mark.parametrize(
    ("size", "stride", "channels", "by_cudnn"),
    [(3, 1, 32, True), (7, 1, 32, False), (3, 1, 16, False), (3, 2, 64, False), (3, 2, 512, True)],
)
def test_depthwise_convolutions_in_half_types_are_cudnns_by_their_filter_and_stride(
    size: int, stride: int, channels: int, by_cudnn: bool
) -> None:
    def model() -> nn.Module:
        inner = nn.Conv2d(channels, channels, size, stride, groups=channels).half()
        return nn.Sequential(Half(), inner)

    trace = run(model, 2, channels, 16, 16)
    assert bool(of(trace, libraries.CONVOLUTION)) is by_cudnn


class Half(nn.Module):
    """To half precision."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.half()


@pytest.mark.parametrize(
    "product",
    [
        lambda x: torch.mm(x, x, out=torch.empty_like(x)),
        lambda x: x.clone().addmm_(x, x),
        lambda x: torch.bmm(x[None], x[None], out=torch.empty_like(x[None])),
    ],
)
def test_every_form_of_a_product_asks_for_the_workspace(product: Any) -> None:
    workload = Workload(
        build=lambda: None, batch=lambda: torch.randn(32, 32, device="cuda"), step=lambda _, x: product(x)
    )
    trace = traced(workload, devices.find("nvidia-t4"), steps=2, threads=1, stack=Stack())
    assert [size for _, size in of(trace, libraries.CUBLAS)] == [8_519_680]


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x: torch.fft.irfft(torch.fft.rfft(x)), "cuFFT"),
        (torch.linalg.svdvals, "cuSOLVER"),
        (torch.linalg.inv, "cuSOLVER"),
        (torch.relu, ""),
    ],
)
def test_libraries_whose_workspaces_are_not_followed_are_named(function: Any, named: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> Any:
            return function(self.inner(x))

    said = [line for line in run(Model, 2, 8, 8).unmodelled if line.startswith("workspaces of")]
    assert len(said) == bool(named) and named in "".join(said)


def test_short_rows_are_sorted_in_place() -> None:
    def scratch(*shape: int, **dim: int) -> list[int]:
        workload = Workload(
            build=lambda: None,
            batch=lambda: torch.randn(*shape, device="cuda"),
            step=lambda _, x: x.sort(**dim),
        )
        trace = traced(workload, devices.find("nvidia-t4"), steps=1, threads=1, stack=Stack())
        return [size for _, size in of(trace, libraries.SORT)]

    assert scratch(5000, 10) == [] == scratch(10, 5000, dim=0)
    assert scratch(10, 5000) == scratch(5000, 10, dim=0) == [10 * 5000 * 12]


def test_attention_in_bfloat16_is_written_out_below_8_0() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> Any:
            x = (x * self.scale).bfloat16()
            return nn.functional.scaled_dot_product_attention(x, x, x)

    probabilities = 2 * 4 * 256 * 256 * 4  # in float32

    def requested(device: str) -> set[int]:
        return {e.requested_bytes for e in run(Attention, 2, 4, 256, 64, device=device).events}

    assert probabilities in requested("nvidia-t4")
    assert probabilities not in requested("nvidia-a100-40gb")


@pytest.mark.parametrize("made_by", ["weight", "input"])
def test_a_convolution_of_channels_last_gives_channels_last(made_by: str) -> None:
    strides: list[tuple[int, ...]] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            form = torch.channels_last if made_by == "weight" else torch.contiguous_format
            self.first = nn.Conv2d(16, 32, 3, padding=1).to(memory_format=form)
            self.second = nn.Conv2d(32, 32, 3, padding=1, groups=32).to(memory_format=form)

        def forward(self, x: torch.Tensor) -> Any:
            if made_by == "input":
                x = x.contiguous(memory_format=torch.channels_last)
            x = self.first(x)
            strides.append(x.stride())
            return self.second(torch.relu(x))

    trace = run(Model, 4, 16, 8, 8)
    assert set(strides) == {(32 * 64, 1, 32 * 8, 32)}
    partial_sums = 54 * 16 * 32 * 9 * 4  # 108 multiprocessors share two tiles of the first filter's gradient
    assert {size for _, size in of(trace, libraries.CONVOLUTION)} == {1, partial_sums}  # cuDNN copies nothing
    # torch brings the other side of the first layer into the layout.
    copied = {"weight": 16 * 4 * 64 * 4, "input": 16 * 32 * 9 * 4}[made_by]
    first = [e for e in trace.events if e.operator == "aten.convolution" and e.requested_bytes == copied]
    assert len(first) == 3  # in each of three steps


def test_double_precision_is_never_channels_last() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv2d(16, 32, 3).double()

        def forward(self, x: torch.Tensor) -> Any:
            out = self.inner(x.double().contiguous(memory_format=torch.channels_last))
            assert out.is_contiguous()
            return out

    run(Model, 4, 16, 8, 8)


def test_the_search_gives_the_cache_back_once_for_each_kind_of_call() -> None:
    def switch() -> None:
        torch.backends.cudnn.benchmark = True

    before = torch.backends.cudnn.benchmark
    trace = run(convolution, 4, 3, 32, 32, before=switch)
    assert len(trace.cache_releases) == len(of(trace, libraries.SEARCH)) == 5
    assert all(trace.events[i].phase.startswith("step 1") for i in trace.cache_releases)
    assert torch.backends.cudnn.benchmark is before  # what a program sets is given back
    assert run(convolution, 4, 3, 32, 32).cache_releases == []


def test_a_searched_network_is_told_what_a_plan_by_transforms_would_take() -> None:
    def switch() -> None:
        torch.backends.cudnn.benchmark = True

    def model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(512, 2048, 1), nn.Conv2d(2048, 8, 1))

    searched = run(model, 8, 512, 7, 7, before=switch)
    maps = 8 * (512 + 2048) + 512 * 2048  # one tile for each picture and channel, and one for each filter
    assert [convolutions.transform_bytes(call(512, 2048, 8, 7))] == [maps * 32 * 17 * 8]
    notes = [line for line in searched.unmodelled if "Fourier" in line]
    assert len(notes) == 1 and "4.33 GiB" in notes[0]
    assert not [line for line in run(model, 8, 512, 7, 7).unmodelled if "Fourier" in line]
    tiles = convolutions.transform_bytes(call(3, 64, 1, 224, kernel=7)) // (32 * 17 * 8)
    assert tiles == 9 * 9 * (3 + 64) + 3 * 64  # tiles overlap by the kernel less one


# of an A100
IN_TF32 = convolutions.rates(devices.rates_of_architecture((8, 0)), is_half=False, allows_tf32=True)


def call(data: int, result: int, batch: int, side: int, kernel: int = 1) -> convolutions.Convolution:
    return convolutions.Convolution(
        direction="forward",
        data=batch * data * side**2,
        weight=data * result * kernel**2,
        result=batch * result * side**2,
        itemsize=4,
        kernel=(kernel, kernel),
        groups=1,
        channels=(data, result),
        channels_last=False,
        is_half=False,
        allows_tf32=True,
        strided=False,
        image=(side, side),
        batch=batch,
    )


@pytest.mark.parametrize(("dilation", "kinds"), [(1, 3), (2, 6)])
def test_convolutions_that_differ_by_dilation_are_searched_apart(dilation: int, kinds: int) -> None:
    def model() -> nn.Module:  # the first of three has no gradient of its data
        widened = nn.Conv2d(8, 8, 3, padding=dilation, dilation=dilation)
        return nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(2)), widened)

    trace = run(model, 2, 8, 32, 32, stack=Stack(torch=(2, 6), cudnn_benchmark=True))
    assert len(trace.cache_releases) == kinds


def test_an_option_switches_the_search_on() -> None:
    trace = run(convolution, 4, 3, 32, 32, stack=Stack(torch=(2, 6), cudnn_benchmark=True))
    assert len(trace.cache_releases) == 5


def test_a_programs_own_empty_cache_is_traced_in_every_step() -> None:
    class Emptying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.layer(x)
            torch.cuda.empty_cache()
            return y

    assert len(run(Emptying, 32, 64).cache_releases) == 3


def test_a_large_embedding_gradient_is_sorted() -> None:
    def build() -> Any:
        return nn.Embedding(1000, 32)

    workload = Workload(
        build=build,
        batch=lambda: torch.randint(0, 1000, (4, 1024)),
        step=lambda model, x: model(x).sum().backward(),
    )
    place, stack = devices.find("nvidia-a100-40gb"), Stack(torch=(2, 6))
    trace = traced(workload, place, steps=1, threads=1, stack=stack)
    wanted = libraries.embedding_backward_bytes(4096, 1000, 32, 8)
    assert [size for _, size in of(trace, libraries.EMBEDDING)] == [wanted]


def test_what_is_requested_on_a_stream_stays_in_its_pools() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> None:
        ahead = torch.cuda.Stream()
        with torch.cuda.stream(ahead):
            assert torch.cuda.current_stream() == ahead
            copied = x * 2
            (copied @ copied).sum()
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        model(copied).sum().backward()

    workload = Workload(build=linear, batch=lambda: torch.randn(64, 64), step=step)
    trace = traced(workload, devices.find("nvidia-a100-40gb"), steps=1, threads=1, stack=Stack(torch=(2, 6)))
    assert len(trace.streams) == 4  # the copy, the product, its sum, and a cuBLAS workspace of its own
    assert set(trace.streams.values()) == {1}
    assert len(of(trace, libraries.CUBLAS)) == 3
