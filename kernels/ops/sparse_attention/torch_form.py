"""Sparse attention in blocks of queries, as two operators: the backward gathers again, and saves no copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.autograd import attention_flops, gated
from kernels.dispatch import reverse_mode_only
from kernels.indices import block_size
from kernels.ops.sparse_attention.select import gather, gathers, selected_mask, shifted, spans


def sparse_attention_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    *,
    gate_logits: Tensor | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.sparse_attention` in blocks of queries.

    Indices are positions along the packed axis, so that packed sequences need nothing more.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V], indices integer [B, Tq, n], gate_logits [B, Tq, H, V] or None
    -> [B, Tq, H, V] in q's dtype, computed in at least fp32.
    """
    reverse_mode_only("sparse_attention", q, k, v)
    o = sparse_attention_op(q, k, v, indices, q.shape[-1] ** -0.5 if scale is None else scale)
    return gated(o, gate_logits)


def attend_masked(q: Tensor, k: Tensor, v: Tensor, indices: Tensor, scale: float) -> Tensor:
    """Attention [B, C, H, V] by PyTorch's SDPA over all keys, under a mask that the heads share."""
    hidden = ~selected_mask(indices, k.shape[1])
    mask = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device)
    # The lowest finite number and not −∞: a row without keys then is an average, and not NaN.
    mask = mask.masked_fill_(hidden, torch.finfo(q.dtype).min).unsqueeze(1)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    shared = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=shared)
    return out.transpose(1, 2)


def attend_gathered(q: Tensor, k: Tensor, v: Tensor, indices: Tensor, scale: float) -> Tensor:
    """Attention [B, C, H, V] of every query to copies of its own keys."""
    groups = q.unflatten(2, (k.shape[2], -1))
    scores = (groups @ gather(k, indices).transpose(-1, -2)) * scale
    scores = scores.to(torch.promote_types(q.dtype, torch.float32))
    unused = (indices < 0)[:, :, None, None]
    weights = scores.masked_fill(unused, torch.finfo(scores.dtype).min).softmax(-1).to(v.dtype)
    return (weights @ gather(v, indices)).flatten(2, 3)


@dataclass(frozen=True)
class _Block:
    """A block's queries, the keys among which they select, and the indices relative to the first of those."""

    queries: slice
    keys: slice
    indices: Tensor
    scale: float

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The block's part of q, k, v -> [B, C, H, V]."""
        gathered = gathers(self.indices.shape[2], k.shape[1], q.shape[2] // k.shape[2])
        out = (attend_gathered if gathered else attend_masked)(q, k, v, self.indices, self.scale)
        return out.masked_fill((self.indices < 0).all(-1)[..., None, None], 0)


def _blocks(q: Tensor, k: Tensor, indices: Tensor, scale: float) -> Iterator[_Block]:
    keys, selected = k.shape[1], indices.shape[2]
    copies = selected * k[0, 0].numel() if gathers(selected, keys, q.shape[2] // k.shape[2]) else 0
    size = block_size(q.shape[0] * max(keys, copies), q.device)
    for first, last, begin, end in spans(indices, size, keys):
        yield _Block(slice(first, last), slice(begin, end), shifted(indices[:, first:last], begin), scale)


@torch.library.custom_op("archzoo::sparse_attention", mutates_args=())
def sparse_attention_op(q: Tensor, k: Tensor, v: Tensor, indices: Tensor, scale: float) -> Tensor:
    """Return o [B, Tq, H, V] in q's dtype: o_t = Σ_{s in S_t} softmax_s(scale·q_t·k_s)·v_s, 0 where S_t is empty.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V]; indices [B, Tq, n] list S_t as places of keys, −1 where
    unused. One block of queries after another: memory is linear in T for a fixed n.
    """
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    for block in _blocks(q, k, indices, scale):
        rows, seen = block.queries, block.keys
        out[:, rows] = block.attend(q[:, rows], k[:, seen], v[:, seen])
    return out


@sparse_attention_op.register_fake
def _(q, k, v, indices, scale):
    return q.new_empty(*q.shape[:3], v.shape[-1])


@torch.library.custom_op("archzoo::sparse_attention_backward", mutates_args=())
def sparse_attention_backward_op(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, indices: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, each in its shape and dtype; computes the forward again, block by block.

    grad: that of o, [B, Tq, H, V]; the rest as given to `sparse_attention_op`.
    """
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for block in _blocks(q, k, indices, scale):
        rows, seen = block.queries, block.keys
        # Operators run below autograd, where requires_grad does nothing; torch.func brings its own.
        _, backward = torch.func.vjp(block.attend, q[:, rows], k[:, seen], v[:, seen])
        dq[:, rows], more_dk, more_dv = backward(grad[:, rows])
        dk[:, seen] += more_dk
        dv[:, seen] += more_dv
    return dq, dk, dv


@sparse_attention_backward_op.register_fake
def _(grad, q, k, v, indices, scale):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _save(ctx, inputs, output):
    q, k, v, indices, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, indices)


def _backward(ctx, grad):
    return *sparse_attention_backward_op(grad, *ctx.saved_tensors, ctx.scale), None, None


sparse_attention_op.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.archzoo.sparse_attention)
def _forward_flops(q, k, v, indices, scale, *, out_shape=None, **_) -> int:
    """Every place of S_t counts, used or not."""
    batch, queries, heads, width = q
    return attention_flops(batch * queries * heads * min(indices[2], k[1]), width, v[3])


@register_flop_formula(torch.ops.archzoo.sparse_attention_backward)
def _backward_flops(grad, q, k, v, indices, scale, *, out_shape=None, **_) -> int:
    return 2 * _forward_flops(q, k, v, indices, scale)
