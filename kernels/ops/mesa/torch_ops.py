"""The mesa layer chunk by chunk: all tokens' systems are solved at once, in memory linear in T."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import reverse_mode_only, without_autocast
from kernels.ops.mesa.layout import Chunks
from kernels.ops.mesa.reference import with_symmetric_part
from kernels.ops.mesa.scan import pair_sums
from kernels.ops.mesa.solve import solve
from kernels.ops.mesa.torch_step import mesa_torch_step

CHUNK = 32
"""Tokens a chunk. A longer one means fewer states to keep and more work a token."""

State = tuple[Tensor, Tensor]


def mesa_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    *,
    cg_steps: int = 30,
    initial_state: State | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, State | None]:
    """Compute `kernels.mesa` in chunks of tokens.

    With a chunk's start states H₀, G₀, c_t = exp(Σ g up to t) and W_ts = β_s·exp(Σ g from s+1 to t):

        H_t = c_t·H₀ + Σ_s W_ts·k_s·k_sᵀ,   G_t = c_t·G₀ + Σ_s W_ts·k_s·v_sᵀ      over s ≤ t of the chunk

    so that H_t·x and G_tᵀ·x are small products for all tokens of a chunk and no H_t is ever formed.

    q, k [B, T, H, K], v [B, T, H, V], g, beta [B, T, H], lamb [H, K], initial_state (H [N, H, K, K], G [N, H, K, V]) or
    None. Returns o [B, T, H, V] in q's dtype and (H, G) in at least fp32, or None.
    """
    if _is_step(q, initial_state, cu_seqlens):
        o, after = mesa_torch_step(q, k, v, g, beta, lamb, cg_steps, initial_state)
        return o, after if output_final_state else None
    reverse_mode_only("mesa", q, k, v, g, beta, lamb, *(initial_state or ()))
    wide = torch.promote_types(q.dtype, torch.float32)
    dtype, width, widths = q.dtype, q.shape[3], [q.shape[3], v.shape[3]]
    with without_autocast(q):
        chunks = Chunks.of(q.shape[1], CHUNK, cu_seqlens)
        initial = _flat_state(q, v, initial_state, cu_seqlens).to(wide)
        q, k, v, g, beta = (chunks.split(x.to(wide)) for x in (q, k, v, g, beta))
        carry = g.cumsum(-1).exp().unsqueeze(-1)
        weights = pair_sums(g).exp() * beta.unsqueeze(-2)
        writes = (k * weights[..., -1, :, None]).mT @ torch.cat([k, v], -1)
        before, after = chunks.states(writes.flatten(-2), g.sum(-1), initial)
        h_kk, h_kv = before.unflatten(-1, (width, -1)).split(widths, -1)
        diagonal = lamb.to(wide)[:, None, None].expand(*q.shape[:3], 1, width)
        systems = (x.flatten(0, 2) for x in (k, h_kk, carry, weights, diagonal))
        x = solve(q.flatten(0, 2), *systems, cg_steps).view_as(q)
        o = carry * (x @ h_kv) + (x @ k.mT * weights) @ v
    o = chunks.join(o).to(dtype)
    if not output_final_state:
        return o, None
    # Copies, for views would keep the states of all chunks in memory as long as these live.
    h_kk, h_kv = after.unflatten(-1, (width, -1)).split(widths, -1)
    return o, (
        h_kk.clone(memory_format=torch.contiguous_format),
        h_kv.clone(memory_format=torch.contiguous_format),
    )


def _is_step(q: Tensor, state: State | None, cu_seqlens: Tensor | None) -> bool:
    """Return whether a call decodes one token."""
    decodes = q.shape[1] == 1 and cu_seqlens is None and state is not None and not torch.is_grad_enabled()
    return decodes and q.device.type == "cpu" and not torch.compiler.is_compiling()


def _flat_state(q: Tensor, v: Tensor, state: State | None, cu_seqlens: Tensor | None) -> Tensor:
    """[H | G] of every sequence as one vector a head, [N, H, K·(K+V)]."""
    if state is not None:
        return torch.cat(with_symmetric_part(state), -1).flatten(-2)
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return q.new_zeros(sequences, q.shape[2], q.shape[3] * (q.shape[3] + v.shape[3]))
