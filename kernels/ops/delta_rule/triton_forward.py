"""Kernels of the chunked delta rule's forward pass: all chunks prepared at once, then the recurrence of states.

Let G_i be the sum of a chunk's gates up to token i, and S₀ the state that the chunk starts from.

    K̄ = exp(G)⊙K        Q̄ = exp(G)⊙Q        K̃ = exp(G_last − G)⊙K

    P_ij = Σ_c q_ic·k_jc·exp(Σ_{j<l≤i} g_lc) for j ≤ i        A_ij = likewise with k_i, for j < i
    Z = (I + A·Diag(β))⁻¹·A             zero on and above the diagonal
    W = (I − Z·Diag(β))·K̄              U = (I − Z·Diag(β))·V
    E = U − W·S₀                        the errors that the tokens correct
    S = exp(G_last)⊙S₀ + K̃ᵀ·Diag(β)·E  one chunk after another
    o = scale·(Q̄·S₀ + P·Diag(β)·E)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_common import ChunkLayout, chunk_bounds, padded
from kernels.triton_common.tiles import (
    load_head_rows,
    load_head_scalars,
    load_matrix,
    store_head_rows,
    store_head_scalars,
    store_matrix,
)
from kernels.triton_common.tuning import Tuned

# Tuples of the tensors that the steps pass on; the order of the steps is in triton_ops.py.


class Inputs(NamedTuple):
    """The contiguous inputs of a call.

    q, k  [B, T, HQ, K], [B, T, HK, K]; v [B, T, HV, V]; beta [B, T, H]: H is a multiple of HQ, HK and HV
    g     [B, T, H], one gate for all channels of a head, or [B, T, H, K]
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

    @property
    def heads(self) -> int:
        """The number of heads of g and beta, H."""
        return self.beta.shape[2]

    @property
    def shared(self) -> bool:
        """True where the channels of a head share one gate."""
        return self.g.dim() == 3

    @property
    def head_counts(self) -> tuple[int, int, int, int]:
        """The numbers of heads H, HQ, HK, HV."""
        return self.heads, self.q.shape[2], self.k.shape[2], self.v.shape[2]

    @property
    def widths(self) -> dict[str, int]:
        """K and V by name, as kernels take them."""
        return {"K": self.q.shape[3], "V": self.v.shape[3]}


class ChunkOperands(NamedTuple):
    """The operands of the inter-chunk recurrence, in the products' dtype, decays in fp32.

    queries, keys       Q̄ and K̃ [B·T, H, K]; where a head's channels share one gate, q and k as they are given, and
    from_start, to_end  exp(G) and exp(G_last − G) [B·T, H], else None
    reads, values       W [B·T, H, K] and U [B·T, H, V]
    whole               exp(G_last), the decay of a whole chunk: [chunks, H, K or 1]
    """

    queries: Tensor
    keys: Tensor
    from_start: Tensor | None
    to_end: Tensor | None
    reads: Tensor
    values: Tensor
    whole: Tensor

    @property
    def widths(self) -> dict[str, int]:
        """K and V by name, as kernels take them."""
        return {"K": self.reads.shape[-1], "V": self.values.shape[-1]}

    @property
    def groups(self) -> dict[str, int]:
        """The number of heads for one of queries, GQ, and of keys, GK, by name, as kernels take them."""
        heads = self.reads.shape[2]
        return {"GQ": heads // self.queries.shape[2], "GK": heads // self.keys.shape[2]}

    @property
    def shared(self) -> bool:
        """True where the channels of a head share one gate."""
        return self.from_start is not None


class ChunkStates(NamedTuple):
    """S₀ [chunks, H, K, V], the states that chunks start from, and E [B·T, H, V]; in the inputs' dtype."""

    states: Tensor
    errors: Tensor


class StateGradients(NamedTuple):
    """dS [chunks, H, K, V] of the states after chunks, and dF [B·T, H, V]; in the inputs' dtype."""

    d_states: Tensor
    d_writes: Tensor


class ValueGradients(NamedTuple):
    """dV [B, T, H, V] of every head, dβ [B, T, H], and dP, dA [B·T, H, C]."""

    d_v: Tensor
    d_beta: Tensor
    d_p: Tensor
    d_a: Tensor


# Gradients of inputs that several heads share: one of every head first, then their sum.


@triton.jit
def _sum_heads(parts, total, TOKENS, WIDTH, GROUP: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    """total [TOKENS, WIDTH] = Σ over the heads of a group, parts [TOKENS, GROUP, WIDTH]."""
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    column = tl.program_id(1) * BD + tl.arange(0, BD)
    added = tl.zeros((BT, BD), tl.float32)
    for member in range(GROUP):
        added += load_head_rows(parts, token, TOKENS, member, GROUP, column, WIDTH).to(tl.float32)
    store_head_rows(total, added, token, TOKENS, 0, 1, column, WIDTH)


def empty_for_heads(x: Tensor, heads: int) -> Tensor:
    """Allocate the gradient of x [B, T, Hx, D] of every head: x's dtype, or fp32 where heads are yet to be summed."""
    dtype = x.dtype if x.shape[2] == heads else torch.float32
    return torch.empty(*x.shape[:2], heads, x.shape[3], dtype=dtype, device=x.device)


def sum_heads(parts: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of x [B, T, Hx, D]: parts [B, T, H, D] summed over the heads that share one of x's."""
    if parts.shape == x.shape:
        return parts
    total, (batch, time, heads, width) = torch.empty_like(x), x.shape
    rows = batch * time * heads
    _sum_heads[(triton.cdiv(rows, 32), triton.cdiv(width, 64))](
        parts, total, rows, width, GROUP=parts.shape[2] // heads, BT=32, BD=64
    )
    return total


# Device functions: gates of a chunk, and the decays between its tokens.
#
# Everywhere: a chunk has C tokens of one sequence, `token` [C] are their places, counted from where the pointers are,
# and `last` is where the chunk or its sequence ends. Rows beyond it read as zero, gates too, so that they leave the
# state alone.
#
# Gates are a tile [C, W] of W channels, or [C] where a head's channels share one (SHARED). Decays are exponentials of
# sums of gates, never of differences of sums: nothing overflows, and a gate of −30 costs its neighbours no digits.
# Sums over the tokens of a tile are products with matrices of zeros and ones: scans would pass every number through
# shuffles between threads, five times for 32 tokens, and keep the tensor cores waiting.

CHUNK = 64
"""Tokens a chunk: the height of the tensor cores' products, and of the triangle that is inverted."""

BLOCK = tl.constexpr(16)
"""The least side of a tensor core's product."""

LEAST_GATE = tl.constexpr(-100.0)
"""exp of it is a denormal at most, or 0; smaller gates, −∞ among them, are taken for it."""


GATE_UNITS = tl.constexpr(512.0)
"""A gate in units of 1/512 fits fp16: −100 does, and what is left over is at most 6e-11."""

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def decay_of(sums):
    """exp of sums of gates [...], elementwise, in fp32.

    By exp2, which takes a GPU two instructions: exp has three more to keep denormals.
    """
    return tl.exp2(sums * LOG2E)


@triton.jit
def from_token(x, first, HEADS, WIDTH):
    """Pointer to the row of token `first` in x [tokens, HEADS, WIDTH]: from there 32 bits hold a chunk's places."""
    return x + first * HEADS * WIDTH


@triton.jit
def load_gates(g, token, last, head, HEADS, column, K):
    """Gate tile [C, W] in fp32."""
    gate = load_head_rows(g, token, last, head, HEADS, column, K)
    return tl.maximum(gate.to(tl.float32), LEAST_GATE, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def load_shared_gates(g, token, last, head, HEADS):
    """Gates [C] in fp32, that a head's channels share."""
    gate = load_head_scalars(g, token, last, head, HEADS)
    return tl.maximum(gate, LEAST_GATE, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def shared_decays(g, token, last, head, HEADS):
    """exp(G_i) from the chunk's first token to each, and exp(G_last − G_i) = exp(Σ_{l>i} g_l) on to its last, both [C],
    and exp(G_last) [1], of gates that a head's channels share."""
    gate = load_shared_gates(g, token, last, head, HEADS)
    later = load_shared_gates(g, token + 1, last, head, HEADS)
    whole = tl.sum(gate[None], axis=1)
    return decay_of(tl.cumsum(gate)), decay_of(tl.cumsum(later, reverse=True)), decay_of(whole)


@triton.jit
def sum_gates(which, gates, dtype: tl.constexpr):
    """Σ_l which_il·g_l [C, W] in fp32, of a mask [C, C] and a gate tile that is stored in `dtype`.

    Gates of 16 bits are multiplied as they are, fp32 ones as two parts in fp16, which hold 22 bits of each.
    """
    if dtype == tl.float32:
        ones = which.to(tl.float16)
        scaled = gates * GATE_UNITS
        high = scaled.to(tl.float16)
        low = (scaled - high.to(tl.float32)).to(tl.float16)
        sums = tl.dot(ones, high, tl.dot(ones, low)) * (1 / GATE_UNITS)
    else:
        sums = tl.dot(which.to(dtype), gates.to(dtype))
    return sums


@triton.jit
def sum_tokens(which, x):
    """Σ_l which_il·x_l [R, W] of a mask [R, L] and any x [L, W], in fp32: x as two parts in TF32, 22 bits of each."""
    ones = which.to(tl.float32)
    high = (x.to(tl.int32, bitcast=True) & -(2**13)).to(tl.float32, bitcast=True)
    return tl.dot(ones, high, tl.dot(ones, x - high, input_precision="tf32"), input_precision="tf32")


@triton.jit
def gate_gradient(up_to, before, always, C: tl.constexpr, SHARED: tl.constexpr):
    """Σ_{i≥l} up_to_i + Σ_{j<l} before_j + always_l [C, W], or [C], summed over columns where they share a gate.

    Never as a sum up to this token less the token itself: a small sum would be lost to a large term.
    """
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None]
    if SHARED:
        total = tl.sum(always, axis=1) + tl.cumsum(tl.sum(up_to, axis=1), axis=0, reverse=True)
        total += tl.sum(tl.where(column < row, tl.sum(before, axis=1)[None], 0.0), axis=1)
    else:
        total = always + sum_tokens(column >= row, up_to)
        total += sum_tokens(column < row, before)
    return total


@triton.jit
def decay_from_start(g, dtype: tl.constexpr, C: tl.constexpr):
    """exp(G_i) [C, W] or [C] of gates g, G_i = Σ_{l≤i} g_l: from the chunk's first token, gate included, to each."""
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None]
    return decay_of(sum_gates(column <= row, g, dtype))


@triton.jit
def decay_to_end(g, dtype: tl.constexpr, C: tl.constexpr):
    """exp(G_last − G_i) [C, W] or [C] of gates g, as exp(Σ_{l>i} g_l): from each token to the chunk's last.

    A token's own gate is excluded.
    """
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None]
    return decay_of(sum_gates(column > row, g, dtype))


@triton.jit
def decay_between(gate, C: tl.constexpr):
    """exp(Σ_{j<l≤i} g_l) [C, C] of gates [C] that a head's channels share; 0 for j > i."""
    i = tl.arange(0, C)[:, None]
    j = tl.arange(0, C)[None]
    return tl.where(i >= j, decay_of(tl.cumsum(tl.where(i > j, gate[:, None], 0.0), axis=0)), 0.0)


@triton.jit
def decay_to_middle(g, dtype: tl.constexpr, HALF: tl.constexpr, C: tl.constexpr):
    """In blocks of 2·HALF tokens, the decay between a token and its block's middle, [C, W].

    For tokens i > j of two halves of a block, exp(g_{j+1} + … + g_i) is the product of the entries of
    row i and row j: the sums from the middle up to i, i's gate included, and from j, its gate excluded, up to the
    middle.
    """
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None]
    towards = tl.where(row % (2 * HALF) >= HALF, column <= row, column > row)
    return decay_of(sum_gates(towards & (row // HALF == column // HALF), g, dtype))


@triton.jit
def across_middle(i, j, HALF: tl.constexpr):
    """True where row i lies in the right and column j in the left half of one block of 2·HALF tokens.

    i, j: integer tiles that broadcast, such as [C, 1] and [1, C] for [C, C].
    """
    return (i // (2 * HALF) == j // (2 * HALF)) & (i % (2 * HALF) >= HALF) & (j % (2 * HALF) < HALF)


@triton.jit
def _on_diagonal(C: tl.constexpr):
    """True on the diagonal blocks of a chunk's pairs [C/16, 16, C/16, 16]."""
    block = tl.arange(0, C // BLOCK)
    return block[:, None, None, None] == block[None, None, :, None]


@triton.jit
def diagonal_blocks(x, C: tl.constexpr):
    """The 16×16 blocks on the diagonal of x [C, C], [C/16, 16, 16]."""
    split = tl.reshape(x, (C // BLOCK, BLOCK, C // BLOCK, BLOCK))
    return tl.sum(tl.where(_on_diagonal(C), split, 0.0), axis=2)


@triton.jit
def spread_blocks(blocks, C: tl.constexpr):
    """[C, C] with these blocks [C/16, 16, 16] on its diagonal, and zeros."""
    return tl.reshape(tl.where(_on_diagonal(C), blocks[:, :, None, :], 0.0), (C, C))


@triton.jit
def block_places(head, H, C: tl.constexpr):
    """Places of the 16×16 blocks on the diagonal, [C/16, 16, 16], in a chunk's products [C, H, C]; their rows."""
    block = tl.arange(0, C // BLOCK)[:, None, None] * BLOCK
    row = block + tl.arange(0, BLOCK)[None, :, None]
    return (row * H + head) * C + block + tl.arange(0, BLOCK)[None, None, :], row


@triton.jit
def head_state(states, row, head, H, K, V):
    """Pointer to the state [K, V] of one row and head in states [rows, H, K, V]."""
    return states + (row * H + head) * K * V


# P and A, the decayed products of a chunk's tokens.
#
# Where every channel has its own gate, these are no matrix products. But between the right and the left half of a
# chunk the decay is the product of two factors ≤ 1, to and from the middle, and so it is within each half: log2(C)
# levels of products together hold every pair once. Levels below 16 tokens are products of 16×16 blocks on the
# diagonal.
#
# Both functions take
#
#     inputs     q, k [tokens, HQ or HK, K]; g [tokens, H] or [tokens, H, K]
#     place      token [C] and last, of a chunk; head
#     sizes      H, HQ, HK heads
#     constants  dtype of products; K key width; C tokens a chunk; BK columns a tile
#
# and return, in fp32, P [C, C], A's 16×16 blocks on the diagonal [C/16, 16, 16], and a [C, C] that has A outside of
# them.


@triton.jit
def products_shared(
    q,
    k,
    g,
    token,
    last,
    head,
    H,
    HQ,
    HK,
    dtype: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr,
):
    """P [C, C] and both parts of A under gates that a head's channels share; arguments and results: see above."""
    product = tl.zeros((C, C), tl.float32)
    overlap = tl.zeros((C, C), tl.float32)
    # q_i·k_j and k_i·k_j
    for start in range(0, K, BK):
        column = start + tl.arange(0, BK)
        keys = load_head_rows(k, token, last, head // (H // HK), HK, column, K).to(dtype)
        queries = load_head_rows(q, token, last, head // (H // HQ), HQ, column, K).to(dtype)
        product += tl.dot(queries, tl.trans(keys), input_precision="ieee")
        overlap += tl.dot(keys, tl.trans(keys), input_precision="ieee")
    column = tl.arange(0, C)
    # exp(Σ_{j<l≤i} g_l)
    between = decay_between(load_shared_gates(g, token, last, head, H), C)
    # P_ij = q_i·k_j·exp(Σ_{j<l≤i} g_l) for j ≤ i
    product *= between
    # A_ij = k_i·k_j·exp(Σ_{j<l≤i} g_l) for j < i
    overlap = tl.where(column[:, None] > column[None], overlap * between, 0.0)
    return product, diagonal_blocks(overlap, C), overlap


@triton.jit
def products_channels(
    q,
    k,
    g,
    token,
    last,
    head,
    H,
    HQ,
    HK,
    dtype: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr,
):
    """P [C, C] and both parts of A under a gate for every channel; arguments and results: see above."""
    place = tl.arange(0, C)
    gate_type: tl.constexpr = g.dtype.element_ty
    far_p, far_a = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
    near_p = tl.zeros((C // BLOCK, BLOCK, BLOCK), tl.float32)
    near_a = tl.zeros((C // BLOCK, BLOCK, BLOCK), tl.float32)
    same = tl.zeros((C,), tl.float32)
    row = tl.arange(0, BLOCK)[None, :, None]
    col = tl.arange(0, BLOCK)[None, None, :]
    for start in range(0, K, BK):
        column = start + tl.arange(0, BK)
        keys = load_head_rows(k, token, last, head // (H // HK), HK, column, K).to(tl.float32)
        queries = load_head_rows(q, token, last, head // (H // HQ), HQ, column, K).to(tl.float32)
        gates = load_gates(g, token, last, head, H, column, K)
        # P_ii = q_i·k_i
        same += tl.sum(queries * keys, axis=1)
        # i > j of two halves of 1 … 8 tokens: decay_i = exp(g_{m+1} + … + g_i) from their middle m on, and
        # decay_j = exp(g_{j+1} + … + g_m) up to it;
        # P_ij = (q_i⊙decay_i)·(k_j⊙decay_j),  A_ij = (k_i⊙decay_i)·(k_j⊙decay_j)
        for level in tl.static_range(4):
            decay = decay_to_middle(gates, gate_type, 2**level, C)
            left = tl.reshape((keys * decay).to(dtype), (C // BLOCK, BLOCK, BK))
            right = tl.reshape((queries * decay).to(dtype), (C // BLOCK, BLOCK, BK))
            meet = across_middle(row, col, 2**level)
            transposed = tl.permute(left, (0, 2, 1))
            near_p += tl.where(meet, tl.dot(right, transposed, input_precision="ieee"), 0.0)
            near_a += tl.where(meet, tl.dot(left, transposed, input_precision="ieee"), 0.0)
        # likewise i and j of two halves of 16 and of 32 tokens
        for level in tl.static_range(2):
            decay = decay_to_middle(gates, gate_type, BLOCK * 2**level, C)
            left = (keys * decay).to(dtype)
            right = (queries * decay).to(dtype)
            meet = across_middle(place[:, None], place[None], BLOCK * 2**level)
            far_p += tl.where(meet, tl.dot(right, tl.trans(left), input_precision="ieee"), 0.0)
            far_a += tl.where(meet, tl.dot(left, tl.trans(left), input_precision="ieee"), 0.0)
    near_p += tl.where(row == col, tl.reshape(same, (C // BLOCK, BLOCK, 1)), 0.0)
    return far_p + spread_blocks(near_p, C), near_a, far_a


# Z, from the inverse of a chunk's triangle I + A·Diag(β), on which the errors depend.
#
#     (I + A·Diag(β))⁻¹ = I − Z·Diag(β)        (I + Diag(β)·A)⁻¹ = I − Diag(β)·Z
#
# It is built by doubling: of two neighbouring blocks on the diagonal,
# Z₂₁ = (I − Z₂₂·Diag(β₂))·A₂₁·(I − Diag(β₁)·Z₁₁). No power of A is taken, so that equal keys,
# whose powers grow like binomials, cost no digits.


@triton.jit
def _solve_block(a, left_beta, right_beta, PRECISION: tl.constexpr):
    """Z [N, 16, 16] of the blocks a of A on the diagonal; β by rows [N, 16, 1] and by columns [N, 1, 16]."""
    row = tl.arange(0, BLOCK)[None, :, None]
    col = tl.arange(0, BLOCK)[None, None, :]
    # Z₂₁ = A₂₁ of single tokens, whose Z₁₁ and Z₂₂ are 0
    z = tl.where(across_middle(row, col, 1), a, 0.0)
    for level in tl.static_range(1, 4):
        corner = tl.where(across_middle(row, col, 2**level), a, 0.0)
        # (I − Z₂₂·Diag(β₂))·A₂₁
        corner -= tl.dot(z * right_beta, corner, input_precision=PRECISION)
        # Z₂₁ = (I − Z₂₂·Diag(β₂))·A₂₁·(I − Diag(β₁)·Z₁₁)
        z += corner - tl.dot(corner, left_beta * z, input_precision=PRECISION)
    return z


@triton.jit
def invert_triangle(blocks, a, beta, PRECISION: tl.constexpr, C: tl.constexpr):
    """Z [C, C] of a chunk of 64 tokens: within blocks of 16, then pairs of blocks, then pairs of pairs.

    inputs     blocks [C/16, 16, 16] A on its diagonal; a [C, C] A outside of them; beta [C]
    constants  PRECISION of products; C tokens a chunk
    """
    left = tl.reshape(beta, (C // BLOCK, BLOCK, 1))
    right = tl.reshape(beta, (C // BLOCK, 1, BLOCK))
    z = spread_blocks(_solve_block(blocks, left, right, PRECISION), C)
    row = tl.arange(0, C)[:, None]
    col = tl.arange(0, C)[None]
    for level in tl.static_range(2):
        corner = tl.where(across_middle(row, col, BLOCK * 2**level), a, 0.0)
        # (I − Z₂₂·Diag(β₂))·A₂₁
        corner -= tl.dot(z * beta[None], corner, input_precision=PRECISION)
        # Z₂₁ = (I − Z₂₂·Diag(β₂))·A₂₁·(I − Diag(β₁)·Z₁₁)
        z += corner - tl.dot(corner, beta[:, None] * z, input_precision=PRECISION)
    return z


# W, U and the decays, the operands of the recurrence across chunks.
#
# Where a head's channels share one gate, exp(G) and exp(G_last − G) are numbers a token: these are written, and
# neither Q̄ nor K̃.


@triton.jit
def write_operands(
    q, k, v, g, weighted, queries, keys, from_start, to_end, reads, values, whole, first, last, chunk, head,
    H, HQ, HK, HV, dtype: tl.constexpr, K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, C: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """Write all of `ChunkOperands`, for one chunk and head.

    inputs     q, k, v, g as in `Inputs`, from the chunk's first token on; weighted Z·Diag(β) [C, C] in fp32
    outputs    queries, keys, from_start, to_end, reads, values, whole as in `ChunkOperands`
    place      first token of the chunk and last, counted from it; chunk, head
    sizes      H, HQ, HK, HV heads
    constants  dtype of products; K, V widths; SHARED: one gate a head; C tokens a chunk; BK columns a tile
    """
    token = tl.arange(0, C)
    reads, values = from_token(reads, first, H, K), from_token(values, first, H, V)
    # (I + A·Diag(β))⁻¹ = I − Z·Diag(β)
    inverse = tl.where(token[:, None] == token[None], 1.0, -weighted)
    if SHARED:
        # exp(G), exp(G_last − G) and exp(G_last)
        decay, to_last, all_of_it = shared_decays(g, token, last, head, H)
        store_head_scalars(from_token(from_start, first, H, 1), decay, token, last, head, H)
        store_head_scalars(from_token(to_end, first, H, 1), to_last, token, last, head, H)
        tl.store(whole + chunk * H + head + tl.arange(0, 1), all_of_it)
        # W = (I − Z·Diag(β))·Diag(exp(G))·K
        of_keys = (inverse * decay[None]).to(dtype)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            key = load_head_rows(k, token, last, head // (H // HK), HK, column, K).to(dtype)
            read = tl.dot(of_keys, key, input_precision="ieee")
            store_head_rows(reads, read, token, last, head, H, column, K)
    else:
        queries, keys = from_token(queries, first, H, K), from_token(keys, first, H, K)
        is_last = (token == C - 1)[:, None]  # or beyond the sequence's end, where gates are 0
        of_keys = inverse.to(dtype)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            gates = load_gates(g, token, last, head, H, column, K)
            decay = decay_from_start(gates, g.dtype.element_ty, C)
            # Q̄ = exp(G)⊙Q
            query = load_head_rows(q, token, last, head // (H // HQ), HQ, column, K).to(tl.float32)
            store_head_rows(queries, query * decay, token, last, head, H, column, K)
            # K̃ = exp(G_last − G)⊙K
            key = load_head_rows(k, token, last, head // (H // HK), HK, column, K).to(tl.float32)
            ends = key * decay_to_end(gates, g.dtype.element_ty, C)
            store_head_rows(keys, ends, token, last, head, H, column, K)
            # W = (I − Z·Diag(β))·K̄,  K̄ = exp(G)⊙K
            read = tl.dot(of_keys, (key * decay).to(dtype), input_precision="ieee")
            store_head_rows(reads, read, token, last, head, H, column, K)
            # exp(G_last)
            place = tl.broadcast_to((whole + (chunk * H + head) * K + column)[None], (C, BK))
            tl.store(place, decay, mask=is_last & (column < K)[None])
    # U = (I − Z·Diag(β))·V
    inverse = inverse.to(dtype)
    for start in range(0, V, BK):
        column = start + tl.arange(0, BK)
        value = load_head_rows(v, token, last, head // (H // HV), HV, column, V).to(dtype)
        seen = tl.dot(inverse, value, input_precision="ieee")
        store_head_rows(values, seen, token, last, head, H, column, V)


@triton.jit
def _operands(
    q, k, v, g, beta, z, queries, keys, from_start, to_end, reads, values, whole, table, cu, H, HQ, HK, HV,
    K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """All of `ChunkOperands`, for one chunk and head.

    inputs     q, k, v, g, beta as in `Inputs`; z Z [tokens, H, C]
    outputs    queries, keys, from_start, to_end, reads, values, whole as in `ChunkOperands`
    layout     table, cu
    sizes      H, HQ, HK, HV heads
    constants  K, V widths; SHARED: one gate a head; C tokens a chunk; BK columns a tile
    """
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        token = tl.arange(0, C)
        last = tl.minimum(end - first, C).to(tl.int32)
        q, k = from_token(q, first, HQ, K), from_token(k, first, HK, K)
        v, g = from_token(v, first, HV, V), from_token(g, first, H, 1 if SHARED else K)
        # Z·Diag(β)
        weighted = load_head_rows(from_token(z, first, H, C), token, last, head, H, token, C).to(tl.float32)
        weighted *= load_head_scalars(from_token(beta, first, H, 1), token, last, head, H)[None]
        write_operands(
            q, k, v, g, weighted, queries, keys, from_start, to_end, reads, values, whole, first, last, chunk, head,
            H, HQ, HK, HV, z.dtype.element_ty, K, V, SHARED, C, BK,
        )  # fmt: skip


_operands_tuned = Tuned(
    _operands,
    [
        triton.Config({"BK": width}, num_warps=warps, num_stages=stages)
        for width, warps, stages in ((64, 4, 2), (64, 8, 1), (32, 4, 1), (128, 8, 1))
    ],
    ["K", "V", "SHARED"],
)


def empty_operands(x: Inputs, layout: ChunkLayout, dtype: torch.dtype) -> ChunkOperands:
    """Allocate the operands of the inter-chunk recurrence but q and k themselves, in the products' dtype."""

    def empty(*shape: int, of: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=of, device=x.q.device)

    width, value_width = x.widths.values()
    if x.shared:
        scaled = x.q, x.k, empty(*x.beta.shape), empty(*x.beta.shape)
    else:
        scaled = *(empty(*x.beta.shape, width, of=dtype) for _ in range(2)), None, None
    reads, values = empty(*x.beta.shape, width, of=dtype), empty(*x.beta.shape, value_width, of=dtype)
    whole = empty(layout.chunks, x.heads, 1 if x.shared else width)
    return ChunkOperands(*scaled, reads, values, whole)


def chunk_operands(x: Inputs, z: Tensor, layout: ChunkLayout) -> ChunkOperands:
    """Compute the operands of the inter-chunk recurrence, in Z's dtype; `ChunkOperands` gives their shapes.

    z  Z [B·T, H, C], as `prepare` makes it
    """
    operands = empty_operands(x, layout, z.dtype)
    _operands_tuned[(layout.chunks, x.heads)](
        *x, z, *operands, layout.table, layout.cu, *x.head_counts, **x.widths, SHARED=x.shared, C=CHUNK
    )
    return operands


# The preparation of all chunks, P, A, Z and the operands in one kernel.
#
# A never leaves the processor; P and Z are written once, for the outputs and for the backward pass.


@triton.jit
def _prepare(
    q, k, v, g, beta, p, z, queries, keys, from_start, to_end, reads, values, whole, table, cu, H, HQ, HK, HV,
    K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr,
    BK: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """P, Z and all of `ChunkOperands`, for one chunk and head.

    inputs     q, k, v, g, beta as in `Inputs`
    outputs    p, z [tokens, H, C]; queries, keys, from_start, to_end, reads, values, whole as in `ChunkOperands`
    layout     table, cu
    sizes      H, HQ, HK, HV heads
    constants  K, V widths; SHARED: one gate a head; PRECISION of the triangle's products; C tokens a chunk;
               BK columns a tile of the products, BO of the operands
    """
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        dtype: tl.constexpr = z.dtype.element_ty
        token = tl.arange(0, C)
        last = tl.minimum(end - first, C).to(tl.int32)
        q, k = from_token(q, first, HQ, K), from_token(k, first, HK, K)
        v, g = from_token(v, first, HV, V), from_token(g, first, H, 1 if SHARED else K)
        beta, p, z = from_token(beta, first, H, 1), from_token(p, first, H, C), from_token(z, first, H, C)
        # P, A
        if SHARED:
            product, blocks, overlap = products_shared(q, k, g, token, last, head, H, HQ, HK, dtype, K, C, BK)
        else:
            product, blocks, overlap = products_channels(
                q, k, g, token, last, head, H, HQ, HK, dtype, K, C, BK
            )
        store_head_rows(p, product, token, last, head, H, token, C)
        # Z = (I + A·Diag(β))⁻¹·A
        strength = load_head_scalars(beta, token, last, head, H)
        solved = invert_triangle(blocks, overlap, strength, PRECISION, C)
        store_head_rows(z, solved, token, last, head, H, token, C)
        write_operands(
            q, k, v, g, solved * strength[None], queries, keys, from_start, to_end, reads, values, whole,
            first, last, chunk, head, H, HQ, HK, HV, dtype, K, V, SHARED, C, BO,
        )  # fmt: skip


def _tiles(*sizes: tuple[int, int, int, int]) -> list[triton.Config]:
    return [
        triton.Config({"BK": width, "BO": operand_width}, num_warps=warps, num_stages=stages)
        for width, operand_width, warps, stages in sizes
    ]


_prepare_tuned = Tuned(
    _prepare,
    _tiles((64, 64, 4, 1), (32, 32, 4, 1), (64, 32, 4, 1), (64, 64, 8, 1), (64, 64, 4, 2), (32, 64, 4, 1)),
    ["K", "V", "SHARED"],
)


def prepare(x: Inputs, layout: ChunkLayout, dtype: torch.dtype) -> tuple[Tensor, Tensor, ChunkOperands]:
    """Compute P and Z [B, T, H, CHUNK] and the operands of the inter-chunk recurrence, in `dtype`.

    Where that has 16 bits, products of the triangle are in TF32. With random or correlated keys their errors are a
    tenth of the rounding of Z; with nearly equal keys and a β near 2, where 16 bits miss the field's criterion by
    themselves, outputs lose a fifth more.
    """
    p, z = (torch.empty(*x.beta.shape, CHUNK, dtype=dtype, device=x.q.device) for _ in range(2))
    operands = empty_operands(x, layout, dtype)
    precision = "ieee" if dtype == torch.float32 else "tf32"
    _prepare_tuned[(layout.chunks, x.heads)](
        *x, p, z, *operands, layout.table, layout.cu, *x.head_counts,
        **x.widths, SHARED=x.shared, PRECISION=precision, C=CHUNK,
    )  # fmt: skip
    return p, z, operands


# The recurrence across chunks: states, one of a sequence's chunks after another.
#
# A program holds K × BV of a head's state in fp32; columns of values are independent. Forward, outputs are computed
# on the way, and no state leaves the processor. Backward, where all chunks at once need them, states and errors are
# computed again and written.


@triton.jit
def load_whole(whole, chunk, head, H, key, K, SHARED: tl.constexpr):
    """exp(G_last), the decay of a whole chunk: [BK], or [1] if channels share it."""
    if SHARED:
        decay = tl.load(whole + chunk * H + head + tl.arange(0, 1))
    else:
        decay = tl.load(whole + (chunk * H + head) * K + key, mask=key < K, other=0.0)
    return decay


@triton.jit
def sequence_chunks(firsts, cu, sequence):
    """A sequence's first token and end (int64), its first chunk, and the number of its chunks: four scalars.

    firsts [N+1]: the first chunk of every sequence, and their number; cu [N+1]: bounds of sequences.
    """
    first_chunk = tl.load(firsts + sequence)
    chunks = tl.load(firsts + sequence + 1) - first_chunk
    return tl.load(cu + sequence).to(tl.int64), tl.load(cu + sequence + 1).to(tl.int64), first_chunk, chunks


@triton.jit
def outer_state(states, sequence, head, H, key, value, K, V, BK: tl.constexpr, BV: tl.constexpr):
    """A sequence's tile of the given states [N, H, K, V], in fp32; zeros where none are given."""
    tile = tl.zeros((BK, BV), tl.float32)
    if states is not None:
        tile += load_matrix(head_state(states, sequence, head, H, K, V), key, value, K, V).to(tl.float32)
    return tile


@triton.jit
def _inter_chunk(
    queries, keys, from_start, to_end, reads, values, whole, beta, p, initial, states, errors, o, final, firsts, cu,
    scale, H, GQ: tl.constexpr, GK: tl.constexpr, K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr,
    OUTPUTS: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One chunk after another: the outputs, or the states that chunks start from and the errors of their tokens.

    inputs     queries, keys, from_start, to_end, reads, values, whole as in `ChunkOperands`; beta [tokens, H];
               p P [tokens, H, C]; initial [N, H, K, V] or None
    outputs    o [tokens, H, V], or states S₀ [chunks, H, K, V] and errors E [tokens, H, V];
               final [N, H, K, V] or None
    layout     firsts, cu
    sizes      scale; H heads
    constants  GQ, GK heads for one of queries and of keys; K, V widths; SHARED: one gate a head; OUTPUTS: o, and
               neither states nor errors; C tokens a chunk; BK ≥ K, BV sides of the state's tile
    """
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dtype: tl.constexpr = reads.dtype.element_ty
    token = tl.arange(0, C)
    key = tl.arange(0, BK)
    value = tl.program_id(2) * BV + tl.arange(0, BV)
    state = outer_state(initial, sequence, head, H, key, value, K, V, BK, BV)
    begin, end, first_chunk, chunks = sequence_chunks(firsts, cu, sequence)
    for step in range(chunks):
        chunk = (first_chunk + step).to(tl.int64)
        before = state.to(dtype)
        first = begin + step * C
        last = tl.minimum(end - first, C).to(tl.int32)
        # E = U − W·S₀
        error = load_head_rows(from_token(values, first, H, V), token, last, head, H, value, V).to(tl.float32)
        read = load_head_rows(from_token(reads, first, H, K), token, last, head, H, key, K)
        error -= tl.dot(read, before, input_precision="ieee")
        # F = Diag(β)·E
        strength = load_head_scalars(from_token(beta, first, H, 1), token, last, head, H)
        if OUTPUTS:
            # o = scale·(Q̄·S₀ + P·F)
            query = load_head_rows(
                from_token(queries, first, H // GQ, K), token, last, head // GQ, H // GQ, key, K
            )
            out = tl.dot(query.to(dtype), before, input_precision="ieee")
            if SHARED:
                out *= load_head_scalars(from_token(from_start, first, H, 1), token, last, head, H)[:, None]
            products = load_head_rows(from_token(p, first, H, C), token, last, head, H, token, C)
            write = (error * strength[:, None]).to(dtype)
            out += tl.dot(products, write, input_precision="ieee")
            store_head_rows(from_token(o, first, H, V), out * scale, token, last, head, H, value, V)
        else:
            store_matrix(head_state(states, chunk, head, H, K, V), before, key, value, K, V)
            store_head_rows(from_token(errors, first, H, V), error, token, last, head, H, value, V)
        # S = exp(G_last)⊙S₀ + K̃ᵀ·F
        if SHARED:
            strength *= load_head_scalars(from_token(to_end, first, H, 1), token, last, head, H)
        write = (error * strength[:, None]).to(dtype)
        ends = load_head_rows(from_token(keys, first, H // GK, K), token, last, head // GK, H // GK, key, K)
        state *= load_whole(whole, chunk, head, H, key, K, SHARED)[:, None]
        state += tl.dot(tl.trans(ends.to(dtype)), write, input_precision="ieee")
    if final is not None:
        store_matrix(head_state(final, sequence, head, H, K, V), state, key, value, K, V)


WALK_TILES = [
    triton.Config({"BV": width}, num_warps=warps, num_stages=stages)
    for width, warps, stages in (
        (64, 4, 2),
        (32, 4, 3),
        (64, 8, 2),
        (64, 4, 1),
        (32, 4, 1),
        (16, 4, 1),
        (16, 4, 3),
    )
]
_inter_chunk_tuned = Tuned(_inter_chunk, WALK_TILES, ["K", "V", "SHARED", "OUTPUTS"])


def outputs(
    x: ChunkOperands, p: Tensor, beta: Tensor, initial: Tensor | None, final: Tensor | None, scale: float, o: Tensor,
    layout: ChunkLayout,
) -> None:  # fmt: skip
    """Fill o [B, T, H, V], and `final` [N, H, K, V] if there is one."""
    _walk(x, p, beta, initial, (None, None, o, final), scale, layout)


def inter_chunk(x: ChunkOperands, beta: Tensor, initial: Tensor | None, layout: ChunkLayout) -> ChunkStates:
    """Compute S₀ [chunks, H, K, V] of all chunks and E [B·T, H, V], in the inputs' dtype.

    beta [B, T, H]; initial [N, H, K, V] or None: the states that sequences start from.
    """
    states = ChunkStates(empty_states(x), torch.empty_like(x.values))
    _walk(x, None, beta, initial, (*states, None, None), 1.0, layout)
    return states


def _walk(
    x: ChunkOperands, p: Tensor | None, beta: Tensor, initial: Tensor | None, results: tuple[Tensor | None, ...],
    scale: float, layout: ChunkLayout,
) -> None:  # fmt: skip
    _inter_chunk_tuned[grid_of_walk(x, layout)](
        *x, beta, p, initial, *results, layout.firsts, layout.cu, scale, x.reads.shape[2], **x.groups,
        **x.widths, SHARED=x.shared, OUTPUTS=p is not None, C=CHUNK, BK=padded(x.widths["K"]),
    )  # fmt: skip


def empty_states(x: ChunkOperands) -> Tensor:
    """Allocate states [chunks, H, K, V] in the operands' dtype."""
    return x.reads.new_empty(*x.whole.shape[:2], *x.widths.values())


def grid_of_walk(x: ChunkOperands, layout: ChunkLayout) -> Callable[[dict[str, int]], tuple[int, ...]]:
    """Return the grid of a walk: sequences, heads, and tiles of value columns."""
    return lambda meta: (layout.sequences, x.reads.shape[2], triton.cdiv(x.widths["V"], meta["BV"]))
