"""sparse_attention: both ways of reading selected keys against the definition, identities and errors."""

from functools import partial

import pytest
import torch
from support.kernel_cases import assert_agree, normal, packed, qkv
from support.margins import below
from support.peak_memory import printed_by
from support.watch import Watch

from kernels import attention, lightning_topk, sparse_attention
from kernels.indices import BUDGET, LARGEST
from kernels.ops.sparse_attention import select


def chosen(batch, queries, selected, keys=None, cu_seqlens=None, seed=0, causal=True):
    """Random distinct keys of the query's past, the query itself among them; −1 for the rest, anywhere."""
    keys = keys or queries
    score = normal(batch, queries, keys, seed=seed)
    t = torch.arange(queries) + keys - queries
    score[:, torch.arange(queries), t] = 9
    hidden = torch.arange(keys) > t[:, None] if causal else torch.zeros(queries, keys, dtype=torch.bool)
    if cu_seqlens is not None:
        sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), torch.arange(keys), right=True)
        hidden = hidden | (sequence[:, None] != sequence)
    top = score.masked_fill(hidden, -torch.inf).topk(min(selected, keys), -1)
    indices = torch.where(top.values.isinf(), -1, top.indices)
    order = normal(*indices.shape, seed=seed + 1).argsort(-1)
    return indices.gather(-1, order).to(torch.int32)


CUT = packed(1, 8, 0, 4, 1, 23)
CALLS = {
    "plain": (qkv(2, 37), chosen(2, 37, 6), {}),
    "one token": (qkv(2, 1), chosen(2, 1, 6), {}),
    "scale": (qkv(1, 9), chosen(1, 9, 3), {"scale": 0.7}),
    "everything": (qkv(1, 21), chosen(1, 21, 21), {}),
    "not causal": (qkv(2, 21), chosen(2, 21, 6, causal=False), {}),
    "grouped heads": (qkv(2, 13, kv_heads=2), chosen(2, 13, 4), {}),
    "narrow values": (qkv(2, 13, value_width=5), chosen(2, 13, 4), {}),
    "shorter q": (qkv(2, 30, queries=4), chosen(2, 4, 5, keys=30), {}),
    "blocks": (qkv(1, 300, heads=2, kv_heads=1, width=4), chosen(1, 300, 9), {}),
    "int64": (qkv(1, 9), chosen(1, 9, 3).long(), {}),
    "packed": (qkv(1, 37), chosen(1, 37, 5, cu_seqlens=CUT), {"cu_seqlens": CUT}),
}

ways = pytest.mark.parametrize("cost", [0, 1 << 40], ids=["gathered", "masked"])


@ways
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("case", CALLS)
def test_blocks_equal_definition(case, dtype, cost, monkeypatch):
    monkeypatch.setattr(select, "GATHER_COST", cost)
    inputs, indices, options = CALLS[case]
    call = partial(sparse_attention, indices=indices, **options)
    pair = [partial(call, backend=backend) for backend in ("torch", "reference")]
    assert_agree(*pair, [x.to(dtype) for x in inputs])


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_selecting_everything_is_full_attention(backend):
    inputs = qkv(2, 37, kv_heads=2)
    t = torch.arange(37)
    everything = torch.where(t <= t[:, None], t, -1).expand(2, -1, -1)
    sparse = partial(sparse_attention, indices=everything, backend=backend)
    assert_agree(sparse, partial(attention, backend="reference"), inputs)


@ways
def test_selecting_the_last_tokens_is_a_window(cost, monkeypatch):
    monkeypatch.setattr(select, "GATHER_COST", cost)
    inputs = qkv(2, 200, heads=2)
    window = (torch.arange(200)[:, None] - torch.arange(7)).clamp_min(-1).expand(2, -1, -1)
    assert_agree(partial(sparse_attention, indices=window), partial(attention, window=7), inputs)


@ways
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_a_query_without_keys_gets_zero_and_no_gradient(backend, cost, monkeypatch):
    monkeypatch.setattr(select, "GATHER_COST", cost)
    indices = chosen(1, 12, 4)
    indices[:, [0, 5]] = -1
    q, k, v = (x.requires_grad_() for x in qkv(1, 12))
    out = sparse_attention(q, k, v, indices, backend=backend)
    assert not out[:, [0, 5]].any()
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    assert not q.grad[:, [0, 5]].any()


@ways
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_a_gate_multiplies_the_output(backend, dtype, cost, monkeypatch):
    monkeypatch.setattr(select, "GATHER_COST", cost)
    indices = chosen(2, 13, 4)
    indices[:, [0, 5]] = -1
    inputs = (*qkv(2, 13, kv_heads=2, value_width=5), 3 * normal(2, 13, 4, 5, seed=4))

    def apart(q, k, v, logits):
        return sparse_attention(q, k, v, indices, backend="reference") / (1 + (-logits).exp())

    def gated(q, k, v, logits):
        return sparse_attention(q, k, v, indices, gate_logits=logits, backend=backend)

    assert_agree(gated, apart, [x.to(dtype) for x in inputs])


def test_what_is_saved_of_a_gated_output_is_that_output_alone():
    """Neither the ungated one nor σ(l), for which y and l will do: ȳ ⊙ y ⊙ (1 − σ(l))."""
    q, k, v, logits = (x.requires_grad_() for x in (*qkv(1, 9), normal(1, 9, 4, 8, seed=4)))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        y = sparse_attention(q, k, v, chosen(1, 9, 3), gate_logits=logits, backend="torch")
    numbers = [x for x in saved if x.is_floating_point()]
    assert {x.data_ptr() for x in numbers} == {x.data_ptr() for x in (q, k, v, logits, y)}


@ways
def test_only_selected_keys_are_seen(cost, monkeypatch):
    monkeypatch.setattr(select, "GATHER_COST", cost)
    q, k, v = qkv(1, 30)
    indices = chosen(1, 30, 5)
    v.requires_grad_()
    sparse_attention(q, k, v, indices)[0, 17, 2].sum().backward()
    reached = v.grad.abs().sum(-1)[0] > 0
    wanted = torch.zeros(30, 4, dtype=torch.bool)
    wanted[indices[0, 17].long(), 2] = True
    assert torch.equal(reached, wanted)


def test_gathering_is_chosen_where_few_of_many_keys_are_selected():
    assert select.gathers(64, 16384, 1)
    assert not select.gathers(2048, 16384, 1)
    assert select.gathers(64, 1024, 3)
    assert not select.gathers(64, 1024, 1)


def test_blocks_read_no_key_outside_what_they_select():
    spans = select.spans(chosen(1, 40, 5, cu_seqlens=packed(20, 20)), 10, 40)
    assert [(first, last) for first, last, _, _ in spans] == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert all(20 * (first // 20) <= begin < end == last for first, last, begin, end in spans)


@ways
def test_half_precision_is_near_the_definition(cost, monkeypatch):
    monkeypatch.setattr(select, "GATHER_COST", cost)
    inputs, indices = qkv(1, 50), chosen(1, 50, 8)
    got = sparse_attention(*(x.bfloat16() for x in inputs), indices)
    wanted = sparse_attention(*inputs, indices, backend="reference")
    assert got.dtype == torch.bfloat16
    # Every input, the weights and the output are rounded to 2^-9 at most, which adds up to about one unit, 2^-8.
    below((got - wanted).norm(), 5 * 2**-8 * wanted.norm())


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(2, 5, 4), r"gate_logits .* = \(2, 5, 4, 8\), got torch.float32 \(2, 5, 4\)"),
        (torch.zeros(2, 5, 4, 8, dtype=torch.int64), "got torch.int64"),
    ],
)
def test_a_gate_has_the_shape_of_the_output(logits, message):
    with pytest.raises(ValueError, match=message):
        sparse_attention(*qkv(2, 5), chosen(2, 5, 3), gate_logits=logits)


def test_a_gate_in_another_dtype_leaves_the_outputs():
    inputs, logits = qkv(1, 9, dtype=torch.bfloat16), normal(1, 9, 4, 8, seed=4)
    for backend in ("torch", "reference"):
        o = sparse_attention(*inputs, chosen(1, 9, 3), gate_logits=logits, backend=backend)
        assert o.dtype == torch.bfloat16


def test_the_definition_refuses_a_key_of_another_sequence():
    with pytest.raises(ValueError, match="another sequence"):
        sparse_attention(*qkv(1, 10), chosen(1, 10, 9), cu_seqlens=packed(4, 6), backend="reference")


LONG, KEPT = 16_384, 32


def ranked(operator, args) -> bool:
    """By the lowest score that is kept."""
    return operator is torch.ops.aten.ge.Tensor and args[0].dim() == 3


@pytest.mark.parametrize("time", [2048, pytest.param(LONG, marks=pytest.mark.long)])
def test_scores_are_half_of_all_pairs_and_never_many_at_once(time):
    heads, width = 2, 2
    inputs = torch.randn(1, time, heads, width), torch.randn(1, time, width), torch.rand(1, time, heads)
    with Watch(ranked) as watch:
        lightning_topk(*inputs, torch.zeros(heads), k=KEPT)
    pairs = time * (time + 1) // 2
    assert pairs <= watch.scores <= pairs + time * LARGEST // 2
    assert watch.largest <= max(BUDGET["cpu"], time * KEPT)
    assert watch.largest < time * time // 2


STEP = """
import torch
from support.peak_memory import peak
from kernels import indexer_kl, lightning_topk, sparse_attention
torch.set_num_threads(1)
def step(time, kept):
    q, k, v = (torch.randn(1, time, heads, 8, requires_grad=True) for heads in (2, 1, 1))
    indexer = torch.randn(1, time, 1, 4), torch.randn(1, time, 4), torch.rand(1, time, 1), torch.zeros(1)
    indexer = [x.requires_grad_() for x in indexer]
    indices = lightning_topk(*indexer, k=kept)
    loss = indexer_kl(q, k, *indexer, torch.tensor(10.0), indices=indices)
    (loss + sparse_attention(q, k, v, indices).square().mean()).backward()
step(256, 8)
before = peak()
step({time}, {kept})
print(peak() - before)
"""


@pytest.mark.long
def test_peak_memory_of_a_training_step_is_far_below_one_matrix_of_pairs():
    """Selection, loss and attention, forward and backward; one fp32 T × T matrix would be 1 GiB."""
    code = STEP.replace("{time}", str(LONG)).replace("{kept}", str(KEPT))
    assert printed_by(code) < 300 * 1024
