"""The gradient of blockwise.py, in memory linear in T.

A path can lose information (β = 1 is a projection), so that the keys at one block do not follow from those at the
next. The keys of SPAN tokens at a time are therefore carried again, with a copy for every block, and the gradient goes
back through these copies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops.path_attention.blocks import Blocks, prepare
from kernels.ops.path_attention.blocks_backward import prepare_backward
from kernels.ops.path_attention.blockwise import Carried, carry, exp_, far_logits, none_carried

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
