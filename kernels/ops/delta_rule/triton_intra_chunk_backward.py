"""Gradients through the products of a chunk's tokens, P and A of triton_intra_chunk.py, to queries and keys.

What a chunk's gates get from them follows from these: triton_backward.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.delta_rule.triton_intra_chunk import BLOCK
from kernels.ops.delta_rule.triton_tiles import decay_between, decay_to_middle, halves_meet


@triton.jit
def inside_shared_back(d_q, d_right, queries, keys, gate, d_p, d_a, dtype: tl.constexpr, C: tl.constexpr):
    """Through P and A of tokens i > j under gates [C]: gradients of queries and of keys as row i, added to what is
    there already, and of keys as row j."""
    i = tl.arange(0, C)[:, None]
    j = tl.arange(0, C)[None]
    between = tl.where(i > j, decay_between(gate, C), 0.0)
    d_p = (d_p * between).to(dtype)
    d_a = (d_a * between).to(dtype)
    narrow = keys.to(dtype)
    d_q += tl.dot(d_p, narrow, input_precision="ieee")
    d_right += tl.dot(d_a, narrow, input_precision="ieee")
    d_left = tl.dot(tl.trans(d_p), queries.to(dtype), input_precision="ieee")
    d_left += tl.dot(tl.trans(d_a), narrow, input_precision="ieee")
    return d_q, d_right, d_left


@triton.jit
def inside_channels_back(
    d_q, d_right, queries, keys, gates, after, d_p, d_a, d_p_blocks, d_a_blocks,
    dtype: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Likewise under gates [C, BK], level by level of halves; d_p, d_a [C, C], and their blocks on the diagonal
    [C/16, 16, 16]."""
    d_left = tl.zeros((C, BK), tl.float32)
    row = tl.arange(0, BLOCK)[None, :, None]
    col = tl.arange(0, BLOCK)[None, None, :]
    for level in tl.static_range(4):
        decay = decay_to_middle(gates, after, 2**level, C, BK)
        k = tl.reshape((keys * decay).to(dtype), (C // BLOCK, BLOCK, BK))
        q = tl.reshape((queries * decay).to(dtype), (C // BLOCK, BLOCK, BK))
        meet = halves_meet(row, col, 2**level)
        p = tl.where(meet, d_p_blocks, 0.0).to(dtype)
        a = tl.where(meet, d_a_blocks, 0.0).to(dtype)
        left = tl.dot(tl.permute(p, (0, 2, 1)), q, input_precision="ieee")
        left += tl.dot(tl.permute(a, (0, 2, 1)), k, input_precision="ieee")
        d_left += decay * tl.reshape(left, (C, BK))
        d_q += decay * tl.reshape(tl.dot(p, k, input_precision="ieee"), (C, BK))
        d_right += decay * tl.reshape(tl.dot(a, k, input_precision="ieee"), (C, BK))
    row = tl.arange(0, C)[:, None]
    col = tl.arange(0, C)[None]
    for level in tl.static_range(2):
        decay = decay_to_middle(gates, after, BLOCK * 2**level, C, BK)
        k = (keys * decay).to(dtype)
        q = (queries * decay).to(dtype)
        meet = halves_meet(row, col, BLOCK * 2**level)
        p = tl.where(meet, d_p, 0.0).to(dtype)
        a = tl.where(meet, d_a, 0.0).to(dtype)
        left = tl.dot(tl.trans(p), q, input_precision="ieee")
        left += tl.dot(tl.trans(a), k, input_precision="ieee")
        d_left += decay * left
        d_q += decay * tl.dot(p, k, input_precision="ieee")
        d_right += decay * tl.dot(a, k, input_precision="ieee")
    return d_q, d_right, d_left
