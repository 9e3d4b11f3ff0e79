"""indexer_kl's Triton kernels against the definition: value and gradients over all visible and over chosen keys."""

from functools import partial

import pytest
import torch
from support.kernel_cases import packed
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees
from test_indexer_kl_op import NAMES, layer, losses, selected, signed, zeros_among_logits

from kernels import indexer_kl
from kernels.ops.sparse_attention import triton_masked

CUT = packed(1, 20, 4)

# q, k of attention and the indexer; options; how many keys a list has, where there are lists.
# A program has 16 queries, or one where there are lists; blocks of keys have 64.
CALLS = {
    "plain": (layer(2, 17, heads=2), {}, None),
    "one token": (layer(2, 1), {}, None),
    "widths": (
        layer(1, 9, heads=2, kv_heads=1, width=40, index_heads=1, index_width=20),
        {"scale": 0.7},
        None,
    ),
    "a large group": (layer(1, 5, heads=20, kv_heads=1, index_heads=5), {}, None),
    "blocks of keys": (layer(1, 70, heads=1, kv_heads=1), {}, None),
    "packed": (layer(1, 25), {"cu_seqlens": CUT}, None),
    "packed, empty sequences": (
        layer(1, 9, heads=2, kv_heads=1),
        {"cu_seqlens": packed(0, 3, 0, 6)},
        None,
    ),
    # Gradients of 2,050 numbers: two programs of 1,024 scale all but the last two.
    "gradients of several programs": (
        layer(1, 41, heads=1, kv_heads=1, index_heads=1, index_width=50),
        {},
        None,
    ),
    "lists": (layer(2, 9), {}, 4),
    "lists, one head": (layer(1, 7, heads=1, kv_heads=1, index_heads=1), {}, 3),
    "lists, packed": (layer(1, 25, heads=2, kv_heads=1), {"cu_seqlens": CUT}, 5),
    "ReLU": (signed(*layer(1, 17, heads=2)), {"scores": "relu"}, None),
    "ReLU, zeros": (zeros_among_logits(), {"scores": "relu"}, None),
    "ReLU, lists": (signed(*layer(1, 5, heads=2)), {"scores": "relu"}, 3),
}
QUICK = ("one token", "ReLU, zeros")


@pytest.mark.parametrize(
    "case", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CALLS]
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
@pytest.mark.parametrize("case", [name for name, (_, _, size) in CALLS.items() if size])
def test_lists_read_key_by_key_equal_the_definition(case, monkeypatch):
    monkeypatch.setattr(triton_masked, "MASK_COST", 0)
    compare(case, torch.float32)


def compare(case: str, dtype: torch.dtype) -> None:
    (attended, indexer), options, size = CALLS[case]
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
