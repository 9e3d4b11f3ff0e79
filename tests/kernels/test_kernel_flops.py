"""What the FLOP counter says: one number on every device, and the closed forms."""

import pytest
import torch
from support.kernel_cases import packed, qkv
from torch.utils.flop_counter import flop_registry

from kernels import attention, indexer_kl, lightning_topk, sparse_attention, timeline_attention
from kernels.autograd import FORMULAS, flop_counter


def count(call, *inputs: torch.Tensor) -> tuple[int, int]:
    """FLOPs of the forward, and of the forward and the backward."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    with flop_counter() as forward:
        out = call(*inputs)
    with flop_counter() as backward:
        out.sum().backward()
    return forward.get_total_flops(), forward.get_total_flops() + backward.get_total_flops()


def on_meta(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [x.to("meta") for x in tensors]


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_costs_four_flops_an_entry_and_channel(kv_heads):
    inputs = qkv(2, 48, heads=4, kv_heads=kv_heads, width=8)
    wanted = 4 * 2 * 4 * 48 * 48 * 8
    assert count(attention, *inputs) == (wanted, 3 * wanted)
    assert count(attention, *on_meta(*inputs)) == (wanted, 3 * wanted)


def test_values_of_another_width_count_as_they_are_on_meta():
    inputs = on_meta(*qkv(2, 48, heads=4, width=8, value_width=5))
    assert count(attention, *inputs)[0] == 2 * 2 * 4 * 48 * 48 * (8 + 5)


def test_windows_count_alike_on_cpu_and_meta():
    inputs = qkv(1, 200, heads=1, width=8)
    call = lambda *x: attention(*x, window=64)  # noqa: E731
    assert count(call, *inputs) == count(call, *on_meta(*inputs))


def test_packed_sequences_count_their_own_squares():
    inputs = qkv(1, 1024, heads=2, width=8)
    cu = packed(300, 724)
    wanted = 4 * 2 * 8 * (300**2 + 724**2)
    assert count(lambda *x: attention(*x, cu_seqlens=cu), *inputs) == (wanted, 3 * wanted)


def test_packed_sequences_under_a_window_count_what_a_block_of_queries_reaches_on_meta():
    """Of so many queries as the window has keys, 100: the first reaches 99 keys back, and the last has 99 more."""
    inputs, cu = on_meta(*qkv(1, 1024, heads=2, width=8)), packed(300, 724).to("meta")
    forward, _ = count(lambda *x: attention(*x, window=100, cu_seqlens=cu), *inputs)
    assert forward == 4 * 2 * 8 * 1024 * (99 + 100)


@pytest.mark.parametrize("time", [64, 131_072])
@pytest.mark.parametrize("n_timelines", [1, 4])
def test_timelines_cost_their_share_of_attention_on_meta(n_timelines, time):
    inputs = [torch.empty(2, time, 4, 8, device="meta") for _ in range(3)]
    assignment = torch.empty(2, time, 4, dtype=torch.long, device="meta")
    call = lambda *x: timeline_attention(*x, assignment, n_timelines=n_timelines, rope_base=1e4)  # noqa: E731
    wanted = 4 * 2 * 4 * time * time * 8 // n_timelines
    assert count(call, *inputs) == (wanted, 3 * wanted)


def test_real_timelines_count_what_they_compute():
    time = 1600
    inputs = qkv(1, time, heads=1, width=4)
    assignment = (torch.arange(time) < 600).long().view(1, time, 1)
    wanted = 4 * 4 * (600**2 + 1000**2)
    call = lambda *x: timeline_attention(*x, assignment, n_timelines=3)  # noqa: E731
    assert count(call, *inputs) == (wanted, 3 * wanted)


def test_packed_timelines_on_meta():
    inputs = on_meta(*qkv(1, 60, heads=2, width=4))
    assignment = torch.zeros(1, 60, 2, dtype=torch.long, device="meta")
    cu = torch.zeros(4, dtype=torch.int32, device="meta")
    call = lambda *x: timeline_attention(*x, assignment, n_timelines=5, cu_seqlens=cu)  # noqa: E731
    assert count(call, *inputs)[0] == 4 * 4 * (2 * 60) ** 2 // (3 * 2 * 5)


@pytest.mark.parametrize(("time", "places"), [(40, 8), (6, 8)], ids=["few of many", "more places than keys"])
def test_sparse_attention_counts_the_places_of_its_lists_up_to_all_keys(time, places):
    inputs = on_meta(*qkv(2, time, heads=4, kv_heads=2, width=8, value_width=5))
    indices = torch.empty(2, time, places, dtype=torch.int32, device="meta")
    wanted = 2 * 2 * 4 * time * min(time, places) * (8 + 5)
    assert count(lambda *x: sparse_attention(*x, indices), *inputs) == (wanted, 3 * wanted)


def indexer(time: int) -> list[torch.Tensor]:
    """q [2, T, 3, 16], k [2, T, 16], w [2, T, 3], bias [3] without storage."""
    shapes = (2, time, 3, 16), (2, time, 16), (2, time, 3), (3,)
    return [torch.empty(shape, device="meta") for shape in shapes]


def test_the_indexer_scores_every_pair():
    with flop_counter() as counter:
        lightning_topk(*indexer(40), k=4)
    assert counter.get_total_flops() == 2 * 2 * 40 * 40 * 3 * 16


@pytest.mark.parametrize(("places", "pairs"), [(None, 40), (8, 8), (50, 40)])
def test_the_indexers_loss_counts_attention_once_and_its_own_products_three_times(places, pairs):
    q, k, _ = on_meta(*qkv(2, 40, heads=4, kv_heads=2, width=8))
    indices = None if places is None else torch.empty(2, 40, places, dtype=torch.int32, device="meta")
    tau = torch.empty((), device="meta")
    wanted = 2 * 2 * 40 * pairs * (4 * 8 + 3 * 3 * 16)
    call = lambda *x: indexer_kl(q, k, *x, indices=indices)  # noqa: E731
    assert count(call, *indexer(40), tau) == (wanted, wanted)


FUSED = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")


def test_counts_do_not_hang_on_the_formulas_of_pytorch(monkeypatch):
    """They change with its releases: an attention's backward cost four products once, and costs five in 2.15."""
    names = ["mm", "addmm", "bmm", "baddbmm"]
    names += [f"_scaled_dot_product_{name}{end}" for name in FUSED for end in ("", "_backward")]
    for name in names:
        monkeypatch.setitem(flop_registry, getattr(torch.ops.aten, name), lambda *_, **__: 1)
    x = torch.ones(3, 5, 7)
    wanted = 2 * 3 * 5 * 7 * 5
    assert count(lambda x: x @ x.mT, x) == (wanted, 3 * wanted)
    assert count(lambda x: torch.baddbmm(x[..., :5], x, x.mT), x)[0] == wanted
    assert count(lambda x: x[0] @ x[0].T, x)[0] == wanted // 3
    assert count(lambda x: torch.addmm(x[0, :, :5], x[0], x[0].T), x)[0] == wanted // 3
    inputs = qkv(2, 48, heads=4, width=8)
    wanted = 4 * 2 * 4 * 48 * 48 * 8
    assert count(attention, *inputs) == (wanted, 3 * wanted)
    assert count(attention, *on_meta(*inputs)) == (wanted, 3 * wanted)


@pytest.mark.parametrize("name", FUSED)
def test_every_fused_attention_costs_two_products_forward_and_four_backward(name):
    """What a GPU takes can be counted without one, from the shapes."""
    q, k, v = (2, 4, 48, 8), (2, 4, 64, 8), (2, 4, 64, 5)
    operators = (getattr(torch.ops.aten, f"_scaled_dot_product_{name}{end}") for end in ("", "_backward"))
    forward, backward = (FORMULAS[operator] for operator in operators)
    wanted = 2 * 2 * 4 * 48 * 64 * (8 + 5)
    assert forward(q, k, v, None, True) == wanted
    assert backward((2, 4, 48, 5), q, k, v, None) == 2 * wanted
