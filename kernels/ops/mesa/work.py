"""Operations and bytes of the mesa layer's kernels."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, nbytes

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
