"""Native sparse attention on a GPU: three branches and the top-k of blocks, each in memory linear in T.

    forward   compression branch, saves log-sum-exps        `dense_forward`
              top-k of blocks from those                    `block_topk`
              selection branch over the chosen blocks       `selected_forward`
              window branch                                 `dense_forward`
              o = Σ_b g_b ⊙ o_b
    backward  dg_b = do·o_b and delta_b = g_b · dg_b of all branches in one pass, then branch by branch with the
              gradient g_b ⊙ do: dq by queries, dk and dv by keys, weights computed again
              (`dense_backward`, `selected_backward`). Where all branches have one query, each adds its dq to that of
              the one before it

Saved: the inputs, the branches' outputs and log-sum-exps, the chosen blocks.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels.autograd import first_order
from kernels.ops.nsa_attention.blocks import Sizes, packed_counts
from kernels.ops.nsa_attention.triton_backward import dense_backward, selected_backward
from kernels.ops.nsa_attention.triton_forward import (
    BranchGradient,
    BranchInputs,
    DenseBranch,
    block_topk,
    dense_forward,
    selected_forward,
)
from kernels.packing import boundaries
from kernels.triton_common import padded
from kernels.triton_common.operators import operator
from kernels.triton_common.tiles import load_rows, store_rows

Pair = tuple[Tensor, Tensor]


@triton.jit
def _mix(coarse, fine, near, gates, o, ROWS, V: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr):
    """Sum the branches: o = g_0·coarse + g_1·fine + g_2·near, rows [ROWS, V], gates [ROWS, 3]."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    inside = row < ROWS
    total = tl.zeros((BR, BV), tl.float32)
    for branch in tl.static_range(3):
        source = coarse if branch == 0 else (fine if branch == 1 else near)
        gate = tl.load(gates + row * 3 + branch, mask=inside, other=0.0).to(tl.float32)
        # o = Σ_b g_b·o_b
        total += gate[:, None] * load_rows(source, row, inside, V, BV).to(tl.float32)
    store_rows(o, row, inside, total, V, BV)


@triton.jit
def _unmix(
    coarse, fine, near, gates, do, dgates, delta, ROWS, V: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr
):
    """dg_b = do·o_b, and δ_b = g_b·dg_b, which the gradient of branch b's softmax subtracts; both [ROWS, 3]."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    inside = row < ROWS
    gradient = load_rows(do, row, inside, V, BV).to(tl.float32)
    for branch in tl.static_range(3):
        source = coarse if branch == 0 else (fine if branch == 1 else near)
        gate = tl.load(gates + row * 3 + branch, mask=inside, other=0.0).to(tl.float32)
        # dg_b = do·o_b,   δ_b = g_b·dg_b
        d_gate = tl.sum(gradient * load_rows(source, row, inside, V, BV).to(tl.float32), axis=1)
        tl.store(dgates + row * 3 + branch, d_gate.to(dgates.dtype.element_ty), mask=inside)
        tl.store(delta + row * 3 + branch, gate * d_gate, mask=inside)


def _by_rows(gates: Tensor, width: int) -> tuple[tuple[int], dict[str, int]]:
    """Grid and sizes of `_mix` and `_unmix`."""
    rows = gates.shape[:3].numel()
    return (triton.cdiv(rows, 16),), {"ROWS": rows, "V": width, "BR": 16, "BV": padded(width)}


def _dense_branches(
    q: Tensor, compressed: Tensor, selected: Tensor, sliding: Tensor, sizes: Sizes, cu: Tensor | None
) -> tuple[DenseBranch, DenseBranch]:
    """The compression and the window branch, from their keys."""
    if cu is None:
        first = boundaries(compressed, None)
    else:
        counts = packed_counts(cu, sizes.block_size, sizes.stride)
        first = F.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
    packed, queries = cu is not None, q.shape[1]
    coarse = DenseBranch(0, first, packed, selected.shape[1] - queries, sizes.block_size, sizes.stride)
    window = min(sizes.window, sliding.shape[1])  # all of any sequence, and int32 sums cannot overflow
    near = DenseBranch(2, boundaries(sliding, cu), packed, sliding.shape[1] - queries, window=window)
    return coarse, near


@operator
class _NSA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, q_rotated, kc, vc, ks, vs, kw, vw, gates, scale, cu_seqlens, *sizes):
        sizes, ctx.sizes = Sizes(*sizes), sizes
        turned = q if q_rotated is None else q_rotated
        compressed, selected, sliding = _branch_inputs(q, turned, kc, vc, ks, vs, kw, vw)
        coarse, near = _dense_branches(q, kc, ks, kw, sizes, cu_seqlens)
        first = dense_forward(compressed, coarse, scale, cu_seqlens)
        chosen = block_topk(q, kc, first[1], coarse, boundaries(ks, cu_seqlens), sizes, scale, cu_seqlens)
        second = selected_forward(selected, chosen, sizes, scale)
        third = dense_forward(sliding, near, scale, cu_seqlens)
        out = torch.empty_like(first[0])
        grid, options = _by_rows(gates, vs.shape[3])
        _mix[grid](first[0], second[0], third[0], gates, out, **options)
        inputs = (q, q_rotated, kc, vc, ks, vs, kw, vw, gates)
        ctx.save_for_backward(*inputs, *first, *second, *third, chosen, cu_seqlens)
        ctx.scale = scale
        return out

    @staticmethod
    @first_order
    def backward(ctx, do):
        *inputs, oc, lc, os, ls, ow, lw, chosen, cu_seqlens = ctx.saved_tensors
        q, q_rotated, kc, vc, ks, vs, kw, vw, gates = inputs
        turned, sizes = q if q_rotated is None else q_rotated, Sizes(*ctx.sizes)
        compressed, selected, sliding = _branch_inputs(q, turned, kc, vc, ks, vs, kw, vw)
        coarse, near = _dense_branches(q, kc, ks, kw, sizes, cu_seqlens)
        do, dgates = do.contiguous(), torch.empty_like(gates)
        delta = torch.empty(gates.shape, dtype=torch.float32, device=gates.device)
        grid, options = _by_rows(gates, vs.shape[3])
        _unmix[grid](oc, os, ow, gates, do, dgates, delta, **options)
        to_coarse, to_fine, to_near = (BranchGradient(do, gates, delta, lse) for lse in (lc, ls, lw))
        rest = (ctx.scale, cu_seqlens)
        dq, *d_compressed = dense_backward(compressed, to_coarse, coarse, *rest)
        before = dq if q_rotated is None else None
        d_turned, *d_sliding = dense_backward(sliding, to_near, near, *rest, before)
        d_turned, *d_selected = selected_backward(selected, to_fine, chosen, sizes, *rest, d_turned)
        dq, d_turned = (d_turned, None) if q_rotated is None else (dq, d_turned)
        return dq, d_turned, *d_compressed, *d_selected, *d_sliding, dgates, *(None,) * (2 + len(ctx.sizes))


def _branch_inputs(q, turned, kc, vc, ks, vs, kw, vw) -> tuple[BranchInputs, BranchInputs, BranchInputs]:
    """Inputs of compression, selection and window; the last two read the rotated query."""
    return BranchInputs(q, kc, vc), BranchInputs(turned, ks, vs), BranchInputs(turned, kw, vw)


def nsa_attention_triton(
    q: Tensor,
    compressed: Pair,
    selected: Pair,
    sliding: Pair,
    gates: Tensor,
    *,
    q_rotated: Tensor,
    sizes: Sizes,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.nsa_attention` on a GPU; nothing is larger than the inputs and n numbers a query and KV head.

    q, q_rotated [B, Tq, H, K]; compressed, selected, sliding: pairs of k [B, M or Tk, Hkv, K], v [B, M or Tk, Hkv, V];
    gates [B, Tq, H, 3] -> [B, Tq, H, V] in q's dtype.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    inputs = (q, None if q_rotated is q else q_rotated, *compressed, *selected, *sliding, gates)
    inputs = [None if x is None else x.contiguous() for x in inputs]
    return _NSA(*inputs, scale, cu_seqlens, *dataclasses.astuple(sizes))
