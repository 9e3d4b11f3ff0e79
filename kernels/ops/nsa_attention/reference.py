"""Native sparse attention as its definition has it: every score, explicit masks. For reading and for truth."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast
from kernels.ops.attention import attention_reference, masked_attention
from kernels.ops.nsa_attention.blocks import TIE, UNKNOWN, Sizes, pieces

Pair = tuple[Tensor, Tensor]


def nsa_attention_reference(
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
    """Compute `kernels.nsa_attention` one sequence after another; memory Tq × Tk a head.

    q, q_rotated [B, Tq, H, K]; compressed, selected, sliding: pairs of k [B, M or Tk, Hkv, K], v [B, M or Tk, Hkv, V];
    gates [B, Tq, H, 3] -> [B, Tq, H, V] in q's dtype.
    """
    if cu_seqlens is None:
        return _sequence(q, compressed, selected, sliding, gates, q_rotated, sizes, scale)
    out = []
    for tokens, blocks in pieces(cu_seqlens, q.shape[1], sizes):
        own = [tuple(x[:, tokens] for x in pair) for pair in (selected, sliding)]
        coarse = tuple(x[:, blocks] for x in compressed)
        rows = (x[:, tokens] for x in (gates, q_rotated))
        out.append(_sequence(q[:, tokens], coarse, *own, *rows, sizes, scale))
    return torch.cat(out, 1)


def _sequence(
    q: Tensor,
    compressed: Pair,
    selected: Pair,
    sliding: Pair,
    gates: Tensor,
    q_rotated: Tensor,
    sizes: Sizes,
    scale: float | None,
) -> Tensor:
    """One sequence's o = g_cmp·o_cmp + g_slc·o_slc + g_win·o_win, [B, Tq, H, V]."""
    time, group = selected[0].shape[1], q.shape[2] // selected[0].shape[2]
    t = torch.arange(time - q.shape[1], time, device=q.device)
    coarse = compressed_attention(q, *compressed, t, sizes, scale)
    weights = compressed_weights(q, compressed[0], t, sizes, scale)
    summed = weights.unflatten(1, (-1, group)).sum(2)
    chosen = selection(summed, t, time, group, sizes)
    mask = token_mask(chosen, t, time, sizes).repeat_interleave(group, dim=1)
    fine = masked_attention(q_rotated, *selected, mask, scale)
    near = attention_reference(q_rotated, *sliding, window=sizes.window, scale=scale)
    with without_autocast(q):
        g = gates.unsqueeze(-1)
        out = g[..., 0, :] * coarse + g[..., 1, :] * fine + g[..., 2, :] * near
    return out.to(q.dtype)


def compressed_weights(q: Tensor, k: Tensor, t: Tensor, sizes: Sizes, scale: float | None) -> Tensor:
    """The weights p [B, H, Tq, M]: softmax over the blocks i with i·d + l − 1 ≤ t, and 0 where there is none."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    last = torch.arange(k.shape[1], device=q.device) * sizes.stride + sizes.block_size - 1
    visible = last <= t[:, None]
    with without_autocast(q):
        scores = torch.einsum("bihd,bjhd->bhij", q.to(dtype), k.to(dtype)) * scale
    return scores.masked_fill(~visible, torch.finfo(dtype).min).softmax(-1) * visible


def compressed_attention(
    q: Tensor, k: Tensor, v: Tensor, t: Tensor, sizes: Sizes, scale: float | None
) -> Tensor:
    """The output o [B, Tq, H, V] of the compression branch."""
    p = compressed_weights(q, k, t, sizes, scale)
    v = v.repeat_interleave(q.shape[2] // v.shape[2], dim=2)
    with without_autocast(q):
        return torch.einsum("bhij,bjhd->bihd", p, v.to(p.dtype))


def overlap(blocks: int, selectable: int, sizes: Sizes) -> Tensor:
    """The share |[i·d, i·d + l) ∩ [j·l', (j+1)·l')| / l of compression block i in block j, [M, J]."""
    i = torch.arange(blocks)[:, None] * sizes.stride
    j = torch.arange(selectable) * sizes.select_size
    common = torch.minimum(i + sizes.block_size, j + sizes.select_size) - torch.maximum(i, j)
    return common.clamp_min(0).double() / sizes.block_size


def selection(p: Tensor, t: Tensor, time: int, group: int, sizes: Sizes) -> Tensor:
    """Return whether a query reads selection block j, bool [B, Hkv, Tq, J]; p [B, Hkv, Tq, M] summed over the group."""
    blocks = sizes.selectable(time)
    shares = p.detach().double() @ overlap(p.shape[-1], blocks, sizes).to(p.device)
    j, own = torch.arange(blocks, device=p.device), (t // sizes.select_size)[:, None]
    steps = (shares / group / TIE).round().nan_to_num(nan=UNKNOWN)
    forced = (j == 0) | (j == own) | (j == own - 1)
    steps = steps.masked_fill(forced, torch.inf).masked_fill(j > own, -torch.inf)
    order = steps.argsort(dim=-1, descending=True, stable=True)[..., : sizes.n_select]
    chosen = torch.zeros(steps.shape, dtype=torch.bool, device=p.device).scatter(-1, order, True)
    return chosen & (j <= own)


def token_mask(chosen: Tensor, t: Tensor, time: int, sizes: Sizes) -> Tensor:
    """The tokens of the chosen blocks, up to the query itself, bool [B, Hkv, Tq, Tk]."""
    tokens = chosen.repeat_interleave(sizes.select_size, dim=-1)[..., :time]
    return tokens & (torch.arange(time, device=t.device) <= t[:, None])
