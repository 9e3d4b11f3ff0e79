"""Several tokens of PaTH attention over a cache, in blocks: the cached keys enter as what earlier blocks carried."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast
from kernels.ops.path_attention.blockwise import Past, extend
from kernels.ops.path_attention.layout import Layout, blocks_of


def path_extend_torch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None = None,
    forgotten: Tensor | None = None,
    *,
    scale: float | None = None,
) -> Tensor:
    """Compute `kernels.path_extend` blockwise, as `path_attention` does.

    q [B, T, H, K], keys [B, Hkv, n, K], values [B, Hkv, n, V], w [B, T, Hkv, K], beta [B, T, Hkv], g [B, T, H],
    forgotten [B, H, n] or None -> [B, T, H, V] in q's dtype.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    tokens, cached = q.shape[1], keys.shape[2]
    layout = Layout(q.shape[0], tokens, keys.shape[1])
    with without_autocast(q):
        wide = torch.promote_types(torch.promote_types(q.dtype, keys.dtype), torch.float32)
        new = (x[:, :, cached - tokens :].transpose(1, 2) for x in (keys, values))
        blocks = blocks_of(layout, q.to(wide), *new, w, beta, g, scale)
        old = (None if x is None else x[:, :, : cached - tokens].to(wide) for x in (keys, values, forgotten))
        out, _, carried = extend(*blocks, _past(layout, *old))
        keys.copy_(carried.keys[:, :cached].unflatten(0, (layout.batch, -1)))
        if forgotten is not None:
            forgotten.copy_(carried.sums[:, :, :cached].unflatten(0, (layout.batch, -1)).flatten(1, 2))
    return layout.whole(out).to(q.dtype)


def _past(layout: Layout, keys: Tensor, values: Tensor, forgotten: Tensor | None) -> Past:
    """The cached rows by KV head: [G, n, K], [G, n, V] and [G, Q, n]."""
    sums = None if forgotten is None else forgotten.unflatten(1, (layout.kv_heads, -1)).flatten(0, 1)
    return Past(keys.flatten(0, 1), values.flatten(0, 1), sums)
