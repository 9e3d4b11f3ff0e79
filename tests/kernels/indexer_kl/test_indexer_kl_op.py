"""indexer_kl: the blocks and their gradient against the definition, its identities and its errors."""

from functools import partial

import pytest
import torch
from support.kernel_cases import TOLERANCE, assert_agree, normal, packed
from support.margins import above, below
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees

from kernels import indexer_kl, lightning_topk
from kernels.ops.indexer_kl import torch_form
from kernels.ops.lightning_topk.scores import index_scores
from kernels.ops.sparse_attention import triton_masked

NAMES = ("q_idx", "k_idx", "w_idx", "bias", "tau")


def layer(batch, time, heads=4, kv_heads=2, width=8, index_heads=3, index_width=5, seed=0):
    """q, k of an attention, and q_idx, k_idx, w_idx, bias, tau of its indexer."""
    q, k = normal(batch, time, heads, width, seed=seed), normal(batch, time, kv_heads, width, seed=seed + 1)
    indexer = (
        normal(batch, time, index_heads, index_width, seed=seed + 2),
        normal(batch, time, index_width, seed=seed + 3),
        normal(batch, time, index_heads, seed=seed + 4).sigmoid(),
        normal(index_heads, seed=seed + 5),
        torch.tensor(7.0, dtype=torch.float64),
    )
    return (q, k), indexer


def signed(attended, indexer):
    """The same layer with index weights of any sign and a gentler τ, as ReLU scores have them."""
    q_idx, k_idx, w, bias, tau = indexer
    return attended, (q_idx, k_idx, 4 * w - 2, bias, tau / 7)


def losses(*inputs, call=indexer_kl, **options):
    """The loss as [1], which comparisons of outputs want."""
    return call(*inputs, **options)[None]


def selected(indexer, k, cu_seqlens=None):
    return lightning_topk(*indexer[:4], k=k, cu_seqlens=cu_seqlens)


CUT = packed(1, 8, 4, 1, 23)
CALLS = {
    "plain": (layer(2, 37), {}),
    "one token": (layer(2, 1), {}),
    "scale": (layer(1, 9), {"scale": 0.7}),
    "one head": (layer(2, 13, heads=1, kv_heads=1, index_heads=1), {}),
    "blocks": (layer(1, 150, heads=2, width=4), {}),
    "packed": (layer(1, 37), {"cu_seqlens": CUT}),
    "packed, empty sequences": (layer(1, 14), {"cu_seqlens": packed(0, 5, 0, 9, 0)}),
    "packed blocks": (layer(1, 150, heads=2), {"cu_seqlens": packed(140, 1, 9)}),
    "ReLU": (signed(*layer(2, 37)), {"scores": "relu"}),
    "ReLU, packed": (signed(*layer(1, 37)), {"scores": "relu", "cu_seqlens": CUT}),
}

ways = pytest.mark.parametrize("gathered", [True, False], ids=["gathered", "masked"])


def compared(attended, indexer, options, dtype):
    call = partial(losses, *(x.to(dtype) for x in attended), **options)
    pair = [partial(call, backend=backend) for backend in ("torch", "reference")]
    assert_agree(*pair, [x.to(dtype) for x in indexer])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp64", "fp32"])
@pytest.mark.parametrize("case", CALLS)
def test_blocks_equal_definition_over_all_visible_keys(case, dtype):
    (attended, indexer), options = CALLS[case]
    compared(attended, indexer, options, dtype)


@ways
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp64", "fp32"])
@pytest.mark.parametrize("case", CALLS)
def test_blocks_equal_definition_over_selected_keys(case, dtype, gathered, monkeypatch):
    monkeypatch.setattr(torch_form, "gathers", lambda *_: gathered)
    (attended, indexer), options = CALLS[case]
    indices = selected(indexer, 6, options.get("cu_seqlens"))
    compared(attended, indexer, {**options, "indices": indices}, dtype)


@ways
@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("chosen", [None, 6])
def test_queries_in_two_calls_share_the_loss(chosen, backend, gathered, monkeypatch):
    """The last queries, aligned with the end of all keys, and the first with theirs: values and gradients."""
    monkeypatch.setattr(torch_form, "gathers", lambda *_: gathered)
    (q, k), indexer = layer(2, 37)
    indices = None if chosen is None else selected(indexer, chosen)

    def call(queries: slice, keys: slice, q_idx, k_idx, w_idx, *more):
        index = (q_idx[:, queries], k_idx[:, keys], w_idx[:, queries], *more)
        rows = None if indices is None else indices[:, queries]
        return losses(q[:, queries], k[:, keys], *index, indices=rows, backend=backend)

    def cut(*indexer):
        early, late = slice(0, 24), slice(24, 37)
        return (24 * call(early, early, *indexer) + 13 * call(late, slice(0, 37), *indexer)) / 37

    assert_agree(cut, partial(call, slice(None), slice(None)), indexer)


def test_selecting_everything_is_the_loss_of_the_warm_up():
    attended, indexer = layer(2, 37)
    everything = partial(losses, *attended, indices=selected(indexer, 37))
    assert_agree(everything, partial(losses, *attended), indexer)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_an_empty_sequence_counts_as_a_loss_of_zero(backend):
    attended, indexer = layer(1, 14)
    full, sparse = (
        indexer_kl(*attended, *indexer, cu_seqlens=packed(*lengths), backend=backend)
        for lengths in ((5, 9), (5, 0, 9, 0))
    )
    torch.testing.assert_close(2 * sparse, full)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_the_derivative_of_a_relu_at_zero_is_zero(backend):
    """Logits of 0 for one query and, by their keys, for one key; every other head is active."""
    attended, indexer = zeros_among_logits()
    inputs = [x.requires_grad_() for x in indexer]
    indexer_kl(*attended, *inputs, scores="relu", backend=backend).backward()
    d_q, d_k, d_w, d_bias, _ = (x.grad for x in inputs)
    assert not d_q[:, 3].any()
    assert not d_k[:, 1].any()
    assert not d_w[:, 3].any()
    assert d_q[:, 2].all()
    assert d_k[:, 2].all()
    assert d_bias.all()


def zeros_among_logits():
    attended, (q_idx, k_idx, w, bias, tau) = signed(*layer(1, 5))
    q_idx, k_idx = q_idx.abs(), k_idx.abs()
    q_idx[:, 3], k_idx[:, 1] = 0, 0
    return attended, (q_idx, k_idx, w, bias * 0, tau)


def test_attention_gets_no_gradient():
    attended, indexer = layer(1, 12)
    for x in (*attended, *indexer):
        x.requires_grad_()
    indexer_kl(*attended, *indexer).backward()
    assert all(x.grad is None for x in attended)
    assert all(x.grad.any() for x in indexer)


def test_it_is_zero_where_the_indexer_says_what_attention_does():
    """One head whose keys have one channel: choose index keys so that τ·I is the attention's logit."""
    time = 12
    q, k = torch.full((1, time, 1, 1), 1.0), normal(1, time, 1, 1, dtype=torch.float64)
    share = (k[..., 0] + 5) / 10  # τ·σ(·) with τ = 10 is the logit and 5, which a softmax does not see
    k_idx = share.logit()
    one = torch.ones(1, time, 1, 1, dtype=torch.float64)
    inputs = (one, k_idx, one[..., 0], torch.zeros(1, dtype=torch.float64), torch.tensor(10.0).double())
    below(indexer_kl(q.double(), k, *inputs, scale=1.0).abs(), 1e-12)
    above(indexer_kl(q.double(), k, *inputs, scale=2.0), 1e-3)


def test_it_is_the_divergence_of_two_distributions():
    """Against torch's own KL, query by query."""
    (q, k), indexer = layer(1, 15, kv_heads=4)
    scores = index_scores(*indexer[:4])[0] * indexer[4]
    total = 0
    for t in range(15):
        attention = torch.einsum("hd,shd->hs", q[0, t], k[0, : t + 1]) * 8**-0.5
        p, chosen = attention.softmax(-1).mean(0), scores[t, : t + 1].log_softmax(-1)
        total = total + torch.nn.functional.kl_div(chosen, p, reduction="sum")
    torch.testing.assert_close(indexer_kl(q, k, *indexer), total / 15)


def test_gathering_is_chosen_where_few_of_many_small_keys_are_selected():
    assert torch_form.gathers(32, 128, 24)
    assert not torch_form.gathers(32, 128, 140)
    assert torch_form.gathers(8, 128, 140)


@pytest.mark.parametrize("k", [None, 4], ids=["visible", "selected"])
def test_sequences_count_the_same_whatever_their_length(k):
    (q, key), (q_idx, k_idx, w, bias, tau) = layer(1, 24)
    cut = packed(5, 1, 18)

    def loss(part, cu_seqlens=None):
        inputs = [x[:, part] for x in (q, key, q_idx, k_idx, w)]
        indices = None if k is None else lightning_topk(*inputs[2:], bias, k=k, cu_seqlens=cu_seqlens)
        return indexer_kl(*inputs, bias, tau, indices=indices, cu_seqlens=cu_seqlens)

    alone = [loss(slice(a, b)) for a, b in ((0, 5), (5, 6), (6, 24))]
    torch.testing.assert_close(loss(slice(0, 24), cut), torch.stack(alone).mean())


def test_without_gradients_it_is_the_same_number():
    attended, indexer = layer(2, 20)
    with torch.no_grad():
        value = indexer_kl(*attended, *(x.requires_grad_() for x in indexer))
    torch.testing.assert_close(indexer_kl(*attended, *indexer), value)


KERNEL_CUT = packed(1, 20, 4)

# q, k of attention and the indexer; options; how many keys a list has, where there are lists.
# A program has 16 queries, or one where there are lists; blocks of keys have 64.
KERNEL_CALLS = {
    "plain": (layer(2, 17, heads=2), {}, None),
    "one token": (layer(2, 1), {}, None),
    "widths": (layer(1, 9, 2, 1, width=40, index_heads=1, index_width=20), {"scale": 0.7}, None),
    "a large group": (layer(1, 5, heads=20, kv_heads=1, index_heads=5), {}, None),
    "blocks of keys": (layer(1, 70, heads=1, kv_heads=1), {}, None),
    "packed": (layer(1, 25), {"cu_seqlens": KERNEL_CUT}, None),
    "packed, empty sequences": (layer(1, 9, 2, 1), {"cu_seqlens": packed(0, 3, 0, 6)}, None),
    # Gradients of 2,050 numbers: two programs of 1,024 scale all but the last two.
    "gradients of several programs": (layer(1, 41, 1, 1, index_heads=1, index_width=50), {}, None),
    "lists": (layer(2, 9), {}, 4),
    "lists, one head": (layer(1, 7, heads=1, kv_heads=1, index_heads=1), {}, 3),
    "lists, packed": (layer(1, 25, heads=2, kv_heads=1), {"cu_seqlens": KERNEL_CUT}, 5),
    "ReLU": (signed(*layer(1, 17, heads=2)), {"scores": "relu"}, None),
    "ReLU, zeros": (zeros_among_logits(), {"scores": "relu"}, None),
    "ReLU, lists": (signed(*layer(1, 5, heads=2)), {"scores": "relu"}, 3),
}
QUICK = ("one token", "ReLU, zeros")


@pytest.mark.parametrize(
    "case", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in KERNEL_CALLS]
)
def test_kernels_equal_the_definition(case):
    compare(case, torch.float32)


@pytest.mark.slow
@HALF
@pytest.mark.parametrize("case", ["widths", "lists, one head"])
def test_half_precision(case, dtype):
    """Attention and indexer in 16 bit, τ in fp32."""
    compare(case, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("case", [name for name, (_, _, size) in KERNEL_CALLS.items() if size])
def test_lists_read_key_by_key_equal_the_definition(case, monkeypatch):
    monkeypatch.setattr(triton_masked, "MASK_COST", 0)
    compare(case, torch.float32)


def compare(case: str, dtype: torch.dtype) -> None:
    (attended, indexer), options, size = KERNEL_CALLS[case]
    options = dict(options)
    if size is not None:
        options["indices"] = selected(indexer, size, options.get("cu_seqlens"))
    options = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    inputs = dict(zip(("q", "k", *NAMES), (*attended, *indexer), strict=True))
    assert_kernel_agrees(
        partial(losses, **options), inputs, dtype, keep=("tau",), gates=("tau",), fixed=("q", "k")
    )


@pytest.mark.slow
def test_a_flat_target_under_a_sharp_indexer_stays_finite():
    """Shares of the indexer down to e^−400, and logits of attention near 100."""
    (q, k), (q_idx, k_idx, w, bias, _) = layer(1, 6, heads=1, kv_heads=1)
    q[..., 0], k[..., 0] = 17, 17
    tau = torch.tensor(400.0, dtype=torch.float64)
    inputs = dict(zip(("q", "k", *NAMES), (q, k, q_idx, k_idx, w, bias, tau), strict=True))
    limits = dict.fromkeys(("o0", *NAMES), 1e-3)
    assert_kernel_agrees(losses, inputs, torch.float32, fixed=("q", "k"), limits=limits)


@pytest.mark.slow
def test_a_query_with_an_empty_list_counts_nothing():
    (q, k), indexer = layer(1, 6, heads=1, kv_heads=1)
    indices = selected(indexer, 3)
    indices[:, [0, 4]] = -1
    q, k, *leaves = (x.float().to(DEVICE).requires_grad_() for x in (q, k, *indexer))
    values = [indexer_kl(q, k, *leaves, indices=indices.to(DEVICE), backend=b) for b in ("triton", "torch")]
    torch.testing.assert_close(*values)
    got, wanted = (torch.autograd.grad(value, leaves) for value in values)
    torch.testing.assert_close(got, wanted)
    with torch.no_grad():
        alone = indexer_kl(q, k, *leaves, indices=indices.to(DEVICE), backend="triton")
    assert torch.equal(alone, values[0])


@pytest.mark.gpu
@pytest.mark.parametrize("size", [None, 512], ids=["visible", "selected"])
def test_long_sequences_give_the_same_bits_at_every_run(size):
    (q, k), indexer = layer(1, 4096, heads=8, kv_heads=2, width=64, index_heads=4, index_width=64)
    q, k = q.to("cuda", torch.bfloat16), k.to("cuda", torch.bfloat16)
    leaves = [x.float().to("cuda").requires_grad_() for x in indexer]
    indices = None if size is None else selected(leaves, size)
    runs = []
    for _ in range(3):
        loss = indexer_kl(q, k, *leaves, indices=indices, backend="triton")
        runs.append([loss, *torch.autograd.grad(loss, leaves)])
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(run, runs[0], strict=True))
