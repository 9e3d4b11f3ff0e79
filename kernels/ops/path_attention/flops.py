"""The FLOPs of PaTH attention; conventions of kernels/flops.py."""

from __future__ import annotations

from kernels.flops import attention_flops
from kernels.ops.path_attention.layout import block_size


def path_flops(
    sequences: int, time: int, heads: int, kv_heads: int, width: int, value_width: int, *, turns: bool
) -> int:
    """FLOPs of a forward: all T² scores of every head and, where H is not I, what the path costs.

    The path: compact forms of every block, some 10·(K + C) a token, head and token of its block, and the keys that
    it carries, 2·K² a key and later block. A triangular solve counts half of a product of its size.
    """
    scores = attention_flops(sequences * heads * time**2, width, value_width)
    if not turns:
        return scores
    tokens = block_size(time)
    blocks = -(-time // tokens)
    carried = width**2 * tokens * (blocks - 1) * (blocks - 2)
    inside_kv = 6 * tokens * width + tokens * (tokens + width) + 2 * width**2
    inside_q = 2 * tokens * width + 2 * tokens * (tokens + width)
    inside = blocks * tokens * (kv_heads * inside_kv + heads * inside_q)
    return scores + sequences * (kv_heads * carried + inside)
