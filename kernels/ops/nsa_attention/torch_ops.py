"""Native sparse attention in memory linear in T, as two operators that are opaque to tracing.

Their loops depend on lengths, which for packed sequences are data: so `torch.compile` and the meta device see
operators with a shape, a gradient and a cost. Packed sequences become batches of about one length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.dispatch import reverse_mode_only, without_autocast
from kernels.flops import attention_flops
from kernels.ops.nsa_attention.block_topk import block_topk
from kernels.ops.nsa_attention.blocks import Sizes
from kernels.ops.nsa_attention.dense_branches import (
    QueryBlock,
    attend,
    attend_backward,
    compression_blocks,
    window_blocks,
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
    """Compute `kernels.nsa_attention`: the three branches, then their gated sum.

    q, q_rotated [B, Tq, H, K]; compressed, selected, sliding: pairs of k [B, M or Tk, Hkv, K], v [B, M or Tk, Hkv, V];
    gates [B, Tq, H, 3] -> [B, Tq, H, V] in q's dtype.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if _is_step(q, cu_seqlens):
        kv = (compressed, selected, sliding)
        return nsa_torch_step(q, *kv, gates, q_rotated=q_rotated, sizes=sizes, scale=scale)
    reverse_mode_only("nsa_attention", q, q_rotated, *compressed, *selected, *sliding)
    wide = torch.promote_types(q.dtype, torch.float32)
    numbers = (sizes.block_size, sizes.stride, sizes.select_size, sizes.n_select, sizes.window)
    queries = (x.to(wide) * scale for x in (q, q_rotated))
    coarse, fine, near, *_ = branches_op(*queries, *compressed, *selected, *sliding, numbers, cu_seqlens)
    g = gates.unsqueeze(-1)
    return (g[..., 0, :] * coarse + g[..., 1, :] * fine + g[..., 2, :] * near).to(q.dtype)


def _is_step(q: Tensor, cu_seqlens: Tensor | None) -> bool:
    """Return whether a call decodes one token."""
    return q.shape[1] == 1 and cu_seqlens is None and not (torch.is_grad_enabled() or q.is_meta)


def forward(
    q: Tensor, q_rotated: Tensor, compressed: Pair, selected: Pair, sliding: Pair, sizes: Sizes
) -> tuple[Tensor, ...]:
    """The branches [B, Tq, H, V], log-sum-exps and selected blocks of one sequence, or of a batch of one length."""
    time, kv_heads = selected[0].shape[1], selected[0].shape[2]
    chosen = q.new_empty(*q.shape[:2], kv_heads, sizes.n_select, dtype=torch.int32)

    def on_weights(part: QueryBlock, weights: Tensor) -> None:
        t = torch.arange(part.here.start, part.here.stop, device=q.device) + time - q.shape[1]
        last = time - q.shape[1] + part.here.stop - 1
        chosen[:, part.here] = block_topk(weights.mean(3), t, last, sizes).transpose(1, 2)

    coarse = attend(compression_blocks(q, time, sizes), q, *compressed, on_weights)
    fine, lse = selected_forward(q_rotated, *selected, chosen, sizes)
    near = attend(window_blocks(q_rotated, sliding[0].shape[1], sizes.window), q_rotated, *sliding)
    return coarse, fine, near, lse, chosen


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
    """Gradients of q, q_rotated [B, Tq, H, K], and of every branch's k [B, M or Tk, Hkv, K] and v [B, M or Tk, Hkv, V].

    grads: three [B, Tq, H, V] of the branches' outputs; results: what `forward` returned. The eight gradients come in
    the order of compression, selection, window.
    """
    coarse, fine, near, lse, chosen = results
    rows = compression_blocks(q, selected[0].shape[1], sizes)
    dq, *d_compressed = attend_backward(rows, grads[0], coarse, q, *compressed)
    d_rotated, *d_selected = selected_backward(grads[1], fine, lse, q_rotated, *selected, chosen, sizes)
    rows = window_blocks(q_rotated, sliding[0].shape[1], sizes.window)
    more, *d_sliding = attend_backward(rows, grads[2], near, q_rotated, *sliding)
    return dq, d_rotated.add_(more), *d_compressed, *d_selected, *d_sliding


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
    """Run `forward` on every sequence; selected blocks are numbered within their sequence.

    q, q_rotated [B, Tq, H, K], scaled; k and v of the branches [B, M or Tk, Hkv, K or V]; sizes: of `Sizes`, in order.
    Returns the branches' outputs, three [B, Tq, H, V], log-sum-exps [B, Tq, H] of selection, and selected blocks int32
    [B, Tq, Hkv, n].
    """
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
    chosen = q.new_empty(*q.shape[:2], ks.shape[2], sizes[3], dtype=torch.int32)
    return *outs, q.new_empty(q.shape[:3]), chosen


@torch.library.custom_op("archzoo::nsa_branches_backward", mutates_args=())
def branches_backward_op(
    grads: list[Tensor],
    results: list[Tensor],
    inputs: list[Tensor],
    sizes: list[int],
    cu_seqlens: Tensor | None,
) -> list[Tensor]:
    """Gradients of the first eight arguments of `branches_op`, `inputs`, in their shapes and dtypes.

    grads: three [B, Tq, H, V] of the branches' outputs; results: what `branches_op` returned.
    """
    s = Sizes(*sizes)
    with without_autocast(inputs[0]):
        if cu_seqlens is None:
            return [x.contiguous() for x in backward(grads, results, *_branches(inputs), s)]
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
    return [x.new_empty(x.shape) for x in inputs]


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
