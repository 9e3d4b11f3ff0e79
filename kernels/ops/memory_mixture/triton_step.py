"""One token of the mixture of memories for every sequence, as in decoding.

A program goes through the memories of one head, BV columns of values at a time. A memory that the token does not name
is copied, bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_step import STEP_TILES, delta_step
from kernels.ops.delta_rule.triton_tiles import head_state
from kernels.triton_common.device import padded
from kernels.triton_common.masked_tiles import load_matrix, store_matrix
from kernels.triton_common.tuning import Tuned


@triton.jit
def _step(
    q, k, v, g, beta, routes, weights, initial, o, final, scale, H, M, SLOTS,
    K: tl.constexpr, V: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One token of one sequence and head, BV columns of values.

    inputs     q [B, H, K]; k [B, M, H, K], v [B, M, H, V]; g, beta [B, M, H]; routes, weights [B, SLOTS];
               initial [B, M, H, K, V] or None
    outputs    o [B, H, V]; final [B, M, H, K, V] or None
    sizes      scale; H heads; M memories; SLOTS routes a token
    constants  K, V widths; BR ≥ SLOTS; BK ≥ K, BV sides of a state's tile
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    key = tl.arange(0, BK)
    value = tl.program_id(2) * BV + tl.arange(0, BV)
    slot = tl.arange(0, BR)
    route = tl.load(routes + row * SLOTS + slot, mask=slot < SLOTS, other=-1)
    weight = tl.load(weights + row * SLOTS + slot, mask=slot < SLOTS, other=0.0).to(tl.float32)
    queries = tl.load(q + (row * H + head) * K + key, mask=key < K, other=0.0).to(tl.float32)
    mixed = tl.zeros((BV,), tl.float32)
    for memory in range(M):
        entry = row * M + memory
        state = tl.zeros((BK, BV), tl.float32)
        if initial is not None:
            state += load_matrix(head_state(initial, entry, head, H, K, V), key, value, K, V).to(tl.float32)
        if tl.sum((route == memory).to(tl.int32), axis=0) > 0:
            at = entry * H + head
            keys = tl.load(k + at * K + key, mask=key < K, other=0.0).to(tl.float32)
            values = tl.load(v + at * V + value, mask=value < V, other=0.0).to(tl.float32)
            decay = tl.exp(tl.load(g + at + tl.arange(0, 1)).to(tl.float32))
            strength = tl.load(beta + at).to(tl.float32)
            # S_m ← exp(g_m)·(I − β_m·k_m·k_mᵀ)·S_m + β_m·k_m·v_mᵀ    for the memories m in routes_t; others stay
            state, out = delta_step(state, queries, keys, values, decay, strength)
            # Σ_r weights_tr · S_mᵀ·q_t, m = routes_tr
            mixed += out * tl.sum(tl.where(route == memory, weight, 0.0), axis=0)
        if final is not None:
            store_matrix(head_state(final, entry, head, H, K, V), state, key, value, K, V)
    # o_t = scale · Σ_r weights_tr · S_mᵀ·q_t
    tl.store(o + (row * H + head) * V + value, (mixed * scale).to(o.dtype.element_ty), mask=value < V)


_step_tuned = Tuned(_step, STEP_TILES, ["K", "V", "M"])


def memory_mixture_one_token(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, routes: Tensor, weights: Tensor, scale: float,
    initial: Tensor | None, keep_state: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Compute `kernels.memory_mixture` of T = 1, without gradients: o and, if asked for, the new memories.

    q [B, 1, H, K], k [B, 1, M, H, K], v [B, 1, M, H, V], g, beta [B, 1, M, H], routes integer [B, 1, R],
    weights [B, 1, R], initial [B, M, H, K, V] or None. Returns o [B, 1, H, V] in v's dtype and, if `keep_state`, the
    memories [B, M, H, K, V] in fp32, else None.
    """
    q, k, v, g, beta, routes, weights = (x.contiguous() for x in (q, k, v, g, beta, routes, weights))
    initial = None if initial is None else initial.contiguous()
    batch, _, memories, heads, value_width = v.shape
    width, slots = q.shape[3], routes.shape[2]
    o = torch.empty(batch, 1, heads, value_width, dtype=v.dtype, device=v.device)
    shape = (batch, memories, heads, width, value_width)
    final = torch.empty(shape, dtype=torch.float32, device=q.device) if keep_state else None
    _step_tuned[lambda meta: (batch, heads, triton.cdiv(value_width, meta["BV"]))](
        q, k, v, g, beta, routes, weights, initial, o, final, scale, heads, memories, slots,
        K=width, V=value_width, BR=triton.next_power_of_2(slots), BK=padded(width),
    )  # fmt: skip
    return o, final
