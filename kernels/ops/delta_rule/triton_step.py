"""One token of the gated delta rule for every sequence, as in decoding.

A program has K × BV of a head's state; the columns of values are independent. The state is read once and
written once, which takes nearly all the time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_forward import Inputs, head_state
from kernels.triton_common import padded
from kernels.triton_common.operators import operator
from kernels.triton_common.tiles import load_matrix, store_matrix
from kernels.triton_common.tuning import Tuned


@triton.jit
def delta_step(state, q, k, v, decay, beta):
    """S ← (I − β·k·kᵀ)·Diag(decay)·S + β·k·vᵀ and Sᵀ·q: state [BK, BV]; q, k [BK]; v [BV]; decay [BK or 1]."""
    # S ← Diag(decay)·S
    state *= decay[:, None]
    # e = β·(v − Sᵀ·k)
    error = beta * (v - tl.sum(k[:, None] * state, axis=0))
    # S ← S + k·eᵀ
    state += k[:, None] * error[None]
    # Sᵀ·q
    return state, tl.sum(q[:, None] * state, axis=0)


@triton.jit
def _step(
    q, k, v, g, beta, initial, o, final, scale, H, HQ, HK, HV,
    K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One token of one sequence and head, BV columns of values.

    inputs     q, k [B, HQ or HK, K]; v [B, HV, V]; g [B, H] or [B, H, K]; beta [B, H]; initial [B, H, K, V] or None
    outputs    o [B, H, V]; final [B, H, K, V] or None
    sizes      scale; H, HQ, HK, HV heads
    constants  K, V widths; SHARED: one gate a head; BK ≥ K, BV sides of the state's tile
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    key = tl.arange(0, BK)
    value = tl.program_id(2) * BV + tl.arange(0, BV)
    state = tl.zeros((BK, BV), tl.float32)
    if initial is not None:
        state += load_matrix(head_state(initial, row, head, H, K, V), key, value, K, V).to(tl.float32)
    queries = tl.load(q + (row * HQ + head // (H // HQ)) * K + key, mask=key < K, other=0.0).to(tl.float32)
    keys = tl.load(k + (row * HK + head // (H // HK)) * K + key, mask=key < K, other=0.0).to(tl.float32)
    values = tl.load(v + (row * HV + head // (H // HV)) * V + value, mask=value < V, other=0.0)
    if SHARED:
        gate = tl.load(g + row * H + head + tl.arange(0, 1))
    else:
        gate = tl.load(g + (row * H + head) * K + key, mask=key < K, other=0.0)
    strength = tl.load(beta + row * H + head).to(tl.float32)
    decay = tl.exp(gate.to(tl.float32))
    # S ← (I − β·k·kᵀ)·Diag(exp g)·S + β·k·vᵀ,  o = scale·Sᵀ·q
    state, out = delta_step(state, queries, keys, values.to(tl.float32), decay, strength)
    tl.store(o + (row * H + head) * V + value, (out * scale).to(o.dtype.element_ty), mask=value < V)
    if final is not None:
        store_matrix(head_state(final, row, head, H, K, V), state, key, value, K, V)


STEP_TILES = [
    triton.Config({"BV": width}, num_warps=warps) for width, warps in ((64, 4), (32, 4), (16, 2), (8, 1))
]
_step_tuned = Tuned(_step, STEP_TILES, ["K", "V", "SHARED"])


@operator
def delta_rule_one_token(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    initial: Tensor | None,
    keep_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute `kernels.delta_rule` of T = 1, without gradients.

    q, k, v, g, beta as in `Inputs`; initial [B, H, K, V] or None. Returns o [B, 1, H, V] in v's dtype and, if
    `keep_state`, the state [B, H, K, V] after the token in fp32, else None.
    """
    x = Inputs(*(y.contiguous() for y in (q, k, v, g, beta)))
    initial = None if initial is None else initial.contiguous()
    batch, widths = len(x.q), x.widths
    o = x.v.new_empty(batch, 1, x.heads, widths["V"])
    shape = (batch, x.heads, *widths.values())
    final = torch.empty(shape, dtype=torch.float32, device=x.q.device) if keep_state else None
    _step_tuned[lambda meta: (batch, x.heads, triton.cdiv(widths["V"], meta["BV"]))](
        *x, initial, o, final, scale, *x.head_counts, **widths, SHARED=x.shared, BK=padded(widths["K"])
    )
    return o, final
