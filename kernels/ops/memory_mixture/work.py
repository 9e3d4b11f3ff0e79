"""Operations and bytes of the mixture of memories' kernels."""

from __future__ import annotations

from torch import Tensor

from kernels.ops.delta_rule.work import work as delta_rule_work
from kernels.triton_common.work import Work, nbytes


def work(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    routes: Tensor,
    weights: Tensor,
    *,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **_options,
) -> list[Work]:
    """Count the operations and bytes of a call with these arguments.

    The operations are the delta rule's over R·T tokens, and a sum over every token's visits. Of keys
    and values only the visited rows are read; backward writes a gradient, mostly zeros, for every row.

    q [B, T, H, K], k [B, T, M, H, K], v [B, T, M, H, V], g, beta [B, T, M, H], routes integer [B, T, R],
    weights [B, T, R], initial_state [N, M, H, K, V] or None.
    """
    (batch, time, memories, heads, width), value_width = k.shape, v.shape[4]
    slots, sequences = routes.shape[2], batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    tokens = batch * time
    one = k.new_empty(sequences * memories, -(-tokens * slots // (sequences * memories)), heads, width)
    values = one.new_empty(*one.shape[:3], value_width)
    gates = one.new_empty(one.shape[:3])
    forward, backward = delta_rule_work(one, one, values, gates, gates)
    mixing = 2 * tokens * slots * heads * value_width
    visited = nbytes(k, v, g, beta) * slots // memories
    o = tokens * heads * value_width * v.element_size()
    final = 4 * sequences * memories * heads * width * value_width * output_final_state
    given = nbytes(q, routes, weights, initial_state) + visited
    written = nbytes(q, k, v, g, beta, weights, initial_state)
    return [
        Work("memory_mixture", "forward", forward.flops + mixing, given + o + final),
        Work("memory_mixture", "backward", backward.flops + 2 * mixing, given + o + final + written),
    ]
