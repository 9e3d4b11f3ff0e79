"""Top-k of blocks: importances are computed tile by tile and not stored; a running list holds the n highest.

A program has some queries with all heads of one KV head and walks over the selection blocks that they may read.
The weights p come from the scores again and the log-sum-exps of the compression branch. Block j gets

    I_j = Σ_o c_o · p_{j·r + o},  −l/d < o < r = l'/d,   c_o = strides that compression block j·r + o and j share

in one order for every j, so that equal weights give equal importances. A candidate is one whole number, its
importance in steps of 2^−39 above, the block below, so that comparing numbers is comparing blocks, ties included.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.nsa_attention.blocks import Sizes
from kernels.ops.nsa_attention.triton_dense_branches import DenseBranch
from kernels.ops.nsa_attention.triton_parts import fitting, in_base_2, product
from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table
from kernels.triton_common.device import chunk_bounds, padded
from kernels.triton_common.tiles import load_rows
from kernels.triton_common.tuning import Tuned


@triton.jit
def _ranks(importance, block, own):
    """Ranks int64 [BQ, BJ]: higher is better, at equal importance the lower block; later ones −1.

    Above all shares are importances that are NaN, above these the forced blocks.
    """
    unknown = importance != importance
    share = tl.where(unknown, 0.0, importance) * 549755813888.0  # 2^39
    # From 2^23 on an fp32 number is whole already, and half more would round it away.
    steps = tl.where(share < 8388608.0, tl.floor(share + 0.5), share).to(tl.int64)
    steps = tl.where(unknown, (1 << 40) - 1, steps)
    # S_t has {0, b − 1, b}, b = ⌊t/l'⌋
    forced = (block[None] == 0) | (block[None] == own[:, None]) | (block[None] == own[:, None] - 1)
    steps = tl.where(forced, 1 << 40, steps)
    # rank = (steps, −j): one whole number, distinct for every block
    return tl.where(block[None] > own[:, None], -1, steps * 4194304 + (4194303 - block[None]))


@triton.jit
def _keep_best(best, rank):
    """Replace the lowest of best [BQ, LIST] by the highest of rank [BQ, BJ] while one is higher; all are distinct."""
    candidate, worst = tl.max(rank, axis=1), tl.min(best, axis=1)
    while tl.max((candidate > worst).to(tl.int32), axis=0) > 0:
        replaced = (best == worst[:, None]) & (candidate > worst)[:, None]
        best = tl.where(replaced, candidate[:, None], best)
        rank = tl.where(rank == candidate[:, None], -1, rank)
        candidate, worst = tl.max(rank, axis=1), tl.min(best, axis=1)
    return best


@triton.jit
def _block_topk(
    q, k, lse, chosen, table, cu, first_block, first_key, SHIFT, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr, SELECT: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, BQ: tl.constexpr, BG: tl.constexpr,
    LIST: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    """Choose the N blocks of highest importance for every query and KV head.

    in      q [Tq·HEADS, K], k [M·HEADS/GROUP, K] and lse [Tq·HEADS] of the compression branch
    out     chosen [Tq, HEADS/GROUP, N]: first token, on the axis of all keys, of every chosen block; −1 after the last
    layout  table, cu of chunks of BQ queries; first_block [N+1] of the compressed blocks, first_key of the keys
    sizes   SIZE = l, STRIDE = d, SELECT = l'; BG: GROUP as a power of two; LIST ≥ N; BJ: selection blocks of a tile
    """
    sequence, begin, end, first = chunk_bounds(table, cu, tl.program_id(0), BQ)
    if sequence >= 0:
        kv_head = tl.program_id(1)
        place = tl.arange(0, BQ * BG)
        inside = (first + place // BG < end) & (place % BG < GROUP)
        row = (first + place // BG) * HEADS + kv_head * GROUP + place % BG
        queries = load_rows(q, row, inside, K, BK)
        lse_t = tl.load(lse + row, mask=inside, other=0.0)
        position = (first - begin).to(tl.int32) + SHIFT
        own = (position + tl.arange(0, BQ)) // SELECT
        last = (tl.minimum(first + BQ, end) - begin).to(tl.int32) - 1 + SHIFT
        origin = tl.load(first_block + sequence).to(tl.int64)
        slot = tl.arange(0, LIST).to(tl.int64)
        # Empty places are below every candidate, the first the lowest; those from N on are never replaced.
        empty = tl.where(slot < N, slot - LIST - 1, (1 << 63) - 1)
        best = tl.zeros((BQ, LIST), tl.int64) + empty[None]
        for at in range(0, last // SELECT + 1, BJ):
            block = at + tl.arange(0, BJ)
            importance = tl.zeros((BQ, BJ), tl.float32)
            # I_j = Σ_o c_o·p_{j·r + o}
            for offset in range(1 - SIZE // STRIDE, SELECT // STRIDE):
                i = block * (SELECT // STRIDE) + offset
                ended = (i >= 0) & (i * STRIDE + SIZE - 1 <= last)
                keys = load_rows(k, (origin + i) * (HEADS // GROUP) + kv_head, ended, K, BK)
                # p_i = 2^(a_i − lse_t) over the compressed blocks i that have ended at t
                scores = product(queries, keys) * in_base_2(scale) - lse_t[:, None]
                seen = (i * STRIDE + SIZE - 1)[None] <= (position + place // BG)[:, None]
                weights = tl.exp2(tl.where(seen & ended[None] & inside[:, None], scores, float("-inf")))
                # c_o = min(o + l/d, l'/d) − max(o, 0)
                common = tl.minimum(offset + SIZE // STRIDE, SELECT // STRIDE) - tl.maximum(offset, 0)
                importance += common * tl.sum(tl.reshape(weights, (BQ, BG, BJ)), axis=1)
            # the n highest so far of I_j / (G·l/d)
            best = _keep_best(best, _ranks(importance / (GROUP * (SIZE // STRIDE)), block, own))
        # the block is in the low bits of a rank
        block = 4194303 - (best & 4194303)
        key = tl.load(first_key + sequence) + block.to(tl.int32) * SELECT
        query = first + tl.arange(0, BQ)
        to = (query[:, None] * (HEADS // GROUP) + kv_head) * N + slot[None]
        mask = (query < end)[:, None] & (slot < N)[None]
        tl.store(chosen + to, tl.where(best < 0, -1, key), mask=mask)


_block_topk_tuned = Tuned(
    _block_topk,
    [
        triton.Config({"BJ": size}, num_warps=warps, num_stages=stages)
        for size, warps, stages in ((64, 4, 2), (64, 8, 2), (32, 4, 3), (128, 8, 2), (16, 4, 2))
    ],
    ["HEADS", "GROUP", "SIZE", "STRIDE", "SELECT", "N", "K"],
)


def block_topk(
    q: Tensor, k: Tensor, lse: Tensor, branch: DenseBranch, first_key: Tensor, sizes: Sizes, scale: float,
    cu_seqlens: Tensor | None,
) -> Tensor:  # fmt: skip
    """The keys at which the chosen blocks begin among all keys to select from, −1 where there are fewer.

    returns int32 [B, Tq, Hkv, n]
    q, k, lse, branch: of the compression branch; first_key int32 [N+1]: where the sequences' keys to select from begin.
    """
    heads, kv_heads = q.shape[2], k.shape[2]
    group = triton.next_power_of_2(heads // kv_heads)
    queries = max(1, fitting(128, q) // group)
    if queries * group < 16:
        queries = 16 // group
    table = chunk_table(q, cu_seqlens, queries)
    chosen = torch.empty(*q.shape[:2], kv_heads, sizes.n_select, dtype=torch.int32, device=q.device)
    _block_topk_tuned[(len(table), kv_heads)](
        q, k, lse, chosen, table, boundaries(q, cu_seqlens), branch.first, first_key, branch.shift, scale,
        HEADS=heads, GROUP=heads // kv_heads, SIZE=sizes.block_size, STRIDE=sizes.stride,
        SELECT=sizes.select_size, N=sizes.n_select, K=q.shape[3], BK=padded(q.shape[3]), BQ=queries, BG=group,
        LIST=triton.next_power_of_2(sizes.n_select),
    )  # fmt: skip
    return chosen
