"""Native sparse attention in memory linear in T, as two operators that are opaque to tracing.

Their loops depend on lengths, which for packed sequences are data: so `torch.compile` and the meta device see
operators with a shape, a gradient and a cost. Packed sequences become batches of about one length.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.checks import without_autocast
from kernels.flops import attention_flops
from kernels.ops.nsa_attention.block_topk import block_topk
from kernels.ops.nsa_attention.blocks import Sizes
from kernels.ops.nsa_attention.dense_branches import attend, attend_backward, by_lane, by_token
from kernels.ops.nsa_attention.query_ranges import (
    Place,
    QueryBlock,
    compression_ranges,
    window_ranges,
)
from kernels.ops.nsa_attention.selected import selected_backward, selected_forward
from kernels.ops.nsa_attention.torch_step import nsa_torch_step
from kernels.packing.rectangles import Axis, Rectangles

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
    """Compute `kernels.nsa_attention`: the three branches, then their gated sum."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if _is_step(q, cu_seqlens):
        kv = (compressed, selected, sliding)
        return nsa_torch_step(q, *kv, gates, q_rotated=q_rotated, sizes=sizes, scale=scale)
    wide = torch.promote_types(q.dtype, torch.float32)
    numbers = (sizes.block_size, sizes.stride, sizes.select_size, sizes.n_select, sizes.window)
    # The scale goes to the keys, which are fewer than the queries.
    kv = (x for k, v in (compressed, selected, sliding) for x in (k.to(wide) * scale, v.to(wide)))
    coarse, fine, near, *_ = branches_op(q.to(wide), q_rotated.to(wide), *kv, numbers, cu_seqlens)
    g = gates.unsqueeze(-1)
    return (g[..., 0, :] * coarse + g[..., 1, :] * fine + g[..., 2, :] * near).to(q.dtype)


def _is_step(q: Tensor, cu_seqlens: Tensor | None) -> bool:
    """Whether a call decodes one token."""
    return q.shape[1] == 1 and cu_seqlens is None and not (torch.is_grad_enabled() or q.is_meta)


def forward(
    q: Tensor, q_rotated: Tensor, compressed: Pair, selected: Pair, sliding: Pair, sizes: Sizes
) -> tuple[Tensor, ...]:
    """The branches [B, Tq, H, V], their log-sum-exps [B, Tq, H, 3] and the chosen blocks [B, Tq, Hkv, n − 3].

    Of one sequence, or of a batch of one length. A query that chooses none has zeros.
    """
    batch, queries, heads, _ = q.shape
    kv_heads, group = selected[0].shape[2], heads // selected[0].shape[2]
    plain, turned, *kv = (by_lane(x, kv_heads) for x in (q, q_rotated, *compressed, *selected, *sliding))
    compression, window, place = _ranges(q, compressed, selected, sliding, sizes)
    first, width = place.first_choosing(sizes), kv[1].shape[2]
    # Queries before the first block's end have no row in the first branch.
    found = [
        make(*plain.shape[:2], n) for make in (plain.new_zeros, *(plain.new_empty,) * 2) for n in (width, 1)
    ]
    chosen = q.new_zeros(batch * kv_heads, queries, sizes.n_select - 3, dtype=torch.int32)
    choose = partial(_choose, chosen, first, place, sizes)
    parts = list(compression)
    early = [part for part in parts if part.here.stop <= first]
    attend(early, (plain, *kv[:2]), *found[:2], group)
    attend(parts[len(early) :], (plain, *kv[:2]), *found[:2], group, choose)
    selected_forward((turned, *kv[2:4]), *found[2:4], chosen[:, first:], sizes, group)
    attend(window, (turned, *kv[4:]), *found[4:], group)
    *outs, lse, chosen = (
        by_token(x, batch, queries) for x in (*found[::2], torch.cat(found[1::2], -1), chosen)
    )
    return *outs, lse, chosen


def _ranges(q: Tensor, compressed: Pair, selected: Pair, sliding: Pair, sizes: Sizes):
    """The ranges of compression and of the window, and where the queries stand."""
    queries, group = q.shape[1], q.shape[2] // selected[0].shape[2]
    place, near = (Place(queries, x.shape[1], group, q) for x in (selected[0], sliding[0]))
    compression = compression_ranges(place, sizes, compressed[0].shape[1])
    return compression, window_ranges(near, sizes.window), place


def _choose(
    chosen: Tensor,
    first: int,
    place: Place,
    sizes: Sizes,
    part: QueryBlock,
    lanes: slice,
    weights: Tensor,
    total: Tensor,
) -> None:
    """Write to `chosen` [L, Tq, n − 3] the blocks of the block's queries from `first` on, but for the forced ones."""
    begin, end = max(first, part.here.start), part.here.stop
    if begin < end:
        p = (weights / total).unflatten(1, (part.queries, -1))[:, begin - end :].mean(2)
        t, last = place.positions(begin, end), place.offset + end - 1
        chosen[lanes, begin:end] = block_topk(p, t, last, sizes)[..., 3:]


def backward(
    grads: list[Tensor],
    results: list[Tensor],
    q: Tensor,
    q_rotated: Tensor,
    compressed: Pair,
    selected: Pair,
    sliding: Pair,
    sizes: Sizes,
) -> tuple[Tensor, ...]:
    """Gradients of q, q_rotated, and k and v of the three branches."""
    *outs, lse, chosen = results
    batch, queries, heads, _ = q.shape
    kv_heads, group = selected[0].shape[2], heads // selected[0].shape[2]
    lanes = partial(by_lane, kv_heads=kv_heads)
    plain, turned, *kv = map(lanes, (q, q_rotated, *compressed, *selected, *sliding))
    given = [
        (lanes(grad), lanes(out), lanes(lse[..., branch, None]))
        for branch, (grad, out) in enumerate(zip(grads, outs, strict=True))
    ]
    compression, window, place = _ranges(q, compressed, selected, sliding, sizes)
    dq, (d_turned, more) = torch.zeros_like(plain), (torch.empty_like(plain) for _ in range(2))
    d_kv = [torch.zeros_like(x) for x in kv]
    attend_backward(compression, given[0], (plain, *kv[:2]), (dq, *d_kv[:2]), group)
    rest = lanes(chosen)[:, place.first_choosing(sizes) :]
    selected_backward(given[1], (turned, *kv[2:4]), (d_turned, *d_kv[2:4]), rest, sizes, group)
    attend_backward(window, given[2], (turned, *kv[4:]), (more, *d_kv[4:]), group)
    found = (dq, d_turned.add_(more), *d_kv)
    counts = (queries, queries, *(x.shape[1] for x in (*compressed, *selected, *sliding)))
    return tuple(by_token(x, batch, count) for x, count in zip(found, counts, strict=True))


@torch.library.custom_op("archzoo::nsa_branches", mutates_args=())
def branches_op(
    q: Tensor,
    q_rotated: Tensor,
    k_compressed: Tensor,
    v_compressed: Tensor,
    k_selected: Tensor,
    v_selected: Tensor,
    k_sliding: Tensor,
    v_sliding: Tensor,
    sizes: list[int],
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run `forward` on every sequence; selected blocks are numbered within their sequence. Keys are scaled."""
    inputs = (q, q_rotated, k_compressed, v_compressed, k_selected, v_selected, k_sliding, v_sliding)
    s = Sizes(*sizes)
    with without_autocast(q):
        if cu_seqlens is None:
            return forward(*_branches(inputs), s)
        axes = _axes(cu_seqlens, q.shape[2], s)
        batches = zip(*(axis.spread(x[0]) for x, axis in zip(inputs, axes, strict=True)), strict=True)
        parts = [forward(*_branches(batch), s) for batch in batches]
    return tuple(axes[0].collect(part).unsqueeze(0) for part in zip(*parts, strict=True))


def _branches(inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor, Pair, Pair, Pair]:
    """q, q_rotated and (k, v) three times."""
    return inputs[0], inputs[1], inputs[2:4], inputs[4:6], inputs[6:8]


def _axes(cu_seqlens: Tensor, heads: int, sizes: Sizes) -> tuple[Axis, ...]:
    """The time axis of each of those eight tensors: of tokens or of compressed blocks. Reads cu_seqlens."""
    rectangles = Rectangles.of(cu_seqlens, heads)
    tokens, blocks = rectangles.axis(), rectangles.axis(sizes.compressed)
    return tokens, tokens, blocks, blocks, tokens, tokens, tokens, tokens


@branches_op.register_fake
def _(q, q_rotated, kc, vc, ks, vs, kw, vw, sizes, cu_seqlens):
    outs = (q.new_empty(*q.shape[:3], vs.shape[-1]) for _ in range(3))
    chosen = q.new_empty(*q.shape[:2], ks.shape[2], sizes[3] - 3, dtype=torch.int32)
    return *outs, q.new_empty(*q.shape[:3], 3), chosen


@torch.library.custom_op("archzoo::nsa_branches_backward", mutates_args=())
def branches_backward_op(
    grads: list[Tensor],
    results: list[Tensor],
    inputs: list[Tensor],
    sizes: list[int],
    cu_seqlens: Tensor | None,
) -> list[Tensor]:
    """Gradients of the first eight arguments of `branches_op`, `inputs`."""
    s = Sizes(*sizes)
    with without_autocast(inputs[0]):
        if cu_seqlens is None:
            return list(backward(grads, results, *_branches(inputs), s))
        axes = _axes(cu_seqlens, inputs[0].shape[2], s)
        outer = zip(*(axes[0].spread(x[0]) for x in (*grads, *results)), strict=True)
        batches = zip(*(axis.spread(x[0]) for x, axis in zip(inputs, axes, strict=True)), strict=True)
        parts = [
            backward(given[:3], given[3:], *_branches(batch), s)
            for given, batch in zip(outer, batches, strict=True)
        ]
    found = [
        axis.collect(part).unsqueeze(0) for axis, part in zip(axes, zip(*parts, strict=True), strict=True)
    ]
    # Places on the axis of blocks that no sequence has filled have no gradient.
    return [F.pad(d, (0, 0, 0, 0, 0, x.shape[1] - d.shape[1])) for d, x in zip(found, inputs, strict=True)]


@branches_backward_op.register_fake
def _(grads, results, inputs, sizes, cu_seqlens):
    return [torch.empty_like(x) for x in inputs]


def _save(ctx, inputs, output):
    *tensors, ctx.sizes, cu_seqlens = inputs
    ctx.mark_non_differentiable(output[4])
    ctx.save_for_backward(*output, *tensors, cu_seqlens)


def _backward(ctx, *grads):
    *tensors, cu_seqlens = ctx.saved_tensors
    results, inputs = tensors[:5], tensors[5:]
    given = [grad.contiguous() for grad in grads[:3]]
    return *branches_backward_op(given, results, inputs, ctx.sizes, cu_seqlens), None, None


branches_op.register_autograd(_backward, setup_context=_save)


def score_entries(time: int, blocks: int, sizes: list[int]) -> int:
    """Scores of one query and head: every compressed block, n blocks of tokens and the window, hidden or not."""
    _, _, select_size, n_select, window = sizes
    return blocks + min(time, n_select * select_size) + min(time, window)


@register_flop_formula(torch.ops.archzoo.nsa_branches)
def _flops(q, q_rotated, kc, vc, ks, vs, kw, vw, sizes, cu_seqlens, *, out_shape=None, **_) -> int:
    return attention_flops(q[0] * q[1] * q[2] * score_entries(ks[1], kc[1], sizes), q[3], vs[3])


@register_flop_formula(torch.ops.archzoo.nsa_branches_backward)
def _backward_flops(grads, results, inputs, sizes, cu_seqlens, *, out_shape=None, **_) -> int:
    return 2 * _flops(*inputs, sizes, cu_seqlens)
