"""The intra-chunk backward: gradients of queries and keys through P and A of triton_intra_chunk.py.

The gates' gradients follow from those of queries and keys: triton_backward.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.delta_rule.triton_tiles import BLOCK, across_middle, decay_between, decay_to_middle


@triton.jit
def intra_chunk_backward_shared(
    d_q, d_right, queries, keys, gate, d_p, d_a, dtype: tl.constexpr, C: tl.constexpr
):
    """Gradients through P and A of tokens i > j under shared gates [C]: d_q and d_right, of keys as row i, with these
    added, and d_left, of keys as row j."""
    i = tl.arange(0, C)[:, None]
    j = tl.arange(0, C)[None]
    # dP_ij and dA_ij under the decay exp(Σ_{j<l≤i} g_l) of i > j
    between = tl.where(i > j, decay_between(gate, C), 0.0)
    d_p = (d_p * between).to(dtype)
    d_a = (d_a * between).to(dtype)
    narrow = keys.to(dtype)
    # dq_i = Σ_j dP_ij·k_j
    d_q += tl.dot(d_p, narrow, input_precision="ieee")
    # dk_i = Σ_j dA_ij·k_j
    d_right += tl.dot(d_a, narrow, input_precision="ieee")
    # dk_j = Σ_i dP_ij·q_i + Σ_i dA_ij·k_i
    d_left = tl.dot(tl.trans(d_p), queries.to(dtype), input_precision="ieee")
    d_left += tl.dot(tl.trans(d_a), narrow, input_precision="ieee")
    return d_q, d_right, d_left


@triton.jit
def intra_chunk_backward_channels(
    d_q, d_right, queries, keys, gates, d_p, d_a, d_p_blocks, d_a_blocks,
    dtype: tl.constexpr, gate_type: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Gradients through P and A under gates of channels [C, BK], level by level.

    inputs     d_q, d_right [C, BK], added to; queries, keys, gates [C, BK]
    gradients  d_p, d_a [C, C], and their blocks on the diagonal [C/16, 16, 16]
    constants  dtype of products; gate_type, that gates are stored in; C tokens a chunk; BK columns
    returns    d_q, d_right and d_left [C, BK]
    """
    d_left = tl.zeros((C, BK), tl.float32)
    # Tokens i > j of two halves of 1 … 8 tokens, q and k decayed to their middle:
    # dq_i = decay_i⊙Σ_j dP_ij·k_j    dk_i = decay_i⊙Σ_j dA_ij·k_j    dk_j = decay_j⊙Σ_i (dP_ij·q_i + dA_ij·k_i)
    row = tl.arange(0, BLOCK)[None, :, None]
    col = tl.arange(0, BLOCK)[None, None, :]
    for level in tl.static_range(4):
        decay = decay_to_middle(gates, gate_type, 2**level, C)
        k = tl.reshape((keys * decay).to(dtype), (C // BLOCK, BLOCK, BK))
        q = tl.reshape((queries * decay).to(dtype), (C // BLOCK, BLOCK, BK))
        meet = across_middle(row, col, 2**level)
        p = tl.where(meet, d_p_blocks, 0.0).to(dtype)
        a = tl.where(meet, d_a_blocks, 0.0).to(dtype)
        left = tl.dot(tl.permute(p, (0, 2, 1)), q, input_precision="ieee")
        left += tl.dot(tl.permute(a, (0, 2, 1)), k, input_precision="ieee")
        d_left += decay * tl.reshape(left, (C, BK))
        d_q += decay * tl.reshape(tl.dot(p, k, input_precision="ieee"), (C, BK))
        d_right += decay * tl.reshape(tl.dot(a, k, input_precision="ieee"), (C, BK))
    # likewise of two halves of 16 and of 32 tokens
    row = tl.arange(0, C)[:, None]
    col = tl.arange(0, C)[None]
    for level in tl.static_range(2):
        decay = decay_to_middle(gates, gate_type, BLOCK * 2**level, C)
        k = (keys * decay).to(dtype)
        q = (queries * decay).to(dtype)
        meet = across_middle(row, col, BLOCK * 2**level)
        p = tl.where(meet, d_p, 0.0).to(dtype)
        a = tl.where(meet, d_a, 0.0).to(dtype)
        left = tl.dot(tl.trans(p), q, input_precision="ieee")
        left += tl.dot(tl.trans(a), k, input_precision="ieee")
        d_left += decay * left
        d_q += decay * tl.dot(p, k, input_precision="ieee")
        d_right += decay * tl.dot(a, k, input_precision="ieee")
    return d_q, d_right, d_left
