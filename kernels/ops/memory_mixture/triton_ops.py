"""The mixture of memories on a GPU: inputs are gathered, the delta rule's kernels run over segments, outputs are mixed.

PyTorch sorts integers to find the place of every visit (visits.py); floating-point numbers are moved and summed in
kernels (triton_gather.py, triton_mix.py). Saved: the gathered inputs, what the delta rule saves, and the memories'
outputs. One token without gradients, as in decoding, has a kernel of its own (triton_step.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops.delta_rule.triton_ops import delta_rule_triton
from kernels.ops.memory_mixture.triton_gather import Gather, Routing
from kernels.ops.memory_mixture.triton_mix import Mix
from kernels.ops.memory_mixture.triton_step import memory_mixture_one_token
from kernels.ops.memory_mixture.visits import sort_visits


def memory_mixture_triton(
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
    update: str = "gated_delta",  # others are refused before
) -> tuple[Tensor, Tensor | None]:
    """Compute `kernels.memory_mixture` on a GPU; a single token without gradients has a kernel of its own.

    q [B, T, H, K], k [B, T, M, H, K], v [B, T, M, H, V], g, beta [B, T, M, H], routes integer [B, T, R],
    weights [B, T, R], initial_state [N, M, H, K, V] or None. Returns o [B, T, H, V] in v's dtype and
    the memories [N, M, H, K, V] in fp32, or None.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    memories = k.shape[2]
    given = (q, k, v, g, beta, weights, initial_state)
    moves = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given)
    if q.shape[1] == 1 and cu_seqlens is None and not moves:
        return memory_mixture_one_token(
            q, k, v, g, beta, routes, weights, scale, initial_state, output_final_state
        )
    visits = sort_visits(routes, memories, cu_seqlens)
    routing = Routing.of(visits, beta.shape[0] * beta.shape[1] * memories)
    x, state = delta_rule_triton(
        *Gather.apply(q, k, v, g, beta, routing),
        scale=scale,
        initial_state=None if initial_state is None else initial_state.flatten(0, 1),
        output_final_state=output_final_state,
        cu_seqlens=visits.cu_seqlens,
    )
    o = Mix.apply(x, weights, visits.places)
    return o, None if state is None else state.unflatten(0, (-1, memories))
