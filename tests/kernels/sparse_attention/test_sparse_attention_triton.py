"""sparse_attention's Triton kernels against the definition: lists, groups of heads, packing, odd widths."""

from functools import partial

import pytest
import torch
from support.kernel_cases import normal, packed, qkv
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees
from test_sparse_attention_op import chosen

from kernels import sparse_attention
from kernels.ops.sparse_attention import triton_masked, work
from kernels.ops.sparse_attention.select import BLOCK, selectors

CUT = packed(1, 8, 0, 4)


def without_keys(indices, *queries):
    """The lists, those of these queries empty."""
    indices[:, list(queries)] = -1
    return indices


PAIR = {"batch": 1, "heads": 2, "kv_heads": 1}
BLOCKS = {"batch": 2, "time": 130, "queries": 6, "heads": 1, "width": 16}
# Shapes of q, k, v, the lists, options. A program has a query and a KV head: few of both.
CALLS = {
    "plain": ({"batch": 2, "time": 5, "heads": 1}, chosen(2, 5, 4), {}),
    "one token": ({"batch": 1, "time": 1, "heads": 2}, chosen(1, 1, 3), {}),
    "grouped heads": ({"batch": 1, "time": 6, "heads": 6, "kv_heads": 2}, chosen(1, 6, 4).long(), {}),
    "a large group": ({"batch": 1, "time": 3, "heads": 70, "kv_heads": 1, "width": 16}, chosen(1, 3, 2), {}),
    "odd widths": (PAIR | {"time": 5, "width": 40, "value_width": 17}, chosen(1, 5, 3), {"scale": 0.7}),
    "wide": ({"batch": 1, "time": 4, "heads": 1, "width": 256}, chosen(1, 4, 3), {}),
    "long lists": (PAIR | {"time": 150, "queries": 8, "width": 16}, chosen(1, 8, 140, keys=150), {}),
    "blocks of keys": (BLOCKS, chosen(2, 6, 5, keys=130, causal=False), {}),
    "empty lists": (PAIR | {"time": 8}, without_keys(chosen(1, 8, 3), 0, 5), {}),
    "packed": ({"batch": 1, "time": 13, "heads": 1}, chosen(1, 13, 5, cu_seqlens=CUT), {"cu_seqlens": CUT}),
}
QUICK = ("one token", "grouped heads")


@pytest.fixture(params=["tiles", "lists"])
def way(request, monkeypatch):
    """Keys are read in tiles, masked, or one by one: whichever costs less, so that small cases would all be tiles."""
    monkeypatch.setattr(triton_masked, "MASK_COST", 2**20 if request.param == "tiles" else 0)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "case", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CALLS]
)
def test_kernels_equal_the_definition(case):
    compare(case, torch.float32)


@pytest.mark.parametrize("places", [1, 2])
def test_short_lists_in_a_long_sequence_are_read_key_by_key(places):
    """140 keys of two query heads to a KV head: more than 128 a place of one or two, fewer a place of three."""
    assert triton_masked.masks(2, 1, 140, 3)
    assert not triton_masked.masks(2, 1, 140, places)
    inputs = dict(zip("qkv", qkv(1, 140, queries=4, heads=2, kv_heads=1, width=16), strict=True))
    indices = chosen(1, 4, places, keys=140).to(DEVICE)
    assert_kernel_agrees(partial(sparse_attention, indices=indices), inputs, torch.float32)


def test_bits_name_every_selected_pair_and_the_spans_hold_them():
    """Two sequences, 30 queries, 200 keys; one query without keys."""
    indices = without_keys(chosen(2, 30, 9, keys=200, causal=False), 7).to(DEVICE)
    selection = triton_masked.selection_of(indices, 200)
    wanted = torch.zeros(2, 30, 201, dtype=torch.bool, device=DEVICE)
    wanted = wanted.scatter(2, torch.where(indices < 0, 200, indices).long(), True)[..., :200]
    bits = (selection.bits.unsqueeze(-1) >> torch.arange(32, device=DEVICE)) & 1
    assert torch.equal(bits.flatten(2)[..., :200].bool(), wanted)
    assert not bits.flatten(2)[..., 200:].any()
    for b, t in torch.cartesian_prod(torch.arange(2), torch.arange(30)).tolist():
        keys = wanted[b, t].nonzero().flatten().tolist()
        assert selection.keys[b, t].tolist() == ([keys[0], keys[-1] + 1] if keys else [200, 0])
        for s in keys:
            first, end = selection.queries[b, s // 64].tolist()
            assert first <= t < end


@HALF
@pytest.mark.usefixtures("way")
def test_half_precision(dtype):
    compare("odd widths", dtype)


def compare(case: str, dtype: torch.dtype) -> None:
    shape, indices, options = CALLS[case]
    inputs = dict(zip("qkv", qkv(**shape), strict=True))
    options = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    assert_kernel_agrees(partial(sparse_attention, indices=indices.to(DEVICE), **options), inputs, dtype)


def gate_case() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """q, k, v and a gate's logits, odd widths, groups of heads and empty lists; and the lists."""
    inputs = qkv(1, 5, heads=6, kv_heads=2, width=16, value_width=5)
    inputs = dict(zip("qkv", inputs, strict=True), gate_logits=2 * normal(1, 5, 6, 5, seed=4))
    return inputs, without_keys(chosen(1, 5, 3), 0, 3)


@pytest.mark.slow
@pytest.mark.usefixtures("way")
def test_a_gate_in_the_kernel_equals_the_definition():
    inputs, indices = gate_case()
    assert_kernel_agrees(partial(sparse_attention, indices=indices.to(DEVICE)), inputs, torch.float32)


@HALF
@pytest.mark.slow
def test_a_gate_in_half_precision(dtype):
    inputs, indices = gate_case()
    call = partial(sparse_attention, indices=indices.to(DEVICE))
    assert_kernel_agrees(call, inputs, dtype, gates=["gate_logits"])


@pytest.mark.slow
def test_large_scores_do_not_overflow():
    """Logits near 400, which no exponential of fp32 holds; rounding them costs 1e-5 of each."""
    q, k, v = qkv(1, 5, heads=1, width=16)
    q[..., 0], k[..., 0] = 40, 40
    call = partial(sparse_attention, indices=chosen(1, 5, 4).to(DEVICE))
    assert_kernel_agrees(
        call, {"q": q, "k": k, "v": v}, torch.float32, limits=dict.fromkeys(("o0", "q", "k", "v"), 1e-4)
    )


def test_the_inverted_lists_name_every_selected_pair_once():
    indices = chosen(2, 30, 9, keys=200, causal=False)
    lists = selectors(indices, 200)
    pairs = set()
    for block in range(len(lists.first) - 1):
        for place in range(lists.first[block], lists.first[block + 1]):
            query, mask = int(lists.query[place]), int(lists.bits[place])
            keys = [block % 4 * BLOCK + i for i in range(BLOCK) if mask >> i & 1]
            assert keys
            assert block // 4 == query // 30
            pairs |= {(query, key) for key in keys}
    wanted = {(t, int(s)) for t, row in enumerate(indices.flatten(0, 1)) for s in row if s >= 0}
    assert pairs == wanted
    assert int(lists.first[-1]) == len({(t, s // BLOCK) for t, s in wanted})


def test_work_counts_the_products_of_every_listed_pair():
    """Forward q·k and p·v; backward q·k again, do·v, and the gradients of q, k and v: 2 FLOPs a channel each."""
    width, value_width, heads, pairs = 8, 5, 4, 1 + 2 + 3 + 3 + 3
    tensors = (x.to("meta") for x in qkv(1, 5, heads=heads, width=width, value_width=value_width))
    forward, backward = work(*tensors, torch.empty(1, 5, 3, dtype=torch.int32, device="meta"))
    assert forward.flops == 2 * heads * pairs * (width + value_width)
    assert backward.flops == 2 * heads * pairs * (3 * width + 2 * value_width)


def test_work_of_a_gate():
    """Read both ways; backward its gradient and the ungated output's are written, and the latter is read."""
    tensors = [x.to("meta") for x in qkv(1, 5, heads=4, width=8, value_width=6, dtype=torch.float32)]
    indices = torch.empty(1, 5, 3, dtype=torch.int32, device="meta")
    logits = torch.empty(1, 5, 4, 6, device="meta")
    size = 4 * 5 * 4 * 6
    for plain, gated, more in zip(
        work(*tensors, indices), work(*tensors, indices, gate_logits=logits), (1, 4), strict=True
    ):
        assert gated.bytes - plain.bytes == more * size
        assert gated.flops == plain.flops


@pytest.mark.gpu
def test_long_sequences_give_the_same_bits_at_every_run():
    q, k, v = (x.to("cuda", torch.bfloat16) for x in qkv(1, 8192, heads=16, kv_heads=2, width=64))
    t = torch.arange(8192, device="cuda")
    near, far = (
        t[:, None] - torch.arange(192, device="cuda"),
        t[:, None] % 97 * torch.arange(7, 71, device="cuda"),
    )
    far = torch.where(far < near[:, -1:], far, -1)
    far = torch.where((far.diff(dim=1, prepend=far.new_full((8192, 1), -2)) == 0) & (far >= 0), -1, far)
    indices = torch.cat([near.clamp_min(-1), far], 1)[None].to(torch.int32)
    runs = []
    for _ in range(3):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        o = sparse_attention(*leaves, indices, backend="triton")
        runs.append([o, *torch.autograd.grad(o.square().sum(), leaves)])
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(run, runs[0], strict=True))
