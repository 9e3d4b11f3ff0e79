"""Sums over a chunk's tokens as products with zeros and ones: no digit of a gate is lost, next to large ones either."""

import pytest
import torch
import triton
import triton.language as tl
from support.kernel_cases import normal
from support.triton_cases import DEVICE, tensor_cores

from kernels.ops.delta_rule.triton_forward import CHUNK, LEAST_GATE, sum_gates, sum_tokens

WIDTH = 16


@triton.jit
def _sums(x, by_gate, by_token, C: tl.constexpr, W: tl.constexpr):
    row, column = tl.arange(0, C), tl.arange(0, W)
    place = row[:, None] * W + column[None]
    tile = tl.load(x + place).to(tl.float32)
    earlier = row[None] < row[:, None]
    tl.store(by_gate + place, sum_gates(earlier, tile, x.dtype.element_ty))
    tl.store(by_token + place, sum_tokens(earlier, tile))


def sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the two functions make of the sums of earlier rows of x, and the sums themselves in fp64."""
    by_gate, by_token = (torch.full(x.shape, torch.nan, device=DEVICE) for _ in range(2))
    with tensor_cores():
        _sums[(1,)](x.to(DEVICE), by_gate, by_token, C=CHUNK, W=WIDTH)
    strictly = torch.ones(CHUNK, CHUNK, dtype=torch.float64).tril(-1)
    return by_gate.cpu().double(), by_token.cpu().double(), strictly @ x.double()


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_sums_of_gates_of_any_size(size, dtype):
    gates = -size * normal(CHUNK, WIDTH, seed=3).abs().clamp(max=-LEAST_GATE.value / 30)
    by_gate, by_token, wanted = sums(gates.to(dtype))
    # Two parts hold 22 bits; 64 additions in fp32 round 2^-24 of the sum so far each; a gate's least part is 6e-11.
    limit = wanted.abs() * (2.0**-22 + 64 * 2.0**-24)
    assert ((by_gate - wanted).abs() <= limit + 64 * 6e-11).all()
    assert ((by_token - wanted).abs() <= limit).all()


def test_a_large_row_leaves_no_trace_in_sums_without_it():
    gates = torch.full((CHUNK, WIDTH), -1e-5)
    gates[-2] = LEAST_GATE.value
    for found in sums(gates)[:2]:
        torch.testing.assert_close(
            found[-2], torch.full((WIDTH,), -1e-5 * (CHUNK - 2)).double(), rtol=1e-5, atol=0
        )
        torch.testing.assert_close(found[-1], found[-2] + LEAST_GATE.value, rtol=1e-6, atol=0)
