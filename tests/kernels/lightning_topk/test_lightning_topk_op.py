"""lightning_topk: the blocks against the definition, ties, adaptive k, and what it may not look at."""

from functools import partial

import pytest
import torch
from support.kernel_cases import normal, packed
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import AdaptiveK, lightning_topk
from kernels.ops.lightning_topk.scores import LONGEST, SCORES, index_scores, index_scores_alike, ranks


def indexer(batch, time, heads=4, width=8, queries=None, dtype=torch.float64, seed=0):
    """q_idx, k_idx, w_idx, bias."""
    queries = queries or time
    q = normal(batch, queries, heads, width, dtype=dtype, seed=seed + 1)
    k = normal(batch, time, width, dtype=dtype, seed=seed + 2)
    w = normal(batch, queries, heads, dtype=dtype, seed=seed + 3).sigmoid()
    return q, k, w, normal(heads, dtype=dtype, seed=seed + 4)


def signed(inputs):
    """The same indexer with weights of any sign, as ReLU scores have them."""
    q, k, w, bias = inputs
    return q, k, 2 * w - 1, bias


def scored(values):
    """An indexer whose ReLU scores of the last token are these very numbers: I = ReLU(k) − ReLU(−k) = k."""
    k = torch.tensor(values, dtype=torch.float64)[None, :, None]
    pair = torch.tensor([1.0, -1.0], dtype=torch.float64)
    return pair.view(1, 1, 2, 1), k, pair.view(1, 1, 2), torch.zeros(2, dtype=torch.float64)


LAST = 2.0**-23  # of 1, the last bit in fp32
ORDERED = [
    *(1.0, 1 + 2 * LAST, 0.0, 1e15, -1e15, 2e-38, -0.0, 1 + LAST, 1e-60, -2.0),
    *(-2 - 2 * LAST, -2 - 4 * LAST, 1 - 1e-14, -2e-38, -1e17),
]
ORDER = [14, 3, 1, 12, 7, 0, 5, 8, 6, 2, 13, 10, 9, 11, 4]
"""ReLU scores, and how they rank: the last token, though it is the lowest; then by size, at ties the later first."""


def whole(batch, time, queries=None):
    """An indexer whose ReLU scores are small whole numbers and halves, exact in fp32: half are 0, many others tie."""
    q, k, w, bias = indexer(batch, time, queries=queries, width=4)
    return q.round(), k.round(), signed((q, k, w, bias))[2].mul(2).round(), bias * 0 - 1


def counts(batch, time, most, seed=0):
    return torch.randint(0, most + 3, (batch, time), generator=torch.Generator().manual_seed(seed))


def sets(indices):
    """The set of every query, as a list."""
    return [set(row.tolist()) - {-1} for row in indices.flatten(0, 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_a_query_keeps_itself_where_other_scores_are_as_high_as_can_be(backend, dtype):
    """Shares of 1 after rounding, in blocks and in a step."""
    q, k, w, bias = indexer(1, 12, dtype=dtype)
    k[:, :5], q = 1.0, q.abs() + 1  # of these keys every head's logit is above 30
    options = {"k": AdaptiveK("none", 1, 1, 1), "backend": backend}
    chosen = lightning_topk(20 * q, 20 * k, w, bias, **options)[0, :, 0]
    steps = [
        lightning_topk(20 * q[:, t : t + 1], 20 * k[:, : t + 1], w[:, t : t + 1], bias, **options)
        for t in range(12)
    ]
    assert chosen.tolist() == [int(step) for step in steps] == list(range(12))


RULE, CUT = AdaptiveK("inverse", 6, 2, 12), packed(1, 8, 4, 1, 23)
FAR, FAR_CUT = indexer(1, 161, heads=2, width=3), {"cu_seqlens": packed(1, 130, 0, 7, 1, 22)}
CALLS = {
    "one k": (indexer(2, 37), {"k": 5}),
    "one token": (indexer(2, 1), {"k": 3}),
    "k above T": (indexer(1, 9), {"k": 40}),
    "wider result": (indexer(1, 9), {"k": 2, "k_max": 6}),
    "k by query": (indexer(2, 37), {"k": counts(2, 37, 7), "k_max": 7}),
    "seed rule": (indexer(2, 37), {"k": AdaptiveK("seed", 6, 2, 12)}),
    "inverse rule": (indexer(2, 37), {"k": RULE}),
    "no rule": (indexer(1, 21), {"k": AdaptiveK("none", 6, 2, 12)}),
    "shorter q": (indexer(2, 37, queries=5), {"k": 6}),
    "one head": (indexer(2, 37, heads=1), {"k": 6}),
    "blocks": (indexer(1, 150, heads=2, width=3), {"k": AdaptiveK("inverse", 20, 3, 40)}),
    "packed": (indexer(1, 37), {"k": 4, "cu_seqlens": CUT}),
    "ReLU": (signed(indexer(2, 37)), {"k": 5, "scores": "relu"}),
    "ReLU, packed, adaptive": (signed(indexer(1, 37)), {"k": RULE, "scores": "relu", "cu_seqlens": CUT}),
    "one choice for five": (indexer(2, 37), {"k": RULE, "share": 5}),
    "one choice, shorter q": (indexer(2, 37, queries=13), {"k": counts(2, 13, 7), "k_max": 7, "share": 4}),
    "blocks of keys": (signed(indexer(2, 37)), {"k": 9, "key_block": 4, "scores": "relu"}),
    "both, packed": (FAR, {"k": AdaptiveK("inverse", 9, 2, 19), **FAR_CUT, "share": 16, "key_block": 7}),
    "packed, adaptive": (FAR, {"k": RULE, **FAR_CUT}),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("case", CALLS)
def test_blocks_equal_definition(case, dtype):
    inputs, options = CALLS[case]
    inputs = [x.to(dtype) for x in inputs]
    got, wanted = (lightning_topk(*inputs, **options, backend=b) for b in ("torch", "reference"))
    assert got.dtype == wanted.dtype == torch.int32
    assert got.shape == wanted.shape
    if dtype == torch.float64:
        assert torch.equal(got, wanted)
    else:  # two fp32 sums may put neighbours the other way round
        assert (got == wanted).float().mean() > 0.99


@pytest.mark.parametrize("key_block", [1, 3])
@pytest.mark.parametrize("share", [1, 4])
def test_a_tile_has_the_choice_of_its_first_query_and_its_own_tokens(share, key_block):
    """In blocks those of the best keys, whole; and each as often as k says."""
    inputs = indexer(2, 37)
    each = lightning_topk(*inputs, k=7)
    found = sets(lightning_topk(*inputs, k=7, share=share, key_block=key_block))
    scores = index_scores(*inputs)
    for t, (got, own) in enumerate(zip(found, sets(each), strict=True)):
        b, t = divmod(t, 37)
        first = t // share * share
        chosen = sets(each)[37 * b + first]
        if key_block > 1:
            best = [
                float(scores[b, first, s : min(s + key_block, first + 1)].max())
                for s in range(0, first + 1, key_block)
            ]
            order = sorted(range(len(best) - 1), key=best.__getitem__)[::-1]
            blocks = {len(best) - 1, *order[: -(-min(7, first + 1) // key_block) - 1]}
            chosen = {s for s in range(first + 1) if s // key_block in blocks}
        assert got == chosen | set(range(first + 1, t + 1))
        assert share > 1 or key_block > 1 or got == own


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0}, "share ≥ 1 and key_block ≥ 1, got share=0, key_block=1"),
        ({"share": 5}, "with share=5 needs Tk − Tq to be a multiple of it, got 32"),
        ({"share": 4, "backend": "triton"}, "single keys for every query, got share=4, key_block=1"),
    ],
)
def test_choices_that_cannot_be_made_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        lightning_topk(*indexer(1, 37, queries=5), k=4, **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize(
    ("time", "backend"), [(3, "torch"), (17, "torch"), (130, "torch"), (17, "reference")]
)
def test_ties_go_to_the_later_position(time, dtype, backend, scores):
    """All keys equal: the window of the last k tokens, itself first, at every length and alignment."""
    q, k, w, bias = indexer(2, time, dtype=dtype)
    k = k[:, :1].expand_as(k).contiguous()
    got = lightning_topk(q, k, w, bias, k=7, scores=scores, backend=backend)
    wanted = torch.arange(time)[:, None] - torch.arange(7)
    assert torch.equal(got, wanted.clamp_min(-1).to(torch.int32).expand_as(got))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_relu_scores_rank_as_fp32_without_its_last_bit(backend, dtype):
    """Of either sign, far apart and next to each other."""
    inputs = [x.to(dtype) for x in scored(ORDERED)]
    for size in (len(ORDER), 5):
        got = lightning_topk(*inputs, k=size, scores="relu", backend=backend)
        assert got[0, 0].tolist() == sorted(ORDER[:size], reverse=True)


@pytest.mark.parametrize("size", [1.0, 0.5, 1e-3, 2.0**-15])
def test_sigmoid_scores_that_fp32_tells_apart_have_ranks_of_their_own(size):
    """The earlier key has the higher score by one bit, and a later place does not make up for it."""
    high = torch.tensor(size)
    scores = torch.stack([high, high.nextafter(torch.tensor(0.0))]).view(1, 1, 2)
    earlier, later = ranks(scores, torch.ones(1, 1, 1), "sigmoid").flatten().tolist()
    assert earlier > later
    equal = ranks(high.expand(1, 1, 2).clone(), torch.ones(1, 1, 1), "sigmoid").flatten().tolist()
    assert equal[1] == equal[0] + 1


def test_zeros_of_either_sign_have_one_rank():
    """−0 is what heads with negative weights give where none is active."""
    scores = torch.tensor([[[-0.0, 0.0, -2e-38, 2e-38]]])
    zero, same, below, above = (ranks(scores, scores, "relu") // LONGEST).flatten().tolist()
    assert below < zero == same < above


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
def test_many_exact_ties_of_relu_scores(dtype):
    inputs = [x.to(dtype) for x in whole(2, 70)]
    got, wanted = (lightning_topk(*inputs, k=20, scores="relu", backend=b) for b in ("torch", "reference"))
    assert torch.equal(got, wanted)
    scores = index_scores(*inputs, "relu")[0, -1]
    assert (scores == 0).float().mean() > 0.4
    assert (scores < 0).any()
    assert len(scores.unique()) < 20


class RoundsByPlace(TorchDispatchMode):
    """A BLAS in which an element's place decides its last bits, more than on any processor: two units either way."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.mv):
            units = torch.arange(result.numel()).view(result.shape) * 7919 % 5 - 2
            result = result + units * torch.finfo(result.dtype).eps * result
        return result


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
def test_equal_keys_tie_wherever_they_stand(dtype, scores):
    """In rank, though a matrix product gives them other bits; and both forms of the scores are one function."""
    for time in (1, 3, 7, 21, 37, 100):
        q, k, w, bias = indexer(2, time, width=5, dtype=dtype, seed=time)
        pair = [form(q, k, w, bias, scores) for form in (index_scores_alike, index_scores)]
        torch.testing.assert_close(*pair)
        with RoundsByPlace():
            found = index_scores_alike(q, k[:, :1].expand_as(k).contiguous(), w, bias, scores)
        rank = ranks(found, w, scores) // LONGEST
        assert torch.equal(rank, rank[..., :1].expand_as(rank))


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("scores", SCORES)
def test_a_product_that_rounds_by_place_decides_no_tie(dtype, scores, backend):
    """Two kinds of keys by turns: of each kind the latest, whatever the last bits of its products are."""
    q, k, w, bias = indexer(2, 37, width=5, dtype=dtype)
    k = k[:, :2].repeat(1, 19, 1)[:, :37].contiguous()
    call = partial(lightning_topk, q, k, w, bias, k=9, scores=scores, backend=backend)
    with RoundsByPlace():
        got = call()
    assert torch.equal(got, call())
    for t, indices in enumerate(got[0].tolist()):
        for kind in (0, 1):
            chosen = [s for s in indices if s >= 0 and s % 2 == kind and s != t]
            latest = [s for s in range(t - 1, -1, -1) if s % 2 == kind]
            assert chosen == latest[: len(chosen)]


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_t_is_always_in_and_counted(backend):
    """Even where its own score is the lowest of all, and at k = 1 it is alone."""
    q, k, w, bias = indexer(1, 40)
    q, k = q.abs(), k.abs()
    k[0, 20:] *= -1
    for size in (1, 3):
        got = lightning_topk(q, k, w, bias, k=size, backend=backend)
        assert torch.equal(got[0, :, 0], torch.arange(40, dtype=torch.int32))
        assert torch.equal((got >= 0).sum(-1)[0], torch.arange(1, 41).clamp_max(size))
    assert all(max(chosen - {20 + i}) < 20 for i, chosen in enumerate(sets(got[:, 20:])))


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_a_smaller_k_is_a_part(backend):
    inputs = indexer(1, 30)
    large, small = (sets(lightning_topk(*inputs, k=k, backend=backend)) for k in (12, 5))
    assert all(few <= many for few, many in zip(small, large, strict=True))


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_keys_come_from_the_latest_to_the_earliest(backend):
    chosen = lightning_topk(*indexer(2, 30), k=AdaptiveK("inverse", 8, 2, 16), backend=backend)
    assert (chosen.diff(dim=-1)[chosen[..., 1:] >= 0] < 0).all()
    assert (chosen[..., 1:][chosen[..., :-1] < 0] < 0).all()


@pytest.mark.parametrize("rule", ["seed", "inverse"])
def test_k_of_a_query_looks_at_no_other_query(rule):
    q, k, w, bias = indexer(2, 60)
    call = partial(lightning_topk, k=AdaptiveK(rule, 8, 2, 16))
    whole = call(q, k, w, bias)
    for t in (0, 13, 59):
        alone = call(q[:, t : t + 1], k[:, : t + 1], w[:, t : t + 1], bias)
        assert torch.equal(alone[:, 0], whole[:, t])
    q2, w2 = q.clone(), w.clone()
    q2[:, 30], w2[:, 30] = 7, 0.1
    other = call(q2, k, w2, bias)
    kept = torch.arange(60) != 30
    assert torch.equal(other[:, kept], whole[:, kept])


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_the_future_changes_nothing(backend):
    q, k, w, bias = indexer(1, 30)
    call = partial(lightning_topk, bias=bias, k=AdaptiveK("inverse", 8, 2, 16), backend=backend)
    before = call(q, k, w)
    k2 = k.clone()
    k2[:, 17:] = 5
    assert torch.equal(call(q, k2, w)[:, :17], before[:, :17])
    assert (before <= torch.arange(30)[:, None]).all()


def test_adaptive_k_reaches_both_limits():
    """`inverse` by the scores themselves: equal keys have variance 0, two kinds of keys as much as ¼."""
    rule = AdaptiveK("inverse", 8, 2, 16)
    time = 64
    q, w, bias = torch.full((1, time, 2, 4), 50.0), torch.ones(1, time, 2), torch.zeros(2)
    flat = torch.zeros(1, time, 4)
    split = torch.where(torch.arange(time) % 2 == 0, 1.0, -1.0)[None, :, None].expand_as(flat)
    used = [(lightning_topk(q, k, w, bias, k=rule) >= 0).sum(-1)[0, -1].item() for k in (flat, split)]
    assert used == [16, 2]
    assert rule(torch.tensor([0.003, 0.0, 0.25])).tolist() == [8, 16, 2]


def test_adaptive_k_as_the_seed_has_it_never_reaches_its_least():
    """k_base·(1 + softplus(v)) ≥ 1.69·k_base: the formula and the prose of the seed contradict each other."""
    rule = AdaptiveK("seed", 100, 12, 200)
    assert rule(torch.tensor([0.0, 0.25])).tolist() == [169, 183]
    assert AdaptiveK("none", 100, 12, 200)(torch.tensor([0.0, 0.25])).tolist() == [100, 100]


def test_variance_is_the_populations_over_what_is_visible():
    q, k, w, bias = indexer(1, 30)
    seen = []

    class Watch(AdaptiveK):
        def __call__(self, variance):
            seen.append(variance)
            return super().__call__(variance)

    lightning_topk(q, k, w, bias, k=Watch("inverse", 4, 1, 8))
    scores = index_scores(q, k, w, bias)[0] / 4
    wanted = torch.stack([scores[t, : t + 1].var(correction=0) for t in range(30)])
    torch.testing.assert_close(torch.cat(seen, 1)[0], wanted)
    assert wanted[0] == 0


def test_packed_equals_a_batch():
    q, k, w, bias = indexer(3, 20)
    flat = [x.reshape(1, 60, *x.shape[2:]) for x in (q, k, w)]
    got = lightning_topk(*flat, bias, k=6, cu_seqlens=packed(20, 20, 20)).view(3, 20, 6)
    first = torch.tensor([0, 20, 40], dtype=torch.int32).view(3, 1, 1)
    assert torch.equal(torch.where(got < 0, -1, got - first), lightning_topk(q, k, w, bias, k=6))


def test_no_gradient_passes():
    inputs = [x.requires_grad_() for x in indexer(1, 20)]
    assert not lightning_topk(*inputs, k=4).requires_grad


def test_half_precision_is_scored_in_fp32():
    inputs = [x.to(torch.bfloat16) for x in indexer(2, 40)]
    wanted = lightning_topk(*(x.float() for x in inputs), k=6)
    assert torch.equal(lightning_topk(*inputs, k=6), wanted)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(lightning_topk(*(x.float() for x in inputs), k=6), wanted)


@pytest.mark.parametrize(
    ("values", "message"),
    [(("invers", 4, 1, 8), "none, seed, inverse, not 'invers'"), (("seed", 4, 5, 8), r"got 5, 4, 8")],
)
def test_adaptive_k_refuses_what_it_cannot_be(values, message):
    with pytest.raises(ValueError, match=message):
        AdaptiveK(*values)


RULES = [
    AdaptiveK("none", 5, 1, 5),
    AdaptiveK("seed", 5, 2, 12),
    AdaptiveK("inverse", 5, 2, 12, reference=0.01),
]


@pytest.mark.parametrize("rule", RULES, ids=[rule.rule for rule in RULES])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("time", [1, 2, 4, 40])
def test_one_query_selects_what_the_last_of_many_does(rule, batch, time):
    q, k, w, bias = indexer(batch, time)
    one = lightning_topk(q[:, -1:], k, w[:, -1:], bias, k=rule)
    assert torch.equal(one, lightning_topk(q[:, -1:], k, w[:, -1:], bias, k=rule, backend="reference"))
    assert torch.equal(one, lightning_topk(q, k, w, bias, k=rule)[:, -1:])


@pytest.mark.parametrize("rule", RULES, ids=[rule.rule for rule in RULES])
@pytest.mark.parametrize("variance", [0.0, 1e-12, 1e-4, 0.003, 0.02, 0.25, 1e4])
def test_the_rule_is_the_same_for_a_number(rule, variance):
    assert rule.of_number(variance) == int(rule(torch.tensor(variance, dtype=torch.float64)))
