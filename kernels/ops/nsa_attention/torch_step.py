"""Native sparse attention of one query, the last token: only the end of its own block is hidden from it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import without_autocast
from kernels.ops.nsa_attention.block_topk import newest_block_topk
from kernels.ops.nsa_attention.blocks import Sizes
from kernels.sdpa import sdpa

Pair = tuple[Tensor, Tensor]


def nsa_torch_step(
    q: Tensor,
    compressed: Pair,
    selected: Pair,
    sliding: Pair,
    gates: Tensor,
    *,
    q_rotated: Tensor,
    sizes: Sizes,
    scale: float,
) -> Tensor:
    """Compute `kernels.nsa_attention` of T = 1 tokens, without gradient; reads of a cache what the token sees.

    q, q_rotated [B, 1, H, K]; compressed, selected, sliding: pairs of k [B, M or Tk, Hkv, K], v [B, M or Tk, Hkv, V];
    gates [B, 1, H, 3] -> [B, 1, H, V] in q's dtype.
    """
    wide, kv_heads = torch.promote_types(q.dtype, torch.float32), selected[0].shape[2]
    time = selected[0].shape[1]
    with without_autocast(q):
        plain, rotated = (x[:, 0].to(wide).unflatten(1, (kv_heads, -1)) for x in (q, q_rotated))
        coarse, weights = _compressed(plain, compressed, sizes.compressed(time), scale)
        blocks = newest_block_topk(weights.mean(2), time, sizes)
        fine = _selected(rotated, selected, blocks, sizes, scale)
        near = (x[:, -sizes.window :].transpose(1, 2).to(wide) for x in sliding)
        near = sdpa(rotated, *near, scale=scale)
        branches = torch.stack((coarse, fine, near), -2).flatten(1, 2)
        out = gates[:, 0].to(wide).unsqueeze(-2) @ branches
    return out.transpose(1, 2).to(q.dtype)


def _compressed(q: Tensor, pair: Pair, blocks: int, scale: float) -> tuple[Tensor, Tensor]:
    """o [B, Hkv, G, V] over the first `blocks` summaries, and the weights [B, Hkv, G, blocks]; 0 without a summary."""
    k, v = (x[:, :blocks].transpose(1, 2).to(q.dtype) for x in pair)
    weights = (q @ k.mT).mul_(scale).softmax(-1)
    return weights @ v, weights


def _selected(q: Tensor, pair: Pair, blocks: Tensor, sizes: Sizes, scale: float) -> Tensor:
    """o [B, Hkv, G, V] over the tokens of the blocks [B, Hkv, n]."""
    place = torch.arange(sizes.select_size, device=q.device)
    token = (blocks.unsqueeze(-1) * sizes.select_size + place).flatten(2)
    last, (batch, heads) = pair[0].shape[1] - 1, token.shape[:2]
    at = token.clamp_max(last)
    sequence = torch.arange(batch, device=q.device)[:, None, None]
    head = torch.arange(heads, device=q.device)[:, None]
    k, v = (x[sequence, at, head].to(q.dtype) for x in pair)
    visible = (token <= last).unsqueeze(2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale)
