"""Attention in blocks of queries, each over ranges of keys, in memory linear in time.

Tensors have a KV head of a sequence as their first axis, a lane: q [L, Tq·G, K], the G heads of a query next to
each other, k [L, S, K] with the scale in it, v [L, S, V]. The scores of a block of queries are not saved: the
backward computes them again, and the weights from them and their log-sum-exps by one exponential.

On a CPU a block is a call of PyTorch's fused kernel, with the heads that share keys as further rows: 1.7 times as
fast as the products and passes written out, which remain for what it does not serve and where weights are needed.
There exponentials have base 2: exp takes 10 to 200 times as long where its result is 0 or denormal, exp2 does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from kernels.ops.nsa_attention.query_ranges import QueryBlock

BUDGET = {"cpu": 1 << 17, "cuda": 1 << 26}
"""Scores that are written out at once; on a CPU what its cache takes twice."""

LOG2_E = 1 / math.log(2)

ALL = slice(None)


def by_lane(x: Tensor, kv_heads: int) -> Tensor:
    """[B, T, H, D] -> [B·Hkv, T·G, D]; a view where there is one KV head."""
    return x.unflatten(2, (kv_heads, -1)).transpose(1, 2).flatten(2, 3).flatten(0, 1)


def by_token(x: Tensor, batch: int, queries: int) -> Tensor:
    """The inverse of `by_lane`: [B·Hkv, T·G, D] -> [B, T, H, D]."""
    kv_heads, group = (
        x.shape[0] // batch,
        max(1, x.shape[1] // max(1, queries)),
    )  # there may be no rows at all
    return x.unflatten(0, (batch, kv_heads)).unflatten(2, (queries, group)).transpose(1, 2).flatten(2, 3)


def attend(
    blocks: Iterable[QueryBlock],
    inputs: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
    lse: Tensor,
    group: int,
    on_weights: Callable[[QueryBlock, slice, Tensor, Tensor], None] | None = None,
) -> None:
    """Write attention to `out` [L, Tq·G, V] and log-sum-exps to `lse` [L, Tq·G, 1], in the rows of the blocks.

    inputs      q, k, v
    on_weights  called with a block, its lanes, exponentials [L, C·G, S] and their sums [L, C·G, 1]
    """
    q, k, v = inputs
    if on_weights is None and _is_fused(q, v):
        for part in blocks:
            found = _fused(part, inputs, group)
            for to, x in zip((out, lse), found, strict=True):
                part.rows(to, ALL, group).copy_(x)
        return
    k = k * LOG2_E
    for part, lanes in _parts(blocks, q, group):
        scores = torch.bmm(part.rows(q, lanes, group), part.keys(k, lanes).mT).add_(part.mask)
        highest = scores.amax(-1, keepdim=True)
        weights = scores.sub_(highest).exp2_()
        total = weights.sum(-1, keepdim=True)
        torch.bmm(weights, part.keys(v, lanes), out=part.rows(out, lanes, group)).div_(total)
        part.rows(lse, lanes, group).copy_(highest.add_(total.log2()).div_(LOG2_E))
        if on_weights is not None:
            on_weights(part, lanes, weights, total)


def attend_backward(
    blocks: Iterable[QueryBlock],
    given: tuple[Tensor, Tensor, Tensor],
    inputs: tuple[Tensor, Tensor, Tensor],
    grads: tuple[Tensor, Tensor, Tensor],
    group: int,
) -> None:
    """Write the gradient of q to dq in the rows of the blocks, and add those of k and v to dk and dv.

    given   d_out and out [L, Tq·G, V], the log-sum-exps [L, Tq·G, 1]
    inputs  q, k, v
    grads   dq, dk, dv
    """
    q, _, v = inputs
    if _is_fused(q, v):
        for part in blocks:
            found = _fused_backward(part, given, inputs, group)
            part.rows(grads[0], ALL, group).copy_(found[0])
            for to, x in zip(grads[1:], found[1:], strict=True):
                part.add_to(to, ALL, x)
        return
    for part, lanes in _parts(blocks, q, group):
        queries, d_out, out, lse = (part.rows(x, lanes, group) for x in (q, *given))
        keys, values = (part.keys(x, lanes) for x in inputs[1:])
        scores = torch.bmm(queries, keys.mT).add_(part.mask)
        weights = scores.sub_(lse).mul_(LOG2_E).exp2_()
        delta = (d_out * out).sum(-1, keepdim=True)
        d_scores = torch.bmm(d_out, values.mT).sub_(delta).mul_(weights)
        torch.bmm(d_scores, keys, out=part.rows(grads[0], lanes, group))
        part.add_to(grads[1], lanes, torch.bmm(d_scores.mT, queries))
        part.add_to(grads[2], lanes, torch.bmm(weights.mT, d_out))


def _parts(blocks: Iterable[QueryBlock], q: Tensor, group: int) -> Iterator[tuple[QueryBlock, slice]]:
    """Every block, with as many lanes at once as fit `BUDGET`."""
    budget = BUDGET.get(q.device.type, BUDGET["cuda"])
    for part in blocks:
        several = max(1, budget // part.mask.numel())
        for first in range(0, q.shape[0], several):
            yield part, slice(first, min(first + several, q.shape[0]))


def _is_fused(q: Tensor, v: Tensor) -> bool:
    """Whether the fused kernel serves: it needs as many channels of values as of keys."""
    return q.device.type == "cpu" and q.shape[-1] == v.shape[-1]


def _fused(part: QueryBlock, inputs: tuple[Tensor, ...], group: int) -> tuple[Tensor, Tensor]:
    """Attention [L, C·G, V] and log-sum-exps [L, C·G, 1] of one block."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *_given(part, inputs, group), attn_mask=part.mask, scale=1.0
    )
    return out[:, 0], lse[:, 0].unsqueeze(-1)


def _fused_backward(
    part: QueryBlock, given: tuple[Tensor, ...], inputs: tuple[Tensor, ...], group: int
) -> list[Tensor]:
    """The gradients of the block's queries, and what it adds to those of its keys and values."""
    d_out, out, lse = (part.rows(x, ALL, group).unsqueeze(1) for x in given)
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        d_out, *_given(part, inputs, group), out, lse[..., 0], 0.0, False, attn_mask=part.mask, scale=1.0
    )
    return [x[:, 0] for x in found]


def _given(part: QueryBlock, inputs: tuple[Tensor, ...], group: int) -> list[Tensor]:
    """q [L, 1, C·G, K], k and v [L, 1, S, K] of one block."""
    return [
        part.rows(inputs[0], ALL, group).unsqueeze(1),
        *(part.keys(x, ALL).unsqueeze(1) for x in inputs[1:]),
    ]
