"""The selection branch: ranges of tokens that are read without a choice, and tiles of queries by chosen block.

Tensors by lane, as in `dense_branches`. Queries below n·l' read every token, the others the blocks 0, b − 1 and b:
ranges of keys. The n − 3 chosen blocks come in tiles, one stretch of queries after another. A query's softmax runs
over both: the backward of either needs only its log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.ops.nsa_attention.blocks import Sizes
from kernels.ops.nsa_attention.dense_branches import LOG2_E, attend, attend_backward
from kernels.ops.nsa_attention.query_ranges import Place, QueryBlock, forced_ranges, prefix_ranges
from kernels.ops.nsa_attention.tiles import Scratch, Tiles, make_tiles, stretches


def selected_forward(
    inputs: tuple[Tensor, Tensor, Tensor], out: Tensor, lse: Tensor, chosen: Tensor, sizes: Sizes, group: int
) -> None:
    """Write attention to the selected blocks to `out` [L, Tq·G, V] and log-sum-exps to `lse` [L, Tq·G, 1].

    chosen  int32 [L, C, n − 3]: the blocks of the last C queries, but for those that are forced
    """
    q, k, v = inputs
    attend(_ranges(q, k, sizes, group), inputs, out, lse, group)
    if chosen.numel() == 0:
        return
    keys_t, values = (_cut(k, sizes) * LOG2_E).mT.contiguous(), _cut(v, sizes).contiguous()
    scratch = Scratch(q)
    for lanes, rows, tiles in tiles_of(chosen, q, k, sizes, group):
        queries = _by_query(q[lanes, rows], group)
        found = tiles.places("found", scratch, group, v.shape[-1])
        top, total = (tiles.places(name, scratch, group, 1) for name in ("top", "total"))
        for part in tiles.parts(group, sizes.select_size):
            given = tiles.spread(queries, part, scratch)
            keys = tiles.blocks(keys_t, part, "keys", scratch)
            scores = torch.bmm(given, keys, out=scratch("scores", *given.shape[:2], keys.shape[2]))
            highest = torch.amax(scores, -1, keepdim=True, out=tiles.part_of(top, part))
            weights = scores.sub_(highest).exp2_()
            torch.sum(weights, -1, keepdim=True, out=tiles.part_of(total, part))
            torch.bmm(weights, tiles.blocks(values, part, "values", scratch), out=tiles.part_of(found, part))
        _merge(out[lanes, rows], lse[lanes, rows], found, top, total, tiles, group)


def _merge(
    out: Tensor, lse: Tensor, found: Tensor, top: Tensor, total: Tensor, tiles: Tiles, group: int
) -> None:
    """Join attention over ranges, `out` [L, C·G, V] and `lse`, with what the tiles found, in place."""
    # Log-sum-exps have base 2 here, but for those that come and go.
    tops, totals = top[..., 0][tiles.place], total[..., 0][tiles.place]
    before = lse.reshape(-1, group) * LOG2_E
    highest = torch.maximum(tops.amax(1), before)
    share = tops.sub_(highest.unsqueeze(1)).exp2_()
    kept = (before - highest).exp2_()
    whole = (share * totals).sum(1).add_(kept)
    more = tiles.collect(found, share.div_(whole.unsqueeze(1)))
    out.mul_(kept.div_(whole).view_as(lse)).add_(more.view_as(out))
    lse.copy_(whole.log2_().add_(highest).div_(LOG2_E).view_as(lse))


def selected_backward(
    given: tuple[Tensor, Tensor, Tensor],
    inputs: tuple[Tensor, Tensor, Tensor],
    grads: tuple[Tensor, Tensor, Tensor],
    chosen: Tensor,
    sizes: Sizes,
    group: int,
) -> None:
    """Write the gradient of q to dq, and add those of k and v to dk and dv; arguments as of `attend_backward`."""
    q, k, v = inputs
    dq, dk, dv = grads
    attend_backward(_ranges(q, k, sizes, group), given, inputs, grads, group)
    if chosen.numel() == 0:
        return
    keys, values = _cut(k, sizes).contiguous(), _cut(v, sizes)
    keys_t, values_t = (keys * LOG2_E).mT.contiguous(), values.mT.contiguous()
    d_keys, d_values = torch.zeros_like(keys), values.new_zeros(values.shape)
    widths, scratch = (q.shape[-1], v.shape[-1], 1, 1), Scratch(q)
    for lanes, rows, tiles in tiles_of(chosen, q, k, sizes, group):
        # One row a query and head, so that one copy takes all that a tile needs of it.
        d_out, out, lse = (x[lanes, rows] for x in given)
        delta = (d_out * out).sum(-1, keepdim=True)
        joined = _by_query(torch.cat([q[lanes, rows], d_out, lse * LOG2_E, delta], -1), group)
        found = tiles.places("found", scratch, group, q.shape[-1])
        for part in tiles.parts(group, sizes.select_size):
            queries, d_out, lse, delta = tiles.spread(joined, part, scratch).split(widths, -1)
            shape = *queries.shape[:2], sizes.select_size
            take = partial(tiles.blocks, part=part, scratch=scratch)
            weights = torch.bmm(queries, take(keys_t, name="keys"), out=scratch("weights", *shape))
            d_scores = torch.bmm(d_out, take(values_t, name="values"), out=scratch("scores", *shape))
            d_scores.sub_(delta).mul_(weights.sub_(lse).exp2_())
            torch.bmm(d_scores, take(keys, name="keys"), out=tiles.part_of(found, part))
            for to, scores, x in ((d_keys, d_scores, queries), (d_values, weights, d_out)):
                more = scratch("blocks", shape[0], *to.shape[1:])
                to.index_add_(0, tiles.row[part], torch.bmm(scores.mT, x, out=more))
        more = tiles.collect(found)
        dq[lanes, rows].add_(more.view_as(dq[lanes, rows]))
    dk.add_(_joined(d_keys, k))
    dv.add_(_joined(d_values, v))


def _ranges(q: Tensor, k: Tensor, sizes: Sizes, group: int) -> Iterator[QueryBlock]:
    place = Place(q.shape[1] // group, k.shape[1], group, q)
    yield from prefix_ranges(place, sizes)
    yield from forced_ranges(place, sizes)


def tiles_of(
    chosen: Tensor, q: Tensor, k: Tensor, sizes: Sizes, group: int
) -> Iterator[tuple[slice, slice, Tiles]]:
    """Yield (lanes, rows of q, their tiles) for the chosen blocks int32 [L, C, n − 3] of the last C queries."""
    lanes, queries, n = chosen.shape
    first = q.shape[1] // group - queries
    for some, here in stretches(lanes, queries, n * group * q.shape[2], q.device):
        tiles = make_tiles(chosen[some, here], sizes.selectable(k.shape[1]), some.start)
        yield some, slice((first + here.start) * group, (first + here.stop) * group), tiles


def _cut(x: Tensor, sizes: Sizes) -> Tensor:
    """[L, T, D] by block, [L·J, l', D], the last block of a lane filled up with zeros."""
    count = sizes.selectable(x.shape[1])
    x = F.pad(x, (0, 0, 0, count * sizes.select_size - x.shape[1]))
    return x.unflatten(1, (count, sizes.select_size)).flatten(0, 1)


def _joined(x: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_cut`, for `like` [L, T, D]."""
    return x.view(like.shape[0], -1, like.shape[2])[:, : like.shape[1]]


def _by_query(x: Tensor, group: int) -> Tensor:
    """[L, C·G, D] -> [L·C + 1, G, D], the last row 0."""
    x = x.reshape(-1, group, x.shape[-1])
    return torch.cat([x, x.new_zeros(1, *x.shape[1:])])
