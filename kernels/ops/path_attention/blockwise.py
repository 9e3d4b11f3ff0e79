"""Blockwise softmax: one block of queries after another, while the path carries the keys of earlier blocks along.

When block m is reached, the keys of all earlier blocks have been multiplied by every H from their own token to its
start. Its queries are scored with them, and then its path carries them on. A key is transformed once a block, which
costs T²·K²/C a KV head, where scores cost T²·(K + V). Letters as in blocks.py, V the width of values.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.ops.path_attention.blocks import Blocks, prepare

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
