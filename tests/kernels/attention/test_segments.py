"""Segments: how they are batched, how much is computed for them, and in how much memory."""

import pytest
import torch
from support.attention_watch import AttentionWatch
from support.kernel_cases import normal, packed, qkv
from support.peak_memory import printed_by

from kernels import attention, timeline_attention
from kernels.packing import LONG, WASTE, Rectangles, batch_shapes


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
