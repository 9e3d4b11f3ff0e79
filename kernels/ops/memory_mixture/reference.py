"""The mixture of memories by its definition: token by token, memory by memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.ops.delta_rule.reference import delta_rule_step, linear_step


def memory_mixture_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    routes: Tensor,
    weights: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    update: str = "gated_delta",
) -> tuple[Tensor, Tensor | None]:
    """Compute `kernels.memory_mixture` for every sequence by itself, token by token.

    The only form that checks the routes: raises ValueError for a memory outside [0, M) or named twice.

    q [B, T, H, K], k [B, T, M, H, K], v [B, T, M, H, V], g, beta [B, T, M, H], routes integer [B, T, R],
    weights [B, T, R], initial_state [N, M, H, K, V] or None. Returns o [B, T, H, V] in v's dtype and
    the memories [N, M, H, K, V] in at least fp32, or None.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    wide = torch.promote_types(q.dtype, torch.float32)
    named = _named(routes, k.shape[2])
    wide_q, *others, g, beta, weights = (x.to(wide) for x in (q, k, v, g, beta, weights))
    inputs = [wide_q * scale, *others, g.exp().unsqueeze(-1), beta.unsqueeze(-1), weights]
    lengths = [q.shape[1]] if cu_seqlens is None else cu_seqlens.diff().tolist()
    sequences = zip(*(x.split(lengths, 1) for x in (*inputs, named)), strict=True)
    shape = (q.shape[0] * len(lengths), *k.shape[2:], v.shape[-1])
    state = q.new_zeros(shape, dtype=wide) if initial_state is None else initial_state.to(wide)
    step = delta_rule_step if update == "gated_delta" else linear_step
    outputs, finals = [], []
    for memories, sequence in zip(state.chunk(len(lengths)), sequences, strict=True):
        memories = list(memories.unbind(1))
        for token in zip(*(x.unbind(1) for x in sequence), strict=True):
            outputs.append(_update(memories, step, *token))
        finals.append(torch.stack(memories, 1))
    return torch.stack(outputs, 1).to(v.dtype), torch.cat(finals) if output_final_state else None


def _update(memories: list[Tensor], step: Callable, q, k, v, decay, beta, weights, named) -> Tensor:
    """One token: every memory [B, H, K, V] that it names is replaced by the next; returns the mixture's output."""
    out = torch.zeros_like(v[:, 0])
    for m, before in enumerate(memories):
        o, after = step(before, q, k[:, m], v[:, m], decay[:, m], beta[:, m])
        here = named[:, :, m]  # [B, R]
        memories[m] = torch.where(here.any(1)[:, None, None, None], after, before)
        out = out + (weights * here).sum(1)[:, None, None] * o
    return out


def _named(routes: Tensor, memories: int) -> Tensor:
    """bool [B, T, R, M]: which memory every route names."""
    named = routes.unsqueeze(-1) == torch.arange(memories, device=routes.device)
    if (
        not routes.is_meta
        and not torch.compiler.is_compiling()
        and not bool(named.any(-1).all() & (named.sum(2) <= 1).all())
    ):
        raise ValueError(
            f"routes must be different memories in [0, {memories}), got {routes.flatten()[:8].tolist()} …"
        )
    return named
