"""Lightning top-k in blocks of queries: B·C·HI·T scores at a time, never T × T × HI."""

from __future__ import annotations

import functools

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.autograd import backward_costs
from kernels.dispatch import only_sizes, without_autocast
from kernels.indices import Block, block_size, query_blocks
from kernels.ops.lightning_topk.scores import (
    FIRST,
    AdaptiveK,
    best_first,
    blocks_of_keys,
    continued,
    index_scores_alike,
    newest_scores,
    ranks,
    tile_starts,
    variances,
    wide,
)

# The best of each row by partition, on a CPU: a top-k also sorts what it finds, and carries places along.


def lowest_kept(rank: Tensor, counts: Tensor) -> Tensor:
    """The counts-th highest of each row's ranks: rank int64 [B, C, S], counts int64 [B, C] in [1, S] -> [B, C].

    NumPy partitions rows in vectors, several times as fast as PyTorch's top-k.
    """
    rows, places = rank.flatten(0, 1).numpy(), (rank.shape[-1] - counts).flatten().tolist()
    lowest = [np.partition(row, place)[place] for row, place in zip(rows, places, strict=True)]
    return torch.from_numpy(np.array(lowest, dtype=np.int64)).view(counts.shape)


def best_places(rank: Tensor, counts: Tensor, k_max: int) -> Tensor:
    """Places of the `counts` [B, C] highest of each row's distinct ranks [B, C, S], latest first, int32 [B, C, k_max].

    Unused ones are −1.
    """
    kept, counts = (rank >= lowest_kept(rank, counts).unsqueeze(-1)).flatten(0, 1), counts.flatten()
    row, place = kept.nonzero(as_tuple=True)
    # Places of a row come in rising order: the last of them is the first of the result.
    slot = (kept.sum(-1).cumsum(0) - 1)[row] - torch.arange(len(row))
    inside = slot < counts[row]  # more are kept only where weights below 0 rank anywhere
    out = torch.full((len(counts), k_max), -1, dtype=torch.int32)
    out[row[inside], slot[inside]] = place[inside].to(torch.int32)
    return out.view(*rank.shape[:2], k_max)


def lightning_topk_torch(
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    *,
    k: Tensor | AdaptiveK,
    k_max: int,
    scores: str,
    cu_seqlens: Tensor | None = None,
    share: int = 1,
    key_block: int = 1,
) -> Tensor:
    """Compute `kernels.lightning_topk` in blocks of queries; under tracing, behind one operator.

    q_idx [B, Tq, HI, DI], k_idx [B, Tk, DI], w_idx [B, Tq, HI], bias [HI], k [B, Tq] or a rule -> int32 [B, Tq, n].
    """
    inputs = [x.detach() for x in wide(q_idx, k_idx, w_idx, bias)]
    if only_sizes(q_idx):
        counts, rule = (k, None) if isinstance(k, Tensor) else (None, k)
        rule = rule or AdaptiveK("none", 1, 1, 1)
        settings = (rule.rule, rule.base, rule.least, rule.most, rule.beta, rule.reference)
        return lightning_topk_op(*inputs, counts, *settings, k_max, scores, cu_seqlens, share, key_block)
    if q_idx.shape[1] == 1 and cu_seqlens is None and share == key_block == 1:
        return lightning_topk_step(*inputs, k=k, k_max=k_max, scores=scores)
    options = {"cu_seqlens": cu_seqlens, "share": share, "key_block": key_block}
    return lightning_topk_blocks(*inputs, k=k, k_max=k_max, scores=scores, **options)


@torch.no_grad()
def lightning_topk_blocks(
    q: Tensor,
    k_idx: Tensor,
    w: Tensor,
    bias: Tensor,
    *,
    k: Tensor | AdaptiveK,
    k_max: int,
    scores: str,
    cu_seqlens: Tensor | None,
    share: int = 1,
    key_block: int = 1,
) -> Tensor:
    """Selected keys int32 [B, Tq, n], one block of queries after another; memory T·n and T a block."""
    batch, queries, heads, _ = q.shape
    keys = k_idx.shape[1]
    starts = None
    if share > 1:  # only the first query of a tile selects
        starts = tile_starts(queries, keys, share, cu_seqlens)
        row = torch.tensor(list(starts), device=q.device) - (keys - queries)
        q, w, k = q[:, row], w[:, row], k[:, row] if isinstance(k, Tensor) else k
    size = block_size(batch * heads * keys, q.device)
    width = -(-k_max // key_block) * key_block
    out = torch.empty(batch, q.shape[1], width, dtype=torch.int32, device=q.device)
    select = _select if key_block == 1 else functools.partial(_select_blocks, key_block)
    with without_autocast(q):
        for block in query_blocks(queries, keys, size, cu_seqlens, q.device, at=starts):
            weights = block.rows(w)
            raw = index_scores_alike(block.rows(q), block.keys(k_idx), weights, bias, scores)
            counts = block.rows(k) if isinstance(k, Tensor) else k(variances(raw, block.visible, heads))
            block.rows(out).copy_(select(ranks(raw, weights, scores), counts, k_max, block))
    if share == 1:
        return out
    query = torch.arange(queries, device=q.device)
    tile = torch.searchsorted(row, query, right=True) - 1
    offset = keys - queries
    return continued(out[:, tile], row[tile] + offset, query + offset, share)


@torch.no_grad()
def lightning_topk_step(
    q: Tensor,
    k_idx: Tensor,
    w: Tensor,
    bias: Tensor,
    *,
    k: Tensor | AdaptiveK,
    k_max: int,
    scores: str,
) -> Tensor:
    """`lightning_topk_blocks` of one query, the last token: it sees every key, so that nothing is masked.

    q [B, 1, HI, DI], k_idx [B, Tk, DI], w [B, 1, HI], bias [HI], k [B, 1] or a rule -> int32 [B, 1, k_max].
    """
    with without_autocast(q):
        raw = newest_scores(q, k_idx, w, bias, scores)
        rank = ranks(raw, w, scores)
        rank[..., -1] = FIRST
        if isinstance(k, AdaptiveK) and raw.numel() == raw.shape[-1] and raw.device.type == "cpu":
            count = k.of_number(float(torch.var(raw, correction=0)) / len(bias) ** 2)
            best = rank.topk(min(count, k_max, rank.shape[-1]), -1).indices
            return _latest_first(best.to(torch.int32), k_max)
        counts = k if isinstance(k, Tensor) else k(torch.var(raw / len(bias), -1, correction=0))
        return _top_places(rank, counts.clamp(1, k_max), k_max)


def _select(rank: Tensor, counts: Tensor, k_max: int, block: Block) -> Tensor:
    """Positions of the highest ranks, latest first: rank [B, C, S], counts [B, C] -> [B, C, k_max]."""
    counts = torch.minimum(counts.clamp(1, k_max), block.visible.sum(-1))
    best = best_places if rank.device.type == "cpu" else _top_places
    chosen = best(best_first(rank, block), counts, k_max)
    return chosen if block.begin == 0 else torch.where(chosen < 0, -1, chosen + block.begin)


def _select_blocks(size: int, rank: Tensor, counts: Tensor, k_max: int, block: Block) -> Tensor:
    """Positions [B, C, ⌈k_max/size⌉·size] in the blocks of keys with the highest ranks [B, C, S], counts [B, C].

    A block has the rank of its best key; the query's own is the first, and holds no key after the query.
    """
    rows, keys = blocks_of_keys(block, size), rank.shape[-1]
    rank = F.pad(best_first(rank, block), (0, 1), value=-1)
    rank = rank[..., rows[:-1]].amax(-1)
    most = -(-k_max // size)
    counts = torch.minimum(-(-counts.clamp(1, k_max) // size), (rank >= 0).sum(-1))
    best = best_places if rank.device.type == "cpu" else _top_places
    chosen = rows.flip(-1)[best(rank, counts, most).long()].flatten(-2)
    # keys after the query, and places without a key, stand in the first block alone
    hidden = (chosen[..., :size] > block.own[:, None]).sum(-1, keepdim=True)
    place = torch.arange(most * size, device=rank.device) + hidden
    chosen = F.pad(chosen, (0, size), value=keys).gather(-1, place)
    return torch.where(chosen == keys, -1, chosen + block.begin).to(torch.int32)


def _top_places(rank: Tensor, counts: Tensor, k_max: int) -> Tensor:
    """Places of the `counts` [B, C] highest ranks [B, C, S], latest first, int32 [B, C, k_max], −1 where unused."""
    take = min(k_max, rank.shape[-1])
    best = rank.topk(take, -1).indices
    used = torch.arange(take, device=rank.device) < counts.unsqueeze(-1)
    return _latest_first(torch.where(used, best, -1).to(torch.int32), k_max)


def _latest_first(chosen: Tensor, k_max: int) -> Tensor:
    """Places [..., n] in falling order, and −1 behind them up to k_max."""
    missing = k_max - chosen.shape[-1]
    chosen = chosen.sort(-1, descending=True).values
    return F.pad(chosen, (0, missing), value=-1) if missing else chosen


@torch.library.custom_op("archzoo::lightning_topk", mutates_args=())
def lightning_topk_op(
    q: Tensor,
    k_idx: Tensor,
    w: Tensor,
    bias: Tensor,
    counts: Tensor | None,
    rule: str,
    base: int,
    least: int,
    most: int,
    beta: float,
    reference: float,
    k_max: int,
    scores: str,
    cu_seqlens: Tensor | None,
    share: int = 1,
    key_block: int = 1,
) -> Tensor:
    """`lightning_topk_blocks` behind one operator: how many blocks there are depends on the data's shape."""
    k = AdaptiveK(rule, base, least, most, beta, reference) if counts is None else counts
    options = {"cu_seqlens": cu_seqlens, "share": share, "key_block": key_block}
    return lightning_topk_blocks(q, k_idx, w, bias, k=k, k_max=k_max, scores=scores, **options)


@lightning_topk_op.register_fake
def _(q, k_idx, w, bias, counts, rule, base, least, most, beta, reference, k_max, scores, cu_seqlens,
      share=1, key_block=1):  # fmt: skip
    width = -(-k_max // key_block) * key_block + share - 1
    return q.new_empty(*q.shape[:2], width, dtype=torch.int32)


@register_flop_formula(torch.ops.archzoo.lightning_topk)
def _flops(q, k_idx, *args, out_shape=None, **_options) -> int:
    """Scores of all Tq × Tk pairs, masked or not, as for attention; of one query a tile that shares its choice."""
    batch, queries, heads, width = q
    queries = -(-queries // (args[12] if len(args) > 12 else 1))
    return 2 * batch * queries * k_idx[1] * heads * width


backward_costs(torch.ops.archzoo.lightning_topk, 0)
