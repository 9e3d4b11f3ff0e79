"""timeline_attention: the sorted form against the definition, its identities and its errors."""

from functools import partial

import pytest
import torch
from support.kernel_cases import assert_agree, packed, qkv

from kernels import attention, rope, timeline_attention


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


def test_a_weight_of_another_shape_is_refused():
    call = partial(timeline_attention, *qkv(2, 5), assigned(2, 5), n_timelines=6)
    with pytest.raises(
        ValueError, match=r"floating weight \[B, T, H\] = \(2, 5, 4\), got .*float32 \(2, 5\)"
    ):
        call(weight=torch.ones(2, 5))
    with pytest.raises(ValueError, match=r"got torch\.int64"):
        call(weight=torch.ones(2, 5, 4, dtype=torch.long))


def test_a_shorter_q_is_refused():
    with pytest.raises(ValueError, match=r"Tq = Tk, got q \(2, 3, 4, 8\), k \(2, 5, 4, 8\)"):
        timeline_attention(*qkv(2, 5, queries=3), assigned(2, 3), n_timelines=6)
