"""The mesa layer by its definition: one token after another, one conjugate gradient a token."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.dispatch import without_autocast

State = tuple[Tensor, Tensor]


def mesa_reference(
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
    """Compute `kernels.mesa` for every sequence by itself, in at least fp32.

    Gradients are those of the exact solution, of any order and in either mode of differentiation.

    q, k [B, T, H, K], v [B, T, H, V], g, beta [B, T, H], lamb [H, K], initial_state (H [N, H, K, K], G [N, H, K, V]) or
    None. Returns o [B, T, H, V] in q's dtype and (H, G) in at least fp32, or None.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    tokens = [x.to(wide) for x in (q, k, v, g.to(wide).exp(), beta)]
    lamb = lamb.to(wide)  # once: a cast at every token would add Λ's gradient over tokens in Λ's own type
    sequences = 1 if cu_seqlens is None else cu_seqlens.shape[0] - 1
    lengths = [q.shape[1]] if cu_seqlens is None else cu_seqlens.diff().tolist()
    if initial_state is None:
        rows, heads, width = q.shape[0] * sequences, q.shape[2], q.shape[3]
        initial_state = tuple(tokens[0].new_zeros(rows, heads, width, x.shape[3]) for x in (k, v))
    else:
        initial_state = with_symmetric_part(initial_state)
    starts = zip(*(x.to(wide).chunk(sequences) for x in initial_state), strict=True)
    outputs, finals = [], []
    with without_autocast(q):
        for part, state in zip(zip(*(x.split(lengths, 1) for x in tokens), strict=True), starts, strict=True):
            for token in zip(*(x.unbind(1) for x in part), strict=True):
                o, state = mesa_step(*token, lamb, *state, cg_steps)
                outputs.append(o)
            finals.append(state)
    o = torch.stack(outputs, 1) if outputs else tokens[2]
    final = tuple(torch.cat(x) for x in zip(*finals, strict=True)) if output_final_state else None
    return o.to(q.dtype), final


def with_symmetric_part(state: State) -> State:
    """Return ((H + Hᵀ)/2, G), the part of an initial state (H, G) that is used."""
    h_kk, h_kv = state
    return 0.5 * (h_kk + h_kk.mT), h_kv


def mesa_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Tensor,
    beta: Tensor,
    lamb: Tensor,
    h_kk: Tensor,
    h_kv: Tensor,
    cg_steps: int,
) -> tuple[Tensor, State]:
    """Return o = Gᵀ·(H + Λ)⁻¹·q and the new H ← γ·H + β·k·kᵀ and G ← γ·G + β·k·vᵀ.

    q, k [B, H, K]; v [B, H, V]; gamma, beta [B, H]; lamb [H, K]; h_kk [B, H, K, K]; h_kv [B, H, K, V].
    """
    h_kk, h_kv = write(h_kk, k, k, gamma, beta), write(h_kv, k, v, gamma, beta)
    x = solution(h_kk, lamb, q, cg_steps)
    return (x[..., None, :] @ h_kv)[..., 0, :], (h_kk, h_kv)


def write(state: Tensor, k: Tensor, y: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """Return γ·S + β·k·yᵀ: state [B, H, K, Y]; k [B, H, K]; y [B, H, Y]; gamma, beta [B, H]."""
    return gamma[..., None, None] * state + beta[..., None, None] * k[..., :, None] * y[..., None, :]


def solution(h_kk: Tensor, lamb: Tensor, b: Tensor, steps: int) -> Tensor:
    """Approximate (H + Λ)⁻¹·b by so many conjugate gradients, with the derivatives of the exact solution.

    The steps themselves have no use as a derivative: where few keys are repeated they end before other directions, in
    which a change of H would show, have been looked at.

    h_kk H [B, H, K, K], symmetric, positive semi-definite; lamb [H, K], > 0; b [B, H, K] -> [B, H, K].
    """
    for x in iterates(h_kk.detach(), lamb.detach(), b.detach(), steps):
        last = x
    exact = torch.linalg.solve_ex(h_kk + torch.diag_embed(lamb), b[..., None])[0][..., 0]
    return last + (exact - exact.detach())


def iterates(h_kk: Tensor, lamb: Tensor, b: Tensor, steps: int) -> Iterator[Tensor]:
    """Yield the conjugate gradients' approximations of (H + Λ)⁻¹·b: 0 before the first step, and one after each.

    Preconditioned by Λ (kernels.ops.mesa says why). A residual far below rounding counts as 0: its ratios are noise.

    h_kk H [..., H, K, K], symmetric, positive semi-definite; lamb [H, K], > 0; b [..., H, K] -> each [..., H, K].
    """
    x, r = torch.zeros_like(b), b
    p = z = r / lamb
    rz = _dot(r, z)
    enough = rz * (0.01 * torch.finfo(b.dtype).eps) ** 2
    yield x
    for _ in range(steps):
        done = rz <= enough
        ap = lamb * p + (h_kk @ p[..., None])[..., 0]
        alpha = _ratio(rz, _dot(p, ap), done)
        x, r = x + alpha * p, r - alpha * ap
        z = r / lamb
        rz, old = _dot(r, z), rz
        p = z + _ratio(rz, old, done) * p
        yield x


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1, keepdim=True)


def _ratio(numerator: Tensor, denominator: Tensor, done: Tensor) -> Tensor:
    """numerator / denominator, and 0 where the solution has been reached (0/0 among them)."""
    return (numerator / denominator.masked_fill(done, 1)).masked_fill(done, 0)
