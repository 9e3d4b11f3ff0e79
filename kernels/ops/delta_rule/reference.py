"""The gated delta rule by its definition: one token after another."""

from __future__ import annotations

import torch
from torch import Tensor


def delta_rule_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute `kernels.delta_rule` for every sequence by itself, token by token.

    S_t = (I − β_t·k_t·k_tᵀ)·Diag(exp g_t)·S_{t−1} + β_t·k_t·v_tᵀ,  o_t = scale·S_tᵀ·q_t, with
    as many heads of q, k and v as of beta.

    q, k [B, T, H, K], v [B, T, H, V], g [B, T, H] or [B, T, H, K], beta [B, T, H], initial_state [N, H, K, V]. Returns
    o [B, T, H, V] in v's dtype and the state [N, H, K, V] in at least fp32, or None. Source: as `kernels.delta_rule`.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    wide = torch.promote_types(q.dtype, torch.float32)
    wide_q, *others, g, beta = (x.to(wide) for x in (q, k, v, g, beta))
    decay = g.exp() if g.dim() == 4 else g.exp().unsqueeze(-1)
    inputs = [wide_q * scale, *others, decay, beta.unsqueeze(-1)]
    lengths = [q.shape[1]] if cu_seqlens is None else cu_seqlens.diff().tolist()
    sequences = zip(*(x.split(lengths, 1) for x in inputs), strict=True)
    shape = (q.shape[0] * len(lengths), *k.shape[2:], v.shape[-1])
    state = q.new_zeros(shape, dtype=wide) if initial_state is None else initial_state.to(wide)
    outputs, finals = [], []
    for s, sequence in zip(state.chunk(len(lengths)), sequences, strict=True):
        for token in zip(*(x.unbind(1) for x in sequence), strict=True):
            o, s = delta_rule_step(s, *token)
            outputs.append(o)
        finals.append(s)
    return torch.stack(outputs, 1).to(v.dtype), torch.cat(finals) if output_final_state else None


def delta_rule_step(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Return o = Sᵀ·q and S ← (I − β·k·kᵀ)·Diag(decay)·S + β·k·vᵀ; q is already scaled.

    state [B, H, K, V]; q, k [B, H, K]; v [B, H, V]; decay [B, H, K or 1]; beta [B, H, 1].
    """
    state = decay.unsqueeze(-1) * state
    error = v - torch.einsum("bhk,bhkv->bhv", k, state)
    state = state + torch.einsum("bhk,bhv->bhkv", beta * k, error)
    return torch.einsum("bhk,bhkv->bhv", q, state), state


def linear_step(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Return o = Sᵀ·q and S ← Diag(decay)·S + β·k·vᵀ, the step without the delta term; q is already scaled.

    state [B, H, K, V]; q, k [B, H, K]; v [B, H, V]; decay [B, H, K or 1]; beta [B, H, 1].
    """
    state = decay.unsqueeze(-1) * state + torch.einsum("bhk,bhv->bhkv", beta * k, v)
    return torch.einsum("bhk,bhkv->bhv", q, state), state
