"""Whole sequences as blocks and back: [B, T, heads, D] <-> [G, M, rows, D]; letters as in blocks.py, V of values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import without_autocast
from kernels.ops.path_attention.blockwise import forward
from kernels.ops.path_attention.blockwise_backward import backward

SMALLEST, LARGEST = 32, 128


def block_size(time: int) -> int:
    """Return the tokens of a block: about T/16, which was fastest on CPUs, so that blocks are of about one size."""
    wanted = min(max(time // 16, SMALLEST), LARGEST)
    blocks = max(1, -(-time // wanted))
    return max(1, -(-time // blocks))


@dataclass(frozen=True)
class Layout:
    """B sequences of T tokens with Hkv heads, in blocks; the last one is filled up with zeros.

    A token of zeros has H = I and comes after all others, so that no result depends on it.
    """

    batch: int
    time: int
    kv_heads: int

    def rows(self, x: Tensor) -> Tensor:
        """Cut into blocks: [B, T, Q·Hkv, D] -> [G, M, Q·C, D]."""
        tokens = block_size(self.time)
        x = F.pad(x, (0, 0, 0, 0, 0, -self.time % tokens if self.time else 1))
        x = x.unflatten(2, (self.kv_heads, -1)).unflatten(1, (-1, tokens))  # [B, M, C, Hkv, Q, D]
        return x.permute(0, 3, 1, 4, 2, 5).flatten(3, 4).flatten(0, 1).contiguous()

    def whole(self, x: Tensor) -> Tensor:
        """Join blocks: [G, M, Q·C, D] -> [B, T, Q·Hkv, D], contiguous as the operators' fake results are."""
        x = x.unflatten(2, (-1, block_size(self.time))).unflatten(0, (self.batch, self.kv_heads))
        return x.permute(0, 2, 4, 1, 3, 5).flatten(3, 4).flatten(1, 2)[:, : self.time].contiguous()

    def gates(self, g: Tensor) -> Tensor:
        """Cut gates into blocks: [B, T, H] -> [G, Q, M, C]."""
        rows = self.rows(g[..., None])[..., 0]
        return rows.unflatten(2, (-1, block_size(self.time))).transpose(1, 2).contiguous()

    def whole_gates(self, g: Tensor) -> Tensor:
        """Join the blocks of gates: [G, Q, M, C] -> [B, T, H]."""
        return self.whole(g.transpose(1, 2).flatten(2, 3)[..., None])[..., 0]


def blocks_of(layout: Layout, q, k, v, w, beta, g, scale: float) -> tuple[Tensor | None, ...]:
    """Return q·scale, k, v, w, beta and g as blocks for `blockwise.forward`, in fp32 or wider.

    q [B, T, H, K], k, w [B, T, Hkv, K], v [B, T, Hkv, V], beta [B, T, Hkv], g [B, T, H] become q [G, M, Q·C, K],
    k, w [G, M, C, K], v [G, M, C, V], beta [G, M, C], g [G, Q, M, C]. Without w, w and beta are None; g may be None.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k, v, w, beta, g = (None if x is None else x.to(wide) for x in (q, k, v, w, beta, g))
    turning = (None, None) if w is None else (layout.rows(w), layout.rows(beta[..., None])[..., 0])
    forgetting = None if g is None else layout.gates(g)
    return layout.rows(q * scale), layout.rows(k), layout.rows(v), *turning, forgetting


def attend(q, k, v, w, beta, g, scale: float) -> tuple[Tensor, Tensor]:
    """Return o [B, T, H, V] in q's dtype and the log-sum-exps [B, T, H] of scores, in fp32 or wider.

    o_i = Σ_{j ≤ i} softmax_j(scale·k_jᵀ·H_{j+1}·…·H_i·q_i + Σ_{s=j+1..i} g_s)·v_j with H_s = I − β_s·w_s·w_sᵀ

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], w [B, T, Hkv, K] and beta [B, T, Hkv] or None (every H is I),
    g [B, T, H] or None (no gates): sequences of one length.
    """
    layout = Layout(q.shape[0], q.shape[1], k.shape[2])
    with without_autocast(q):
        out, lse = forward(*blocks_of(layout, q, k, v, w, beta, g, scale))
    return layout.whole(out).to(q.dtype), layout.whole(lse[..., None])[..., 0]


def attend_backward(grad, out, lse, q, k, v, w, beta, g, scale: float) -> tuple[Tensor | None, ...]:
    """Return the gradients of q, k, v, w, beta and g, each in its shape and dtype, None for what is None.

    grad [B, T, H, V]: that of the output; out and lse: results of `attend` for the same arguments.
    """
    layout = Layout(q.shape[0], q.shape[1], k.shape[2])
    blocks = blocks_of(layout, q, k, v, w, beta, g, scale)
    wide = blocks[0].dtype
    results = (layout.rows(grad.to(wide)), layout.rows(out.to(wide)), layout.rows(lse[..., None])[..., 0])
    with without_autocast(q):
        dq, dk, dv, dw, dbeta, dg = backward(*results, *blocks)
    dq, dk, dv = layout.whole(dq) * scale, layout.whole(dk), layout.whole(dv)
    dw, dbeta = (None, None) if w is None else (layout.whole(dw), layout.whole(dbeta[..., None])[..., 0])
    dg = None if g is None else layout.whole_gates(dg)
    pairs = zip((dq, dk, dv, dw, dbeta, dg), (q, k, v, w, beta, g), strict=True)
    return tuple(None if d is None else d.to(x.dtype) for d, x in pairs)
