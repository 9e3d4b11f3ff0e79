"""PaTH attention in blocks, in PyTorch: each block by itself, a softmax from block to block, their gradients.

C tokens a block, M blocks, G = B·Hkv, Q query heads a KV head, V the width of values; queries of one block and KV
head are R = Q·C rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.autograd import attention_flops
from kernels.dispatch import reverse_mode_only, without_autocast
from kernels.packing import Rectangles

# Each block by itself: its path in compact form, the logits inside it, its sums of gates.
#
# A product of Householder matrices is I − Uᵀ·W with the w_s as rows of W: from H_1·…·H_s = H_1·…·H_{s−1} − u_s·w_sᵀ
# follows
#
#     u_s = β_s·(w_s − Σ_{r<s} (w_s·w_r)·u_r),     (I + Diag(β)·tril(W·Wᵀ, −1))·U = Diag(β)·W
#
# and a product that starts later in the block is the same without the first rows.


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


# The gradient of blocks by themselves, written out: torch.func does not run inside an operator under a dispatch mode.


def prepare_backward(
    d: Blocks, turns: Turns | None, q: Tensor, k: Tensor, w: Tensor | None, beta: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, w, beta, g from those of the blocks; shapes as in `prepare`."""
    dg = None if d.total is None else _gate_sums_backward(d)
    dq, dk = d.q + d.logits @ k, d.k + d.logits.mT @ q
    if turns is None:
        return dq, dk, None, None, dg
    d_passed, d_solved, dw = _turned_backward(d, turns, w)
    d_met, d_gram, d_right, d_beta = _solved_backward(d_solved, turns, w, beta)
    dq += d_passed @ w
    dk += d_met.mT @ w
    dw += d_passed.mT @ q + d_met @ k + (d_gram + d_gram.mT) @ w + d_right
    return dq, dk, dw, d_beta, dg


def _turned_backward(d: Blocks, turns: Turns, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `passed` and `solved`, and the part of w's that does not go through them."""
    tokens = w.shape[2]
    skipped, u = turns.solved.split([tokens, w.shape[-1]], -1)
    d_both = torch.cat([d.logits, d.q], -1)
    d_passed = (d_both @ turns.solved.mT).neg_().unflatten(2, (-1, tokens)).tril_().flatten(2, 3)
    d_solved = turns.passed.mT @ d_both + w @ torch.cat([d.k.mT, d.path.mT], -1)
    return d_passed, d_solved.neg_(), -(skipped @ d.k + u @ d.path)


def _solved_backward(
    d_solved: Tensor, turns: Turns, w: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `met`, of `gram`, of w as a right side of the triangular system, and of beta."""
    tokens = w.shape[2]
    system = (beta[..., None] * turns.gram).mT
    d_right = torch.linalg.solve_triangular(system, d_solved, upper=True, unitriangular=True)
    d_system = (d_right @ turns.solved.mT).neg_().tril_(-1)
    d_met, dw = d_right.split([tokens, w.shape[-1]], -1)
    d_met = d_met.tril(-1)
    d_beta = (d_met * turns.met).sum(-1) + (dw * w).sum(-1) + (d_system * turns.gram).sum(-1)
    return beta[..., None] * d_met, beta[..., None] * d_system, beta[..., None] * dw, d_beta


def _gate_sums_backward(d: Blocks) -> Tensor:
    """Inside a block Σ d_ij over i ≥ s > j, which is Σ_{t≥s} (row t − column t), because d_ij = 0 for i < j."""
    tokens = d.logits.shape[-1]
    inner = d.logits.unflatten(2, (-1, tokens)).transpose(1, 2)
    from_here = inner.sum(-1) - inner.sum(-2) + d.before
    until_here = d.after.cumsum(-1) - d.after
    return from_here.flip(-1).cumsum(-1).flip(-1) + until_here + d.total[..., None]


# From block to block: one block of queries after another, while the path carries the keys of earlier blocks along.
#
# When block m is reached, the keys of all earlier blocks have been multiplied by every H from their own token to its
# start. Its queries are scored with them, and then its path carries them on. A key is transformed once a block, which
# costs T²·K²/C a KV head, where scores cost T²·(K + V).

LOG2E, FLOOR = math.log2(math.e), -60.0


class Carried(NamedTuple):
    """Keys [G, n, K] at the start of a block, and the gate sums from their tokens until there [G, Q, n]."""

    keys: Tensor
    sums: Tensor | None


class Past(NamedTuple):
    """A cache: keys [G, n, K] as its last token left them, values [G, n, V], gate sums [G, Q, n] since each token."""

    keys: Tensor
    values: Tensor
    sums: Tensor | None


def forward(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor | None, beta: Tensor | None, g: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Outputs [G, M, R, V] and log-sum-exps [G, M, R] of `prepare`'s arguments and v [G, M, C, V]."""
    blocks, _ = prepare(q, k, w, beta, g)
    return _attend(blocks, v.flatten(1, 2), none_carried(blocks))[:2]


def extend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None,
    past: Past,
) -> tuple[Tensor, Tensor, Carried]:
    """`forward` after the n tokens of a cache.

    Returns outputs [G, M, R, V], log-sum-exps [G, M, R], and all keys [G, n + M·C, K] and gate sums [G, Q, n + M·C] as
    they stand after the last block.
    """
    blocks, _ = prepare(q, k, w, beta, g)
    values = torch.cat([past.values, v.flatten(1, 2)], 1)
    out, lse, carried = _attend(blocks, values, Carried(past.keys, past.sums))
    return out, lse, carry(blocks, q.shape[1] - 1, carried)


def _attend(blocks: Blocks, values: Tensor, carried: Carried) -> tuple[Tensor, Tensor, Carried]:
    """Outputs, log-sum-exps and what has been carried to the last block; values [G, n + M·C, V] of all tokens."""
    count, tokens = blocks.logits.shape[1], blocks.k.shape[2]
    past = carried.keys.shape[1]
    out = values.new_empty(*blocks.q.shape[:3], values.shape[-1])
    lse = blocks.q.new_empty(blocks.q.shape[:3])
    for m in range(count):
        if m:
            carried = carry(blocks, m - 1, carried)
        logits = torch.cat([far_logits(blocks, m, carried), blocks.logits[:, m]], -1)
        top = logits.amax(-1, keepdim=True)
        weights = exp_(logits.sub_(top))
        total = weights.sum(-1, keepdim=True)
        out[:, m] = weights @ values[:, : past + (m + 1) * tokens] / total
        lse[:, m] = (top + total.log())[..., 0]
    return out, lse, carried


def exp_(x: Tensor) -> Tensor:
    """e^x of x [...] in place, exactly 0 below e^FLOOR.

    On CPUs exp is up to 200 times slower where it underflows, which exp2 is not, and products with denormal numbers
    are slow as well. Next to a largest weight of 1 even 10⁶ weights below e^FLOOR vanish in fp64's rounding.
    """
    return F.threshold_(x, FLOOR, -torch.inf).mul_(LOG2E).exp2_()


def far_logits(blocks: Blocks, m: int, carried: Carried) -> Tensor:
    """Logits [G, R, n] of block m's queries with what has been carried to its start."""
    logits = blocks.q[:, m] @ carried.keys.mT
    if carried.sums is not None:
        gated = logits.unflatten(1, (carried.sums.shape[1], -1))
        gated += blocks.before[:, :, m, :, None]
        gated += carried.sums[:, :, None]
    return logits


def none_carried(blocks: Blocks) -> Carried:
    """The keys carried to the start of the first block: none."""
    return Carried(blocks.k[:, 0, :0], None if blocks.after is None else blocks.after[:, :, 0, :0])


def carry(blocks: Blocks, m: int, carried: Carried, *, joined: bool = True) -> Carried:
    """Carry keys from the start of block m to the start of the next one; if `joined`, with block m's own keys."""
    keys, sums = carried
    if blocks.path is not None:
        keys = keys @ blocks.path[:, m]
    if sums is not None:
        sums = sums + blocks.total[:, :, m, None]
    if joined:
        keys = torch.cat([keys, blocks.k[:, m]], 1)
        sums = None if sums is None else torch.cat([sums, blocks.after[:, :, m]], -1)
    return Carried(keys, sums)


# The gradient from block to block, in memory linear in T.
#
# A path can lose information (β = 1 is a projection), so that the keys at one block do not follow from those at the
# next. The keys of SPAN tokens at a time are therefore carried again, with a copy for every block, and the gradient
# goes back through these copies.

SPAN = 512


def backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v, w, beta, g, given that of the outputs; shapes as in `forward`."""
    blocks, turns = prepare(q, k, w, beta, g)
    back = Backward(blocks, v, grad, out, lse)
    back.inside_blocks()
    span = max(1, SPAN // k.shape[2])
    for first in range(0, k.shape[1], span):
        back.from_keys(first, min(first + span, k.shape[1]))
    dq, dk, dw, dbeta, dg = prepare_backward(back.d, turns, q, k, w, beta)
    return dq, dk, back.dv, dw, dbeta, dg


class Backward:
    """Gradients that are summed over spans of keys: d of the fields of `Blocks`, dv of the values."""

    def __init__(self, blocks: Blocks, v: Tensor, grad: Tensor, out: Tensor, lse: Tensor) -> None:
        self.blocks, self.v, self.grad, self.lse = blocks, v, grad, lse
        self.delta = (grad * out).sum(-1)
        self.dv = torch.zeros_like(v)
        self.d = Blocks(*(None if x is None else torch.zeros_like(x) for x in blocks))

    def inside_blocks(self) -> None:
        """Add the part of keys in their queries' own block."""
        weights, d_logits = self._softmax(slice(None), self.blocks.logits, self.v)
        self.dv += weights.mT @ self.grad
        self.d.logits.copy_(d_logits)

    def from_keys(self, first: int, last: int) -> None:
        """Add the part of the keys of blocks first … last − 1 in the queries of all later blocks."""
        end = self.v.shape[1]
        copies = [none_carried(self.blocks)]
        for m in range(first, end - 1):
            copies.append(carry(self.blocks, m, copies[-1], joined=m < last))
        d = Carried(*(None if x is None else torch.zeros_like(x) for x in copies[-1]))
        for m in reversed(range(first, end)):
            carried = copies.pop()
            if m + 1 < end:
                d = self._carry_back(m, carried, d)
            if m > first:
                self._past_gradients(m, first, carried, d)

    def _past_gradients(self, m: int, first: int, carried: Carried, d: Carried) -> None:
        """Add the part of block m's queries with keys carried to it from block `first` on, to d in place."""
        start, keys = first * self.v.shape[2], carried.keys
        at = slice(None), slice(start, start + keys.shape[1])
        values, d_values = (x.view(x.shape[0], -1, x.shape[-1])[at] for x in (self.v, self.dv))
        weights, d_logits = self._softmax((slice(None), m), far_logits(self.blocks, m, carried), values)
        d_values.baddbmm_(weights.mT, self.grad[:, m])
        self.d.q[:, m].baddbmm_(d_logits, keys)
        d.keys.baddbmm_(d_logits.mT, self.blocks.q[:, m])
        if d.sums is not None:
            gated = d_logits.unflatten(1, (d.sums.shape[1], -1))
            self.d.before[:, :, m] += gated.sum(-1)
            d.sums.add_(gated.sum(-2))

    def _carry_back(self, m: int, carried: Carried, d: Carried) -> Carried:
        """The gradient of `carry`: from the keys after block m to those before it."""
        n = carried.keys.shape[1]
        joined = d.keys.shape[1] > n
        keys, sums = d.keys[:, :n], None if d.sums is None else d.sums[..., :n]
        if joined:
            self.d.k[:, m] = d.keys[:, n:]
        if self.d.path is not None:
            self.d.path[:, m].baddbmm_(carried.keys.mT, keys)
            keys = keys @ self.blocks.path[:, m].mT
        if sums is not None:
            self.d.total[:, :, m] += sums.sum(-1)
            if joined:
                self.d.after[:, :, m] = d.sums[..., n:]
        return Carried(keys, sums)

    def _softmax(self, at, logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and the gradient of the logits of the queries at [at] over some of their keys."""
        weights = exp_(logits - self.lse[at][..., None])
        return weights, (self.grad[at] @ values.mT).sub_(self.delta[at][..., None]).mul_(weights)


# Whole sequences as blocks and back: [B, T, heads, D] <-> [G, M, rows, D].

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
    """Return q·scale, k, v, w, beta and g as blocks for `forward`, in fp32 or wider.

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


# FLOPs; conventions of kernels/autograd.py.


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


# The backend, as two operators that are opaque to tracing.
#
# Their loops over blocks would be traced once a pair of blocks, and the lengths of packed sequences are data: so
# `torch.compile` and the meta device see operators with a shape, a gradient and a cost.


def path_attention_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None = None,
    *,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.path_attention` blockwise; gradients of first order.

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], w [B, T, Hkv, K] and beta [B, T, Hkv] or None, g [B, T, H] or
    None -> [B, T, H, V] in q's dtype.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    reverse_mode_only("path_attention", q, k, v, w, beta, g)
    return path_attention_op(q, k, v, w, beta, g, cu_seqlens, scale)[0]


@torch.library.custom_op("archzoo::path_attention", mutates_args=())
def path_attention_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Output o [B, T, H, V] and log-sum-exps [B, T, H]."""
    inputs = (q, k, v, w, beta, g)
    if cu_seqlens is None:
        return attend(*inputs, scale)
    return tuple(by_length(lambda *x: attend(*x, scale), inputs, cu_seqlens, q.shape[2]))


@path_attention_op.register_fake
def _(q, k, v, w, beta, g, cu_seqlens, scale):
    wide = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=wide)


@torch.library.custom_op("archzoo::path_attention_backward", mutates_args=())
def path_attention_backward_op(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
) -> list[Tensor]:
    """Gradients of those of q, k, v, w, beta, g that are not None, each in its shape and dtype.

    grad, out [B, T, H, V] and lse [B, T, H]: the gradient of the output, and the results of `path_attention_op`.
    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], w [B, T, Hkv, K] and beta [B, T, Hkv] or None, g [B, T, H] or
    None.
    """
    inputs = (grad, out, lse, q, k, v, w, beta, g)

    def run(*x: Tensor | None) -> list[Tensor]:
        return [d for d in attend_backward(*x, scale) if d is not None]

    return run(*inputs) if cu_seqlens is None else by_length(run, inputs, cu_seqlens, q.shape[2])


@path_attention_backward_op.register_fake
def _(grad, out, lse, q, k, v, w, beta, g, cu_seqlens, scale):
    return [x.new_empty(x.shape) for x in (q, k, v, w, beta, g) if x is not None]


def _save(ctx, inputs, output):
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*output, *tensors)


def _backward(ctx, grad, _):
    gradients = iter(path_attention_backward_op(grad, *ctx.saved_tensors, ctx.scale))
    inputs = ctx.saved_tensors[2:-1]
    return *(None if x is None else next(gradients) for x in inputs), None, None


path_attention_op.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.archzoo.path_attention)
def _forward_flops(q, k, v, w, beta, g, cu_seqlens, scale, *, out_shape=None, **_) -> int:
    """Packed sequences are counted as if they were of equal length."""
    sequences = q[0] if cu_seqlens is None else max(1, cu_seqlens[0] - 1)
    time = q[1] if cu_seqlens is None else round(q[1] / sequences)
    return path_flops(sequences, time, q[2], k[2], k[3], v[3], turns=w is not None)


@register_flop_formula(torch.ops.archzoo.path_attention_backward)
def _backward_flops(grad, out, lse, *inputs, out_shape=None, **_) -> int:
    return 2 * _forward_flops(*inputs)


def by_length(
    run: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor | None], cu_seqlens: Tensor, heads: int
) -> list[Tensor]:
    """Apply a function of [B, T, ...] tensors to packed ones [1, T, ...], once a batch of about one length."""
    axis = Rectangles.of(cu_seqlens, heads).axis()
    if not axis.shapes:
        return list(run(*inputs))
    none = [None] * len(axis.shapes)
    batches = zip(*(none if x is None else axis.spread(x[0]) for x in inputs), strict=True)
    results = [run(*batch) for batch in batches]
    return [axis.collect(parts).unsqueeze(0) for parts in zip(*results, strict=True)]
