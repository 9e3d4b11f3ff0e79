"""Each block of tokens by itself: its path in compact form, the logits inside it, its sums of gates.

C tokens a block, M blocks, G = B·Hkv, Q query heads a KV head; queries of one block and KV head are R = Q·C rows. A
product of Householder matrices is I − Uᵀ·W with the w_s as rows of W: from H_1·…·H_s = H_1·…·H_{s−1} − u_s·w_sᵀ follows

    u_s = β_s·(w_s − Σ_{r<s} (w_s·w_r)·u_r),     (I + Diag(β)·tril(W·Wᵀ, −1))·U = Diag(β)·W

and a product that starts later in the block is the same without the first rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Blocks(NamedTuple):
    """The blocks of all heads, or the gradients of these; i, j, first, last are tokens of one block.

    logits  [G, M, R, C]  k_jᵀ·H_{j+1}·…·H_i·q_i + Σ_{s=j+1..i} g_s where j ≤ i, −∞ elsewhere
    q       [G, M, R, K]  H_first·…·H_i·q_i: the query transformed to the end of the block before
    k       [G, M, C, K]  H_last·…·H_{j+1}·k_j: the key transformed to the start of the block after
    path    [G, M, K, K]  H_first·…·H_last; None where every H is I
    before  [G, Q, M, C]  Σ_{s=first..i} g_s; like the following None without gates
    after   [G, Q, M, C]  Σ_{s=j+1..last} g_s
    total   [G, Q, M]     Σ_{s=first..last} g_s
    """

    logits: Tensor
    q: Tensor
    k: Tensor
    path: Tensor | None
    before: Tensor | None
    after: Tensor | None
    total: Tensor | None


class Turns(NamedTuple):
    """The compact form of all blocks, rows s and columns r tokens of one block.

    gram    [G, M, C, C]    w_s·w_r for r < s
    met     [G, M, C, C]    w_s·k_r for r < s
    solved  [G, M, C, C+K]  (I + Diag(β)·gram)⁻¹·Diag(β)·[met, W], the right part being U
    passed  [G, M, R, C]    q_i·w_s for s ≤ i
    """

    gram: Tensor
    met: Tensor
    solved: Tensor
    passed: Tensor


def prepare(
    q: Tensor, k: Tensor, w: Tensor | None, beta: Tensor | None, g: Tensor | None
) -> tuple[Blocks, Turns | None]:
    """Prepare the blocks of q [G, M, R, K] (scaled), k, w [G, M, C, K], beta [G, M, C], g [G, Q, M, C]."""
    logits, turns, path = q @ k.mT, None, None
    if w is not None:
        turns = _turns(q, k, w, beta)
        logits, q, k, path = _turned(turns, logits, q, k, w)
    inner, *sums = (None,) * 4 if g is None else _gate_sums(g)
    return Blocks(_causal(logits, inner), q, k, path, *sums), turns


def _turns(q: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> Turns:
    gram, met = (w @ w.mT).tril_(-1), (w @ k.mT).tril_(-1)
    right = beta[..., None] * torch.cat([met, w], -1)
    solved = torch.linalg.solve_triangular(beta[..., None] * gram, right, upper=False, unitriangular=True)
    return Turns(gram, met, solved, _by_head(q @ w.mT).tril_().flatten(2, 3))


def _turned(turns: Turns, logits: Tensor, q: Tensor, k: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Logits, q, k and path of `Blocks`, without gates and masks."""
    tokens, width = k.shape[-2:]
    skipped, u = turns.solved.split([tokens, width], -1)
    path = torch.eye(width, dtype=k.dtype, device=k.device) - u.mT @ w
    return logits - turns.passed @ skipped, q - turns.passed @ u, k - skipped.mT @ w, path


def _gate_sums(g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inner sums [G, Q, M, C, C], 0 above the diagonal, and before, after, total of `Blocks`.

    All of them are sums of terms of one sign: a difference of two long sums would be inexact.
    """
    # (j, s): s ≤ j
    not_later = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool, device=g.device).tril()
    inner = g[..., None, :].masked_fill(not_later, 0).cumsum(-1).mT
    before = g.cumsum(-1)
    after = F.pad(g[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)
    return inner, before, after, before[..., -1]


def _causal(logits: Tensor, inner: Tensor | None) -> Tensor:
    later = torch.ones(logits.shape[-1], logits.shape[-1], dtype=torch.bool, device=logits.device).triu(1)
    logits = _by_head(logits)
    if inner is not None:
        logits += inner.transpose(1, 2)
    return logits.masked_fill_(later, -torch.inf).flatten(2, 3)


def _by_head(x: Tensor) -> Tensor:
    """Rows by query head: [G, M, R, C] -> [G, M, Q, C, C]."""
    return x.unflatten(2, (-1, x.shape[-1]))
