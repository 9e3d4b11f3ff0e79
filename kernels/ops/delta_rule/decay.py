"""The decay between the tokens of a chunk, without ever exponentiating a positive number.

Everywhere here: M chunks of C tokens (a power of two); the rows of a chunk are its queries and its keys,
rows [M, 2, C, K]; keys are rows[:, 1]; gates g are [M, C, K], or [M, C, 1] where the channels share one.

Decays are built up from single gates and never divided out again, so that a gate of −30 costs its neighbours no digits.
`SharedDecay` here and `ChannelDecay` in channel_decay.py both have:

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

import torch
import torch.nn.functional as F
from torch import Tensor

VANISHED = {torch.float32: -40.0, torch.float64: -300.0}
"""Sums of log gates below these decay to 0: products of two such decays would be denormal, which CPUs are slow at."""


def vanishing_exp_(x: Tensor) -> Tensor:
    """Compute exp(x) for x ≤ 0 in place, and 0 where that is too small to matter."""
    # Clamped first, because denormal exponentials take sixty times as long.
    return drop_vanished_(x.clamp_min_(VANISHED[x.dtype]).exp_())


def drop_vanished_(decay: Tensor) -> Tensor:
    """Set a decay to 0, in place, where it is too small to matter."""
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
        """Write the decayed products into out [M, 2, C, C], as above."""
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
        """Return the gradients of queries, keys and gates, as above."""
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
