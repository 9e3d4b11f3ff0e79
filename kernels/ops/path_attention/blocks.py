"""What one block of tokens contributes by itself: its path in compact form, its inner logits, its gate sums.

C tokens a block, M blocks, G = B·Hkv, Q query heads a KV head; queries of one block and KV head are R = Q·C rows. A
product of Householder matrices is I − Uᵀ·W with the w_s as rows of W: from H_1·…·H_s = H_1·…·H_{s−1} − u_s·w_sᵀ follows

    u_s = β_s·(w_s − Σ_{r<s} (w_s·w_r)·u_r),     (I + Diag(β)·tril(W·Wᵀ, −1))·U = Diag(β)·W

and a product that starts later in the block is the same without the first rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Blocks(NamedTuple):
    """The blocks of all heads, or the gradients of these; i, j, first, last are tokens of one block.

    logits  [G, M, R, C]     k_jᵀ·H_{j+1}·…·H_i·q_i where j ≤ i
    q       [G, M, R, K]     H_first·…·H_i·q_i: the query as the end of the block before sees it
    k       [G, M, C, K]     H_last·…·H_{j+1}·k_j: the key as the start of the block after sees it
    path    [G, M, K, K]     H_first·…·H_last; None where every H is I
    inner   [G, Q, M, C, C]  Σ_{s=j+1..i} g_s at (i, j); like the following None without gates
    before  [G, Q, M, C]     Σ_{s=first..i} g_s
    after   [G, Q, M, C]     Σ_{s=j+1..last} g_s
    total   [G, Q, M]        Σ_{s=first..last} g_s
    """

    logits: Tensor
    q: Tensor
    k: Tensor
    path: Tensor | None
    inner: Tensor | None
    before: Tensor | None
    after: Tensor | None
    total: Tensor | None


def prepare(q: Tensor, k: Tensor, w: Tensor | None, beta: Tensor | None, g: Tensor | None) -> Blocks:
    """Blocks from q [G, M, R, K] (scaled), k, w [G, M, C, K], beta [G, M, C], g [G, Q, M, C]."""
    turned = (*_stand(q, k), None) if w is None else _walk(q, k, w, beta)
    return Blocks(*turned, *((None,) * 4 if g is None else _forget(g)))


def prepare_with_pullback(
    q: Tensor, k: Tensor, w: Tensor | None, beta: Tensor | None, g: Tensor | None
) -> tuple[Blocks, Callable[[Blocks], tuple[Tensor | None, ...]]]:
    """`prepare`, and what turns gradients of the blocks into those of q, k, w, beta, g."""
    # Operators run below autograd, where requires_grad does nothing; torch.func brings its own.
    turned, turn_back = torch.func.vjp(_stand, q, k) if w is None else torch.func.vjp(_walk, q, k, w, beta)
    sums, sum_back = ((None,) * 4, None) if g is None else torch.func.vjp(_forget, g)

    def pullback(d: Blocks) -> tuple[Tensor | None, ...]:
        dq, dk, dw, dbeta = (*turn_back(d[: len(turned)]), None, None)[:4]
        return dq, dk, dw, dbeta, None if sum_back is None else sum_back(d[4:])[0]

    return Blocks(*(*turned, None)[:4], *sums), pullback


def _walk(q: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tokens, width = k.shape[-2:]
    met = (w @ k.mT).tril(-1)
    system = beta[..., None] * (w @ w.mT).tril(-1)
    right = beta[..., None] * torch.cat([met, w], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    passed = (q @ w.mT).unflatten(-2, (-1, tokens)).tril().flatten(-3, -2)
    logits, moved = (torch.cat([q @ k.mT, q], -1) - passed @ solved).split([tokens, width], -1)
    skipped, u = solved.split([tokens, width], -1)
    path = torch.eye(width, dtype=k.dtype, device=k.device) - u.mT @ w
    return logits, moved, k - skipped.mT @ w, path


def _stand(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q @ k.mT, q, k


def _forget(g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All of them sums of terms of one sign: a difference of two long sums would be inexact."""
    tokens = g.shape[-1]
    not_later = torch.ones(tokens, tokens, dtype=torch.bool, device=g.device).tril()  # at (j, s): s ≤ j
    inner = g[..., None, :].masked_fill(not_later, 0).cumsum(-1).mT
    before = g.cumsum(-1)
    after = F.pad(g[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)
    return inner, before, after, before[..., -1]
