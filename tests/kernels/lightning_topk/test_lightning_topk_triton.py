"""lightning_topk's Triton kernels against the definition: ranks, ties, counts, packing, odd sizes."""

import pytest
import torch
from support.kernel_cases import packed
from support.triton_cases import DEVICE, HALF, kernels_only
from test_lightning_topk_op import LAST, ORDER, ORDERED, counts, indexer, scored, signed, whole

from kernels import AdaptiveK, lightning_topk
from kernels.ops.lightning_topk import triton_ops
from kernels.ops.lightning_topk.scores import index_scores
from kernels.ops.sparse_attention.triton_masked import selection_of

CUT = packed(1, 17, 0, 4)

# q_idx, k_idx, w_idx, bias and options. A program has 16 queries of a sequence and 64 keys at a time.
CALLS = {
    "plain": (indexer(2, 17), {"k": 5}),
    "one token": (indexer(2, 1), {"k": 3}),
    "only itself": (indexer(1, 9), {"k": 1, "k_max": 3}),
    "everything": (indexer(1, 9, heads=3, width=5), {"k": 40}),
    "k by query": (indexer(1, 17, heads=1), {"k": counts(1, 17, 7), "k_max": 7}),
    "seed rule": (indexer(1, 16), {"k": AdaptiveK("seed", 3, 2, 12)}),
    "inverse rule": (indexer(1, 16), {"k": AdaptiveK("inverse", 6, 2, 12)}),
    "three tiles of keys": (indexer(1, 150, queries=10, width=40), {"k": 33}),
    "many heads": (indexer(1, 5, heads=40, width=3), {"k": 3}),
    "packed": (indexer(1, 22), {"k": AdaptiveK("inverse", 6, 2, 12), "cu_seqlens": CUT}),
    "ReLU": (signed(indexer(1, 17, queries=9)), {"k": 5, "scores": "relu"}),
    "ReLU, seed rule": (
        signed(indexer(1, 9)),
        {"k": AdaptiveK("seed", 1, 1, 8, beta=20.0), "scores": "relu", "cu_seqlens": packed(2, 7)},
    ),
}
QUICK = ("one token", "k by query")


def select(inputs, dtype, **options):
    """The kernels' choice, and the definition's in fp64 of the very same numbers."""
    given = [x.to(DEVICE, dtype) for x in inputs]
    options = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    with kernels_only():
        got = lightning_topk(*given, **options, backend="triton")
    wanted = lightning_topk(*(x.double() for x in given), **options, backend="reference")
    return got, wanted


def assert_same_choice(inputs, dtype, **options):
    """Key for key, but for neighbours whose scores fp32 cannot tell apart."""
    got, wanted = select(inputs, dtype, **options)
    assert got.dtype == torch.int32
    assert got.shape == wanted.shape
    assert torch.equal(got < 0, wanted < 0)
    assert torch.equal(got[..., 0], wanted[..., 0])
    given = [x.to(dtype).double() for x in inputs]
    scores = index_scores(*given, options.get("scores", "sigmoid")).to(got.device)
    pair = [scores.gather(-1, x.long().clamp_min(0)).sort(-1).values for x in (got, wanted)]
    torch.testing.assert_close(*pair, rtol=0, atol=1e-6 * inputs[0].shape[2])
    distinct = got.sort(-1).values
    assert not ((distinct.diff(dim=-1) == 0) & (distinct[..., 1:] >= 0)).any()


@pytest.mark.parametrize(
    "case", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CALLS]
)
def test_kernels_choose_as_the_definition(case):
    inputs, options = CALLS[case]
    assert_same_choice(inputs, torch.float32, **options)


@pytest.mark.parametrize("case", ["packed", "three tiles of keys", "ReLU", "everything"])
def test_bits_of_the_selection_name_the_keys_of_the_lists(case):
    """And the spans hold them: all is as if the lists had been turned into bits."""
    inputs, options = CALLS[case]
    given = [x.to(DEVICE, torch.float32) for x in inputs]
    options = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    if isinstance(k := options.pop("k"), int):
        k = AdaptiveK("none", k, 1, k)
    lists = lightning_topk(*given, k=k, **options, backend="triton")
    options.setdefault("scores", "sigmoid")
    found = triton_ops.selection_triton(*given, k=k, **options)
    for got, wanted in zip(found, selection_of(lists, given[1].shape[1]), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.slow
@HALF
@pytest.mark.parametrize("case", ["plain", "ReLU"])
def test_half_precision_is_scored_in_fp32(case, dtype):
    inputs, options = CALLS[case]
    assert_same_choice(inputs, dtype, **options)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["keys", "weights"])
def test_ties_go_to_the_later_position(what):
    """Equal keys, or weights of 0: the last k tokens, from the latest, over more than one tile."""
    q, k, w, bias = indexer(1, 70, queries=8)
    if what == "keys":
        k = k[:, :1].expand_as(k).contiguous()
    else:
        w = w * 0
    got, _ = select((q, k, w + 0.0, bias), torch.float32, k=20)
    wanted = torch.arange(62, 70)[:, None] - torch.arange(20)
    assert torch.equal(got.cpu()[0], wanted.to(torch.int32))


@pytest.mark.slow
def test_ties_at_the_threshold_fill_up_from_the_latest():
    """Three kinds of keys by turns: all of the best kind, then the later ones of the second."""
    time = 90
    q, w, bias = torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2), torch.zeros(2)
    kind = torch.arange(time) % 3
    k = kind[None, :, None].expand(1, time, 4).float()
    got, wanted = select((q, k, w, bias), torch.float32, k=48)
    assert torch.equal(got, wanted)
    assert (kind[got[0, 0].cpu().long()] == 1).sum() == 18


def test_relu_scores_rank_as_fp32_without_its_last_bit():
    got, wanted = select(scored(ORDERED), torch.float32, k=7, scores="relu")
    assert got[0, 0].tolist() == wanted[0, 0].tolist() == sorted(ORDER[:7], reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_many_exact_ties_of_relu_scores(dtype):
    """Key for key, over more than one tile; at thresholds above, at and below 0."""
    given = torch.tensor([[1, 4, 9, 20, 40, 64, 69, 70]])
    got, wanted = select(whole(1, 70, queries=8), dtype, k=given, k_max=70, scores="relu")
    assert torch.equal(got, wanted)


@pytest.mark.slow
def test_the_query_itself_is_in_even_where_its_score_is_the_lowest():
    q, k, w, bias = indexer(1, 12)
    q, k = q.abs(), k.abs()
    k[0, 6:] *= -1
    got, wanted = select((q, k, w, bias), torch.float32, k=3)
    assert torch.equal(got, wanted)


@pytest.mark.gpu
def test_a_long_sequence_agrees_with_blocks_and_with_itself():
    inputs = [x.to("cuda", torch.float32) for x in indexer(1, 8192, width=64)]
    rule = AdaptiveK("inverse", 1024, 128, 2048)
    first, again = (lightning_topk(*inputs, k=rule, backend="triton") for _ in range(2))
    assert torch.equal(first, again)
    blocks = lightning_topk(*inputs, k=rule, backend="torch")
    assert ((first < 0) == (blocks < 0)).float().mean() > 0.999  # a variance near a half rounds either way
    assert (first == blocks).float().mean() > 0.98


@pytest.mark.slow
@pytest.mark.parametrize("rising", [False, True], ids=["any order", "earlier ones better"])
def test_full_candidate_buffers_are_pruned(rising, monkeypatch):
    """Keys enough to fill buffers of 256 twice, with eight rows pruned at a time."""
    monkeypatch.setattr(triton_ops, "ROOM", 64)
    q, k, w, bias = indexer(1, 300, heads=2, queries=3)
    if rising:
        q, k = q.abs(), torch.linspace(2, 0.1, 300)[None, :, None].expand_as(k).to(k.dtype).contiguous()
    assert_same_choice((q, k, w, bias), torch.float32, k=AdaptiveK("inverse", 20, 5, 70))


@pytest.mark.slow
def test_a_program_goes_on_with_other_queries(monkeypatch):
    monkeypatch.setattr(triton_ops, "PROGRAMS", 2)
    inputs, options = CALLS["packed"]
    assert_same_choice(inputs, torch.float32, **options)


def test_a_pruned_buffer_still_takes_what_is_better_by_the_last_bit(monkeypatch):
    """Full of equal scores; the earliest keys, which come last, rank one above them, not more."""
    monkeypatch.setattr(triton_ops, "ROOM", 64)
    values = torch.ones(260)
    values[:40] += 2 * LAST
    got, wanted = select(scored(values.tolist()), torch.float32, k=60, scores="relu")
    assert torch.equal(got, wanted)
    assert (got[0, 0] < 40).sum() == 40
