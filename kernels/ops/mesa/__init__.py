"""The mesa layer: at every token the ridge regression of values on keys so far, applied to the query.

    H_t = γ_t·H_{t−1} + β_t·k_t·k_tᵀ,   G_t = γ_t·G_{t−1} + β_t·k_t·v_tᵀ,   γ_t = exp g_t
    o_t = G_tᵀ·(H_t + Λ)⁻¹·q_t

Here are the public function, its checks, its backends and its work for a roofline.

reference.py        the definition, token by token
torch_form.py       chunks of tokens in PyTorch, decoding, and the residuals of the solver
triton_ops.py       the same on a GPU: the order of the steps, forward and backward
triton_forward.py   kernels that compute chunks' states, solve their systems and read their outputs
triton_backward.py  kernels of the gradients of keys, gates, write strengths and Λ
triton_step.py      the kernel of one token, for decoding
"""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import Operation, always, check_packed, on_cuda, only_when_named
from kernels.ops.mesa.reference import mesa_reference
from kernels.ops.mesa.torch_form import mesa_residuals, mesa_torch
from kernels.triton_common import lazily, refusal
from kernels.triton_common.tiles import Work, nbytes

__all__ = ["mesa", "mesa_residuals"]


def _refuses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    *,
    initial_state: tuple[Tensor, Tensor] | None = None,
    **_options,
) -> str | None:
    return refusal(q, k, v, g, beta, lamb, *(initial_state or ()), widths=(q.shape[3], v.shape[3]))


OPERATION = Operation("mesa")
OPERATION.register(
    "triton",
    lazily("kernels.ops.mesa.triton_ops", "mesa_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", mesa_torch, suits=always)
OPERATION.register("reference", mesa_reference, suits=only_when_named)


def mesa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    *,
    cg_steps: int = 30,
    initial_state: tuple[Tensor, Tensor] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Compute the mesa layer: at every token the output of the ridge regression of values on keys so far.

        H_t = γ_t·H_{t−1} + β_t·k_t·k_tᵀ,   G_t = γ_t·G_{t−1} + β_t·k_t·v_tᵀ,   γ_t = exp g_t
        q*_t = (H_t + Λ)⁻¹·q_t,             o_t = G_tᵀ·q*_t

    With ω_s = β_s·Π_{r=s+1…t} γ_r, o_t = W·q_t for the W that minimises ½Σ_s ω_s‖v_s − W·k_s‖² + ½Tr(W·Λ·Wᵀ).

    q, k           [B, T, H, K], any floating dtype; neither is normalised or scaled here
    v              [B, T, H, V]
    g              [B, T, H], log gates ≤ 0
    beta           [B, T, H], write strengths ≥ 0
    lamb           [H, K], the diagonal of Λ itself, > 0
    cg_steps       steps of the conjugate gradient from x = 0, preconditioned by Λ; none is taken where the
                   solution is exact but for rounding
    initial_state  (H [N, H, K, K], G [N, H, K, V]) before every sequence (H's symmetric part counts);
                   None: zeros
    cu_seqlens     int32 [N+1], 0 … T: B = 1, and tokens [cu[i], cu[i+1]) are a sequence of their own
                   (N = B without it)
    backend        auto, triton (what auto takes on a GPU), torch (chunks of tokens), reference
                   (token by token)
    returns        o [B, T, H, V] in q's dtype, and (H, G) after every sequence in at least fp32, None unless
                   output_final_state

    How many steps are enough (relative error of o against the exact solve; unit keys, Λ = 1, K = 64, 128):

        steps                                   5        10      30
        nothing is forgotten (γ = 1, T = 256)   3e-3     9e-6    1e-15 (fp32: 3e-7)
        γ = σ(2 + normal)                       7e-5     4e-10   2e-15

    Why Λ: steps are taken on I + Λ^(−½)·H·Λ^(−½), and n distinct keys, however often each was written, make that
    n + 1 different eigenvalues at most, which n + 1 steps solve. The diagonal of H + Λ breaks this up: one key
    written 1,024 times then leaves errors of 5e-2 (Λ = 1) and 1 (Λ = 0.25) after 30 steps, where Λ leaves 4e-5 and
    2e-4, fp32's own. Without a preconditioner the same holds as long as Λ is one number, but few keys beside a Λ
    of 0.25 to 4 have errors of 1e-1. What 30 steps do not solve is a long memory (γ = 1, thousands of tokens)
    whose keys' variances are spread over decades: 1e-2 to 5e-2. `mesa_residuals` shows it. fp32 itself loses
    about 3e-8 times the condition of H + Λ.

    Everything is computed in at least fp32. `torch` and `triton` differentiate implicitly, by a second solve with
    as many steps; `reference` has the derivatives of the exact solution. They agree once both have converged.
    A NaN in an input shows in all outputs and gradients that depend on it; forms that compute chunks of tokens may
    carry it to earlier tokens as well, `torch` also to other packed sequences.
    Memory is linear in T. `torch` pads packed sequences to whole chunks, each by less than one.
    Raises ValueError for shapes that do not fit, cg_steps < 1, and an unknown backend;
    NotImplementedError for forward-mode differentiation, which the reference alone has.
    Source: von Oswald et al. 2025, MesaNet (arXiv:2506.05233).
    """
    check_mesa(q, k, v, g, beta, lamb, cg_steps, initial_state, cu_seqlens)
    return OPERATION(
        q,
        k,
        v,
        g,
        beta,
        lamb,
        cg_steps=cg_steps,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        backend=backend,
    )


def check_mesa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    cg_steps: int,
    initial_state: tuple[Tensor, Tensor] | None,
    cu_seqlens: Tensor | None,
) -> None:
    """Raise ValueError if the arguments of `mesa` do not fit each other.

    They are q, k [B, T, H, K], v [B, T, H, V], g, beta [B, T, H], lamb [H, K], cg_steps ≥ 1, initial_state (H [N, H,
    K, K], G [N, H, K, V]) or None, cu_seqlens [N+1] or None (B = 1).
    """
    if q.dim() != 4 or q.shape != k.shape or v.dim() != 4 or v.shape[:3] != q.shape[:3]:
        raise ValueError(f"mesa needs q, k [B, T, H, K] and v [B, T, H, V], got {_shapes(q=q, k=k, v=v)}")
    if g.shape != q.shape[:3] or beta.shape != q.shape[:3]:
        wanted = tuple(q.shape[:3])
        raise ValueError(f"mesa needs g, beta [B, T, H] = {wanted}, got {_shapes(g=g, beta=beta)}")
    if lamb.shape != q.shape[2:]:
        raise ValueError(f"mesa needs lamb [H, K] = {tuple(q.shape[2:])}, got {tuple(lamb.shape)}")
    if cg_steps < 1:
        raise ValueError(f"mesa needs cg_steps ≥ 1, got {cg_steps}")
    if cu_seqlens is not None:
        check_packed("mesa", q, k, cu_seqlens)
    if initial_state is not None:
        sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        _check_state(initial_state, (sequences, *q.shape[2:]), v.shape[3])


def _check_state(state: tuple[Tensor, Tensor], leading: tuple[int, ...], value_width: int) -> None:
    h_kk, h_kv = state
    wanted = (*leading, leading[-1]), (*leading, value_width)
    if (tuple(h_kk.shape), tuple(h_kv.shape)) != wanted:
        raise ValueError(
            f"mesa needs initial_state [N, H, K, K] = {wanted[0]}, [N, H, K, V] = {wanted[1]}, "
            f"got {_shapes(h_kk=h_kk, h_kv=h_kv)}"
        )


def _shapes(**tensors: Tensor) -> str:
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items())


# Operations and bytes, for a roofline.

CHUNK = 64
"""Tokens a chunk of the kernels. A longer one means fewer states to keep and more work a token."""


def work(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    *,
    cg_steps: int = 30,
    initial_state: tuple[Tensor, Tensor] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> list[Work]:
    """Count the operations and bytes of a call with these arguments, every step taken and every chunk full.

    A product with a token's matrix is K or V columns of a chunk's state and, for the chunk itself, twice 64/2
    tokens. One token by itself has no chunk: it is written into the state first. States between chunks
    and the solutions are not counted as bytes: they could stay in caches.

    q, k [B, T, H, K], v [B, T, H, V], g, beta [B, T, H], lamb [H, K], initial_state (H [N, H, K, K], G [N, H, K, V]) or
    None.
    """
    key, value = q.shape[3], v.shape[3]
    tokens = q.shape[0] * q.shape[1] * q.shape[2]
    sequences = q.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
    inputs = nbytes(q, k, v, g, beta, lamb)
    states = nbytes(*(initial_state or ())), 4 * sequences * q.shape[2] * key * (key + value)
    state_bytes = states[0] + output_final_state * states[1]
    outputs = v.numel() * q.element_size()
    write = 2 * key * (key + value)
    chunk = 0 if q.shape[1] == 1 and cu_seqlens is None else CHUNK
    matrix_product = 2 * key * (key + chunk)
    read = 2 * key * value + chunk * (key + value)
    solve = cg_steps * matrix_product
    # x·kᵀ, y·kᵀ, do·vᵀ and the four products of their pairs; dH·k, dG·k, dG·v, H·x, G·x
    gradients = chunk * (4 * key + 2 * value) + 4 * key * key + 6 * key * value
    return [
        Work("mesa", "forward", tokens * (write + solve + read), inputs + outputs + state_bytes),
        Work(
            "mesa",
            "backward",
            tokens * (2 * write + read + solve + gradients),
            2 * inputs + outputs + 2 * state_bytes,
        ),
    ]
