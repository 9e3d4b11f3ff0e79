"""Kernels of PaTH attention: blocks prepared by themselves, the softmax over blocks, and carrying along the path.

    o_i = Σ_j p_ij·v_j,   p_ij = e^(a_ij − lse_i),   lse_i = log Σ_j e^(a_ij),
    a_ij = q̃_i·k̃_j + Σ_{s=j+1..i} g_s    q̃_i: scale·q_i turned to the end of j's block; k̃_j: k_j turned to there

Sizes of the kernels of this operation:

    HEADS, GROUP      query heads, and how many share a KV head
    WIDTH, VALUES     widths of keys and values; K, V: padded to powers of two
    C, SPLIT          tokens of a block, programs that divide its rows; BC, BK: columns of a tile
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.packing import boundaries
from kernels.triton_common import chunk_bounds, chunk_table, chunk_tables, padded
from kernels.triton_common.tiles import load_head_rows, load_head_scalars, store_head_rows
from kernels.triton_common.tuning import Tuned

# Tiles that the kernels share.
#
# The tensors that kernels pass to each other are in blocks: [M, heads, C, KP] for M rows of the chunk table, C tokens
# a block and a width padded to a power of two, zeros after the sequence's end and beyond the width. So only inputs,
# which are on the token axis, are read with masks.

Launch = tuple[int, int, int, int]

LOG2E: tl.constexpr = tl.constexpr(math.log2(math.e))
LN2: tl.constexpr = tl.constexpr(math.log(2))


@triton.jit
def tokens_fp32(x, token, end, head, HEADS, column, WIDTH):
    """x [tokens, HEADS, WIDTH] of a head at these tokens, a tile [token, column] in fp32; 0 from token `end` on."""
    return load_head_rows(x, token, end, head, HEADS, column, WIDTH).to(tl.float32)


@triton.jit
def load_block(x, row, column, WIDTH):
    """These rows and columns of a buffer x [·, WIDTH], as stored, without masks."""
    return tl.load(x + row[:, None] * WIDTH + column[None])


@triton.jit
def store_block(x, values, row, column, WIDTH):
    """Write values [rows, columns], in x's dtype, to a buffer x [·, WIDTH], without masks."""
    tl.store(x + row[:, None] * WIDTH + column[None], values.to(x.dtype.element_ty))


@triton.jit
def minus_turned(x, turn, K: tl.constexpr, FLIP: tl.constexpr):
    """x − x·D for x [rows, K] and D [K, K] in main memory, or x − x·Dᵀ; a wide D is loaded in halves, to fit."""
    out = tl.arange(0, K)
    if K <= 128:
        x -= tl.dot(x.to(turn.dtype.element_ty), _slice(turn, out, out, K, FLIP), input_precision="ieee")
    else:
        half = tl.arange(0, K // 2)
        left, right = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, K // 2)), (0, 2, 1)))
        x -= tl.dot(left.to(turn.dtype.element_ty), _slice(turn, half, out, K, FLIP), input_precision="ieee")
        half += K // 2
        x -= tl.dot(right.to(turn.dtype.element_ty), _slice(turn, half, out, K, FLIP), input_precision="ieee")
    return x


@triton.jit
def _slice(turn, into, out, K: tl.constexpr, FLIP: tl.constexpr):
    """These rows and columns of D, or of Dᵀ."""
    if FLIP:
        part = tl.trans(tl.load(turn + out[:, None] * K + into[None]))
    else:
        part = tl.load(turn + into[:, None] * K + out[None])
    return part


@triton.jit
def unit_inverse(lower, C: tl.constexpr, PRECISION: tl.constexpr):
    """Invert: (I + L)⁻¹ of a strictly lower triangular L [C, C], C = 64 or 128.

    The inverses Y of diagonal blocks of size b give those of size 2b, Y − Y·L'·Y with L' what of L stands below them
    inside; every intermediate is part of an inverse of part of the matrix, so that nothing grows and cancels.
    The loop stays one at run time: unrolled, its products take the compiler minutes.
    """
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None]
    # Y = I − L' for blocks of size 1
    inverse = tl.where(row == column, 1.0, 0.0) - tl.where(row >> 1 == column >> 1, lower, 0.0)
    # Y ← Y − Y·L'·Y for blocks of size b = 2^level
    for level in range(1, 7 if C == 128 else 6):
        below = (row >> level + 1 == column >> level + 1) & (row >> level > column >> level)
        step = tl.dot(tl.where(below, lower, 0.0), inverse, input_precision=PRECISION)
        inverse -= tl.dot(inverse, step, input_precision=PRECISION)
    return inverse


@triton.jit
def unit_of(table, cu, row, span, C: tl.constexpr, UNITS: tl.constexpr, NEAR: tl.constexpr):
    """Find the unit of C tokens that a row of a table [rows, 2] names; seven scalars.

    returns  sequence (−1: an idle row), begin and end, its first token and its end; own, the unit's place in buffers;
             number, the unit's in its sequence; start, that of the first unit of its span; stop, that of the first unit
             which its keys do not reach

    Units are blocks (NEAR), which reach to the end of their stretch, or stretches, which reach to the end of the
    sequence and of which only those of span `span` count.
    """
    sequence, begin, end, first = chunk_bounds(table, cu, row, C)
    number = tl.load(table + row * 2 + 1).to(tl.int64)
    stop = tl.cdiv(end - begin, C)
    if NEAR:
        own = row.to(tl.int64)
        start = number // UNITS * UNITS
        stop = tl.minimum(stop, start + UNITS)
    else:
        # Full stretches do not share it, nor do those with an earlier one: two begin at least C tokens apart.
        own = first // C
        start = span * UNITS + 0 * number
    return sequence, begin, end, own, number, start, stop


@triton.jit
def token_scalars(x, first, row, left):
    """x [T] at these rows after token `first`, 0 from row `left` on."""
    return tl.load(x + first + row, mask=row < left, other=0.0)


def at_scales(kernel, near: Sequence[Launch], far: Sequence[Launch]) -> tuple[Tuned, Tuned]:
    """A kernel of the backward for units of 64 or 128 tokens and for those of 512: (SPLIT, BC, warps, stages)."""
    near_configs, far_configs = (
        [
            triton.Config({"SPLIT": split, "BC": columns}, num_warps=warps, num_stages=stages)
            for split, columns, warps, stages in launches
        ]
        for launches in (near, far)
    )
    key = ["C", "K", "V", "GROUP"]
    return Tuned(kernel, near_configs, key), Tuned(kernel, far_configs, key)


# Each block by itself: its path in compact form, logits, sums of gates.
#
# Linear in T, so nothing here is hot: products take fp32 operands, on tensor cores (tf32) where the inputs have 16
# bit. Matrices [C, C] stay whole, wide ones go by in tiles of BK columns.
#
#     compact  a block and KV head     inverse Y = (I + Diag(β)·tril(W·Wᵀ, −1))⁻¹, skipped = Y·Diag(β)·tril(W·Kᵀ, −1),
#                                      U = Y·Diag(β)·W, and k at the end of the block: K − skippedᵀ·W
#     turn     a block and KV head     D = Uᵀ·W: the product of the block's Householder matrices is I − D
#     inner    a block and query head  passed = tril(s·Q·Wᵀ), logits s·Q·Kᵀ − passed·skipped + gates (−∞ where j > i),
#                                      q at the start of the block: s·Q − passed·U; sums of gates before and after;
#                                      q and these sums times log₂ e, for scores across blocks as powers of two


@triton.jit
def compact(
    k, w, beta, inverse, skipped, u, key, table, cu, HEADS, WIDTH,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr, SOLVING: tl.constexpr,
):  # fmt: skip
    """The compact form of a block's path, and its keys at the end of the block; HEADS: KV heads.

    in   k, w [T, HEADS, WIDTH], beta [T, HEADS]
    out  inverse, skipped [M, HEADS, C, C], u, key [M, HEADS, C, K]; without w only key
    """
    block, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, block, C)
    if sequence >= 0:
        row = tl.arange(0, C)
        token, own = first + row, block * HEADS + head
        if w is not None:
            gram, met = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
            for start in range(0, K, BK):
                column = start + tl.arange(0, BK)
                w_tile = tokens_fp32(w, token, end, head, HEADS, column, WIDTH)
                keys = tokens_fp32(k, token, end, head, HEADS, column, WIDTH)
                # W·Wᵀ and W·Kᵀ
                gram += tl.dot(w_tile, tl.trans(w_tile), input_precision=PRECISION)
                met += tl.dot(w_tile, tl.trans(keys), input_precision=PRECISION)
            earlier = row[None] < row[:, None]
            beta_rows = load_head_scalars(beta, token, end, head, HEADS)
            # Y = (I + Diag(β)·tril(W·Wᵀ, −1))⁻¹
            inverse_tile = unit_inverse(tl.where(earlier, beta_rows[:, None] * gram, 0.0), C, SOLVING)
            store_block(inverse + own * C * C, inverse_tile, row, row, C)
            inverse_tile *= beta_rows[None]
            # skipped = Y·Diag(β)·tril(W·Kᵀ, −1)
            skipped_tile = tl.dot(inverse_tile, tl.where(earlier, met, 0.0), input_precision=PRECISION)
            store_block(skipped + own * C * C, skipped_tile, row, row, C)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            keys = tokens_fp32(k, token, end, head, HEADS, column, WIDTH)
            if w is not None:
                w_tile = tokens_fp32(w, token, end, head, HEADS, column, WIDTH)
                # k̃ = K − skippedᵀ·W
                keys -= tl.dot(tl.trans(skipped_tile), w_tile, input_precision=PRECISION)
                # U = Y·Diag(β)·W
                u_tile = tl.dot(inverse_tile, w_tile, input_precision=PRECISION)
                store_block(u + own * C * K, u_tile, row, column, K)
            store_block(key + own * C * K, keys, row, column, K)


@triton.jit
def turn(
    u, w, turns, table, cu, HEADS, WIDTH,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """D = Uᵀ·W, a tile [BK, BK] a program: u [M, HEADS, C, K], w [T, HEADS, WIDTH] -> turns [M, HEADS, K, K]."""
    block, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, block, C)
    if sequence >= 0:
        row, own = tl.arange(0, C), block * HEADS + head
        above = (tl.program_id(2) // (K // BK)) * BK + tl.arange(0, BK)
        column = (tl.program_id(2) % (K // BK)) * BK + tl.arange(0, BK)
        # D = Uᵀ·W
        w_tile = tokens_fp32(w, first + row, end, head, HEADS, column, WIDTH)
        product = tl.dot(
            tl.trans(load_block(u + own * C * K, row, above, K)), w_tile, input_precision=PRECISION
        )
        store_block(turns + own * K * K, product, above, column, K)


@triton.jit
def _gate_sums(g, before, after, token, end, head, HEADS, own, C: tl.constexpr):
    """Sum gates: Σ_{s=j+1..i} g_s as [i, j] is returned, log₂ e·the sums before and after every token are stored.

    Sums of terms of one sign only: a difference of two long sums would be inexact.
    """
    row = tl.arange(0, C)
    gate = load_head_scalars(g, token, end, head, HEADS)
    # before_i = Σ_{s=first..i} g_s
    tl.store(before + own * C + row, tl.cumsum(gate, 0) * LOG2E)
    # after_j = Σ_{s=j+1..last} g_s
    later = tl.load(g + (token + 1) * HEADS + head, mask=(token + 1 < end) & (row + 1 < C), other=0.0)
    tl.store(after + own * C + row, tl.cumsum(later.to(tl.float32), 0, reverse=True) * LOG2E)
    # Σ_{s=j+1..i} g_s
    return tl.cumsum(tl.where(row[:, None] > row[None], gate[:, None], 0.0), 0)


@triton.jit
def inner(
    q, k, w, g, skipped, u, query, logits, passed, before, after, table, cu, scale, HEADS, GROUP, WIDTH,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Logits inside a block, and its queries at the start of the block, of one head.

    in   q [T, HEADS, WIDTH], k, w [T, KV_HEADS, WIDTH], g [T, HEADS]; skipped, u of `compact`
    out  query [M, HEADS, C, K], logits [M, HEADS, C, C], before, after [M, HEADS, C];
         passed [M, HEADS, C, C], or None: only the backward reads it
    """
    block, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, block, C)
    if sequence >= 0:
        row, kv = tl.arange(0, C), head // GROUP
        token, own, own_kv = first + row, block * HEADS + head, block * (HEADS // GROUP) + kv
        until = row[None] <= row[:, None]
        score, passed_tile = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            queries = tokens_fp32(q, token, end, head, HEADS, column, WIDTH) * scale
            keys = tokens_fp32(k, token, end, kv, HEADS // GROUP, column, WIDTH)
            # s·Q·Kᵀ and s·Q·Wᵀ
            score += tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
            if w is not None:
                w_tile = tokens_fp32(w, token, end, kv, HEADS // GROUP, column, WIDTH)
                passed_tile += tl.dot(queries, tl.trans(w_tile), input_precision=PRECISION)
        if w is not None:
            # passed = tril(s·Q·Wᵀ),   logits = s·Q·Kᵀ − passed·skipped + gates, −∞ where j > i
            passed_tile = tl.where(until, passed_tile, 0.0)
            score -= tl.dot(
                passed_tile, load_block(skipped + own_kv * C * C, row, row, C), input_precision=PRECISION
            )
            if passed is not None:
                store_block(passed + own * C * C, passed_tile, row, row, C)
        if g is not None:
            score += _gate_sums(g, before, after, token, end, head, HEADS, own, C)
        store_block(logits + own * C * C, tl.where(until, score, float("-inf")), row, row, C)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            queries = tokens_fp32(q, token, end, head, HEADS, column, WIDTH) * scale
            if w is not None:
                rows = load_block(u + own_kv * C * K, row, column, K)
                # q̃ = s·Q − passed·U
                queries -= tl.dot(passed_tile, rows, input_precision=PRECISION)
            store_block(query + own * C * K, queries * LOG2E, row, column, K)


# The arguments, sizes and buffers of a call, and the prepared blocks that its forward and backward read.

STRETCH = 512
"""Tokens of a stretch: in the backward a key has copies at the blocks of its own stretch, and at later stretches."""


class Inputs(NamedTuple):
    """The arguments of `kernels.path_attention`, tensors contiguous.

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], w [B, T, Hkv, K] and beta [B, T, Hkv] or None, g [B, T, H] or
    None;
    scale, a number; cu_seqlens [N+1] or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    w: Tensor | None
    beta: Tensor | None
    g: Tensor | None
    scale: float
    cu_seqlens: Tensor | None


class Tables(NamedTuple):
    """The layout of N sequences in chunks, integers on the device of q.

    cu         [N+1], bounds of sequences
    table      [M, 2], the sequence (−1: none) and the number in it of every block of C tokens
    firsts     [N+1], the first block of every sequence, for gradients; else None
    stretches  like table, of stretches; None where no sequence can have two, and without gradients
    """

    cu: Tensor
    table: Tensor
    firsts: Tensor | None
    stretches: Tensor | None


class Shapes:
    """Sizes of a call that all kernels share, and its layout: M blocks of C tokens, widths padded to K and V."""

    def __init__(self, x: Inputs, tables: Tables | None = None, *, for_gradients: bool = True) -> None:
        q, k, v = x.q, x.k, x.v
        self.heads, self.kv_heads, self.width, self.values = q.shape[2], k.shape[2], k.shape[3], v.shape[3]
        self.group = self.heads // self.kv_heads
        self.K, self.V = (padded(x) for x in (self.width, self.values))
        self.C = 128 if self.K > 64 and q.dtype != torch.float32 else 64
        self.stretch = max(1, STRETCH // self.C) * self.C
        self.tables = tables or self._tables(q, x.cu_seqlens, for_gradients)
        self.cu, self.table, self.firsts, self.stretches = self.tables
        self.blocks, self.tokens = len(self.table), q.shape[0] * q.shape[1]
        self.dtype = q.dtype

    def _tables(self, q: Tensor, cu_seqlens: Tensor | None, for_gradients: bool) -> Tables:
        table, firsts = chunk_tables(q, cu_seqlens, self.C)
        far = for_gradients and q.shape[1] > self.stretch
        stretches = chunk_table(q, cu_seqlens, self.stretch) if far else None
        return Tables(boundaries(q, cu_seqlens), table, firsts if for_gradients else None, stretches)

    @property
    def preparing(self) -> dict:
        """Options of the kernels that prepare blocks."""
        exact = self.dtype == torch.float32
        return {
            "C": self.C,
            "K": self.K,
            "BK": min(self.K, 64),
            "PRECISION": "ieee" if exact else "tf32",
            "num_warps": self.C // 16,
            "num_stages": 1,
        }

    @property
    def room(self) -> dict[str, int]:
        """Options of kernels that go through turns in a loop: 256 channels of one fill half of the shared memory."""
        return {"num_warps": 8, "num_stages": 1} if self.K > 128 else {}

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Uninitialised numbers [M, …], fp32 by default."""
        return torch.empty(self.blocks, *shape, dtype=dtype, device=self.table.device)


class Prepared:
    """The results of the kernels `compact`, `turn` and `inner`, by the names of their section."""

    def __init__(self, shapes: Shapes, x: Inputs, *, for_gradients: bool) -> None:
        s, options, w = shapes, shapes.preparing, x.w
        turning = w is not None
        square = (s.kv_heads, s.C, s.C)
        self.inverse = s.empty(*square) if turning else None
        self.skipped = s.empty(*square) if turning else None
        self.u = s.empty(s.kv_heads, s.C, s.K) if turning else None
        self.turns = s.empty(s.kv_heads, s.K, s.K, dtype=s.dtype) if turning else None
        self.key = s.empty(s.kv_heads, s.C, s.K, dtype=s.dtype)
        self.query = s.empty(s.heads, s.C, s.K, dtype=s.dtype)
        self.logits = s.empty(s.heads, s.C, s.C)
        self.passed = s.empty(s.heads, s.C, s.C) if turning and for_gradients else None
        self.before, self.after = (s.empty(s.heads, s.C) if x.g is not None else None for _ in range(2))
        solving = "ieee" if s.dtype == torch.float32 else "tf32x3"
        compact[(s.blocks, s.kv_heads)](
            x.k, w, x.beta, self.inverse, self.skipped, self.u, self.key, s.table, s.cu, s.kv_heads, s.width,
            **options, SOLVING=solving,
        )  # fmt: skip
        if turning:
            turn[(s.blocks, s.kv_heads, (s.K // options["BK"]) ** 2)](
                self.u, w, self.turns, s.table, s.cu, s.kv_heads, s.width, **options
            )
        inner[(s.blocks, s.heads)](
            x.q, x.k, w, x.g, self.skipped, self.u, self.query, self.logits, self.passed, self.before, self.after,
            s.table, s.cu, x.scale, s.heads, s.group, s.width, **options,
        )  # fmt: skip


# The softmax over blocks of keys, from the query's own block back to the first, with the queries carried along.
#
# A program has C / SPLIT queries of one block and head. In their own block the logits are ready. They are scored with
# the keys of an earlier block, which are transformed to its end, and then go through the block: q ← q − q·Dᵀ, which
# costs K² a query and block, where scores cost C·(K + V). The sum of gates runs on across blocks, outside the scale,
# in fp32. All of them carry a factor log₂ e, so that weights are powers of two.


@triton.jit
def _absorb(score, values, total, top, weight):
    """Add a tile of keys to the running softmax: total = Σ 2^(a − m)·v, top = m = max a, weight = Σ 2^(a − m)."""
    largest = tl.maximum(top, tl.max(score, 1))
    shrink, p = tl.exp2(top - largest), tl.exp2(score - largest[:, None])
    total = total * shrink[:, None] + tl.dot(p.to(values.dtype), values, input_precision="ieee")
    return total, largest, weight * shrink + tl.sum(p, 1)


@triton.jit
def _attend(
    query, key, v, turns, logits, before, after, out, lse, table, cu, HEADS, GROUP, VALUES,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, SPLIT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Attention of the queries of one block and head.

    in      query [M, HEADS, C, K], key [M, KV_HEADS, C, K], turns [M, KV_HEADS, K, K], logits [M, HEADS, C, C],
            before, after [M, HEADS, C], as `inner` makes them; v [T, KV_HEADS, VALUES]
    out     out [T, HEADS, VALUES], lse [T, HEADS]
    layout  table, cu of chunks of C tokens
    """
    block, part = (tl.program_id(0) // SPLIT).to(tl.int64), tl.program_id(0) % SPLIT
    head, KV_HEADS = tl.program_id(1), HEADS // GROUP
    kv = head // GROUP
    sequence, _, end, first = chunk_bounds(table, cu, block, C)
    if sequence >= 0:
        row = part * (C // SPLIT) + tl.arange(0, C // SPLIT)
        k_column, v_column = tl.arange(0, K), tl.arange(0, V)
        own = block * HEADS + head
        total = tl.zeros((C // SPLIT, V), tl.float32)
        top = tl.full((C // SPLIT,), float("-inf"), tl.float32)
        weight = tl.zeros((C // SPLIT,), tl.float32)
        for start in range(0, (part + 1) * (C // SPLIT), BC):
            column = start + tl.arange(0, BC)
            # inside the block: a_ij is ready, −∞ where j > i
            score = load_block(logits + own * C * C, row, column, C) * LOG2E
            values = load_head_rows(v, first + column, end, kv, KV_HEADS, v_column, VALUES)
            total, top, weight = _absorb(score, values, total, top, weight)
        # q̃_i = log₂ e·scale·H_first·…·H_i·q_i at the start of the block, and log₂ e·Σ_{s=first..i} g_s
        q_turned = load_block(query + own * C * K, row, k_column, K).to(tl.float32)
        gate_sum = tl.zeros((C // SPLIT,), tl.float32)
        if before is not None:
            gate_sum += tl.load(before + own * C + row)
        number = tl.load(table + block * 2 + 1)
        for back in range(1, number + 1):
            # the blocks before, from the last to the first
            other = block - back
            for start in range(0, C, BC):
                column = start + tl.arange(0, BC)
                keys = load_block(key + (other * KV_HEADS + kv) * C * K, column, k_column, K)
                # a_ij = q̃_i·k̃_j + Σ_{s=j+1..i} g_s
                score = tl.dot(q_turned.to(keys.dtype), tl.trans(keys), input_precision="ieee")
                if after is not None:
                    score += gate_sum[:, None] + tl.load(after + (other * HEADS + head) * C + column)[None]
                token = first - back * C + column
                values = load_head_rows(v, token, end, kv, KV_HEADS, v_column, VALUES)
                total, top, weight = _absorb(score, values, total, top, weight)
            if turns is not None:
                # through the block: q̃ ← H_first·…·H_last·q̃ = q̃ − D·q̃
                q_turned = minus_turned(q_turned, turns + (other * KV_HEADS + kv) * K * K, K, True)
            if before is not None:
                # and the sum of its gates
                gate_sum += tl.load(before + (other * HEADS + head) * C + C - 1)
        # o_i = total_i / weight_i,   lse_i = ln 2·(m_i + log₂ weight_i)
        store_head_rows(out, total / weight[:, None], first + row, end, head, HEADS, v_column, VALUES)
        at = (first + row) * HEADS + head
        tl.store(lse + at, (top + tl.log2(weight)) * LN2, mask=first + row < end)


attend = Tuned(
    _attend,
    [
        triton.Config({"SPLIT": split, "BC": columns}, num_warps=warps, num_stages=stages)
        for split, columns, warps, stages in (
            (1, 64, 8, 2), (1, 64, 4, 2), (1, 64, 4, 1), (1, 32, 4, 3), (1, 32, 8, 2), (2, 64, 4, 2), (2, 32, 4, 2),
            (2, 64, 4, 1), (2, 32, 4, 1),
        )
    ],
    ["C", "K", "V", "GROUP"],
)  # fmt: skip


# Keys and gates carried through later units of their path, for the backward (triton_backward.py explains the scales).
#
# HEADS of `carry` are KV heads, those of `carry_gates` query heads. K: the padded width of keys; SPLIT: programs that
# divide the rows of a unit.


@triton.jit
def carry(
    key, turns, copies, far_key, table, cu, span, HEADS,
    C: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, NEAR: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Carry the keys of a unit to the start of every later one that they reach.

    in   key [M, HEADS, C, K] at the end of their unit, turns [M, HEADS, K, K]
    out  copies [M, HEADS, UNITS·C, K]; far_key [·, HEADS, UNITS·C, K] at the end of a block's stretch, where another
         stretch follows
    """
    _, begin, end, own, number, start, stop = unit_of(
        table, cu, tl.program_id(0) // SPLIT, span, C, UNITS, NEAR
    )
    head, k_column = tl.program_id(1), tl.arange(0, K)
    line = tl.program_id(0) % SPLIT * (C // SPLIT) + tl.arange(0, C // SPLIT)
    row = ((number - start) * C).to(tl.int32) + line
    follows = (number >= 0) & (begin + (start + UNITS) * C < end)
    # far: those of the span's stretches that another follows
    reaches = (number + 1 < stop) | (NEAR & follows)
    if (number >= start) & (number >= 0) & (number < start + UNITS) & reaches:
        k_turned = load_block(key + (own * HEADS + head) * C * K, line, k_column, K).to(tl.float32)
        for later in range(1, stop - number):
            at = (own + later) * HEADS + head
            # k̃_j at the start of the unit
            store_block(copies + at * UNITS * C * K, k_turned, row, k_column, K)
            if turns is not None:
                # through the unit: k̃ ← k̃ − k̃·D
                k_turned = minus_turned(k_turned, turns + at * K * K, K, False)
        if far_key is not None:
            at = (begin + start * C) // (UNITS * C) * HEADS + head
            place = far_key + at * UNITS * C * K + row[:, None] * K + k_column[None]
            tl.store(place, k_turned.to(far_key.dtype.element_ty), mask=follows & (row >= 0)[:, None])


@triton.jit
def carry_gates(before, after, sums, table, cu, span, HEADS, C: tl.constexpr, UNITS: tl.constexpr):
    """Sum gates from the tokens of a span's stretches to the start of every later one.

    in   before, after [M, HEADS, C]
    out  sums [M, HEADS, UNITS·C]
    """
    _, _, _, own, number, start, stop = unit_of(table, cu, tl.program_id(0), span, C, UNITS, False)
    head, row = tl.program_id(1), tl.arange(0, C)
    if (number >= start) & (number >= 0) & (number < start + UNITS) & (number + 1 < stop):
        gate_sum = tl.load(after + (own * HEADS + head) * C + row)
        for later in range(1, stop - number):
            at = (own + later) * HEADS + head
            # Σ_{s=j+1..last} g_s of the stretches before
            tl.store(sums + (at * UNITS + number - start) * C + row, gate_sum)
            gate_sum += tl.load(before + at * C + C - 1)


# Products of the paths of a stretch's blocks, and the gradients of paths (triton_backward.py explains the scales).
#
#     P_b = Π_{c<b} (I − D_c) over the blocks c of the stretch before b,   stored as E_b = I − P_b
#     the stretch's own turn: D = E behind its last block
#
# Buffers of stretches are in the order of their first tokens, [⌈T/STRETCH⌉, heads, ...], with STRETCH = UNITS·C.


@triton.jit
def _blocks_of(stretches, firsts, cu, C: tl.constexpr, UNITS: tl.constexpr):
    """The program's stretch: its number, its place in buffers, its first block, how many it has, does one follow."""
    row = tl.program_id(0)
    sequence, _, end, first = chunk_bounds(stretches, cu, row, UNITS * C)
    number = tl.load(stretches + row * 2 + 1)
    block = tl.load(firsts + tl.maximum(sequence, 0)).to(tl.int64) + number * UNITS
    count = tl.minimum(tl.cdiv(end - first, C), UNITS)
    return number, first // (UNITS * C), block, count, first + UNITS * C < end


@triton.jit
def products(
    turns, prefix, far_turns, stretches, firsts, cu, HEADS,
    C: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """E of every block of the stretches that have one before them, BR rows a program; HEADS: KV heads.

    in   turns [M, HEADS, K, K]
    out  prefix [M, HEADS, K, K]; far_turns [·, HEADS, K, K]
    """
    number, place, block, count, _ = _blocks_of(stretches, firsts, cu, C, UNITS)
    head, row, column = tl.program_id(1), tl.program_id(2) * BR + tl.arange(0, BR), tl.arange(0, K)
    if number > 0:
        unit = tl.where(row[:, None] == column[None], 1.0, 0.0)
        product = unit
        for own in range(block, block + count):
            at = (own * HEADS + head) * K * K
            # P_{b+1} = P_b − P_b·D_b
            store_block(prefix + at, unit - product, row, column, K)
            product = minus_turned(product, turns + at, K, False)
        store_block(far_turns + (place * HEADS + head) * K * K, unit - product, row, column, K)


@triton.jit
def products_back(
    turns, query, far_dquery, far_dturns, dprefix, stretches, firsts, cu, SLOT, SLOT_KV, HEADS, GROUP,
    C: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, BR: tl.constexpr, SPANNED: tl.constexpr,
):  # fmt: skip
    """Back through `products`: the gradient of the product behind every block, BR rows a program.

    in   turns, query; far_dquery [2, ·, HEADS, STRETCH, K], far_dturns [2, ·, KV_HEADS, K, K] in the slot of the last
         span, SPANNED stretches of which are in one
    out  dprefix [M, KV_HEADS, K, K]
    """
    number, place, block, count, follows = _blocks_of(stretches, firsts, cu, C, UNITS)
    kv, KV_HEADS = tl.program_id(1), HEADS // GROUP
    row, column, line = tl.program_id(2) * BR + tl.arange(0, BR), tl.arange(0, K), tl.arange(0, C)
    if number > 0:
        slot = last_slot(number, SPANNED)
        total = tl.zeros((BR, K), tl.float32)
        if follows:
            # D = I − P behind the last block
            total -= load_block(far_dturns + (slot * SLOT_KV + place * KV_HEADS + kv) * K * K, row, column, K)
        for back in range(1, count + 1):
            own = block + count - back
            at = (own * KV_HEADS + kv) * K * K
            store_block(dprefix + at, total, row, column, K)
            # dP_b = dP_{b+1}·(I − D_b)ᵀ + Σ dqᵀ·q̃, dq at the start of the stretch
            total = minus_turned(total, turns + at, K, True)
            for head in range(kv * GROUP, (kv + 1) * GROUP):
                queries = load_block(query + (own * HEADS + head) * C * K, line, column, K)
                far = far_dquery + (slot * SLOT + place * HEADS + head) * UNITS * C * K
                dq = load_block(far + (count - back) * C * K, line, row, K).to(queries.dtype)
                total += tl.dot(tl.trans(dq), queries, input_precision="ieee")


@triton.jit
def last_slot(number, SPANNED: tl.constexpr):
    """The slot, 0 or 1 (int64), that the last span wrote for the stretch of this number, a scalar of at least 1."""
    return ((number - 1) // SPANNED % 2).to(tl.int64)


@triton.jit
def _turn_gradients(
    copies, dcopies, prefix, dprefix, dturns, table, cu, span, SLOT, HEADS,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, UNITS: tl.constexpr, NEAR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradients of the turns of all units; a tile [BK, BK] a program.

    in   copies and dcopies [M, HEADS, UNITS·C, K], near prefix and dprefix [M, HEADS, K, K]; HEADS: KV heads
    out  dturns [M, HEADS, K, K]; far [2, ·, HEADS, K, K], read from one slot, written to the other
    """
    sequence, _, _, unit, number, start, _ = unit_of(table, cu, tl.program_id(0), span, C, UNITS, NEAR)
    own = unit * HEADS + tl.program_id(1)
    ahead = tl.minimum(number - start, UNITS)
    if (sequence >= 0) & (NEAR | (ahead > 0)):
        above = tl.program_id(2) // (K // BK) * BK + tl.arange(0, BK)
        column = tl.program_id(2) % (K // BK) * BK + tl.arange(0, BK)
        total = tl.zeros((BK, BK), tl.float32)
        for step in range(0, (ahead * C).to(tl.int32), BC):
            row = step + tl.arange(0, BC)
            # dD = −Σ_j k̃_j(before the unit) ⊗ dk̃_j(after it)
            keys = load_block(copies + own * UNITS * C * K, row, above, K)
            after = load_block(dcopies + own * UNITS * C * K, row, column, K)
            total -= tl.dot(tl.trans(keys), after, input_precision="ieee")
        if NEAR:
            if dprefix is not None:
                # dD_b = −P_bᵀ·dP_{b+1},   P_b = I − E_b, where the stretch has one before it
                whole = load_block(dprefix + own * K * K, above, column, K)
                total -= tl.where(start > 0, whole, 0.0)
                for row_start in range(tl.where(start > 0, 0, K), K, BK):
                    row = row_start + tl.arange(0, BK)
                    turned = load_block(prefix + own * K * K, row, above, K)
                    after = load_block(dprefix + own * K * K, row, column, K)
                    total += tl.dot(tl.trans(turned), after, input_precision="ieee")
            store_block(dturns + own * K * K, total * LN2, above, column, K)
        else:
            if span > 0:
                total += load_block(dturns + ((span + 1) % 2 * SLOT + own) * K * K, above, column, K)
            store_block(dturns + (span % 2 * SLOT + own) * K * K, total, above, column, K)


turn_gradients = Tuned(
    _turn_gradients,
    [
        triton.Config({"BC": rows}, num_warps=4, num_stages=stages)
        for rows, stages in ((64, 3), (32, 4), (64, 2), (32, 2))
    ],
    ["C", "K", "BK"],
)
