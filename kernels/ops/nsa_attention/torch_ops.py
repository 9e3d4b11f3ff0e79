"""Native sparse attention in memory linear in T: compression and selection as operators, the window as attention.

Their loops depend on lengths, which for packed sequences are data: so `torch.compile` and the meta device see
operators with a shape, a gradient and a cost. A packed axis is served one sequence after another.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.checks import without_autocast
from kernels.flops import attention_flops
from kernels.ops.attention.torch_ops import attention_torch
from kernels.ops.nsa_attention.blocks import Sizes, pieces
from kernels.ops.nsa_attention.compressed import compressed_backward, compressed_forward
from kernels.ops.nsa_attention.selected import selected_backward, selected_forward

Pair = tuple[Tensor, Tensor]


def nsa_attention_torch(
    q: Tensor,
    compressed: Pair,
    selected: Pair,
    sliding: Pair,
    gates: Tensor,
    *,
    q_rotated: Tensor,
    sizes: Sizes,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """The three branches, then their gated sum."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    numbers = (sizes.block_size, sizes.stride, sizes.select_size, sizes.n_select, sizes.window)
    with without_autocast(q):
        coarse, chosen = compressed_op(
            q.to(wide) * scale, *(x.to(wide) for x in compressed), selected[0].shape[1], numbers, cu_seqlens
        )
        fine, _ = selected_op(q_rotated.to(wide) * scale, *selected, chosen, numbers, cu_seqlens)
        near = attention_torch(q_rotated, *sliding, window=sizes.window, scale=scale, cu_seqlens=cu_seqlens)
        g = gates.unsqueeze(-1)
        out = g[..., 0, :] * coarse + g[..., 1, :] * fine + g[..., 2, :] * near
    return out.to(q.dtype)


@torch.library.custom_op("archzoo::nsa_compressed", mutates_args=())
def compressed_op(
    q: Tensor, k: Tensor, v: Tensor, time: int, sizes: list[int], cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`compressed_forward` of every sequence: o and the selected blocks, counted in their own sequence."""
    s = Sizes(*sizes)
    parts = [
        compressed_forward(q[:, tokens], k[:, blocks], v[:, blocks], tokens.stop - tokens.start, s)
        for tokens, blocks in pieces(cu_seqlens, time, s)
    ]
    return tuple(_joined(part) for part in zip(*parts, strict=True))


@compressed_op.register_fake
def _(q, k, v, time, sizes, cu_seqlens):
    chosen = q.new_empty(*q.shape[:2], k.shape[2], sizes[3], dtype=torch.int32)
    return q.new_empty(*q.shape[:3], v.shape[-1]), chosen


@torch.library.custom_op("archzoo::nsa_compressed_backward", mutates_args=())
def compressed_backward_op(
    grad: Tensor,
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    time: int,
    sizes: list[int],
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v."""
    s = Sizes(*sizes)
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for t, m in pieces(cu_seqlens, time, s):
        inputs = grad[:, t], out[:, t], q[:, t], k[:, m], v[:, m]
        dq[:, t], dk[:, m], dv[:, m] = compressed_backward(*inputs, t.stop - t.start, s)
    return dq, dk, dv


@compressed_backward_op.register_fake
def _(grad, out, q, k, v, time, sizes, cu_seqlens):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _save_compressed(ctx, inputs, output):
    q, k, v, ctx.time, ctx.sizes, cu_seqlens = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[0], q, k, v, cu_seqlens)


def _compressed_backward(ctx, grad, _):
    *tensors, cu_seqlens = ctx.saved_tensors
    found = compressed_backward_op(grad.contiguous(), *tensors, ctx.time, ctx.sizes, cu_seqlens)
    return *found, None, None, None


compressed_op.register_autograd(_compressed_backward, setup_context=_save_compressed)


@torch.library.custom_op("archzoo::nsa_selected", mutates_args=())
def selected_op(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, sizes: list[int], cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`selected_forward` of every sequence: o and log-sum-exps."""
    s = Sizes(*sizes)
    parts = [
        selected_forward(q[:, t], k[:, t], v[:, t], chosen[:, t], s)
        for t, _ in pieces(cu_seqlens, k.shape[1], s)
    ]
    return tuple(_joined(part) for part in zip(*parts, strict=True))


@selected_op.register_fake
def _(q, k, v, chosen, sizes, cu_seqlens):
    return q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3])


@torch.library.custom_op("archzoo::nsa_selected_backward", mutates_args=())
def selected_backward_op(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen: Tensor,
    sizes: list[int],
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v."""
    s = Sizes(*sizes)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    for t, _ in pieces(cu_seqlens, k.shape[1], s):
        inputs = (x[:, t] for x in (grad, out, lse, q, k, v, chosen))
        dq[:, t], dk[:, t], dv[:, t] = selected_backward(*inputs, s)
    return dq, dk, dv


@selected_backward_op.register_fake
def _(grad, out, lse, q, k, v, chosen, sizes, cu_seqlens):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _save_selected(ctx, inputs, output):
    q, k, v, chosen, ctx.sizes, cu_seqlens = inputs
    ctx.save_for_backward(*output, q, k, v, chosen, cu_seqlens)


def _selected_backward(ctx, grad, _):
    *tensors, cu_seqlens = ctx.saved_tensors
    return *selected_backward_op(grad.contiguous(), *tensors, ctx.sizes, cu_seqlens), None, None, None


selected_op.register_autograd(_selected_backward, setup_context=_save_selected)


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


@register_flop_formula(torch.ops.archzoo.nsa_compressed)
def _compressed_flops(q, k, v, *_args, out_shape=None, **_options) -> int:
    """All T × M scores, as attention is counted; packed, as many as there are places for blocks."""
    return attention_flops(q[0] * q[1] * q[2] * k[1], q[3], v[3])


@register_flop_formula(torch.ops.archzoo.nsa_compressed_backward)
def _compressed_backward_flops(grad, out, q, k, v, *_args, out_shape=None, **_options) -> int:
    return 2 * _compressed_flops(q, k, v)


@register_flop_formula(torch.ops.archzoo.nsa_selected)
def _selected_flops(q, k, v, chosen, sizes, *_args, out_shape=None, **_options) -> int:
    """Every token of n blocks counts, used or not."""
    read = min(sizes[2] * sizes[3], k[1])
    return attention_flops(q[0] * q[1] * q[2] * read, q[3], v[3])


@register_flop_formula(torch.ops.archzoo.nsa_selected_backward)
def _selected_backward_flops(
    grad, out, lse, q, k, v, chosen, sizes, *_args, out_shape=None, **_options
) -> int:
    return 2 * _selected_flops(q, k, v, chosen, sizes)
