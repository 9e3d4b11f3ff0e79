"""Attention of every query to the tokens of its chosen blocks, the heads of a group together.

    o_t = Σ_s p_ts·v_s,   p_ts = 2^(a_ts − lse_t),   a_ts = scale·log₂e · q_t·k_s     over s ≤ t in the blocks of S_t

forward, dq   a program has one query with the G heads of one KV head, at least 16 rows for the tensor cores,
              and walks over the tokens of its list of blocks
dk, dv        a program has a block of keys and walks over the queries that chose it, G heads each: gradients are
              in triton_selected_backward.py, the queries of a block in triton_block_queries.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.nsa_attention.blocks import Sizes
from kernels.ops.nsa_attention.triton_parts import BranchInputs, absorb, finish, in_base_2, product
from kernels.triton_common.device import padded
from kernels.triton_common.tiles import load_rows, store_rows
from kernels.triton_common.tuning import Tuned


@triton.jit
def own_key(query, QUERIES, SHIFT):
    """The place of a query's own token on the axis of all keys: sequences have QUERIES, and SHIFT more keys.

    query: a scalar or a tile [...] of places on the axis of all queries.
    """
    return query + (query // QUERIES + 1) * SHIFT


@triton.jit
def count(list_of_blocks, N: tl.constexpr, BLOCKS: tl.constexpr):
    """The number of blocks that a query has chosen, of its list [N] in memory; −1 stands after the last."""
    slot = tl.arange(0, BLOCKS)
    blocks = tl.load(list_of_blocks + slot, mask=slot < N, other=-1)
    return tl.sum((blocks >= 0).to(tl.int32), axis=0)


@triton.jit
def keys_at(list_of_blocks, column, stop, own, SELECT: tl.constexpr):
    """The keys int64 [BN] in these columns [BN] of a query's blocks laid side by side, and whether it sees them.

    The latter is bool [BN]. list_of_blocks [N]: the first key of every chosen block; own: the query's own key, the last
    that it sees.
    """
    begin = tl.load(list_of_blocks + column // SELECT, mask=column < stop, other=0).to(tl.int64)
    key = begin + column % SELECT
    return key, (column < stop) & (key <= own)


@triton.jit
def _selected_forward(
    q, k, v, o, lse, chosen, QUERIES, SHIFT, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, N: tl.constexpr, SELECT: tl.constexpr, BLOCKS: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BG: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Attention of one query with the heads of one KV head.

    in     q [Tq·HEADS, K], k [Tk·HEADS/GROUP, K], v [Tk·HEADS/GROUP, V], chosen [Tq·HEADS/GROUP, N]
    out    o [Tq·HEADS, V], lse [Tq·HEADS] to base 2
    sizes  SELECT tokens of a block; BLOCKS ≥ N, BG ≥ GROUP; BN keys of a tile; QUERIES, SHIFT as in `own_key`
    """
    query, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    member = tl.arange(0, BG)
    row, inside = query * HEADS + kv_head * GROUP + member, member < GROUP
    queries = load_rows(q, row, inside, K, BK)
    own = own_key(query, QUERIES, SHIFT)
    list_of_blocks = chosen + (query * (HEADS // GROUP) + kv_head) * N
    stop = count(list_of_blocks, N, BLOCKS) * SELECT
    top = tl.full((BG,), float("-inf"), tl.float32)
    total = tl.zeros((BG,), tl.float32)
    out = tl.zeros((BG, BV), tl.float32)
    for at in range(0, stop, BN):
        # the next keys s of the blocks of S_t, laid side by side, up to t
        key, seen = keys_at(list_of_blocks, at + tl.arange(0, BN), stop, own, SELECT)
        key_row = key * (HEADS // GROUP) + kv_head
        # a_ts = scale·log₂e · q_t·k_s
        scores = product(queries, load_rows(k, key_row, seen, K, BK)) * in_base_2(scale)
        scores = tl.where(seen[None], scores, float("-inf"))
        # m = max_s a_ts so far, Σ_s 2^(a_ts − m) and Σ_s 2^(a_ts − m)·v_s
        top, total, out = absorb(scores, load_rows(v, key_row, seen, V, BV), top, total, out)
    # o_t and lse_t = m + log₂ Σ_s 2^(a_ts − m)
    out, total = finish(top, total, out)
    store_rows(o, row, inside, out, V, BV)
    tl.store(lse + row, total, mask=inside)


def over_blocks(kernel) -> Tuned:
    """A kernel over a query's blocks with its launch configurations: BN keys at a time."""
    sizes = ((64, 4, 2), (64, 2, 2), (32, 1, 3), (32, 2, 3), (128, 4, 2), (16, 2, 2))
    configs = [
        triton.Config({"BN": size}, num_warps=warps, num_stages=stages) for size, warps, stages in sizes
    ]
    return Tuned(kernel, configs, ["HEADS", "GROUP", "N", "SELECT", "K", "V"])


_selected_forward_tuned = over_blocks(_selected_forward)


def selected_forward(x: BranchInputs, chosen: Tensor, sizes: Sizes, scale: float) -> tuple[Tensor, Tensor]:
    """Attention o [B, Tq, H, V] in q's dtype, log-sum-exps to base 2 fp32 [B, Tq, H].

    chosen int32 [B, Tq, Hkv, n]: first key of every chosen block on the axis of all B·Tk keys, −1 after the last.
    """
    q, k, v = x
    out = q.new_empty(*q.shape[:3], v.shape[3])
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    _selected_forward_tuned[(q.shape[0] * q.shape[1], k.shape[2])](
        *x, out, lse, chosen, q.shape[1], k.shape[1] - q.shape[1], scale, **block_options(x, sizes)
    )
    return out, lse


def block_options(x: BranchInputs, sizes: Sizes) -> dict[str, int]:
    """Sizes that kernels over a query's blocks are compiled for."""
    blocks = {"N": sizes.n_select, "BLOCKS": triton.next_power_of_2(sizes.n_select)}
    return {**x.widths, **blocks, "SELECT": sizes.select_size, "BG": padded(x.widths["GROUP"])}
