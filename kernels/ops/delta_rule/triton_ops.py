"""The chunked gated delta rule in chunks of 64 tokens: two steps over all chunks at once, and a recurrence.

    forward   `prepare`: products inside chunks, the inverse of their triangle and the operands of the recurrence, in
              one kernel; `outputs`: the recurrence of states across chunks, with the outputs
    backward  operands and states are computed again; `inter_chunk_backward`: gradients of states; then of all chunks
              at once, `values_backward` and `keys_and_gates_backward`

One token without gradients, as in decoding, has a kernel of its own (triton_step.py).

Saved: the inputs, P and Z, two numbers of the inputs' dtype for every pair of tokens of a chunk. Not saved: states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.autograd import first_order
from kernels.ops.delta_rule.triton_backward import (
    inter_chunk_backward,
    keys_and_gates_backward,
    values_backward,
)
from kernels.ops.delta_rule.triton_forward import (
    CHUNK,
    Inputs,
    chunk_operands,
    inter_chunk,
    outputs,
    prepare,
    sum_heads,
)
from kernels.ops.delta_rule.triton_step import delta_rule_one_token
from kernels.triton_common import ChunkLayout
from kernels.triton_common.operators import operator


@operator
class _DeltaRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, beta, initial, cu_seqlens, scale, keep_state):
        x = Inputs(*(y.contiguous() for y in (q, k, v, g, beta)))
        initial = None if initial is None else initial.contiguous()
        dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        layout = ChunkLayout.of(q, cu_seqlens, CHUNK)
        shape = (layout.sequences, x.heads, *x.widths.values())
        final = torch.empty(shape, dtype=torch.float32, device=q.device) if keep_state else None
        o = v.new_empty(*beta.shape, v.shape[3])
        p, z, operands = prepare(x, layout, dtype)
        outputs(operands, p, x.beta, initial, final, scale, o, layout)
        ctx.save_for_backward(*x, *layout, initial, p, z)
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return o, final

    @staticmethod
    @first_order
    def backward(ctx, d_o, d_final):
        *saved, initial, p, z = ctx.saved_tensors
        x, layout, scale = Inputs(*saved[:5]), ChunkLayout(*saved[5:]), ctx.scale
        d_o = x.v.new_zeros(*x.beta.shape, x.v.shape[3]) if d_o is None else d_o.contiguous()
        d_final = None if d_final is None else d_final.contiguous()
        d_initial = None if initial is None else torch.empty_like(initial)
        operands = chunk_operands(x, z, layout)
        states = inter_chunk(operands, x.beta, initial, layout)
        back = inter_chunk_backward(operands, x.beta, p, d_o, d_final, d_initial, scale, layout)
        values = values_backward(x, z, states.errors, d_o, back.d_writes, scale, layout)
        d_q, d_k, d_g = keys_and_gates_backward(x, states, back, values, d_o, scale, layout)
        d_q, d_k, d_v = (sum_heads(parts, y) for parts, y in ((d_q, x.q), (d_k, x.k), (values.d_v, x.v)))
        d_beta = values.d_beta
        return d_q, d_k, d_v, d_g, d_beta, d_initial, None, None, None


def delta_rule_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute `kernels.delta_rule` on a GPU; a single token without gradients has a kernel of its own.

    q, k [B, T, H, K], v [B, T, H, V], g [B, T, H] or [B, T, H, K], beta [B, T, H], initial_state [N, H, K, V]. Returns
    o [B, T, H, V] in v's dtype and the state [N, H, K, V] in fp32, or None.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    moves = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (q, k, v, g, beta, initial_state)
    )
    if q.shape[1] == 1 and cu_seqlens is None and not moves:
        given = (q, k, v, g, beta, scale, initial_state, output_final_state)
        return delta_rule_one_token(*given, returns=(True, output_final_state))
    given = (q, k, v, g, beta, initial_state, cu_seqlens, scale, output_final_state)
    return _DeltaRule(*given, returns=(True, output_final_state))
