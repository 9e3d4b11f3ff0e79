"""indexed_attention: the fused blocks against its three operations; selection, gradients, cost and errors."""

import pytest
import torch
from support.kernel_cases import assert_agree, normal, packed, value_and_gradients
from support.live_memory import LiveMemory
from support.margins import below

from kernels import AdaptiveK, attention, indexed_attention, indices, lightning_topk, numba_common
from kernels.autograd import flop_counter
from kernels.ops.indexed_attention import OPERATION, numba_form, torch_ops
from kernels.ops.indexed_attention.torch_form import FAINTEST, Indexer, attend, attend_backward

FORMS = {
    "torch, fp64": ("torch", torch.float64),
    "torch": ("torch", torch.float32),
    "numba": ("numba", torch.float32),
}

NAMES = ("q", "k", "v", "q_idx", "k_idx", "w_idx", "bias", "tau")


def layer(
    batch, time, heads=4, kv_heads=2, width=8, value_width=8, index_heads=3, index_width=5, signed=False
):
    """q, k, v of an attention, and q_idx, k_idx, w_idx, bias, tau of its indexer; signed: weights as ReLU has them."""
    w = normal(batch, time, index_heads, seed=5)
    return [
        normal(batch, time, heads, width, seed=0),
        normal(batch, time, kv_heads, width, seed=1),
        normal(batch, time, kv_heads, value_width, seed=2),
        normal(batch, time, index_heads, index_width, seed=3),
        normal(batch, time, index_width, seed=4),
        w if signed else w.sigmoid(),
        normal(index_heads, seed=6),
        torch.tensor(1.0 if signed else 7.0, dtype=torch.float64),
    ]


FIVE, EIGHTH = AdaptiveK("none", 5, 1, 5), AdaptiveK("inverse", 9, 2, 18, reference=0.01)
CASES = {
    "plain": (layer(2, 37), {"rule": FIVE}),
    "adaptive, blocks": (layer(1, 150, heads=2, width=4), {"rule": EIGHTH}),
    "seed's rule": (layer(2, 21), {"rule": AdaptiveK("seed", 4, 2, 12, beta=2.0)}),
    "one token": (layer(2, 1), {"rule": FIVE}),
    "everything": (layer(2, 20), {"rule": AdaptiveK("none", 99, 1, 99)}),
    "scale, narrow values": (layer(1, 30, value_width=3), {"rule": FIVE, "scale": 0.7}),
    "one KV head for six, one index head": (layer(2, 26, 6, 1, index_heads=1), {"rule": FIVE}),
    "a KV head a head": (layer(1, 26, 3, 3), {"rule": FIVE}),
    "ReLU": (layer(2, 37, signed=True), {"rule": FIVE, "scores": "relu"}),
}


@pytest.fixture(autouse=True)
def fuses(monkeypatch):
    """Cases this small would gather the selected keys."""
    monkeypatch.setattr(torch_ops, "gathers", lambda *_: False)


def joined(**options):
    """Both outputs in one vector."""
    return lambda *x: torch.cat([y.flatten() for y in indexed_attention(*x, **options)])


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_the_last_queries_alone_attend_and_learn_as_among_all(backend):
    """Aligned with the end of the keys; the loss is that of both parts, weighted by their queries."""
    inputs, early, late = layer(2, 37), slice(0, 24), slice(24, 37)

    def cut(queries: slice, keys: slice, q, k, v, q_idx, k_idx, w_idx, *more):
        of_keys = (k[:, keys], v[:, keys], q_idx[:, queries], k_idx[:, keys], w_idx[:, queries])
        return indexed_attention(q[:, queries], *of_keys, *more, rule=FIVE, backend=backend)

    def parts(*inputs):
        (o1, loss1), (o2, loss2) = cut(early, early, *inputs), cut(late, slice(0, 37), *inputs)
        return torch.cat([torch.cat([o1, o2], 1).flatten(), ((24 * loss1 + 13 * loss2) / 37)[None]])

    assert_agree(parts, joined(rule=FIVE), inputs)


CHOICES = {"rule": EIGHTH, "share": 5, "key_block": 4}


@pytest.mark.parametrize("options", [{}, {"cu_seqlens": packed(17, 0, 20)}], ids=["whole", "packed"])
@pytest.mark.parametrize("backend", ["auto", "triton"])
def test_shared_choices_of_blocks_are_the_three_operations(backend, options):
    """Whatever "auto" would take for single keys; and Numba says why not."""
    inputs = [x.float() if backend == "triton" else x for x in layer(1, 37)]
    pair = [joined(backend=form, **CHOICES, **options) for form in (backend, "reference")]
    assert_agree(*pair, inputs)
    with pytest.raises(ValueError, match="selects single keys for every query"):
        indexed_attention(*(x.float() for x in inputs), backend="numba", **CHOICES)


@pytest.mark.parametrize("budget", [1 << 20, 1 << 9], ids=["few blocks", "many"])
@pytest.mark.parametrize(("form", "dtype"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("case", CASES)
def test_fused_forms_equal_the_three_operations(case, form, dtype, budget, monkeypatch):
    monkeypatch.setitem(indices.BUDGET, "cpu", budget)
    inputs, options = CASES[case]
    pair = [joined(backend=backend, **options) for backend in (form, "reference")]
    assert_agree(*pair, [x.to(dtype) for x in inputs])


WIDE = {
    "several tiles of keys": (layer(1, 1100, 4, 1, 16, 24, 4, 24), {"rule": AdaptiveK("none", 300, 1, 300)}),
    "five heads of 64 and 128": (layer(1, 140, 5, 1, 64, 128), {"rule": EIGHTH}),
    "widths without a loop of their own": (layer(1, 140, 4, 2, 20, 33, 2, 40), {"rule": EIGHTH}),
    "a part without a block": (layer(3, 9, 4, 4, 32, 8), {"rule": FIVE}),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", WIDE)
def test_numba_equals_the_three_operations_at_every_width_and_on_threads(case, threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    inputs, options = WIDE[case]
    pair = [joined(backend=backend, **options) for backend in ("numba", "reference")]
    assert_agree(*pair, [x.float() for x in inputs])


def test_a_bias_of_any_stride_is_no_reason_to_compile_again():
    inputs = [x.float() for x in layer(1, 12)]
    wanted = indexed_attention(*inputs, rule=FIVE, backend="numba")
    compiled = len(numba_form.forward.signatures)
    inputs[6] = torch.stack([inputs[6], inputs[6]], 1)[:, 0]
    found = indexed_attention(*inputs, rule=FIVE, backend="numba")
    assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))
    assert len(numba_form.forward.signatures) == compiled


def test_no_gradients_have_room_where_nothing_learns():
    indexer = Indexer(*(x.float() for x in layer(1, 12)[3:]))
    index = numba_form.indexed(indexer, "sigmoid")
    q, k, w, sums = numba_form.empty_gradients(index, 2, learns=False)
    assert [x.numel() for x in (q, k, w)] == [0, 0, 0]
    assert sums.shape == (1, 2, 5)


def test_without_numba_auto_takes_pytorch(monkeypatch):
    monkeypatch.setattr(numba_common, "fault", lambda: "numba cannot be imported")
    inputs = [x.float() for x in layer(1, 12)]
    assert OPERATION.choose("auto", *inputs, rule=FIVE).name == "torch"
    with pytest.raises(ValueError, match="numba cannot be imported"):
        OPERATION.choose("numba", *inputs, rule=FIVE)


@pytest.mark.parametrize(("place", "bad"), [(0, torch.nan), (7, torch.nan), (0, torch.inf), (7, torch.inf)])
def test_a_key_that_is_no_number_leaves_the_others_their_order(place, bad):
    """Both forms select the same: infinite ReLU scores and those that are NaN are higher than all others."""
    inputs = [x.float() for x in layer(1, 40, signed=True)]
    inputs[4][:, place] = bad
    inputs[3], inputs[5] = inputs[3].abs(), inputs[5].abs()
    selected = []
    for form in ("numba", "torch"):
        bits = torch_ops.indexed_attention_op(*inputs, "none", 5, 1, 5, 1.0, 1.0, 0.3, "relu", False, form)[3]
        selected.append(indices.unpack(bits, 40, torch.bool)[0, 20:])
    assert torch.equal(*selected)
    assert selected[0].sum(1).tolist() == [5] * 20
    assert selected[0][:, place].all()


@pytest.mark.parametrize("budget", [1 << 20, 1 << 9], ids=["few blocks", "many"])
@pytest.mark.parametrize("kind", ["sigmoid", "relu"])
@pytest.mark.parametrize(("form", "dtype"), FORMS.values(), ids=FORMS)
def test_it_selects_what_lightning_topk_selects_ties_included(form, dtype, kind, budget, monkeypatch):
    monkeypatch.setitem(indices.BUDGET, "cpu", budget)
    q, k, v, *indexer = (x.to(dtype) for x in layer(2, 90, signed=kind == "relu"))
    indexer[1] = indexer[1][:, torch.arange(90) % 7]  # every key stands at 12 or 13 places
    indexer[0][:, 40:] = 0  # and from here on all keys of a query score alike
    attends = numba_form.attend_in_blocks if form == "numba" else attend
    out, *_ = attends(q, k, v, Indexer(*indexer), FIVE, kind, 1.0, False)
    places = lightning_topk(*indexer[:4], k=5, scores=kind)
    wanted = torch.zeros(2, 90, 91, dtype=torch.float64).scatter_(-1, places.long() % 91, 1)[..., :90]
    assert torch.equal(indices.unpack(out.bits, 90, torch.float64), wanted)


def peak_of(time: int) -> int:
    """Bytes of a forward and a backward pass, beyond its inputs."""
    q, k, v, *indexer = (x.float() for x in layer(1, time, heads=2, kv_heads=1, width=2, value_width=2))
    with LiveMemory() as memory, torch.no_grad():
        out, *_ = attend(q, k, v, Indexer(*indexer), FIVE, "sigmoid", 1.0, True)
        attend_backward(torch.ones_like(out.o), out, q, k, v, 1.0)
    return memory.peak


@pytest.mark.long
def test_memory_is_a_bit_a_pair_and_a_block_and_what_is_linear(monkeypatch):
    """In peak = c + a·T + q·T² the q is 1/8 byte; masks of all blocks at once would add half a byte or more."""
    monkeypatch.setitem(indices.BUDGET, "cpu", 1 << 13)
    peaks = [peak_of(time) for time in (512, 1024, 2048)]
    quadratic = (peaks[2] - 3 * peaks[1] + 2 * peaks[0]) / (6 * 512**2)
    assert 1 / 12 < quadratic < 1 / 4


@pytest.mark.parametrize(("form", "dtype"), FORMS.values(), ids=FORMS)
def test_keys_that_nobody_selects_get_no_gradient_at_all(form, dtype):
    """Weights below e^−60 count as that in the backward: not those of hidden keys, which are 0."""
    inputs = [x.to(dtype).requires_grad_() for x in layer(1, 60)]
    o, _ = indexed_attention(*inputs, rule=AdaptiveK("none", 3, 1, 3), backend=form)
    seen = lightning_topk(*(x.detach() for x in inputs[3:7]), k=3)[0, 30:].unique().tolist()
    dk, dv = torch.autograd.grad(o[:, 30:].square().sum(), inputs[1:3])
    hidden = [s for s in range(60) if s not in seen]
    assert 10 < len(hidden) < 58
    assert not dk[0, hidden].any()
    assert not dv[0, hidden].any()


def test_scores_that_differ_by_hundreds_have_the_right_gradients():
    """Most weights underflow; the largest do not, and differences below e^−60 are far below rounding."""
    assert FAINTEST < -50
    q, *rest = layer(1, 40)
    pair = [joined(backend=backend, rule=EIGHTH) for backend in ("torch", "reference")]
    assert_agree(*pair, [300 * q, *rest])


def test_numba_bears_scores_that_differ_by_hundreds():
    q, *rest = (x.float() for x in layer(1, 40))
    found = value_and_gradients(joined(backend="numba", rule=EIGHTH), [300 * q, *rest])
    exact = value_and_gradients(
        joined(backend="reference", rule=EIGHTH), [300 * q.double(), *(x.double() for x in rest)]
    )
    for got, wanted in zip(found, exact, strict=True):
        below((got - wanted).abs().max() / wanted.abs().max(), 1e-2)


@pytest.mark.parametrize(("form", "fused"), [("torch", True), ("torch", False), ("numba", True)])
def test_numbers_that_are_none_come_through_and_stop_nothing(form, fused, monkeypatch):
    """A training run that diverges is told so by its loss, not by an index out of range."""
    monkeypatch.setattr(torch_ops, "gathers", lambda *_: not fused)
    dtype = torch.float32 if form == "numba" else torch.float64
    inputs, right = ([x.to(dtype) for x in layer(1, 40)] for _ in range(2))
    inputs[3][0, 20] = torch.nan
    inputs[4][0, 7] = torch.nan
    o, loss = indexed_attention(*inputs, rule=FIVE, backend=form)
    assert loss.isnan()
    wanted = indexed_attention(*right, rule=FIVE, backend=form)[0]
    below((o[:, :7] - wanted[:, :7]).abs().max(), 1e-13)


def test_selecting_everything_is_full_attention():
    q, k, v, *indexer = layer(2, 33)
    o, _ = indexed_attention(q, k, v, *indexer, rule=AdaptiveK("none", 33, 1, 33))
    below((o - attention(q, k, v)).abs().max(), 1e-13)


def test_each_output_reaches_its_own_inputs_alone():
    inputs = [x.requires_grad_() for x in layer(1, 9)]
    o, loss = indexed_attention(*inputs, rule=FIVE)
    for output, reached in ((o.sum(), set(NAMES[:3])), (loss, set(NAMES[3:]))):
        grads = torch.autograd.grad(output, inputs, retain_graph=True, allow_unused=True)
        assert {name for name, x in zip(NAMES, grads, strict=True) if x is not None} == reached


def test_the_same_numbers_without_gradients():
    inputs = layer(1, 30)
    with torch.no_grad():
        found = joined(rule=EIGHTH)(*inputs)
    assert torch.equal(found, joined(rule=EIGHTH)(*(x.requires_grad_() for x in inputs)))


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "apart"])
def test_the_gate_is_that_of_sparse_attention(fused, monkeypatch):
    monkeypatch.setattr(torch_ops, "gathers", lambda *_: not fused)
    inputs, gate = layer(1, 20), normal(1, 20, 4, 8, seed=7)
    pair = [
        lambda *x, b=b: indexed_attention(*x[1:], gate_logits=x[0], rule=FIVE, backend=b)[0]
        for b in ("torch", "reference")
    ]
    reached = [gate, *inputs[:3]]
    assert_agree(*(lambda *x, f=f: f(*x, *inputs[3:]) for f in pair), reached)
    with pytest.raises(ValueError, match="gate_logits"):
        indexed_attention(*inputs, gate_logits=gate[..., :3], rule=FIVE)


def test_what_the_fused_form_does_not_serve_is_computed_by_the_three_operations(monkeypatch):
    monkeypatch.setattr(torch_ops, "indexed_attention_op", None)
    inputs, options = layer(1, 20), {"cu_seqlens": packed(9, 0, 11)}
    assert_agree(joined(rule=FIVE, **options), joined(rule=FIVE, backend="reference", **options), inputs)
    half = [x.bfloat16() for x in inputs[:3]] + [x.float() for x in inputs[3:]]
    assert indexed_attention(*half, rule=FIVE)[0].dtype == torch.bfloat16
    monkeypatch.setattr(torch_ops, "gathers", lambda *_: True)
    assert_agree(joined(rule=FIVE), joined(rule=FIVE, backend="reference"), inputs)


def test_copies_are_cheaper_where_few_of_many_keys_may_be_selected(monkeypatch):
    monkeypatch.undo()
    q, k, *_ = (torch.empty(1, 4096, heads, 8) for heads in (4, 2))
    fuses = [torch_ops._fuses(q, k, AdaptiveK("none", n, 1, n), None) for n in (16, 1024)]
    assert fuses == [False, True]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["torch", "numba"])
@pytest.mark.parametrize("rule", [FIVE, EIGHTH], ids=["5", "adaptive"])
def test_it_counts_the_flops_of_the_three_operations(rule, dtype):
    counts = []
    for device in ("cpu", "meta"):  # the meta device runs the three
        inputs = [x.to(device, dtype).requires_grad_() for x in layer(2, 40)]
        with flop_counter() as counter:
            o, loss = indexed_attention(*inputs, rule=rule)
            (o.sum() + loss).backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.slow
@pytest.mark.parametrize("heads", [(4, 2), (2, 2), (3, 1)], ids=str)
@pytest.mark.parametrize(("form", "dtype"), FORMS.values(), ids=FORMS)
def test_the_operators_keep_what_they_promise_to_pytorch(form, dtype, heads):
    """Shapes, dtypes and strides, which compilers count on, also of rows filled up and of inputs that lie otherwise."""
    settings = ("inverse", 9, 2, 18, 1.0, 0.01, 0.35, "sigmoid", True, form)
    q, k, v, q_idx, *more = layer(1, 12, *heads, value_width=6)
    q_idx = q_idx.transpose(1, 2).contiguous().transpose(1, 2)
    inputs = [x.to(dtype).requires_grad_() for x in (q, k, v, q_idx, *more)]
    torch.library.opcheck(torch_ops.indexed_attention_op, (*inputs, *settings))
    real = torch_ops.indexed_attention_op(*inputs, *settings)
    given = (torch.ones_like(real[0]), real[0], *real[2:4], *inputs[:3])
    backward = torch_ops.indexed_attention_backward_op(*given, 0.35, 18, form)
    assert all(x.is_contiguous() for x in (*real, *backward))
