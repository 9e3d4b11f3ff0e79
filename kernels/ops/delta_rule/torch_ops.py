"""The chunked gated delta rule as two operators that are opaque to tracing.

The lengths of packed sequences are data; and within an operator many chunks share a few buffers, where in a traced
graph each would have its own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.dispatch import reverse_mode_only, without_autocast
from kernels.ops.delta_rule import chunked
from kernels.ops.delta_rule.chunked import Chunks, chunk_length, most_chunks
from kernels.ops.delta_rule.chunked_backward import backward


def delta_rule_torch(
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
    delta: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Compute `kernels.delta_rule` in chunks of up to 32 tokens in the WY form (chunked.py); heads as of beta.

    delta=False leaves the delta term out: S_t = Diag(exp g_t)·S_{t−1} + β_t·k_t·v_tᵀ, gated linear attention.

    q, k [B, T, H, K], v [B, T, H, V], g [B, T, H] or [B, T, H, K], beta [B, T, H], initial_state [N, H, K, V]. Returns
    o [B, T, H, V] in v's dtype and the state [N, H, K, V] in at least fp32, or None.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    g = g.unsqueeze(-1) if g.dim() == 3 else g
    wanted = (q, k, v, g, beta, initial_state)
    reverse_mode_only("delta_rule", *wanted)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in wanted)
    inputs = q, k, v, g, beta.unsqueeze(-1), initial_state, cu_seqlens
    o, state, *_ = chunked_delta_rule(*inputs, scale, keep, delta)
    return o, state if output_final_state else None


@torch.library.custom_op("archzoo::delta_rule", mutates_args=())
def chunked_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    keep: bool,
    delta: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return o, the final state and, if `keep`, what the backward needs (else empty tensors).

    g [B, T, H, K or 1], beta [B, T, H, 1]; the rest as in `delta_rule`.
    """
    chunks = _chunks(q, cu_seqlens)
    wide = torch.promote_types(q.dtype, torch.float32)
    order = chunks.order.to(q.device)
    state = q.new_zeros(_state_shape(q, v, cu_seqlens), dtype=wide)
    if initial_state is not None:
        state.copy_(initial_state.index_select(0, order))
    saved = _empty_saved(q, v, cu_seqlens, wide, keep, delta)
    with without_autocast(q):
        flat, room = _flat(q, k, v, g, beta), saved if keep else None
        o = chunked.forward(flat, state.flatten(0, 1), chunks, scale, room, delta)
    final = torch.empty_like(state).index_copy_(0, order, state)
    return o.view_as(v).to(v.dtype), final, *saved.tensors()


@chunked_delta_rule.register_fake
def _(q, k, v, g, beta, initial_state, cu_seqlens, scale, keep, delta):
    wide = torch.promote_types(q.dtype, torch.float32)
    final = q.new_empty(_state_shape(q, v, cu_seqlens), dtype=wide)
    return v.new_empty(v.shape), final, *_empty_saved(q, v, cu_seqlens, wide, keep, delta).tensors()


@torch.library.custom_op("archzoo::delta_rule_backward", mutates_args=())
def chunked_delta_rule_backward(
    d_o: Tensor | None,
    d_final: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor | None,
    states: Tensor,
    errors: Tensor,
    products: Tensor,
    inverse: Tensor,
    scale: float,
    delta: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v, g, beta, each in its shape and dtype, and of the initial state [N, H, K, V].

    d_o [B, T, H, V] and d_final [N, H, K, V] are the gradients of both results, None for zeros. g [B, T, H, K or 1] and
    beta [B, T, H, 1] are inputs of `chunked_delta_rule`; states, errors, products and inverse what it kept
    (`chunked.Saved`). The state and its gradient are fp32, or fp64 where q is.
    """
    chunks = _chunks(q, cu_seqlens)
    order = chunks.order.to(q.device)
    d_state = states.new_zeros(_state_shape(q, v, cu_seqlens))
    if d_final is not None:
        d_state.copy_(d_final.index_select(0, order))
    flat = _flat(q, k, v, g, beta)
    saved = chunked.Saved(states, errors, products, inverse)
    with without_autocast(q):
        d_o = torch.zeros_like(v) if d_o is None else d_o
        grads = backward(flat, *_flat(d_o), d_state.flatten(0, 1), chunks, scale, saved, delta)
    d_initial = torch.empty_like(d_state).index_copy_(0, order, d_state)
    return *(x.view_as(y) for x, y in zip(grads, (q, k, v, g, beta), strict=True)), d_initial


@chunked_delta_rule_backward.register_fake
def _(d_o, d_final, q, k, v, g, beta, cu_seqlens, states, errors, products, inverse, scale, delta):
    found = (x.new_empty(x.shape) for x in (q, k, v, g, beta))
    return *found, states.new_empty(_state_shape(q, v, cu_seqlens))


def _save(ctx, inputs, output):
    q, k, v, g, beta, initial_state, cu_seqlens, ctx.scale, _, ctx.delta = inputs
    ctx.initial_dtype = None if initial_state is None else initial_state.dtype
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, g, beta, cu_seqlens, *output[2:])


def _backward(ctx, d_o, d_final, *_):
    *grads, d_initial = chunked_delta_rule_backward(d_o, d_final, *ctx.saved_tensors, ctx.scale, ctx.delta)
    d_initial = None if ctx.initial_dtype is None else d_initial.to(ctx.initial_dtype)
    return *grads, d_initial, None, None, None, None


chunked_delta_rule.register_autograd(_backward, setup_context=_save)


def _flat(*tensors: Tensor) -> list[Tensor]:
    """[B, T, H, D] -> [B·T·H, D]."""
    return [x.reshape(-1, x.shape[-1]) for x in tensors]


def _chunks(q: Tensor, cu_seqlens: Tensor | None) -> Chunks:
    batch, time, heads = q.shape[:3]
    if cu_seqlens is None:
        return Chunks.of(torch.full((batch,), time), heads)
    return Chunks.of(cu_seqlens.detach().to("cpu", torch.int64).diff(), heads)


def _sequences(q: Tensor, cu_seqlens: Tensor | None) -> int:
    return q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def _state_shape(q: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> tuple[int, int, int, int]:
    return _sequences(q, cu_seqlens), q.shape[2], q.shape[3], v.shape[3]


def _empty_saved(
    q: Tensor, v: Tensor, cu_seqlens: Tensor | None, wide: torch.dtype, keep: bool, delta: bool
) -> chunked.Saved:
    """Empty `Saved`, in sizes that follow from shapes alone, as tracing needs them."""
    tokens, sequences = q.shape[0] * q.shape[1], _sequences(q, cu_seqlens)
    chunks = most_chunks(tokens, sequences) * q.shape[2] if keep else 0
    like = q.new_empty(0, dtype=wide)
    return chunked.Saved.empty(like, chunks, chunk_length(tokens, sequences), q.shape[3], v.shape[3], delta)


@register_flop_formula(torch.ops.archzoo.delta_rule)
def _forward_flops(
    q, k, v, g, beta, initial_state, cu_seqlens, scale, keep, delta, out_shape=None, **_options
) -> int:
    """Sequences of equal length; every pair of a chunk, masked or not, and the solve as C³."""
    sequences = q[0] if cu_seqlens is None else cu_seqlens[0] - 1
    tokens, width, value_width = q[0] * q[1], q[3], v[3]
    c = chunk_length(tokens, sequences)
    chunks = sequences * -(-tokens // (sequences * c))
    if delta:
        intra_chunk = c**3 + c**2 * (6 * width + 4 * value_width)
        return q[2] * chunks * (intra_chunk + 6 * c * width * value_width)
    return q[2] * chunks * (c**2 * (4 * width + 2 * value_width) + 4 * c * width * value_width)


@register_flop_formula(torch.ops.archzoo.delta_rule_backward)
def _backward_flops(d_o, d_final, q, k, v, g, beta, cu_seqlens, *args, out_shape=None, **_options) -> int:
    *_, delta = args
    return 2 * _forward_flops(q, k, v, g, beta, None, cu_seqlens, None, None, delta)
