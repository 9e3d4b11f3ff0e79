"""The mixture of memories over sorted tokens: the tokens routed to one memory form a sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import reverse_mode_only
from kernels.ops.delta_rule.torch_ops import delta_rule_torch
from kernels.ops.memory_mixture.visits import sort_visits


def memory_mixture_torch(
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
    """Compute `kernels.memory_mixture`: sort, run the update over segments of any length, sort back, mix.

    q [B, T, H, K], k [B, T, M, H, K], v [B, T, M, H, V], g, beta [B, T, M, H], routes integer [B, T, R],
    weights [B, T, R], initial_state [N, M, H, K, V] or None. Returns o [B, T, H, V] in v's dtype and
    the memories [N, M, H, K, V] in at least fp32, or None.
    """
    reverse_mode_only("memory_mixture", q, k, v, g, beta, initial_state)
    memories = k.shape[2]
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    visits = sort_visits(routes, memories, cu_seqlens)
    q = q.flatten(0, 1).index_select(0, visits.token)
    k, v, g, beta = (x.flatten(0, 2).index_select(0, visits.entry) for x in (k, v, g, beta))
    if initial_state is not None:
        initial_state = initial_state.flatten(0, 1)
    o, state = delta_rule_torch(
        *(x.unsqueeze(0) for x in (q, k, v, g, beta)),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=visits.cu_seqlens,
        delta=update == "gated_delta",
    )
    o = o[0].index_select(0, visits.places).unflatten(0, routes.shape)
    o = (o * weights[..., None, None].to(torch.promote_types(o.dtype, weights.dtype))).sum(2).to(v.dtype)
    return o, None if state is None else state.unflatten(0, (sequences, memories))
