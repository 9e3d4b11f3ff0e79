"""The chunked gated delta rule: chunks of 64 tokens, in three steps that see them all at once and one that walks.

    forward   products inside chunks and the inverse of their triangle (triton_intra_chunk.py), then operands of the walk
              (triton_forward.py), the walk from state to state (triton_inter_chunk.py), and outputs (triton_forward.py)
    backward  the operands and the states are computed again; a walk back (triton_inter_chunk.py), then gradients of all
              chunks at once (triton_backward.py, triton_intra_chunk_backward.py)

One token without gradients, as in decoding, has a kernel of its own (triton_step.py).

Saved: the inputs, P and Z, two numbers of the inputs' dtype for every pair of tokens of a chunk. Not saved: states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops.delta_rule.triton_backward import keys_and_gates_back, sum_heads, values_back
from kernels.ops.delta_rule.triton_forward import outputs, prepare
from kernels.ops.delta_rule.triton_inter_chunk import scan, scan_back
from kernels.ops.delta_rule.triton_intra_chunk import products_and_triangle
from kernels.ops.delta_rule.triton_step import delta_rule_one_token
from kernels.ops.delta_rule.triton_tiles import CHUNK
from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table, first_chunks
from kernels.triton_common.gradients import first_order


class _DeltaRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, beta, initial, cu_seqlens, scale, keep_state):
        q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
        initial = None if initial is None else initial.contiguous()
        dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        cu, table = boundaries(q, cu_seqlens), chunk_table(q, cu_seqlens, CHUNK)
        firsts = first_chunks(q, cu_seqlens, CHUNK)
        shape = (len(cu) - 1, beta.shape[2], q.shape[3], v.shape[3])
        final = torch.empty(shape, dtype=torch.float32, device=q.device) if keep_state else None
        o = torch.empty(*beta.shape, v.shape[3], dtype=v.dtype, device=v.device)
        p, z = products_and_triangle(q, k, g, beta, table, cu, dtype)
        operands = prepare(q, k, v, g, beta, z, table, cu)
        states, errors = scan(operands, beta, initial, final, firsts, cu)
        outputs(operands, p, states, errors, beta, scale, o, table, cu)
        ctx.save_for_backward(q, k, v, g, beta, initial, p, z, cu, table, firsts)
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return o, final

    @staticmethod
    @first_order
    def backward(ctx, d_o, d_final):
        q, k, v, g, beta, initial, p, z, cu, table, firsts = ctx.saved_tensors
        shape = (*beta.shape, v.shape[3])
        d_o = v.new_zeros(shape) if d_o is None else d_o.contiguous()
        d_final = None if d_final is None else d_final.contiguous()
        d_initial = None if initial is None else torch.empty_like(initial)
        operands = prepare(q, k, v, g, beta, z, table, cu)
        states, errors = scan(operands, beta, initial, None, firsts, cu)
        d_states, d_writes = scan_back(operands, beta, p, d_o, d_final, d_initial, ctx.scale, firsts, cu)
        d_v, d_beta, d_p, d_a = values_back(v, beta, z, errors, d_o, d_writes, ctx.scale, table, cu)
        d_q, d_k, d_g = keys_and_gates_back(
            q, k, g, beta, errors, states, d_states, d_o, d_v, d_p, d_a, ctx.scale, table, cu
        )
        d_q, d_k, d_v = (sum_heads(parts, x) for parts, x in ((d_q, q), (d_k, k), (d_v, v)))
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
    """`kernels.delta_rule` on a GPU; a single token without gradients has a kernel of its own."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    moves = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (q, k, v, g, beta, initial_state)
    )
    if q.shape[1] == 1 and cu_seqlens is None and not moves:
        return delta_rule_one_token(q, k, v, g, beta, scale, initial_state, output_final_state)
    return _DeltaRule.apply(q, k, v, g, beta, initial_state, cu_seqlens, scale, output_final_state)
