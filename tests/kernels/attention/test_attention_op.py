"""attention: the PyTorch form against the definition, and the definition against a loop."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from support.kernel_cases import assert_agree, normal, packed, qkv

from kernels import attention
from kernels.ops import attention as torch_ops

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
