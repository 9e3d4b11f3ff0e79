"""Operations and bytes of the gated delta rule's kernels."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, nbytes

CHUNK = 64  # as the kernels have it; more tokens mean more operations inside a chunk and fewer states


def work(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **_options,
) -> list[Work]:
    """Count the operations and bytes that the chunked algorithm needs at least for a call with these arguments.

    A token meets the c tokens of its chunk in two products of width K and two triangles of values and keys, and the
    state in three products of K × V; c is the chunk's length, or T where that is shorter. Pairs of tokens count half,
    for half of them are masked. Backward has each product twice, once for either factor.

    q, k [B, T, H, K], v [B, T, H, V], g [B, T, H] or [B, T, H, K], beta [B, T, H], initial_state [N, H, K, V].
    """
    heads, width, value_width = beta.shape[2], k.shape[3], v.shape[3]
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    chunk = min(CHUNK, max(1, q.shape[0] * q.shape[1] // sequences))
    pairs = 2 * beta.numel() * chunk / 2
    intra_chunk = pairs * (2 * width + chunk / 3 + width + 2 * value_width)
    flops = intra_chunk + 6 * beta.numel() * width * value_width
    given = nbytes(q, k, v, g, beta, initial_state)
    o = beta.numel() * value_width * v.element_size()
    final = 4 * sequences * heads * width * value_width * output_final_state
    # Backward reads the inputs and two gradients, and writes a gradient for every input.
    return [
        Work("delta_rule", "forward", flops, given + o + final),
        Work("delta_rule", "backward", 2 * flops, 2 * given + o + final),
    ]
