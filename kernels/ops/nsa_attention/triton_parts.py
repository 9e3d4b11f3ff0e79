"""Device functions that the kernels of all three branches share, and the sizes of their tiles."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_common.device import padded
from kernels.triton_common.tiles import load_rows

TILE_BYTES = 32 * 1024
"""Bytes of one operand's tile in shared memory; a program holds about four."""


class BranchInputs(NamedTuple):
    """Queries q [B, Tq, H, K], keys k and values v of one branch [B, ·, Hkv, ·]; all contiguous."""

    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def widths(self) -> dict[str, int]:
        """Widths and heads that the branch's kernels are compiled for."""
        _, _, heads, width = self.q.shape
        _, _, kv_heads, values = self.v.shape
        tiles = {"K": width, "V": values, "BK": padded(width), "BV": padded(values)}
        return {**tiles, "HEADS": heads, "GROUP": heads // kv_heads}


class BranchGradient(NamedTuple):
    """The gradient that arrives at a branch, and the tensors that carry it through the branch's softmax.

    do     [B, Tq, H, V], of the sum of the branches
    gates  [B, Tq, H, 3]; delta fp32 [B, Tq, H, 3]: δ_b = g_b·(do·o_b) of all branches
    lse    fp32 [B, Tq, H], the branch's own log-sum-exps to base 2
    """

    do: Tensor
    gates: Tensor
    delta: Tensor
    lse: Tensor

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """do [B, Tq, H, V], gates [B, Tq, H, 3], lse [B, Tq, H], delta [B, Tq, H, 3], as kernels take them."""
        return self.do, self.gates, self.lse, self.delta


@triton.jit
def load_gradient(do, gates, row, inside, BRANCH: tl.constexpr, WIDTH: tl.constexpr, BW: tl.constexpr):
    """The gradient g_b·do [R, BW] of one branch's output at rows [R] of do [·, WIDTH], in do's dtype; 0 outside."""
    gate = tl.load(gates + row * 3 + BRANCH, mask=inside, other=0.0).to(tl.float32)
    value = load_rows(do, row, inside, WIDTH, BW).to(tl.float32)
    return (value * gate[:, None]).to(do.dtype.element_ty)


@triton.jit
def product(a, b):
    """The product a·bᵀ [M, N] in fp32 of a [M, K] and b [N, K]."""
    return tl.dot(a, tl.trans(b), input_precision="ieee")


@triton.jit
def in_base_2(scale):
    """scale·log₂e, a number, with which 2^(…) is e^(scale·…)."""
    return scale * 1.4426950408889634


@triton.jit
def absorb(scores, values, top, total, out):
    """Add a tile of keys to the running softmax: scores [R, C] to base 2, −∞ where hidden; values [C, V].

    m' = max(m, max_s a_s),   total' = total·2^(m − m') + Σ_s 2^(a_s − m'),   out' likewise with v_s
    """
    highest = tl.maximum(top, tl.max(scores, axis=1))
    shift = tl.where(highest == float("-inf"), 0.0, highest)  # a row that has seen nothing yet
    weights = tl.exp2(scores - shift[:, None])
    less = tl.exp2(top - shift)
    total = total * less + tl.sum(weights, axis=1)
    out = out * less[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return highest, total, out


@triton.jit
def finish(top, total, out):
    """The softmax's rows out/total [R, V] and log-sum-exps m + log₂ total [R]; 0 and 0 of a row that saw nothing.

    top m [R], total [R], out [R, V]: as `absorb` leaves them, in fp32.
    """
    unseen = total == 0  # not so where a score is NaN, which stays
    whole = tl.where(unseen, 1.0, total)
    return out / whole[:, None], tl.where(unseen, 0.0, top) + tl.log2(whole)


def fitting(rows: int, *tensors: Tensor) -> int:
    """Rows of a tile of tensors [..., width]: at most `rows`, a power of two ≥ 16, fewer where their rows are long."""
    longest = max(padded(x.shape[-1]) * x.element_size() for x in tensors)
    return max(16, min(rows, TILE_BYTES // longest))
