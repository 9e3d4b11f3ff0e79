"""What path_attention costs: memory linear in T, and FLOPs that the counter and a closed form agree on."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.kernel_cases import normal, packed, qkv
from support.peak_memory import printed_by
from support.watch import Watch
from torch import Tensor

from kernels import path_attention
from kernels.autograd import flop_counter
from kernels.ops.path_attention.torch_form import attend, attend_backward, block_size, path_flops


def inputs(batch: int, time: int, heads: int, kv_heads: int, width: int) -> list[Tensor]:
    """q, k, v, w, beta, g."""
    w = F.normalize(normal(batch, time, kv_heads, width, seed=4), dim=-1)
    beta, g = normal(batch, time, kv_heads, seed=5).sigmoid(), -normal(batch, time, heads, seed=6).abs()
    return [*qkv(batch, time, heads=heads, kv_heads=kv_heads, width=width), w, beta, g]


@pytest.mark.parametrize("time", [1024, pytest.param(16_384, marks=pytest.mark.long)])
def test_no_tensor_is_larger_than_a_row_of_blocks(time):
    width = 4
    tensors = [x.float() for x in inputs(1, time, 1, 1, width)]
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
    tensors = [x.to(device) for x in inputs(2, 300, 4, 2, 8)]
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
        attend(*inputs(batch, time, heads, kv_heads, width), 0.5)
    tokens = block_size(time)
    blocks = time // tokens
    skipped = 4 * batch * heads * width * tokens**2 * blocks * (blocks - 1) // 2
    solve = batch * kv_heads * time * tokens * (tokens + width)
    wanted = path_flops(batch, time, heads, kv_heads, width, width, turns=True)
    assert counter.get_total_flops() == wanted - skipped - solve
