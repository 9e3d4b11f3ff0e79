"""One token of the gated delta rule for every sequence: what decoding does.

A program has K × BV of a head's state; the columns of values know nothing of each other. The state is read once and
written once, and that is all the time there is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_tiles import state_tile
from kernels.triton_common.device import padded
from kernels.triton_common.tuning import Tuned


@triton.jit
def delta_step(state, q, k, v, decay, beta):
    """S ← (I − β·k·kᵀ)·Diag(decay)·S + β·k·vᵀ and Sᵀ·q: state [BK, BV]; q, k [BK]; v [BV]; decay [BK or 1]."""
    state *= decay[:, None]
    error = beta * (v - tl.sum(k[:, None] * state, axis=0))
    state += k[:, None] * error[None]
    return state, tl.sum(q[:, None] * state, axis=0)


@triton.jit
def _step(
    q, k, v, g, beta, initial, o, final, scale, H, HQ, HK, HV,
    K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """o [B, H, V] and, if there is one, final [B, H, K, V]."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    key = tl.arange(0, BK)
    value = tl.program_id(2) * BV + tl.arange(0, BV)
    place, inside = state_tile(row, head, H, key, value, K, V)
    state = tl.zeros((BK, BV), tl.float32)
    if initial is not None:
        state += tl.load(initial + place, mask=inside, other=0.0).to(tl.float32)
    queries = tl.load(q + (row * HQ + head // (H // HQ)) * K + key, mask=key < K, other=0.0).to(tl.float32)
    keys = tl.load(k + (row * HK + head // (H // HK)) * K + key, mask=key < K, other=0.0).to(tl.float32)
    values = tl.load(v + (row * HV + head // (H // HV)) * V + value, mask=value < V, other=0.0)
    if SHARED:
        gate = tl.load(g + row * H + head + tl.arange(0, 1))
    else:
        gate = tl.load(g + (row * H + head) * K + key, mask=key < K, other=0.0)
    strength = tl.load(beta + row * H + head).to(tl.float32)
    decay = tl.exp(gate.to(tl.float32))
    state, out = delta_step(state, queries, keys, values.to(tl.float32), decay, strength)
    tl.store(o + (row * H + head) * V + value, (out * scale).to(o.dtype.element_ty), mask=value < V)
    if final is not None:
        tl.store(final + place, state, mask=inside)


STEP_TILES = [
    triton.Config({"BV": width}, num_warps=warps) for width, warps in ((64, 4), (32, 4), (16, 2), (8, 1))
]
_step_tuned = Tuned(_step, STEP_TILES, ["K", "V", "SHARED"])


def delta_rule_one_token(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, initial: Tensor | None, keep_state: bool
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """`kernels.delta_rule` of T = 1, without gradients."""
    q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
    initial = None if initial is None else initial.contiguous()
    (batch, _, heads), width, value_width = beta.shape, q.shape[3], v.shape[3]
    o = torch.empty(batch, 1, heads, value_width, dtype=v.dtype, device=v.device)
    shape = (batch, heads, width, value_width)
    final = torch.empty(shape, dtype=torch.float32, device=q.device) if keep_state else None
    _step_tuned[lambda meta: (batch, heads, triton.cdiv(value_width, meta["BV"]))](
        q, k, v, g, beta, initial, o, final, scale, heads, q.shape[2], k.shape[2], v.shape[2],
        K=width, V=value_width, SHARED=g.dim() == 3, BK=padded(width),
    )  # fmt: skip
    return o, final
