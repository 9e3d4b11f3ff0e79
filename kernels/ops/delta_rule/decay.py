"""Products of queries and keys under a decay, without ever exponentiating a positive number.

Everywhere here: M chunks of C tokens (a power of two); the rows of a token are its query and its key,
rows [M, C, 2, K]; keys are rows[:, :, 1]; gates g are [M, C, K], or [M, C, 1] where the channels share one.

Decays are built up from single gates and never divided out again, and their gradients are sums without a subtraction,
so that a gate of −30 costs its neighbours no digits.
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
    products(rows)
             rows_i·k_j under the decay between j and i: [M, C, 2, C], zero for j > i and, for keys, for j = i
    backward(grad, rows, products, d_prefix, d_suffix)
             from the gradients of `products` (zero where those are zero), log prefix and log suffix: the
             gradients of rows as left factors [M, C, 2, K], of keys as right ones [M, C, K], and of g.
             May overwrite d_prefix and d_suffix
    """
    return SharedDecay(g) if g.shape[-1] == 1 else ChannelDecay(g)


def vanishing_exp(x: Tensor) -> Tensor:
    """exp(x) for x ≤ 0, and 0 where that is too small to matter."""
    limit = VANISHED[x.dtype]
    return F.threshold_(x.clamp_min(limit).exp_(), 1.001 * math.exp(limit), 0.0)


def shrink_(decay: Tensor, factor: Tensor) -> None:
    """decay ← decay·factor in place, and 0 where that is too small to matter."""
    F.threshold_(decay.mul_(factor), 1.001 * math.exp(VANISHED[decay.dtype]), 0.0)


def sums_to_end(g: Tensor) -> Tensor:
    """The sum of the gates after every token of a chunk."""
    return F.pad(g[:, 1:].flip(1).cumsum(1).flip(1), (0, 0, 0, 1))


class SharedDecay:
    """All channels of a head decay alike: the decay between two tokens is a number, D [M, C, C]."""

    def __init__(self, g: Tensor) -> None:
        length = g.shape[1]
        self.lower = torch.ones(length, length, dtype=g.dtype, device=g.device).tril()
        self.before = self.lower.tril(-1)
        self.prefix, self.suffix = vanishing_exp(g.cumsum(1)), vanishing_exp(sums_to_end(g))
        self.between = vanishing_exp(torch.where(self.before > 0, g, 0).cumsum(1)).mul_(self.lower)

    def products(self, rows: Tensor) -> Tensor:
        keys = rows[:, :, 1].transpose(1, 2).contiguous()
        products = (
            torch.bmm(rows.flatten(1, 2), keys).view(*rows.shape[:3], -1).mul_(self.between.unsqueeze(2))
        )
        products[:, :, 1] *= self.before
        return products

    def backward(
        self, grad: Tensor, rows: Tensor, products: Tensor, d_prefix: Tensor, d_suffix: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        d_between = torch.matmul(self.lower.T, (grad * products).sum(2)).mul_(self.before)
        d_g = d_between.sum(-1, keepdim=True)
        d_g += torch.matmul(self.lower.T, d_prefix) + torch.matmul(self.before, d_suffix)
        grad = (grad * self.between.unsqueeze(2)).flatten(1, 2)
        d_rows = torch.bmm(grad, rows[:, :, 1]).view_as(rows)
        return d_rows, torch.bmm(grad.transpose(1, 2), rows.flatten(1, 2)), d_g


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
        return x.unflatten(dim, (-1, 2, self.half)).select(dim + 1, side)

    def factors(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Decayed rows of the right halves [M, C/2h, h, 2, K] and decayed keys of the left [M, C/2h, h, K]."""
        return self.split(rows, 1) * self.right.unsqueeze(-2), self.split(rows[:, :, 1], 0) * self.left

    def pairs(self, products: Tensor) -> Tensor:
        """The entries of products [M, C, 2, C] that belong to this level, a view [M, C/2h, h, 2, h]."""
        blocks = self.split(self.split(products, 0, dim=3), 1)  # [M, C/2h, h, 2, C/2h, h]
        return blocks.diagonal(dim1=1, dim2=4).movedim(-1, 1)

    def backward(self, grad: Tensor, right: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of the two factors from that of all products."""
        pairs = self.pairs(grad).reshape(-1, 2 * self.half, self.half)
        rows, keys = right.view(-1, 2 * self.half, right.shape[-1]), left.flatten(0, 1)
        if self.half == 1:  # Batches of outer products take many times as long as what they compute.
            d_right, d_left = pairs * keys, (pairs * rows).sum(1)
        else:
            d_right, d_left = torch.bmm(pairs, keys), torch.bmm(pairs.transpose(1, 2), rows)
        return d_right.view_as(right), d_left.view_as(left)


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
        half = 1
        while half < g.shape[1]:
            (left, right), (to_middle, _) = (
                x.unflatten(1, (-1, 2, half)).unbind(2) for x in (self.prefix, self.suffix)
            )
            self.levels.append(Level(half, right.clone(), to_middle.clone()))
            shrink_(to_middle, right[:, :, -1:])
            shrink_(right, left[:, :, -1:])
            half *= 2

    def products(self, rows: Tensor) -> Tensor:
        chunks, length, _, width = rows.shape
        products = rows.new_zeros(chunks, length, 2, length)
        for level in self.levels:
            right, left = level.factors(rows)
            # Contiguous, because batches of small products with a transposed factor take five times as long.
            columns = left.view(-1, level.half, width).transpose(1, 2).contiguous()
            pairs = level.pairs(products)
            pairs.copy_(torch.bmm(right.view(-1, 2 * level.half, width), columns).view(pairs.shape))
        products.diagonal(dim1=1, dim2=3)[:, 0] = (rows[:, :, 0] * rows[:, :, 1]).sum(-1)
        return products

    def backward(
        self, grad: Tensor, rows: Tensor, products: Tensor, d_prefix: Tensor, d_suffix: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        same = grad.diagonal(dim1=1, dim2=3)[:, 0].unsqueeze(-1)
        d_rows, d_keys = torch.zeros_like(rows), same * rows[:, :, 0]
        d_rows[:, :, 0] = same * rows[:, :, 1]
        for level in reversed(self.levels):
            right, left = level.factors(rows)
            d_right, d_left = level.backward(grad, right, left)
            level.split(d_rows, 1).addcmul_(d_right, level.right.unsqueeze(-2))
            level.split(d_keys, 0).addcmul_(d_left, level.left)
            # The way back of how log prefix and log suffix came from those of the level below.
            before, after = (level.split(d_prefix, side) for side in (0, 1))
            to_middle = level.split(d_suffix, 0)
            before[:, :, -1] += after.sum(2)
            after[:, :, -1] += to_middle.sum(2)
            for row in (0, 1):
                after.addcmul_(right[:, :, :, row], d_right[:, :, :, row])
            to_middle.addcmul_(left, d_left)
        return d_rows, d_keys, d_prefix
