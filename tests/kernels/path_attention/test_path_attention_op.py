"""path_attention: blocks against the definition, explicit matrices, exact limits, its memory and FLOPs."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.kernel_cases import assert_agree, normal, packed, qkv
from support.margins import below
from support.path_attention_cases import gates, inputs, uniform
from support.peak_memory import printed_by
from support.watch import Watch
from torch import Tensor

from kernels import attention, path_attention
from kernels.autograd import flop_counter
from kernels.ops.path_attention.torch_form import attend, attend_backward, block_size, path_flops

torch_form = partial(path_attention, backend="torch")
reference = partial(path_attention, backend="reference")


def extreme_gates(batch: int, time: int, heads: int = 4) -> Tensor:
    """Log gates 0 and −30, and a few ordinary ones."""
    kind = uniform(batch, time, heads, seed=8)
    return gates(batch, time, heads).where(kind < 0.2, 0.0).where(kind < 0.8, -30.0)


def explicit(q, k, v, w, beta, g, scale=None) -> Tensor:
    """The definition in three loops, with every H a matrix and every product formed: [T, V] of one head."""
    time, width = q.shape
    scale = width**-0.5 if scale is None else scale
    eye = torch.eye(width, dtype=q.dtype)
    outputs = []
    for i in range(time):
        logits = []
        for j in range(i + 1):
            product, gate = eye, torch.zeros((), dtype=q.dtype)
            for s in range(j + 1, i + 1):
                product, gate = product @ (eye - beta[s] * torch.outer(w[s], w[s])), gate + g[s]
            logits.append(scale * k[j] @ product @ q[i] + gate)
        outputs.append(torch.stack(logits).softmax(0) @ v[: i + 1])
    return torch.stack(outputs)


CALLS = {
    "one block": (inputs(2, 37), {}),
    "blocks": (inputs(1, 101, heads=2, width=4), {}),
    "spans of keys": (inputs(1, 700, heads=1, width=4), {}),
    "spans of keys, gates that hardly close": (
        (*inputs(1, 700, heads=1, width=4)[:5], gates(1, 700, 1) / 1000),
        {},
    ),
    "scale": (inputs(1, 9), {"scale": 0.7}),
    "grouped heads": (inputs(2, 150, heads=6, kv_heads=2), {}),
    "narrow values": (inputs(2, 13, value_width=5), {}),
    "wide values": (inputs(1, 140, heads=2, kv_heads=1, width=4, value_width=7), {}),
    "wide heads": (inputs(1, 5, heads=1, width=33), {}),
    "gates 0 and -30": ((*inputs(2, 140, heads=2)[:5], extreme_gates(2, 140, 2)), {}),
    "packed": (inputs(1, 37, kv_heads=2), {"cu_seqlens": packed(1, 8, 0, 4, 1, 23)}),
    "packed, equal": (inputs(1, 12, kv_heads=2), {"cu_seqlens": packed(4, 4, 4)}),
    "packed, long": (inputs(1, 420, heads=2, width=4), {"cu_seqlens": packed(1, 270, 9, 140)}),
}


@pytest.mark.parametrize("case", CALLS)
def test_blocks_equal_definition(case):
    tensors, options = CALLS[case]
    assert_agree(partial(torch_form, **options), partial(reference, **options), tensors)


@pytest.mark.parametrize("case", ["blocks", "grouped heads", "gates 0 and -30", "packed, long"])
def test_blocks_equal_definition_in_fp32(case):
    tensors, options = CALLS[case]
    tensors = [x.float() for x in tensors]
    assert_agree(partial(torch_form, **options), partial(reference, **options), tensors)


WITHOUT = {
    "FoX": lambda q, k, v, w, beta, g: ((q, k, v, g), lambda f: lambda q, k, v, g: f(q, k, v, None, None, g)),
    "PaTH": lambda q, k, v, w, beta, g: ((q, k, v, w, beta), lambda f: f),
    "attention": lambda q, k, v, w, beta, g: ((q, k, v), lambda f: lambda q, k, v: f(q, k, v, None, None)),
}


@pytest.mark.parametrize("time", [11, 300])
@pytest.mark.parametrize("which", WITHOUT)
def test_blocks_equal_definition_where_a_part_is_missing(which, time):
    tensors, call = WITHOUT[which](*inputs(1, time, heads=2, width=4))
    assert_agree(call(torch_form), call(reference), tensors)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_definition_equals_explicit_matrices(backend):
    q, k, v, w, beta, g = inputs(2, 7, heads=4, kv_heads=2, width=3)
    out = path_attention(q, k, v, w, beta, g, scale=0.9, backend=backend)
    for b in range(2):
        for h in range(4):
            kv = (b, slice(None), h * 2 // 4)
            wanted = explicit(q[b, :, h], k[kv], v[kv], w[kv], beta[kv], g[b, :, h], 0.9)
            torch.testing.assert_close(out[b, :, h], wanted)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_one_token_is_its_value(backend):
    tensors = [x.requires_grad_() for x in inputs(2, 1)]
    out = path_attention(*tensors, backend=backend)
    torch.testing.assert_close(out, tensors[2])
    grads = torch.autograd.grad(out.square().sum(), tensors, materialize_grads=True, allow_unused=True)
    torch.testing.assert_close(grads[2], 2 * tensors[2])
    assert all(grad.abs().max() < 1e-14 for i, grad in enumerate(grads) if i != 2)


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("time", [17, 140])
def test_without_householder_it_is_fox(time, backend):
    """β = 0, and no w at all: softmax of the scaled scores plus differences of summed log gates."""
    q, k, v, w, beta, g = inputs(2, time, heads=2)
    sums = g.cumsum(1).transpose(1, 2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * 8**-0.5 + sums[..., :, None] - sums[..., None, :]
    later = torch.ones(time, time, dtype=torch.bool).triu(1)
    wanted = torch.einsum("bhij,bjhd->bihd", scores.masked_fill(later, -torch.inf).softmax(-1), v)
    torch.testing.assert_close(path_attention(q, k, v, w, 0 * beta, g, backend=backend), wanted)
    torch.testing.assert_close(path_attention(q, k, v, None, None, g, backend=backend), wanted)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_without_gates_it_is_path(backend):
    """g = 0, and no g at all: only the products of matrices."""
    q, k, v, w, beta, g = inputs(1, 12, heads=2, width=3)
    head = (0, slice(None), 1)
    wanted = explicit(*(x[head] for x in (q, k, v, w, beta)), g=torch.zeros(12, dtype=q.dtype))
    torch.testing.assert_close(path_attention(q, k, v, w, beta, 0 * g, backend=backend)[head], wanted)
    torch.testing.assert_close(path_attention(q, k, v, w, beta, backend=backend)[head], wanted)


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("time", [17, 140])
def test_without_both_it_is_causal_softmax_attention(time, backend):
    q, k, v, w, beta, g = inputs(2, time, kv_heads=2)
    wanted = attention(q, k, v)
    torch.testing.assert_close(path_attention(q, k, v, w, 0 * beta, 0 * g, backend=backend), wanted)
    torch.testing.assert_close(path_attention(q, k, v, None, None, backend=backend), wanted)


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("scale", [None, 0.125, 3.0])
def test_the_gate_is_outside_the_scale(scale, backend):
    """With q = 0 the weights are products of the gates, whatever the scale."""
    q, k, v, w, beta, g = inputs(1, 140, heads=2)
    out = path_attention(0 * q, k, v, w, beta, g, scale=scale, backend=backend)
    sums = g.cumsum(1).transpose(1, 2)
    weights = (sums[..., :, None] - sums[..., None, :]).exp().tril()
    weights = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(out, torch.einsum("bhij,bjhd->bihd", weights, v))


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_the_scale_belongs_to_the_queries(backend):
    q, k, v, w, beta, g = inputs(1, 40)
    call = partial(path_attention, backend=backend)
    halved = call(q / 2, k, v, w, beta, g, scale=0.5)
    torch.testing.assert_close(halved, call(q, k, v, w, beta, g, scale=0.25))


def test_summed_gates_stay_exact_far_into_a_sequence():
    """In fp32 a sum over 4,096 such gates is 16,000, and differences of two such sums are wrong by 1e-3."""
    q, k, v, w, beta, g = inputs(1, 4096, heads=1, width=4)
    g = 8 * g
    late = torch_form(*(x.float() for x in (q, k, v, w, beta, g)))[:, -200:]
    wanted = torch_form(*(x[:, -400:] for x in (q, k, v, w, beta, g)))[:, -200:]
    below((late - wanted).abs().max(), 1e-5)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_autocast_decides_the_dtype_and_arithmetic_stays_in_fp32(backend):
    tensors = [x.float() for x in inputs(1, 150)]
    rounded = [x.bfloat16().float() for x in tensors[:3]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = path_attention(*tensors, backend=backend)
    assert out.dtype == torch.bfloat16
    wanted = reference(*rounded, *tensors[3:])
    torch.testing.assert_close(out.float(), wanted, atol=1e-2, rtol=1e-2)


def costed(batch: int, time: int, heads: int, kv_heads: int, width: int) -> list[Tensor]:
    """q, k, v, w, beta, g."""
    w = F.normalize(normal(batch, time, kv_heads, width, seed=4), dim=-1)
    beta, g = normal(batch, time, kv_heads, seed=5).sigmoid(), -normal(batch, time, heads, seed=6).abs()
    return [*qkv(batch, time, heads=heads, kv_heads=kv_heads, width=width), w, beta, g]


@pytest.mark.parametrize("time", [1024, pytest.param(16_384, marks=pytest.mark.long)])
def test_no_tensor_is_larger_than_a_row_of_blocks(time):
    width = 4
    tensors = [x.float() for x in costed(1, time, 1, 1, width)]
    with Watch() as watch, torch.no_grad():
        out, lse = attend(*tensors, 0.5)
        attend_backward(out, out, lse, *tensors, 0.5)
    assert watch.largest <= time * (block_size(time) + width)


PEAK = """
import torch
from support.peak_memory import peak
from kernels import path_attention
torch.set_num_threads(1)
time = {time}
q, k, v, w = (torch.randn(1, time, 1, 4) for _ in range(4))
beta, g = 2 * torch.rand(1, time, 1), -torch.rand(1, time, 1)
inputs = [x.requires_grad_() for x in (q, k, v, torch.nn.functional.normalize(w, dim=-1), beta, g)]
def step(t):
    path_attention(*(x[:, :t] for x in inputs)).sum().backward()
step(2048)
before = peak()
step(time)
print(peak() - before)
"""


@pytest.mark.long
def test_peak_memory_at_16384_tokens_with_gradients():
    """A square of T would be 1 GiB in fp32."""
    assert printed_by(PEAK.format(time=16_384)) < 256 * 1024


def flops(call, *tensors: Tensor) -> tuple[int, int]:
    tensors = [x.detach().requires_grad_() for x in tensors]
    with flop_counter() as forward:
        out = call(*tensors)
    with flop_counter() as backward:
        out.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_cost_is_attention_and_the_path(device):
    tensors = [x.to(device) for x in costed(2, 300, 4, 2, 8)]
    wanted = path_flops(2, 300, 4, 2, 8, 8, turns=True)
    assert flops(path_attention, *tensors) == (wanted, 2 * wanted)
    plain = 4 * 2 * 4 * 300**2 * 8
    q, k, v, _, _, g = tensors
    assert flops(lambda *x: path_attention(*x[:3], None, None, x[3]), q, k, v, g) == (plain, 2 * plain)
    cu = packed(100, 200).to(device)
    one = [x[:1] for x in tensors]
    assert flops(partial(path_attention, cu_seqlens=cu), *one)[0] == path_flops(
        2, 150, 4, 2, 8, 8, turns=True
    )


def test_cost_is_what_the_products_add_up_to():
    """The counter sees every product but the triangular solve, and only the blocks at and below the diagonal."""
    batch, time, heads, kv_heads, width = 2, 300, 4, 2, 8
    with flop_counter() as counter, torch.no_grad():
        attend(*costed(batch, time, heads, kv_heads, width), 0.5)
    tokens = block_size(time)
    blocks = time // tokens
    skipped = 4 * batch * heads * width * tokens**2 * blocks * (blocks - 1) // 2
    solve = batch * kv_heads * time * tokens * (tokens + width)
    wanted = path_flops(batch, time, heads, kv_heads, width, width, turns=True)
    assert counter.get_total_flops() == wanted - skipped - solve
