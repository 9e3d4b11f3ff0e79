"""attention: the PyTorch form against the definition, and segments, whose work and memory are bounded."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from support.kernel_cases import assert_agree, normal, packed, qkv
from support.peak_memory import printed_by
from support.watch import AttentionWatch

from kernels import attention, timeline_attention
from kernels.ops import attention as torch_ops
from kernels.packing import LONG, WASTE, Rectangles, batch_shapes

torch_form = partial(attention, backend="torch")
reference = partial(attention, backend="reference")

CALLS = {
    "plain": (qkv(2, 37), {}),
    "one token": (qkv(2, 1), {}),
    "scale": (qkv(1, 9), {"scale": 0.7}),
    "both ways": (qkv(2, 7), {"causal": False}),
    "grouped heads": (qkv(2, 13, heads=6, kv_heads=2), {}),
    "narrow values": (qkv(2, 13, value_width=5), {}),
    "wide values": (qkv(2, 13, heads=4, kv_heads=1, value_width=11), {}),
    "one query": (qkv(2, 37, queries=1), {}),
    "shorter q": (qkv(2, 37, queries=7, kv_heads=2), {}),
    "shorter q, long": (qkv(1, 400, heads=2, width=4, queries=300), {}),
    "shorter q, long, window": (qkv(1, 400, heads=2, width=4, queries=300), {"window": 90}),
    "shorter q, window": (qkv(2, 37, queries=7), {"window": 4}),
    "one query, window": (qkv(2, 37, queries=1), {"window": 4}),
    "window of one": (qkv(1, 9), {"window": 1}),
    "window": (qkv(1, 301, heads=2, width=4), {"window": 70}),
    "window past the start": (qkv(1, 9), {"window": 50}),
    "packed": (qkv(1, 37, kv_heads=2), {"cu_seqlens": packed(1, 8, 0, 4, 1, 23)}),
    "packed, both ways": (qkv(1, 21), {"cu_seqlens": packed(5, 1, 5, 10), "causal": False}),
    "packed, window": (qkv(1, 37), {"cu_seqlens": packed(1, 8, 4, 24), "window": 3}),
    "packed, long": (qkv(1, 600, heads=2, width=4), {"cu_seqlens": packed(1, 270, 9, 320)}),
    "packed, long, window": (
        qkv(1, 600, heads=2, width=4),
        {"cu_seqlens": packed(1, 270, 9, 320), "window": 100},
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("case", CALLS)
def test_torch_form_equals_definition(case, dtype):
    inputs, options = CALLS[case]
    inputs = [x.to(dtype) for x in inputs]
    assert_agree(partial(torch_form, **options), partial(reference, **options), inputs)


def test_any_window_over_the_last_queries_of_any_number(monkeypatch):
    """Blocks of 2 to 4 queries, so that windows end inside blocks, at their edges and several blocks before."""
    monkeypatch.setattr(torch_ops, "SMALLEST_BLOCK", 2)
    monkeypatch.setattr(torch_ops, "LARGEST_BLOCK", 4)
    q, k, v = qkv(1, 15, heads=1, width=2)
    for window in range(1, 16):
        wanted = reference(q, k, v, window=window)
        for queries in range(1, 16):
            out = torch_form(q[:, -queries:], k, v, window=window)
            torch.testing.assert_close(out, wanted[:, -queries:], rtol=0, atol=1e-12)


def test_definition_equals_a_loop():
    q, k, v = qkv(1, 6, heads=4, kv_heads=2, width=3, queries=4)
    out = reference(q, k, v, window=3)
    for i in range(4):
        for head in range(4):
            seen = range(max(0, i + 2 - 2), i + 2 + 1)
            weights = [math.exp(float(q[0, i, head] @ k[0, j, head * 2 // 4]) / math.sqrt(3)) for j in seen]
            wanted = sum(w * v[0, j, head * 2 // 4] for w, j in zip(weights, seen, strict=True)) / sum(
                weights
            )
            torch.testing.assert_close(out[0, i, head], wanted)


def test_packed_sequences_do_not_see_each_other():
    q, k, v = qkv(1, 12)
    whole = torch_form(q, k, v, cu_seqlens=packed(5, 7))
    parts = [torch_form(*(x[:, a:b] for x in (q, k, v))) for a, b in ((0, 5), (5, 12))]
    torch.testing.assert_close(whole, torch.cat(parts, dim=1))


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_autocast_decides_the_dtype(backend):
    q, k, v = qkv(1, 9, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(q, k.bfloat16(), v, backend=backend)
        exact = attention(*(x.double() for x in (q, k, v)), backend=backend)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), attention(q, k, v), atol=0.05, rtol=0.05)
    assert exact.dtype == torch.float64, "which autocast leaves alone"


def test_no_keys_of_another_head_are_read():
    q, k, v = qkv(1, 5, heads=4, kv_heads=2)
    changed = v.clone()
    changed[:, :, 1] = normal(1, 5, 8, seed=7)
    same = (attention(q, k, v) == attention(q, k, changed)).all(dim=-1).all(dim=1)[0]
    assert same.tolist() == [True, True, False, False]


def test_a_step_on_a_gpu_takes_no_kernel_that_plans_for_every_length(monkeypatch):
    """What PyTorch may choose among while it attends with one query."""
    allowed = []
    q = SimpleNamespace(is_cuda=True)
    names = ("flash", "mem_efficient", "math", "cudnn")
    enabled = lambda: [name for name in names if getattr(torch.backends.cuda, f"{name}_sdp_enabled")()]  # noqa: E731
    before = enabled()
    monkeypatch.setattr(torch_ops, "_sdpa", lambda *_: allowed.extend(enabled()))
    torch_ops._one_query(q, q, q, 1.0)
    assert allowed == ["flash", "mem_efficient", "math"]
    assert enabled() == before


def test_batches_are_a_permutation_with_padding():
    lengths = [3, 0, 9, 1, 300, 9, 2, 257]
    axis = Rectangles.of(packed(*lengths), 1).axis()
    assert axis.shapes == [(1, 300), (1, 257), (5, 9)]
    x = torch.arange(1, sum(lengths) + 1)
    batches = axis.spread(x)
    assert [tuple(batch.shape) for batch in batches] == axis.shapes
    assert torch.equal(axis.collect(batches), x)
    for batch in batches:  # a row holds the consecutive tokens of one sequence, then zeros
        for row in batch.tolist():
            tokens = [token for token in row if token]
            assert row == list(range(row[0], row[0] + len(tokens))) + [0] * (len(row) - len(tokens))


def test_an_axis_of_fewer_rows_follows_the_same_batches():
    """One row for two tokens, as summaries of blocks have it."""
    rectangles = Rectangles.of(packed(3, 0, 8, 1, 7), 1)
    axis = rectangles.axis(lambda length: length // 2)
    x = torch.arange(1, 9)
    assert axis.shapes == [(sequences, longest // 2) for sequences, longest in rectangles.shapes] == [(4, 4)]
    assert axis.spread(x)[0].tolist() == [[2, 3, 4, 5], [6, 7, 8, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert torch.equal(axis.collect(axis.spread(x)), x)


def test_equal_segments_need_no_gathering():
    axis = Rectangles.of(packed(7, 7, 7), 1).axis()
    assert axis.shapes == [(3, 7)]
    assert axis.place is None


def test_padding_is_bounded_and_long_segments_have_none():
    lengths = torch.randint(1, 2 * LONG, (500,), generator=torch.Generator().manual_seed(0))
    lengths = lengths.sort(descending=True).values.tolist()
    shapes = batch_shapes(lengths, WASTE)
    assert sum(segments for segments, _ in shapes) == len(lengths)
    seen = 0
    for segments, longest in shapes:
        members = lengths[seen : seen + segments]
        seen += segments
        padding = sum(longest**2 - n**2 for n in members)
        assert max(members) == longest
        assert padding <= (0 if longest >= LONG else WASTE)


def test_without_a_mask_nothing_is_padded():
    assert batch_shapes([9, 9, 8, 8, 8, 1], 0) == [(2, 9), (3, 8), (1, 1)]


@pytest.mark.parametrize("balance", ["balanced", "unbalanced"])
def test_work_and_memory_at_16384_tokens(balance):
    """Exactly Σ n² score entries, and no tensor that grows faster than T."""
    time, heads, width, timelines = 16_384, 2, 4, 6
    generator = torch.Generator().manual_seed(0)
    shares = torch.ones(timelines) if balance == "balanced" else torch.tensor([8.0, 4, 3, 2, 1.5, 1])
    assignment = torch.multinomial(shares, time * heads, replacement=True, generator=generator)
    assignment = assignment.view(1, time, heads)
    q, k, v = (normal(1, time, heads, width, dtype=torch.float32, seed=i) for i in range(3))
    with AttentionWatch() as watch, torch.no_grad():
        timeline_attention(q, k, v, assignment, n_timelines=timelines, rope_base=1e4, backend="torch")
    lengths = torch.stack([assignment[0, :, h].bincount(minlength=timelines) for h in range(heads)])
    assert lengths.min() >= LONG
    assert sum(watch.entries) == int((lengths**2).sum())
    assert watch.largest <= 4 * time * heads * width


@pytest.mark.parametrize(
    "options", [{"window": 128}, {"cu_seqlens": packed(1, 3000, 1000, 95)}, {}, {"queries": 3000}]
)
def test_attention_never_makes_a_square(options):
    time, width = 4096, 8
    queries, options = options.get("queries"), {k: x for k, x in options.items() if k != "queries"}
    inputs = qkv(1, time, heads=1, width=width, dtype=torch.float32, queries=queries)
    inputs = [x.requires_grad_() for x in inputs]
    with AttentionWatch() as watch:
        attention(*inputs, backend="torch", **options).sum().backward()
    assert watch.largest <= 4 * time * width
    if "window" in options:
        assert sum(watch.entries) <= time * 2 * options["window"]


def test_values_of_another_width_stay_on_the_fused_kernel():
    inputs = [x.requires_grad_() for x in qkv(1, 50, width=12, value_width=8)]
    with AttentionWatch() as watch:
        attention(*inputs, backend="torch").sum().backward()
    assert watch.entries == [4 * 50 * 50]


PEAK = """
import torch
from support.peak_memory import peak
from kernels import timeline_attention
torch.set_num_threads(1)
time = {time}
q, k, v = (torch.randn(1, time, 1, 4, requires_grad=True) for _ in range(3))
assignment = torch.randint(0, 6, (1, time, 1))
def step(t):
    out = timeline_attention(q[:, :t], k[:, :t], v[:, :t], assignment[:, :t], n_timelines=6, rope_base=1e4)
    out.sum().backward()
step(2048)
before = peak()
step(time)
print(peak() - before)
"""


@pytest.mark.long
def test_peak_memory_at_16384_tokens_with_gradients():
    """A square of T would be 1 GiB in fp32, one a timeline 30 MiB."""
    assert printed_by(PEAK.format(time=16_384)) < 64 * 1024
