"""What tokens of a chunk decay by between each other, without ever exponentiating a positive number.

Everywhere here: M chunks of C tokens (a power of two); the rows of a chunk are its queries and its keys,
rows [M, 2, C, K]; keys are rows[:, 1]; gates g are [M, C, K], or [M, C, 1] where the channels share one.

Decays are built up from single gates and never divided out again, so that a gate of −30 costs its neighbours no digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

VANISHED = {torch.float32: -40.0, torch.float64: -300.0}
"""Sums of log gates below these decay to 0: products of two such decays would be denormal, which CPUs are slow at."""


def decay_of(g: Tensor) -> SharedDecay | ChannelDecay:
    """What tokens decay by inside a chunk.

    prefix   exp of the sum of gates from the chunk's first token to this one, both included, like g
    suffix   exp of the sum of gates from this token, excluded, to the chunk's last, like g
    products(rows, out)
             rows_i·k_j under the decay between j and i, into out [M, 2, C, C]: zero for j > i and, for keys, for j = i
    backward(d_products, d_from_start, d_to_end, d_whole, rows, products)
             from the gradients of `products` (zero where those are zero), of rows·prefix [M, 2, C, K] (overwritten),
             of keys·suffix [M, C, K] (overwritten) and of the log of the whole chunk's decay [M, K]: the gradients of
             queries and keys [M, C, K] and of g
    """
    return SharedDecay(g) if g.shape[-1] == 1 else ChannelDecay(g)


def vanishing_exp(x: Tensor) -> Tensor:
    """exp(x) for x ≤ 0, and 0 where that is too small to matter."""
    return drop_vanished_(x.clamp_min(VANISHED[x.dtype]).exp_())


def drop_vanished_(decay: Tensor) -> Tensor:
    """0, in place, where a decay is too small to matter."""
    return F.threshold_(decay, 1.001 * math.exp(VANISHED[decay.dtype]), 0.0)


def lower_triangle(like: Tensor, length: int) -> Tensor:
    return torch.ones(length, length, dtype=like.dtype, device=like.device).tril()


class SharedDecay:
    """All channels of a head decay alike: the decay between two tokens is a number, `between` [M, C, C]."""

    def __init__(self, g: Tensor) -> None:
        self.lower = lower_triangle(g, g.shape[1])
        self.before = self.lower.tril(-1)
        g = g.clamp_min(VANISHED[g.dtype])  # 0 times a gate of −∞ would not be 0.
        self.between = vanishing_exp(torch.matmul(self.lower, g * self.before)).mul_(self.lower)
        self.prefix, self.suffix = (
            vanishing_exp(torch.matmul(self.lower, g)),
            self.between[:, -1].unsqueeze(-1),
        )

    def products(self, rows: Tensor, out: Tensor) -> None:
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
        d_rows = d_from_start.mul_(self.prefix.unsqueeze(1))
        d_keys = d_to_end.mul_(self.suffix)
        d_prefix = (d_rows * rows).sum((1, 3)).unsqueeze(-1)
        d_prefix[:, -1] += d_whole.sum(-1, keepdim=True)
        d_suffix = (d_keys * rows[:, 1]).sum(-1, keepdim=True)
        d_between = torch.matmul(self.lower.T, (d_products * products).sum(1)).mul_(self.before)
        d_g = torch.matmul(self.lower.T, d_prefix) + torch.matmul(self.before, d_suffix)
        d_g += d_between.sum(-1, keepdim=True)

        d_products = (d_products * self.between.unsqueeze(1)).flatten(1, 2)
        d_rows.flatten(1, 2).baddbmm_(d_products, rows[:, 1])
        d_keys += d_rows[:, 1]
        return d_rows[:, 0], d_keys.baddbmm_(d_products.transpose(1, 2), rows.flatten(1, 2)), d_g


@dataclass(frozen=True)
class Level:
    """One halving: blocks of 2·half tokens, and what their right rows and left keys decay by.

    right  the decay from the middle to the token, its own included, [M, C/2h, h, K]
    left   the decay from the token, its own excluded, to the middle, likewise
    """

    half: int
    right: Tensor
    left: Tensor

    def split(self, x: Tensor, side: int, dim: int = 1) -> Tensor:
        """The left (0) or right (1) halves of the blocks along a token axis, a view [..., C/2h, h, ...]."""
        return x.view(*x.shape[:dim], -1, 2, self.half, *x.shape[dim + 1 :]).select(dim + 1, side)

    def factors(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Decayed rows of the right halves [M·C/2h, 2h, K] and decayed keys of the left [M·C/2h, h, K]."""
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

    def multiply(self, right: Tensor, left: Tensor) -> Tensor:
        """right·leftᵀ for every block, [M·C/2h, 2h, h]."""
        # Contiguous, because batches of small products with a transposed factor take five times as long.
        return torch.bmm(right, left.transpose(1, 2).contiguous())

    def backward(self, d_products: Tensor, right: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the two factors [M, C/2h, 2, h, K] and [M, C/2h, h, K]."""
        pairs = self.pairs(d_products).reshape(-1, 2 * self.half, self.half)
        if self.half == 1:  # Batches of outer products take many times as long as what they compute.
            d_right, d_left = pairs * left, (pairs * right).sum(1)
        else:
            d_right, d_left = torch.bmm(pairs, left), torch.bmm(pairs.transpose(1, 2), right)
        chunks, blocks, half, width = self.right.shape
        return d_right.view(chunks, blocks, 2, half, width), d_left.view(chunks, blocks, half, width)


class ChannelDecay:
    """Every channel decays by itself.

    For tokens i > j, Σ_c x_ic·k_jc·exp(g_{j+1,c} + … + g_{i,c}) is no product of a row factor and a column factor
    that both stay in range: exp(−g_1 − … − g_j) overflows. Around a point m between them it is one, though,
    exp(g_{m+1} + … + g_i)·exp(g_{j+1} + … + g_m), both factors ≤ 1. So a chunk is halved, the products of its right
    with its left half are taken around the middle, and each half is treated the same way: log2(C) levels, each
    a batch of matrix products, which together hold every pair once.

    The decays of a level are products of those of the level below, so that exp is taken once a gate.
    """

    def __init__(self, g: Tensor) -> None:
        self.prefix, self.suffix = vanishing_exp(g), torch.ones_like(g)
        self.levels: list[Level] = []
        chunks, length, width = g.shape
        half = 1
        while half < length:
            (before, right), (left, _) = (
                x.view(chunks, -1, 2, half, width).unbind(2) for x in (self.prefix, self.suffix)
            )
            self.levels.append(Level(half, right.clone(), left.clone()))
            drop_vanished_(left.mul_(right[:, :, -1:]))
            drop_vanished_(right.mul_(before[:, :, -1:]))
            half *= 2

    def products(self, rows: Tensor, out: Tensor) -> None:
        out.zero_()
        for level in self.levels:
            pairs = level.pairs(out)
            pairs.copy_(level.multiply(*level.factors(rows)).view(pairs.shape))
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
        queries, keys = rows.unbind(1)
        d_rows, d_keys = d_from_start.mul_(self.prefix.unsqueeze(1)), torch.zeros_like(d_to_end)
        d_to_end.mul_(self.suffix)
        for level in self.levels:
            d_right, d_left = level.backward(d_products, *level.factors(rows))
            level.split(d_rows, 1, dim=2).addcmul_(d_right.transpose(1, 2), level.right.unsqueeze(1))
            level.split(d_keys, 0).addcmul_(d_left, level.left)
        d_queries, d_left_of = d_rows.unbind(1)
        # A product of tokens i > j has the gates up to i and lacks those up to j.
        d_upto = (queries * d_queries).addcmul_(keys, d_left_of).addcmul_(keys, d_keys, value=-1)
        d_upto[:, -1] += d_whole
        lower = lower_triangle(rows, rows.shape[2])
        d_g = torch.matmul(lower.T, d_upto).add_(torch.matmul(lower.tril(-1), keys * d_to_end))

        same = d_products[:, 0].diagonal(dim1=1, dim2=2).unsqueeze(-1)
        d_queries.addcmul_(same, keys)
        return d_queries, d_keys.add_(d_left_of).add_(d_to_end).addcmul_(same, queries), d_g
