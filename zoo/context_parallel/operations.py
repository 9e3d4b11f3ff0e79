"""Operations across tokens, computed on a shard; mixers ask `Context` for them, which has the shapes.

Queries are a rank's own and keys all that came before (`by_keys`: attention, selection); a head needs all time at once
(`by_heads`: paths, timelines); a convolution reads the last inputs of the rank before (`inputs_before`), a recurrence
the state after them (`delta_state_before`, `mesa_state_before`); what knows nothing of shards computes the `whole`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import without_autocast
from zoo.context_parallel.fold import fold, last_sequence, sequence_spans_shard
from zoo.context_parallel.gather import gather
from zoo.context_parallel.halo import halo
from zoo.context_parallel.shard import Shard
from zoo.context_parallel.sums import total
from zoo.context_parallel.swap import to_heads, to_time
from zoo.errors import UserError

if TYPE_CHECKING:
    from zoo.context import Context

Losses = dict[str, Tensor]


def by_keys(
    read: Callable[..., tuple[Tensor, Losses]],
    queries: Sequence[Tensor | None],
    keys: Sequence[Tensor],
    shard: Shard,
) -> tuple[Tensor, Losses]:
    """`Context.by_keys_with_losses`: keys are gathered once, then `read` is called for each of the shard's pieces.

    queries, keys: the shard's own tokens, [B, t, ...] -> o [B, t, ...] and losses [] by name.
    """
    gathered = [gather(x, shard) for x in keys]
    outputs, losses = [], {}
    for piece in shard.pieces:
        own = (None if x is None else x[:, piece.queries] for x in queries)
        o, found = read(*own, *(x[:, piece.keys] for x in gathered), cu_seqlens=piece.cu_seqlens)
        outputs.append(o)
        for name, loss in found.items():
            losses[name] = losses.get(name, 0) + piece.share * loss
    return torch.cat(outputs, 1), {name: total(loss, shard) for name, loss in losses.items()}


def by_heads(read: Callable[..., Tensor], inputs: Sequence[Tensor | None], shard: Shard) -> Tensor:
    """`Context.by_heads`: time is swapped for heads, and back.

    Where N does not divide Hkv, KV heads are repeated for all heads; where it does not divide H, heads of zeros fill up
    the last ranks, whose results are dropped.

    inputs: the shard's own tokens, [B, t, H or Hkv, ...] or None -> o [B, t, H, ...].
    """
    heads = max(x.shape[2] for x in inputs if x is not None)
    swapped = (None if x is None else to_heads(_divisible(x, heads, shard.size), shard) for x in inputs)
    o = read(*swapped, cu_seqlens=shard.whole.cu_seqlens)
    return to_time(o, shard)[:, :, :heads]


def _divisible(x: Tensor, heads: int, ranks: int) -> Tensor:
    """x [B, T, Hkv, ...] with a number of heads that the ranks divide, in the order of its `heads` query heads."""
    if x.shape[2] % ranks == 0 and heads % ranks == 0:
        return x
    x = x.repeat_interleave(heads // x.shape[2], 2)
    return F.pad(x, (*(0, 0) * (x.dim() - 3), 0, -heads % ranks))


def inputs_before(x: Tensor, count: int, shard: Shard) -> Tensor:
    """`Context.inputs_before`: the last inputs of the rank before. Raises UserError for a shard of fewer tokens.

    x [B, t, D] -> [n, D, count], n the sequences that a shard holds part of.
    """
    if shard.length < count:
        raise UserError(
            f"a convolution over {count + 1} tokens needs shards of at least {count}, not {shard.length}; "
            f"take fewer than {shard.size} ranks"
        )
    before = halo(x[:, -count:], shard)
    place = torch.arange(shard.start - count, shard.start, device=x.device)
    before = torch.where((place >= shard.begins)[:, None], before, 0)
    return shard.for_each(before.transpose(1, 2))


def delta_state_before(operation: Callable[..., tuple], inputs: tuple, shard: Shard) -> Tensor:
    """`Context.delta_state_before`: linearity gives transition and increment of a shard in one run.

    It runs over values with K zeros behind them, from the state [0 | I], and ends with [B | A].
    """
    part = last_sequence(shard)
    q, k, v, *more = (x[:, part] for x in inputs)
    width = k.shape[-1]
    wide = torch.promote_types(v.dtype, torch.float32)
    start = v.new_zeros(v.shape[0], *v.shape[2:-1], width, v.shape[-1] + width, dtype=wide)
    if sequence_spans_shard(shard):
        start[..., v.shape[-1] :] = torch.eye(width, dtype=wide, device=v.device)
    _, end = operation(q, k, F.pad(v, (0, width)), *more, initial_state=start, output_final_state=True)
    increment, transition = end.split([v.shape[-1], width], -1)
    return shard.for_each(fold(transition, increment, shard))


def mesa_state_before(k: Tensor, v: Tensor, g: Tensor, beta: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """`Context.mesa_state_before`.

    Nothing has to be solved for states: with γ_t = exp g_t a shard of tokens 1 … t makes

        H ← (Π_s γ_s)·H + Σ_s (β_s·Π_{r>s} γ_r)·k_s·k_sᵀ        G likewise with k_s·v_sᵀ

    k [B, t, H, K], v [B, t, H, V], g, beta [B, t, H] -> (H [n, H, K, K], G [n, H, K, V]) in at least fp32.
    """
    wide = torch.promote_types(k.dtype, torch.float32)
    k, v, g, beta = (x[:, last_sequence(shard)].to(wide) for x in (k, v, g, beta))
    since = g.flip(1).cumsum(1).flip(1) - g  # Σ_{r>s} g_r, summed from the end: exact where it matters
    weights = beta * since.exp()
    with without_autocast(k):
        increment = torch.einsum("bthk,bthv->bhkv", k * weights.unsqueeze(-1), torch.cat([k, v], -1))
    passed = g.sum(1).exp() if sequence_spans_shard(shard) else torch.zeros_like(g[:, 0])
    state = fold(passed[..., None, None].expand(*increment.shape[:-1], 1), increment, shard)
    return tuple(shard.for_each(x) for x in state.split([k.shape[-1], v.shape[-1]], -1))


def whole(mixer: Callable, x: Tensor, ctx: Context) -> tuple[Tensor, dict[str, Tensor]]:
    """The own part of what a mixer makes of the whole batch: x [B, t, D] -> (y [B, t, D], auxiliary losses).

    Right for every mixer, and no faster than one device: N times the work, and the memory of whole sequences in this
    mixer. Losses are computed N times, too, so that each rank passes back an N-th of their gradient.
    """
    shard = ctx.shard
    y, aux = mixer(gather(x, shard, whole=True), shard.whole)
    return shard.own(y), {name: total(loss / shard.size, shard) for name, loss in aux.items()}


def cross_entropy(
    logits: Tensor, targets: Tensor, ignore_index: int, count: Tensor | None, shard: Shard
) -> Tensor:
    """`Context.cross_entropy` of logits [n, V] and targets [n]."""
    losses = F.cross_entropy(logits, targets, ignore_index=ignore_index, reduction="sum")
    if count is None:
        count = total((targets != ignore_index).sum(), shard)
    return total(losses, shard) / count
