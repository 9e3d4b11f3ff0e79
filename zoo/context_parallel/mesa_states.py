"""Initial states of the mesa layer in a shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.checks import without_autocast
from zoo.context_parallel.fold import fold, handed_through, last_sequence

if TYPE_CHECKING:
    from zoo.context import Context


def mesa_state_before(
    ctx: Context, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor] | None:
    """(H [n, H, K, K], G [n, H, K, V]) before the sequences of a shard, as `initial_state`; None where unsharded.

    Nothing has to be solved for states: with γ_t = exp g_t a shard of tokens 1 … t makes

        H ← (Π_s γ_s)·H + Σ_s (β_s·Π_{r>s} γ_r)·k_s·k_sᵀ        G likewise with k_s·v_sᵀ

    k [B, t, H, K], v [B, t, H, V], g and beta [B, t, H] as `kernels.mesa` takes them; at least fp32.
    """
    shard = ctx.shard
    if shard is None:
        return None
    wide = torch.promote_types(k.dtype, torch.float32)
    k, v, g, beta = (x[:, last_sequence(shard)].to(wide) for x in (k, v, g, beta))
    since = g.flip(1).cumsum(1).flip(1) - g  # Σ_{r>s} g_r, summed from the end: exact where it matters
    weights = beta * since.exp()
    with without_autocast(k):
        increment = torch.einsum("bthk,bthv->bhkv", k * weights.unsqueeze(-1), torch.cat([k, v], -1))
    passed = g.sum(1).exp() if handed_through(shard) else torch.zeros_like(g[:, 0])
    state = fold(passed[..., None, None].expand(*increment.shape[:-1], 1), increment, shard)
    return tuple(shard.for_each(x) for x in state.split([k.shape[-1], v.shape[-1]], -1))
