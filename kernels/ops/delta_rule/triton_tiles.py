"""Device functions of the delta rule's kernels: gates of a chunk, and the decays between its tokens.

Everywhere: a chunk has C tokens of one sequence, `token` [C] are their places, counted from where the pointers are, and
`last` is where the chunk or its sequence ends. Rows beyond it read as zero, gates too, so that they leave the state
alone.

Gates are a tile [C, W] of W channels, or [C] where a head's channels share one (SHARED). Decays are exponentials of
sums of gates, never of differences of sums: nothing overflows, and a gate of −30 costs its neighbours no digits. Sums
over the tokens of a tile are products with matrices of zeros and ones: scans would pass every number through shuffles
between threads, five times for 32 tokens, and keep the tensor cores waiting.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_common.masked_tiles import load_head_rows, load_head_scalars

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
