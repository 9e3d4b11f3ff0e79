"""timeline_attention: the sorted form against the definition, its identities and its errors."""

from functools import partial

import pytest
import torch
from support.kernel_cases import assert_agree, normal, packed, qkv, rmse_ratio, value_and_gradients
from support.margins import below
from support.triton_cases import (
    DEVICE,
    EXACT_LIMIT,
    GRADIENT_LIMIT,
    HALF,
    OUTPUT_LIMIT,
    assert_kernel_agrees,
    kernels_only,
)
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import attention, rope, timeline_attention
from kernels.ops.timeline_attention.torch_form import Timelines, sort_timelines


def assigned(batch: int, time: int, heads: int = 4, n_timelines: int = 6, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, n_timelines, (batch, time, heads), generator=generator)


def unbalanced(batch: int, time: int) -> torch.Tensor:
    """Head 0: one timeline; head 1: one token on a second; head 2: two empty; head 3: in turn."""
    assignment = torch.zeros(batch, time, 4, dtype=torch.long)
    assignment[..., 0] = 3
    assignment[:, time // 2, 1] = 5
    assignment[..., 2] = assigned(batch, time, 1, 4)[..., 0]
    assignment[..., 3] = torch.arange(time) % 6
    return assignment


CALLS = {
    "plain": (qkv(2, 37), assigned(2, 37), {}),
    "one token": (qkv(2, 1), assigned(2, 1), {}),
    "scale": (qkv(1, 9), assigned(1, 9), {"scale": 0.7}),
    "unbalanced": (qkv(2, 41), unbalanced(2, 41), {}),
    "long": (qkv(1, 611, heads=2, width=4), assigned(1, 611, 2, 2), {"n_timelines": 2}),
    "grouped heads": (qkv(2, 13, kv_heads=2), assigned(2, 13), {}),
    "narrow values": (qkv(2, 13, value_width=5), assigned(2, 13), {}),
    "packed": (qkv(1, 37), assigned(1, 37), {"cu_seqlens": packed(1, 8, 0, 4, 1, 23)}),
    "packed, unbalanced": (qkv(1, 31), unbalanced(1, 31), {"cu_seqlens": packed(15, 1, 15)}),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("rope_base", [None, 1e4], ids=["unrotated", "rope"])
@pytest.mark.parametrize("case", CALLS)
def test_sorted_form_equals_definition(case, rope_base, dtype):
    inputs, assignment, options = CALLS[case]
    inputs = [x.to(dtype) for x in inputs]
    call = partial(
        timeline_attention, **{"assignment": assignment, "n_timelines": 6, "rope_base": rope_base, **options}
    )
    assert_agree(partial(call, backend="torch"), partial(call, backend="reference"), inputs)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_one_timeline_is_attention_with_rope(backend):
    inputs = qkv(2, 37)
    one = torch.zeros(2, 37, 4, dtype=torch.int32)

    def rotated(q, k, v):
        positions = torch.arange(37)
        return attention(rope(q, positions, 1e4), rope(k, positions, 1e4), v, backend="reference")

    timelines = partial(timeline_attention, assignment=one, n_timelines=1, rope_base=1e4, backend=backend)
    assert_agree(timelines, rotated, inputs)


def test_a_timeline_is_a_sequence_of_its_own():
    """Taking the tokens of one timeline out and attending among them gives the same."""
    q, k, v = qkv(1, 40, heads=1)
    assignment = assigned(1, 40, 1, 3)
    out = timeline_attention(q, k, v, assignment, n_timelines=3, rope_base=1e4)
    for timeline in range(3):
        there = assignment[0, :, 0] == timeline
        positions = torch.arange(int(there.sum()))
        q_there, k_there = (rope(x[:, there], positions, 1e4) for x in (q, k))
        torch.testing.assert_close(out[:, there], attention(q_there, k_there, v[:, there]))


def test_the_future_and_other_timelines_are_not_seen():
    q, k, v = qkv(1, 30)
    assignment = assigned(1, 30)
    v.requires_grad_()
    out = timeline_attention(q, k, v, assignment, n_timelines=6, rope_base=1e4)
    out[0, 17, 2].sum().backward()
    reached = v.grad.abs().sum(-1)[0] > 0
    wanted = torch.zeros(30, 4, dtype=torch.bool)
    wanted[:18, 2] = assignment[0, :18, 2] == assignment[0, 17, 2]
    assert torch.equal(reached, wanted)


@pytest.mark.parametrize("timeline", [-1, 0, 5, 6])
def test_one_token_off_the_timelines_is_enough_to_be_refused(timeline):
    """There are 0 to 5; the others of its sequence and head are on them."""
    assignment = assigned(2, 5)
    assignment[1, 3, 2] = timeline
    call = partial(timeline_attention, *qkv(2, 5), assignment, n_timelines=6, backend="reference")
    if 0 <= timeline < 6:
        assert call().isfinite().all()
    else:
        with pytest.raises(ValueError, match=r"assignment must lie in \[0, 6\), got"):
            call()


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_a_weight_multiplies_the_output(backend):
    inputs, weight = qkv(2, 13), torch.rand(2, 13, 4, dtype=torch.float64)
    call = partial(
        timeline_attention, assignment=assigned(2, 13), n_timelines=6, rope_base=1e4, backend=backend
    )
    assert_agree(
        lambda q, k, v, w: call(q, k, v, weight=w),
        lambda q, k, v, w: call(q, k, v) * w[..., None],
        [*inputs, weight],
    )


slow = pytest.mark.slow


def assigned_inputs(batch: int, time: int, heads: int, n_timelines: int) -> torch.Tensor:
    """Timelines at random, but none on the second last."""
    drawn = torch.randint(0, n_timelines, (batch, time, heads), generator=torch.Generator().manual_seed(0))
    return torch.where(drawn == n_timelines - 2, 0, drawn)


# shape, n_timelines, cu_seqlens, rope_base; a tile has 32 rows
KERNEL_CALLS = {
    "grouped heads": ({"batch": 2, "time": 9, "heads": 4, "kv_heads": 2, "width": 16}, 3, None, 1e4),
    "narrow values": ({"batch": 1, "time": 5, "heads": 2, "width": 6, "value_width": 5}, 3, None, 10.0),
    "one token": ({"batch": 1, "time": 1, "heads": 1, "width": 4}, 3, None, 1e4),
    "unrotated": ({"batch": 1, "time": 7, "heads": 2, "width": 3}, 3, None, None),
    "packed": ({"batch": 1, "time": 40, "heads": 2, "width": 20}, 3, packed(23, 0, 1, 16), 1e4),
}
cases = pytest.mark.parametrize(
    "case", [name if name == "grouped heads" else pytest.param(name, marks=slow) for name in KERNEL_CALLS]
)


def call_of(case: str):
    """q, k, v in fp64, and what timeline_attention takes besides."""
    shape, n_timelines, cu_seqlens, base = KERNEL_CALLS[case]
    return qkv(**shape), {
        "assignment": assigned_inputs(shape["batch"], shape["time"], shape["heads"], n_timelines).to(DEVICE),
        "n_timelines": n_timelines,
        "cu_seqlens": None if cu_seqlens is None else cu_seqlens.to(DEVICE),
        "rope_base": base,
    }


class AllocationsOnly(TorchDispatchMode):
    """Fails when PyTorch counts or sorts; the interpreter copies tensors before it runs a kernel."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name in {"empty", "new_empty", "set_", "copy_", "_to_copy", "detach", "fill_"}, name
        return function(*args, **(kwargs or {}))


def assert_sorted(assignment: torch.Tensor, n_timelines: int, cu_seqlens: torch.Tensor | None) -> None:
    """By the kernels as by PyTorch, to the number."""
    from kernels.ops.timeline_attention.triton_ops import sort_timelines_triton

    wanted = sort_timelines(assignment, n_timelines, cu_seqlens)
    sort_timelines_triton(
        assignment, n_timelines, cu_seqlens
    )  # on a GPU tiles are timed, with PyTorch's own calls
    with kernels_only(), AllocationsOnly():
        got = sort_timelines_triton(assignment, n_timelines, cu_seqlens)
    for name in ("order", "places", "positions", "cu_seqlens"):
        a, b = getattr(got, name), getattr(wanted, name)
        assert a.dtype == b.dtype, name
        assert torch.equal(a, b), name


# shape, n_timelines, cu_seqlens; a tile has 128 tokens and 16 heads
@pytest.mark.parametrize(
    ("shape", "n_timelines", "cu_seqlens"),
    [
        pytest.param((2, 130, 3), 4, None, marks=slow),
        ((1, 150, 2), 3, packed(129, 0, 1, 20)),
        pytest.param((1, 1, 1), 1, None, marks=slow),
        pytest.param((2, 5, 17), 3, None, marks=slow),
        pytest.param((1, 512, 2), 3, packed(1, 0, 127, 128, 129, 127, 0), marks=slow),
        pytest.param((1, 9, 1), 64, packed(0, 9), marks=slow),
    ],
)
def test_counting_sorts_stably(shape, n_timelines, cu_seqlens):
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.to(DEVICE)
    assert_sorted(assigned_inputs(*shape, n_timelines).to(DEVICE), n_timelines, cu_seqlens)


@slow
def test_starts_sum_over_more_chunks_than_a_program_takes_at_once():
    from kernels.ops.timeline_attention.triton_ops import _timeline_starts

    counts = assigned_inputs(1, 3, 300, 5)[0, :, None].to(
        DEVICE, torch.int32
    )  # 3 heads, one timeline, 300 chunks
    chunk_starts = torch.empty(counts.shape, dtype=torch.int64, device=DEVICE)
    starts = torch.empty(4, dtype=torch.int32, device=DEVICE)
    time = 300 * 128
    _timeline_starts[(1, 3)](
        counts, None, chunk_starts, starts, time, 1, 300, HEADS=3, TIMELINES=1, SIZE=128, BC=256
    )
    before = counts.long().cumsum(-1) - counts
    assert torch.equal(chunk_starts, before + time * torch.arange(3, device=DEVICE)[:, None, None])
    assert torch.equal(starts[:3].long(), time * torch.arange(3, device=DEVICE))


@pytest.mark.slow
def test_counting_takes_any_integers_and_strides():
    drawn = assigned_inputs(2, 9, 3, 4).to(DEVICE, torch.int32)
    assert_sorted(torch.stack([drawn, drawn + 1], -1)[..., 0], 4, None)
    assert_sorted(drawn.to(torch.uint8).permute(1, 0, 2), 4, None)


def test_timelines_out_of_range_lead_to_no_wild_address():
    from kernels.ops.timeline_attention.triton_ops import sort_timelines_triton

    wild = assigned_inputs(1, 40, 2, 9).to(DEVICE) - 3
    got = sort_timelines_triton(wild, 3, None)
    assert torch.equal(got.order.sort().values, torch.arange(80, device=DEVICE))
    assert int(got.cu_seqlens[-1]) == 80


@cases
def test_gathering_equals_rotating_and_sorting(case):
    compare_gather(case, torch.float32)


@HALF
@slow
def test_gathering_in_half_precision(dtype):
    compare_gather("grouped heads", dtype)


def compare_gather(case: str, dtype: torch.dtype) -> None:
    inputs, options = call_of(case)
    base = options.pop("rope_base")
    timelines = sort_timelines(**options)

    def gather(q, k, v, backend):
        if backend == "triton":
            from kernels.ops.timeline_attention.triton_ops import gather

            return gather(q, k, v, timelines, base)
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
        if base is not None:
            q, k = (rope(x, timelines.positions, base) for x in (q, k))
        return [x.flatten(0, 2)[timelines.order].unsqueeze(1) for x in (q, k, v)]

    assert_kernel_agrees(gather, dict(zip("qkv", inputs, strict=True)), dtype)


def test_putting_back_undoes_the_order():
    _, options = call_of("grouped heads")
    options.pop("rope_base")
    timelines = sort_timelines(**options)

    def put_back(there, backend):
        if backend == "triton":
            from kernels.ops.timeline_attention.triton_ops import put_back

            return put_back(there, timelines, (2, 9, 4))
        return there.squeeze(1)[timelines.places].view(2, 9, 4, 5)

    assert_kernel_agrees(put_back, {"there": normal(72, 1, 5)}, torch.float32)


def test_putting_back_weighs():
    _, options = call_of("grouped heads")
    options.pop("rope_base")
    timelines = sort_timelines(**options)

    def put_back(there, weight, backend):
        if backend == "triton":
            from kernels.ops.timeline_attention.triton_ops import put_back

            return put_back(there, timelines, (2, 9, 4), weight)
        return there.squeeze(1)[timelines.places].view(2, 9, 4, 5) * weight[..., None]

    inputs = {"there": normal(72, 1, 5), "weight": normal(2, 9, 4)}
    assert_kernel_agrees(put_back, inputs, torch.float32)
    assert_kernel_agrees(put_back, inputs, torch.float16, keep=["weight"])


@cases
def test_the_whole_equals_the_definition(case):
    compare_whole(case, torch.float32, EXACT_LIMIT, EXACT_LIMIT)


@HALF
@slow
def test_the_whole_in_half_precision(dtype):
    compare_whole("grouped heads", dtype, OUTPUT_LIMIT, GRADIENT_LIMIT)


def compare_whole(case: str, dtype: torch.dtype, output_limit: float, gradient_limit: float) -> None:
    inputs, options = call_of(case)
    given = [x.to(DEVICE, dtype) for x in inputs]
    given.append(normal(*given[0].shape[:3]).to(DEVICE, torch.float32))

    def call(q, k, v, weight, backend):
        return timeline_attention(q, k, v, weight=weight, backend=backend, **options)

    got = value_and_gradients(partial(call, backend="triton"), given)
    wanted = value_and_gradients(partial(call, backend="reference"), [x.double() for x in given])
    for name, a, b in zip(("o", *"qkv", "weight"), got, wanted, strict=True):
        limit = output_limit if name == "o" else gradient_limit
        error = rmse_ratio(a, b) if b.any() else a.abs().max()  # of one token, q and k have no gradient
        below(error, limit, name)


@slow
def test_angles_far_out_are_fp32s():
    """At position 10,000 an angle's own rounding shows, but no more: frequencies are rounded once."""
    from kernels.ops.timeline_attention.triton_ops import gather

    rank = torch.arange(2, device=DEVICE)
    far = Timelines(rank, rank, 10_000 + rank.view(1, 2, 1), torch.tensor([0, 2], device=DEVICE))
    x = torch.ones(1, 2, 1, 4, device=DEVICE)
    there, _, _ = gather(x, x, x, far, 100.0)
    wanted = rope(x.double(), far.positions, 100.0)[0]
    below((there - wanted).abs().max(), 1e-3)


def test_odd_widths_are_not_rotated():
    q, k, v = (x.float().to(DEVICE) for x in qkv(1, 3, heads=1, width=5))
    alone = torch.zeros(1, 3, 1, dtype=torch.long, device=DEVICE)
    call = partial(timeline_attention, q, k, v, alone, n_timelines=1, backend="triton")
    with pytest.raises(ValueError, match="needs an even width to rotate, got 5"):
        call(rope_base=1e4)
    assert call().isfinite().all()


def test_more_timelines_than_counting_takes_are_refused():
    q, k, v = (x.float().to(DEVICE) for x in qkv(1, 3, heads=1, width=4))
    alone = torch.zeros(1, 3, 1, dtype=torch.long, device=DEVICE)
    with pytest.raises(ValueError, match="sorts by at most 64 timelines, got 65"):
        timeline_attention(q, k, v, alone, n_timelines=65, backend="triton")


@pytest.mark.gpu
@pytest.mark.parametrize("cu_seqlens", [None, packed(100_000, 0, 1, 31_071)], ids=["batch", "packed"])
def test_long_sequences_are_sorted_stably(cu_seqlens):
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.cuda()
    assert_sorted(assigned_inputs(1, 131_072, 12, 6).cuda(), 6, cu_seqlens)


@pytest.mark.gpu
def test_gradients_are_the_same_bits_at_every_run():
    """Of the gather, at a size where every program of the grid runs at its own time."""
    from kernels.ops.timeline_attention.triton_ops import gather

    q = torch.randn(1, 8192, 8, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k, v = (q[:, :, :2].detach().clone().requires_grad_() for _ in range(2))
    timelines = sort_timelines(assigned_inputs(1, 8192, 8, 6).cuda(), 6, None)
    upstream = [torch.randn(8192 * 8, 1, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]

    def gradients() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(gather(q, k, v, timelines, 1e4), (q, k, v), upstream)

    first = gradients()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, gradients(), strict=True))
