"""The dense branches: attention of every query to one range of keys, compressed blocks or the window's tokens.

    o_t = Σ_j p_tj·v_j,   p_tj = 2^(a_tj − lse_t),   a_tj = scale·log₂e · q_t·k_j,   lse_t = log₂ Σ_j 2^(a_tj)

Key j of a sequence is visible from position t iff it has ended and is not too old:

    j·STRIDE + SIZE − 1 ≤ t    and    t − WINDOW < j

with STRIDE = SIZE = 1 for the window, and no limit of age for compressed blocks. Saved are outputs and
log-sum-exps, from which triton_dense_branches_backward.py computes the weights again.

Sizes of the kernels: HEADS query heads, GROUP of them a KV head; K, V widths, BK, BV of tiles; BQ queries and BN keys
of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.nsa_attention.triton_parts import BranchInputs, absorb, finish, fitting, in_base_2, product
from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.tiles import load_rows, store_rows
from kernels.triton_common.tuning import Tuned

NO_WINDOW = 1 << 30


@dataclass(frozen=True)
class DenseBranch:
    """One branch's keys, and which queries see them.

    gate    its place among the gates
    first   int32 [N+1]: where the keys of the sequences begin on their axis
    packed  whether the sequences differ in length
    shift   position of a sequence's first query
    size, stride, window   the condition above
    """

    gate: int
    first: Tensor
    packed: bool
    shift: int
    size: int = 1
    stride: int = 1
    window: int = NO_WINDOW


@triton.jit
def sees(key, position, WINDOW, SIZE: tl.constexpr, STRIDE: tl.constexpr):
    """Return whether the query at position t sees key j: j·STRIDE + SIZE − 1 ≤ t and t − WINDOW < j.

    key j and position t: integer tiles that broadcast, such as [1, BN] and [BQ, 1] for bool [BQ, BN].
    """
    return (key * STRIDE + (SIZE - 1) <= position) & (position - WINDOW < key)


@triton.jit
def keys_of(begin, first, end, SHIFT, WINDOW, BQ: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr):
    """The keys [start, stop) of their sequence, two scalars, that any query of a tile sees.

    The tile has up to BQ queries from `first` on, of a sequence [begin, end) whose first query stands at position
    SHIFT.
    """
    position = (first - begin).to(tl.int32) + SHIFT
    last = (tl.minimum(first + BQ, end) - begin).to(tl.int32) - 1 + SHIFT
    return tl.maximum(position - WINDOW + 1, 0), tl.maximum(last + 1 - SIZE + STRIDE, 0) // STRIDE


@triton.jit
def _dense_forward(
    q, k, v, o, lse, table, cu, first_key, SHIFT, WINDOW, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BQ: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Attention of a tile of queries of one head.

    in      q [Tq·HEADS, K], k [Tk·HEADS/GROUP, K], v [Tk·HEADS/GROUP, V]
    out     o [Tq·HEADS, V], lse [Tq·HEADS]; both 0 where a query sees no key
    layout  table, cu of chunks of BQ queries; first_key [N+1] of the keys; SHIFT: position of a first query
    """
    sequence, begin, end, first = chunk_bounds(table, cu, tl.program_id(0), BQ)
    if sequence >= 0:
        head = tl.program_id(1)
        token = first + tl.arange(0, BQ)
        row, inside = token * HEADS + head, token < end
        position = (token - begin).to(tl.int32) + SHIFT
        queries = load_rows(q, row, inside, K, BK)
        origin = tl.load(first_key + sequence).to(tl.int64)
        # the keys that any query of the tile sees
        start, stop = keys_of(begin, first, end, SHIFT, WINDOW, BQ, SIZE, STRIDE)
        top = tl.full((BQ,), float("-inf"), tl.float32)
        total = tl.zeros((BQ,), tl.float32)
        out = tl.zeros((BQ, BV), tl.float32)
        for at in range(start, stop, BN):
            key = at + tl.arange(0, BN)
            key_row = (origin + key) * (HEADS // GROUP) + head // GROUP
            # a_tj = scale·log₂e · q_t·k_j, −∞ where t does not see j
            scores = product(queries, load_rows(k, key_row, key < stop, K, BK)) * in_base_2(scale)
            visible = sees(key[None], position[:, None], WINDOW, SIZE, STRIDE)
            scores = tl.where(visible, scores, float("-inf"))
            # m = max_j a_tj so far, Σ_j 2^(a_tj − m) and Σ_j 2^(a_tj − m)·v_j
            top, total, out = absorb(scores, load_rows(v, key_row, key < stop, V, BV), top, total, out)
        # o_t = Σ_j 2^(a_tj − m)·v_j / Σ_j 2^(a_tj − m),   lse_t = m + log₂ Σ_j 2^(a_tj − m)
        out, total = finish(top, total, out)
        store_rows(o, row, inside, out, V, BV)
        tl.store(lse + row, total, mask=inside)


def dense_kernel(kernel, size: str) -> Tuned:
    """A kernel of a dense branch with its launch configurations; `size` names the rows of its inner loop."""
    sizes = ((64, 4, 3), (64, 8, 2), (128, 8, 2), (32, 4, 3), (32, 4, 2), (16, 4, 1))
    configs = [
        triton.Config({size: rows}, num_warps=warps, num_stages=stages) for rows, warps, stages in sizes
    ]
    return Tuned(kernel, configs, ["HEADS", "GROUP", "SIZE", "STRIDE", "K", "V"])


_dense_forward_tuned = dense_kernel(_dense_forward, "BN")


def dense_options(x: BranchInputs, branch: DenseBranch) -> dict[str, int]:
    """Sizes that a dense branch's kernels are compiled for."""
    return {**x.widths, "SIZE": branch.size, "STRIDE": branch.stride}


def dense_forward(
    x: BranchInputs, branch: DenseBranch, scale: float, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention o [B, Tq, H, V] in q's dtype, log-sum-exps to base 2 fp32 [B, Tq, H]."""
    out = x.q.new_empty(*x.q.shape[:3], x.v.shape[3])
    lse = torch.empty(x.q.shape[:3], dtype=torch.float32, device=x.q.device)
    rows = fitting(128, x.k, x.v)
    table = chunk_table(x.q, cu_seqlens, rows)
    _dense_forward_tuned[(len(table), x.q.shape[2])](
        *x, out, lse, table, boundaries(x.q, cu_seqlens), branch.first, branch.shift, branch.window, scale,
        **dense_options(x, branch), BQ=rows,
    )  # fmt: skip
    return out, lse
