"""Kernels of native sparse attention: the dense branches, the top-k of blocks, the branch of selected blocks.

triton_ops.py has the order of the steps. Exponentials and log-sum-exps are to base 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.nsa_attention.blocks import Sizes
from kernels.packing import boundaries
from kernels.triton_common import chunk_bounds, chunk_table, chunk_tables, padded
from kernels.triton_common.tiles import load_rows, store_rows
from kernels.triton_common.tuning import Tuned

# Device functions that all branches share, and the sizes of their tiles.

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
    divisor = tl.where(unseen, 1.0, total)
    return out / divisor[:, None], tl.where(unseen, 0.0, top) + tl.log2(divisor)


def fitting(rows: int, *tensors: Tensor) -> int:
    """Rows of a tile of tensors [..., width]: at most `rows`, a power of two ≥ 16, fewer where their rows are long."""
    longest = max(padded(x.shape[-1]) * x.element_size() for x in tensors)
    return max(16, min(rows, TILE_BYTES // longest))


# The dense branches: attention of every query to one range of keys, compressed blocks or the window's tokens.
#
#     o_t = Σ_j p_tj·v_j,   p_tj = 2^(a_tj − lse_t),   a_tj = scale·log₂e · q_t·k_j,   lse_t = log₂ Σ_j 2^(a_tj)
#
# Key j of a sequence is visible from position t iff it has ended and is not too old:
#
#     j·STRIDE + SIZE − 1 ≤ t    and    t − WINDOW < j
#
# with STRIDE = SIZE = 1 for the window, and no limit of age for compressed blocks. Saved are outputs and
# log-sum-exps, from which the backward pass computes the weights again.
#
# Sizes of the kernels: HEADS query heads, GROUP of them a KV head; K, V widths, BK, BV of tiles; BQ queries and BN
# keys of a tile.

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


# The top-k of blocks: importances are computed tile by tile and not stored; a running list holds the n highest.
#
# A program has some queries with all heads of one KV head and walks over the selection blocks that they may read. The
# weights p come from the scores again and the log-sum-exps of the compression branch. Block j gets
#
#     I_j = Σ_o c_o · p_{j·r + o},  −l/d < o < r = l'/d,   c_o = strides that compression block j·r + o and j share
#
# in one order for every j, so that equal weights give equal importances. A candidate is one whole number, its
# importance in steps of 2^−39 above, the block below, so that comparing numbers is comparing blocks, ties included.


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


# The selected blocks: attention of every query to the tokens of its chosen blocks, the heads of a group together.
#
#     o_t = Σ_s p_ts·v_s,   p_ts = 2^(a_ts − lse_t),   a_ts = scale·log₂e · q_t·k_s   over s ≤ t in the blocks of S_t
#
# A program has one query with the G heads of one KV head, at least 16 rows for the tensor cores, and walks over the
# tokens of its list of blocks.


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


# The queries of each block, for the backward pass: the lists of chosen blocks, inverted by a sort.

SPLIT = 2048
"""Queries of a block's list that one program walks over; the average list is n·l' long."""


@dataclass(frozen=True)
class BlockQueries:
    """The queries that chose each block. An owner is a pair (block, KV head): number block · Hkv + head.

    queries     int32 [E]: the queries of all owners' lists, one list after another
    offsets     [owners + 1]: where each begins
    parts       int32 [P, 2]: owner and number of every part of SPLIT queries, as `chunk_table` has them
    first_part  int32 [owners + 1]: where the parts of an owner begin
    blocks      int32 [blocks, 2]: sequence and number of every block
    first_key   int32 [N+1]: where the sequences begin
    split       queries of a part
    """

    queries: Tensor
    offsets: Tensor
    parts: Tensor
    first_part: Tensor
    blocks: Tensor
    first_key: Tensor
    split: int


@triton.jit
def _owner_keys(chosen, keys, ENTRIES, TOKENS, HEADS, N, BE: tl.constexpr):
    """By what entries of lists [·, HEADS, N] are sorted: first key · HEADS + head; behind all where it is −1."""
    entry = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    inside = entry < ENTRIES
    begin = tl.load(chosen + entry, mask=inside, other=-1).to(tl.int64)
    key = tl.where(begin < 0, TOKENS + 1, begin) * HEADS + entry // N % HEADS
    tl.store(keys + entry, key, mask=inside)


@triton.jit
def _owner_lists(
    ordered, order, blocks, first_key, queries, offsets, ENTRIES, TOKENS, HEADS, N, OWNERS, SEARCHES,
    SELECT: tl.constexpr, STEPS: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """The queries of the sorted entries, and in the first SEARCHES programs where each owner's begin.

    in   ordered and order [ENTRIES]: the sorted keys of `_owner_keys` and the entries; blocks, first_key: fields of
         `BlockQueries`
    out  queries [ENTRIES], offsets [OWNERS + 1]
    """
    program = tl.program_id(0).to(tl.int64)
    if program < SEARCHES:
        owner = program * BE + tl.arange(0, BE)
        there = owner < OWNERS
        sequence = tl.load(blocks + owner // HEADS * 2, mask=there, other=-1)
        number = tl.load(blocks + owner // HEADS * 2 + 1, mask=there, other=0).to(tl.int64)
        begin = tl.load(first_key + sequence, mask=sequence >= 0, other=0).to(tl.int64) + number * SELECT
        key = tl.where(sequence < 0, TOKENS, begin) * HEADS + owner % HEADS
        key = tl.where(there, key, (owner * 0 + TOKENS + 1) * HEADS)
        # The first place whose key is not below the owner's, by halving.
        low = tl.zeros((BE,), tl.int64)
        high = low + ENTRIES
        for _ in range(STEPS):
            middle = (low + high) // 2
            searching = low < high
            below = tl.load(ordered + middle, mask=searching, other=0) < key
            low, high = (
                tl.where(searching & below, middle + 1, low),
                tl.where(searching & ~below, middle, high),
            )
        tl.store(offsets + owner, low, mask=owner <= OWNERS)
    else:
        entry = (program - SEARCHES) * BE + tl.arange(0, BE)
        query = tl.load(order + entry, mask=entry < ENTRIES, other=0) // (HEADS * N)
        tl.store(queries + entry, query.to(tl.int32), mask=entry < ENTRIES)


def block_queries(chosen: Tensor, k: Tensor, select_size: int, cu_seqlens: Tensor | None) -> BlockQueries:
    """Invert the lists chosen [B, Tq, Hkv, n] of first keys, −1 where there is none. Nothing waits for the GPU."""
    tokens, heads, entries = k.shape[0] * k.shape[1], k.shape[2], chosen.numel()
    first_key, blocks = boundaries(k, cu_seqlens), chunk_table(k, cu_seqlens, select_size)
    owners, tile = len(blocks) * heads, 256
    keys = torch.empty(entries, dtype=torch.int64, device=k.device)
    sizes = {"ENTRIES": entries, "TOKENS": tokens, "HEADS": heads, "N": chosen.shape[3]}
    _owner_keys[(triton.cdiv(entries, tile),)](chosen, keys, **sizes, BE=tile)
    ordered, order = keys.sort(stable=True)
    query = torch.empty(entries, dtype=torch.int32, device=k.device)
    offsets = torch.empty(owners + 1, dtype=torch.int64, device=k.device)
    searches = triton.cdiv(owners + 1, tile)
    _owner_lists[(searches + triton.cdiv(entries, tile),)](
        ordered, order, blocks, first_key, query, offsets, **sizes, OWNERS=owners, SEARCHES=searches,
        SELECT=select_size, STEPS=entries.bit_length(), BE=tile,
    )  # fmt: skip
    parts, first_part = chunk_tables(query[None], offsets, SPLIT)
    return BlockQueries(query, offsets, parts, first_part, blocks, first_key, SPLIT)
