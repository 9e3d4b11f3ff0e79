"""Native sparse attention in PyTorch, in memory linear in T: dense branches, selection, one query, two operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.autograd import attention_flops
from kernels.dispatch import reverse_mode_only, without_autocast
from kernels.indices import block_size
from kernels.ops.attention import sdpa
from kernels.ops.nsa_attention.blocks import Sizes, block_topk, newest_block_topk
from kernels.packing import Axis, Rectangles

# The dense branches, compression and window: attention in blocks of queries, each over one range of keys.
#
# One sequence, or a batch of one length: q [B, Tq, H, K] with the scale in it, k [B, S, Hkv, K], v [B, S, Hkv, V].
# The scores of a block of queries are not saved: the backward computes them again.


@dataclass(frozen=True)
class QueryBlock:
    """Queries `here`, the keys `seen` that any of them sees, and masks for the keys that some of them do not see.

    masks  (columns of the seen keys, bool [C, columns], true where hidden)
    blind  the number of leading queries that see no key
    """

    here: slice
    seen: slice
    masks: tuple[tuple[slice, Tensor], ...] = ()
    blind: int = 0

    @property
    def queries(self) -> int:
        """The number of queries."""
        return self.here.stop - self.here.start

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """Softmax over the visible keys [B, Hkv, C·G, S]; q [B, Hkv, C·G, K], k [B, Hkv, K, S]."""
        scores = q @ k
        by_query = scores.unflatten(2, (self.queries, -1))
        for columns, hidden in self.masks:
            by_query[..., columns].masked_fill_(hidden.unsqueeze(1), torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        weights.unflatten(2, (self.queries, -1))[:, :, : self.blind] = 0
        return weights


def compression_blocks(q: Tensor, time: int, sizes: Sizes) -> Iterator[QueryBlock]:
    """Blocks of queries over the compressed blocks that end at them or before; query i stands at i + time − Tq.

    q [B, Tq, H, K]; time: Tk.
    """
    for first, last, t in _queries(q, sizes.compressed(time), time):
        position = int(time - q.shape[1] + first)
        complete, seen = sizes.compressed(position + 1), sizes.compressed(position + last - first)
        ends = torch.arange(complete, seen, device=q.device) * sizes.stride + sizes.block_size - 1
        masks = ((slice(complete, seen), ends > t[:, None]),) if seen > complete else ()
        blind = min(last - first, max(0, sizes.block_size - 1 - position))
        yield QueryBlock(slice(first, last), slice(0, seen), masks, blind)


def window_blocks(q: Tensor, time: int, window: int) -> Iterator[QueryBlock]:
    """Blocks of queries over the last `window` tokens of each; query i stands at i + time − Tq.

    q [B, Tq, H, K]; time: the keys that there are; window ≥ 1.
    """
    for first, last, t in _queries(q, min(time, 2 * window), time):
        position, count = time - q.shape[1] + first, last - first
        begin, end = max(0, position - window + 1), position + count
        late, early = slice(end - begin - count, None), slice(0, min(count, end - begin))
        token = torch.arange(begin, end, device=q.device)
        masks = [(late, token[late] > t[:, None])] if count > 1 else []
        if end - begin > window:
            masks.append((early, token[early] <= t[:, None] - window))
        yield QueryBlock(slice(first, last), slice(begin, end), tuple(masks))


def _queries(q: Tensor, keys: int, time: int) -> Iterator[tuple[int, int, Tensor]]:
    """Blocks [first, last) of the queries of q, and their positions."""
    batch, queries, heads = q.shape[:3]
    size = block_size(batch * heads * max(1, keys), q.device)
    for first in range(0, queries, size):
        last = min(first + size, queries)
        yield first, last, torch.arange(first, last, device=q.device) + time - queries


def attend(
    blocks: Iterable[QueryBlock],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    on_weights: Callable[[QueryBlock, Tensor], None] | None = None,
) -> Tensor:
    """Attention [B, Tq, H, V] in q's dtype, of q [B, Tq, H, K] (scaled), k [B, S, Hkv, K] and v [B, S, Hkv, V].

    `on_weights` is called with every block and its weights [B, Hkv, C, G, S].
    """
    kv_heads, dtype = k.shape[2], q.dtype
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    for part in blocks:
        keys, values = (x[:, part.seen].to(dtype).transpose(1, 2) for x in (k, v))
        weights = part.weights(grouped(q[:, part.here], kv_heads), keys.mT)
        out[:, part.here] = _ungrouped(weights @ values, part.queries)
        if on_weights is not None:
            on_weights(part, weights.unflatten(2, (part.queries, -1)))
    return out


def attend_backward(
    blocks: Iterable[QueryBlock], grad: Tensor, out: Tensor, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q [B, Tq, H, K], k [B, S, Hkv, K] and v [B, S, Hkv, V] in their dtypes.

    grad, out [B, Tq, H, V]: the gradient of the output of `attend`, and that output; the weights are computed again.
    """
    kv_heads, dtype = k.shape[2], q.dtype
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k, dtype=dtype), torch.zeros_like(v, dtype=dtype)
    for part in blocks:
        queries, d_out, given = (grouped(x[:, part.here], kv_heads) for x in (q, grad, out))
        keys, values = (x[:, part.seen].to(dtype).transpose(1, 2) for x in (k, v))
        weights = part.weights(queries, keys.mT)
        d_scores = d_out @ values.mT
        d_scores.sub_((d_out * given).sum(-1, keepdim=True)).mul_(weights)
        dq[:, part.here] = _ungrouped(d_scores @ keys, part.queries)
        dk[:, part.seen] += (d_scores.mT @ queries).transpose(1, 2)
        dv[:, part.seen] += (weights.mT @ d_out).transpose(1, 2)
    return dq, dk.to(k.dtype), dv.to(v.dtype)


def grouped(x: Tensor, kv_heads: int) -> Tensor:
    """[B, C, H, D] -> [B, Hkv, C·G, D], the G heads of a KV head next to each other."""
    return x.unflatten(2, (kv_heads, -1)).transpose(1, 2).flatten(2, 3)


def _ungrouped(x: Tensor, queries: int) -> Tensor:
    """[B, Hkv, C·G, D] -> [B, C, H, D]."""
    return x.unflatten(2, (queries, -1)).transpose(1, 2).flatten(2, 3)


# Selection: queries gathered by the block that they read, in tiles of equal height.
#
# A block of keys is read by many queries. Copying the queries to it costs G·K numbers a pair of query and block (G
# heads share a KV head), copying its l' keys to every query would cost l'·K.

HEIGHT = 32
"""Queries a tile: enough for a matrix product, few enough that little of the last tile of a block is empty."""

STRETCH = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Numbers that the gathered rows of one stretch of queries should hold: the more, the fuller the tiles."""

PART = {"cpu": 1 << 18, "cuda": 1 << 27}
"""Numbers that the scores of the tiles computed at once should hold; on a CPU what its cache takes."""


def stretches(batch: int, queries: int, numbers: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Yield (sequences, queries) to gather at once, when every query gathers so many numbers.

    Long stretches of few sequences: what a block's tiles are filled from is one sequence.
    """
    fits = max(1, STRETCH.get(device.type, STRETCH["cuda"]) // numbers)
    size = min(queries, fits)
    several = max(1, fits // max(1, size))
    for start in range(0, batch, several):
        for first in range(0, queries, size):
            yield slice(start, min(start + several, batch)), slice(first, min(first + size, queries))


@dataclass(frozen=True)
class Tiles:
    """Pairs of a query and a block, sorted by block; N tiles of R places, P = B·Hkv·C queries (times KV heads).

    source  int64 [N, R], which query stands at a place; P where none does
    place   int64 [P, n], where a query's n blocks stand; N·R where it has fewer
    row     int64 [N], a tile's block: (b·Hkv + h)·J + j, b counted from the first sequence of all
    edge    bool [N], whether a tile holds a query inside its own block
    """

    source: Tensor
    place: Tensor
    row: Tensor
    edge: Tensor

    def parts(self, group: int, select_size: int) -> Iterator[slice]:
        """Yield all tiles, as many at once as fit `PART`."""
        count, height = self.source.shape
        budget = PART.get(self.source.device.type, PART["cuda"])
        size = max(1, budget // (height * group * select_size))
        for first in range(0, count, size):
            yield slice(first, min(first + size, count))

    def spread(self, x: Tensor, part: slice) -> Tensor:
        """Copy rows x [P + 1, G, D] of queries to their places in some tiles: [n, R·G, D]."""
        rows = self.source[part]
        return x.index_select(0, rows.flatten()).view(rows.shape[0], -1, x.shape[2])

    def places(self, x: Tensor, group: int, width: int, fill: float) -> Tensor:
        """Uninitialised results of every place, [N·R + 1, G, width]; the last, for a missing block, is `fill`."""
        out = x.new_empty(self.source.numel() + 1, group, width)
        out[-1] = fill
        return out

    def part_of(self, x: Tensor, part: slice) -> Tensor:
        """A view [n, R·G, D] of the places [N·R + 1, G, D] of some tiles."""
        height = self.source.shape[1]
        return x[part.start * height : part.stop * height].view(part.stop - part.start, -1, x.shape[2])

    def collect(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Sum over a query's blocks of weight [P, n, G] times place x [N·R + 1, G, D]: [P, G, D]."""
        # One pass over the rows, where indexing and then summing would write all of them once more.
        if weights is None:
            return F.embedding_bag(self.place, x.flatten(1), mode="sum").unflatten(1, x.shape[1:])
        group = x.shape[1]
        index = self.place[:, None] * group + torch.arange(group, device=x.device)[:, None]
        weights = weights.transpose(1, 2).flatten(0, 1).contiguous()
        total = F.embedding_bag(index.flatten(0, 1), x.flatten(0, 1), mode="sum", per_sample_weights=weights)
        return total.unflatten(0, (-1, group))


def make_tiles(chosen: Tensor, blocks: int, start: int, position: int, sizes: Sizes) -> Tiles:
    """Gather queries into tiles by their chosen blocks [B, C, Hkv, n] (int32, −1: none), ids below `blocks`.

    The first sequence is number `start`, the first query of each stands at `position`.
    """
    batch, queries, heads, n = chosen.shape
    height = min(HEIGHT, queries)
    chosen = chosen.transpose(1, 2).to(torch.int64)
    used = chosen >= 0
    base = torch.arange(batch * heads, device=chosen.device).view(batch, heads, 1, 1) * blocks
    groups = batch * heads * blocks
    group = torch.where(used, base + chosen, groups)
    query = torch.arange(queries, device=chosen.device)[:, None].expand_as(group)
    member = torch.zeros(groups + 1, queries, dtype=torch.int32, device=chosen.device)
    member[group, query] = 1
    rank = member.cumsum(1, dtype=torch.int32)
    tiles = -(-rank[:-1, -1] // height)
    ends = tiles.cumsum(0)
    row = torch.repeat_interleave(tiles)
    first = torch.cat([(ends - tiles) * height, ends[-1:] * height])
    total = row.shape[0] * height
    place = torch.where(used, first[group] + rank[group, query] - 1, total).reshape(-1, n)
    rows = batch * heads * queries
    source = torch.full((total + 1,), rows, device=chosen.device)
    source[place] = torch.arange(rows, device=chosen.device)[:, None].expand_as(place)
    source = source[:-1].view(-1, height)
    # Places are in order of time: if any query of a tile stands in the block, the first one does.
    edge = source[:, 0] % queries + position < (row % blocks + 1) * sizes.select_size
    return Tiles(source, place, row + start * heads * blocks, edge)


# Selection: one stretch of queries after another, each as tiles of queries and blocks of keys.
#
# One sequence, or a batch of one length: q [B, Tq, H, K] with the scale in it, k [B, Tk, Hkv, K], v [B, Tk, Hkv, V],
# chosen int32 [B, Tq, Hkv, n]; query i stands at position i + Tk − Tq. Work and memory are T·n·l'.


class Blocks:
    """Keys and values by block, [B·Hkv·J, l', D], the last block of a sequence filled up with zeros."""

    def __init__(self, k: Tensor, v: Tensor, sizes: Sizes, dtype: torch.dtype) -> None:
        self.size, self.count = sizes.select_size, sizes.selectable(k.shape[1])
        self.keys, self.values = self._cut(k.to(dtype)), self._cut(v.to(dtype))
        self.keys_t, self.values_t = (x.mT.contiguous() for x in (self.keys, self.values))

    def _cut(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, 0, 0, 0, self.count * self.size - x.shape[1]))
        return x.transpose(1, 2).unflatten(2, (self.count, self.size)).flatten(0, 2)

    def whole(self, x: Tensor, like: Tensor) -> Tensor:
        """Join blocks [B·Hkv·J, l', D] to [B, T, Hkv, D], in the dtype of `like`."""
        x = x.unflatten(0, (like.shape[0], like.shape[2], -1)).flatten(2, 3)
        return x[:, :, : like.shape[1]].transpose(1, 2).to(like.dtype)


def gathered(
    q: Tensor, k: Tensor, chosen: Tensor, sizes: Sizes
) -> Iterator[tuple[tuple[slice, slice], Tiles, Tensor]]:
    """Yield (sequences and queries, their tiles, the position of every query [P + 1])."""
    batch, queries, heads, width = q.shape
    numbers = heads * sizes.n_select * max(sizes.select_size, width)
    for here in stretches(batch, queries, numbers, q.device):
        position = here[1].start + k.shape[1] - queries
        blocks = sizes.selectable(k.shape[1])
        tiles = make_tiles(chosen[here], blocks, here[0].start, position, sizes)
        count = here[1].stop - here[1].start
        t = torch.arange(tiles.place.shape[0] + 1, device=q.device) % count + position
        t[-1] = k.shape[1]  # a place without a query sees everything, so that its row is finite
        yield here, tiles, t


def by_head(x: Tensor, kv_heads: int) -> Tensor:
    """Rows by KV head and query: [B, C, H, D] -> [B·Hkv·C + 1, G, D], the last row 0."""
    x = x.unflatten(2, (kv_heads, -1)).transpose(1, 2).flatten(0, 2)
    return torch.cat([x, x.new_zeros(1, *x.shape[1:])])


def by_query(x: Tensor, shape: torch.Size, kv_heads: int) -> Tensor:
    """The inverse of `by_head` but for its last row: [B·Hkv·C, G, D] -> [B, C, H, D], shape [B, C, …]."""
    return x.unflatten(0, (shape[0], kv_heads, shape[1])).transpose(1, 2).flatten(2, 3)


def scores(q: Tensor, blocks: Blocks, tiles: Tiles, part: slice, t: Tensor) -> Tensor:
    """Scores [n, R·G, l'] of the queries q [n, R·G, K] of tiles and the keys of their blocks; −∞ after the query."""
    row = tiles.row[part]
    raw = torch.bmm(q, blocks.keys_t.index_select(0, row))
    edge = tiles.edge[part].nonzero()[:, 0]
    begin = (row[edge] % blocks.count * blocks.size)[:, None, None]
    hidden = begin + torch.arange(blocks.size, device=t.device) > t[tiles.source[part][edge]].unsqueeze(-1)
    cut = raw[edge].unflatten(1, (hidden.shape[1], -1)).masked_fill_(hidden.unsqueeze(2), -torch.inf)
    return raw.index_copy_(0, edge, cut.flatten(1, 2))


def selected_forward(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Attention o [B, Tq, H, V] to the chosen blocks and log-sum-exps [B, Tq, H]."""
    kv_heads, group = k.shape[2], q.shape[2] // k.shape[2]
    out, lse = q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3])
    blocks = Blocks(k, v, sizes, q.dtype)
    for here, tiles, t in gathered(q, k, chosen, sizes):
        queries = by_head(q[here], kv_heads)
        rows, top, total = (tiles.places(q, group, *x) for x in ((v.shape[-1], 0), (1, -torch.inf), (1, 0)))
        for part in tiles.parts(group, blocks.size):
            raw = scores(tiles.spread(queries, part), blocks, tiles, part, t)
            highest = raw.amax(-1, keepdim=True)
            weights = raw.sub_(highest).exp_()
            tiles.part_of(top, part).copy_(highest)
            tiles.part_of(total, part).copy_(weights.sum(-1, keepdim=True))
            torch.bmm(weights, blocks.values.index_select(0, tiles.row[part]), out=tiles.part_of(rows, part))
        tops, totals = top[..., 0][tiles.place], total[..., 0][tiles.place]
        highest = tops.amax(1)
        share = tops.sub_(highest.unsqueeze(1)).exp_()
        weight = (share * totals).sum(1)
        collected = tiles.collect(rows, share.div_(weight.unsqueeze(1)))
        out[here] = by_query(collected, q[here].shape, kv_heads)
        lse[here] = by_query((highest + weight.log()).unsqueeze(-1), q[here].shape, kv_heads)[..., 0]
    return out, lse


def selected_backward(
    grad: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, sizes: Sizes
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q [B, Tq, H, K], k [B, Tk, Hkv, K] and v [B, Tk, Hkv, V]; the weights are computed again.

    grad, out [B, Tq, H, V] and lse [B, Tq, H]: the gradient and the results of `selected_forward`; chosen int32
    [B, Tq, Hkv, n], the selected blocks.
    """
    kv_heads, group = k.shape[2], q.shape[2] // k.shape[2]
    blocks = Blocks(k, v, sizes, q.dtype)
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(blocks.keys), torch.zeros_like(blocks.values)
    delta = (grad * out).sum(-1)
    for here, tiles, t in gathered(q, k, chosen, sizes):
        inputs = [by_head(x[here], kv_heads) for x in (q, grad, torch.stack([lse, delta], -1))]
        rows = tiles.places(q, group, q.shape[-1], 0)
        for part in tiles.parts(group, blocks.size):
            row = tiles.row[part]
            queries, d_out, numbers = (tiles.spread(x, part) for x in inputs)
            shift, less = numbers.split(1, -1)
            weights = scores(queries, blocks, tiles, part, t).sub_(shift).exp_()
            d_scores = torch.bmm(d_out, blocks.values_t.index_select(0, row)).sub_(less).mul_(weights)
            torch.bmm(d_scores, blocks.keys.index_select(0, row), out=tiles.part_of(rows, part))
            dk.index_add_(0, row, torch.bmm(d_scores.mT, queries))
            dv.index_add_(0, row, torch.bmm(weights.mT, d_out))
        dq[here] = by_query(tiles.collect(rows), q[here].shape, kv_heads)
    return dq, blocks.whole(dk, k), blocks.whole(dv, v)


# One query, the last token: only the end of its own block is hidden from it.

Pair = tuple[Tensor, Tensor]


def nsa_torch_step(
    q: Tensor,
    compressed: Pair,
    selected: Pair,
    sliding: Pair,
    gates: Tensor,
    *,
    q_rotated: Tensor,
    sizes: Sizes,
    scale: float,
) -> Tensor:
    """Compute `kernels.nsa_attention` of T = 1 tokens, without gradient; reads of a cache what the token sees.

    q, q_rotated [B, 1, H, K]; compressed, selected, sliding: pairs of k [B, M or Tk, Hkv, K], v [B, M or Tk, Hkv, V];
    gates [B, 1, H, 3] -> [B, 1, H, V] in q's dtype.
    """
    wide, kv_heads = torch.promote_types(q.dtype, torch.float32), selected[0].shape[2]
    time = selected[0].shape[1]
    with without_autocast(q):
        plain, rotated = (x[:, 0].to(wide).unflatten(1, (kv_heads, -1)) for x in (q, q_rotated))
        coarse, weights = _compressed(plain, compressed, sizes.compressed(time), scale)
        blocks = newest_block_topk(weights.mean(2), time, sizes)
        fine = _selected(rotated, selected, blocks, sizes, scale)
        near = (x[:, -sizes.window :].transpose(1, 2).to(wide) for x in sliding)
        near = sdpa(rotated, *near, scale=scale)
        branches = torch.stack((coarse, fine, near), -2).flatten(1, 2)
        out = gates[:, 0].to(wide).unsqueeze(-2) @ branches
    return out.transpose(1, 2).to(q.dtype)


def _compressed(q: Tensor, pair: Pair, blocks: int, scale: float) -> tuple[Tensor, Tensor]:
    """o [B, Hkv, G, V] over the first `blocks` summaries, and the weights [B, Hkv, G, blocks]; 0 without a summary."""
    k, v = (x[:, :blocks].transpose(1, 2).to(q.dtype) for x in pair)
    weights = (q @ k.mT).mul_(scale).softmax(-1)
    return weights @ v, weights


def _selected(q: Tensor, pair: Pair, blocks: Tensor, sizes: Sizes, scale: float) -> Tensor:
    """o [B, Hkv, G, V] over the tokens of the blocks [B, Hkv, n]."""
    place = torch.arange(sizes.select_size, device=q.device)
    token = (blocks.unsqueeze(-1) * sizes.select_size + place).flatten(2)
    last, (batch, heads) = pair[0].shape[1] - 1, token.shape[:2]
    at = token.clamp_max(last)
    sequence = torch.arange(batch, device=q.device)[:, None, None]
    head = torch.arange(heads, device=q.device)[:, None]
    k, v = (x[sequence, at, head].to(q.dtype) for x in pair)
    visible = (token <= last).unsqueeze(2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale)


# The backend, as two operators that are opaque to tracing.
#
# Their loops depend on lengths, which for packed sequences are data: so `torch.compile` and the meta device see
# operators with a shape, a gradient and a cost. Packed sequences become batches of about one length.


def nsa_attention_torch(
    q: Tensor,
    compressed: Pair,
    selected: Pair,
    sliding: Pair,
    gates: Tensor,
    *,
    q_rotated: Tensor,
    sizes: Sizes,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.nsa_attention`: the three branches, then their gated sum.

    q, q_rotated [B, Tq, H, K]; compressed, selected, sliding: pairs of k [B, M or Tk, Hkv, K], v [B, M or Tk, Hkv, V];
    gates [B, Tq, H, 3] -> [B, Tq, H, V] in q's dtype.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if _is_step(q, cu_seqlens):
        kv = (compressed, selected, sliding)
        return nsa_torch_step(q, *kv, gates, q_rotated=q_rotated, sizes=sizes, scale=scale)
    reverse_mode_only("nsa_attention", q, q_rotated, *compressed, *selected, *sliding)
    wide = torch.promote_types(q.dtype, torch.float32)
    numbers = (sizes.block_size, sizes.stride, sizes.select_size, sizes.n_select, sizes.window)
    queries = (x.to(wide) * scale for x in (q, q_rotated))
    coarse, fine, near, *_ = branches_op(*queries, *compressed, *selected, *sliding, numbers, cu_seqlens)
    g = gates.unsqueeze(-1)
    return (g[..., 0, :] * coarse + g[..., 1, :] * fine + g[..., 2, :] * near).to(q.dtype)


def _is_step(q: Tensor, cu_seqlens: Tensor | None) -> bool:
    """Return whether a call decodes one token."""
    return q.shape[1] == 1 and cu_seqlens is None and not (torch.is_grad_enabled() or q.is_meta)


def forward(
    q: Tensor, q_rotated: Tensor, compressed: Pair, selected: Pair, sliding: Pair, sizes: Sizes
) -> tuple[Tensor, ...]:
    """The branches [B, Tq, H, V], log-sum-exps and selected blocks of one sequence, or of a batch of one length."""
    time, kv_heads = selected[0].shape[1], selected[0].shape[2]
    chosen = q.new_empty(*q.shape[:2], kv_heads, sizes.n_select, dtype=torch.int32)

    def on_weights(part: QueryBlock, weights: Tensor) -> None:
        t = torch.arange(part.here.start, part.here.stop, device=q.device) + time - q.shape[1]
        last = time - q.shape[1] + part.here.stop - 1
        chosen[:, part.here] = block_topk(weights.mean(3), t, last, sizes).transpose(1, 2)

    coarse = attend(compression_blocks(q, time, sizes), q, *compressed, on_weights)
    fine, lse = selected_forward(q_rotated, *selected, chosen, sizes)
    near = attend(window_blocks(q_rotated, sliding[0].shape[1], sizes.window), q_rotated, *sliding)
    return coarse, fine, near, lse, chosen


def backward(
    grads: list[Tensor],
    results: list[Tensor],
    q: Tensor,
    q_rotated: Tensor,
    compressed: Pair,
    selected: Pair,
    sliding: Pair,
    sizes: Sizes,
) -> tuple[Tensor, ...]:
    """Gradients of q, q_rotated [B, Tq, H, K], and of every branch's k [B, M or Tk, Hkv, K] and v [B, M or Tk, Hkv, V].

    grads: three [B, Tq, H, V] of the branches' outputs; results: what `forward` returned. The eight gradients come in
    the order of compression, selection, window.
    """
    coarse, fine, near, lse, chosen = results
    rows = compression_blocks(q, selected[0].shape[1], sizes)
    dq, *d_compressed = attend_backward(rows, grads[0], coarse, q, *compressed)
    d_rotated, *d_selected = selected_backward(grads[1], fine, lse, q_rotated, *selected, chosen, sizes)
    rows = window_blocks(q_rotated, sliding[0].shape[1], sizes.window)
    more, *d_sliding = attend_backward(rows, grads[2], near, q_rotated, *sliding)
    return dq, d_rotated.add_(more), *d_compressed, *d_selected, *d_sliding


@torch.library.custom_op("archzoo::nsa_branches", mutates_args=())
def branches_op(
    q: Tensor,
    q_rotated: Tensor,
    k_compressed: Tensor,
    v_compressed: Tensor,
    k_selected: Tensor,
    v_selected: Tensor,
    k_sliding: Tensor,
    v_sliding: Tensor,
    sizes: list[int],
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run `forward` on every sequence; selected blocks are numbered within their sequence.

    q, q_rotated [B, Tq, H, K], scaled; k and v of the branches [B, M or Tk, Hkv, K or V]; sizes: of `Sizes`, in order.
    Returns the branches' outputs, three [B, Tq, H, V], log-sum-exps [B, Tq, H] of selection, and selected blocks int32
    [B, Tq, Hkv, n].
    """
    inputs = (q, q_rotated, k_compressed, v_compressed, k_selected, v_selected, k_sliding, v_sliding)
    s = Sizes(*sizes)
    with without_autocast(q):
        if cu_seqlens is None:
            return forward(*_branches(inputs), s)
        axes = _axes(cu_seqlens, q.shape[2], s)
        batches = zip(*(axis.spread(x[0]) for x, axis in zip(inputs, axes, strict=True)), strict=True)
        parts = [forward(*_branches(batch), s) for batch in batches]
    return tuple(axes[0].collect(part).unsqueeze(0) for part in zip(*parts, strict=True))


def _branches(inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor, Pair, Pair, Pair]:
    """q, q_rotated and (k, v) three times."""
    return inputs[0], inputs[1], inputs[2:4], inputs[4:6], inputs[6:8]


def _axes(cu_seqlens: Tensor, heads: int, sizes: Sizes) -> tuple[Axis, ...]:
    """The time axis of each of those eight tensors: of tokens or of compressed blocks. Reads cu_seqlens."""
    rectangles = Rectangles.of(cu_seqlens, heads)
    tokens, blocks = rectangles.axis(), rectangles.axis(sizes.compressed)
    return tokens, tokens, blocks, blocks, tokens, tokens, tokens, tokens


@branches_op.register_fake
def _(q, q_rotated, kc, vc, ks, vs, kw, vw, sizes, cu_seqlens):
    outs = (q.new_empty(*q.shape[:3], vs.shape[-1]) for _ in range(3))
    chosen = q.new_empty(*q.shape[:2], ks.shape[2], sizes[3], dtype=torch.int32)
    return *outs, q.new_empty(q.shape[:3]), chosen


@torch.library.custom_op("archzoo::nsa_branches_backward", mutates_args=())
def branches_backward_op(
    grads: list[Tensor],
    results: list[Tensor],
    inputs: list[Tensor],
    sizes: list[int],
    cu_seqlens: Tensor | None,
) -> list[Tensor]:
    """Gradients of the first eight arguments of `branches_op`, `inputs`, in their shapes and dtypes.

    grads: three [B, Tq, H, V] of the branches' outputs; results: what `branches_op` returned.
    """
    s = Sizes(*sizes)
    with without_autocast(inputs[0]):
        if cu_seqlens is None:
            return [x.contiguous() for x in backward(grads, results, *_branches(inputs), s)]
        axes = _axes(cu_seqlens, inputs[0].shape[2], s)
        outer = zip(*(axes[0].spread(x[0]) for x in (*grads, *results)), strict=True)
        batches = zip(*(axis.spread(x[0]) for x, axis in zip(inputs, axes, strict=True)), strict=True)
        parts = [
            backward(given[:3], given[3:], *_branches(batch), s)
            for given, batch in zip(outer, batches, strict=True)
        ]
    gradients = [
        axis.collect(part).unsqueeze(0) for axis, part in zip(axes, zip(*parts, strict=True), strict=True)
    ]
    # Places on the axis of blocks that no sequence has filled have no gradient.
    return [
        F.pad(d, (0, 0, 0, 0, 0, x.shape[1] - d.shape[1])) for d, x in zip(gradients, inputs, strict=True)
    ]


@branches_backward_op.register_fake
def _(grads, results, inputs, sizes, cu_seqlens):
    return [x.new_empty(x.shape) for x in inputs]


def _save(ctx, inputs, output):
    *tensors, ctx.sizes, cu_seqlens = inputs
    ctx.mark_non_differentiable(output[4])
    ctx.save_for_backward(*output, *tensors, cu_seqlens)


def _backward(ctx, *grads):
    *tensors, cu_seqlens = ctx.saved_tensors
    results, inputs = tensors[:5], tensors[5:]
    given = [grad.contiguous() for grad in grads[:3]]
    return *branches_backward_op(given, results, inputs, ctx.sizes, cu_seqlens), None, None


branches_op.register_autograd(_backward, setup_context=_save)


def score_entries(time: int, blocks: int, sizes: list[int]) -> int:
    """Scores of one query and head: every compressed block, n blocks of tokens and the window, hidden or not."""
    _, _, select_size, n_select, window = sizes
    return blocks + min(time, n_select * select_size) + min(time, window)


@register_flop_formula(torch.ops.archzoo.nsa_branches)
def _flops(q, q_rotated, kc, vc, ks, vs, kw, vw, sizes, cu_seqlens, *, out_shape=None, **_) -> int:
    return attention_flops(q[0] * q[1] * q[2] * score_entries(ks[1], kc[1], sizes), q[3], vs[3])


@register_flop_formula(torch.ops.archzoo.nsa_branches_backward)
def _backward_flops(grads, results, inputs, sizes, cu_seqlens, *, out_shape=None, **_) -> int:
    return 2 * _flops(*inputs, sizes, cu_seqlens)
