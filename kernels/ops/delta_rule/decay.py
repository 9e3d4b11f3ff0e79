"""The decay between the tokens of a chunk, without ever exponentiating a positive number.

Everywhere here: M chunks of C tokens (a power of two); the rows of a chunk are its queries and its keys,
rows [M, 2, C, K]; keys are rows[:, 1]; gates g are [M, C, K], or [M, C, 1] where the channels share one.

Decays are built up from single gates and never divided out again, so that a gate of −30 costs its neighbours no digits.
`SharedDecay`, of channels that share a gate, and `ChannelDecay`, of channels with a gate each, both have:

prefix   exp of the sum of gates from the chunk's first token to this one, both included, like g
suffix   exp of the sum of gates from this token, excluded, to the chunk's last, like g
products(rows, out)
         rows_i·k_j under the decay between j and i, into out [M, 2, C, C]: zero for j > i and, for keys, for j = i
backward(d_products, d_from_start, d_to_end, d_whole, rows, products)
         from the gradients of `products` (anything where those are zero), of rows·prefix [M, 2, C, K] (overwritten),
         of keys·suffix [M, C, K] (overwritten) and of the log of the whole chunk's decay [M, K]: the gradients of
         queries and keys [M, C, K] and of g
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

VANISHED = {torch.float32: -40.0, torch.float64: -300.0}
"""Sums of log gates below these decay to 0: products of two such decays would be denormal, which CPUs are slow at."""


def vanishing_exp_(x: Tensor) -> Tensor:
    """Compute exp(x) [...] of x [...] ≤ 0 in place, and 0 where that is too small to matter."""
    # Clamped first, because denormal exponentials take sixty times as long.
    return drop_vanished_(x.clamp_min_(VANISHED[x.dtype]).exp_())


def drop_vanished_(decay: Tensor) -> Tensor:
    """Set a decay [...] to 0, in place, where it is too small to matter."""
    return F.threshold_(decay, 1.001 * math.exp(VANISHED[decay.dtype]), 0.0)


def lower_triangle(like: Tensor, length: int) -> Tensor:
    """Return ones on and below the diagonal, [length, length], in the type and on the device of `like`."""
    return torch.ones(length, length, dtype=like.dtype, device=like.device).tril()


class SharedDecay:
    """The decay of chunks whose channels share a gate: a number between two tokens, `between` [M, C, C]."""

    def __init__(self, g: Tensor) -> None:
        self.lower = lower_triangle(g, g.shape[1])
        self.before = self.lower.tril(-1)
        g = g.clamp_min(VANISHED[g.dtype])  # 0 times a gate of −∞ would not be 0.
        self.between = vanishing_exp_(torch.matmul(self.lower, g * self.before)).mul_(self.lower)
        self.prefix, self.suffix = (
            vanishing_exp_(torch.matmul(self.lower, g)),
            self.between[:, -1].unsqueeze(-1),
        )

    def products(self, rows: Tensor, out: Tensor) -> None:
        """Write rows_i·k_j, decayed from j to i, of rows [M, 2, C, K] into out [M, 2, C, C], in the dtype of both.

        out[:, 0] has the queries' products, zero for j > i; out[:, 1] those of keys, zero for j ≥ i.
        """
        keys = rows[:, 1].transpose(1, 2).contiguous()
        torch.mul(torch.bmm(rows.flatten(1, 2), keys).view_as(out), self.between.unsqueeze(1), out=out)
        out[:, 1] *= self.before

    def backward(
        self,
        d_products: Tensor,
        d_from_start: Tensor,
        d_to_end: Tensor,
        d_whole: Tensor,
        rows: Tensor,
        products: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of queries [M, C, K], keys [M, C, K] and gates [M, C, 1], in the dtype of rows.

        Given are the gradients d_products [M, 2, C, C], d_from_start [M, 2, C, K] of rows·prefix, d_to_end [M, C, K]
        of keys·suffix and d_whole [M, K] of the log of the chunk's decay, and rows and products of the forward.
        d_from_start and d_to_end are overwritten; d_products may hold anything where its products are zero.
        """
        d_rows = d_from_start.mul_(self.prefix.unsqueeze(1))
        d_keys = d_to_end.mul_(self.suffix)
        d_prefix = (d_rows * rows).sum((1, 3)).unsqueeze(-1)
        d_prefix[:, -1] += d_whole.sum(-1, keepdim=True)
        d_suffix = (d_keys * rows[:, 1]).sum(-1, keepdim=True)
        d_between = torch.matmul(self.lower.T, (d_products * products).sum(1)).mul_(self.before)
        d_g = torch.matmul(self.lower.T, d_prefix) + torch.matmul(self.before, d_suffix)
        d_g += d_between.sum(-1, keepdim=True)

        d_products = d_products * self.between.unsqueeze(1)
        d_products[:, 1] *= self.before
        d_products = d_products.flatten(1, 2)
        d_rows.flatten(1, 2).baddbmm_(d_products, rows[:, 1])
        d_keys += d_rows[:, 1]
        return d_rows[:, 0], d_keys.baddbmm_(d_products.transpose(1, 2), rows.flatten(1, 2)), d_g


@dataclass(frozen=True)
class Neighbours:
    """The lowest level, pairs of tokens: the right one decays by its own gate, right [M, C/2, K]."""

    right: Tensor

    def sides(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the right rows [M, 2, C/2, K], not decayed, and the left keys [M, C/2, K], decayed for both."""
        pairs = rows.view(*rows.shape[:2], -1, 2, rows.shape[-1])
        return pairs[:, :, :, 1], pairs[:, 1, :, 0] * self.right

    def pairs(self, products: Tensor) -> Tensor:
        """The entries of products [M, 2, C, C] that belong to this level, a view [M, 2, C/2]."""
        return products[:, :, 1::2, ::2].diagonal(dim1=2, dim2=3)

    def products(self, rows: Tensor, out: Tensor) -> None:
        """Write this level's products of rows [M, 2, C, K] with keys into out [M, 2, C, C]."""
        right, left = self.sides(rows)
        torch.sum(right * left.unsqueeze(1), -1, out=self.pairs(out))

    def backward(self, d_products: Tensor, rows: Tensor, d_rows: Tensor, d_keys: Tensor) -> None:
        """Add this level's gradients to d_rows [M, 2, C, K] of rows and, as left factors, to d_keys [M, C, K].

        d_products [M, 2, C, C]: the gradient of `products`; rows [M, 2, C, K] as there. No matrix products: they would
        be outer ones.
        """
        right, left = self.sides(rows)
        grad = self.pairs(d_products).unsqueeze(-1)
        d_rows.view(*rows.shape[:2], -1, 2, rows.shape[-1])[:, :, :, 1].addcmul_(grad, left.unsqueeze(1))
        d_left = (grad[:, 0] * right[:, 0]).addcmul_(grad[:, 1], right[:, 1])
        d_keys[:, ::2].addcmul_(d_left, self.right)


@dataclass(frozen=True)
class Level:
    """A higher level: blocks of 2·half tokens, and the decays of their right rows and left keys.

    right  the decay from the middle to the token, its own included, [M, C/2h, h, K]
    left   the decay from the token, its own excluded, to the middle, likewise
    """

    half: int
    right: Tensor
    left: Tensor

    def split(self, x: Tensor, side: int, dim: int = 1) -> Tensor:
        """Return the left (0) or right (1) halves of the blocks along a token axis, a view [..., C/2h, h, ...]."""
        return x.view(*x.shape[:dim], -1, 2, self.half, *x.shape[dim + 1 :]).select(dim + 1, side)

    def factors(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the decayed rows of right halves [M·C/2h, 2h, K] and the decayed keys of left ones [M·C/2h, h, K]."""
        chunks, blocks, half, width = self.right.shape
        right = rows.new_empty(
            chunks, blocks, 2, half, width
        )  # A product would keep the order of rows in memory.
        torch.mul(self.split(rows, 1, dim=2).transpose(1, 2), self.right.unsqueeze(2), out=right)
        return right.view(-1, 2 * half, width), (self.split(rows[:, 1], 0) * self.left).view(-1, half, width)

    def pairs(self, products: Tensor) -> Tensor:
        """The entries of products [M, 2, C, C] that belong to this level, a view [M, C/2h, 2, h, h]."""
        blocks = self.split(self.split(products, 0, dim=3), 1, dim=2)  # [M, 2, C/2h, h, C/2h, h]
        return blocks.diagonal(dim1=2, dim2=4).movedim(-1, 1)

    def products(self, rows: Tensor, out: Tensor) -> None:
        """Write this level's products of rows [M, 2, C, K] with keys into out [M, 2, C, C]."""
        right, left = self.factors(rows)
        pairs = self.pairs(out)
        # Contiguous, because batches of small products with a transposed factor take five times as long.
        pairs.copy_(torch.bmm(right, left.transpose(1, 2).contiguous()).view(pairs.shape))

    def backward(self, d_products: Tensor, rows: Tensor, d_rows: Tensor, d_keys: Tensor) -> None:
        """Add this level's gradients to d_rows [M, 2, C, K] of rows and, as left factors, to d_keys [M, C, K].

        d_products [M, 2, C, C]: the gradient of `products`; rows [M, 2, C, K] as there.
        """
        right, left = self.factors(rows)
        pairs = self.pairs(d_products).reshape(-1, 2 * self.half, self.half)
        d_right = torch.bmm(pairs, left).view(*self.right.shape[:2], 2, *self.right.shape[2:])
        d_left = torch.bmm(pairs.transpose(1, 2), right).view_as(self.left)
        self.split(d_rows, 1, dim=2).addcmul_(d_right.transpose(1, 2), self.right.unsqueeze(1))
        self.split(d_keys, 0).addcmul_(d_left, self.left)


class ChannelDecay:
    """The decay of chunks whose channels have a gate each.

    For tokens i > j, Σ_c x_ic·k_jc·exp(g_{j+1,c} + … + g_{i,c}) is no product of a row factor and a column factor
    that both stay in range: exp(−g_1 − … − g_j) overflows. Around a point m between them it is one, though,
    exp(g_{m+1} + … + g_i)·exp(g_{j+1} + … + g_m), both factors ≤ 1. So the products of a chunk's right half with its
    left half are taken around its middle, and likewise within each half: log2(C) levels, each a batch of matrix
    products, which together hold every pair once.

    The decays of a level are products of those of the level below, so that exp is taken once a gate.
    """

    def __init__(self, g: Tensor) -> None:
        self.prefix, self.suffix = vanishing_exp_(g), torch.ones_like(g)
        right = self.prefix[:, 1::2].clone()
        self.levels: list[Neighbours | Level] = [Neighbours(right)]
        self.suffix[:, ::2] = right
        drop_vanished_(self.prefix[:, 1::2].mul_(self.prefix[:, ::2]))
        half = 2
        while half < g.shape[1]:
            self._add_level(half)
            half *= 2

    def _add_level(self, half: int) -> None:
        """Add a level; prefix and suffix, which were those of its halves, become those of its blocks."""
        (before, right), (left, _) = (
            x.view(x.shape[0], -1, 2, half, x.shape[2]).unbind(2) for x in (self.prefix, self.suffix)
        )
        self.levels.append(Level(half, right.clone(), left.clone()))
        drop_vanished_(left.mul_(right[:, :, -1:]))
        drop_vanished_(right.mul_(before[:, :, -1:]))

    def products(self, rows: Tensor, out: Tensor) -> None:
        """Write Σ_c rows_ic·k_jc·exp(g_{j+1,c} + … + g_{i,c}) of rows [M, 2, C, K] into out [M, 2, C, C].

        out[:, 0] has the queries' products, zero for j > i; out[:, 1] those of keys, zero for j ≥ i.
        """
        out.zero_()
        for level in self.levels:
            level.products(rows, out)
        out[:, 0].diagonal(dim1=1, dim2=2).copy_((rows[:, 0] * rows[:, 1]).sum(-1))

    def backward(
        self,
        d_products: Tensor,
        d_from_start: Tensor,
        d_to_end: Tensor,
        d_whole: Tensor,
        rows: Tensor,
        products: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of queries, keys and gates, each [M, C, K], in the dtype of rows.

        Given are the gradients d_products [M, 2, C, C], d_from_start [M, 2, C, K] of rows·prefix, d_to_end [M, C, K]
        of keys·suffix and d_whole [M, K] of the log of the chunk's decay, and rows of the forward; products is not
        needed. d_from_start and d_to_end are overwritten; d_products may hold anything where its products are zero.
        """
        queries, keys = rows.unbind(1)
        d_rows, d_keys = d_from_start.mul_(self.prefix.unsqueeze(1)), torch.zeros_like(d_to_end)
        d_to_end.mul_(self.suffix)
        for level in self.levels:
            level.backward(d_products, rows, d_rows, d_keys)
        d_queries, d_right_keys = d_rows.unbind(1)
        # The log decay of tokens i > j is the sum of gates up to i less the sum up to j.
        d_upto = (queries * d_queries).addcmul_(keys, d_right_keys).addcmul_(keys, d_keys, value=-1)
        d_upto[:, -1] += d_whole
        lower = lower_triangle(rows, rows.shape[2])
        d_g = torch.matmul(lower.T, d_upto).add_(torch.matmul(lower.tril(-1), keys * d_to_end))

        same = d_products[:, 0].diagonal(dim1=1, dim2=2).unsqueeze(-1)
        d_keys.add_(d_right_keys).add_(d_to_end).addcmul_(same, queries)
        return torch.addcmul(d_queries, same, keys), d_keys, d_g
