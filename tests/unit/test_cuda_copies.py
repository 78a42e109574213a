"""What CUDA's kernels copy or count for themselves, and what they give back, by torch's source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from memgauge.devices.stack import Stack  # noqa: E402
from memgauge.errors import UnsupportedError  # noqa: E402
from memgauge.frameworks.torch.cuda_devices import Card  # noqa: E402
from memgauge.frameworks.torch.trace import trace  # noqa: E402
from memgauge.records import Trace  # noqa: E402
from memgauge.workload import Workload  # noqa: E402

COUNT = 2 * 8 * 16 * 16
BYTES = 4 * COUNT


def traced(step: Callable[[], Any], card: Card | None = None) -> Trace:
    workload = Workload(build=lambda: (), batch=lambda: None, step=lambda _: step())
    return trace(workload, device="cuda", steps=1, card=card)


def requests(result: Trace, operator: str, phase: str = "") -> list[int]:
    """Return the sizes that an operator asked for, in order."""
    found = [e for e in result.events if e.requested_bytes > 0 and e.operator == f"aten.{operator}"]
    return [e.requested_bytes for e in found if phase in e.phase]


def picture() -> Any:
    return torch.randn(2, 8, 16, 16, device="cuda").requires_grad_()


def test_layer_norm_copies_channels_first_and_keeps_the_input_only() -> None:
    statistics = [4 * COUNT // 8] * 2

    def step(x: Any) -> None:
        F.layer_norm(x, (8,)).square().sum().backward()

    last = traced(lambda: step(picture().permute(0, 2, 3, 1)))
    assert requests(last, "native_layer_norm") == [BYTES, BYTES, *statistics]  # a copy, then the output
    assert requests(last, "native_layer_norm_backward") == [BYTES, BYTES]
    turned = lambda: F.layer_norm(picture(), (16,)).transpose(1, 2).contiguous().square().sum().backward()  # noqa: E731
    copy_and_result = requests(traced(turned), "native_layer_norm_backward")
    assert copy_and_result == [BYTES, BYTES]  # of the gradient, which is turned back
    plain = traced(lambda: step(torch.randn(2, 16, 16, 8, device="cuda").requires_grad_()))
    assert requests(plain, "native_layer_norm") == [BYTES, *statistics]


def test_softmax_copies_rows_that_do_not_lie_in_order() -> None:
    turned = traced(lambda: picture().transpose(1, 3).softmax(-1))
    assert requests(turned, "_softmax") == [BYTES, BYTES]
    assert requests(traced(lambda: picture().softmax(-1)), "_softmax") == [BYTES]


def test_group_norm_gives_the_ordinary_layout_whatever_it_is_given() -> None:
    strides = []

    def step() -> None:
        x = picture().contiguous(memory_format=torch.channels_last)
        y = F.group_norm(x, 2)
        strides.append(y.is_contiguous())
        y.square().sum().backward()

    result = traced(step)
    assert strides == [True]
    assert requests(result, "native_group_norm") == [BYTES, 16, 16]
    assert requests(result, "clone", "backward") == [BYTES]  # of the input; the gradient is in order


def test_a_product_copies_a_factor_without_neighbours_in_memory() -> None:
    def step() -> None:
        x, w = torch.randn(32, 64, device="cuda"), torch.randn(64, 16, device="cuda").requires_grad_()
        (x @ w).sum().backward()  # the gradient of a sum is one number, 32 × 16 times

    assert requests(traced(step), "mm", "backward") == [32 * 16 * 4, 64 * 16 * 4]
    every_other = lambda: torch.randn(32, 64, device="cuda")[:, ::2] @ torch.randn(32, 8, device="cuda")  # noqa: E731
    assert requests(traced(every_other), "mm") == [32 * 32 * 4, 32 * 8 * 4]
    transposed = lambda: torch.randn(64, 32, device="cuda").t() @ torch.randn(64, 8, device="cuda")  # noqa: E731
    assert requests(traced(transposed), "mm") == [32 * 8 * 4]


def test_batch_norm_keeps_a_copy_of_a_transposed_series_where_cudnn_runs() -> None:
    def step(channels: int = 16) -> None:
        weight, bias = (torch.ones(channels, device="cuda", requires_grad=True) for _ in range(2))
        x = torch.randn(2, 8, channels, device="cuda").transpose(1, 2).requires_grad_()
        F.batch_norm(x, None, None, weight, bias, training=True).sum().backward()

    assert requests(traced(step), "clone", "forward") == [2 * 8 * 16 * 4]


def test_log_sigmoid_has_no_buffer() -> None:
    result = traced(lambda: F.logsigmoid(picture()).sum().backward())
    assert requests(result, "log_sigmoid_forward") == [BYTES]


def test_a_gradient_of_indices_is_added_up_where_it_is_after_sorting() -> None:
    def step(rows: int) -> None:
        places = torch.zeros(300, dtype=torch.int64, device="cuda")
        torch.randn(rows, 64, device="cuda").requires_grad_()[places].sum().backward()

    assert requests(traced(lambda: step(1000)), "index_put") == [300 * 48]
    assert requests(traced(lambda: step(200)), "index_put") == [300 * 32]  # one pass of the sort


def test_masks_are_turned_into_places_or_sums() -> None:
    def step() -> Any:
        x, mask = torch.randn(32, 64, device="cuda"), torch.ones(32, dtype=torch.bool, device="cuda")
        x[mask], x.masked_select(mask[:, None])
        return x.masked_scatter(mask[:, None].expand(32, 64), torch.zeros(32 * 64, device="cuda"))

    result = traced(step)
    assert requests(result, "index") == [32 * 64 * 4, 32 * 8]
    assert requests(result, "masked_select") == [32 * 64 * 4, 32 * 64 * 2 * 8]
    assert requests(result, "masked_scatter") == [32 * 64 * 4, 32 * 64 * 9]


def test_attention_written_out_looks_for_rows_that_are_masked_whole() -> None:
    def step() -> None:
        q, k, v = (torch.randn(2, 4, 64, 32, dtype=torch.float64, device="cuda") for _ in range(3))
        F.scaled_dot_product_attention(q, k, v)

    squares = 2 * 4 * 64 * 64
    assert requests(traced(step), "_safe_softmax") == [squares * 8, squares, squares * 8]
    older = traced(step, Card(stack=Stack(torch=(2, 4))))
    assert requests(older, "_safe_softmax") == [squares * 8]


def test_data_parallel_on_one_card_is_the_network_itself() -> None:
    def step(wrap: Callable[[Any], Any]) -> None:
        wrap(torch.nn.Linear(64, 64).cuda())(torch.randn(8, 64)).sum().backward()

    assert requests(traced(lambda: step(torch.nn.DataParallel)), "addmm") == [8 * 64 * 4]
    with pytest.raises(UnsupportedError, match=r"over 2 GPUs is not followed"):
        traced(lambda: step(lambda net: torch.nn.DataParallel(net, device_ids=[0, 0])))


def test_several_processes_are_refused_with_what_they_would_add() -> None:
    with pytest.raises(
        UnsupportedError, match=r"test_cuda_copies.py:\d+: training by several processes.*buckets"
    ):
        traced(lambda: torch.distributed.init_process_group("nccl", rank=0, world_size=1))
    with pytest.raises(UnsupportedError, match=r"several processes"):
        traced(lambda: torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda()))


def test_types_that_only_cudas_kernels_take_are_counted_all_the_same() -> None:
    def step() -> None:
        chosen = torch.arange(8, dtype=torch.int32, device="cuda") % 4
        found = torch.histc(chosen, bins=4, min=0, max=3)
        assert found.dtype is torch.int32 and found.tolist() == [2, 2, 2, 2]

    assert 16 in requests(traced(step), "histc")


def test_one_hot_codes_are_written_without_a_look_at_the_numbers() -> None:
    def step() -> Any:
        chosen = (torch.rand(2**18, device="cuda") * 10).long()  # not known
        return F.one_hot(chosen, 10)

    assert requests(traced(step), "new_zeros") == [2**18 * 10 * 8]


def test_cudnn_attention_sums_the_querys_gradient_in_float32() -> None:
    def step() -> None:
        q, k, v = (
            torch.randn(2, 4, 64, 32, dtype=torch.float16, device="cuda").requires_grad_() for _ in range(3)
        )
        F.scaled_dot_product_attention(q, k, v).sum().backward()

    result = traced(step, Card(capability=(9, 0)))
    backward = requests(result, "_scaled_dot_product_cudnn_attention_backward")
    copy = 1  # the gradient of a sum is one number many times
    assert sorted(backward) == [2 * 4 * 64 * 32 * 2] * (copy + 3) + [2 * 4 * 64 * 33 * 4]


def attention_backward(dtype: torch.dtype, *, rows_first: bool, summed: bool) -> list[int]:
    """The sizes that the backward of attention asks for."""

    def head() -> Any:
        shape = (8, 64, 4, 32) if rows_first else (8, 4, 64, 32)
        made = torch.randn(*shape, dtype=dtype, device="cuda").requires_grad_()
        return made.transpose(1, 2) if rows_first else made

    def step() -> None:
        found = F.scaled_dot_product_attention(head(), head(), head())
        found = found if summed else found.transpose(1, 2).reshape(8, 64, 128).relu()
        (found.sum() if summed else (found * found).sum()).backward()

    kind = "efficient" if dtype is torch.float32 else "flash"
    return requests(traced(step, Card(capability=(8, 0))), f"_scaled_dot_product_{kind}_attention_backward")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("rows_first", "summed", "of_flash", "of_efficient"),
    [
        (True, False, 0, 0),  # a gradient and an output as most networks have them
        (True, True, 1, 1),  # the gradient of a sum is one number, expanded
        (False, False, 1, 0),  # the output lies as the query does; its gradient does not
        (False, True, 2, 1),
    ],
)
def test_backward_of_attention_copies_what_does_not_lie_row_by_row(
    dtype: torch.dtype, rows_first: bool, summed: bool, of_flash: int, of_efficient: int
) -> None:
    asked = attention_backward(dtype, rows_first=rows_first, summed=summed)
    size = 8 * 4 * 64 * 32 * dtype.itemsize
    of_kernel = [size] if dtype is torch.float32 else []  # gradient times output, of which it sums each row
    copies = of_efficient if dtype is torch.float32 else of_flash
    assert [s for s in asked if s == size] == [size] * (copies + 3) + of_kernel


def test_a_mask_of_truths_becomes_numbers_for_cudnn_too() -> None:
    def step() -> None:
        q = torch.randn(2, 4, 64, 32, dtype=torch.float16, device="cuda")
        mask = torch.ones(64, 64, dtype=torch.bool, device="cuda")
        F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    result = traced(step, Card(capability=(9, 0)))
    assert requests(result, "where") == [64 * 64 * 2]
    assert requests(result, "_scaled_dot_product_cudnn_attention")


def test_ctc_keeps_a_table_of_all_steps_whatever_the_lengths_of_the_inputs() -> None:
    steps, batch, classes = 50, 2, 8
    scores = torch.zeros(steps, batch, classes).log_softmax(-1)
    targets = torch.ones(batch, 5, dtype=torch.int64)
    table = torch._ctc_loss(scores, targets, [20, 30], [4, 5])[1]  # torch's own, on the CPU
    assert tuple(table.shape) == (batch, steps, 11)

    def step() -> Any:
        lengths = (torch.rand(batch, device="cuda") * steps).long()  # not known
        return F.ctc_loss(scores.cuda(), targets.cuda(), lengths, torch.tensor([4, 5]))

    assert table.numel() * 4 in requests(traced(step), "_ctc_loss")


def test_the_gradient_of_what_a_mask_chose_sorts_its_places() -> None:
    def step() -> None:
        x = torch.randn(64, 64, device="cuda").requires_grad_()
        (x * 2)[~torch.eye(64, dtype=torch.bool, device="cuda")].square().sum().backward()

    found = 64 * 63
    places, sorted_ = found * 2 * 8, found * 6 * 8  # a row and a column each; as for 256 rows and more
    assert places + sorted_ in requests(traced(step), "index_put", "backward")


def test_a_residual_sum_of_gradients_is_made_in_place() -> None:
    def step() -> None:
        x = picture() * 1
        (x.relu() + x.sigmoid()).sum().backward()

    assert not requests(traced(step), "add", "backward")
