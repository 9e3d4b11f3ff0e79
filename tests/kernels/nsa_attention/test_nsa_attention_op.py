"""nsa_attention: the blockwise form against the definition, its identities, its memory and its errors."""

from functools import partial

import pytest
import torch
from support.kernel_cases import assert_agree, normal, packed
from support.margins import below
from support.peak_memory import printed_by
from support.watch import Watch
from torch import Tensor

from kernels import attention, nsa_attention, nsa_blocks
from kernels.autograd import flop_counter
from kernels.indices import BUDGET
from kernels.ops.nsa_attention import torch_form
from kernels.ops.nsa_attention.blocks import Sizes, block_topk, importance, pieces
from kernels.ops.nsa_attention.numba_ops import (
    chosen_blocks_op,
    ranged_attention_backward_op,
    ranged_attention_op,
    window_ranges,
)
from kernels.ops.nsa_attention.torch_form import STRETCH, forward

SMALL = {"block_size": 4, "stride": 2, "select_size": 4, "n_select": 4, "window": 5}
NAMES = ("q", "q_rotated", "k_cmp", "v_cmp", "k_slc", "v_slc", "k_win", "v_win", "gates")


def inputs(
    batch, time, heads=4, kv_heads=2, width=8, value_width=8, queries=None, blocks=None
) -> list[Tensor]:
    """q, q_rotated, k and v of three branches, gates; as many compressed blocks as stride 2 can need."""
    blocks = max(1, time // 2) if blocks is None else blocks
    shapes = [(queries or time, heads, width)] * 2
    shapes += [(n, kv_heads, w) for n in (blocks, time, time) for w in (width, value_width)]
    tensors = [normal(batch, *shape, seed=seed) for seed, shape in enumerate(shapes)]
    return [*tensors, torch.sigmoid(normal(batch, queries or time, heads, 3, seed=8))]


def call(q, q_rotated, kc, vc, ks, vs, kw, vw, gates, **options) -> Tensor:
    branches = (kc, vc), (ks, vs), (kw, vw)
    return nsa_attention(q, *branches, gates, q_rotated=q_rotated, **{**SMALL, **options})


CASES = {
    "plain": (inputs(2, 37), {}),
    "one token": (inputs(2, 1), {}),
    "one visible block": (inputs(2, 4), {}),
    "long": (inputs(1, 300, heads=2, kv_heads=1, width=4, value_width=4), {}),
    "one KV head a head, narrow values": (inputs(2, 37, kv_heads=4, value_width=5), {"scale": 0.7}),
    "shorter q": (inputs(2, 50, queries=7), {}),
    "one query": (inputs(2, 50, queries=1), {}),
    "large blocks": (inputs(1, 90), {"block_size": 6, "select_size": 8, "n_select": 3, "window": 200}),
    "small blocks": (inputs(1, 60), {"block_size": 12, "select_size": 2, "n_select": 9, "window": 1}),
    "stride 1": (inputs(1, 30, blocks=30), {"block_size": 3, "stride": 1, "select_size": 5}),
    "packed": (inputs(1, 97), {"cu_seqlens": packed(1, 8, 0, 4, 1, 23, 60)}),
}


FORMS = {
    "torch, fp64": ("torch", torch.float64),
    "torch": ("torch", torch.float32),
    "numba": ("numba", torch.float32),
}
DTYPES = {"torch": torch.float64, "reference": torch.float64, "numba": torch.float32}


@pytest.mark.parametrize(("form", "dtype"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("case", CASES)
def test_blocks_equal_definition(case, form, dtype):
    tensors, options = CASES[case]
    if form == "numba" and "cu_seqlens" in options:
        with pytest.raises(ValueError, match="packed"):
            call(*(x.to(dtype) for x in tensors), backend=form, **options)
        return
    pair = [partial(call, backend=backend, **options) for backend in (form, "reference")]
    assert_agree(*pair, [x.to(dtype) for x in tensors])


WIDE = {
    "several tiles of keys": (inputs(1, 700, 4, 1, 16, 24), {"n_select": 80, "window": 300}),
    "five heads of 64 and 128": (inputs(1, 90, 5, 1, 64, 128), {}),
    "fewer sequences than threads, sizes of their own": (
        inputs(2, 75, 6, 2, 20, 33),
        {"window": 9, "n_select": 3},
    ),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", WIDE)
def test_numba_equals_the_definition_at_every_width_and_on_threads(case, threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    tensors, options = WIDE[case]
    pair = [partial(call, backend=backend, **options) for backend in ("numba", "reference")]
    assert_agree(*pair, [x.float() for x in tensors])


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (2, 2), (3, 1)])
def test_the_operators_of_ranges_keep_what_they_promise_to_pytorch(heads, kv_heads):
    """Shapes, dtypes and strides, which compilers count on, also of rows that are filled up."""
    q, k, v = normal(2, 9, heads, 8), normal(2, 9, kv_heads, 8), normal(2, 9, kv_heads, 6)
    q, k, v = (x.float().requires_grad_() for x in (q, k, v))
    ranges = window_ranges(torch.arange(9), Sizes(4, 2, 4, 3, 5))
    torch.library.opcheck(ranged_attention_op, (q, k, v, ranges, 0.3, 5))
    o, lse = ranged_attention_op(q, k, v, ranges, 0.3, 5)
    backward = ranged_attention_backward_op(torch.ones_like(o), o, lse, q, k, v, ranges, 0.3, 5)
    assert all(x.is_contiguous() for x in (o, lse, *backward))
    torch.library.opcheck(chosen_blocks_op, (q.detach(), k.detach()[:, :3], 9, [4, 2, 4, 3, 5]))


@pytest.mark.parametrize("default", [torch.float64, torch.float16], ids=str)
def test_the_users_default_dtype_changes_nothing(default):
    tensors = [x.float() for x in inputs(1, 40)]
    wanted = call(*tensors, backend="numba")
    torch.set_default_dtype(default)
    try:
        found = call(*tensors, backend="numba")
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("window", [2**31 - 1, 2**31 + 200, 2**63 - 1])
def test_a_window_of_any_size_reaches_all_keys(window):
    tensors = [x.float() for x in inputs(1, 40)]
    wanted = call(*tensors, window=40, backend="numba")
    assert torch.equal(call(*tensors, window=window, backend="numba"), wanted)


def test_a_block_of_any_size_reaches_all_keys():
    tensors = [x.float() for x in inputs(1, 40)]
    wanted = call(*tensors, select_size=64, backend="numba")
    assert torch.equal(call(*tensors, select_size=2**33, backend="numba"), wanted)


def test_numba_counts_the_flops_of_the_other_forms():
    counts = []
    for backend in ("numba", "torch"):
        tensors = [x.float().requires_grad_() for x in inputs(2, 40)]
        with flop_counter() as counter:
            call(*tensors, backend=backend).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_equal_keys_choose_the_lower_blocks_in_numba_too():
    """All summaries alike: the lowest blocks are read beside those that must be.

    In fp64, as a product of matrices rounds equal columns by their place: in fp32 by more than what counts as a tie.
    """
    q, k = normal(1, 48, 4, 8), normal(1, 1, 2, 8).expand(1, 23, 2, 8).contiguous()
    chosen = chosen_blocks_op(q, k, 48, [4, 2, 4, 4, 5])
    assert chosen[0, 0, 47].tolist() == [0, 1, 10, 11]


@pytest.mark.parametrize(("batch", "time"), [(1, 61), (3, 11)])
def test_many_parts_stretches_and_blocks_of_queries_equal_definition(batch, time, monkeypatch):
    """The loops over sequences, queries and tiles, which small inputs go through once."""
    monkeypatch.setitem(torch_form.STRETCH, "cpu", 3000)
    monkeypatch.setitem(torch_form.PART, "cpu", 300)
    monkeypatch.setattr(torch_form, "HEIGHT", 4)
    monkeypatch.setattr(torch_form, "block_size", lambda numbers, device: 7)
    pair = [partial(call, backend=backend) for backend in ("torch", "reference")]
    assert_agree(*pair, inputs(batch, time))


def only(branch: int, tensors: list[Tensor]) -> list[Tensor]:
    """The inputs with the gate of one branch 1 and the others 0."""
    return [*tensors[:-1], torch.zeros_like(tensors[-1]).index_fill_(-1, torch.tensor(branch), 1)]


@pytest.mark.parametrize("backend", DTYPES)
def test_the_selection_branch_with_everything_selected_is_full_attention(backend):
    tensors = [x.to(DTYPES[backend]) for x in only(1, inputs(2, 37))]
    free = {1: "q_rotated", 4: "k", 5: "v"}

    def selection(q, k, v):
        given = {1: q, 4: k, 5: v}
        return call(*(given.get(i, x) for i, x in enumerate(tensors)), n_select=10, backend=backend)

    assert_agree(selection, partial(attention, backend="reference"), [tensors[i] for i in free])


@pytest.mark.parametrize("backend", DTYPES)
def test_causality_is_token_by_token_inside_blocks(backend):
    """No branch passes a gradient to a token after the query; in compression, to a block that ends after it."""
    for t in (0, 3, 9, 18):
        tensors = [x.to(DTYPES[backend]).requires_grad_() for x in inputs(1, 21)]
        call(*tensors, backend=backend)[0, t].sum().backward()
        reached = {name: x.grad.abs().sum((0, 2, 3)) > 0 for name, x in zip(NAMES, tensors, strict=True)}
        for name in ("v_slc", "v_win"):
            assert not reached[name][t + 1 :].any(), (name, t)
            assert reached[name][t], (name, t)
        seen = 2 * torch.arange(10) + 3 <= t
        assert torch.equal(reached["v_cmp"], seen), t


@pytest.mark.parametrize("backend", DTYPES)
def test_a_query_that_sees_no_block_gets_zero(backend):
    tensors = [x.to(DTYPES[backend]).requires_grad_() for x in only(0, inputs(2, 9))]
    out = call(*tensors, backend=backend)
    assert not out[:, :3].any()
    assert out[:, 3:].abs().amin() > 0
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in tensors)
    assert not tensors[0].grad[:, :3].any()


@pytest.mark.parametrize("backend", DTYPES)
def test_a_sequence_shorter_than_a_block_needs_no_blocks(backend):
    tensors = [x.to(DTYPES[backend]) for x in inputs(1, 6, blocks=0)]
    out = call(*tensors, block_size=8, select_size=8, backend=backend)
    assert out.isfinite().all()
    assert not call(*only(0, tensors), block_size=8, select_size=8, backend=backend).any()


def test_importance_is_the_shared_part_of_every_block():
    """SPEC's sum, written out: l = 12, d = 4, l' = 8."""
    sizes = Sizes(12, 4, 8, 3, 1)
    p = normal(3, 9).softmax(-1)
    wanted = torch.zeros(3, 6)
    for i in range(9):
        for j in range(6):
            common = len(set(range(4 * i, 4 * i + 12)) & set(range(8 * j, 8 * j + 8)))
            wanted[:, j] += p[:, i] * common / 12
    torch.testing.assert_close(importance(p, 6, sizes), wanted.double(), rtol=0, atol=1e-7)


def selected(p: Tensor, t: int, sizes: Sizes) -> set[int]:
    chosen = block_topk(p[None], torch.tensor([t]), t, sizes)[0]
    assert chosen.shape == (sizes.n_select,)
    return set(chosen.tolist()) - {-1}


def test_the_first_block_the_own_and_the_one_before_are_forced_and_counted():
    sizes = Sizes(1, 1, 4, 5, 1)
    p = torch.zeros(100)
    p[[13, 21, 22, 33]] = torch.tensor([0.4, 0.2, 0.1, 0.2])
    assert selected(p, 81, sizes) == {0, 19, 20, 3, 5}
    assert selected(p, 81, Sizes(1, 1, 4, 3, 1)) == {0, 19, 20}
    assert selected(p[:14], 14, sizes) == {0, 1, 2, 3}
    assert selected(p[:0], 0, sizes) == {0}


def test_ties_go_to_the_lower_index():
    sizes = Sizes(1, 1, 1, 6, 1)
    assert selected(torch.zeros(50), 49, sizes) == {0, 48, 49, 1, 2, 3}
    p = torch.zeros(50, dtype=torch.float64)
    p[[7, 30, 40]] = 0.25
    p[40] += 1e-15  # what another order of summation gives
    assert selected(p, 49, sizes) == {0, 48, 49, 7, 30, 40}
    assert selected(p, 49, Sizes(1, 1, 1, 5, 1)) == {0, 48, 49, 7, 30}


def test_the_group_selects_together():
    """Two heads of one KV head, of which each alone would choose another block."""
    tensors = only(1, inputs(1, 40, heads=2, kv_heads=1))
    q, kc, vs = (tensors[i] for i in (0, 2, 5))
    kc.zero_()
    kc[0, 4:6, 0, 0], kc[0, 10:12, 0, 1] = 1, 1
    q.zero_()
    q[0, -1, 0, 0], q[0, -1, 1, 1] = 20, 30
    vs.requires_grad_()
    call(*tensors)[0, -1].sum().backward()
    read = (vs.grad.abs().sum((0, 2, 3)) > 0).view(10, 4).any(1)
    assert read.nonzero()[:, 0].tolist() == [0, 5, 8, 9]


def test_packed_blocks_are_those_of_every_sequence():
    x, cu = normal(1, 40, 2, 3), packed(3, 0, 13, 4, 20)
    blocks = nsa_blocks(x, block_size=4, stride=2, cu_seqlens=cu)
    assert blocks.shape == (1, 20, 4, 2, 3)
    for tokens, own in pieces(cu, 40, Sizes(4, 2, 4, 3, 1)):
        assert torch.equal(blocks[:, own], nsa_blocks(x[:, tokens], block_size=4, stride=2))
    assert torch.equal(nsa_blocks(x, block_size=4, stride=2)[0, 5], x[0, 10:14])


def test_half_precision_is_near_the_definition():
    """Under autocast too, which must not reach the products inside. Everything selected: no choice to differ in."""
    tensors = inputs(1, 50)
    wanted = call(*tensors, n_select=13, backend="reference")
    low = [x.bfloat16() for x in tensors[:-1]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = call(*(x.float() for x in tensors), n_select=13)
    for got in (call(*low, tensors[-1], n_select=13), mixed):
        assert got.dtype == torch.bfloat16
        below((got - wanted).norm(), 5 * 2**-8 * wanted.norm())  # one unit of bf16 is 2^-8


SOFTMAX = (torch.ops.aten._softmax.default, torch.ops.aten.exp_.default)


@pytest.mark.parametrize("time", [2048, pytest.param(16_384, marks=pytest.mark.slow)])
def test_scores_are_those_of_the_three_branches_and_never_many_at_once(time):
    sizes, heads = Sizes(32, 16, 64, 16, 512), 2
    tensors = [
        x.float() for x in inputs(1, time, heads=heads, kv_heads=1, width=2, value_width=2, blocks=time // 16)
    ]
    with Watch(lambda operator, _: operator in SOFTMAX) as watch, torch.no_grad():
        forward(*tensors[:2], *(tensors[i : i + 2] for i in (2, 4, 6)), sizes)
    exact = sum(max(0, t - 15) // 16 + min(t + 1, 1024) + min(t + 1, 512) for t in range(time)) * heads
    # Beside what is masked: half a block of queries, half a selection block, half a tile of every block.
    assert exact <= watch.scores <= 1.4 * exact
    assert watch.largest <= max(STRETCH["cpu"], BUDGET["cpu"])
    assert watch.largest < time * time


@pytest.mark.parametrize("time", [1, 3, 4, 5, 8, 9, 23, 50])
@pytest.mark.parametrize(
    "sizes", [{}, {"block_size": 3, "stride": 1, "select_size": 5}], ids=["usual", "stride 1"]
)
@torch.no_grad()
def test_a_decode_step_is_the_definition(time, sizes):
    """Without a summary yet, with fewer blocks than are chosen, at the first and the last token of a block."""
    tensors = inputs(2, time, queries=1, blocks=time)
    below((call(*tensors, **sizes) - call(*tensors, backend="reference", **sizes)).abs().max(), 1e-12)


def test_a_decode_step_makes_no_tensor_of_the_cache():
    """8,192 cached keys of width 2: it handles n·l' of them, the summaries and the window."""
    sizes = {"block_size": 32, "stride": 16, "select_size": 64, "n_select": 16, "window": 512}
    tensors = inputs(1, 8192, heads=2, kv_heads=1, width=2, value_width=2, queries=1, blocks=511)
    with Watch() as watch, torch.no_grad():
        call(*tensors, **sizes)
    assert watch.largest <= 2 * 16 * 64


STEP = """
import torch
from support.peak_memory import peak
from kernels import nsa_attention
torch.set_num_threads(1)
def step(time):
    sizes = dict(block_size=32, stride=16, select_size=64, n_select=16, window=512)
    blocks = (time - 32) // 16 + 1
    made = lambda n, heads: torch.randn(1, n, heads, 32, requires_grad=True)
    pairs = [(made(n, 1), made(n, 1)) for n in (blocks, time, time)]
    gates = torch.rand(1, time, 4, 3)
    nsa_attention(made(time, 4), *pairs, gates, **sizes, backend="{form}").square().mean().backward()
step(2048)
before = peak()
step({time})
print(peak() - before)
"""


@pytest.mark.long
@pytest.mark.parametrize("form", ["torch", "numba"])
def test_peak_memory_of_a_training_step_at_32768_is_far_below_one_matrix_of_pairs(form):
    """One fp32 T × T matrix would be 4 GiB, T × T/16 scores of the four heads 1 GiB; all inputs are 34 MiB."""
    assert printed_by(STEP.replace("{time}", "32768").replace("{form}", form)) < 700 * 1024


@pytest.mark.parametrize("backend", DTYPES)
@pytest.mark.parametrize(("queries", "seen"), [(1, 5), (4, 8), (7, 11)])
def test_later_queries_need_only_the_keys_that_their_windows_see(queries, seen, backend):
    """The last 5 keys for one query, and one more for each further one; fewer would silently leave some out."""
    *others, kw, vw, gates = (x.to(DTYPES[backend]) for x in inputs(1, 12, queries=queries, blocks=5))
    whole = call(*others, kw, vw, gates, backend=backend)
    near = call(*others, kw[:, -seen:], vw[:, -seen:], gates, backend=backend)
    torch.testing.assert_close(near, whole)
    with pytest.raises(ValueError, match=f"needs the last {seen} to 12 keys for its window, got {seen - 1}"):
        call(*others, kw[:, 1 - seen :], vw[:, 1 - seen :], gates, backend=backend)
