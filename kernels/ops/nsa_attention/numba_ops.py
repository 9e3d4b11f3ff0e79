"""Numba's form of native sparse attention: which keys each branch reads, as ranges, and attention to those."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.autograd import attention_flops, first_order
from kernels.dispatch import reverse_mode_only
from kernels.numba_common import (
    array,
    arrays,
    by_kv_head,
    by_query,
    in_parts,
    keys_by_head,
    keys_by_position,
    parts_of,
    refusal,
)
from kernels.ops.nsa_attention.blocks import Sizes, block_topk
from kernels.ops.nsa_attention.torch_form import compression_blocks, grouped

# Attention of every query to ranges of keys, as an operator with Numba's kernels behind it.


@torch.library.custom_op("archzoo::ranged_attention", mutates_args=())
def ranged_attention_op(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, scale: float, most: int
) -> tuple[Tensor, Tensor]:
    """o [B, T, H, V] and log-sum-exps [B, Hkv, T, G]: softmax of scale·q·k over the keys in each query's ranges.

    q [B, T, H, K], k [B, S, Hkv, K], v [B, S, Hkv, V], fp32; ranges int32 [B or 1, Hkv or 1, T, n, 2], [start, stop) in
    rising order, apart from each other, of at most `most` keys together. A query without keys gets 0.
    """
    from kernels.ops.nsa_attention.numba_form import Ranged, forward

    q, k, v = (x.detach() for x in (q, k, v))
    given, parts = _given(q, k, v, ranges, scale), parts_of(len(q))
    o = q.new_zeros(*given[0].shape[:4], given[2].shape[3])
    lse = q.new_zeros(len(q), k.shape[2], q.shape[1], q.shape[2] // k.shape[2])

    def work(b: int, part: int) -> None:
        forward(Ranged(*arrays(given, b)), max(1, most), *arrays((o, lse), b), part, parts)

    in_parts(work, len(q))
    return by_query(o, (*q.shape[:3], v.shape[3])), lse


@ranged_attention_op.register_fake
def _(q, k, v, ranges, scale, most):
    lse = q.new_empty(len(q), k.shape[2], q.shape[1], q.shape[2] // k.shape[2])
    return q.new_empty(*q.shape[:3], v.shape[3]), lse


@torch.library.custom_op("archzoo::ranged_attention_backward", mutates_args=())
def ranged_attention_backward_op(
    grad: Tensor,
    o: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ranges: Tensor,
    scale: float,
    most: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v in their shapes for that of o, grad [B, T, H, V]; o, lse: what the operator returned."""
    from kernels.ops.nsa_attention.numba_form import Ranged, backward

    grad, o, lse, q, k, v = (x.detach() for x in (grad, o, lse, q, k, v))
    given, parts, kv_heads = _given(q, k, v, ranges, scale), parts_of(len(q)), k.shape[2]
    out = (by_kv_head(o, kv_heads), lse, by_kv_head(grad, kv_heads))
    d_q = torch.zeros_like(given[0])
    d_k, d_v = (x.new_zeros(len(q), parts, *x.shape[1:]) for x in given[1:3])

    def work(b: int, part: int) -> None:
        gradients = (array(d_q[b]), *arrays((d_k, d_v), b, part))
        backward(Ranged(*arrays(given, b)), *arrays(out, b), *gradients, part, parts)

    in_parts(work, len(q))
    dk, dv = keys_by_position(d_k.sum(1), k), keys_by_position(d_v.sum(1), v)
    return by_query(d_q.mul_(scale), q.shape), dk, dv


@ranged_attention_backward_op.register_fake
def _(grad, o, lse, q, k, v, ranges, scale, most):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _given(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, scale: float) -> tuple[Tensor, ...]:
    """The tensors of `Ranged`, of all sequences."""
    ranges = ranges.expand(len(q), *ranges.shape[1:])
    return by_kv_head(q * scale, k.shape[2]), keys_by_head(k), keys_by_head(v), ranges


def _save(ctx, inputs, output):
    *tensors, ctx.scale, ctx.most = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output, *tensors)


def _backward(ctx, grad, _lse):
    gradients = ranged_attention_backward_op(grad.contiguous(), *ctx.saved_tensors, ctx.scale, ctx.most)
    return *gradients, None, None, None


ranged_attention_op.register_autograd(first_order(_backward), setup_context=_save)


@register_flop_formula(torch.ops.archzoo.ranged_attention)
def _flops(q, k, v, ranges, scale, most, *, out_shape=None, **_) -> int:
    """Every query counts as the one with most keys."""
    return attention_flops(q[0] * q[1] * q[2] * most, q[3], v[3])


@register_flop_formula(torch.ops.archzoo.ranged_attention_backward)
def _backward_flops(grad, o, lse, q, k, v, ranges, scale, most, *, out_shape=None, **_) -> int:
    return 2 * _flops(q, k, v, ranges, scale, most)


# The backend: which keys each branch reads, as ranges.

Pair = tuple[Tensor, Tensor]


def refuses_numba(
    q: Tensor,
    compressed: Pair,
    selected: Pair,
    sliding: Pair,
    gates: Tensor,
    *,
    q_rotated: Tensor,
    cu_seqlens: Tensor | None = None,
    **_options,
) -> str | None:
    """Return why Numba cannot serve a call of `nsa_attention`, None if it can."""
    if cu_seqlens is not None:
        return "takes no packed sequences"
    return refusal(q, q_rotated, *compressed, *selected, *sliding)


def nsa_attention_numba(
    q: Tensor,
    compressed: Pair,
    selected: Pair,
    sliding: Pair,
    gates: Tensor,
    *,
    q_rotated: Tensor,
    sizes: Sizes,
    scale: float | None = None,
    cu_seqlens: None = None,
) -> Tensor:
    """Compute `kernels.nsa_attention` for what `refuses_numba` does not refuse; shapes as there."""
    reverse_mode_only("nsa_attention", q, q_rotated, *compressed, *selected, *sliding)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    time, near = selected[0].shape[1], sliding[0].shape[1]
    numbers = [sizes.block_size, sizes.stride, sizes.select_size, sizes.n_select, sizes.window]
    chosen = chosen_blocks_op(q.detach() * scale, compressed[0].detach(), time, numbers)
    t = torch.arange(time - q.shape[1], time, device=q.device)
    read = min(time, sizes.n_select * sizes.select_size)
    branches = (
        (q, compressed, compression_ranges(t, sizes), compressed[0].shape[1]),
        (q_rotated, selected, selection_ranges(chosen, t, min(sizes.select_size, time)), read),
        (q_rotated, sliding, window_ranges(t + near - time, sizes), min(near, sizes.window)),
    )
    out = [ranged_attention_op(x, *kv, ranges, scale, most)[0] for x, kv, ranges, most in branches]
    g = gates.unsqueeze(-1)
    return (g[..., 0, :] * out[0] + g[..., 1, :] * out[1] + g[..., 2, :] * out[2]).to(q.dtype)


@torch.library.custom_op("archzoo::nsa_chosen_blocks", mutates_args=())
def chosen_blocks_op(q: Tensor, k: Tensor, time: int, sizes: list[int]) -> Tensor:
    """The blocks that each query reads, int32 [B, Hkv, T, n], in rising order, −1 where there are fewer.

    q [B, T, H, K] with the scale in it, k [B, M, Hkv, K] of the compressed blocks; time: the keys to select from.
    """
    s = Sizes(*sizes)
    chosen = q.new_empty(len(q), k.shape[2], q.shape[1], s.n_select, dtype=torch.int32)
    for part in compression_blocks(q, time, s):
        weights = part.weights(grouped(q[:, part.here], k.shape[2]), k[:, part.seen].permute(0, 2, 3, 1))
        t = torch.arange(part.here.start, part.here.stop, device=q.device) + time - q.shape[1]
        mean = weights.unflatten(2, (part.queries, -1)).mean(3)
        chosen[:, :, part.here] = block_topk(mean, t, int(t[-1]), s)
    return chosen.sort(-1).values


@chosen_blocks_op.register_fake
def _(q, k, time, sizes):
    return q.new_empty(len(q), k.shape[2], q.shape[1], sizes[3], dtype=torch.int32)


def compression_ranges(t: Tensor, sizes: Sizes) -> Tensor:
    """The compressed blocks that end at positions t int64 [T] or before, int32 [1, 1, T, 1, 2]."""
    seen = torch.div(t + 1 - sizes.block_size, sizes.stride, rounding_mode="floor").add_(1).clamp_min_(0)
    return _range_each(torch.zeros_like(seen), seen)


def selection_ranges(chosen: Tensor, t: Tensor, size: int) -> Tensor:
    """The tokens up to t int64 [T] of the chosen blocks int32 [B, Hkv, T, n], so [B, Hkv, T, n, 2]; none of block −1.

    size: the tokens of a block, or all that there are.
    """
    start = chosen.clamp_min(0) * size
    stop = torch.minimum(start + size, t.to(torch.int32)[:, None] + 1)
    return torch.stack([start, torch.where(chosen < 0, start, stop)], -1)


def window_ranges(t: Tensor, sizes: Sizes) -> Tensor:
    """The last `window` keys up to t int64 [T], a place among those that there are, int32 [1, 1, T, 1, 2]."""
    return _range_each((t + 1 - sizes.window).clamp_min(0), t + 1)


def _range_each(start: Tensor, stop: Tensor) -> Tensor:
    """One range for every query, of any head and sequence: int64 [T] twice -> int32 [1, 1, T, 1, 2].

    Sizes may be beyond int32, what is left of them after `start` and `stop` were cut to the keys there are is not.
    """
    return torch.stack([start, stop], -1).to(torch.int32)[None, None, :, None]
