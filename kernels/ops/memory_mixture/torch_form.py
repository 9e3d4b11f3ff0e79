"""The mixture of memories over sorted tokens: the tokens routed to one memory form a sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.dispatch import reverse_mode_only
from kernels.indices import sort_by_group
from kernels.ops.delta_rule.torch_form import delta_rule_torch
from kernels.packing import boundaries, token_sequences


@dataclass(frozen=True)
class Visits:
    """All (token, route) pairs, P = B·T·R, sorted by (sequence, memory) and, within those, by time.

    token       int64 [P], for every place in the sorted axis the flat (b, t) of its token
    entry       int64 [P], the flat (b, t, memory)
    places      int64 [P], for every flat (b, t, r) its place
    cu_seqlens  int32 [N·M+1], the visits of every memory as segments of the sorted axis
    """

    token: Tensor
    entry: Tensor
    places: Tensor
    cu_seqlens: Tensor


def sort_visits(routes: Tensor, memories: int, cu_seqlens: Tensor | None) -> Visits:
    """Sort all (token, route) pairs of routes [B, T, R], not checked. Shapes follow from shapes: it can be traced."""
    batch, time, slots = routes.shape
    cu, token = boundaries(routes, cu_seqlens), torch.arange(batch * time, device=routes.device)
    memory = routes.reshape(-1, slots).to(torch.int64)
    segment = token_sequences(cu, batch * time).unsqueeze(1) * memories + memory
    by_memory = sort_by_group(segment.flatten(), (cu.shape[0] - 1) * memories)
    entry = (token.unsqueeze(1) * memories + memory).flatten().index_select(0, by_memory.order)
    token = by_memory.order // slots
    return Visits(token, entry, by_memory.places(), by_memory.offsets.to(torch.int32))


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
