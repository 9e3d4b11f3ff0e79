"""The mesa layer in Triton: an inter-chunk recurrence of states, and all systems of a chunk solved by one program.

With a chunk's start states S, R, c_t = exp(Σ g up to t) and W_ts = β_s·exp(Σ g from s+1 to t),

    H_t = c_t·S + Σ_{s≤t} W_ts·k_s·k_sᵀ,   G_t = c_t·R + Σ_{s≤t} W_ts·k_s·v_sᵀ      s in t's chunk

no matrix of a token is written down: products of all tokens' H_t or G_t with a vector each are three tile products.

    forward    states (`chunk_states`) S, R of every chunk → `solve` x_t = (H_t + Λ)⁻¹·q_t
               → `read` o_t = G_tᵀ·x_t
               saved: inputs and x, in fp32
    backward   S and R computed again → read, transposed: dx_t = G_t·do_t → solve: y_t = (H_t + Λ)⁻¹·dx_t = dq_t
               → states backward in time: the gradients dH, dG of the states after every chunk, from
               −½(y_t·x_tᵀ + x_t·y_tᵀ) and x_t·do_tᵀ → `key_gradients`,
               `gate_gradients`: dk, dv, dg, dβ and, in one part a chunk, added in a fixed order, dΛ

States, solutions and sums are fp32. Products of 16-bit inputs use tensor cores: in TF32, which holds a bf16 or fp16
number exactly, and in states and solver, since a conjugate gradient multiplies errors of its matrix by the condition
number, with fp32 operands as two parts: bf16 ones for states (relative errors of 2⁻¹⁶), fp16 ones for systems.
Products of fp32 inputs are fp32; those of states and solver use tensor cores, on three bf16 each, where shared memory
allows, for tiles of plain fp32 do not fit the registers.

One token without gradients is decoding, and one kernel (triton_step.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.autograd import first_order
from kernels.ops.mesa import CHUNK
from kernels.ops.mesa.triton_backward import gate_gradients, key_gradients
from kernels.ops.mesa.triton_forward import RESIDENT, Precisions, States, Tokens, chunk_states, read, solve
from kernels.ops.mesa.triton_step import mesa_step
from kernels.triton_common import ChunkLayout, interpreted, sum_rows
from kernels.triton_common.operators import operator


@operator
class _Mesa(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, beta, lamb, h_kk, h_kv, cg_steps, output_final_state, cu_seqlens):
        q, k, v, g, beta, lamb = (x.contiguous() for x in (q, k, v, g, beta, lamb))
        tokens = Tokens(k, v, g, beta)
        initial = States(*(x if x is None else x.contiguous() for x in (h_kk, h_kv)))
        layout = ChunkLayout.of(q, cu_seqlens, CHUNK)
        precisions = _precisions(q, k, v)
        ctx.set_materialize_grads(False)
        final = States(None, None)
        if output_final_state:
            size = (layout.sequences, *k.shape[2:])
            final = States(
                *(torch.empty(*size, x.shape[3], dtype=torch.float32, device=k.device) for x in (k, v))
            )
        starts = _start_states(tokens, initial, final, layout, precisions)
        x = solve(q, tokens, lamb, starts.h_kk, layout, cg_steps, precisions.systems)
        o = read(x, tokens, starts.h_kv, q.dtype, layout, precisions.others)
        ctx.save_for_backward(x, lamb, *tokens, *initial, *layout, q.new_empty(0))
        ctx.settings = cg_steps, *precisions
        return o, *final

    @staticmethod
    @first_order
    def backward(ctx, do, dfinal_kk, dfinal_kv):
        x, lamb, *saved, like = ctx.saved_tensors
        tokens, initial, layout = Tokens(*saved[:4]), States(*saved[4:6]), ChunkLayout(*saved[6:])
        cg_steps, *precisions = ctx.settings
        precisions, dtype = Precisions(*precisions), like.dtype
        k, v, g, _ = tokens
        do = torch.zeros(v.shape, dtype=dtype, device=v.device) if do is None else do.contiguous()
        dfinal = States(*(y if y is None else y.contiguous() for y in (dfinal_kk, dfinal_kv)))
        starts = _start_states(tokens, initial, States(None, None), layout, precisions)
        swapped = tokens._replace(k=v, v=k)
        dx = read(do, swapped, starts.h_kv, torch.float32, layout, precisions.others, transposed=True)
        y = solve(dx, tokens, lamb, starts.h_kk, layout, cg_steps, precisions.systems)
        dinitial = States(*(h if h is None else torch.empty_like(h) for h in initial))
        after = chunk_states(y, x, do, g, None, dfinal, dinitial, layout, precisions.others)
        dk = key_gradients(x, y, tokens, do, after, layout, precisions.others)
        written = tokens._replace(k=x, v=do)
        dv = read(k, written, after.h_kv, v.dtype, layout, precisions.others, backward=True)
        dg, dbeta, parts = gate_gradients(x, y, tokens, do, starts, after, layout, precisions.others)
        dlamb = sum_rows(parts, lamb.dtype)
        return y.to(dtype), dk, dv, dg, dbeta, dlamb, *dinitial, None, None, None


def _start_states(
    tokens: Tokens, initial: States, final: States, layout: ChunkLayout, precisions: Precisions
) -> States:
    """H and G before every chunk; those after the last go to `final`."""
    k, v, g, beta = tokens
    return chunk_states(k, k, v, g, beta, initial, final, layout, precisions.systems)


def _precisions(*tensors: Tensor) -> Precisions:
    """The precisions for inputs q, k and v.

    Three bf16 parts of an fp32 number hold all its bits; those of a whole state of 128 × 128 exceed shared memory.
    The interpreter multiplies in fp32 at any setting, and has no such parts.
    """
    if interpreted():
        return Precisions("ieee", "ieee")
    if any(x.dtype == torch.float32 for x in tensors):
        width = tensors[0].shape[-1]
        return Precisions("bf16x6" if width <= 64 or width > RESIDENT else "ieee", "ieee")
    return Precisions("parts", "tf32")


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
    """Compute `kernels.mesa` on a GPU: bound by the products of the conjugate gradient, about 2·(K + 2·64)·K a step.

    q, k [B, T, H, K], v [B, T, H, V], g, beta [B, T, H], lamb [H, K], initial_state (H [N, H, K, K], G [N, H, K, V]) or
    None. Returns o [B, T, H, V] in q's dtype and (H, G) in fp32, or None.
    """
    state = initial_state or (None, None)
    tensors = q, k, v, g, beta, lamb
    moving = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (*tensors, *state))
    if q.shape[1] == 1 and cu_seqlens is None and not moving:
        run, given = mesa_step, (*tensors, *state, cg_steps, output_final_state)
    else:
        run, given = _Mesa, (*tensors, *state, cg_steps, output_final_state, cu_seqlens)
    o, *final = run(*given, returns=(True, output_final_state, output_final_state))
    return o, tuple(final) if output_final_state else None
