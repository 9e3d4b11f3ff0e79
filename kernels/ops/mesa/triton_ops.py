"""The mesa layer in Triton: states by a pass over chunks, all systems of a chunk solved by one program.

With a chunk's start states S, R, c_t = exp(Σ g up to t) and W_ts = β_s·exp(Σ g from s+1 to t),

    H_t = c_t·S + Σ_{s≤t} W_ts·k_s·k_sᵀ,   G_t = c_t·R + Σ_{s≤t} W_ts·k_s·v_sᵀ      s in t's chunk

no matrix of a token is written down: products of all tokens' H_t or G_t with a vector each are three tile products.

    forward    states (triton_states) S, R of every chunk → solve (triton_solve) x_t = (H_t + Λ)⁻¹·q_t
               → read (triton_products) o_t = G_tᵀ·x_t
               saved: inputs and x, in fp32
    backward   S and R made again → read, transposed: dx_t = G_t·do_t → solve: y_t = (H_t + Λ)⁻¹·dx_t = dq_t
               → states backward in time: the gradients dH, dG of the states after every chunk, from
               −½(y_t·x_tᵀ + x_t·y_tᵀ) and x_t·do_tᵀ → gradients (triton_products): dk, dv, dg, dβ and, in
               one part a chunk, added in a fixed order, dΛ

States, solutions and sums are fp32. Products of 16-bit inputs use tensor cores: in TF32, which holds a bf16 or
fp16 number exactly, and inside the solver with operands split into two bf16 each (relative errors of 2⁻¹⁶), for a
conjugate gradient multiplies what is lost by the condition number. Products of fp32 inputs are fp32; the solver's
use tensor cores, on three bf16 each, where shared memory allows, for tiles of plain fp32 do not fit the registers.
One token without gradients is decoding, and one kernel (triton_step).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops.mesa.triton_products import gate_gradients, key_gradients, read
from kernels.ops.mesa.triton_solve import RESIDENT, solve
from kernels.ops.mesa.triton_states import chunk_states
from kernels.ops.mesa.triton_step import mesa_step
from kernels.ops.mesa.work import CHUNK
from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table
from kernels.triton_common import interpreted
from kernels.triton_common.device import sum_rows
from kernels.triton_common.gradients import first_order

State = tuple[Tensor | None, Tensor | None]


class _Mesa(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, beta, lamb, h_kk, h_kv, cg_steps, output_final_state, cu_seqlens):
        q, k, v, g, beta, lamb = (x.contiguous() for x in (q, k, v, g, beta, lamb))
        h_kk, h_kv = (x if x is None else x.contiguous() for x in (h_kk, h_kv))
        cu, table = boundaries(q, cu_seqlens), chunk_table(q, cu_seqlens, CHUNK)
        ctx.settings = cg_steps, *_precisions(q, k, v)
        ctx.set_materialize_grads(False)
        final = (None, None)
        if output_final_state:
            size = (len(cu) - 1, *k.shape[2:])
            final = tuple(
                torch.empty(*size, x.shape[3], dtype=torch.float32, device=k.device) for x in (k, v)
            )
        _, exact, products = ctx.settings
        tokens = k, v, g, beta
        starts = _start_states(tokens, (h_kk, h_kv), final, cu_seqlens, cu, len(table), products)
        x = solve(q, k, g, beta, lamb, starts[0], table, cu, cg_steps, exact)
        o = read(x, *tokens, starts[1], q.dtype, table, cu, products)
        ctx.save_for_backward(x, *tokens, lamb, h_kk, h_kv, cu_seqlens, cu, table)
        ctx.query_dtype = q.dtype
        return o, *final

    @staticmethod
    @first_order
    def backward(ctx, do, dfinal_kk, dfinal_kv):
        x, k, v, g, beta, lamb, h_kk, h_kv, cu_seqlens, cu, table = ctx.saved_tensors
        steps, exact, products = ctx.settings
        tokens, rows = (k, v, g, beta), len(table)
        do = torch.zeros(v.shape, dtype=ctx.query_dtype, device=v.device) if do is None else do.contiguous()
        dfinal = (x if x is None else x.contiguous() for x in (dfinal_kk, dfinal_kv))
        starts = _start_states(tokens, (h_kk, h_kv), (None, None), cu_seqlens, cu, rows, products)
        dx = read(do, v, k, g, beta, starts[1], torch.float32, table, cu, products, transposed=True)
        y = solve(dx, k, g, beta, lamb, starts[0], table, cu, steps, exact)
        dinitial = [x if x is None else torch.empty_like(x) for x in (h_kk, h_kv)]
        pairs = zip((y, x), (x, do), dfinal, dinitial, (True, False), strict=True)
        after = [
            chunk_states(a, b, g, None, outer, initial, cu_seqlens, cu, rows, products, symmetric=symmetric)
            for a, b, outer, initial, symmetric in pairs
        ]
        dk = key_gradients(x, y, tokens, do, after, table, cu, products)
        dv = read(k, x, do, g, beta, after[1], v.dtype, table, cu, products, backward=True)
        dg, dbeta, parts = gate_gradients(x, y, tokens, do, starts, after, table, cu, products)
        dlamb = sum_rows(parts, lamb.dtype)
        return y.to(ctx.query_dtype), dk, dv, dg, dbeta, dlamb, *dinitial, None, None, None


def _start_states(tokens, initial: State, final: State, cu_seqlens, cu, rows: int, precision: str):
    """H and G before every chunk, [rows, H, K, K] and [rows, H, K, V]; those after the last go to `final`."""
    k, v, g, beta = tokens
    return tuple(
        chunk_states(k, x, g, beta, outer, last, cu_seqlens, cu, rows, precision, symmetric=symmetric)
        for x, outer, last, symmetric in zip((k, v), initial, final, (True, False), strict=True)
    )


def _precisions(*tensors: Tensor) -> tuple[str, str]:
    """Of products in the solver, and of the others.

    Three bf16 parts of an fp32 number hold all its bits; those of a whole state of 128 × 128 exceed shared memory.
    The interpreter multiplies in fp32 whatever it is told, and knows no parts.
    """
    if interpreted():
        return "ieee", "ieee"
    if any(x.dtype == torch.float32 for x in tensors):
        width = tensors[0].shape[-1]
        return "bf16x6" if width <= 64 or width > RESIDENT else "ieee", "ieee"
    return "bf16x3", "tf32"


def mesa_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    *,
    cg_steps: int = 30,
    initial_state: tuple[Tensor, Tensor] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """`kernels.mesa` on a GPU: bound by the products of the conjugate gradient, about 2·(K + 2·64)·K a step."""
    state = initial_state or (None, None)
    tensors = q, k, v, g, beta, lamb
    moving = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (*tensors, *state))
    if q.shape[1] == 1 and cu_seqlens is None and not moving:
        return mesa_step(*tensors, cg_steps, state, output_final_state)
    o, *final = _Mesa.apply(*tensors, *state, cg_steps, output_final_state, cu_seqlens)
    return o, tuple(final) if output_final_state else None
